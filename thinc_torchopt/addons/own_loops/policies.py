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
have rates of their own. Policies by name may also be between two rates: `InRates`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, Protocol, Union

from ...core.checks import Section
from ...core.errors import ConfigError, ScheduleError
from ...core.near_misses import did_you_mean
from ...core.rates import NEW_PARAMS_FACTOR, GroupRecord, RateScale, Warmup, check_rate
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


ByName = Union["InRates", Adaptive, Cosine, Frozen, Warmup]

NAMED: dict[str, Callable[..., ByName]] = {"adaptive": Adaptive, "cosine": Cosine, "frozen": Frozen, "warmup": Warmup}

# Settings of `InRates`. If one of these is given with a name, the others have their defaults there.
RATE_SETTINGS = ("min_rate", "max_rate", "warmup_steps", "warmup_factor", "warmup_type")
# Policies that have them as fractions of the base.
_IN_PARTS = {"cosine": ("warmup_steps", "min_factor"), "warmup": ("steps", "start_factor"), "adaptive": ("min_factor",)}


class InRates:
    """A policy between two rates, after a warm-up.

    name (str): "cosine", "warmup" or "adaptive".
    min_rate (float): The lowest rate; that of a group with a lower base is its base.
    max_rate (float | None): The highest rate. None: the base.
    warmup_steps (int): Steps of the rise. Default: 100 for "warmup", else 0.
    warmup_factor (float): The first rate of the rise, as a fraction of the highest, 0 to 1.
    warmup_type ("linear" | "cosine"): The curve of the rise.
    settings (Any): Settings of the class of this name that are not rates, e.g. `total_steps` of Cosine, `metric` of
        Adaptive.
    RAISES (ConfigError): An argument is out of its range.
    """

    def __init__(
        self,
        name: str,
        *,
        min_rate: float = 1e-6,
        max_rate: float | None = None,
        warmup_steps: int | None = None,
        warmup_factor: float = 0.1,
        warmup_type: Literal["linear", "cosine"] = "linear",
        **settings: Any,
    ):
        check = policy_section(name)
        if warmup_steps is None:
            warmup_steps = 100 if name == "warmup" else 0
        self.min_rate = check.number("min_rate", min_rate)
        self.max_rate = None if max_rate is None else check.number("max_rate", max_rate, at_least=self.min_rate)
        self.warmup_steps = check.whole("warmup_steps", warmup_steps)
        self.warmup_factor = check.number("warmup_factor", warmup_factor, at_most=1.0)
        self.warmup_type = check.choice("warmup_type", warmup_type, ("linear", "cosine"))
        self._cosine = Cosine(warmup_steps=self.warmup_steps, **settings) if name == "cosine" else None
        self.kind = "InRates"
        if name == "adaptive":
            self.kind = "InRatesByMetrics"
            self.source = Adaptive(**settings)

    def is_warming_up(self, step: int) -> bool:
        return step < self.warmup_steps

    def rate(self, step: int, base: float) -> float:
        high = base if self.max_rate is None else self.max_rate
        low = min(self.min_rate, high)
        if self.kind == "InRatesByMetrics":
            high = max(low, self.source.rate(step, high))
        if self.is_warming_up(step):
            done = step / self.warmup_steps
            if self.warmup_type == "cosine":
                done = 0.5 * (1.0 - math.cos(math.pi * done))
            return max(low, high * (self.warmup_factor + (1.0 - self.warmup_factor) * done))
        if self._cosine is not None:
            return cosine_at(step, high, self.warmup_steps, self._cosine.total_steps, low)
        return high


class PolicyReader:
    """Reads specifications of policies. An iterator that is used in several places is one policy."""

    def __init__(self) -> None:
        self._by_iterator: dict[int, Policy] = {}

    def read_all(
        self,
        value: PolicyLike | Mapping[int | str, PolicyLike],
        where: str,
        groups: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any],
    ) -> list[Policy]:
        """The policies of an optimizer's param groups.

        value (PolicyLike | Mapping): One for all, or one for each, by the group's index or its own "name".
        where (str): The optimizer, for messages.
        settings (Mapping[str, Any]): Settings of a policy given by its name.
        RAISES (ConfigError): As `read`; or a group without a policy, or a policy without a group.
        """
        if not isinstance(value, Mapping):
            return [self.read(value, where, settings)] * len(groups)
        keys = [next((key for key in (i, group.get("name")) if key in value), None) for i, group in enumerate(groups)]
        if settings or None in keys or set(keys) != set(value):
            names = [group.get("name", i) for i, group in enumerate(groups)]
            raise ConfigError(
                f"Can't set the learn rate policies of '{where}': expected one for each of its groups {names}, and no "
                f"further settings, found {list(value)} and {sorted(settings)}."
            )
        return [self.read(value[key], f"{where}/{key}") for key in keys if key is not None]

    def read(self, value: PolicyLike, where: str, settings: Mapping[str, Any] = {}) -> Policy:
        """One policy.

        RAISES (ConfigError): An unknown policy or setting, or a setting is out of its range.
        """
        if isinstance(value, str):
            return _by_name(value, where, settings)
        if settings:
            raise ConfigError(
                f"Can't set the learn rate policy of '{where}': expected settings with a policy given by its name, "
                f"found {sorted(settings)} with {value!r}. Give them to the policy itself."
            )
        if isinstance(value, Iterator):
            if id(value) not in self._by_iterator:
                self._by_iterator[id(value)] = FromSchedule(value, name=where)
            return self._by_iterator[id(value)]
        if isinstance(value, list):
            return FromSchedule(value, name=where)
        if isinstance(value, Real) and not isinstance(value, bool):
            return Constant(check_rate(value, where))
        if not isinstance(value, type) and hasattr(value, "rate"):
            return value
        if not isinstance(value, type) and callable(value):
            return FromFunction(value)
        raise ConfigError(
            f"Can't set the learn rate policy of '{where}': expected the name of a policy, a policy, a number, a list "
            f"of numbers, a schedule or a function of the step, found {value!r}."
        )


def settings_of(name: str) -> list[str]:
    """All settings, in rates, of a policy given by its name."""
    if name == "frozen":
        return []
    return [*(setting for setting in _own_settings(name) if setting not in _IN_PARTS[name]), *RATE_SETTINGS]


def _by_name(name: str, where: str, settings: Mapping[str, Any]) -> ByName:
    """A policy by name, with settings that are rates, or fractions of the base as in its class.

    where (str): Its group or optimizer, for messages.
    RAISES (ConfigError): An unknown policy or setting, settings of both kinds, or one out of its range.
    """
    _check_name(name, where)
    own, in_rates = _own_settings(name), settings_of(name)
    are_rates = bool(set(settings) & set(in_rates) - set(own))
    if unknown := sorted(set(settings) - set(in_rates if are_rates else own)):
        more = [] if are_rates else [setting for setting in in_rates if setting not in own]
        raise ConfigError(
            f"Can't set the learn rate policy '{name}' of '{where}': expected settings among "
            f"{in_rates if are_rates else own}, found "
            f"{unknown}."
            + (f" Settings that are learn rates instead of factors: {more}." if more else "")
            + did_you_mean(unknown[0], [*own, *in_rates], is_setting=True)
        )
    return InRates(name, **settings) if are_rates else NAMED[name](**settings)


def _check_name(name: Any, where: str) -> None:
    """RAISES (ConfigError): An unknown policy."""
    if not isinstance(name, str) or name not in NAMED:
        raise ConfigError(
            f"Can't set the learn rate policy of '{where}': expected one of {', '.join(map(repr, NAMED))}, found "
            f"{name!r}.{did_you_mean(name, NAMED)} A number, a list, a schedule or a function of the step can be given "
            "as such."
        )


def _own_settings(name: str) -> list[str]:
    return [] if name == "frozen" else list(inspect.signature(NAMED[name]).parameters)
