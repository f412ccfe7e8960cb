"""Metrics: numbers about a training run, computed on some of its events from what these carry (see events.py), for
rules to use.

A metric is a class. What stands under `arguments` in the definition are the arguments of its constructor:

    @controller_metrics("GoldWords")
    class GoldWords(Metric):
        events = ("on_step_end",)

        def compute(self, event_name, *, words=None, **kwargs):
            return words

"No value yet" is None. A metric that gives None keeps the value it had.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from ..checks import Section
from ..registry import registry
from ..schema import AnyNumber, Count, read, write
from .compiler import Keys
from .plain import number, plain

T = TypeVar("T", bound=type)
Values = dict[str, Any]

# No window is longer: rules could not go through it.
MAX_WINDOW = 10_000

# What losses leave out by default: components that report no loss of their own, and that not every pipeline has.
EXCLUDED = ["tok2vec", "transformer"]

SECTION = Section("the arguments")


class Metric(ABC):
    """A metric.

    events (Sequence[str]): On which it is computed. Given here or as an attribute of the class.

    keys: What its value holds, as far as it always does: `{"loss": None, "components": {"ner": None}}`; None: anything.
    Then a rule that looks up something else is refused before the training.
    reads: The names in the payload that it needs; None: it may use all. A loop need not compute others.
    keeps: The events on which it learns something for later. None: all. On others it is computed only if rules are
    evaluated there.
    is_plain: What `compute` gives is made of bools, ints, floats, strs, None, lists and dicts alone, and need not be
    copied.
    may_hold_more: It may hold what `keys_in_run` does not say: then looking that up is a warning.
    is_of_machine: It measures the machine as it is now. In a replay it has no value.
    memory: What it has to remember beside its value, as a dataclass (see schema.py). None: nothing; or it has a
    `state_dict` and `load_state_dict` of its own.
    """

    events: Sequence[str] = ()
    keys: ClassVar[Keys | None] = None
    reads: ClassVar[Sequence[str] | None] = None
    keeps: ClassVar[Sequence[str] | None] = None
    is_plain: ClassVar[bool] = False
    may_hold_more: ClassVar[bool] = False
    is_of_machine: ClassVar[bool] = False
    memory: Any = None

    def __init__(self, events: Sequence[str] | None = None):
        if events is not None:
            if isinstance(events, str) or not isinstance(events, Sequence) or not events:
                SECTION.refuse("events", 'a list of events, as in ["on_step_end"]', events)
            self.events = events

    def validate(self) -> bool:
        """Whether it can work as it was set up. Called once, before the training."""
        return True

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys | None:
        """What its value holds in a run, as `keys`, once there is a pipeline.

        groups, components (Collection[str]): The names of its param groups, and of its components.
        """
        return self.keys

    @abstractmethod
    def compute(self, event_name: str, **kwargs: Any) -> Any:
        """The value, from the payload of an event. None: no value yet, or none that is new."""

    def state_dict(self) -> Values:
        """What it has to remember beside its value: numbers, strs, lists, dicts."""
        return {} if self.memory is None else write(self.memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave. RAISES (StateError): It is something else. Nothing has changed then."""
        if self.memory is not None:
            self.memory = read(type(self.memory), plain(state), f"the state of the metric {type(self).__name__}")


def controller_metrics(name: str) -> Callable[[T], T]:
    """Register a class of metrics under a name: `@controller_metrics("MyMetric")`."""
    return registry.controller_metrics.register(name)  # type: ignore[attr-defined]


def register_metric_handlers(handlers: Iterable[type]) -> None:
    """Register classes of metrics, each under its own name."""
    for handler in handlers:
        controller_metrics(handler.__name__)(handler)


# ---------------------------------------------------------------------- losses


@controller_metrics("Loss")
class Loss(Metric):
    """The loss of a step, or, on `on_log`, what was logged as `loss`.

    `loss` (total), `per_word`, `per_example`, `components` (each component's), `components_per_word`; `epoch` and
    `step`. spaCy's losses are sums over the words of a batch: compare those per word.

    exclude (list[str]): Components that are left out of the total: what they report is no loss of their own.
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
    """The loss on the development data: as `Loss`, and `words` and `examples`, that it is of. Computed at each
    evaluation, which takes about as long as training on these examples.

    max_examples (int | None): Only the first so many examples. None: all.
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
    """Windows: the newest values of the losses, and of each score.

    `training_loss`: `loss`, `steps`, `epoch`, lists with the oldest first; if the losses of components are known,
    also `per_word`, and `components` with a list for each. `metrics`: for each score a list, beside `steps` and
    `epoch`. `window_size`.

    window_size (int): How many values. -1: all, up to 10,000.
    source_event (str): Where losses come from: "on_log", or "on_step_end" for those of each step.
    exclude (list[str]): As in `Loss`.
    """

    keys: ClassVar[Keys | None] = {
        "training_loss": dict.fromkeys(("loss", "per_word", "components", "steps", "epoch")),
        "metrics": None,
        "window_size": None,
    }
    reads = ("losses", "batch_words", "batch_size", "log_history", "metrics", "score")
    is_plain = True
    may_hold_more = True

    def __init__(
        self,
        window_size: int = 1,
        source_event: Literal["on_log", "on_step_end"] = "on_log",
        exclude: list[str] = EXCLUDED,
    ):
        SECTION.choice("source_event", source_event, ("on_log", "on_step_end"))
        super().__init__((source_event, "on_evaluate"))
        size = -1 if window_size == -1 else SECTION.whole("window_size", window_size, at_least=1)
        if size > MAX_WINDOW:
            SECTION.refuse("window_size", f"at most {MAX_WINDOW}", window_size)
        self._size = MAX_WINDOW if size == -1 else size
        self._exclude = frozenset(_names("exclude", exclude))
        self._window_size = size
        self.memory = History({"loss": [], "steps": [], "epoch": []})

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys:
        keys = self.keys or {}
        return {**keys, "training_loss": _keys_of_losses(keys["training_loss"], components)}

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        if event_name == "on_evaluate":
            if (scores := kwargs.get("metrics")) is not None:
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
        return {
            "training_loss": self.memory.training_loss,
            "metrics": self.memory.metrics,
            "window_size": self._window_size,
        }

    def _unseen(self, history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """The newest log with a loss, if it is new: the history became longer; or is not longer, and ends with
        another log.
        """
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
class History:
    """What a HistoryBasedMetric remembers. seen (tuple): How many logs there were, and the newest."""

    training_loss: dict[str, Any]
    metrics: dict[str, list[Any]] = field(default_factory=dict)
    seen: tuple[Count, Any] = (0, None)


def _keys_of_losses(keys: Keys | None, components: Collection[str]) -> Keys:
    """Keys of losses, with those of components where there are any."""
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
    """The newest log that has a loss."""
    return next((log for log in reversed(history) if log.get("loss") is not None), None)


# ---------------------------------------------------------------------- scores


@controller_metrics("EvalMetrics")
class EvalMetrics(Metric):
    """The scores of the newest evaluation, by name. Where the loop tells the weighted score, also `score`,
    `best_score`, `best_step`, `evaluations_since_best` and `steps_since_best`. A score that is NaN is never the best.

    source_event (str): "on_evaluate" or "on_predict".
    min_delta (float): A score is better if it is more than this above the best.
    min_delta_mode (str): "absolute", or "relative": a part of the best score.
    """

    reads = ("metrics", "score")

    def __init__(
        self,
        source_event: Literal["on_evaluate", "on_predict"] = "on_evaluate",
        min_delta: float = 0.0,
        min_delta_mode: Literal["absolute", "relative"] = "absolute",
    ):
        super().__init__((SECTION.choice("source_event", source_event, ("on_evaluate", "on_predict")),))
        SECTION.choice("min_delta_mode", min_delta_mode, ("absolute", "relative"))
        self._min_delta = SECTION.number("min_delta", min_delta)
        self._is_relative = min_delta_mode == "relative"
        self.memory = Best()

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        if (score := kwargs.get("score")) is not None:
            part = abs(self.memory.score or 0.0) if self._is_relative else 1.0
            self.memory.add(float(score), kwargs["step"], self._min_delta * part)
        if kwargs.get("metrics") is None:
            return None
        return {
            **kwargs["metrics"],
            **({} if score is None else {"score": float(score), **self.memory.values(kwargs["step"])}),
        }


@dataclass
class Best:
    """The best score so far."""

    score: AnyNumber | None = None
    step: int | None = None
    evaluations_since: Count = 0

    def add(self, score: float, step: int, margin: float = 0.0) -> None:
        """margin (float): A score is better if it is more than this above the best."""
        self.evaluations_since += 1
        if not math.isnan(score) and (self.score is None or score > self.score + margin):
            self.score, self.step, self.evaluations_since = score, step, 0

    def values(self, step: int) -> Values:
        return {
            "best_score": self.score,
            "best_step": self.step,
            "evaluations_since_best": self.evaluations_since,
            "steps_since_best": None if self.step is None else step - self.step,
        }


def _names(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        SECTION.refuse(name, 'a list of names, as in ["tok2vec"]', value)
    return value
