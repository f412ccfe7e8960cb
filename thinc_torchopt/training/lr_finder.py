"""The learning-rate range test: train for a few steps while the rate rises, and look at the loss.

At low rates nothing happens, then the loss falls, then it breaks away. A good rate is a tenth of that at which it is
lowest; a second opinion is where it falls fastest.

*setting*: a place in [training.optimizer] that holds a learning rate. In the test the one with the highest peak follows
the *ramp*, the others keep their ratio to it. Factors on top of it (`lr_scale`, [layer_decay]) stay, and so does what
is frozen. *peak*: the highest value of a setting's schedule in the training as the config has it.

SOURCE: Smith 2015, https://arxiv.org/abs/1506.01186. Both suggestions, and the end at 4 times the best loss, are those
    of fastai
(fastai/callback/schedule.py, LRFinder, steep and minimum), which smooths by what came before only, so that its curve
lags behind the rate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from numbers import Real
from typing import Any, Literal

import numpy
from confection import Config
from spacy.language import Language
from spacy.util import registry

from ..errors import ConfigError, NonFiniteGradWarning, ScheduleWarning
from ..schedules import with_end
from ..settings import without_policy
from .components import sums_of_gradients
from .short_training import WRITES, begin_training

Place = tuple[str, ...]

# Without an end of the training, a schedule's peak is looked for in so many steps.
_STEPS_WITHOUT_END = 10_000
# Fewer losses than that are no curve.
_MIN_STEPS = 10
# It breaks away: where the mean of so many losses is so many standard deviations above the mean of those before.
_BREAK_STEPS, _BREAK = 5, 3.0
# The flat start has ended where so much of the fall is done.
_FLAT = 1 / 3
# A higher --max-lr is not advised.
_HIGHEST = 10.0
# Diverged: when the smoothed loss is above the best one by so many times that.
_DIVERGED = 3.0
# A loss that falls by less than this part of it has not fallen.
_MIN_FALL = 0.02
# By chance the lowest place of a curve is hardly ever so many of its standard deviations below the first ones. Fewer
# are enough where the loss breaks away in the end: then the rates did reach those that matter.
_CHANCE, _CHANCE_BEFORE_BREAK = 6.0, 4.0
# Spikes must not be skipped: they are what is looked for.
_LEFT_OUT = (*WRITES, "spike_factor", "on_spike")


@dataclass
class RangeTest:
    """What the test found.

    rates (list[float]): The ramp, as far as it came: the rate of each step.
    losses (list[float]): The loss per word of each step, over all components that have one.
    group_rates (list[dict[str, float]]): The rate of each step by param group, as loggers get it.
    ended ("max_rate" | "diverged" | "not_finite"): Why it ended.
    breaks (int | None): The step from which on the losses are far above those before. None: there is none.
    smoothed (list[float]): The losses up to there, smoothed, without those that are not finite. None counts as more
        than the highest before the best.
    steepest, lowest (int | None): The steps at which the loss falls fastest, after its flat start, and at which it is
        lowest. None: there is nothing to suggest.
    problem (str | None): Why there is nothing to suggest.
    """

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    group_rates: list[dict[str, float]] = field(default_factory=list)
    ended: Literal["max_rate", "diverged", "not_finite"] = "max_rate"
    breaks: int | None = None
    smoothed: list[float] = field(default_factory=list)
    steepest: int | None = None
    lowest: int | None = None
    problem: str | None = None

    @property
    def suggestions(self) -> dict[str, float]:
        """Points of the ramp: "lowest/10", and "steepest", where the loss falls fastest."""
        if self.steepest is None or self.lowest is None:
            return {}
        return {"lowest/10": self.rates[self.lowest] / 10, "steepest": self.rates[self.steepest]}

    @property
    def may_go_higher(self) -> bool:
        """Whether higher rates would tell more: the loss never broke away, and the rates were no highest ones."""
        return self.ended == "max_rate" and self.breaks is None and self.rates[-1] < _HIGHEST

    def rates_by_group(self) -> dict[str, dict[str, float]]:
        """The suggestions for each param group, with all factors that it has. Groups that were frozen are left out."""
        if self.steepest is None or self.lowest is None:
            return {}
        at_steepest, at_lowest = self.group_rates[self.steepest], self.group_rates[self.lowest]
        return {
            group: {"lowest/10": at_lowest[group] / 10, "steepest": rate}
            for group, rate in at_steepest.items()
            if rate and group in at_lowest
        }


def run_range_test(
    nlp: Language,
    config: Config,
    *,
    min_rate: float = 1e-7,
    max_rate: float = 10.0,
    steps: int = 100,
    smoothing: float = 0.9,
    progress: Callable[[], Any] = lambda: None,
) -> RangeTest:
    """Train a pipeline while the learning rate rises.

    nlp (Language): The pipeline, initialized. It is trained at rates that ruin it: pass one that is not needed
        afterwards.
    config (Config): Its config, interpolated.
    min_rate, max_rate (float): The rates of the first and of the last step. In between they rise by the same factor
        each step.
    steps (int): How many steps at most.
    smoothing (float): How much of its neighbour a loss takes over, 0 to 1, without 1.
    progress (Callable): Called after each step.
    RAISES (ConfigError): An argument is out of its range, or the config has no learning rate above 0.
    """
    ramp = make_ramp(min_rate, max_rate, steps)
    if not 0.0 <= smoothing < 1.0:
        raise ConfigError(f"Can't smooth losses: expected 'smoothing' of at least 0 and below 1, found {smoothing}.")
    found = RangeTest()
    average, best, cap = 0.0, math.inf, math.inf
    with closing(_train(nlp, config, ramp)) as training, warnings.catch_warnings():
        # What happens at rates that are far too high is what is looked for.
        for category in (RuntimeWarning, NonFiniteGradWarning, ScheduleWarning):
            warnings.simplefilter("ignore", category)
        for i, (loss, group_rates) in enumerate(training):
            found.rates.append(ramp[i])
            found.losses.append(loss)
            found.group_rates.append(group_rates)
            progress()
            if not math.isfinite(loss):
                found.ended = "not_finite"
                break
            average = smoothing * average + (1.0 - smoothing) * loss
            trailing = average / (1.0 - smoothing ** (i + 1))
            # The mean of a few losses is mostly chance.
            if i >= _MIN_STEPS and trailing > best + _DIVERGED * abs(best):
                found.ended = "diverged"
                break
            if trailing < best:
                best, cap = trailing, max(found.losses)
    _analyse(found, cap, smoothing)
    return found


def make_ramp(min_rate: float, max_rate: float, steps: int) -> list[float]:
    """Rates that rise by the same factor each step.

    RAISES (ConfigError): An argument is out of its range.
    """
    if not 0.0 < min_rate < max_rate < math.inf:
        raise ConfigError(
            f"Can't run the range test: expected 0 < --min-lr < --max-lr, found {min_rate} and {max_rate}."
        )
    if steps < _MIN_STEPS:
        raise ConfigError(f"Can't run the range test: expected --steps of at least {_MIN_STEPS}, found {steps}.")
    return [min_rate * (max_rate / min_rate) ** (i / (steps - 1)) for i in range(steps)]


# ---------------------------------------------------------------------- settings


def learn_rate_settings(config: Mapping[str, Any]) -> dict[Place, float]:
    """Every setting with its peak.

    config (Mapping[str, Any]): A config, interpolated.
    RETURNS (dict): Peaks by path below [training.optimizer], e.g. ("param_groups", "encoder", "learn_rate").
    """
    return {place: max(rates) for place, rates in rates_of_settings(config).items()}


def rates_of_settings(config: Mapping[str, Any]) -> dict[Place, list[float]]:
    """The rates of every setting over the training; of one that does not move, only that."""
    block = config["training"]["optimizer"]
    given: dict[Place, Any] = {("learn_rate",): block.get("learn_rate")}
    groups = {name: without_policy(group) for name, group in block.get("param_groups", {}).items()}
    given |= {("param_groups", name, "learn_rate"): group.get("learn_rate") for name, group in groups.items()}
    given |= {("per_param_lr", pattern): rate for pattern, rate in (block.get("per_param_lr") or {}).items()}
    given = {path: value for path, value in given.items() if value is not None}
    # Under numbers: what is in a path may be no name of a section.
    resolved = registry.resolve({"rates": {str(i): value for i, value in enumerate(given.values())}})["rates"]
    steps = (config["training"].get("max_steps") or _STEPS_WITHOUT_END) + 1
    return {path: _rates(resolved[str(i)], steps) for i, path in enumerate(given)}


def _rates(value: Any, steps: int) -> list[float]:
    if isinstance(value, Real):
        return [float(value)]
    return [float(rate) for rate in islice(with_end(value, steps), steps)]


def with_ramp(block: Mapping[str, Any], peaks: Mapping[Place, float], ramp: Sequence[float]) -> dict[str, Any]:
    """[training.optimizer] with a list of rates in the place of each setting.

    block (Mapping[str, Any]): [training.optimizer].
    peaks (Mapping[Place, float]): From `learn_rate_settings`.
    ramp (Sequence[float]): What the setting with the highest peak becomes. The others keep their ratio to it.
    RAISES (ConfigError): No peak is above 0.
    """
    highest = max(peaks.values(), default=0.0)
    if not highest:
        raise ConfigError(
            "Can't test learning rates in [training.optimizer]: expected one above 0, found "
            f"{'0 in ' + ', '.join(map('.'.join, peaks)) if peaks else 'none'}. Set 'learn_rate' to any number above "
            "0: the test keeps only the ratios between the learning rates."
        )
    changed: dict[str, Any] = deepcopy(dict(block))
    if "param_groups" in changed:
        changed["param_groups"] = {name: without_policy(group) for name, group in changed["param_groups"].items()}
    for path, peak in peaks.items():
        section = changed
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = [peak / highest * rate for rate in ramp]
    return changed


# ---------------------------------------------------------------------- training


def _train(
    nlp: Language, config: Config, ramp: Sequence[float]
) -> Generator[tuple[float, dict[str, float]], None, None]:
    """Train as spaCy does, but for the rates. YIELDS (tuple): The loss per word of each step, and the rates by param
    group.
    """
    # Schedules move on once more after the last step.
    optimizer = with_ramp(config["training"]["optimizer"], learn_rate_settings(config), [*ramp, ramp[-1]])
    training = begin_training(
        nlp,
        config,
        {name: value for name, value in optimizer.items() if name not in _LEFT_OUT},
        max_steps=len(ramp) - 1,
        eval_frequency=len(ramp) + 1,
        evaluate=lambda scores: (0.0, {}),
    )
    counted = _with_loss(nlp, config["training"]["frozen_components"])
    sum_before, words_before = 0.0, 0
    with closing(training.steps):  # type: ignore[type-var]
        while True:
            try:
                _, info, is_best = next(training.steps)
            except StopIteration:
                return
            except ValueError as error:
                if "[E910]" not in str(error):  # spaCy's: the loss is NaN
                    raise
                yield math.nan, {}
                return
            losses = {name: float(loss) for name, loss in info["losses"].items()}
            total = sum(loss for name, loss in losses.items() if name in counted or not counted & set(losses))
            words = max(1, info["words"] - words_before)
            # An update that was skipped because of its gradients: from here on nothing would be learned.
            yield math.nan if info["skipped_updates"] else (total - sum_before) / words, info["learn_rates"]
            # The loop begins a new sum after each evaluation, of which there is one, at step 0.
            sum_before, words_before = total if is_best is None else 0.0, info["words"]


def _with_loss(nlp: Language, exclude: Sequence[str]) -> set[str]:
    """The components that have a loss."""
    return set(nlp.pipe_names) - {*exclude, *sums_of_gradients(nlp)}


# ---------------------------------------------------------------------- the curve


def smooth(losses: Sequence[float], smoothing: float) -> list[float]:
    """The mean of each loss and those before and after it, each step farther away counting by `smoothing` less.

    losses (Sequence[float]): One for each step.
    smoothing (float): 0 to 1, without 1.
    """
    steps = numpy.arange(len(losses))
    weights = smoothing ** numpy.abs(steps[:, None] - steps[None, :]).astype("float64")
    smoothed: list[float] = (weights @ numpy.asarray(losses, dtype="float64") / weights.sum(axis=1)).tolist()
    return smoothed


def _analyse(found: RangeTest, cap: float, smoothing: float) -> None:
    """Find the suggestions, or say why there are none.

    cap (float): What losses above it count as: those at the end would raise the curve long before it.
    """
    n = len(found.losses) - (found.ended == "not_finite")
    losses = [min(loss, cap) for loss in found.losses[:n]]
    if n < _MIN_STEPS:
        found.problem = (
            f"Can't suggest a learning rate: expected the loss of at least {_MIN_STEPS} steps, found {n} before the "
            f"loss or a gradient was not finite, at a rate of {found.rates[-1]:.2g}. Lower --min-lr. If that does not "
            "help, check the training data."
        )
        return
    found.breaks = _find_break(found.losses[:n])
    losses = losses[: found.breaks]
    found.smoothed = smooth(losses, smoothing)
    curve = numpy.asarray(found.smoothed)
    lowest = int(curve.argmin())
    start = float(curve[: max(1, n // 10)].mean())
    fall = start - float(curve[lowest])
    chance = _CHANCE if found.breaks is None else _CHANCE_BEFORE_BREAK
    if not fall > max(_MIN_FALL * abs(start), chance * _noise_of_curve(losses, smoothing)):
        found.problem = (
            f"Can't suggest a learning rate: expected a loss that falls, found {start:.4g} per word at first and "
            f"{curve[lowest]:.4g} at the lowest, which may be chance. {_advice(found)}Try more --steps. Check that "
            "something is trained: spacy torchopt params."
        )
        return
    # After the last place that belongs to the flat start.
    flat = int(numpy.flatnonzero(curve[: lowest + 1] >= start - _FLAT * fall)[-1:].sum())
    slopes = numpy.gradient(curve, numpy.log(found.rates[: len(losses)]))
    found.steepest = flat + int(slopes[flat : lowest + 1].argmin())
    found.lowest = lowest


def _find_break(losses: Sequence[float]) -> int | None:
    """The step from which on the losses are far above those before. None: there is none."""
    values = numpy.asarray(losses)
    for step in range(_MIN_STEPS, len(values)):
        before, after = values[:step], values[step : step + _BREAK_STEPS]
        if min(after[0], after.mean()) > before.mean() + _BREAK * before.std():
            return step
    return None


def _advice(found: RangeTest) -> str:
    """What may help if the loss does not fall."""
    if found.breaks is not None:
        return f"It breaks away at a rate of {found.rates[found.breaks]:.2g}: if that is at once, lower --min-lr. "
    if found.ended == "diverged":
        return "It diverged: if that was at once, lower --min-lr. "
    return "Raise --max-lr. " if found.may_go_higher else ""


def _noise_of_curve(losses: Sequence[float], smoothing: float) -> float:
    """The standard deviation of a smoothed curve, as far as it is noise: from the differences of neighbours, most of
    which are no fall.
    """
    # Of weights that fall by `smoothing` each step: the root of the sum of their squares, as a part of their sum.
    kept = math.sqrt((1.0 + smoothing**2) / (1.0 - smoothing**2)) * (1.0 - smoothing) / (1.0 + smoothing)
    # The median of what is normally distributed is 0.6745 standard deviations from the mean; a difference has those of
    # two losses.
    return kept * float(numpy.median(numpy.abs(numpy.diff(losses)))) / (0.6745 * math.sqrt(2.0))
