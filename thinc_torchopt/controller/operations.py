"""Operations: what is done when a rule fires.

An operation is a class. Its actions are the methods that begin with `should_`; the arguments of its constructor stand
under `arguments` in the definition:

    @controller_operations("Beep")
    class Beep(Operation):
        def should_beep(self, *, event_name, step, **kwargs):
            print(chr(7))

An action gets `event_name`, `control_name`, `firing`, `values` (the metrics by name, to be read only) and the payload
of the event. What it does to the training goes through `control`. Without one it does nothing: rules are only being
tried.
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
    """What operations can do to a training beside setting flags. A loop offers it as `Control.steering`."""

    def scale_learn_rates(self, groups: Sequence[str], factor: float, min_rate: float) -> None:
        """Multiply the learning rates of param groups; none falls below `min_rate` by it. groups: Patterns of names."""

    def set_learn_rates(self, groups: Sequence[str], rate: float) -> None:
        """Set the learning rates of param groups."""

    def freeze(self, params: Sequence[str]) -> None:
        """Train params no longer. params: Patterns of names."""

    def unfreeze(self, params: Sequence[str]) -> None:
        """Train params again."""

    def roll_back(self, to: Literal["best", "last"]) -> None:
        """Go back to the weights of the best evaluation, or of the last checkpoint."""

    def put_together(self) -> None:
        """At the end of the training, give each component the weights with which it was best."""


@dataclass
class Control:
    """What rules want of a training. A loop hands one to each event, and reads it afterwards.

    should_training_stop (bool): End the run, cleanly.
    should_epoch_stop (bool): Leave out the rest of this epoch.
    should_save, should_evaluate, should_log (bool): Do so after this step.
    steering (Steering | None): What else can be done to the training. None: nothing.
    """

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False
    steering: Steering | None = None


class Operation:
    """An operation: a class whose actions are its methods `should_...`. They take keyword arguments, and `**kwargs`.

    quiet: Actions of which `spacy train` says nothing, unless the definition wants it: they change nothing in the run.
    """

    quiet: ClassVar[Collection[str]] = ()

    def actions(self) -> list[str]:
        """The names of its actions."""
        names = (name for name in dir(self) if name.startswith("should_") and name != "should_")
        return sorted(name for name in names if callable(getattr(self, name)))

    def validate(self, action: str) -> bool:
        """Whether it can take an action, set up as it is. Called once for each that a controller names, before the
        training.

        RAISES (ConfigError): It can't; with a reason.
        """
        return action in self.actions()

    def prepare(self, metrics: Collection[str]) -> None:
        """Learn the names of the metrics, before the training; a mapping from them to what they hold.

        RAISES (ConfigError): It was set up for others.
        """

    def state_dict(self) -> dict[str, Any]:
        """What it has to remember: numbers, strs, lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave."""


def controller_operations(name: str) -> Callable[[T], T]:
    """Register a class of operations under a name: `@controller_operations("MyOperation")`."""
    return registry.controller_operations.register(name)  # type: ignore[attr-defined]


def register_operation_handlers(handlers: Iterable[type]) -> None:
    """Register classes of operations, each under its own name."""
    for handler in handlers:
        controller_operations(handler.__name__)(handler)


# ---------------------------------------------------------------------- the run


@controller_operations("HFControls")
class HFControls(Operation):
    """Ends, saves, evaluates, logs. Every definition has one, by the names `hfcontrols` and `control`."""

    quiet = ("should_log",)

    def should_training_stop(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """End the run: cleanly, as when it has reached its last step."""
        if control is not None:
            control.should_training_stop = True

    def should_epoch_stop(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Go on with the next epoch."""
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
    """RAISES (ControllerError): There is a training, and it can't be steered."""
    if control is not None and control.steering is None:
        raise ControllerError(f"expected a training loop that can {what}, found one that can't")
    return None if control is None else control.steering


@controller_operations("LearnRateControl")
class LearnRateControl(Operation):
    """Changes learning rates, from the next step on.

    groups (list[str]): Names of param groups, or patterns: "encoder*".
    factor (float): `should_cut` multiplies by it. Above 0, below 1.
    min_rate (float): `should_cut` goes no further down.
    rate (float): `should_set` sets it.
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
            raise ConfigError(f"expected the argument '{needed}' for {action}, found none")
        return super().validate(action)

    def should_cut(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Multiply by `factor`."""
        if (steering := _steering(control, "change learning rates")) is not None and self._factor is not None:
            steering.scale_learn_rates(self.groups, self._factor, self._min_rate)

    def should_set(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Set to `rate`."""
        if (steering := _steering(control, "change learning rates")) is not None and self._rate is not None:
            steering.set_learn_rates(self.groups, self._rate)


@controller_operations("FreezeControl")
class FreezeControl(Operation):
    """Freezes params, or trains them again.

    params (list[str]): Patterns of their names: "transformer/*".
    """

    def __init__(self, params: list[str]):
        self.params = patterns("params", params)

    def should_freeze(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Train them no longer."""
        if (steering := _steering(control, "freeze params")) is not None:
            steering.freeze(self.params)

    def should_unfreeze(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Train them again."""
        if (steering := _steering(control, "unfreeze params")) is not None:
            steering.unfreeze(self.params)


@controller_operations("RollbackControl")
class RollbackControl(Operation):
    """Takes the weights back to where they were.

    to (str): "best": at the best evaluation. "last": at the last checkpoint.
    """

    def __init__(self, to: Literal["best", "last"] = "best"):
        self.to: Literal["best", "last"] = _SECTION.choice("to", to, ("best", "last"))

    def should_rollback(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """Go back."""
        if (steering := _steering(control, "go back")) is not None:
            steering.roll_back(self.to)


@controller_operations("BestWeightsControl")
class BestWeightsControl(Operation):
    """Keeps the best weights of each component, and puts them together at the end of the training.

    components (list[str] | None): Their names. None: all that are trained and have a score.
    scores (dict[str, str]): By component, the score that counts, where that is not plain.
    """

    def __init__(self, components: list[str] | None = None, scores: dict[str, str] = {}):
        self.components = None if components is None else patterns("components", components)
        if not isinstance(scores, Mapping) or not all(
            isinstance(text, str) for pair in scores.items() for text in pair
        ):
            _SECTION.refuse("scores", "names of scores by component, as in {ner: ents_f}", scores)
        self.scores = dict(scores)

    def should_put_together(self, *, control: Control | None = None, **kwargs: Any) -> None:
        """At the end of the training, whenever this is asked for."""
        if (steering := _steering(control, "put weights together")) is not None:
            steering.put_together()


# ---------------------------------------------------------------------- messages


@controller_operations("LogControl")
class LogControl(Operation):
    """Writes a line to Python's log `thinc_torchopt.controller`. Control characters in values stand as Python writes
    them.

    log_format (str): Text with fields, one line: see `Message`.
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
        """Write it."""
        logger.log(self._level, "%s", one_line(self._message.fill(values, kwargs)))


@controller_operations("NotifyControl")
class NotifyControl(Operation):
    """Sends a message to a web address by POST, as JSON: `text`, `controller`, `event`, `step`, `values`.

    The training does not wait for it, and a failure is only logged. Messages wait for those before them; where more
    than a hundred do, the oldest are left out. Redirects are not followed, and link-local addresses (169.254.0.0/16,
    fe80::/10), where clouds keep the keys of a machine, are refused, also behind a name. A proxy of the environment
    looks up names itself. The log shows only the host of the address.

    url (str): Where to: "https://..." or "http://...".
    message (str): Text with fields: see `Message`.
    timeout_seconds (float): How long to wait for an answer.
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
        """Send it."""
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
    """RAISES (ConfigError): It is no list of patterns."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        _SECTION.refuse(name, 'a list of names or patterns, as in ["encoder*"]', value)
    return list(value)
