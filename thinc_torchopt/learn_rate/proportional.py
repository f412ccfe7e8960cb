"""Policies that give rates in proportion to each group's base: see policies.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, NoReturn

from ..errors import ConfigError

# Adaptive remembers the rates of so many bases.
_MAX_BASES = 100


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
        check_steps("cosine", "warmup_steps", warmup_steps)
        check_steps("cosine", "total_steps", total_steps, at_least=max(1, warmup_steps))
        check_number("cosine", "min_factor", min_factor, at_most=1.0)
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
        check_steps("warmup", "steps", steps)
        check_number("warmup", "start_factor", start_factor, at_most=1.0)
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
        if not isinstance(metric, str):
            refuse("adaptive", "'metric'", "a name", metric)
        check_choice("adaptive", "mode", mode, ("min", "max"))
        check_choice("adaptive", "threshold_mode", threshold_mode, ("rel", "abs"))
        check_number("adaptive", "factor", factor, below=1.0)
        check_number("adaptive", "threshold", threshold)
        check_number("adaptive", "min_factor", min_factor, at_most=1.0)
        check_number("adaptive", "eps", eps)
        check_steps("adaptive", "patience", patience)
        check_steps("adaptive", "cooldown", cooldown)
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
            if len(self._rates) == _MAX_BASES:
                self._rates.clear()  # bases that move
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
            refuse("adaptive", f"the metric '{self.metric}'", "a number", metrics[self.metric])
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
            refuse("adaptive", "the state to load", "one with 'best', 'bad', 'cooling' and 'reductions'", state)
        if state["best"] is not None:
            check_number("adaptive", "the state to load: 'best'", state["best"], at_least=-math.inf)
        for name in counts:
            check_steps("adaptive", f"the state to load: '{name}'", state[name])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state_dict(state)
        self.best, self._bad, self._cooling = state["best"], state["bad"], state["cooling"]
        self.reductions = state["reductions"]
        self._rates.clear()


def refuse(policy: str, name: str, expected: str, found: Any) -> NoReturn:
    raise ConfigError(f"Can't use the learn rate policy '{policy}': expected {name} to be {expected}, found {found!r}.")


def check_number(policy: str, name: str, value: Any, *, at_least: float = 0.0, at_most: float = math.inf, below: float = math.inf) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    if not (is_number and at_least <= value <= at_most and value < below):
        high = f" and below {below:g}" if below < math.inf else f" and at most {at_most:g}" if at_most < math.inf else ""
        refuse(policy, f"'{name}'", f"a finite number of at least {at_least:g}{high}", value)


def check_steps(policy: str, name: str, value: Any, *, at_least: int = 0) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        refuse(policy, f"'{name}'", f"a whole number of at least {at_least}", value)


def check_choice(policy: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        refuse(policy, f"'{name}'", " or ".join(f"'{choice}'" for choice in choices), value)
