"""Metrics of the run itself: its progress, its learning rates, its gradients and params."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...core.schema import AnyNumber
from ...loop.events import EVENTS
from .metrics import SECTION, BestValue, Metric, controller_metrics
from .values import Keys, number


@controller_metrics("TrainingState")
class TrainingState(Metric):
    """The progress of the run.

    Keys: `step` (also `global_step`), `epoch`, `max_steps`, `warmup_steps` (of the learning rate), `words`, `seconds`,
    `score` (of the newest evaluation), `best_score` (also `best_metric`), `best_step`, `skipped_updates`,
    `grad_spikes`, `rollbacks`, `is_final`, and on `on_exception` `error_type` and `error_text`. Keys that are unknown
    yet have no value.
    """

    events = tuple(EVENTS)
    keys = dict.fromkeys(
        (
            *("step", "global_step", "epoch", "max_steps", "warmup_steps", "words", "seconds", "score"),
            *("best_score", "best_metric", "best_step", "skipped_updates", "grad_spikes", "rollbacks", "is_final"),
            *("error_type", "error_text"),
        )
    )
    reads = (
        *("words", "seconds", "counts", "score", "max_steps", "warmup_steps", "is_final", "error_type", "error_text"),
    )
    keeps = ("on_evaluate",)
    is_plain = True

    def __init__(self) -> None:
        super().__init__()
        self.memory = ScoresSoFar()

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        if event_name == "on_evaluate" and kwargs.get("score") is not None:
            self.memory.score = float(kwargs["score"])
            self.memory.best.offer(self.memory.score, kwargs["step"])
        best, counts = self.memory.best, kwargs.get("counts") or {}
        return {
            "step": kwargs["step"],
            "global_step": kwargs["step"],
            "epoch": number(kwargs.get("epoch")),
            "max_steps": number(kwargs.get("max_steps")),
            "warmup_steps": int(kwargs.get("warmup_steps") or 0),
            "words": number(kwargs.get("words")),
            "seconds": number(kwargs.get("seconds")),
            "score": self.memory.score,
            "best_score": best.value,
            "best_metric": best.value,
            "best_step": best.step,
            "skipped_updates": int(counts.get("skipped_updates", 0)),
            "grad_spikes": int(counts.get("grad_spikes", 0)),
            "rollbacks": int(counts.get("rollbacks", 0)),
            "is_final": bool(kwargs.get("is_final", False)),
            "error_type": kwargs.get("error_type"),
            "error_text": kwargs.get("error_text"),
        }


@dataclass
class ScoresSoFar:
    """The state of TrainingState. score: Of the newest evaluation."""

    best: BestValue = field(default_factory=BestValue)
    score: AnyNumber | None = None


@controller_metrics("PerProcessState")
class PerProcessState(Metric):
    """This process among several. Keys: `rank` and `world_size`; 0 and 1 for a single process."""

    events = tuple(EVENTS)
    keys = dict.fromkeys(("rank", "world_size"))
    reads = ("rank", "world_size")
    keeps = ()
    is_plain = True

    def compute(self, event_name: str, **kwargs: Any) -> Any:
        return {"rank": int(kwargs.get("rank") or 0), "world_size": int(kwargs.get("world_size") or 1)}


@controller_metrics("LearnRates")
class LearnRates(Metric):
    """The learning rate of each param group, by its name."""

    events = ("on_train_begin", "on_step_begin", "on_step_end", "on_evaluate", "on_log")
    reads = ("learn_rates",)
    is_plain = True

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys | None:
        return dict.fromkeys(groups) or None

    def compute(self, event_name: str, *, learn_rates: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        return {str(group): float(rate) for group, rate in learn_rates.items()} if learn_rates else None


@controller_metrics("GradNorm")
class GradNorm(Metric):
    """The norm of the gradients before clipping. Keys: `total`, `components` by name, and perhaps `groups` by name.

    groups (bool): Compute the norm of each param group too.
    """

    events = ("on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
    keys: ClassVar[Keys | None] = dict.fromkeys(("total", "components"))
    reads: ClassVar[Sequence[str] | None] = ("grad_norm", "grad_norms")
    is_plain = True

    def __init__(self, groups: bool = False) -> None:
        super().__init__()
        if SECTION.flag("groups", groups):
            self.keys = {**GradNorm.keys, "groups": None}  # type: ignore[misc, dict-item]
            self.reads = ("grad_norm", "grad_norms", "group_grad_norms")  # type: ignore[misc]
        self.memory = GradNormState()

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys:
        return _keys_of_norms(self.keys, groups, components)

    def compute(
        self,
        event_name: str,
        *,
        grad_norm: Any = None,
        grad_norms: Mapping[str, Any] | None = None,
        group_grad_norms: Callable[[], Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> Any:
        if group_grad_norms is not None and "groups" in (self.keys or {}):
            self.memory.groups = _floats(group_grad_norms())
        if grad_norm is None and not grad_norms:
            return None
        total = number(grad_norm)
        if total is None and grad_norms:
            total = math.hypot(*(float(norm) for norm in grad_norms.values()))
        self.memory.total = total
        if grad_norms:  # not all events of a step have it
            self.memory.components = _floats(grad_norms)
        groups = {"groups": self.memory.groups} if "groups" in (self.keys or {}) else {}
        return {"total": total, "components": self.memory.components, **groups}


@dataclass
class GradNormState:
    """The state of GradNorm: its value."""

    total: AnyNumber | None = None
    components: dict[str, AnyNumber] = field(default_factory=dict)
    groups: dict[str, AnyNumber] = field(default_factory=dict)


@controller_metrics("ParamNorm")
class ParamNorm(Metric):
    """The norm of the trained params after an update. Keys: `total`, `components` and `groups` by name. Takes a pass
    over all params in each step.
    """

    events = ("on_optimizer_step",)
    keys = dict.fromkeys(("total", "components", "groups"))
    reads: ClassVar[Sequence[str] | None] = ("param_norms",)
    is_plain = True

    def keys_in_run(self, groups: Collection[str], components: Collection[str]) -> Keys:
        return _keys_of_norms(self.keys, groups, components)

    def compute(
        self, event_name: str, *, param_norms: Callable[[], Mapping[str, Any]] | None = None, **kwargs: Any
    ) -> Any:
        if param_norms is None:
            return None
        norms = param_norms()
        return {"total": float(norms["total"]), **{key: _floats(norms[key]) for key in ("components", "groups")}}


@controller_metrics("UpdateRatio")
class UpdateRatio(ParamNorm):
    """How far an update moved the params: the norm of the difference, divided by the norm of the params after it. Keys:
    as `ParamNorm`. 0 if the update was skipped; no value for params that are all zero. Takes some passes over all
    params in each step, and memory for a copy of them.
    """

    reads = ("param_norms", "update_norms")

    def compute(
        self, event_name: str, *, update_norms: Callable[[], Mapping[str, Any] | None] | None = None, **kwargs: Any
    ) -> Any:
        updates = None if update_norms is None else update_norms()
        if updates is None or (norms := super().compute(event_name, **kwargs)) is None:
            return None
        ratios = {key: _ratios(_floats(updates[key]), norms[key]) for key in ("components", "groups")}
        return {**_ratios({"total": float(updates["total"])}, norms), **ratios}


def _floats(norms: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(norm) for name, norm in norms.items()}


def _ratios(updates: Mapping[str, float], norms: Mapping[str, float]) -> dict[str, float | None]:
    """Of params that were not in the update: 0."""
    names = [name for name in norms if isinstance(norms[name], float)]
    return {name: updates.get(name, 0.0) / norms[name] if norms[name] else None for name in names}


def _keys_of_norms(keys: Keys | None, groups: Collection[str], components: Collection[str]) -> Keys:
    known = {"components": components, "groups": groups}
    return {key: dict.fromkeys(known[key]) or None if key in known else None for key in keys or {}}
