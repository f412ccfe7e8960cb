"""Policies: what the rate of a param group is at each step.

A policy has a method `rate(step, base)`: the step is counted from 0, from when the group was registered, and `base` is the rate that
the group had then. It may also have
- `observe(metrics)`: called with the metrics that a step of the controller is given, before the rates of that step are asked for;
- `advance()`: called once after each step of the controller, however many groups share the policy;
- `state_dict()` and `load_state_dict(state)`, for JSON; and `check_state_dict(state)`, which raises what loading would.

`Cosine`, `Warmup` and `Adaptive` give rates in proportion to each group's base. The others give rates of their own.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, NoReturn, Protocol, Union

from ..errors import ConfigError
from ..scheduled_values import Schedule


class Policy(Protocol):
    """The least that a policy is. The smallest example is `Constant`."""

    def rate(self, step: int, base: float) -> float: ...


# What may be given for a policy. A float is a constant rate, a list or iterator one rate a step, a function one of the step.
PolicyLike = Union[str, float, list[float], Iterator[Any], Callable[[int], float], Policy]


class Constant:
    """One rate. value (float): At least 0."""

    def __init__(self, value: float):
        self.value = value

    def rate(self, step: int, base: float) -> float:
        return self.value


class Frozen:
    """Rate 0, and no updates: no moments are kept, and no weight decays."""

    def rate(self, step: int, base: float) -> float:
        return 0.0


class Cosine:
    """Rise from 0 to the base in a line, then fall along a cosine, once. For models that were trained before.

    total_steps (int): Step from which on the rate stays lowest, at least `warmup_steps`.
    warmup_steps (int): Steps before the fall begins.
    min_factor (float): The lowest rate, as a part of the base, 0 to 1.
    RAISES (ConfigError): An argument is out of its range.
    SOURCE: Loshchilov and Hutter 2016, https://arxiv.org/abs/1608.03983; as warmup_cosine in schedules/curves.py.
    """

    def __init__(self, total_steps: int = 10_000, warmup_steps: int = 0, min_factor: float = 0.0):
        _check_steps("cosine", "warmup_steps", warmup_steps)
        _check_steps("cosine", "total_steps", total_steps, at_least=max(1, warmup_steps))
        _check_number("cosine", "min_factor", min_factor, at_most=1.0)
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.min_factor = min_factor

    def rate(self, step: int, base: float) -> float:
        if step < self.warmup_steps:
            return base * step / self.warmup_steps
        if step >= self.total_steps:
            return base * self.min_factor
        done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return base * (self.min_factor + (1.0 - self.min_factor) * 0.5 * (1.0 + math.cos(math.pi * done)))


class Warmup:
    """Rise to the base in a line, then stay. For new params.

    steps (int): Step at which the base is reached.
    start_factor (float): The first rate, as a part of the base, 0 to 1.
    RAISES (ConfigError): An argument is out of its range.
    SOURCE: torch.optim.lr_scheduler.LinearLR.
    """

    def __init__(self, steps: int = 100, start_factor: float = 0.01):
        _check_steps("warmup", "steps", steps)
        _check_number("warmup", "start_factor", start_factor, at_most=1.0)
        self.steps = steps
        self.start_factor = start_factor

    def rate(self, step: int, base: float) -> float:
        if step >= self.steps:
            return base
        return base * (self.start_factor + (1.0 - self.start_factor) * step / self.steps)


class Adaptive:
    """Lower the rate when a metric no longer gets better.

    It counts the observations of the metric, not steps. Metrics without it are passed over.

    metric (str): Which one to watch.
    mode (str): Whether lower ("min") or higher ("max") is better.
    factor (float): What the rate is multiplied by, below 1.
    patience (int): So many observations in a row may be no better. The next one lowers the rate.
    threshold (float): By how much a better one is better: a part of the best so far ("rel"), or a difference ("abs").
    cooldown (int): So many observations after a reduction are not counted.
    min_factor (float): The lowest rate, as a part of the base, 0 to 1.
    eps (float): A reduction by no more than this is left out.
    RAISES (ConfigError): An argument is out of its range.
    SOURCE: torch.optim.lr_scheduler.ReduceLROnPlateau, whose min_lr is a rate.
    """

    def __init__(
        self,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_factor: float = 0.0,
        eps: float = 1e-8,
    ):
        _check_choice("adaptive", "mode", mode, ("min", "max"))
        _check_choice("adaptive", "threshold_mode", threshold_mode, ("rel", "abs"))
        _check_number("adaptive", "factor", factor, below=1.0)
        _check_number("adaptive", "threshold", threshold)
        _check_number("adaptive", "min_factor", min_factor, at_most=1.0)
        _check_number("adaptive", "eps", eps)
        _check_steps("adaptive", "patience", patience)
        _check_steps("adaptive", "cooldown", cooldown)
        self.metric = metric
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_factor = min_factor
        self.eps = eps
        self.best: float | None = None
        self.reductions = 0
        self._bad = 0
        self._cooling = 0
        self._rates: dict[float, float] = {}  # by base, until the next reduction

    def rate(self, step: int, base: float) -> float:
        if base not in self._rates:
            rate = base
            for _ in range(self.reductions):
                lower = max(rate * self.factor, base * self.min_factor)
                if rate - lower <= self.eps:
                    break
                rate = lower
            self._rates[base] = rate
        return self._rates[base]

    def observe(self, metrics: Mapping[str, Any]) -> None:
        if metrics.get(self.metric) is None:
            return
        try:
            value = float(metrics[self.metric])
        except (TypeError, ValueError):
            _refuse("adaptive", f"the metric '{self.metric}'", "a number", metrics[self.metric])
        if self._is_better(value):
            self.best = value
            self._bad = 0
        else:
            self._bad += 1
        if self._cooling:
            self._cooling -= 1
            self._bad = 0
        if self._bad > self.patience:
            self._bad = 0
            self._cooling = self.cooldown
            self.reductions += 1
            self._rates.clear()

    def _is_better(self, value: float) -> bool:
        sign = 1.0 if self.mode == "max" else -1.0
        if self.best is None:
            return sign * value > -math.inf
        if self.threshold_mode == "rel":
            return sign * value > sign * self.best * (1.0 + sign * self.threshold)
        return sign * value > sign * (self.best + sign * self.threshold)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "bad": self._bad, "cooling": self._cooling, "reductions": self.reductions}

    def check_state_dict(self, state: Any) -> None:
        counts = ("bad", "cooling", "reductions")
        if not isinstance(state, Mapping) or set(state) != {"best", *counts}:
            _refuse("adaptive", "the state to load", "one with 'best', 'bad', 'cooling' and 'reductions'", state)
        if state["best"] is not None:
            _check_number("adaptive", "the state to load: 'best'", state["best"], at_least=-math.inf)
        for name in counts:
            _check_steps("adaptive", f"the state to load: '{name}'", state[name])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        self.best, self._bad, self._cooling = state["best"], state["bad"], state["cooling"]
        self.reductions = state["reductions"]
        self._rates.clear()


class FromSchedule:
    """The rates of a schedule, one a step. It moves once a step of the controller, also if several groups share it.

    source (list | Iterator): Yields the rates. If it watches a score, it is told the metric of that name.
    name (str): What to call it in messages.
    metric (str): The score that it watches, if it does.
    RAISES (ScheduleError): It yields nothing, or no number.
    """

    def __init__(self, source: list[float] | Iterator[Any], name: str = "learn_rate", metric: str = "score"):
        self._schedule = Schedule(name, iter(source))
        self._is_due = False
        self.metric = metric

    @property
    def schedule(self) -> Schedule:
        """The schedule, at the step that comes. It moves no sooner than it must, so as not to warn of an end at the very last step."""
        if self._is_due:
            self._is_due = False
            self._schedule.step()
        return self._schedule

    def rate(self, step: int, base: float) -> float:
        return self.schedule.value

    def observe(self, metrics: Mapping[str, Any]) -> None:
        if metrics.get(self.metric) is not None:
            self.schedule.observe(float(metrics[self.metric]))

    def advance(self) -> None:
        self._is_due = True

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self._schedule.state_dict(), "is_due": self._is_due}

    def check_state_dict(self, state: Any) -> None:
        if not isinstance(state, Mapping) or set(state) != {"schedule", "is_due"}:
            _refuse(self._schedule.name, "the state to load", "one with 'schedule' and 'is_due'", state)
        self._schedule.check_state_dict(state["schedule"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        self._schedule.load_state_dict(state["schedule"])
        self._is_due = bool(state["is_due"])


class FromFunction:
    """Rates from a function of the step. function (Callable): step -> rate."""

    def __init__(self, function: Callable[[int], float]):
        self.function = function

    def rate(self, step: int, base: float) -> float:
        return self.function(step)


class Live:
    """The rate that somebody else keeps. read (Callable): The rate of this step."""

    def __init__(self, read: Callable[[], float]):
        self.read = read

    def rate(self, step: int, base: float) -> float:
        return self.read()


NAMED: dict[str, Callable[..., Policy]] = {"adaptive": Adaptive, "cosine": Cosine, "frozen": Frozen, "warmup": Warmup}


class PolicyReader:
    """Makes policies of what stands for them. An iterator that stands in several places is one policy."""

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
        settings (Mapping[str, Any]): Arguments of a policy that is given by its name.
        RAISES (ConfigError): As `read`; or a group has none, or a policy no group.
        """
        if not isinstance(value, Mapping):
            return [self.read(value, where, settings)] * len(groups)
        keys = [next((key for key in (i, group.get("name")) if key in value), None) for i, group in enumerate(groups)]
        if settings or None in keys or set(keys) != set(value):
            names = [group.get("name", i) for i, group in enumerate(groups)]
            raise ConfigError(
                f"Can't set the learn rate policies of '{where}': expected one for each of its groups {names}, and no further settings, "
                f"found {list(value)} and {sorted(settings)}."
            )
        return [self.read(value[key], f"{where}/{key}") for key in keys if key is not None]

    def read(self, value: PolicyLike, where: str, settings: Mapping[str, Any] = {}) -> Policy:
        """One policy.

        RAISES (ConfigError): There is no such policy, or no such setting, or a setting is out of its range.
        """
        if isinstance(value, str):
            return _named(value, where, settings)
        if settings:
            raise ConfigError(
                f"Can't set the learn rate policy of '{where}': expected settings with a policy given by its name, found "
                f"{sorted(settings)} with {value!r}. Give them to the policy itself."
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
            f"Can't set the learn rate policy of '{where}': expected the name of a policy, a policy, a number, a list of numbers, a "
            f"schedule or a function of the step, found {value!r}."
        )


def _named(name: str, where: str, settings: Mapping[str, Any]) -> Policy:
    if name not in NAMED:
        choices = ", ".join(f"'{choice}'" for choice in NAMED)
        raise ConfigError(
            f"Can't set the learn rate policy of '{where}': expected one of {choices}, found {name!r}. A number, a list, a schedule or a "
            "function of the step can be given as such."
        )
    known = [] if name == "frozen" else list(inspect.signature(NAMED[name]).parameters)
    if unknown := sorted(set(settings) - set(known)):
        raise ConfigError(f"Can't set the learn rate policy '{name}' of '{where}': expected settings among {known}, found {unknown}.")
    return NAMED[name](**settings)


def check_rate(value: Any, where: str) -> float:
    """Check a rate.

    value (Any): What a policy gives, or a group holds.
    where (str): The group, for messages.
    RETURNS (float): The rate.
    RAISES (ConfigError): It is not a number, or negative, or not finite.
    """
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0.0 <= rate < math.inf:
        raise ConfigError(f"Can't set the learn rate of '{where}': expected a finite number of at least 0, found {value!r}.")
    return rate


def _refuse(policy: str, name: str, expected: str, found: Any) -> NoReturn:
    raise ConfigError(f"Can't use the learn rate policy '{policy}': expected {name} to be {expected}, found {found!r}.")


def _check_number(policy: str, name: str, value: Any, *, at_least: float = 0.0, at_most: float = math.inf, below: float = math.inf) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    if not (is_number and at_least <= value <= at_most and value < below):
        high = f" and below {below:g}" if below < math.inf else f" and at most {at_most:g}" if at_most < math.inf else ""
        _refuse(policy, f"'{name}'", f"a finite number of at least {at_least:g}{high}", value)


def _check_steps(policy: str, name: str, value: Any, *, at_least: int = 0) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        _refuse(policy, f"'{name}'", f"a whole number of at least {at_least}", value)


def _check_choice(policy: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        _refuse(policy, f"'{name}'", " or ".join(f"'{choice}'" for choice in choices), value)
