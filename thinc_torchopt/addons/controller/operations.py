"""Operations: the actions of rules that fire.

An operation is a class. Its actions are the methods that begin with `should_`. `arguments` in the definition are the
arguments of its constructor:


    @controller_operations("Beep")
    class Beep(Operation):
        def should_beep(self, *, event_name, step, **kwargs):
            print(chr(7))

An action gets `event_name`, `control_name`, `firing`, `values` (the metrics by name, read-only) and the payload of the
event. It changes the training through `control`, for requests to the loop, and `run`. Without a `control` it is not
called, as rules are only being tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from ...core.checks import Section
from ...core.errors import ConfigError, ControllerError
from ...core.log import inform
from ...core.registry import registry
from ...loop.events import Control
from .evaluator import MetricUnavailable
from .metrics import RecordsArguments
from .rules import Rule, expression
from .values import Message, level_of, one_line

T = TypeVar("T", bound=type)
_SECTION = Section("the arguments")


@dataclass
class RunHandle:
    """The parts of a run that operations change, beside the requests in `Control`. A loop passes one with each event,
    as `run`.

    optimizer (TorchOptimizer | None): Has learning rates, frozen params, averages, and schedules with a decay.
    models (SavedModels | None): Saves the best model.
    substeps (int | None): Into how many parts each batch is divided. None: as in the config.
    """

    optimizer: Any = None
    models: Any = None
    substeps: int | None = None


class Operation(RecordsArguments):
    """An operation. Its actions are its methods `should_...`, which have keyword arguments and `**kwargs`.

    quiet: Actions that `spacy train` does not log by default, as they change nothing in the run.
    waits_for_update: It changes params: on an event within an update, `spacy train` lets it act after the update.
    """

    quiet: ClassVar[Collection[str]] = ()
    waits_for_update: ClassVar[bool] = False

    def actions(self) -> list[str]:
        """The names of its actions."""
        names = (name for name in dir(self) if name.startswith("should_") and name != "should_")
        return sorted(name for name in names if callable(getattr(self, name)))

    def validate(self, action: str) -> bool:
        """Whether it can run an action with its arguments. Called before the training, for each action in a controller.

        RAISES (ConfigError): It can't, with the reason.
        """
        return action in self.actions()

    def prepare(self, metrics: Collection[str]) -> None:
        """Check its arguments against the metrics, before the training. metrics: Names of metrics, perhaps with their
        keys.

        RAISES (ConfigError): An argument names an unknown metric.
        """

    def state_dict(self) -> dict[str, Any]:
        """Its state: numbers, strs, lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""


def controller_operations(name: str) -> Callable[[T], T]:
    """Register an operation class under a name: `@controller_operations("MyOperation")`."""
    return registry.controller_operations.register(name)  # type: ignore[attr-defined]


def register_operation_handlers(handlers: Iterable[type]) -> None:
    """Register operation classes, each under its own name."""
    for handler in handlers:
        controller_operations(handler.__name__)(handler)


# ---------------------------------------------------------------------- the run


@controller_operations("HFControls")
class HFControls(Operation):
    """Ends the training or epoch, saves, evaluates, logs. Every definition has one, named `hfcontrols` and
    `control`.
    """

    quiet = ("should_log",)

    def should_training_stop(self, *, control: Control, **kwargs: Any) -> None:
        """End the run cleanly, as after its last step."""
        control.should_training_stop = True

    def should_epoch_stop(self, *, control: Control, **kwargs: Any) -> None:
        """Skip the rest of this epoch."""
        control.should_epoch_stop = True

    def should_save(self, *, control: Control, **kwargs: Any) -> None:
        """Save after this step."""
        control.should_save = True

    def should_evaluate(self, *, control: Control, **kwargs: Any) -> None:
        """Evaluate after this step."""
        control.should_evaluate = True

    def should_log(self, *, control: Control, **kwargs: Any) -> None:
        """Log this step."""
        control.should_log = True


def _optimizer_of(run: RunHandle | None, what: str) -> Any:
    """RAISES (ControllerError): The training loop has not passed an optimizer."""
    if run is None or run.optimizer is None:
        raise ControllerError(f"this training loop can't {what}")
    return run.optimizer


@controller_operations("LearnRateControl")
class LearnRateControl(Operation):
    """Changes learning rates, from the next step on.

    groups (list[str]): Names of param groups, or patterns: "encoder*". Default: all groups.
    factor (float): `should_cut` and `should_raise` multiply rates by it. Between 0 and 1 to cut, above 1 to raise.
    min_rate (float): `should_cut` does not go below this rate.
    rate (float): `should_set` sets rates to it.
    max_rate (float | None): `should_raise` does not go above this rate, and needs it.
    """

    def __init__(
        self,
        groups: list[str] = ["*"],
        factor: float | None = None,
        min_rate: float = 0.0,
        rate: float | None = None,
        max_rate: float | None = None,
    ):
        self.groups = patterns("groups", groups)
        expected = "a number between 0 and 1 to cut rates, or above 1 to raise them"
        self._factor = None if factor is None else _SECTION.number("factor", factor, expected)
        if self._factor in (0.0, 1.0):
            _SECTION.refuse("factor", expected, factor)
        self._min_rate = _SECTION.number("min_rate", min_rate)
        if self._min_rate and (self._factor is None or self._factor > 1.0):
            _SECTION.refuse("min_rate", "the argument 'factor' beside it, below 1", min_rate)
        self._max_rate = None if max_rate is None else _SECTION.number("max_rate", max_rate)
        if self._max_rate is not None and (self._factor is None or self._factor < 1.0):
            _SECTION.refuse("max_rate", "the argument 'factor' beside it, above 1", max_rate)
        self._rate = None if rate is None else _SECTION.number("rate", rate)

    def validate(self, action: str) -> bool:
        if action == "should_cut" and (self._factor is None or self._factor > 1.0):
            raise ConfigError("should_cut needs the argument 'factor', below 1")
        if action == "should_raise" and (self._factor is None or self._factor < 1.0 or self._max_rate is None):
            raise ConfigError("should_raise needs the arguments 'factor', above 1, and 'max_rate'")
        if action == "should_set" and self._rate is None:
            raise ConfigError("should_set needs the argument 'rate'")
        return super().validate(action)

    def should_cut(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Multiply learning rates by `factor`, down to `min_rate`."""
        self._scale(run)

    def should_raise(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Multiply learning rates by `factor`, up to `max_rate`."""
        self._scale(run)

    def _scale(self, run: RunHandle | None) -> None:
        optimizer = _optimizer_of(run, "change learning rates")
        optimizer.scale_learn_rates(self.groups, self._factor, self._min_rate, self._max_rate)

    def should_set(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Set learning rates to `rate`, in place of schedules. Not within a budget, whose rates must fall."""
        _optimizer_of(run, "change learning rates").set_learn_rates(self.groups, self._rate)


@controller_operations("FreezeControl")
class FreezeControl(Operation):
    """Freezes and unfreezes params. params (list[str]): Patterns of their names: "transformer/*"."""

    waits_for_update = True

    def __init__(self, params: list[str]):
        self.params = patterns("params", params)

    def should_freeze(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Freeze the params."""
        _optimizer_of(run, "freeze params").freeze(self.params)

    def should_unfreeze(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Unfreeze the params."""
        _optimizer_of(run, "unfreeze params").unfreeze(self.params)


@controller_operations("RollbackControl")
class RollbackControl(Operation):
    """Restores earlier weights.

    to (str): "best": from the best evaluation. "last": from the last checkpoint.
    """

    def __init__(self, to: Literal["best", "last"] = "best"):
        self.to: Literal["best", "last"] = _SECTION.choice("to", to, ("best", "last"))

    def should_rollback(self, *, control: Control, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Go back."""
        if run is None:
            raise ControllerError("this training loop can't go back")
        control.should_roll_back |= self.to == "last"
        control.should_roll_back_to_best |= self.to == "best"


@controller_operations("AccumulationControl")
class AccumulationControl(Operation):
    """Divides batches into another number of parts, from the next step on, as `accumulate_gradient` in `[training]`.

    substeps (int): The number of parts. More of them take less memory.
    """

    def __init__(self, substeps: int):
        self._substeps = _SECTION.whole("substeps", substeps, at_least=1)

    def should_set(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Set the number of parts."""
        if run is None:
            raise ControllerError("this training loop can't set the accumulation of gradients")
        run.substeps = self._substeps


@controller_operations("AveragesControl")
class AveragesControl(Operation):
    """Begins averages of params at the next update. They need `use_averages`, or a block
    `[training.optimizer.averages]`.
    """

    waits_for_update = True

    def should_begin(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Begin them before their `start_step`. Those that have begun continue."""
        _optimizer_of(run, "begin averages").begin_averages(anew=False)

    def should_begin_anew(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Drop the averages, and begin at the params as they are."""
        _optimizer_of(run, "begin averages").begin_averages(anew=True)


@controller_operations("DecayControl")
class DecayControl(Operation):
    """Starts the decay of `warmup_stable_decay` schedules that wait for it. The training ends when it is over.

    steps (int | None): The length of the decay. None: as in the config.
    """

    waits_for_update = True

    def __init__(self, steps: int | None = None):
        self._steps = None if steps is None else _SECTION.whole("steps", steps, at_least=1)

    def should_begin(self, *, run: RunHandle | None = None, **kwargs: Any) -> None:
        """Start the decay, unless it has started."""
        _optimizer_of(run, "start the decay of learning rates").begin_decay(self._steps)


@controller_operations("KeepBestControl")
class KeepBestControl(Operation):
    """Keeps the best model by a score, in the output folder: `model-best-NAME`, with the name of the operation. One of
    an earlier run is replaced.

    of (str): The score, as an expression over metrics: "scores['ents_f']".
    mode (str): "max" or "min": which scores are better.
    """

    def __init__(self, of: str, mode: Literal["min", "max"] = "max"):
        self._text = of
        self._mode: Literal["min", "max"] = _SECTION.choice("mode", mode, ("max", "min"))
        self._of: Rule | None = None

    def prepare(self, metrics: Collection[str]) -> None:
        self._of = expression(self._text, metrics if isinstance(metrics, Mapping) else dict.fromkeys(metrics))

    def should_keep(
        self,
        *,
        values: Mapping[str, Any],
        firing: Any,
        run: RunHandle | None = None,
        **kwargs: Any,
    ) -> None:
        """Save the model if it is the best. Without a score, it is not."""
        if self._of is None:
            return
        if run is None or run.models is None:
            raise ControllerError("this training loop can't save models")
        try:
            score = self._of.evaluate(values, firing.step)
        except MetricUnavailable:
            return
        if score is not None:
            run.models.keep(firing.operation, float(score), step=firing.step, mode=self._mode)


# ---------------------------------------------------------------------- messages


@controller_operations("LogControl")
class LogControl(Operation):
    """Writes a line to Python's log `spacy.torchopt`. Control characters in values are escaped.

    log_format (str): One line of text with fields: names of metrics, `event_name`, `control_name`, `step`, `epoch`.
    log_level (str): "debug", "info", "warning", "error" or "critical".
    """

    quiet = ("should_log",)

    def __init__(self, log_format: str, log_level: str = "info"):
        if isinstance(log_format, str) and one_line(log_format := log_format.strip()) != log_format:
            _SECTION.refuse("log_format", "one line without control characters", log_format)
        self._message = Message("log_format", log_format)
        if (level := level_of(log_level)) is None:
            _SECTION.refuse("log_level", "debug, info, warning, error or critical", log_level)
        self._level = level

    def prepare(self, metrics: Collection[str]) -> None:
        self._message.check(metrics)

    def should_log(self, *, values: Mapping[str, Any], **kwargs: Any) -> None:
        """Write the line."""
        inform("%s", one_line(self._message.fill(values, kwargs)), level=self._level)


def patterns(name: str, value: Any) -> list[str]:
    """RAISES (ConfigError): The value is not a list of patterns."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        _SECTION.refuse(name, 'a list of names or patterns, as in ["encoder*"]', value)
    return list(value)
