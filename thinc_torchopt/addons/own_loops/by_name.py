"""Ways to specify a policy in `register_optimizer`: a name, a rate, several rates, a schedule, a function.

    "cosine"       falls from `max_rate` to `min_rate` along a cosine, in `total_steps`
    "warmup"       rises to `max_rate`, and stays
    "adaptive"     `max_rate`, lowered when a metric stops improving, to `min_rate` at least
    "frozen"       0

The first three begin with a warm-up of `warmup_steps`, from `warmup_factor` times `max_rate`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, Union

from ...core.errors import ConfigError
from ...core.near_misses import did_you_mean
from ...core.rates import Warmup, check_rate
from ...core.schedules import cosine_at
from .policies import Adaptive, Constant, Cosine, FromFunction, FromSchedule, Frozen, Policy, PolicyLike, policy_section

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
