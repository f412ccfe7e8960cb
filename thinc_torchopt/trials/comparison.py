"""Whether one of several ways to train is better than what there was, or by chance.

Each was trained with several seeds. *spread*: the standard deviation of scores between seeds, taken over all of them
together, as there are only a few seeds for each. *margin*: up to here a difference between two means may be chance. It
comes from Student's t at a level of 95% for all comparisons together (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy

_LEVEL = 0.05
# More seeds than that are not advised.
_MOST_SEEDS = 30


@dataclass(frozen=True)
class Comparison:
    """What can be said.

    means (dict[str, float]): The mean score of each.
    spread (float | None): None: there is only one seed.
    margins (dict[str, float]): For each but the first one: up to this difference it may be chance.
    base (str): What the others are compared with.
    """

    means: dict[str, float]
    spread: float | None
    margins: dict[str, float]
    base: str
    seeds: int

    def difference(self, name: str) -> float:
        return self.means[name] - self.means[self.base]

    def is_told(self, name: str) -> bool:
        """Whether the difference is more than chance."""
        return name in self.margins and abs(self.difference(name)) > self.margins[name]

    @property
    def best(self) -> str:
        """The one with the highest mean. Of several, the first one."""
        return max(self.means, key=lambda name: self.means[name])

    @property
    def winner(self) -> str:
        """The best of those that are better by more than chance, or what there was."""
        better = [name for name in self.means if self.is_told(name) and self.difference(name) > 0]
        return max(better, key=lambda name: self.means[name], default=self.base)

    def seeds_for(self, name: str) -> int | None:
        """With how many seeds a difference as found would be more than chance. None: with too many."""
        if self.spread is None or not self.difference(name):
            return None
        k = len(self.means)
        for seeds in range(self.seeds + 1, _MOST_SEEDS + 1):
            if abs(self.difference(name)) > _margin(self.spread, k * (seeds - 1), k - 1, 2 / seeds):
                return seeds
        return None


def compare(scores: Mapping[str, Sequence[float]], base: str) -> Comparison:
    """Compare scores.

    scores (Mapping[str, Sequence[float]]): Of each way to train, one for each seed, and at least one.
    base (str): That which the others are compared with.
    """
    means = {name: fmean(found) for name, found in scores.items()}
    freedom = sum(len(found) - 1 for found in scores.values())
    seeds = max(map(len, scores.values()))
    if not freedom:
        return Comparison(means, None, {}, base, seeds)
    squares = sum((score - means[name]) ** 2 for name, found in scores.items() for score in found)
    spread = math.sqrt(squares / freedom)
    margins = {
        name: _margin(spread, freedom, len(scores) - 1, 1 / len(found) + 1 / len(scores[base]))
        for name, found in scores.items()
        if name != base
    }
    return Comparison(means, spread, margins, base, seeds)


def _margin(spread: float, freedom: int, comparisons: int, shares: float) -> float:
    return t_quantile(1 - _LEVEL / 2 / comparisons, freedom) * spread * math.sqrt(shares)


@lru_cache
def t_quantile(level: float, freedom: int) -> float:
    """Below which value Student's t is with a probability.

    level (float): The probability, 0.5 to 1, without 1.
    freedom (int): Degrees of freedom.
    """
    # With t = sqrt(freedom) tan(angle), its density is a power of the cosine.
    angles = numpy.linspace(0.0, math.pi / 2, 200_001)
    density = numpy.cos(angles) ** (freedom - 1)
    below = numpy.concatenate([[0.0], numpy.cumsum((density[1:] + density[:-1]) / 2)])
    angle = numpy.interp(2 * level - 1, below / below[-1], angles)
    return math.sqrt(freedom) * math.tan(angle)
