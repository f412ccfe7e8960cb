"""What loggers get beside what spaCy's loop gives them.

- `learn_rates`: by param group, the rate of this step; and each as `learn_rate_<group>`.
- `grad_norm`: over all gradients, before clipping; None if not measured.
- `skipped_updates`, `grad_spikes`, `rollbacks`, `outside_writes` (of learning rates) and `conservative_mode` (how often
  it began) so far; and in `since_evaluation` those since the evaluation before.
- `elapsed`: `seconds`, not rounded down.

If there were any: `overruns` (how often the controller of learning rates took longer than its budgets),
`last_checkpoint` (the step of the newest one; that of this step is yet to be written), `last_rollback` (after which
step, and to which), `last_resume` (the first step since the run was resumed), `dev_losses` (at an evaluation at which a
rule asked for the loss on the development data: what it was told), `controller` (what rules of the trainer controller
did, since the step before: see rules.py), `fired` (which of them fired since the evaluation before, and how often),
`losses_before` (in the first step since the run was resumed: what `losses` had before it), `put_together` (the step of
each component, at the end: see best_weights.py), and `log_now` (a listener asked for this step to be logged).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from spacy.language import Language

from ..optimizers import TorchOptimizer
from ..params import clean
from .checkpoint import RunCheckpoints
from .events import Control, Log, TrainBegin
from .progress import Progress

_latest: WeakKeyDictionary[Language, dict[str, Any]] = WeakKeyDictionary()


def latest_info(nlp: Language) -> dict[str, Any] | None:
    """What there is to log of the step just done. spaCy hands it to loggers at evaluations only; this is for those that
    want every step.

    nlp (Language): The pipeline in training.
    RETURNS (dict[str, Any] | None): As the loop yielded it; its `losses` add up from one evaluation to the next. None
        when no training goes on, or not with our optimizer.
    """
    return _latest.get(nlp)


def counts_of(optimizer: TorchOptimizer, progress: Progress) -> dict[str, int]:
    """What is counted from the beginning of a run."""
    return {
        "skipped_updates": optimizer.skipped_updates,
        "grad_spikes": optimizer.grad_spikes,
        "rollbacks": len(progress.rollbacks),
        "outside_writes": optimizer.controller.outside_writes,
        "conservative_mode": optimizer.controller.times_conservative,
    }


class LogNumbers:
    """Gives loggers our numbers. A listener.

    progress (Progress), checkpoints (RunCheckpoints | None): The run's.

    Public: `dev_losses` (computed in this step, for its line; None: not computed).
    """

    name = "log numbers"

    def __init__(self, progress: Progress, checkpoints: RunCheckpoints | None):
        self._progress = progress
        self._checkpoints = checkpoints
        self._nlp: Language | None = None
        self._resumed_at: int | None = None
        self.dev_losses: dict[str, Any] | None = None

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        self._resumed_at = event.step + 1 if event.resumed else None

    def on_log(self, event: Log, control: Control) -> None:
        run, info, counts = event.run, event.info, event.run.counts
        rates = run.learn_rates
        info |= {"elapsed": self._progress.seconds, "learn_rates": rates}
        # The same as plain numbers, for services that take no others. Their names for metrics hold fewer characters
        # than ours.
        info |= {f"learn_rate_{clean(group)}": rate for group, rate in rates.items()}
        info |= {"grad_norm": run.grad_norm, **counts}
        if overruns := run.optimizer.controller.overruns:
            info["overruns"] = overruns  # not always: it goes by how fast the machine is
        info |= self._safety_net()
        if self._resumed_at is not None:
            info["last_resume"] = self._resumed_at
            if event.step == self._resumed_at:
                info["losses_before"] = {name: info["losses"][name] - loss for name, loss in run.losses.items()}
        if self.dev_losses is not None:
            info["dev_losses"], self.dev_losses = self.dev_losses, None
        info["since_evaluation"] = {name: count - self._progress.counts.get(name, 0) for name, count in counts.items()}
        if control.should_log:
            info["log_now"] = True
        self._nlp = run.nlp
        _latest[run.nlp] = info

    def close(self) -> None:
        if self._nlp is not None:
            _latest.pop(self._nlp, None)
            self._nlp = None

    def _safety_net(self) -> dict[str, Any]:
        """Of checkpoints and rollbacks, as far as there were any."""
        newest, rollbacks = None if self._checkpoints is None else self._checkpoints.newest, self._progress.rollbacks
        if not rollbacks:
            return {} if newest is None else {"last_checkpoint": newest}
        after, to = rollbacks[-1]
        # Going back removed those that were newer.
        return {"last_checkpoint": to if newest is None or newest < after else newest, "last_rollback": (after, to)}
