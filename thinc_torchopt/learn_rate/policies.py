"""Policies: the learning rate of a param group at each step.

A policy has a method `rate(step, base)`: the step is counted from 0, from when the group was registered, and `base` is the rate that
the group had then. It may also have
- `observe(metrics)`: called with the metrics that a step of the controller is given, before the rates of that step are asked for;
- `advance()`: called once after each step of the controller, however many groups share the policy;
- `state_dict()` and `load_state_dict(state)`, for JSON; and `check_state_dict(state)`, which raises what loading would.

`Cosine`, `Warmup` and `Adaptive`, in proportional.py, give rates in proportion to each group's base; named_policies.py has what can be
given by name. The others give rates of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol, Union

from ..errors import ConfigError
from ..schedules import Schedule
from .named_policies import named
from .proportional import Adaptive as Adaptive
from .proportional import Cosine as Cosine
from .proportional import Frozen as Frozen
from .proportional import Warmup as Warmup
from .proportional import refuse


class Policy(Protocol):
    """The interface of a policy. The smallest example is `Constant`."""

    def rate(self, step: int, base: float) -> float: ...


# What may be given for a policy. A float is a constant rate, a list or iterator one rate a step, a function one of the step.
PolicyLike = Union[str, float, list[float], Iterator[Any], Callable[[int], float], Policy]


class Constant:
    """One rate. value (float): At least 0."""

    def __init__(self, value: float):
        self.value = value

    def rate(self, step: int, base: float) -> float:
        return self.value


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
            refuse(self._schedule.name, "the state to load", "one with 'schedule' and 'is_due'", state)
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
    """A rate that is kept elsewhere. read (Callable): The rate of this step."""

    def __init__(self, read: Callable[[], float]):
        self.read = read

    def rate(self, step: int, base: float) -> float:
        return self.read()


class LiveByMetrics(Live):
    """The same, made of what a policy gives that goes by metrics: several groups may have theirs from one.

    source (Policy): Is told the metrics, once however many groups there are, and saved with each.
    """

    def __init__(self, read: Callable[[], float], source: Any):
        super().__init__(read)
        self.source = source

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.source.state_dict()
        return state

    def check_state_dict(self, state: Any) -> None:
        self.source.check_state_dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.source.load_state_dict(state)


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
            return named(value, where, settings)
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
