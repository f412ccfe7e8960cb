"""The numbers that loggers get beside those of spaCy's loop.

Always:

- `learn_rates`: rates of this step by param group; and each as `learn_rate_<group>`.
- `step_losses`: losses of this step alone, by component; NaN: unknown.
- `grad_norm`: norm of all gradients, before clipping; None if not measured.
- `skipped_updates`, `grad_spikes`, `rollbacks`, `outside_writes` (of learning rates): counts so far.
        `since_evaluation`: the same since the last evaluation.
- `elapsed`: `seconds`, not rounded down. `time_spent`: where they went since this process began; see
        `progress.TimeSpent`.
- `run_id`: of the run, the same when it is resumed.

If there is something to report:

- `last_checkpoint`: step of the newest checkpoint, before that of this step is written.
- `last_rollback`: the step after which it happened, and the step that it went back to.
- `last_resume`: first step after the run was resumed.
- `dev_losses`: losses on the development data, at an evaluation where a rule used them.
- `controller`: firings of rules since the last step. `fired`: their number by rule since the last
        evaluation.
- `epsilon`, and `privacy` with both accountants' values: of a private training, at an evaluation.
- `one_label`: the category that a classifier gave all texts of the development data, once; see training_check.py.
- `log_now`: a listener asked to log this step.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from spacy.language import Language

from ..core.params import clean
from .events import Control, Log, TrainBegin
from .progress import Progress

_latest: WeakKeyDictionary[Language, dict[str, Any]] = WeakKeyDictionary()


def latest_info(nlp: Language) -> dict[str, Any] | None:
    """The log entry of the last step, for loggers of every step: spaCy passes it on at evaluations only.

    nlp (Language): The pipeline in training.
    RETURNS (dict[str, Any] | None): As the loop yielded it; its `losses` are summed since the last evaluation. None: no
        training is running, or not with our optimizer.
    """
    return _latest.get(nlp)


class LogNumbers:
    """Adds our numbers to log entries. A listener.

    Public: `dev_losses` (of this step, for its entry; None: not computed).
    """

    name = "log numbers"

    def __init__(self) -> None:
        self._nlp: Language | None = None
        self._resumed_at: int | None = None
        self.dev_losses: dict[str, Any] | None = None

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        self._resumed_at = event.step + 1 if event.resumed else None

    def on_log(self, event: Log, control: Control) -> None:
        run, info, counts = event.run, event.info, event.run.counts
        rates, progress = run.learn_rates, run.progress
        info |= {"elapsed": progress.seconds, "learn_rates": rates, "run_id": progress.run_id}
        info["step_losses"] = run.losses
        # Also as single numbers, for services that accept no dicts. They allow fewer characters in names.
        info |= {f"learn_rate_{clean(group)}": rate for group, rate in rates.items()}
        info |= {"grad_norm": run.grad_norm, **counts}
        info |= _safety_net(progress, None if run.checkpoints is None else run.checkpoints.newest)
        if self._resumed_at is not None:
            info["last_resume"] = self._resumed_at
        if self.dev_losses is not None:
            info["dev_losses"], self.dev_losses = self.dev_losses, None
        info["since_evaluation"] = {name: count - progress.counts.get(name, 0) for name, count in counts.items()}
        if control.should_log:
            info["log_now"] = True
        self._nlp = run.nlp
        _latest[run.nlp] = info

    def close(self) -> None:
        if self._nlp is not None:
            _latest.pop(self._nlp, None)
            self._nlp = None


def _safety_net(progress: Progress, newest: int | None) -> dict[str, Any]:
    """Steps of checkpoints and rollbacks, if there were any. newest (int | None): The newest checkpoint."""
    if not progress.rollbacks:
        return {} if newest is None else {"last_checkpoint": newest}
    after, to = progress.rollbacks[-1]
    # The rollback removed newer ones.
    return {"last_checkpoint": to if newest is None or newest < after else newest, "last_rollback": (after, to)}
