"""The trainer controller in a run: passes events to its rules, and their requests to the run. See docs/controller.md.

The controller knows nothing of spaCy. This module looks up the payload of each event, and only what metrics read.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Annotated, Any, Final

from spacy.language import Language

from ...core.errors import ConfigWarning, ControllerError
from ...core.log import inform
from ...core.optimizer import TorchOptimizer
from ...core.params import components_with_model
from ...core.schema import Count, Limit, Positive, read, write
from ...loop.events import COMMON, EVENT_TYPES, EVENTS, Control, Event, TrainEnd
from ...loop.processes import Alone
from ...loop.run import Run
from .controller import Firing, TrainerController
from .operations import (
    AveragesControl,
    DecayControl,
    FreezeControl,
    HFControls,
    KeepBestControl,
    LearnRateControl,
    LogControl,
    RollbackControl,
    RunHandle,
)

# spaCy shows what is logged here.

# On these events a request is too late for the current step, and applies to the next one.
_TOO_LATE: Final = {
    "should_epoch_stop": ("on_save",),
    "should_save": ("on_save",),
    "should_evaluate": ("on_evaluate", "on_log", "on_save"),
    "should_log": ("on_save",),
}
Request = Annotated[str, Limit(" or ".join(_TOO_LATE), lambda request: request in _TOO_LATE)]
# All events of a run, and those that come once.
_HELD: Final = ("on_init_end", *EVENT_TYPES)
_ONCE: Final = ("on_init_end", "on_train_begin", "on_train_end", "on_exception")
# Actions that make no sense when the training has ended, and operations for rank 0 alone.
_NOT_AT_END: Final = ("should_epoch_stop", "should_evaluate", "should_log")
_OF_RANK_0: Final = (LogControl, KeepBestControl)
# Scores of the tokenizer, and words per second, which have no weights.
_SPACYS_SCORES: Final = ("token_acc", "token_p", "token_r", "token_f", "speed")
_IN_UPDATE: Final = ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")

# The facts of the loop. Each is computed only if a metric reads it, but those in `_CHEAP`, for texts of operations.
_FACTS: Final[dict[str, Callable[[Any], Any]]] = {
    **{name: attrgetter(f"run.{name}") for name in ("words", "seconds", "counts", "learn_rates", "losses")},
    **{name: attrgetter(f"run.{name}") for name in ("grad_norm", "grad_norms", "dev_losses")},
    "rank": lambda event: _of_process_group("get_rank"),
    "world_size": lambda event: _of_process_group("get_world_size"),
    "max_steps": lambda event: event.run.max_steps or None,
    "warmup_steps": lambda event: event.run.optimizer.warmup_steps,
    "is_final": lambda event: isinstance(event, TrainEnd) or 0 < event.run.max_steps <= event.step,
    "batch_words": lambda event: sum(map(len, event.run.batch)),
    "batch_size": lambda event: len(event.run.batch),
    "group_grad_norms": lambda event: lambda: event.run.norms.of_grads()["groups"],
    "param_norms": lambda event: event.run.norms.of_params,
    "update_norms": lambda event: event.run.norms.of_update,
    "scores": attrgetter("scores"),
    "score": attrgetter("score"),
    "path": lambda event: None if (path := event.info.get("output_path")) is None else str(path),
    "error_type": lambda event: type(event.error).__name__,
    "error_text": lambda event: str(event.error)[:_MAX_ERROR],
}
_CHEAP: Final = ("path", "error_type", "error_text")
# Gradients are zero before and after this event, and their norm is known after it.
_ONLY_ON: Final = {
    "grad_norms": ("on_pre_optimizer_step",),
    "grad_norm": ("on_optimizer_step", "on_step_end", "on_log"),
}
_MAX_ERROR: Final = 2_000  # characters of the text of an error


class Rules:
    """Connects a trainer controller to a run. A listener.

    controller (TrainerController): For this run alone.
    optimizer (TorchOptimizer): The run's.
    RAISES (ControllerError): A rule has an action that this run can't do.

    Public: `ranks` (this process among several: rank 0 decides, and all act).
    """

    name = "trainer controller"

    def __init__(self, controller: TrainerController, optimizer: TorchOptimizer):
        self.ranks = Alone()
        self._optimizer = optimizer
        self._controller = controller
        self._rules_on = {event for spec in self._controller.definition.controllers for event in spec.triggers}
        self._of_substeps: list[Firing] = []  # wait until all ranks are at the same event
        # Firings that wait for the update: each with the metric values of rank 0, and the facts of its event.
        self._waiting: list[tuple[list[Firing], Mapping[str, Any] | None, dict[str, Any]]] = []
        self._run: Run | RunHandle = RunHandle(optimizer)
        self._facts = {name: self._facts_of(name) for name in self._controller.events}
        self._pending: list[str] = []  # requests for the next step
        self._unlogged: list[Firing] = []
        self._fired: Counter[str] = Counter()  # since the last evaluation
        self._is_stopped = False
        self._has_ended = False
        # Actions to log here. The controller logs those with a log_level in the definition.
        self._logged = {
            spec.name: {
                (name, action)
                for name, action in spec.actions
                if spec.log_level is None and not self._is_quiet(name, action)
            }
            for spec in self._controller.definition.controllers
        }
        self._check_events()
        self._check_actions()
        metrics = [part.instance for part in self._controller.definition.metrics.values()]
        self._compares_params = any("update_norms" in (getattr(one, "reads", None) or ()) for one in metrics)
        if "on_substep_end" in self._rules_on or self._compares_params:
            self._facts.setdefault("on_pre_optimizer_step", [])
        always = ("on_train_begin", "on_step_begin", "on_step_end", "on_log")
        self.events = [name for name in EVENT_TYPES if name in self._facts or name in always]

    def _facts_of(self, name: str) -> list[tuple[str, Callable[[Any], Any]]]:
        """The facts of an event that are computed, with the functions that compute them."""
        reads = self._controller.reads(name)
        known = [fact for fact in (*COMMON, *EVENTS[name]) if fact in _FACTS and name in _ONLY_ON.get(fact, (name,))]
        return [(fact, _FACTS[fact]) for fact in known if reads is None or fact in reads or fact in _CHEAP]

    # ------------------------------------------------------------------ checks

    def _check_events(self) -> None:
        """Refuse rules that would never be evaluated or fire, and metrics that would never be computed."""
        definition = self._controller.definition
        for spec in definition.controllers:
            for trigger in spec.triggers:
                if trigger not in _HELD:
                    raise ControllerError(
                        f"Can't use the trigger {trigger} of the controller '{spec.name}': spacy train has no such "
                        f"event. It has {', '.join(_HELD)}."
                    )
                if spec.patience is not None and spec.patience.threshold > 0 and trigger in _ONCE:
                    raise ControllerError(
                        f"Can't use the trigger {trigger} of the controller '{spec.name}': it happens only once, but "
                        f"the rule must be true more than {spec.patience.threshold} times (patience). Set "
                        "patience_threshold = 0."
                    )
        for name, part in definition.metrics.items():
            if not set(part.instance.events) & set(_HELD):
                raise ControllerError(
                    f"Can't use the metric '{name}': expected one that is computed on an event of spacy train, found "
                    f"one for {', '.join(part.instance.events)}. spacy train has {', '.join(_HELD)}."
                )

    def _check_actions(self) -> None:
        for name, action, operation, triggers in self._actions():
            at_end = isinstance(operation, RollbackControl) or (
                isinstance(operation, HFControls) and action in _NOT_AT_END
            )
            if at_end and "on_train_end" in triggers:
                raise ControllerError(
                    f"Can't use the action {name}.{action} on on_train_end: the training does not continue after it. "
                    "Use on_evaluate, for example."
                )
            is_ours = type(operation).__module__.startswith("thinc_torchopt.")
            if "on_exception" in triggers and is_ours and not isinstance(operation, LogControl):
                raise ControllerError(
                    f"Can't use the action {name}.{action} on on_exception: an error ends the training there. Only "
                    "LogControl and operations of your own act after it."
                )
            if isinstance(operation, RollbackControl) and "checkpoint" not in self._optimizer.attachments:
                raise ControllerError(
                    f"Can't use the action {name}.{action}: it needs a block [training.optimizer.checkpoint]. Add it."
                )
            if isinstance(operation, AveragesControl) and not self._optimizer.keeps_averages:
                raise ControllerError(
                    f"Can't use the action {name}.{action}: it needs use_averages = true in [training.optimizer], or a "
                    "block [training.optimizer.averages]. Add one."
                )
            planned = [block for block, one in self._optimizer.attachments.items() if one.plans_decay]
            if isinstance(operation, DecayControl) and planned:
                raise ControllerError(
                    f"Can't use the action {name}.{action}: [training.optimizer.{planned[0]}] decides when the decay "
                    "begins. Remove one of them."
                )
            if isinstance(operation, LearnRateControl) and action == "should_set" and planned:
                raise ControllerError(
                    f"Can't use the action {name}.{action}: [training.optimizer.{planned[0]}] lets learning rates fall "
                    "to the end, but a rate that is set stays as it is. Use should_cut or should_raise, which scale it."
                )
            if isinstance(operation, DecayControl) and not self._optimizer.can_begin_decay:
                raise ControllerError(
                    f"Can't use the action {name}.{action}: no schedule can begin to fall on demand. Give learn_rate "
                    '@schedules = "thinc-torchopt.warmup_stable_decay.v1".'
                )

    def join(self, run: Run) -> None:
        """Take part in a run. RAISES (ConfigError): A pattern matches nothing. (ControllerError): There is no
        development data for a metric.
        """
        self.ranks = run.ranks
        self._run = run
        if self._optimizer.knows(run.nlp):
            self.check_names(run.nlp)
        if run.checkpoints is not None:
            run.checkpoints.keeps_best |= self.goes_back_to_best
        if self.reads_dev_losses:
            run.prepare_dev_losses()

    def check_names(self, nlp: Language) -> None:
        """Check the patterns of operations and the keys in rules, now that the optimizer knows its pipeline. Warns of
        names that may be wrong.

        RAISES (ConfigError): A pattern matches nothing.
        """
        for doubt in self.doubts_of_names(nlp):
            warnings.warn(ConfigWarning(doubt), stacklevel=4)

    def doubts_of_names(self, nlp: Language) -> list[str]:
        """As `check_names`, with warnings as a list."""
        for _, _, operation, _ in self._actions():
            if isinstance(operation, LearnRateControl):
                self._optimizer.check_group_names(operation.groups)
            elif isinstance(operation, FreezeControl):
                self._optimizer.check_param_names(operation.params)
        return self._controller.check_keys(self._optimizer.rate_names, *names_in_run(nlp))

    def _is_quiet(self, name: str, action: str) -> bool:
        operation = self._controller.definition.operations[name].instance
        return action in getattr(operation, "quiet", ())

    @property
    def awaits_end(self) -> bool:
        """Whether a finished run has rules on `on_train_end` that did not get that event yet."""
        return "on_train_end" in self._rules_on and not self._has_ended

    @property
    def reads_dev_losses(self) -> bool:
        """Whether a metric needs the loss on the development data."""
        return "dev_losses" in (self._controller.reads("on_evaluate") or ())

    @property
    def goes_back_to_best(self) -> bool:
        """Whether a rule may go back to the best checkpoint."""
        found = [operation for _, _, operation, _ in self._actions() if isinstance(operation, RollbackControl)]
        return any(operation.to == "best" for operation in found)

    def _actions(self) -> list[tuple[str, str, Any, Sequence[str]]]:
        """For each action that a rule names: name of the operation, name of the action, the operation, and the
        events.
        """
        definition = self._controller.definition
        return [
            (name, action, definition.operations[name].instance, spec.triggers)
            for spec in definition.controllers
            for name, action in spec.actions
        ]

    # ------------------------------------------------------------------ events

    def on_event(self, name: str, event: Any, control: Control) -> None:
        if name == "on_train_begin":
            self._has_ended = False
            if event.resumed:  # it has begun before
                control.should_stop |= self._is_stopped
                return
            self._evaluate("on_init_end", event, control)
        elif name == "on_step_begin":
            for request in self._pending:
                setattr(control, request, True)
            self._pending.clear()
        elif name == "on_pre_optimizer_step" and self._compares_params:
            event.run.norms.keep()
        elif name == "on_step_end":
            self._act_after_update(name, control)
        elif name == "on_train_end":
            self._has_ended = True
            # Save that rules got the event, or the next run would repeat it.
            control.should_save |= "checkpoint" in self._optimizer.attachments
        self._evaluate(name, event, control)
        if name == "on_log" and self._unlogged:
            event.info["controller"] = [asdict(firing) for firing in self._unlogged]
            control.should_log = True
            self._unlogged.clear()
        if name == "on_log" and self._fired:
            event.info["fired"] = dict(self._fired)
            if event.info["score"] is not None:
                self._fired.clear()

    def _evaluate(self, name: str, event: Event, control: Control) -> None:
        """Evaluate the rules for an event, act, and pass on the requests of operations."""
        facts = self._facts.get(name)
        if facts is None:
            return
        requests = Control()
        payload = {fact: look_up(event) for fact, look_up in facts}
        payload |= {"step": event.step, "epoch": event.epoch, "control": requests, "run": self._run}
        firings, values = self._decide(name, payload)
        if not firings:
            return
        now: list[Firing] = []
        later: list[Firing] = []
        for firing in firings:
            operation = self._controller.definition.operations[firing.operation].instance
            if values is None or self.ranks.writes or not isinstance(operation, _OF_RANK_0):
                waits = name in _IN_UPDATE and getattr(operation, "waits_for_update", False)
                (later if waits else now).append(firing)
        self._controller.act(now, decided_by=values, **payload)
        if later:
            self._waiting.append((later, values, payload))
        self._unlogged += firings
        self._fired.update({firing.controller: 1 for firing in firings})
        self._log(firings)
        self._pass_on(name, requests, control)

    def _act_after_update(self, name: str, control: Control) -> None:
        """Let operations act that waited for the update, whose gradients were computed already."""
        requests = Control()
        for firings, values, payload in self._waiting:
            self._controller.act(firings, decided_by=values, **{**payload, "control": requests})
        self._waiting.clear()
        self._pass_on(name, requests, control)

    def _decide(self, name: str, payload: Mapping[str, Any]) -> tuple[list[Firing], Mapping[str, Any] | None]:
        """The firings of an event, and the values of metrics, if rank 0 has decided for all ranks. Decisions in a
        substep are returned before the update, as ranks have different numbers of substeps.
        """
        # After an error no rank waits for others: each decides.
        if self.ranks.size == 1 or name == "on_exception":
            return self._controller.decide(name, **payload), None
        firings = self._controller.decide(name, **payload) if self.ranks.writes else []
        if name == "on_substep_end":
            self._of_substeps += firings
            return [], None
        waits = name == "on_pre_optimizer_step" and "on_substep_end" in self._rules_on
        if name not in self._rules_on and not waits:
            return [], None
        if waits:
            firings, self._of_substeps = self._of_substeps + firings, []
        shared = [asdict(firing) for firing in firings], dict(self._controller.values) if firings else {}
        found, values = self.ranks.share(shared)
        return [Firing(**firing) for firing in found], values

    def _log(self, firings: Sequence[Firing]) -> None:
        for firing in firings:
            if firing.action == "should_training_stop":
                inform("%s. The training stops.", firing)
            elif (firing.operation, firing.action) in self._logged[firing.controller]:
                inform("%s.", firing)

    def _pass_on(self, name: str, requests: Control, control: Control) -> None:
        """Pass on the requests of operations to the loop: now, or in the next step if they come too late."""
        self._is_stopped |= requests.should_stop
        for request in requests.requests:
            if name in _TOO_LATE.get(request, ()):
                self._pending.append(request)
            else:
                setattr(control, request, True)
        if name in ("on_evaluate", "on_log"):  # after on_step_end, the loop goes back at on_save
            control.should_save |= requests.should_roll_back or requests.should_roll_back_to_best

    # ------------------------------------------------------------------ state

    def state_dict(self) -> Mapping[str, Any]:
        return write(
            RulesState(
                self._controller.state_dict(),
                self._pending,
                self._unlogged,
                dict(self._fired),
                self._is_stopped,
                self._has_ended,
                self._run.substeps,
            )
        )

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): The state is invalid."""
        saved = read(RulesState, state, "the state of the trainer controller's rules")
        self._controller.load_state_dict(saved.controller)
        self._pending, self._unlogged, self._fired = saved.pending, saved.unlogged, Counter(saved.fired)
        self._is_stopped, self._has_ended = saved.is_stopped, saved.has_ended
        self._run.substeps = saved.substeps


@dataclass
class RulesState:
    """The saved state of `Rules`. controller (dict): The state of the controller itself. substeps (int | None): Into
    how many parts batches are divided, if a rule has set it.
    """

    controller: dict[str, Any]
    pending: list[Request]
    unlogged: list[Firing]
    fired: dict[str, Count]
    is_stopped: bool
    has_ended: bool
    substeps: Positive | None


def names_in_run(nlp: Language) -> tuple[set[str], list[str]]:
    """The names of components, as in names of params, and of scores: those of `score_weights`, and those that spaCy
    adds.
    """
    components = {*nlp.component_names, *(name for name, _ in components_with_model(nlp))}
    return components, [*nlp.config["training"]["score_weights"], *_SPACYS_SCORES]


def _of_process_group(what: str) -> int | None:
    """Call a function of torch.distributed. None: this process trains alone, and torch.distributed is not imported."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return getattr(distributed, what)()
