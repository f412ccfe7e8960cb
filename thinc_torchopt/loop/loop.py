"""spaCy's training loop for our optimizer: the same steps, results and log, with one update for the whole pipeline.

`spacy.training.loop.train_while_improving` calls it (see core/hooks.py) when the optimizer is a TorchOptimizer.
`spacy train` does everything else: corpora, batches, logging, saving. Checkpoints, rollbacks and the like are
listeners: see events.py.

SOURCE: spacy/training/loop.py (3.8), whose results it reproduces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional

from spacy.language import Language
from spacy.training import Example

from ..core.optimizer import TorchOptimizer
from .events import Listener
from .processes import Scores
from .run import LoopArguments, Run

_Step = tuple[list[Example], dict[str, Any], Optional[bool]]


def train_while_improving(
    nlp: Language,
    optimizer: TorchOptimizer,
    train_data: Iterable[tuple[int, list[Example]]],
    evaluate: Callable[[], Scores],
    *,
    listeners: Sequence[Listener] = (),
    **arguments: Any,
) -> Iterator[_Step]:
    """Train until the score stops improving.

    train_data (Iterable): Epoch and batch of each step.
    evaluate (Callable): Returns the main score, higher is better, and all scores.
    arguments (Any): Those of `LoopArguments`.
    listeners (Sequence[Listener]): More listeners. They get events before the package's own.
    RETURNS (Iterator[tuple]): For each step the batch, the log entry (see log_numbers.py), and whether this is the best
        model so far (None: not evaluated).
    """
    # Not in the generator: here spaCy has not yet removed the old models, so errors that can be found early are raised
    # now.
    run = Run(nlp, optimizer, train_data, evaluate, LoopArguments(**arguments), listeners)
    steps = _steps(run)
    return steps if run.checkpoints is None else run.checkpoints.signals.within_each(steps)


def _steps(run: Run) -> Iterator[_Step]:
    with run:
        if not run.begin():
            return
        while (batch := run.next_batch()) is not None:
            run.begin_step(batch)
            run.update(batch)
            run.optimizer.step_schedules()
            run.end_step(batch)
            score, scores, is_best = run.evaluate()
            info = run.info(score, scores)
            yield batch, info, is_best
            if run.save(info, is_best):
                break
        run.end()
