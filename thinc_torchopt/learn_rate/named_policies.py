"""Policies by name, with settings that are rates: what [training.optimizer.param_groups] and `register_optimizer` take.

    policy = "cosine"       falls from `max_rate` to `min_rate` along a cosine, in `total_steps`
    policy = "warmup"       rises to `max_rate`, and stays
    policy = "adaptive"     `max_rate`, lowered when a metric no longer gets better, to `min_rate` at least
    policy = "frozen"       0

The first three begin with a warm-up of `warmup_steps`, from `warmup_factor` times `max_rate`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

from ..errors import ConfigError
from .proportional import Adaptive, Cosine, Frozen, Warmup, check_choice, check_number, check_steps

WarmupType = Literal["linear", "cosine"]
ByName = Union["InRates", Adaptive, Cosine, Frozen, Warmup]

NAMED: dict[str, Callable[..., ByName]] = {"adaptive": Adaptive, "cosine": Cosine, "frozen": Frozen, "warmup": Warmup}

# Settings of `InRates`. Where one of these is given by name, the others have the defaults that they have there.
RATE_SETTINGS = ("min_rate", "max_rate", "warmup_steps", "warmup_factor", "warmup_type")
# Who has them in parts of the base instead.
_IN_PARTS = {"cosine": ("warmup_steps", "min_factor"), "warmup": ("steps", "start_factor"), "adaptive": ("min_factor",)}
_WARMUP_STEPS = {"cosine": 0, "warmup": 100, "adaptive": 0}


class InRates:
    """A policy between two rates, after a warm-up.

    name (str): "cosine", "warmup" or "adaptive".
    min_rate (float): The lowest rate; that of a group with a lower base is its base.
    max_rate (float | None): The highest rate. None: the base.
    warmup_steps (int): Steps of the rise. Default: 100 for "warmup", else 0.
    warmup_factor (float): The first rate of the rise, as a part of the highest, 0 to 1.
    warmup_type ("linear" | "cosine"): The curve of the rise.
    settings (Any): Those of the class of this name that are no rates, e.g. `total_steps` of Cosine, `metric` of Adaptive.
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
        warmup_type: WarmupType = "linear",
        **settings: Any,
    ):
        self.warmup_steps: int = _WARMUP_STEPS[name] if warmup_steps is None else warmup_steps
        check_number(name, "min_rate", min_rate, below=math.inf)
        if max_rate is not None:
            check_number(name, "max_rate", max_rate, at_least=min_rate, below=math.inf)
        check_steps(name, "warmup_steps", self.warmup_steps)
        check_number(name, "warmup_factor", warmup_factor, at_most=1.0)
        check_choice(name, "warmup_type", warmup_type, ("linear", "cosine"))
        self.name = name
        self.min_rate = min_rate
        self.max_rate = max_rate
        self.warmup_factor = warmup_factor
        self.warmup_type = warmup_type
        self.policy: Adaptive | Cosine | Warmup
        if name == "cosine":
            self.policy = Cosine(warmup_steps=self.warmup_steps, **settings)
        else:
            self.policy = Warmup(0) if name == "warmup" else Adaptive(**settings)

    def rate(self, step: int, base: float) -> float:
        high = base if self.max_rate is None else self.max_rate
        low = min(self.min_rate, high)
        if step < self.warmup_steps:
            done = step / self.warmup_steps
            if self.warmup_type == "cosine":
                done = 0.5 * (1.0 - math.cos(math.pi * done))
            return max(low, high * (self.warmup_factor + (1.0 - self.warmup_factor) * done))
        if isinstance(self.policy, Cosine):
            return low + self.policy.rate(step, high - low)
        return max(low, self.policy.rate(step, high))


class InRatesByMetrics(InRates):
    """The same, of a policy that goes by metrics."""

    policy: Adaptive

    def observe(self, metrics: Mapping[str, Any]) -> None:
        self.policy.observe(metrics)

    def state_dict(self) -> dict[str, Any]:
        return self.policy.state_dict()

    def check_state_dict(self, state: Any) -> None:
        self.policy.check_state_dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state)


@dataclass(frozen=True)
class NamedPolicy:
    """A policy that is still to be built, by its name.

    name (str): Of the policy.
    settings (tuple): Its settings, in pairs of name and value.
    where (str): The config path, for messages.
    RAISES (ConfigError): There is no such policy, or a setting is out of its range.
    """

    name: str
    settings: tuple[tuple[str, Any], ...]
    where: str

    def __post_init__(self) -> None:
        check_name(self.name, self.where)
        try:
            self.build()
        except ConfigError as error:
            raise ConfigError(f"Can't read 'policy' in {self.where}. {error}") from None

    def build(self) -> ByName:
        """The policy, at its beginning."""
        return in_rates(self.name, dict(self.settings))


def settings_of(name: str) -> list[str]:
    """All settings, in rates, that a policy has by its name."""
    if name == "frozen":
        return []
    return [*(setting for setting in _own_settings(name) if setting not in _IN_PARTS[name]), *RATE_SETTINGS]


def in_rates(name: str, settings: Mapping[str, Any]) -> ByName:
    """A policy by name, with settings that are rates.

    RAISES (ConfigError): A setting is out of its range.
    """
    if name == "frozen":
        return Frozen()
    return (InRatesByMetrics if name == "adaptive" else InRates)(name, **settings)


def named(name: str, where: str, settings: Mapping[str, Any]) -> ByName:
    """A policy by name, with settings that are rates, or parts of the base as its class has them.

    where (str): What it is for, for messages.
    RAISES (ConfigError): There is no such policy, or no such setting, or one is out of its range, or they are of both kinds.
    """
    check_name(name, where)
    known = [] if name == "frozen" else _own_settings(name)
    given_rates = set(settings) & set(settings_of(name)) - set(known)
    if unknown := sorted(set(settings) - (set(settings_of(name)) if given_rates else set(known))):
        more = [setting for setting in settings_of(name) if setting not in known]
        raise ConfigError(
            f"Can't set the learn rate policy '{name}' of '{where}': expected settings among "
            f"{settings_of(name) if given_rates else known}, found {unknown}."
            + (f" Settings that are learn rates instead of factors: {more}." if more and not given_rates else "")
        )
    return in_rates(name, settings) if given_rates else NAMED[name](**settings)


def check_name(name: Any, where: str, choices: Collection[str] = tuple(NAMED)) -> None:
    """RAISES (ConfigError): There is no policy of that name."""
    if not isinstance(name, str) or name not in choices:
        raise ConfigError(
            f"Can't set the learn rate policy of '{where}': expected one of {', '.join(map(repr, choices))}, found {name!r}. A number, a "
            "list, a schedule or a function of the step can be given as such."
        )


def _own_settings(name: str) -> list[str]:
    return list(inspect.signature(NAMED[name]).parameters)
