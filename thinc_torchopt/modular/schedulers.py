"""declearn's schedulers: values of a learning rate or a weight decay that move with the step, or with the round of
federated training. They are given as a name and settings: ["exponential-decay", {"base": 0.1, "rate": 0.9}].

With `step_level = false` the value moves with the round: the one that `start_round` began last, counted from 0, and 0
before the first. All steps of a round have the value of this round.

SOURCE: declearn 2.9, declearn/optimizer/schedulers. docs/modular.md lists where we differ.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..checks import Section
from ..errors import ConfigKeyError
from ..near_misses import did_you_mean
from ..schedules import Schedule
from ..schema import Count, read, write
from .specs import check_arguments


class At(NamedTuple):
    """A moment of the training.

    round (int): -1 before the first. warmup_rounds (int): Rounds that began while `warmup` warmed up. warmup_steps
    (int): Steps while `warmup-rounds` did.
    """

    step: int
    round: int
    warmup_rounds: int = 0
    warmup_steps: int = 0

    def unit(self, step_level: bool) -> int:
        return self.step if step_level else max(self.round, 0)


@dataclass(frozen=True)
class Curve:
    """A scheduler with its settings, checked. `base` may be another one."""

    name: str
    settings: Mapping[str, Any]

    def __call__(self, at: At) -> float:
        return SCHEDULERS[self.name](at, **self.settings)

    @property
    def base(self) -> float:
        base: Any = self.settings["base"]
        return base.base if isinstance(base, Curve) else float(base)

    def get_config(self) -> list[Any]:
        base = self.settings["base"]
        return [self.name, {**self.settings, "base": base.get_config() if isinstance(base, Curve) else base}]


def cosine_annealing(at: At, *, base: float, max_lr: float, duration: int, step_level: bool = True) -> float:
    unit = min(at.unit(step_level), duration)
    return base + 0.5 * (max_lr - base) * (1.0 + math.cos(math.pi * unit / duration))


def cosine_annealing_warm_restarts(
    at: At, *, base: float, max_lr: float, period: int, t_mult: float = 1.0, step_level: bool = True
) -> float:
    cycle, unit = divmod(at.unit(step_level), period)
    return cosine_annealing(At(unit, 0), base=base, max_lr=max_lr * t_mult**cycle, duration=period)


def cyclic_triangular(at: At, *, base: float, max_lr: float, stepsize: int, decay: bool = False) -> float:
    cycle, unit = divmod(at.step, 2 * stepsize)
    part = 1.0 - abs(unit / stepsize - 1.0)
    return base + (max_lr - base) * (part / 2**cycle if decay else part)


def cyclic_exp_range(at: At, *, base: float, max_lr: float, stepsize: int, decay: float) -> float:
    return cyclic_triangular(At(at.step % (2 * stepsize), 0), base=base, max_lr=max_lr, stepsize=stepsize) * (
        decay**at.step
    )


def exponential_decay(at: At, *, base: float, rate: float, step_level: bool = True) -> float:
    return base * rate ** at.unit(step_level)


def inverse_scaling(at: At, *, base: float, rate: float, step_level: bool = True) -> float:
    return base / (at.unit(step_level) + 1) ** rate


def linear_decay(at: At, *, base: float, rate: float, step_level: bool = True) -> float:
    return base * max(1.0 - rate * at.unit(step_level), 0.0)


def piecewise_decay(at: At, *, base: float, rate: float, step_size: int, step_level: bool = True) -> float:
    return base * rate ** (at.unit(step_level) // step_size)


def polynomial_decay(at: At, *, base: float, power: float, limit: int, step_level: bool = True) -> float:
    return base * (1.0 - min(at.unit(step_level) / limit, 1.0)) ** power


def warmup(at: At, *, base: float | Curve, warmup: int) -> float:
    """base (float | Curve): The value after the warm-up, or what follows."""
    if at.step >= warmup:
        later = At(at.step - warmup, at.round + 1 - at.warmup_rounds)
        return base(later) if isinstance(base, Curve) else base
    return (base.base if isinstance(base, Curve) else base) * (at.step + 1) / warmup


def warmup_rounds(at: At, *, base: float | Curve, warmup: int) -> float:
    """base (float | Curve): The value after the warm-up, or what follows."""
    unit = at.unit(False)
    if unit >= warmup:
        later = At(at.step - at.warmup_steps, unit - warmup)
        return base(later) if isinstance(base, Curve) else base
    return (base.base if isinstance(base, Curve) else base) * (unit + 1) / warmup


SCHEDULERS: dict[str, Callable[..., float]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        cosine_annealing,
        cosine_annealing_warm_restarts,
        cyclic_exp_range,
        cyclic_triangular,
        exponential_decay,
        inverse_scaling,
        linear_decay,
        piecewise_decay,
        polynomial_decay,
        warmup,
        warmup_rounds,
    )
}


def curve_of(spec: Any, what: str) -> Curve:
    """Build a scheduler from its name and settings.

    what (str): The value that it moves, for errors.
    RAISES (ConfigError): The name is unknown, or a setting.
    """
    name, settings = spec
    if name not in SCHEDULERS or not isinstance(settings, Mapping):
        raise ConfigKeyError(
            f"Can't make the scheduler of '{what}': expected a pair of a name, one of {', '.join(SCHEDULERS)}, and a "
            f"dict of settings, found {spec!r}.{did_you_mean(str(name), SCHEDULERS)}"
        )
    accepted = dict(inspect.signature(SCHEDULERS[name], eval_str=True).parameters)
    del accepted["at"]
    check_arguments(f"the scheduler '{name}' of '{what}'", accepted, settings)
    found, section = dict(settings), Section(f"the scheduler '{name}' of '{what}'", allows_texts=False)
    for key, value in settings.items():
        kind = accepted[key].annotation
        if is_spec(value) and key == "base" and kind is not float:
            found[key] = curve_of(value, what)
        elif kind is bool:
            section.flag(key, value)
        elif kind is int:
            section.whole(key, value, at_least=0 if key == "warmup" else 1)
        else:
            found[key] = section.number(key, value)
    return Curve(name, found)


def is_spec(value: Any) -> bool:
    """Whether a value has the form of a scheduler: a pair of a name and settings."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str)


@dataclass
class Rounds:
    """Counts of rounds: all that began, and those of the warm-up, as in `At`."""

    begun: Count = 0
    warmup_rounds: Count = 0
    warmup_steps: Count = 0

    def state_dict(self) -> dict[str, Any]:
        return write(self)

    def load_state_dict(self, state: Any) -> None:
        vars(self).update(vars(read(Rounds, state, "the state of a scheduler")))


class RoundSchedule(Schedule):
    """A schedule that moves with steps and rounds, by one of declearn's schedulers. It can go back."""

    def __init__(self, name: str, spec: Any):
        self.name = name
        self.curve = curve_of(spec, name)
        self.position = 0
        self.source: Any = Rounds()

    @property
    def value(self) -> float:  # type: ignore[override]
        rounds = self.source
        return self.curve(At(self.position, rounds.begun - 1, rounds.warmup_rounds, rounds.warmup_steps))

    def start_round(self) -> None:
        warms_up = self.curve.name == "warmup" and self.position < self.curve.settings["warmup"]
        self.source.warmup_rounds += warms_up
        self.source.begun += 1

    def step(self) -> None:
        warms_up = self.curve.name == "warmup-rounds" and self.source.begun - 1 < self.curve.settings["warmup"]
        self.source.warmup_steps += warms_up
        self.position += 1

    def move_to(self, position: int) -> None:
        self.position = position

    def _check_position(self, position: int) -> None:
        """Any step is fine."""
