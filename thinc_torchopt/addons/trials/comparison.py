"""Test whether one of several candidates is better than the base, or only by chance.

Each candidate was trained with several seeds. *spread*: the standard deviation of scores between seeds, pooled over all
candidates, as each has few seeds. *margin*: the largest difference between two means that may be chance, from Student's
t at a level of 95% for all comparisons together (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import numpy

_LEVEL = 0.05
# The most seeds that are advised.
_MOST_SEEDS = 30


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    means (dict[str, float]): The mean score of each candidate.
    spread (float | None): None: there is only one seed.
    margins (dict[str, float]): For each candidate but the base, the largest difference that may be chance.
    base (str): The candidate that the others are compared with.
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
        """The candidate with the highest mean; the first one of several."""
        return max(self.means, key=lambda name: self.means[name])

    @property
    def winner(self) -> str:
        """The best candidate that is better by more than chance, or the base."""
        better = [name for name in self.means if self.is_told(name) and self.difference(name) > 0]
        return max(better, key=lambda name: self.means[name], default=self.base)

    def seeds_for(self, name: str) -> int | None:
        """The number of seeds with which the found difference would be more than chance. None: too many."""
        if self.spread is None or not self.difference(name):
            return None
        k = len(self.means)
        for seeds in range(self.seeds + 1, _MOST_SEEDS + 1):
            if abs(self.difference(name)) > _margin(self.spread, k * (seeds - 1), k - 1, 2 / seeds):
                return seeds
        return None


def compare(scores: Mapping[str, Sequence[float]], base: str) -> Comparison:
    """Compare scores.

    scores (Mapping[str, Sequence[float]]): For each candidate, one score per seed, and at least one.
    base (str): The candidate that the others are compared with.
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
    """A quantile of Student's t distribution.

    level (float): The probability, from 0.5 to below 1.
    freedom (int): Degrees of freedom.
    """
    # With t = sqrt(freedom) tan(angle), its density is a power of the cosine.
    angles = numpy.linspace(0.0, math.pi / 2, 200_001)
    density = numpy.cos(angles) ** (freedom - 1)
    below = numpy.concatenate([[0.0], numpy.cumsum((density[1:] + density[:-1]) / 2)])
    angle = numpy.interp(2 * level - 1, below / below[-1], angles)
    return math.sqrt(freedom) * math.tan(angle)
