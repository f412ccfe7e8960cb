"""The trainer controller in a run: passes events to its rules, and their requests to the run. See docs/controller.md.

The controller knows nothing of spaCy. This module looks up the payload of each event, and only what metrics read.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Annotated, Any, Final, Literal

from spacy.language import Language

from ..controller import (
    AveragesControl,
    ControllerSettings,
    DecayControl,
    Firing,
    FreezeControl,
    HFControls,
    LearnRateControl,
    LogControl,
    RollbackControl,
)
from ..controller import Control as Wishes
from ..errors import ConfigWarning, ControllerError
from ..optimizers import TorchOptimizer
from ..params import components_with_model
from ..schema import Count, Limit, Positive, read, write
from .events import EVENTS, Control, Event, TrainEnd
from .processes import Alone
from .run import Run
from .saved_models import SavedModels

# spaCy shows what is logged here.
logger = logging.getLogger("spacy.torchopt")

# Names of requests: of rules, and of the loop.
_REQUESTS: Final = {
    "should_training_stop": "should_stop",
    "should_epoch_stop": "should_epoch_stop",
    "should_save": "should_save",
    "should_evaluate": "should_evaluate",
    "should_log": "should_log",
}
# On these events a request is too late for the current step, and applies to the next one.
_TOO_LATE: Final = {
    "should_epoch_stop": ("on_save",),
    "should_save": ("on_save",),
    "should_evaluate": ("on_evaluate", "on_log", "on_save"),
    "should_log": ("on_save",),
}
Request = Annotated[str, Limit(" or ".join(_TOO_LATE), lambda request: request in _TOO_LATE)]
# All events of a run, and those that come once.
_HELD: Final = ("on_init_end", *EVENTS)
_ONCE: Final = ("on_init_end", "on_train_begin", "on_train_end", "on_exception")
# Requests that make no sense when the training has ended.
_NOT_AT_END: Final = ("should_epoch_stop", "should_evaluate", "should_log")
# Scores of the tokenizer, and words per second, which have no weights.
_SPACYS_SCORES: Final = ("token_acc", "token_p", "token_r", "token_f", "speed")
_IN_UPDATE: Final = ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")

_FACTS: Final[dict[str, Callable[[Any], Any]]] = {
    "rank": lambda event: _of_process_group("get_rank"),
    "world_size": lambda event: _of_process_group("get_world_size"),
    "words": lambda event: event.run.words,
    "seconds": lambda event: event.run.seconds,
    "counts": lambda event: event.run.counts,
    "learn_rates": lambda event: event.run.learn_rates,
    "max_steps": lambda event: event.run.max_steps or None,
    "warmup_steps": lambda event: event.run.optimizer.warmup_steps,
    "is_final": lambda event: isinstance(event, TrainEnd) or 0 < event.run.max_steps <= event.step,
    "losses": lambda event: event.run.losses,
    "batch_words": lambda event: sum(map(len, event.run.batch)),
    "batch_size": lambda event: len(event.run.batch),
    "grad_norm": lambda event: event.run.grad_norm,
    "grad_norms": lambda event: event.run.grad_norms,
    "group_grad_norms": lambda event: lambda: event.run.norms.of_grads()["groups"],
    "param_norms": lambda event: event.run.norms.of_params,
    "update_norms": lambda event: event.run.norms.of_update,
    "metrics": lambda event: event.scores,
    "dev_losses": lambda event: event.run.dev_losses,
    "score": lambda event: event.score,
    "error_type": lambda event: type(event.error).__name__,
    "error_text": lambda event: str(event.error)[:_MAX_ERROR],
}
_OF_EVERY_EVENT: Final = (
    *("rank", "world_size", "words", "seconds", "counts", "learn_rates", "max_steps", "warmup_steps", "is_final"),
)
_OF_STEP: Final = ("losses", "batch_words", "batch_size", "grad_norm")
_OF_EVENT: Final = {
    "on_pre_optimizer_step": ("grad_norms", "group_grad_norms"),
    "on_optimizer_step": ("grad_norm", "param_norms", "update_norms"),
    "on_step_end": _OF_STEP,
    "on_evaluate": ("metrics", "score", "dev_losses"),
    "on_log": _OF_STEP,
    "on_exception": ("error_type", "error_text"),
}
_MAX_ERROR: Final = 2_000  # characters of the text of an error


class Rules:
    """Connects a trainer controller to a run. A listener.

    settings (ControllerSettings): From the config.
    optimizer (TorchOptimizer): The run's.
    RAISES (ControllerError): A rule has an action that this run can't do.

    Public: `ranks` (this process among several: rank 0 decides, and all act).
    """

    name = "trainer controller"

    def __init__(self, settings: ControllerSettings, optimizer: TorchOptimizer):
        self.ranks = Alone()
        self._run: Run | None = None
        self._optimizer = optimizer
        self._controller = settings.build()
        self._rules_on = {event for spec in self._controller.definition.controllers for event in spec.triggers}
        self._of_substeps: list[Firing] = []  # wait until all ranks are at the same event
        self._steering = RunSteering(optimizer)
        self._wishes = Wishes(steering=self._steering)
        self._facts = {name: self._facts_of(name) for name in self._controller.events}
        self._pending: list[str] = []  # requests for the next step
        self._untold: list[Firing] = []  # firings that are not logged yet
        self._fired: Counter[str] = Counter()  # since the last evaluation
        self._is_stopped = False
        self._has_ended = False
        # Actions to log here. The controller logs those with a log_level in the definition.
        self._told = {
            spec.name: {
                (name, action)
                for name, action in spec.actions
                if spec.log_level is None and not self._is_quiet(name, action)
            }
            for spec in self._controller.definition.controllers
        }
        self._check_events()
        self._check_actions()
        _show_log()
        metrics = [part.instance for part in self._controller.definition.metrics.values()]
        self._compares_params = any("update_norms" in (getattr(one, "reads", None) or ()) for one in metrics)
        if "on_substep_end" in self._rules_on or self._compares_params:
            self._facts.setdefault("on_pre_optimizer_step", [])
        for name in EVENTS:
            if name in self._facts or name in ("on_train_begin", "on_step_begin", "on_step_end", "on_log"):
                setattr(self, name, partial(self._hear, name))

    def _facts_of(self, name: str) -> list[tuple[str, Callable[[Any], Any]]]:
        reads = self._controller.reads(name)
        known = (*_OF_EVERY_EVENT, *_OF_EVENT.get(name, ()))
        return [(fact, _FACTS[fact]) for fact in known if reads is None or fact in reads]

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
                        f"Can't use the trigger {trigger} of the controller '{spec.name}': it comes only once, but the "
                        f"patience needs more than {spec.patience.threshold} times. Set patience_threshold = 0."
                    )
        for name, part in definition.metrics.items():
            if not set(part.instance.events) & set(_HELD):
                raise ControllerError(
                    f"Can't use the metric '{name}': expected one that is computed on an event of spacy train, found "
                    f"{', '.join(part.instance.events)} alone. spacy train has {', '.join(_HELD)}."
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
            if isinstance(operation, DecayControl) and not self._optimizer.can_begin_decay:
                raise ControllerError(
                    f"Can't use the action {name}.{action}: no schedule has a decay that it could begin. Use "
                    '@schedules = "thinc-torchopt.warmup_stable_decay.v1".'
                )

    def join(self, run: Run) -> None:
        """Take part in a run. RAISES (ConfigError): A pattern matches nothing. (ControllerError): There is no
        development data for a metric.
        """
        self.ranks = run.ranks
        self._run = self._steering.run = run
        if self._optimizer.knows(run.nlp):
            self.check_names(run.nlp)
        if self.ranks.writes:
            self._steering.models = run.models
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

    def _hear(self, name: str, event: Any, control: Control) -> None:
        if name == "on_train_begin":
            self._has_ended = False
            if event.resumed:  # it has begun before
                control.should_stop |= self._is_stopped
                return
            self._tell("on_init_end", event, control)
        elif name == "on_step_begin":
            for request in self._pending:
                setattr(control, request, True)
            self._pending.clear()
        elif name == "on_pre_optimizer_step" and self._compares_params:
            event.run.norms.keep()
        elif name == "on_step_end":
            self._steering.catch_up()
        elif name == "on_train_end":
            self._has_ended = True
            # Save that rules got the event, or the next run would repeat it.
            control.should_save |= "checkpoint" in self._optimizer.attachments
        self._tell(name, event, control)
        if name == "on_log" and self._untold:
            event.info["controller"] = [asdict(firing) for firing in self._untold]
            control.should_log = True
            self._untold.clear()
        if name == "on_log" and self._fired:
            event.info["fired"] = dict(self._fired)
            if event.info["score"] is not None:
                self._fired.clear()

    def _tell(self, name: str, event: Event, control: Control) -> None:
        """Evaluate the rules for an event, and pass on their requests."""
        facts = self._facts.get(name)
        if facts is None:
            return
        payload = {fact: look_up(event) for fact, look_up in facts}
        if name == "on_save" and "output_path" in event.info:  # type: ignore[attr-defined]
            payload["path"] = str(event.info["output_path"])  # type: ignore[attr-defined]
        self._steering.waits = name in _IN_UPDATE
        payload |= {"step": event.step, "epoch": event.epoch, "control": self._wishes}
        # After an error no rank waits for others: each tells of its own.
        is_alone = self.ranks.size == 1 or name == "on_exception"
        firings = self._controller.on_event(name, **payload) if is_alone else self._decide_together(name, payload)
        if not firings:
            return
        self._untold += firings
        self._fired.update({firing.controller: 1 for firing in firings})
        self._pass_on(name, control, firings)

    def _decide_together(self, name: str, payload: Mapping[str, Any]) -> list[Firing]:
        """Decide on rank 0, and act on all ranks. Decisions in a substep are done before the update, as ranks have
        different numbers of substeps.
        """
        firings = self._controller.decide(name, **payload) if self.ranks.writes else []
        if name == "on_substep_end":
            self._of_substeps += firings
            return []
        waits = name == "on_pre_optimizer_step" and "on_substep_end" in self._rules_on
        if name not in self._rules_on and not waits:
            return []
        if waits:
            firings, self._of_substeps = self._of_substeps + firings, []
        shared = [asdict(firing) for firing in firings], dict(self._controller.values) if firings else {}
        found, values = self.ranks.share(shared)
        firings = [Firing(**firing) for firing in found]
        done = firings if self.ranks.writes else [firing for firing in firings if not self._is_message(firing)]
        self._controller.act(done, decided_by=values, **payload)
        return firings

    def _is_message(self, firing: Firing) -> bool:
        """Whether its operation only logs a message, which rank 0 does."""
        operation = self._controller.definition.operations[firing.operation].instance
        return isinstance(operation, LogControl)

    def _pass_on(self, name: str, control: Control, firings: Sequence[Firing]) -> None:
        wishes = self._wishes
        self._is_stopped |= wishes.should_training_stop
        for firing in firings:
            if firing.action == "should_training_stop":
                logger.info("%s. The training stops.", firing)
            elif (firing.operation, firing.action) in self._told[firing.controller]:
                logger.info("%s.", firing)
        for field in fields(wishes):
            if field.name in _REQUESTS and getattr(wishes, field.name):
                request = _REQUESTS[field.name]
                if name in _TOO_LATE.get(request, ()):
                    self._pending.append(request)
                else:
                    setattr(control, request, True)
                setattr(wishes, field.name, False)
        if self._steering.wanted:
            goes_back = bool(self._steering.wanted & {"best", "last"})
            control.should_roll_back |= "last" in self._steering.wanted
            control.should_roll_back_to_best |= "best" in self._steering.wanted
            self._steering.wanted.clear()
            # After on_step_end, it is done at on_save.
            control.should_save |= goes_back and name in ("on_evaluate", "on_log")

    # ------------------------------------------------------------------ state

    def state_dict(self) -> Mapping[str, Any]:
        controller, untold = self._controller.state_dict(), self._untold
        return write(
            RulesState(
                controller,
                self._pending,
                untold,
                dict(self._fired),
                self._is_stopped,
                self._has_ended,
                None if self._run is None else self._run.substeps,
            )
        )

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): The state is invalid."""
        saved = read(RulesState, state, "the state of the trainer controller's rules")
        self._controller.load_state_dict(saved.controller)
        self._pending, self._untold, self._fired = saved.pending, saved.untold, Counter(saved.fired)
        self._is_stopped, self._has_ended = saved.is_stopped, saved.has_ended
        if self._run is not None:
            self._run.substeps = saved.substeps


@dataclass
class RulesState:
    """The saved state of `Rules`. controller (dict): The state of the controller itself. substeps (int | None): Into
    how many parts batches are divided, if a rule has set it.
    """

    controller: dict[str, Any]
    pending: list[Request]
    untold: list[Firing]
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


class RunSteering:
    """The effects of rules on a run beside the requests of its `Control`: see `controller.Steering`.

    Public: `waits` (during an update: some changes wait until it is done, as gradients are computed already), `wanted`
    (where to go back to), `run`, `models` (saves the best models; None in processes that write nothing).
    """

    def __init__(self, optimizer: TorchOptimizer):
        self._optimizer = optimizer
        self.waits = False
        self.run: Run | None = None
        self.models: SavedModels | None = None
        self.wanted: set[str] = set()
        self._waiting: list[Callable[[], object]] = []

    def scale_learn_rates(self, groups: Sequence[str], factor: float, min_rate: float, max_rate: float | None) -> None:
        self._optimizer.scale_learn_rates(groups, factor, min_rate, max_rate)

    def set_learn_rates(self, groups: Sequence[str], rate: float) -> None:
        self._optimizer.set_learn_rates(groups, rate)

    def freeze(self, params: Sequence[str]) -> None:
        self._do(partial(self._optimizer.freeze, params))

    def unfreeze(self, params: Sequence[str]) -> None:
        self._do(partial(self._optimizer.unfreeze, params))

    def roll_back(self, to: Literal["best", "last"]) -> None:
        self.wanted.add(to)

    def accumulate_gradient(self, substeps: int) -> None:
        if self.run is not None:
            self.run.substeps = substeps

    def begin_averages(self, *, anew: bool) -> None:
        self._do(partial(self._optimizer.begin_averages, anew=anew))

    def begin_decay(self, steps: int | None) -> None:
        self._do(partial(self._optimizer.begin_decay, steps))

    def keep_model(self, name: str, score: float, *, step: int, at_most: int, mode: Literal["min", "max"]) -> None:
        if self.models is not None:
            self.models.keep(name, score, step=step, at_most=at_most, mode=mode)

    def _do(self, change: Callable[[], object]) -> None:
        if self.waits:
            self._waiting.append(change)
        else:
            change()

    def catch_up(self) -> None:
        """Do what waited for the update."""
        for change in self._waiting:
            change()
        self._waiting.clear()


def _of_process_group(what: str) -> int | None:
    """Call a function of torch.distributed. None: this process trains alone, and torch.distributed is not imported."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return getattr(distributed, what)()


def _show_log() -> None:
    """Show the log messages of rules where spaCy's are shown, unless the user has configured logging."""
    rules = logging.getLogger("thinc_torchopt.controller")
    if rules.level == logging.NOTSET:
        rules.setLevel(logging.INFO)
    if not rules.hasHandlers():
        for handler in logging.getLogger("spacy").handlers:
            rules.addHandler(handler)
