"""The learning-rate range test: train for a few steps while the rate rises, and look at the loss.

At low rates nothing happens, then the loss falls, then it rises again. The loss is that of the same examples of the
development data each time: from one batch to the next it varies more than with the rate.

*setting*: a place in [training.optimizer] that holds a learning rate. In the test the one with the highest peak follows
the *ramp*, the others keep their ratio to it. Factors on top of it (`lr_scale`, [layer_decay]) stay, and so does what
is frozen. *peak*: the highest value of a setting's schedule in the training as the config has it. *point*: a rate and
the loss after the step at that rate. *stretch*: the points around the lowest one at which most of the fall is done.

SOURCE: Smith 2015, https://arxiv.org/abs/1506.01186. The rule, its numbers and how it does beside others:
    benchmarks/find_lr.py.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, cast

import numpy
from confection import Config
from spacy.language import Language
from spacy.training import Example
from spacy.util import resolve_dot_names

from ...core.errors import ConfigError, NonFiniteGradWarning, ScheduleWarning
from ...core.optimizer import TorchOptimizer
from ...loop.components import sums_of_gradients
from ...loop.dev_loss import DevLosses
from ...loop.random_state import preserved_random
from ...loop.schedule_check import Place, rates_of_settings
from .trial import WRITES, begin_training

# Fewer points than that are no curve.
_MIN_POINTS = 10
# So many steps from one point to the next.
_EVERY = 2
# The loss is computed on at most this many examples, and fewer if they have this many words.
_EXAMPLES, _WORDS = 100, 2000
# They are drawn from this many of the development data; and at least so many are taken, however many words they have.
_DRAWN_FROM, _MIN_EXAMPLES = 2000, 16
# The first points are left out: components that start with zeros break their ties there.
_LEFT_OUT_POINTS = 1
# In decades: the start of the ramp, where nothing is learned yet; the width of the smoothing.
_FLAT, _WIDTH = 1.0, 0.15
# A loss above this many times the first one has diverged.
_DIVERGED = 2.0
# The stretch has the points whose loss is within this part of the fall.
_SHARE = 0.2
# The suggestion: this part of the geometric mean of its ends.
_FACTOR = 0.5
# A loss that falls by less than this part of it has not fallen.
_MIN_FALL = 0.02
# Below this part of the first loss everything is learned.
_LEARNED = 0.01
# The lowest point of a noisy flat curve is hardly ever this many standard deviations below the first ones.
_CHANCE = 6.0
# Spikes must not be skipped: they are what is looked for.
_LEFT_OUT = (*WRITES, "spike_factor", "on_spike")


@dataclass
class RangeTest:
    """The result of a range test.

    rates (list[float]): The rate of each point.
    losses (list[float]): The loss per word of each point, over all components that have one. What is not finite is the
        last.
    group_rates (list[dict[str, float]]): The rates of each point by param group, as loggers get them.
    steps, examples (int): How many steps were trained, and how many examples the loss is of.
    ended ("max_rate" | "diverged" | "not_finite"): Why it ended.
    first (int): The first point that counts.
    smoothed (list[float]): The losses from there on, smoothed, without those that have diverged.
    stretch (tuple[int, int] | None): Its first point and its last one. None: there is nothing to suggest.
    problem (str | None): Why there is nothing to suggest.
    """

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    group_rates: list[dict[str, float]] = field(default_factory=list)
    steps: int = 0
    examples: int = 0
    ended: Literal["max_rate", "diverged", "not_finite"] = "max_rate"
    first: int = _LEFT_OUT_POINTS
    smoothed: list[float] = field(default_factory=list)
    stretch: tuple[int, int] | None = None
    problem: str | None = None

    @property
    def suggestion(self) -> float | None:
        """For the highest peak. None: there is nothing to suggest."""
        if self.stretch is None:
            return None
        low, high = (self.rates[point] for point in self.stretch)
        return _FACTOR * math.sqrt(low * high)

    def rates_by_group(self) -> dict[str, float]:
        """The suggestion for each param group, with all factors that it has. Groups that were frozen are left out."""
        if self.stretch is None:
            return {}
        suggestion = cast(float, self.suggestion)
        before, after = (self.group_rates[point] for point in self.stretch)
        at = self.rates[self.stretch[1]]
        return {group: rate / at * suggestion for group, rate in after.items() if rate and before.get(group)}


def run_range_test(
    nlp: Language,
    config: Config,
    *,
    min_rate: float = 1e-6,
    max_rate: float = 10.0,
    steps: int = 140,
    progress: Callable[[], Any] = lambda: None,
) -> RangeTest:
    """Train a pipeline while the learning rate rises. Random generators are afterwards as before.

    nlp (Language): The pipeline, initialized. It is trained at rates that ruin it: pass one that is not needed
        afterwards.
    config (Config): Its config, interpolated.
    min_rate, max_rate (float): The rates of the first and of the last step. In between they rise by the same factor
        each step.
    steps (int): How many steps at most.
    progress (Callable): Called after each step.
    RAISES (ConfigError): An argument is out of its range, the config has no learning rate above 0, no development
        data, or a text that its parser can't learn from.
    """
    ramp = make_ramp(min_rate, max_rate, steps)
    found = RangeTest()
    with (
        preserved_random(),
        closing(_train(nlp, config, ramp, found)) as training,
        warnings.catch_warnings(),
    ):
        # What happens at rates that are far too high is what is looked for.
        for category in (RuntimeWarning, NonFiniteGradWarning, ScheduleWarning):
            warnings.simplefilter("ignore", category)
        for loss, group_rates in training:
            progress()
            if loss is None:
                continue
            found.rates.append(ramp[found.steps - 1])
            found.losses.append(loss)
            found.group_rates.append(group_rates)
            if not math.isfinite(loss):
                found.ended = "not_finite"
                break
            if _has_diverged(found):
                found.ended = "diverged"
                break
    _analyse(found)
    return found


def make_ramp(min_rate: float, max_rate: float, steps: int) -> list[float]:
    """Rates that rise by the same factor each step.

    RAISES (ConfigError): An argument is out of its range.
    """
    if not 0.0 < min_rate < max_rate < math.inf:
        raise ConfigError(
            f"Can't run the range test: expected 0 < --min-lr < --max-lr, found {min_rate} and {max_rate}."
        )
    least = _EVERY * (_MIN_POINTS + _LEFT_OUT_POINTS)
    if steps < least:
        raise ConfigError(f"Can't run the range test: expected --steps of at least {least}, found {steps}.")
    return [min_rate * (max_rate / min_rate) ** (i / (steps - 1)) for i in range(steps)]


# ---------------------------------------------------------------------- settings


def learn_rate_settings(config: Mapping[str, Any]) -> dict[Place, float]:
    """Every setting with its peak.

    config (Mapping[str, Any]): A config, interpolated.
    RETURNS (dict): Peaks by path below [training.optimizer], e.g. ("param_groups", "encoder", "learn_rate").
    """
    return {place: max(rates) for place, rates in rates_of_settings(config).items()}


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
    for path, peak in peaks.items():
        section = changed
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = [peak / highest * rate for rate in ramp]
    return changed


# ---------------------------------------------------------------------- training


def _train(
    nlp: Language, config: Config, ramp: Sequence[float], found: RangeTest
) -> Generator[tuple[float | None, dict[str, float]], None, None]:
    """Train as spaCy does, but for the rates. YIELDS (tuple): After each step the loss per word, None if it was not
    computed, and the rates by param group.
    """
    examples = _draw_examples(nlp, config)
    found.examples = len(examples)
    # Schedules move on once more after the last step, to any rate.
    optimizer = with_ramp(config["training"]["optimizer"], learn_rate_settings(config), [*ramp, *ramp])
    training = begin_training(
        nlp,
        config,
        {name: value for name, value in optimizer.items() if name not in _LEFT_OUT},
        max_steps=len(ramp) - 1,
        eval_frequency=len(ramp),
        evaluate=lambda: (0.0, {}),
    )
    frozen, annotates = config["training"]["frozen_components"], config["training"]["annotating_components"]
    counted = set(nlp.pipe_names) - {*frozen, *sums_of_gradients(nlp)}
    ours = cast(TorchOptimizer, training.optimizer)
    losses_of = DevLosses(nlp, ours, frozen, annotates, examples=examples, averaged=False)
    with closing(training.steps):  # type: ignore[type-var]
        for _, info, _ in training.steps:
            found.steps += 1
            if info["skipped_updates"]:  # because of its gradients: from here on nothing would be learned
                yield math.nan, info["learn_rates"]
            elif (found.steps - 1) % _EVERY:
                yield None, {}
            else:
                of = losses_of()
                shown = counted & set(of["losses"]) or set(of["losses"])
                total = sum(loss for name, loss in of["losses"].items() if name in shown)
                yield total / of["words"], info["learn_rates"]


def _draw_examples(nlp: Language, config: Config) -> list[Example]:
    """Some of the development data, the same ones each time."""
    name = config["training"]["dev_corpus"]
    [corpus] = resolve_dot_names(config, [name])
    drawn = list(islice(corpus(nlp), _DRAWN_FROM))
    random.Random(0).shuffle(drawn)
    found: list[Example] = []
    for example in drawn:
        if len(found) >= _EXAMPLES or (len(found) >= _MIN_EXAMPLES and sum(map(len, found)) >= _WORDS):
            break
        found.append(example)
    if not any(map(len, found)):
        raise ConfigError(
            f"Can't run the range test: expected examples in [training] dev_corpus = '{name}', found none."
        )
    return found


# ---------------------------------------------------------------------- the curve


def smooth(losses: Sequence[float], width: float) -> list[float]:
    """The mean of each loss and those before and after it, weighted by a Gaussian.

    losses (Sequence[float]): One for each point.
    width (float): Its standard deviation, in points. 0: nothing is smoothed.
    """
    smoothed: list[float] = (_weights(len(losses), width) @ numpy.asarray(losses, dtype="float64")).tolist()
    return smoothed


def _weights(n: int, width: float) -> Any:
    if not width:
        return numpy.eye(n)
    points = numpy.arange(n)
    weights = numpy.exp(-0.5 * ((points[:, None] - points[None, :]) / width) ** 2)
    return weights / weights.sum(axis=1, keepdims=True)


def _points_per_decade(found: RangeTest) -> float:
    return (len(found.rates) - 1) / math.log10(found.rates[-1] / found.rates[0])


def _first_points(found: RangeTest) -> int:
    """How many points say what the loss is at first."""
    return max(3, round(_FLAT * _points_per_decade(found)))


def _has_diverged(found: RangeTest) -> bool:
    """Whether the last loss is far above those at first."""
    if len(found.losses) < _LEFT_OUT_POINTS + 4:
        return False
    losses = found.losses[_LEFT_OUT_POINTS:]
    return losses[-1] > _DIVERGED * float(numpy.median(losses[: _first_points(found)]))


def _analyse(found: RangeTest) -> None:
    """Find the stretch, or say why there is none."""
    losses = found.losses[found.first : len(found.losses) - (found.ended != "max_rate")]
    at = f"at a rate of {found.rates[-1]:.2g}" if found.rates else ""
    if len(losses) < _MIN_POINTS:
        how = "it diverged" if found.ended == "diverged" else "the loss or a gradient was not finite"
        found.problem = (
            f"Can't suggest a learning rate: {how} {at}, after {found.steps} steps. Lower --min-lr. If that does not "
            "help, check the training data."
        )
        return
    width = _WIDTH * _points_per_decade(found)
    found.smoothed = smooth(losses, width)
    start = float(numpy.median(found.smoothed[: _first_points(found)]))
    lowest = int(numpy.argmin(found.smoothed))
    fall = start - found.smoothed[lowest]
    if not fall > max(_MIN_FALL * abs(start), _CHANCE * _noise_of_curve(losses, width)):
        found.problem = (
            f"Can't suggest a learning rate: expected a loss that falls, found {start:.4g} per word at first and "
            f"{found.smoothed[lowest]:.4g} at the lowest, which may be chance. {_advice(found)}Check that something is "
            "trained: spacy torchopt params."
        )
        return
    limit = start - (1.0 - _SHARE) * fall
    low = high = lowest
    while low > 0 and found.smoothed[low - 1] <= limit:
        low -= 1
    while high < len(found.smoothed) - 1 and found.smoothed[high + 1] <= limit:
        high += 1
    if high == len(found.smoothed) - 1 and found.ended == "max_rate":
        advice = "Raise --max-lr."
        if found.smoothed[lowest] < _LEARNED * start:
            advice = "The data is so easy that every rate learns it: test with more data, or keep the default rate."
        found.problem = (
            "Can't suggest a learning rate: expected a loss that rises again at high rates, found it still low at the "
            f"highest, {found.rates[-1]:.2g}. {advice}"
        )
        return
    found.stretch = found.first + low, found.first + high


def _advice(found: RangeTest) -> str:
    """Say what may help if the loss does not fall."""
    if found.ended == "max_rate":
        rose = found.smoothed[-1] > found.smoothed[0] * (1.0 + _MIN_FALL)
        return "" if rose else f"Up to a rate of {found.rates[-1]:.2g} nothing happened. "
    how = "diverged" if found.ended == "diverged" else "was not finite"
    return f"It {how} at a rate of {found.rates[-1]:.2g}: if that is at once, lower --min-lr. "


def _noise_of_curve(losses: Sequence[float], width: float) -> float:
    """The standard deviation of a smoothed curve, as far as it is noise: from the differences of neighbours, most of
    which are no fall.
    """
    # Of a mean: the root of the sum of the squares of its weights.
    kept = float(numpy.sqrt((_weights(len(losses), width)[len(losses) // 2] ** 2).sum()))
    # The median of normally distributed numbers is 0.6745 standard deviations from the mean; a difference has those of
    # two losses.
    return kept * float(numpy.median(numpy.abs(numpy.diff(losses)))) / (0.6745 * math.sqrt(2.0))
