"""The settings of averages: EMA, SWA, and the weight of each value.

An average counts its values from 1: the param after update `start_step + 1`, and after each `every`-th update from
there. At the n-th value its own weight is as follows, and the value has the rest:

    EMA, warmup "thinc"       min((1 + n) / (10 + n), decay), and begins at zero
    EMA, warmup "torch_ema"   the same, and begins as the param was before
    EMA, warmup "torch"       0 at first, then decay
    EMA, warmup "ignite"      decay, and begins as the param was before
    SWA                       (n - 1) / n: the mean

SOURCE: "thinc": thinc.backends.Ops.update_averages; "torch_ema": torch_ema.ExponentialMovingAverage (0.3); "torch":
torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn; "ignite": ignite.handlers.EMAHandler, and torch_ema
without use_num_updates; SWA: AveragedModel as it is, https://arxiv.org/abs/1803.05407.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Optional, get_args

import torch

from ..algorithms import may_move
from ..checks import OPTIMIZER, Section
from ..errors import ConfigError, ScheduleError
from ..schedules import Schedule, Schedules, current
from ..types import FloatOrSchedule

Warmup = Literal["thinc", "torch", "torch_ema", "ignite"]
Buffers = Literal["average", "copy"]
DType = Literal["float32", "float64"]

_SECTION = Section("[training.optimizer.averages]")


def EMA(
    decay: FloatOrSchedule = 0.9999,
    *,
    warmup: Warmup = "thinc",
    start_step: int = 0,
    every: int = 1,
    device: Optional[str] = None,
    dtype: Optional[DType] = None,
    buffers: Buffers = "average",
) -> AverageSettings:
    """Keep exponential moving averages. Registered as `thinc-torchopt.EMA.v1`; the defaults are thinc's formula.

    decay (float | schedule): The weight of the average against a new value, after the warm-up. From 0 to 1.
    warmup ("thinc" | "torch" | "torch_ema" | "ignite"): How an average begins. "thinc": at zero, with the weight
        min((1 + n) / (10 + n), decay) at its n-th value. "torch_ema": at the param before its first update, with the
        same weight. "ignite": at the param before its first update, with `decay`. "torch": at its first value, then
        with `decay`.
    start_step (int): The average of a param begins after this many of its updates. Until then the param itself is
        evaluated and saved.
    every (int): Updates between two values.
    device (str): The device of the averages, e.g. "cpu". None: that of their params.
    dtype ("float32" | "float64"): Of the averages. None: float32, or that of the param if it is wider.
    buffers ("average" | "copy"): Average float buffers of torch modules, or use their current values.
    RAISES (ConfigError): An invalid argument.
    """
    return AverageSettings("EMA", decay, warmup, start_step, every, device, dtype, buffers)


def SWA(
    start_step: int,
    *,
    every: int = 1,
    device: Optional[str] = None,
    dtype: Optional[DType] = None,
    buffers: Buffers = "average",
) -> AverageSettings:
    """Keep the mean of the values after a step: stochastic weight averaging. Registered as `thinc-torchopt.SWA.v1`.

    Arguments as in EMA.
    """
    return AverageSettings("SWA", start_step=start_step, every=every, device=device, dtype=dtype, buffers=buffers)


@dataclass(frozen=True)
class AverageSettings:
    """The settings of averages. `EMA` and `SWA` describe them."""

    kind: Literal["EMA", "SWA"] = "EMA"
    decay: Any = 0.9999  # a number, or a schedule
    warmup: Warmup = "thinc"
    start_step: int = 0
    every: int = 1
    device: Optional[str] = None
    dtype: Optional[DType] = None
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        if not self.moves:
            expected = "a number from 0 to 1, or a schedule of such numbers"
            object.__setattr__(self, "decay", _SECTION.number("decay", self.decay, expected, at_most=1.0))
        _SECTION.choice("warmup", self.warmup, get_args(Warmup))
        _SECTION.choice("buffers", self.buffers, get_args(Buffers))
        for name, least in (("start_step", 0), ("every", 1)):
            object.__setattr__(self, name, _SECTION.whole(name, getattr(self, name), at_least=least))
        if self.dtype not in (None, "float32", "float64"):
            _SECTION.refuse(
                "dtype",
                "null, 'float32' or 'float64', as narrower dtypes lose the small steps of an average",
                self.dtype,
            )
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError):
            _SECTION.refuse("device", "null, 'cpu', or another device that is available to torch", self.device)

    @property
    def moves(self) -> bool:
        """Whether `decay` is a schedule."""
        return isinstance(self.decay, Schedule) or may_move(self.decay)

    @property
    def begins_as_param(self) -> bool:
        """Whether an average begins at its param's value before the first update."""
        return self.kind == "EMA" and self.warmup in ("torch_ema", "ignite")

    def tracked(self, schedules: Schedules) -> AverageSettings:
        """The same settings, with the schedule tracked among the others."""
        return replace(self, decay=schedules.track("averages.decay", self.decay))

    def check_decay(self) -> None:
        """Check the decay of this step.

        RAISES (ScheduleError): It is outside 0 to 1.
        """
        if isinstance(self.decay, Schedule) and not 0.0 <= self.decay.value <= 1.0:
            raise ScheduleError(
                f"Can't use the schedule of '{self.decay.name}' at step {self.decay.position}: expected a number from "
                f"0 to 1, found {self.decay.value}."
            )

    def as_saved(self) -> dict[str, Any]:
        """All settings, with the decay of this step, for JSON."""
        return asdict(replace(self, decay=current(self.decay)))

    def is_due(self, updates: int) -> bool:
        """Whether an average gets the value of a param after this number of updates."""
        return updates > self.start_step and (updates - self.start_step - 1) % self.every == 0

    def weight(self, taken: int, *, from_zero: bool = True) -> float:
        """The weight of a new value in an average.

        taken (int): The number of this value, from 1.
        from_zero (bool): Whether the average may begin at zero, if its formula does.
        """
        if self.kind == "SWA":
            return 1.0 / taken
        if taken == 1 and (self.warmup == "torch" or not from_zero):
            return 1.0
        decay: float = current(self.decay)
        if self.warmup in ("torch", "ignite"):
            return 1.0 - decay
        return 1.0 - min((1.0 + taken) / (10.0 + taken), decay)


# thinc's own averages.
THINC = AverageSettings()


def chosen_averages(use_averages: bool, averages: AverageSettings | None) -> AverageSettings | None:
    """The settings from `use_averages` or from a block. None: neither is set.

    RAISES (ConfigError): Both are set, or the block is not one of ours.
    """
    if averages is None:
        return THINC if use_averages else None
    expected = (
        'a block with @misc = "thinc-torchopt.EMA.v1" or "thinc-torchopt.SWA.v1", or in Python the result of '
        "thinc_torchopt.averages.EMA() or SWA()"
    )
    OPTIMIZER.kind("averages", averages, AverageSettings, expected)
    if use_averages:
        raise ConfigError(
            "Can't set 'use_averages' in [training.optimizer]: expected false beside [training.optimizer.averages], "
            "found true. Remove it, or the block."
        )
    return averages
