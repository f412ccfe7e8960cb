"""The events of a training run, what each carries, and what may listen to them.

    on_train_begin                      once in each process
      on_epoch_begin
        on_step_begin
          on_substep_end                after each slice of gradient accumulation
          on_pre_optimizer_step         all gradients are there, params are as before
          on_optimizer_step             params are updated, or the update was skipped
        on_step_end                     schedules have moved on
        on_evaluate                     if the step is evaluated
        on_log                          the numbers of the step, on their way to loggers
        on_save                         if the state is to be saved; the step is logged, spaCy's models are saved
      on_epoch_end                      all batches of the epoch are done; not where a run ends before that
    on_train_end                        the run is over; not after an error, nor where a signal stopped it

A listener is an object with methods of these names, as many as it likes. Each gets its event and a `Control`, by which
it asks for what is to be done. A run that goes on from a checkpoint gives each listener the state that it had there,
and repeats no event of before but `on_train_begin`. What a listener raises ends the run, and leaves signal handlers,
`requires_grad`, random generators and the lock on the folder of checkpoints as they were before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from spacy.language import Language
from spacy.training import Example

from ..errors import ConfigError


class Facts(Protocol):
    """What a run tells at any event. Look things up when they are needed: some are computed then, and on a GPU waited
    for.
    """

    nlp: Language
    optimizer: Any  # the TorchOptimizer

    @property
    def losses(self) -> Mapping[str, float]:
        """Of this step alone, by component."""

    @property
    def learn_rates(self) -> Mapping[str, float]:
        """Of this step, by param group."""

    @property
    def grad_norm(self) -> float | None:
        """Of the last update, over all gradients, before clipping. None: it was not measured, or could not be."""

    @property
    def grad_norms(self) -> Mapping[str, float]:
        """By component, of the gradients as they are. Look it up at `on_pre_optimizer_step`: before and afterwards they
        are zero.
        """

    @property
    def counts(self) -> Mapping[str, int]:
        """Since the run began: `skipped_updates`, `grad_spikes`, `rollbacks`, `outside_writes`, `conservative_mode`."""

    @property
    def words(self) -> int:
        """Trained on since the run began."""

    @property
    def seconds(self) -> float:
        """Spent since the run began, in all its processes."""

    def dev_losses(self, at_most: int | None = None) -> Mapping[str, Any]:
        """On the development data, of what is evaluated, without dropout: `losses` by component, and the `words` and
        `examples` that they are of. Computed anew each time, which takes longer than an evaluation. Nothing else
        changes.

        at_most (int | None): Only the first so many examples.
        """

    @property
    def results(self) -> Sequence[tuple[float, int]]:
        """Score and step of each evaluation."""

    @property
    def batch(self) -> Sequence[Example]:
        """That is trained on, or was last."""

    @property
    def max_steps(self) -> int:
        """The last step. 0: there is no such limit."""


@dataclass(frozen=True)
class Event:
    """Where the run is.

    step (int): That is under way, or was the last one that was done, where none is; counted from 0. -1 before the
        first.
    epoch (int): spaCy's.
    run (Facts): What else there is to know.
    """

    step: int
    epoch: int
    run: Facts


@dataclass(frozen=True)
class TrainBegin(Event):
    """resumed (bool): The run goes on from a checkpoint, after `step`. If not, `step` is -1."""

    resumed: bool


class EpochBegin(Event):
    """An epoch begins with the next step."""


@dataclass(frozen=True)
class StepBegin(Event):
    """batch (list[Example]): What is to be trained on."""

    batch: Sequence[Example]


@dataclass(frozen=True)
class SubstepEnd(Event):
    """substep (int): Which slice of the batch it was, from 0. examples (list[Example]): The slice."""

    substep: int
    examples: Sequence[Example]


@dataclass(frozen=True)
class PreOptimizerStep(Event):
    """spoiled_by (Exception | None): The update will be skipped: a component raised this because of a value that is not
    finite.
    """

    spoiled_by: Exception | None


@dataclass(frozen=True)
class OptimizerStep(Event):
    """skipped (bool): The update was not made, and all params are as before."""

    skipped: bool


@dataclass(frozen=True)
class StepEnd(Event):
    """batch (list[Example]): What was trained on."""

    batch: Sequence[Example]


@dataclass(frozen=True)
class Evaluate(Event):
    """score (float): The main score, higher is better. scores (dict): All. is_best (bool): None was better so far."""

    score: float
    scores: Mapping[str, Any]
    is_best: bool


@dataclass(frozen=True)
class Log(Event):
    """info (dict): What loggers get. A listener may add to it."""

    info: dict[str, Any]


@dataclass(frozen=True)
class Save(Event):
    """Why the state is saved.

    info (Mapping): What loggers got; with "output_path", if spaCy has saved a model.
    is_best (bool | None): As of `on_evaluate`; None: the step was not evaluated.
    stopped_by (int | None): The number of the signal that stops the run.
    """

    info: Mapping[str, Any]
    is_best: bool | None
    stopped_by: int | None


class EpochEnd(Event):
    """All batches of the epoch are done."""


class TrainEnd(Event):
    """The run is over: by `max_steps`, `patience`, the end of the data, or because a listener asked for it."""


EVENTS: dict[str, type[Event]] = {
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
}


@dataclass
class Control:
    """What listeners ask for. It holds for the step under way, or the next one if there is none; then all is False
    again.

    should_stop (bool): End the run after this step; at once, if none is under way. It stays so.
    should_epoch_stop (bool): Leave out the rest of the batches of this epoch.
    should_evaluate (bool): Evaluate this step. From `on_evaluate` on that is too late.
    should_log (bool): Log this step, where loggers log only some. From `on_log` on that is too late.
    should_save (bool): Save the state after this step; without [training.optimizer.checkpoint], a model.
    should_roll_back (bool): Go back to the last checkpoint: now, at `on_step_end`; asked for later, at `on_save`, if
        the state is to be saved.
    should_roll_back_to_best (bool): The same, to the best evaluation of which there is a checkpoint. It goes before
        `should_roll_back`.
    """

    should_stop: bool = False
    should_epoch_stop: bool = False
    should_evaluate: bool = False
    should_log: bool = False
    should_save: bool = False
    should_roll_back: bool = False
    should_roll_back_to_best: bool = False

    def end_step(self) -> None:
        """Forget what was asked for, but for the end of the run."""
        for field in fields(self):
            if field.name != "should_stop":
                setattr(self, field.name, False)


class Listener(Protocol):
    """Something that listens to a run. Beside this, it has a method for each event that it wants: `on_step_end(event,
    control)`.

        class StopAtLoss:
            name = "stop at loss"

            def on_step_end(self, event, control):
                control.should_stop = sum(event.run.losses.values()) < 0.1

    It may also have `close()`, which is called when the process is through with the run, however that ends; and, if it
    has something to remember, both of these:

        state_dict()            what a run that goes on gives to the listener of this name there: numbers, texts, lists,
                                dicts, arrays, tensors
        load_state_dict(state)  take that; not called if it was nothing. Raises StateError if it is none of its own

    name (str): Under which its state is saved. No two listeners of a run have the same.
    """

    name: str


E = TypeVar("E", bound=Event)


class Listeners:
    """The listeners of a run, in the order in which they get each event.

    RAISES (ConfigError): Two have the same name; or one listens to an event that does not exist.

    Public: `control`.
    """

    def __init__(self, listeners: Sequence[Listener]):
        self.control = Control()
        self._all = list(listeners)
        self._calls: dict[type[Event], list[Callable[[Any, Control], None]]] = {kind: [] for kind in EVENTS.values()}
        names: set[str] = set()
        for listener in self._all:
            if listener.name in names:
                raise ConfigError(
                    f"Can't add listener '{listener.name}': expected a name of its own, found another of that name."
                )
            names.add(listener.name)
            if hasattr(listener, "state_dict") != hasattr(listener, "load_state_dict"):
                raise ConfigError(
                    f"Can't add listener '{listener.name}': expected both state_dict and load_state_dict, or none, "
                    "found one of them."
                )
            for method in dir(listener):
                if method in EVENTS:
                    self._calls[EVENTS[method]].append(getattr(listener, method))
                elif method.startswith("on_"):
                    raise ConfigError(
                        f"Can't add listener '{listener.name}': expected methods for {', '.join(EVENTS)}, found "
                        f"'{method}'."
                    )

    def emit(self, kind: type[E], step: int, epoch: int, run: Facts, *carried: Any) -> None:
        """Tell all that listen to an event of that kind. carried (Any): The fields of its own."""
        if calls := self._calls[kind]:
            event = kind(step, epoch, run, *carried)
            for call in calls:
                call(event, self.control)

    def close(self) -> None:
        """The process is through with the run."""
        for listener in self._all:
            if (close := getattr(listener, "close", None)) is not None:
                close()

    def state_dict(self) -> dict[str, Any]:
        """The states of those that have one, by name."""
        keepers: list[Any] = [listener for listener in self._all if hasattr(listener, "state_dict")]
        return {listener.name: state for listener in keepers if (state := listener.state_dict())}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Give each the state of its name. One that was not there begins anew."""
        listener: Any
        for listener in self._all:
            if listener.name in states and hasattr(listener, "load_state_dict"):
                listener.load_state_dict(states[listener.name])
