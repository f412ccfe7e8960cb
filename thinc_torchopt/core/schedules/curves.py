"""Schedules that are functions of the step: they rise, fall, and don't end.

Those with `total_steps` end with the training if it is left out: see to_the_end.py.

With s the step, counted from 0, W the steps of the warm-up, D those of the fall, T all, r `initial_rate`, m `min_rate`,
and x = (s - W) / (T - W), which goes from 0 to 1 during the fall:

    warmup_linear         r (s + 1) / W, then r (1 - x)
    warmup_cosine         r s / W, then m + (r - m) (1 + cos(pi (cycles x mod 1))) / 2
    inverse_sqrt          r s / W, then r / sqrt((s - W + k) / k), with k = timescale, or else W, or else 10,000
    polynomial            r s / W, then m + (r - m) (1 - x)^power
    warmup_stable_decay   m + (r - m) u(s / W), then r, and in the last D steps, from B on, m + (r - m) d((s - B) / D)
                          linear: u = p, d = 1 - p; cosine: u = (1 - cos pi p) / 2, d = (1 + cos pi p) / 2;
                          1-sqrt: u = 1 - sqrt(1 - p), d = 1 - sqrt(p)
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Literal, Optional

from ..checks import MAX_STEPS
from .to_the_end import Arguments, Curve, Lengths, Span, StableDecay

Form = Literal["linear", "cosine", "1-sqrt"]


def warmup_linear(
    initial_rate: float,
    warmup_steps: Optional[int] = None,
    total_steps: Optional[int] = None,
    *,
    warmup_ratio: Optional[float] = None,
) -> Iterator[float]:
    """Rise to `initial_rate` linearly, then fall to 0 linearly.

    thinc's warmup_linear.v1 yields 0.0 first, which wastes a batch. This one starts at initial_rate / warmup_steps, one
    step ahead of it. The fall is the same.

    warmup_steps (int): Steps before the fall.
    warmup_ratio (float): The same as a fraction of `total_steps`, rounded up. Set one of the two.
    total_steps (int): The first step with value 0, at least `warmup_steps`. Default: the length of the training.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: thinc/schedules.py (8.3), warmup_linear.
    """
    check = Arguments("thinc-torchopt.warmup_linear.v1")
    check.number("initial_rate", initial_rate)
    value_at = partial(_linear_at, peak=initial_rate)
    return Curve(Lengths(check.path, warmup_steps, warmup_ratio), value_at, total_steps)


def _linear_at(step: int, span: Span, *, peak: float) -> float:
    if step < span.warmup:
        return peak * (step + 1) / span.warmup
    if step >= span.total:
        return 0.0
    return peak * (span.total - step) / (span.total - span.warmup)


def warmup_cosine(
    initial_rate: float,
    warmup_steps: Optional[int] = None,
    total_steps: Optional[int] = None,
    *,
    warmup_ratio: Optional[float] = None,
    min_rate: float = 0.0,
    cycles: int = 1,
) -> Iterator[float]:
    """Rise from 0 to `initial_rate` linearly, then fall to `min_rate` along a cosine, once or several times.

    warmup_steps (int): Steps before the fall.
    warmup_ratio (float): The same as a fraction of `total_steps`, rounded up. Set one of the two.
    total_steps (int): The first step with value `min_rate`, at least `warmup_steps`. Default: the length of the
        training.
    cycles (int): The number of falls. All but the first begin with a warm restart at `initial_rate`. All are equally
        long.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: Loshchilov and Hutter 2016, https://arxiv.org/abs/1608.03983; transformers/optimization.py,
        get_cosine_schedule_with_warmup, get_cosine_with_hard_restarts_schedule_with_warmup, which keep oscillating
        after the last step; `min_rate` is eta_min of torch.optim.lr_scheduler.CosineAnnealingLR.
    """
    check = Arguments("thinc-torchopt.warmup_cosine.v1")
    check.number("initial_rate", initial_rate)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.whole("cycles", cycles, at_least=1)
    value_at = partial(_cosine_at, peak=initial_rate, low=min_rate, cycles=cycles)
    return Curve(Lengths(check.path, warmup_steps, warmup_ratio), value_at, total_steps)


def _cosine_at(step: int, span: Span, *, peak: float, low: float, cycles: int) -> float:
    return cosine_at(step, peak, span.warmup, span.total, low, cycles)


def cosine_at(step: int, peak: float, warmup_steps: int, total_steps: int, low: float = 0.0, cycles: int = 1) -> float:
    """The value of `warmup_cosine` at a step. peak, low (float): Its initial_rate and min_rate."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    if step >= total_steps:
        return low
    decay_steps = total_steps - warmup_steps
    # In integers: a fraction that is rounded down too far would put a restart one step late.
    done = cycles * (step - warmup_steps) % decay_steps / decay_steps
    return low + (peak - low) * (0.5 * (1.0 + math.cos(math.pi * done)))


def one_cycle(
    max_rate: float,
    total_steps: Optional[int] = None,
    *,
    pct_start: float = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 10000.0,
    three_phase: bool = False,
) -> Iterator[float]:
    """Rise from a low rate to `max_rate`, then fall to a rate far below the first one.

    total_steps (int): Length of the cycle: its last step has the lowest rate. Default: the length of the training.
    pct_start (float): Fraction of the cycle in which the rate rises, 0 to 1; up to 0.5 with `three_phase`.
    anneal_strategy ("cos" | "linear"): The form of rise and fall.
    div_factor (float): The first rate is max_rate / div_factor.
    final_div_factor (float): The last rate is the first one / final_div_factor.
    three_phase (bool): Fall to the first rate in as many steps as the rise has, and only then to the last one.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: Smith and Topin 2017, https://arxiv.org/abs/1708.07120; torch.optim.lr_scheduler.OneCycleLR, which raises an
        error after `total_steps`, and if pct_start x total_steps is 1.
    """
    check = Arguments("thinc-torchopt.one_cycle.v1")
    check.number("max_rate", max_rate)
    check.number("pct_start", pct_start, at_most=0.5 if three_phase else 1.0)
    check.choice("anneal_strategy", anneal_strategy, ["cos", "linear"])
    check.number("div_factor", div_factor, above=0.0)
    check.number("final_div_factor", final_div_factor, above=0.0)
    check.flag("three_phase", three_phase)
    first_rate = max_rate / div_factor
    value_at = partial(
        _one_cycle_at,
        first=first_rate,
        highest=max_rate,
        last=first_rate / final_div_factor,
        rise=pct_start,
        three_phase=three_phase,
        curve="cosine" if anneal_strategy == "cos" else "linear",
    )
    return Curve(Lengths(check.path, None, pct_start), value_at, total_steps)


def _one_cycle_at(
    step: int, span: Span, *, first: float, highest: float, last: float, rise: float, three_phase: bool, curve: Form
) -> float:
    """rise (float): Fraction of the cycle in which it rises."""
    last_step = span.total - 1
    # Each: its last step, its first rate, its last rate.
    phases = [(rise * span.total - 1, first, highest), (last_step, highest, last)]
    if three_phase:
        phases[1:] = [(2 * rise * span.total - 2, highest, first), (last_step, first, last)]
    begin = 0.0
    for end, start_rate, end_rate in phases:
        if step <= end:
            done = (step - begin) / (end - begin) if end > begin else 1.0
            return _between(end_rate, start_rate, _fall(curve, done))
        begin = end
    return last


def inverse_sqrt(initial_rate: float, warmup_steps: int, *, timescale: Optional[int] = None) -> Iterator[float]:
    """Rise from 0 to `initial_rate` linearly, then fall with 1 / sqrt(step), without an end.

    warmup_steps (int): Steps before the fall.
    timescale (int): Steps after warm-up at which the rate is initial_rate / sqrt(2). Default: `warmup_steps`, or 10,000
        if that is 0.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: Zhai et al. 2021, https://arxiv.org/abs/2106.04560; transformers/optimization.py, get_inverse_sqrt_schedule.
    """
    check = Arguments("thinc-torchopt.inverse_sqrt.v1")
    check.number("initial_rate", initial_rate)
    check.whole("warmup_steps", warmup_steps)
    scale = (warmup_steps or 10_000) if timescale is None else timescale
    check.whole("timescale", scale, at_least=1)
    value_at = partial(_inverse_sqrt_at, peak=initial_rate, scale=scale)
    return Curve(Lengths(check.path, warmup_steps), value_at, MAX_STEPS)


def _inverse_sqrt_at(step: int, span: Span, *, peak: float, scale: int) -> float:
    if step < span.warmup:
        return peak * step / span.warmup
    return peak / math.sqrt((step - span.warmup + scale) / scale)


def polynomial(
    initial_rate: float,
    warmup_steps: Optional[int] = None,
    total_steps: Optional[int] = None,
    *,
    warmup_ratio: Optional[float] = None,
    min_rate: float = 0.0,
    power: float = 1.0,
) -> Iterator[float]:
    """Rise from 0 to `initial_rate` linearly, then fall to `min_rate` along a power of the remaining steps.

    warmup_steps (int): Steps before the fall.
    warmup_ratio (float): The same as a fraction of `total_steps`, rounded up. Set one of the two.
    total_steps (int): The first step with value `min_rate`, at least `warmup_steps`. Default: the length of the
        training.
    power (float): 1: linear. Above 1: falls faster at first. Below 1: falls faster at the end.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: transformers/optimization.py, get_polynomial_decay_schedule_with_warmup, whose lr_end is 1e-7 by default.
    """
    check = Arguments("thinc-torchopt.polynomial.v1")
    check.number("initial_rate", initial_rate)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.number("power", power, above=0.0)
    value_at = partial(_polynomial_at, peak=initial_rate, low=min_rate, power=power)
    return Curve(Lengths(check.path, warmup_steps, warmup_ratio), value_at, total_steps)


def _polynomial_at(step: int, span: Span, *, peak: float, low: float, power: float) -> float:
    if step < span.warmup:
        return peak * step / span.warmup
    if step >= span.total:
        return low
    left = (span.total - step) / (span.total - span.warmup)
    return _between(low, peak, left**power)


def warmup_stable_decay(
    initial_rate: float,
    warmup_steps: Optional[int] = None,
    decay_steps: Optional[int] = None,
    total_steps: Optional[int] = None,
    *,
    warmup_ratio: Optional[float] = None,
    decay_ratio: Optional[float] = None,
    decay_begins: Literal["in time", "when told"] = "in time",
    min_rate: float = 0.0,
    warmup_type: Form = "linear",
    decay_type: Form = "cosine",
) -> Iterator[float]:
    """Rise from `min_rate` to `initial_rate`, stay, and fall back to `min_rate` at the end.

    warmup_steps (int): Steps of the rise.
    decay_steps (int): Steps of the fall. The rate stays at `initial_rate` for the rest of `total_steps`.
    total_steps (int): The first step with value `min_rate`, at least warmup_steps + decay_steps. Default: the length of
        the training.
    warmup_ratio, decay_ratio (float): The same as fractions of `total_steps`, rounded up. Set one of each pair.
    decay_begins ("in time" | "when told"): "in time": the fall ends at `total_steps`, or sooner if
        `TorchOptimizer.begin_decay` starts it. "when told": only `begin_decay` starts it; `total_steps` is not allowed.
    warmup_type (str): The curve of the rise.
    decay_type (str): The curve of the fall; "1-sqrt" is that of Hägele et al.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: Hu et al. 2024, https://arxiv.org/abs/2404.06395; Hägele et al. 2024, https://arxiv.org/abs/2405.18392;
        transformers/optimization.py, get_wsd_schedule, with stable steps counted from `total_steps`.
    """
    check = Arguments("thinc-torchopt.warmup_stable_decay.v1")
    check.number("initial_rate", initial_rate)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.choice("warmup_type", warmup_type, ["linear", "cosine", "1-sqrt"])
    check.choice("decay_type", decay_type, ["linear", "cosine", "1-sqrt"])
    check.choice("decay_begins", decay_begins, ["in time", "when told"])
    only_at_will = decay_begins == "when told"
    if only_at_will and total_steps is not None:
        check.refuse("total_steps", 'left out beside decay_begins = "when told"', total_steps)
    for name, ratio in (("warmup_ratio", warmup_ratio), ("decay_ratio", decay_ratio)):
        if only_at_will and ratio is not None:
            check.refuse(name, f'replaced by {name[:-6]}_steps, as decay_begins is "when told"', ratio)
    lengths = Lengths(check.path, warmup_steps, warmup_ratio, decay_steps, decay_ratio)
    rise = partial(_rise_at, low=min_rate, peak=initial_rate, curve=warmup_type)
    fall = partial(_fall_at, low=min_rate, curve=decay_type)
    return StableDecay(lengths, rise, fall, total_steps, only_at_will=only_at_will)


def _rise_at(step: int, span: Span, *, low: float, peak: float, curve: Form) -> float:
    return _between(low, peak, _fall(curve, 1.0 - step / span.warmup)) if step < span.warmup else peak


def _fall_at(step: int, steps: int, peak: float, *, low: float, curve: Form) -> float:
    """step (int): Of the fall. peak (float): The value before the fall."""
    return _between(low, peak, _fall(curve, step / steps)) if step < steps else low


def _between(low: float, high: float, part: float) -> float:
    return low + (high - low) * part


def _fall(curve: Form, done: float) -> float:
    """A fall from 1 to 0; backwards, a rise. done (float): How much of it is over, 0 to 1."""
    if curve == "linear":
        return 1.0 - done
    return 0.5 * (1.0 + math.cos(math.pi * done)) if curve == "cosine" else 1.0 - math.sqrt(done)
