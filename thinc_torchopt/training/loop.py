"""spaCy's training loop, for our optimizer: the same steps, results and log, with one update for the whole pipeline.

`spacy.training.loop.train_while_improving` comes here (see hooks.py) when the optimizer is a TorchOptimizer; `spacy train` does everything
else: corpora, batches, logging, saving.
SOURCE: spacy/training/loop.py (3.8), whose results it reproduces.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from timeit import default_timer
from typing import Any, Optional
from weakref import WeakKeyDictionary

from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import subdivide_batch

from .. import hooks
from ..errors import PipelineError, PipelineWarning
from ..optimizers import TorchOptimizer
from ..params import clean, trainable_components
from .checkpoint import RunCheckpoints
from .progress import Progress
from .rollback import Rollback
from .signals import Signals

Scores = tuple[float, dict[str, Any]]
_Step = tuple[list[Example], dict[str, Any], Optional[bool]]

# spaCy's errors for a loss, and for scores, that are NaN.
_NOT_FINITE = ("[E910]", "[E940]")

_latest: WeakKeyDictionary[Language, dict[str, Any]] = WeakKeyDictionary()


def train_while_improving(
    nlp: Language,
    optimizer: TorchOptimizer,
    train_data: Iterable[tuple[int, list[Example]]],
    evaluate: Callable[[], Scores],
    *,
    dropout: float | Iterator[float],
    eval_frequency: int,
    accumulate_gradient: int,
    patience: int,
    max_steps: int,
    exclude: list[str],
    annotating_components: list[str],
    before_update: Callable[[Language, dict[str, Any]], None] | None,
) -> Iterator[_Step]:
    """Train until the score stops improving.

    train_data (Iterable): Epoch and batch of each step.
    evaluate (Callable): Returns the main score, higher is better, and all scores.
    RETURNS (Iterator[tuple]): For each step the batch, what loggers show, and whether this is the best model so far (None: not evaluated).
        Beside what spaCy's loop gives, loggers get `learn_rates` (by param group: the rate of this step; and each as `learn_rate_<group>`),
        `grad_norm` (over all gradients, before clipping; None if not measured), `skipped_updates`, `grad_spikes`, `rollbacks`,
        `outside_writes` (of learning rates) and `conservative_mode` (how often it began) so far; and in `since_evaluation` those since the
        evaluation before. `elapsed` is `seconds`, not rounded down. If there were any: `overruns` (how often the controller of learning
        rates took longer than its budgets), `last_checkpoint` (the step of the newest one; that of this step is yet to be written) and
        `last_rollback` (after which step, and to which).
    """
    batches, dropouts = iter(train_data), itertools.repeat(dropout) if isinstance(dropout, float) else dropout
    checkpoints, rollback, progress, goes_on = None, None, Progress(), False
    # Not in the generator: at this point spaCy has not yet removed the old models. All errors that can be found early are raised here.
    try:
        _introduce(optimizer, nlp, exclude)
    except PipelineError:
        if before_update is None:
            raise  # or else the hook may be what puts the pipeline in order
    if optimizer.checkpoint is not None:
        checkpoints = RunCheckpoints(optimizer.checkpoint, nlp, optimizer, batches)
        batches, goes_on = checkpoints.stream, checkpoints.open(progress, dropouts)
        rollback = None if optimizer.rollback is None else Rollback(nlp, optimizer)
        hooks.tell_output_to(checkpoints)  # spaCy cleans its folder next
        if (end := hooks.end_of_training()) is not None:
            end.callback(checkpoints.close)

    def update(epoch: int, batch: list[Example], losses: dict[str, float]) -> None:
        drop, spoiled_by = next(dropouts), None
        # Only if it is asked for: on a GPU it has to be waited for.
        losses_before = sum(map(float, losses.values())) if optimizer.controller.goes_by_metrics else None
        optimizer.keep_buffers()  # also after the training went on, or back
        # For one step, and not for the whole training: there is no signal when a training is abandoned.
        with optimizer.training():
            try:
                for subbatch in subdivide_batch(batch, accumulate_gradient):
                    nlp.update(subbatch, drop=drop, losses=losses, sgd=False, exclude=exclude, annotates=annotating_components)  # type: ignore[arg-type]
            except ValueError as error:
                if not str(error).startswith(_NOT_FINITE):
                    raise
                spoiled_by = error
            metrics = None if losses_before is None else {"loss": sum(map(float, losses.values())) - losses_before}
        with optimizer.joint_step(spoiled_by, epoch=epoch, metrics=metrics):
            for name, proc in nlp.pipeline:
                if name not in exclude and is_trained(proc):
                    proc.finish_update(optimizer)  # type: ignore[attr-defined]
                    if spoiled_by is not None:
                        losses.setdefault(name, 0.0)  # spaCy's table wants one, also of components behind the one that raised

    def train() -> Iterator[_Step]:
        is_ready = goes_on
        with ExitStack() as until_the_end:
            until_the_end.callback(_latest.pop, nlp, None)
            if checkpoints is not None:
                until_the_end.callback(checkpoints.close)
                checkpoints.begin()
                if goes_on:
                    is_over = progress.is_over(patience, max_steps) or checkpoints.stream.is_exhausted
                    checkpoints.report(progress, is_over)
                    if is_over:
                        checkpoints.end(progress)
                        return
                    checkpoints.restore_random()
            started = default_timer() - progress.seconds
            for epoch, batch in batches:
                step = progress.step + 1
                if before_update is not None:
                    before_update(nlp, {"step": step, "epoch": epoch})
                if not is_ready:
                    # Once more: the hook may have changed the pipeline.
                    if not _introduce(optimizer, nlp, exclude):
                        _warn_of_nothing_to_train(nlp, exclude)
                    is_ready = True
                update(epoch, batch, losses := progress.losses)
                learn_rates = optimizer.learn_rates
                optimizer.step_schedules()
                progress.step, progress.epoch = step, epoch
                progress.words += sum(len(example) for example in batch)
                if rollback is not None and rollback.is_due:
                    rollback.go_back(progress)
                progress.seconds = default_timer() - started
                score, other_scores, is_best = None, None, None
                if step % eval_frequency == 0:
                    with nlp.use_params(optimizer.averages):
                        score, other_scores = evaluate()
                    optimizer.observe(score, other_scores)
                    progress.results.append((score, step))
                    is_best = score == max(progress.results)[0]
                counts = {
                    "skipped_updates": optimizer.skipped_updates,
                    "grad_spikes": optimizer.grad_spikes,
                    "rollbacks": len(progress.rollbacks),
                    "outside_writes": optimizer.controller.outside_writes,
                    "conservative_mode": optimizer.controller.times_conservative,
                }
                info = {
                    "epoch": epoch,
                    "step": step,
                    "score": score,
                    "other_scores": other_scores,
                    "losses": losses,
                    "checkpoints": progress.results,
                    "seconds": int(progress.seconds),
                    "elapsed": progress.seconds,
                    "words": progress.words,
                    "learn_rates": learn_rates,
                    # The same as plain numbers, for services that take no others. Their names for metrics hold fewer characters than ours.
                    **{f"learn_rate_{clean(group)}": rate for group, rate in learn_rates.items()},
                    "grad_norm": optimizer.grad_norm,
                    **counts,
                    # Not always: it goes by how fast the machine is.
                    **({"overruns": overruns} if (overruns := optimizer.controller.overruns) else {}),
                    **_safety_net(progress, checkpoints),
                    "since_evaluation": {name: count - progress.counts.get(name, 0) for name, count in counts.items()},
                }
                _latest[nlp] = info
                yield batch, info, is_best
                if is_best is not None:
                    progress.losses, progress.counts = {}, counts
                is_over = progress.is_over(patience, max_steps)
                if checkpoints is not None:
                    checkpoints.after_step(progress, info, is_best, is_over)
                if is_over:
                    break
            else:
                if checkpoints is not None:
                    checkpoints.end(progress)

    return train() if checkpoints is None else _each_within(checkpoints.signals, train())


def _each_within(context: Signals, steps: Iterator[_Step]) -> Iterator[_Step]:
    """The same steps, each of them made inside a context, which is left while the step is logged and saved."""
    if (end := hooks.end_of_training()) is not None:
        context.stay_until(end)
    while True:
        with context:
            step = next(steps, None)
        if step is None:
            return
        yield step


def latest_info(nlp: Language) -> dict[str, Any] | None:
    """What there is to log of the step just done. spaCy hands it to loggers at evaluations only; this is for those that want every step.

    nlp (Language): The pipeline in training.
    RETURNS (dict[str, Any] | None): As the loop yielded it; its `losses` add up from one evaluation to the next. None when no training
        goes on, or not with our optimizer.
    """
    return _latest.get(nlp)


def _safety_net(progress: Progress, checkpoints: RunCheckpoints | None) -> dict[str, Any]:
    """What loggers get of checkpoints and rollbacks, as far as there were any."""
    newest = None if checkpoints is None else checkpoints.newest
    if not progress.rollbacks:
        return {} if newest is None else {"last_checkpoint": newest}
    after, to = progress.rollbacks[-1]
    # Going back removed those that were newer.
    return {"last_checkpoint": to if newest is None or newest < after else newest, "last_rollback": (after, to)}


def is_trained(proc: Any) -> bool:
    """Whether spaCy's loop calls a component's `finish_update`, whatever kind of model it has."""
    return getattr(proc, "is_trainable", False) and proc.model not in (True, False, None)


def _introduce(optimizer: TorchOptimizer, nlp: Language, exclude: list[str]) -> bool:
    """Tell the optimizer its pipeline, unless there is nothing to train. RETURNS (bool): Whether there is."""
    is_something = bool(trainable_components(nlp, exclude))
    if is_something:
        optimizer.initialize(nlp, exclude)
    return is_something


def _warn_of_nothing_to_train(nlp: Language, exclude: list[str]) -> None:
    """Such a pipeline is run all the same, as spaCy does."""
    if not any(is_trained(proc) for name, proc in nlp.pipeline if name not in exclude):
        warnings.warn(
            PipelineWarning(
                f"Nothing to train in the pipeline {nlp.pipe_names}: expected at least one trainable component, found none that is not "
                f"excluded ({exclude}). If that is not meant, take one out of [training] frozen_components."
            ),
            stacklevel=3,
        )
