"""Policies: the learning rate of a param group at each step.

A policy has a method `rate(step, base)`: the step is counted from 0 since the group was registered, and `base` is the
rate that the group had then. It may also have
- `observe(metrics)`: called with the metrics of a step of the controller, before the rates of that step are computed;
- `is_warming_up(step)`: whether metrics are ignored at a step: `observe` is not called then;
- `advance()`: called once after each step of the controller, however many groups share the policy;
- `state_dict()` and `load_state_dict(state)`, for JSON; and `check_state_dict(state)`, which raises the same errors;
- `source`: another policy, which is called and saved in its place, once however many policies share it;
- `kind`: its name in saved states, if that is not its class.

`Cosine`, `Warmup`, `Adaptive` and `Frozen` multiply the base by a factor; `Constant`, `FromSchedule` and `FromFunction`
have rates of their own. by_name.py has policies by name, also between two rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Union

from ...core.checks import Section
from ...core.errors import ConfigError, ScheduleError
from ...core.rates import NEW_PARAMS_FACTOR, GroupRecord, RateScale
from ...core.schedules import Mode, PlateauSchedule, Schedule, ThresholdMode, cosine_at, lowered, try_to_load
from ...core.schema import read

# Adaptive caches the rates of this many bases.
_MAX_BASES = 100


class Policy(Protocol):
    """The interface of a policy. The smallest example is `Constant`."""

    def rate(self, step: int, base: float) -> float: ...


# Specifications of a policy. A float is a constant rate, a list or iterator one rate a step, a function one of the
# step.
PolicyLike = Union[str, float, list[float], Iterator[Any], Callable[[int], float], Policy]


class Frozen:
    """Rate 0 and no updates: no moments, and no weight decay."""

    def rate(self, step: int, base: float) -> float:
        return 0.0


class Cosine:
    """Rise linearly from 0 to the base, then fall along a cosine, once. For pretrained models.

    total_steps (int): The first step at the lowest rate, at least `warmup_steps`.
    warmup_steps (int): Steps before the fall.
    min_factor (float): The lowest rate, as a fraction of the base, 0 to 1.
    RAISES (ConfigError): An argument is out of its range.
    SOURCE: warmup_cosine in core/schedules/curves.py.
    """

    def __init__(self, total_steps: int = 10_000, warmup_steps: int = 0, min_factor: float = 0.0):
        check = policy_section("cosine")
        self.warmup_steps = check.whole("warmup_steps", warmup_steps)
        self.total_steps = check.whole("total_steps", total_steps, at_least=max(1, warmup_steps))
        self.min_factor = check.number("min_factor", min_factor, at_most=1.0)

    def rate(self, step: int, base: float) -> float:
        if step < self.warmup_steps:
            return cosine_at(step, base, self.warmup_steps, self.total_steps)
        return base * cosine_at(step, 1.0, self.warmup_steps, self.total_steps, self.min_factor)


class Adaptive:
    """Lower the rate when a metric stops improving.

    It counts observations of the metric, not steps. Metrics without it are ignored.

    metric (str): The metric to watch.
    mode (str): Whether lower ("min") or higher ("max") is better.
    factor (float): Multiplies the rate, below 1.
    patience (int): Observations in a row without improvement before the next one lowers the rate.
    threshold (float): The smallest improvement that counts: a fraction of the best value ("rel"), or a difference
        ("abs").
    cooldown (int): Observations after a reduction that don't count.
    min_factor (float): The lowest rate, as a fraction of the base, 0 to 1.
    eps (float): The rate is not lowered by less than this.
    RAISES (ConfigError): An argument is out of its range.
    SOURCE: plateau in core/schedules/plateau.py; torch.optim.lr_scheduler.ReduceLROnPlateau, whose min_lr is a rate.
    """

    def __init__(
        self,
        metric: str = "loss",
        mode: Mode = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: ThresholdMode = "rel",
        cooldown: int = 0,
        min_factor: float = 0.0,
        eps: float = 1e-8,
    ):
        check = policy_section("adaptive")
        self.metric = check.kind("metric", metric, str, "a name")
        self.factor = check.number("factor", factor, below=1.0)
        self.min_factor = check.number("min_factor", min_factor, at_most=1.0)
        self.eps = check.number("eps", eps)
        # It counts reductions: their effect on a rate depends on its base.
        self._plateau = PlateauSchedule(
            0.0,
            lambda reductions: reductions + 1,
            check,
            mode=mode,
            patience=patience,
            threshold=threshold,
            threshold_mode=threshold_mode,
            cooldown=cooldown,
            metric=metric,
        )
        self._rates: dict[float, float] = {}  # by base, until the next reduction

    @property
    def reductions(self) -> int:
        return self._plateau.reductions

    def rate(self, step: int, base: float) -> float:
        if base not in self._rates:
            if len(self._rates) == _MAX_BASES:
                self._rates.clear()  # bases that move
            rate = base
            for _ in range(self.reductions):
                rate = lowered(rate, factor=self.factor, lowest=base * self.min_factor, eps=self.eps)
            self._rates[base] = rate
        return self._rates[base]

    def observe(self, metrics: Mapping[str, Any]) -> None:
        found = metrics.get(self.metric)
        if found is None:
            return
        try:
            value = float(found)
        except (TypeError, ValueError):
            raise ConfigError(
                f"Can't use the learn rate policy 'adaptive': expected the metric '{self.metric}' to be a number, "
                f"found {found!r}."
            ) from None
        self._plateau.observe(value)
        self._rates.clear()

    def state_dict(self) -> dict[str, Any]:
        return self._plateau.state_dict()

    def check_state_dict(self, state: Any) -> None:
        try_to_load(self._plateau, state)

    def load_state_dict(self, state: Any) -> None:
        self._plateau.load_state_dict(state)
        self._rates.clear()


class Constant:
    """One rate. value (float): At least 0."""

    def __init__(self, value: float):
        self.value = value

    def rate(self, step: int, base: float) -> float:
        return self.value


class FromFunction:
    """Rates from a function of the step. function (Callable): step -> rate."""

    def __init__(self, function: Callable[[int], float]):
        self.function = function

    def rate(self, step: int, base: float) -> float:
        return self.function(step)


class FromSchedule:
    """The rates of a schedule, one a step. It moves once a step of the controller, even if several groups share it.

    source (list | Iterator): Yields the rates. If it watches a score, it gets the metric of that name.
    name (str): Its name in messages.
    metric (str | None): The score that it watches. None: the source's own, or "score".
    RAISES (ScheduleError): It yields nothing, or something else than numbers, or lacks `total_steps`.
    """

    def __init__(self, source: list[float] | Iterator[Any], name: str = "learn_rate", metric: str | None = None):
        self._schedule = Schedule(name, iter(source))
        if self._schedule.spans_training and self._schedule.total_steps is None:
            raise ScheduleError(
                f"Can't use the schedule of '{name}' as a policy without total_steps: a controller of learning rates "
                "does not know when the training ends. Set it."
            )
        self._is_due = False
        self._metric = metric

    @property
    def schedule(self) -> Schedule:
        """The schedule, at the next step. It moves as late as possible, to give no warning of its end at the very last
        step.
        """
        if self._is_due:
            self._is_due = False
            self._schedule.step()
        return self._schedule

    def rate(self, step: int, base: float) -> float:
        return self.schedule.value

    @property
    def metric(self) -> str:
        return self._metric or self._schedule.metric

    def observe(self, metrics: Mapping[str, Any]) -> None:
        if metrics.get(self.metric) is not None:
            self.schedule.observe({self._schedule.metric: metrics[self.metric]})

    def advance(self) -> None:
        self._is_due = True

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self._schedule.state_dict(), "is_due": self._is_due}

    def check_state_dict(self, state: Any) -> None:
        self._schedule.check_state_dict(self._read(state).schedule)

    def load_state_dict(self, state: Any) -> None:
        found = self._read(state)
        self._schedule.load_state_dict(found.schedule)
        self._is_due = found.is_due

    def _read(self, state: Any) -> FromScheduleState:
        return read(FromScheduleState, state, f"the state of the schedule of '{self._schedule.name}'")


@dataclass
class FromScheduleState:
    """The saved form of `FromSchedule`. is_due (bool): The schedule has yet to move."""

    schedule: dict[str, Any]
    is_due: bool


class PolicyRate:
    """A `RateSource` by a policy.

    policy (Policy): Gives the rates.
    base (float): The group's rate when it was registered.
    start (int): The writer's step when it was registered.
    parent (GroupRecord | None): For params added in mid-training: the base is then a tenth of the parent's rate.
    """

    def __init__(self, policy: Policy, base: float, start: int, parent: GroupRecord | None = None):
        self.policy = policy
        self.base = base
        self.start = start
        self.parent = parent
        self.scale = RateScale()

    @property
    def is_frozen(self) -> bool:
        """Whether the group must not be updated at all."""
        return isinstance(self.policy, Frozen) and self.scale.held is None

    def rate_at(self, step: int) -> float:
        base = self.base if self.parent is None else NEW_PARAMS_FACTOR * self.parent.rate_at(step)
        return self.policy.rate(step - self.start, base)

    def heeds_metrics(self, step: int) -> bool:
        """Whether its policy uses metrics at this step: not while it warms up. step (int): The writer's."""
        return not hasattr(self.policy, "is_warming_up") or not self.policy.is_warming_up(step - self.start)

    @property
    def kind(self) -> str:
        """The name of the policy in saved states."""
        return getattr(self.policy, "kind", type(self.policy).__name__)

    @property
    def keeper(self) -> Any:
        """The object with a state: the policy, or its source, which other groups may share. None: neither has one."""
        source = source_of(self.policy)
        return source if hasattr(source, "state_dict") else None


def policy_rate_of(record: GroupRecord) -> PolicyRate:
    """The source of the rates of a group with a policy."""
    assert isinstance(record.source, PolicyRate)
    return record.source


def source_of(policy: Policy) -> Any:
    """The object that gets metrics, moves on, and has a state: the policy, or its source."""
    return getattr(policy, "source", policy)


def policy_section(name: str) -> Section:
    """Checks the settings of a policy. name (str): Its name."""
    return Section(f"the learn rate policy '{name}'", allows_texts=False)
