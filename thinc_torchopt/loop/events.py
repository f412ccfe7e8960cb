"""The events of a training run, for listeners and rules: their names, their fields, and the requests to the loop.

on_train_begin                      once in each process
  on_epoch_begin
    on_step_begin
      on_substep_end                after each slice of gradient accumulation
      on_pre_optimizer_step         all gradients are computed, params are not updated yet
      on_optimizer_step             params are updated, or the update was skipped
    on_step_end                     schedules have stepped
    on_evaluate                     if the step is evaluated
    on_log                          the numbers of the step, before loggers get them
    on_save                         if the state is saved; spaCy has logged the step and saved its models
  on_epoch_end                        all batches of the epoch are done; not if the run ends before that
on_train_end                          the run is over; not after an error or a signal
on_exception                          an error ends the run

A listener is an object with any of these methods. Each gets its event and a `Control` for requests. A resumed run gives
each listener its saved state, and repeats no earlier event but `on_train_begin`. An exception of a listener ends the
run, but one at `on_exception`, which is logged: the first error is the one that is raised. Signal handlers,
`requires_grad`, random generators and the lock on the folder of checkpoints are restored.

Rules get an event as a name with keyword arguments, the *facts* that it carries:
`controller.on_event("on_step_end", step=3, losses={"ner": 0.5})`. Nothing here imports spaCy or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..core.errors import ConfigAttributeError, ConfigError
from ..core.log import LOGGER
from ..core.near_misses import did_you_mean

if TYPE_CHECKING:
    from spacy.training import Example


# The facts of rules. A loop may leave some out: metrics that need them then have no value. Numbers may be NumPy's or
# torch's.
FACTS: Final = {
    "step": "the current step, or the last one between steps; counted from 0. `global_step` is the same",
    "epoch": "the epoch",
    "words": "words trained on since the run began",
    "seconds": "seconds since the run began",
    "counts": "counts since the run began, by name: `skipped_updates`, `grad_spikes`, `rollbacks` and others",
    "learn_rates": "learning rates by param group",
    "max_steps": "the last step of the run, if it has a limit",
    "warmup_steps": "the number of steps of the learning rate's warm-up",
    "rank": "the rank of this process",
    "world_size": "the number of processes",
    "is_final": "whether the run ends here",
    "control": "a `Control` for the requests of operations. Without one, rules fire without effect",
    "run": "a `RunHandle`, whose optimizer, models and batches operations change",
    "losses": "losses of this step alone, by component",
    "batch_words": "words in the batch of this step",
    "batch_size": "examples in the batch of this step",
    "grad_norm": "norm of all gradients, before clipping",
    "grad_norms": "the same by component",
    "group_grad_norms": "a function that computes the same by param group",
    "param_norms": "a function that computes the norm of the params: `{'total': 9.0, 'components': {'ner': 9.0}, "
    "'groups': {'default': 9.0}}`",
    "update_norms": "a function that computes the norm of the change by the update, in the same form. It has no result "
    "unless a metric has it in `reads`",
    "scores": "all scores, by name. `metrics` is the same",
    "score": "the weighted score, by which the best model is chosen",
    "dev_losses": "a function that computes the loss on the development data: `{'losses': {'ner': 3.0}, 'words': 100, "
    "'examples': 8}`. Its argument is the most examples to read (None: all)",
    "log_history": 'log entries, the newest last: `[{"loss": 0.5, "epoch": 0.1}]`; the newest is enough',
    "path": "the folder that was written",
    "error_type": "the name of the error's class, such as `OutOfMemoryError` or `KeyboardInterrupt`",
    "error_text": "its text",
}
# Those of every event.
COMMON: Final = (
    *("step", "epoch", "words", "seconds", "counts", "learn_rates", "max_steps", "warmup_steps", "rank", "world_size"),
    *("is_final", "control", "run"),
)
# Names of the Trainer Controller Framework for facts of ours. Both names work.
ALIASES: Final = {"global_step": "step", "metrics": "scores"}
_OF_STEP = ("losses", "batch_words", "batch_size", "grad_norm", "grad_norms")
# All events on which rules may be evaluated, in the order in which a training has them, with more facts of each.
EVENTS: Final[dict[str, tuple[str, ...]]] = {
    "on_init_end": (),
    "on_train_begin": (),
    "on_epoch_begin": (),
    "on_step_begin": (),
    "on_substep_end": (),
    "on_pre_optimizer_step": ("grad_norm", "grad_norms", "group_grad_norms"),
    "on_optimizer_step": ("grad_norm", "grad_norms", "param_norms", "update_norms"),
    "on_step_end": _OF_STEP,
    "on_evaluate": ("scores", "score", "dev_losses"),
    "on_log": (*_OF_STEP, "log_history"),
    "on_save": ("path",),
    "on_epoch_end": (),
    "on_train_end": (),
    "on_exception": ("error_type", "error_text"),
    "on_prediction_step": (),
    "on_predict": ("scores",),
}


@dataclass(frozen=True)
class Event:
    """The fields of every event.

    step (int): The current step, or the last one between steps; counted from 0. -1 before the first.
    epoch (int): spaCy's epoch.
    run (Run): The run, and facts about it: loop/run.py. Read only what you need.
    """

    step: int
    epoch: int
    run: Any


@dataclass(frozen=True)
class TrainBegin(Event):
    """resumed (bool): Whether the run resumes from a checkpoint, after `step`. If not, `step` is -1."""

    resumed: bool


class EpochBegin(Event):
    """An epoch begins with the next step."""


@dataclass(frozen=True)
class StepBegin(Event):
    """batch (list[Example]): The batch of this step."""

    batch: Sequence[Example]


@dataclass(frozen=True)
class SubstepEnd(Event):
    """substep (int): Index of the slice in the batch. examples (list[Example]): The slice."""

    substep: int
    examples: Sequence[Example]


@dataclass(frozen=True)
class PreOptimizerStep(Event):
    """spoiled_by (Exception | None): A component's error about a value that is not finite. The update will be
    skipped.
    """

    spoiled_by: Exception | None


@dataclass(frozen=True)
class OptimizerStep(Event):
    """skipped (bool): Whether the update was skipped, which leaves all params unchanged."""

    skipped: bool


@dataclass(frozen=True)
class StepEnd(Event):
    """batch (list[Example]): The batch of this step."""

    batch: Sequence[Example]


@dataclass(frozen=True)
class Evaluate(Event):
    """score (float): The main score, higher is better. scores (dict): All scores. is_best (bool): Whether none was
    better so far.
    """

    score: float
    scores: Mapping[str, Any]
    is_best: bool


@dataclass(frozen=True)
class Log(Event):
    """info (dict): The dict that loggers get. A listener may add to it."""

    info: dict[str, Any]


@dataclass(frozen=True)
class Save(Event):
    """The state is saved. Not sent if a signal stops the run and nothing else asked to save: a resumed training must go
    on as if it had not been stopped.

    info (Mapping): The dict that loggers got, with "output_path" if spaCy has saved a model.
    is_best (bool | None): As in `on_evaluate`. None: the step was not evaluated.
    """

    info: Mapping[str, Any]
    is_best: bool | None


class EpochEnd(Event):
    """All batches of the epoch are done."""


class TrainEnd(Event):
    """The run is over: by `max_steps`, `patience`, the end of the data, or a listener's request."""


@dataclass(frozen=True)
class ExceptionRaised(Event):
    """error (BaseException): An error, or KeyboardInterrupt. It is raised again when all listeners were told."""

    error: BaseException


# Those of spaCy's loop, as listeners get them. It tells rules of `on_init_end` too, before `on_train_begin`.
EVENT_TYPES: Final[dict[str, type[Event]]] = {
    "on_train_begin": TrainBegin,
    "on_epoch_begin": EpochBegin,
    "on_step_begin": StepBegin,
    "on_substep_end": SubstepEnd,
    "on_pre_optimizer_step": PreOptimizerStep,
    "on_optimizer_step": OptimizerStep,
    "on_step_end": StepEnd,
    "on_evaluate": Evaluate,
    "on_log": Log,
    "on_save": Save,
    "on_epoch_end": EpochEnd,
    "on_train_end": TrainEnd,
    "on_exception": ExceptionRaised,
}


@dataclass
class Control:
    """Requests of listeners and rules. They apply to the current step, or to the next one between steps, and are then
    reset.

    should_stop (bool): End the run after this step; between steps, at once. It is never reset. Also
        `should_training_stop`, its name in the Trainer Controller Framework.
    should_epoch_stop (bool): Skip the rest of this epoch.
    should_evaluate (bool): Evaluate this step. Too late from `on_evaluate` on.
    should_log (bool): Log this step, for loggers that don't log each one. Too late from `on_log` on.
    should_save (bool): Save the state after this step; without [training.optimizer.checkpoint], a model.
    should_roll_back (bool): Go back to the last checkpoint at the end of this step. Requests after `on_step_end` are
        served at `on_save`, if the state is saved, and after the last step at `on_train_end`.
    should_roll_back_to_best (bool): The same, to the checkpoint of the best evaluation. Wins over `should_roll_back`.
    RAISES (ConfigAttributeError): Another attribute is set.
    """

    should_stop: bool = False
    should_epoch_stop: bool = False
    should_evaluate: bool = False
    should_log: bool = False
    should_save: bool = False
    should_roll_back: bool = False
    should_roll_back_to_best: bool = False

    def __setattr__(self, name: str, value: bool) -> None:
        known = [*(field.name for field in fields(self)), "should_training_stop"]
        if name not in known:
            raise ConfigAttributeError(
                f"Can't set '{name}' of a Control: expected one of {', '.join(known)}.{did_you_mean(name, known)}"
            )
        super().__setattr__(name, value)

    @property
    def should_training_stop(self) -> bool:
        return self.should_stop

    @should_training_stop.setter
    def should_training_stop(self, value: bool) -> None:
        self.should_stop = value

    def end_step(self) -> None:
        """Reset all requests except `should_stop`."""
        for field in fields(self):
            if field.name != "should_stop":
                setattr(self, field.name, False)

    @property
    def requests(self) -> list[str]:
        """The names of those that were made."""
        return [field.name for field in fields(self) if getattr(self, field.name)]


class Listener(Protocol):
    """Something that listens to a run. It has a method for each event that it wants: `on_step_end(event, control)`.

        class StopAtLoss:
            name = "stop at loss"

            def on_step_end(self, event, control):
                control.should_stop = sum(event.run.losses.values()) < 0.1

    Or it has one method for all: `on_event(name, event, control)`, with the names of its events in `events`.

    It may also have `close()`, which is called at the end of the run, also after an error; and, to be saved in
    checkpoints, both of these:

        state_dict()            its state: numbers, texts, lists, dicts, arrays, tensors
        load_state_dict(state)  restore it in a resumed run; not called for an empty state. Raises StateError if invalid

    For attachments, all of it optional:

        before_run()            called when a saved state was loaded, before spaCy removes old models
        around_part(examples)   a context manager around the forward and backward pass of each part of a batch
        after_backward(losses)  called when the gradients of all parts are in the models; losses by component
        awaits_end              whether a run that is over still owes it `on_train_end`
        needs_each_update       a text: why an update that can't be made ends the run, in place of being skipped, and
                                what to do

    name (str): The key of its saved state. Unique among the listeners of a run.
    """

    name: str


class Listeners:
    """The listeners of a run, in the order in which they get each event.

    RAISES (ConfigError): Two have the same name, or one listens to an unknown event.

    Public: `control`, `need_each_update` (why no update may be skipped; empty: it may).
    """

    def __init__(self, listeners: Iterable[Listener] = ()):
        self.control = Control()
        self.need_each_update = ""
        self._all: list[Any] = []
        self._calls: dict[type[Event], list[Callable[[Any, Control], None]]] = {
            kind: [] for kind in EVENT_TYPES.values()
        }
        for listener in listeners:
            self.add(listener)

    def add(self, listener: Listener) -> None:
        """Add one behind the others. RAISES (ConfigError): It can't be a listener of this run."""
        name = getattr(listener, "name", None)
        if not isinstance(name, str):
            raise ConfigError(
                f"Can't add a listener of {type(listener).__name__}: expected an attribute 'name', a text, found "
                f"{name!r}. Add it."
            )
        if any(other.name == name for other in self._all):
            raise ConfigError(f"Can't add listener '{name}': another one has the same name. Rename one of them.")
        if hasattr(listener, "state_dict") != hasattr(listener, "load_state_dict"):
            raise ConfigError(
                f"Can't add listener '{name}': expected both state_dict and load_state_dict, or neither, found one of "
                "them. Add the other."
            )
        methods = {method: getattr(listener, method) for method in dir(listener) if method.startswith("on_")}
        if (on_event := methods.pop("on_event", None)) is not None:
            if not (names_of_events := getattr(listener, "events", ())):
                raise ConfigError(
                    f"Can't add listener '{name}': expected the names of the events for its on_event in 'events', "
                    "found none."
                )
            methods |= {event: partial(on_event, event) for event in names_of_events}
        if unknown := sorted(methods.keys() - EVENT_TYPES.keys()):
            raise ConfigError(
                f"Can't add listener '{name}': expected methods for {', '.join(EVENT_TYPES)}, found '{unknown[0]}'."
            )
        for event, method in methods.items():
            self._calls[EVENT_TYPES[event]].append(method)
        self._all.append(listener)
        self.need_each_update = self.need_each_update or getattr(listener, "needs_each_update", "")

    def emit(self, kind: type[Event], run: Any, *carried: Any) -> None:
        """Send an event of the current step to its listeners. carried (Any): The fields of this kind of event."""
        if calls := self._calls[kind]:
            event = kind(run.progress.step, run.progress.epoch, run, *carried)
            for call in calls:
                call(event, self.control)

    def emit_error(self, error: BaseException, run: Any) -> None:
        """Send `on_exception`. Errors of listeners are logged, so that they don't hide this one."""
        for call in self._calls[ExceptionRaised]:
            try:
                call(ExceptionRaised(run.progress.step, run.progress.epoch, run, error), self.control)
            except Exception as another:
                LOGGER.warning("A listener failed at on_exception. %s: %s", type(another).__name__, another)

    def before_run(self) -> None:
        """Begin the run for all listeners."""
        for call in self._methods("before_run"):
            call()

    def close(self) -> None:
        """End the run for all listeners, also if one of them fails."""
        with ExitStack() as stack:
            for close in reversed(self._methods("close")):
                stack.callback(close)

    def _methods(self, name: str) -> list[Callable[..., Any]]:
        return [getattr(listener, name) for listener in self._all if hasattr(listener, name)]

    @contextmanager
    def around_part(self, examples: Sequence[Example]) -> Iterator[None]:
        """Around the forward and backward pass of a part of a batch."""
        with ExitStack() as stack:
            for around in self._methods("around_part"):
                stack.enter_context(around(examples))
            yield

    def after_backward(self, losses: dict[str, Any]) -> None:
        """Tell listeners that the gradients of all parts are in the models."""
        for after in self._methods("after_backward"):
            after(losses)

    @property
    def await_end(self) -> bool:
        """Whether any listener awaits `on_train_end`."""
        return any(getattr(listener, "awaits_end", False) for listener in self._all)

    def state_dict(self) -> dict[str, Any]:
        """The states of all listeners that have one, by name."""
        keepers: list[Any] = [listener for listener in self._all if hasattr(listener, "state_dict")]
        return {listener.name: state for listener in keepers if (state := listener.state_dict())}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore each listener from the state under its name. New listeners start fresh."""
        listener: Any
        for listener in self._all:
            if listener.name in states and hasattr(listener, "load_state_dict"):
                listener.load_state_dict(states[listener.name])
