"""Operations: the actions of rules that fire.

An operation is a class. Its actions are the methods that begin with `should_`. `arguments` in the definition are the
arguments of its constructor:


    @controller_operations("Beep")
    class Beep(Operation):
        def should_beep(self, *, event_name, step, **kwargs):
            print(chr(7))

An action gets `event_name`, `control_name`, `firing`, `values` (the metrics by name, read-only) and the payload of the
event. It changes the training through `control`. Without one it does nothing, as rules are only being tried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from ..checks import Section
from ..errors import ConfigError, ControllerError
from ..registry import registry
from .messages import Message, level_of, one_line
from .webhook import Webhook

T = TypeVar("T", bound=type)
_SECTION = Section("the arguments")

logger = logging.getLogger("thinc_torchopt.controller")


class Steering(Protocol):
    """The effects of operations on a training, beside the flags of `Control`. A loop offers it as
    `Control.steering`.
    """

    def scale_learn_rates(self, groups: Sequence[str], factor: float, min_rate: float) -> None:
        """Multiply the learning rates of param groups, down to `min_rate`. groups: Patterns of names."""

    def set_learn_rates(self, groups: Sequence[str], rate: float) -> None:
        """Set the learning rates of param groups."""

    def freeze(self, params: Sequence[str]) -> None:
        """Stop training params. params: Patterns of names."""

    def unfreeze(self, params: Sequence[str]) -> None:
        """Train params again."""

    def roll_back(self, to: Literal["best", "last"]) -> None:
        """Go back to the weights of the best evaluation, or of the last checkpoint."""

    def put_together(self) -> None:
        """At the end of the training, give each component its best weights."""


@dataclass
class Control:
    """Requests of rules. A loop passes one with each event, and reads it afterwards.

    should_training_stop (bool): End the run, cleanly.
    should_epoch_stop (bool): Skip the rest of this epoch.
    should_save, should_evaluate, should_log (bool): Save, evaluate or log after this step.
    steering (Steering | None): Other effects on the training. None: the loop has none.
    """

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False
    steering: Steering | None = None


class Operation:
    """An operation. Its actions are its methods `should_...`, which have keyword arguments and `**kwargs`.

    quiet: Actions that `spacy train` does not log by default, as they change nothing in the run.
    """

    quiet: ClassVar[Collection[str]] = ()

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

    def should_training_stop(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """End the run cleanly, as after its last step."""
        if control is not None:
            control.should_training_stop = True

    def should_epoch_stop(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Skip the rest of this epoch."""
        if control is not None:
            control.should_epoch_stop = True

    def should_save(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Save after this step."""
        if control is not None:
            control.should_save = True

    def should_evaluate(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Evaluate after this step."""
        if control is not None:
            control.should_evaluate = True

    def should_log(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Log this step."""
        if control is not None:
            control.should_log = True


def _steering(control: Control | None, what: str) -> Steering | None:
    """RAISES (ControllerError): The training loop has no steering."""
    if control is not None and control.steering is None:
        raise ControllerError(f"this training loop can't {what}")
    return None if control is None else control.steering


@controller_operations("LearnRateControl")
class LearnRateControl(Operation):
    """Changes learning rates, from the next step on.

    groups (list[str]): Names of param groups, or patterns: "encoder*". Default: all groups.
    factor (float): `should_cut` multiplies rates by it. Above 0, below 1.
    min_rate (float): `should_cut` does not go below this rate.
    rate (float): `should_set` sets rates to it.
    """

    def __init__(
        self,
        groups: list[str] = ["*"],
        factor: float | None = None,
        min_rate: float = 0.0,
        rate: float | None = None,
    ):
        self.groups = patterns("groups", groups)
        self._factor = (
            None if factor is None else _SECTION.number("factor", factor, "a number above 0 and below 1", below=1.0)
        )
        if self._factor == 0.0:
            _SECTION.refuse("factor", "a number above 0 and below 1", factor)
        self._min_rate = _SECTION.number("min_rate", min_rate)
        if self._min_rate and factor is None:
            _SECTION.refuse("min_rate", "the argument 'factor' beside it", min_rate)
        self._rate = None if rate is None else _SECTION.number("rate", rate)

    def validate(self, action: str) -> bool:
        if (action == "should_cut" and self._factor is None) or (action == "should_set" and self._rate is None):
            needed = "factor" if action == "should_cut" else "rate"
            raise ConfigError(f"{action} needs the argument '{needed}'")
        return super().validate(action)

    def should_cut(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Multiply learning rates by `factor`."""
        if (steering := _steering(control, "change learning rates")) is not None and self._factor is not None:
            steering.scale_learn_rates(self.groups, self._factor, self._min_rate)

    def should_set(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Set learning rates to `rate`."""
        if (steering := _steering(control, "change learning rates")) is not None and self._rate is not None:
            steering.set_learn_rates(self.groups, self._rate)


@controller_operations("FreezeControl")
class FreezeControl(Operation):
    """Freezes and unfreezes params. params (list[str]): Patterns of their names: "transformer/*"."""

    def __init__(self, params: list[str]):
        self.params = patterns("params", params)

    def should_freeze(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Freeze the params."""
        if (steering := _steering(control, "freeze params")) is not None:
            steering.freeze(self.params)

    def should_unfreeze(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Unfreeze the params."""
        if (steering := _steering(control, "unfreeze params")) is not None:
            steering.unfreeze(self.params)


@controller_operations("RollbackControl")
class RollbackControl(Operation):
    """Restores earlier weights.

    to (str): "best": from the best evaluation. "last": from the last checkpoint.
    """

    def __init__(self, to: Literal["best", "last"] = "best"):
        self.to: Literal["best", "last"] = _SECTION.choice("to", to, ("best", "last"))

    def should_rollback(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Go back."""
        if (steering := _steering(control, "go back")) is not None:
            steering.roll_back(self.to)


@controller_operations("BestWeightsControl")
class BestWeightsControl(Operation):
    """Keeps the best weights of each component, and combines them at the end of the training.

    components (list[str] | None): Names of components. None: all trained components that have a score.
    scores (dict[str, str]): The score to use, by component. Default: the component's own scores.
    """

    def __init__(self, components: list[str] | None = None, scores: dict[str, str] = {}):
        self.components = None if components is None else patterns("components", components)
        if not isinstance(scores, Mapping) or not all(
            isinstance(text, str) for pair in scores.items() for text in pair
        ):
            _SECTION.refuse("scores", "names of scores by component, as in {ner: ents_f}", scores)
        self.scores = dict(scores)

    def should_put_together(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Combine the best weights at the end of the training, whenever the rule fires."""
        if (steering := _steering(control, "put weights together")) is not None:
            steering.put_together()


# ---------------------------------------------------------------------- messages


@controller_operations("LogControl")
class LogControl(Operation):
    """Writes a line to Python's log `thinc_torchopt.controller`. Control characters in values are escaped.

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
        logger.log(self._level, "%s", one_line(self._message.fill(values, kwargs)))


@controller_operations("NotifyControl")
class NotifyControl(Operation):
    """Sends a message to a web address by POST, as JSON: `text`, `controller`, `event`, `step`, `values`.

    The training does not wait for it, and a failure is only logged. Messages are sent in order; if more than a
    hundred wait, the oldest are dropped. Redirects are not followed, and link-local addresses (169.254.0.0/16,
    fe80::/10), where clouds keep the keys of a machine, are refused, also behind a name. A proxy of the environment
    looks up names itself. The log shows only the host of the address.

    url (str): "https://..." or "http://...".
    message (str): Text with fields, as for `LogControl`.
    timeout_seconds (float): How long to wait for an answer, up to 300.
    """

    quiet = ("should_notify",)

    def __init__(
        self,
        url: str,
        message: str = "{control_name} fired on {event_name} at step {step}",
        timeout_seconds: float = 10.0,
    ):
        timeout = _SECTION.number("timeout_seconds", timeout_seconds, "a number above 0, at most 300", at_most=300.0)
        if timeout == 0.0:
            _SECTION.refuse("timeout_seconds", "a number above 0, at most 300", timeout_seconds)
        self._webhook = Webhook(url, timeout)
        self._message = Message("message", message)

    def prepare(self, metrics: Collection[str]) -> None:
        self._message.check(metrics)

    def should_notify(
        self, *, values: Mapping[str, Any], firing: Any, control: Control | None = None, **kwargs: Any
    ) -> None:
        """Send the message."""
        if control is not None:
            self._webhook.send(
                {
                    "text": self._message.fill(values, kwargs),
                    "controller": firing.controller,
                    "event": firing.event,
                    "step": firing.step,
                    "values": firing.values,
                }
            )


def patterns(name: str, value: Any) -> list[str]:
    """RAISES (ConfigError): The value is not a list of patterns."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        _SECTION.refuse(name, 'a list of names or patterns, as in ["encoder*"]', value)
    return list(value)
