"""Metrics: values about a training run for rules, computed from the payloads of events (see loop/events.py).

A metric is a class. `arguments` in the definition are the arguments of its constructor:


    @controller_metrics("GoldWords")
    class GoldWords(Metric):
        events = ("on_step_end",)

        def compute(self, event_name, *, words=None, **kwargs):
            return words

A value of None means "no value yet". If `compute` returns None, the metric keeps its last value.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar, Literal, TypeVar

from ...core.checks import Section
from ...core.registry import registry
from ...core.schema import AnyNumber, Count, read, write
from .values import Keys, number, plain

T = TypeVar("T", bound=type)
Values = dict[str, Any]

# The longest window: rules could not go through a longer one.
MAX_WINDOW = 10_000

# Components that losses exclude by default, as they report no loss of their own.
EXCLUDED = ["tok2vec", "transformer"]

SECTION = Section("the arguments")


class RecordsArguments:
    """Records the arguments of its constructor, so that each run can build its own from that of the config.

    Public: `init_arguments` (Mapping[str, Any]: the arguments by name).
    """

    init_arguments: Mapping[str, Any] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]
        for name in inspect.signature(cls).parameters:
            # confection would take it for that of the argument.
            cls.__annotations__.pop(name, None)


def _recording(init: Any) -> Any:
    @wraps(init)
    def record(self: RecordsArguments, *args: Any, **kwargs: Any) -> None:
        if "init_arguments" not in vars(self):  # the constructor of a base class has other arguments
            _, *names = inspect.signature(init).parameters
            self.init_arguments = dict(zip(names, args)) | kwargs
        init(self, *args, **kwargs)

    return record


class Metric(RecordsArguments, ABC):
    """A metric.

    events (Sequence[str]): The events on which it is computed. Given here or as an attribute of the class.

    Attributes of the class:

    keys: The keys that its value always has: `{"loss": None, "components": {"ner": None}}`. A rule with another key is
        refused before the training. None: any keys.
    reads: The names in the payload that it needs. None: all. A loop need not compute others.
    keeps: The events on which it must be computed for later ones. On its other events it is computed only if rules are
        evaluated there. None: all events.
    is_plain: `compute` returns only bools, ints, floats, strs, None, lists and dicts, which need not be copied.
    may_hold_more: Its value may have other keys than `keys_in_run`. Using them is then a warning, no error.
    memory: Its state beside its value, as a dataclass (see core/schema.py). None: no state, or it has its own
    `state_dict`
        and `load_state_dict`.
    is_in_memory: `value_of_memory` gives its value, which is then not saved.
    """

    events: Sequence[str] = ()
    keys: ClassVar[Keys | None] = None
    reads: ClassVar[Sequence[str] | None] = None
    keeps: ClassVar[Sequence[str] | None] = None
    is_plain: ClassVar[bool] = False
    may_hold_more: ClassVar[bool] = False
    is_in_memory: ClassVar[bool] = False
    memory: Any = None

    def __init__(self, events: Sequence[str] | None = None):
        if events is not None:
            if isinstance(events, str) or not isinstance(events, Sequence) or not events:
                SECTION.refuse("events", 'a list of events, as in ["on_step_end"]', events)
            self.events = events

    def validate(self) -> bool:
        """Whether its arguments are valid. Called once, before the training."""
        return True

    def prepare(self, metrics: Mapping[str, Any]) -> None:  # not every metric has something to prepare
        """Called once, before the training. metrics (Mapping): The metrics before it in the definition, by name. None
        for those that have errors.

        RAISES (ControllerError): It can't be used with them.
        """

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys | None:
        """`keys` in a run, when the pipeline is known.

        groups, components (Collection[str]): The names of its param groups, and of its components. Without any, these
            are not known.
        """
        return self.keys

    def keys_with_scores(self, keys: Keys | None, scores: Collection[str]) -> Keys | None:
        """`keys_in_run`, with the names of scores. Other scores may exist: using them is a warning, no error."""
        return keys

    @abstractmethod
    def compute(self, event_name: str, **kwargs: Any) -> Any:
        """Compute the value from the payload of an event. None: no new value.

        values (Mapping): Values of all metrics; those before it in the definition are computed already.
        """

    def value_of_memory(self) -> Any:
        """Its value after its state was loaded, if `is_in_memory`."""
        return None

    def state_dict(self) -> Values:
        """Its state beside its value: numbers, strs, lists, dicts."""
        return {} if self.memory is None else write(self.memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`. RAISES (StateError): It is invalid. Nothing has changed then."""
        if self.memory is not None:
            self.memory = read(type(self.memory), plain(state), f"the state of the metric {type(self).__name__}")


def controller_metrics(name: str) -> Callable[[T], T]:
    """Register a metric class under a name: `@controller_metrics("MyMetric")`."""
    return registry.controller_metrics.register(name)  # type: ignore[attr-defined]


def register_metric_handlers(handlers: Iterable[type]) -> None:
    """Register metric classes, each under its own name."""
    for handler in handlers:
        controller_metrics(handler.__name__)(handler)


# ---------------------------------------------------------------------- losses


@controller_metrics("Loss")
class Loss(Metric):
    """The loss of a step; on `on_log`, the `loss` that was logged.

    Keys: `loss` (total), `per_word`, `per_example`, `components` (by component), `components_per_word`, `epoch`,
    `step`. spaCy's losses are sums over the words of a batch: compare losses per word.

    exclude (list[str]): Components to leave out of the total, as they report no loss of their own.
    """

    events = ("on_step_end", "on_log")
    keys = dict.fromkeys(("loss", "per_word", "per_example", "components", "components_per_word", "epoch", "step"))
    reads = ("losses", "batch_words", "batch_size", "log_history")
    is_plain = True
    may_hold_more = True

    def __init__(self, exclude: list[str] = EXCLUDED):
        super().__init__()
        self._exclude = frozenset(_names("exclude", exclude))

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys:
        return _keys_of_losses(self.keys, components)

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        if (losses := kwargs.get("losses")) is not None:
            return {
                **_losses(losses, self._exclude, kwargs),
                "epoch": number(kwargs.get("epoch")),
                "step": kwargs["step"],
            }
        log = _newest(kwargs.get("log_history") or ()) if event_name == "on_log" else None
        return (
            None
            if log is None
            else {"loss": float(log["loss"]), "epoch": number(log.get("epoch", kwargs.get("epoch")))}
        )


@controller_metrics("EvalLoss")
class EvalLoss(Metric):
    """The loss on the development data, computed at each evaluation. Takes about as long as training on these examples.
    Labels that the training data does not have are left out.

    Keys: as `Loss`, and the number of `words` and `examples`.

    max_examples (int | None): Use only the first examples, up to this many. None: all.
    exclude (list[str]): As in `Loss`.
    """

    events = ("on_evaluate",)
    reads = ("dev_losses",)
    keys: ClassVar[Keys | None] = {**Loss.keys, **dict.fromkeys(("words", "examples"))}
    is_plain = True
    may_hold_more = True

    def __init__(self, max_examples: int | None = None, exclude: list[str] = EXCLUDED):
        super().__init__()
        self._at_most = None if max_examples is None else SECTION.whole("max_examples", max_examples, at_least=1)
        self._exclude = frozenset(_names("exclude", exclude))

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys:
        return _keys_of_losses(self.keys, components)

    def compute(
        self, event_name: str, *, dev_losses: Callable[[int | None], Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> Any:
        if dev_losses is None:
            return None
        found = dev_losses(self._at_most)
        words, examples = int(found["words"]), int(found["examples"])
        return {
            **_losses(found["losses"], self._exclude, {"batch_words": words, "batch_size": examples}),
            "words": words,
            "examples": examples,
            "epoch": number(kwargs.get("epoch")),
            "step": kwargs["step"],
        }


@controller_metrics("HistoryBasedMetric")
class HistoryBasedMetric(Metric):
    """Windows over the newest losses and scores.

    Keys: `training_loss` has the lists `loss`, `steps` and `epoch`, oldest first; if the losses of components are
    known, also `per_word`, and `components` with a list each. `metrics` has a list for each score, and `steps` and
    `epoch`.
    `window_size`.

    window_size (int): Number of values. -1: all, up to 10,000.
    source_event (str): Where losses come from: "on_log", or "on_step_end" for those of each step.
    exclude (list[str]): As in `Loss`.
    """

    keys: ClassVar[Keys | None] = {
        "training_loss": dict.fromkeys(("loss", "per_word", "components", "steps", "epoch")),
        "metrics": None,
        "window_size": None,
    }
    reads = ("losses", "batch_words", "batch_size", "log_history", "scores", "score")
    is_plain = True
    may_hold_more = True
    is_in_memory = True

    def __init__(
        self,
        window_size: int = 1,
        source_event: Literal["on_log", "on_step_end"] = "on_log",
        exclude: list[str] = EXCLUDED,
    ):
        super().__init__((SECTION.choice("source_event", source_event, ("on_log", "on_step_end")), "on_evaluate"))
        size = -1 if window_size == -1 else SECTION.whole("window_size", window_size, at_least=1)
        if size > MAX_WINDOW:
            SECTION.refuse("window_size", f"at most {MAX_WINDOW}", window_size)
        self._size = MAX_WINDOW if size == -1 else size
        self._exclude = frozenset(_names("exclude", exclude))
        self._window_size = size
        self.memory = HistoryBasedMetricState({"loss": [], "steps": [], "epoch": []})

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys:
        keys = self.keys or {}
        return {**keys, "training_loss": _keys_of_losses(keys["training_loss"], components)}

    def keys_with_scores(self, keys: Keys | None, scores: Collection[str]) -> Keys:
        return {**(keys or {}), "metrics": dict.fromkeys((*scores, "score", "steps", "epoch"))}

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        if event_name == "on_evaluate":
            if (scores := kwargs.get("scores")) is not None:
                scores = plain(scores) | ({} if kwargs.get("score") is None else {"score": float(kwargs["score"])})
                scores |= {"steps": kwargs["step"], "epoch": number(kwargs.get("epoch"))}
                self._add(self.memory.metrics, scores)
        elif (losses := kwargs.get("losses")) is not None:
            values = _losses(losses, self._exclude, kwargs)
            windows = self.memory.training_loss.setdefault("components", {})
            self._add(windows, values["components"])
            known = {key: values[key] for key in ("loss", "per_word") if values[key] is not None}
            self._add(
                self.memory.training_loss, known | {"steps": kwargs["step"], "epoch": number(kwargs.get("epoch"))}
            )
        elif event_name == "on_log" and (log := self._unseen(kwargs.get("log_history") or ())):
            epoch = number(log.get("epoch", kwargs.get("epoch")))
            self._add(self.memory.training_loss, {"loss": float(log["loss"]), "steps": kwargs["step"], "epoch": epoch})
        return self.value_of_memory()

    def value_of_memory(self) -> Any:
        return {
            "training_loss": self.memory.training_loss,
            "metrics": self.memory.metrics,
            "window_size": self._window_size,
        }

    def _unseen(self, history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The newest log with a loss, if it is new: the history has become longer, or ends with another log."""
        count, newest = len(history), plain(history[-1]) if history else None
        seen, self.memory.seen = self.memory.seen, (count, newest)
        if count > seen[0]:
            return _newest(history[seen[0] :])
        return None if newest is None or "loss" not in newest or newest == seen[1] else newest

    def _add(self, windows: dict[str, list[Any]], values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            window = windows.setdefault(key, [])
            window.append(value)
            del window[: -self._size]


@dataclass
class HistoryBasedMetricState:
    """The state of HistoryBasedMetric. seen (tuple): Number of logs, and the newest."""

    training_loss: dict[str, Any]
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    seen: tuple[Count, Any] = (0, None)


def _keys_of_losses(keys: Keys | None, components: Collection[str]) -> Keys:
    """Keys of losses, with the names of components."""
    known = dict.fromkeys(components)
    return {key: known if key.startswith("components") else part for key, part in (keys or {}).items()}


def _losses(losses: Mapping[str, Any], exclude: frozenset[str], payload: Mapping[str, Any]) -> Values:
    components = {str(name): float(loss) for name, loss in losses.items()}
    total = sum(loss for name, loss in components.items() if name not in exclude)
    words, examples = payload.get("batch_words"), payload.get("batch_size")
    return {
        "loss": total,
        "per_word": total / words if words else None,
        "per_example": total / examples if examples else None,
        "components": components,
        "components_per_word": {name: loss / words for name, loss in components.items()} if words else {},
    }


def _newest(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The newest log with a loss."""
    return next((log for log in reversed(history) if log.get("loss") is not None), None)


# ---------------------------------------------------------------------- scores


@controller_metrics("EvalMetrics")
class EvalMetrics(Metric):
    """The scores of the newest evaluation, by name.

    If the loop reports the weighted score, also the keys `score`, `best_score`, `best_step`, `evaluations_since_best`
    and `steps_since_best`. The best score is never NaN or infinite.

    source_event (str): "on_evaluate" or "on_predict".
    min_delta (float): A score must be more than this above the best to count as better.
    min_delta_mode (str): "absolute", or "relative": `min_delta` is a part of the best score.
    """

    reads = ("scores", "score")
    may_hold_more = True

    def __init__(
        self,
        source_event: Literal["on_evaluate", "on_predict"] = "on_evaluate",
        min_delta: float = 0.0,
        min_delta_mode: Literal["absolute", "relative"] = "absolute",
    ):
        super().__init__((SECTION.choice("source_event", source_event, ("on_evaluate", "on_predict")),))
        self._min_delta = SECTION.number("min_delta", min_delta)
        self._is_relative = SECTION.choice("min_delta_mode", min_delta_mode, ("absolute", "relative")) == "relative"
        self.memory = BestValue()

    def keys_with_scores(self, keys: Keys | None, scores: Collection[str]) -> Keys:
        return dict.fromkeys((*scores, "score", *self._best(0)))

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        if (score := kwargs.get("score")) is not None:
            self.memory.count_evaluation()
            self.memory.offer(float(score), kwargs["step"], min_delta=self._min_delta, is_relative=self._is_relative)
        if kwargs.get("scores") is None:
            return None
        return {
            **kwargs["scores"],
            **({} if score is None else {"score": float(score), **self._best(kwargs["step"])}),
        }

    def _best(self, step: int) -> Values:
        best = self.memory
        return {
            "best_score": best.value,
            "best_step": best.step,
            "evaluations_since_best": best.evaluations_since,
            "steps_since_best": best.steps_since(step),
        }


@dataclass
class BestValue:
    """The best value so far, and when it was."""

    value: AnyNumber | None = None
    step: int | None = None
    evaluations_since: Count = 0

    def count_evaluation(self) -> None:
        self.evaluations_since += 1

    def offer(
        self,
        value: float,
        step: int,
        mode: Literal["min", "max"] = "max",
        *,
        min_delta: float = 0.0,
        is_relative: bool = False,
    ) -> None:
        """Take a value if it is better by more than `min_delta`, or than this part of the best. NaN and infinite ones
        are not.
        """
        if not math.isfinite(value):
            return
        if self.value is not None:
            margin = min_delta * (abs(self.value) if is_relative else 1.0) if min_delta else 0.0
            if not (value > self.value + margin if mode == "max" else value < self.value - margin):
                return
        self.value, self.step, self.evaluations_since = value, step, 0

    def steps_since(self, step: int) -> int | None:
        return None if self.step is None else step - self.step


def _names(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        SECTION.refuse(name, 'a list of names, as in ["tok2vec"]', value)
    return value
