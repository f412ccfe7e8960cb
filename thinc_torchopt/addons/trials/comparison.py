"""Test whether one of several candidates is better than the base, or only by chance.

Each candidate was trained with the same seeds and scored on the same texts, so differences are taken in pairs. Chance
has two parts. *Seeds*: other weights and batches at the start. Their part is the variance that is left once each
candidate and each seed has its mean (a two-way layout), pooled over all candidates, as there are few seeds. *Texts*:
others of the same kind. Their part is that of the mean difference over texts that were drawn again, by `resampled`.

*error*: the standard error of a difference, from both. *margin*: the largest difference that may be chance, from
Student's t at a level of 95% for all comparisons together (Bonferroni; degrees of freedom by Welch and Satterthwaite).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import numpy
from spacy.errors import Errors
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.training import Example

from ...core.words import listed
from ...loop.data_stream import checksums_of

_LEVEL = 0.05
# The most seeds that are advised.
_MOST_SEEDS = 30
# With more degrees of freedom, Student's t is the normal distribution.
_MOST_FREEDOM = 10_000.0
# With more words of development data, evaluations would take longer than a short training.
MOST_WORDS = 50_000


@dataclass(frozen=True)
class Difference:
    """The mean score of a candidate less that of the base.

    of_seeds, of_texts (float): Its standard errors. freedom (int): Degrees of freedom of that of seeds.
    comparisons (int): How many differences are tested together.
    """

    value: float
    of_seeds: float
    of_texts: float
    freedom: int
    comparisons: int

    @property
    def error(self) -> float:
        """The standard error from both parts."""
        return math.hypot(self.of_seeds, self.of_texts)

    @property
    def margin(self) -> float:
        """The largest difference that may be chance."""
        if not self.error:
            return 0.0
        share = (self.of_seeds / self.error) ** 2
        freedom = self.freedom / share**2 if share else math.inf
        return t_quantile(1 - _LEVEL / 2 / self.comparisons, min(freedom, _MOST_FREEDOM)) * self.error

    @property
    def is_told(self) -> bool:
        """Whether it is more than chance."""
        return abs(self.value) > self.margin


class Sentences(NamedTuple):
    """The sentences of a verdict: a candidate is better; none is; one is ahead, and may be by chance.

    For `str.format`, with these names: best, base; means, of both; by, margin; points, which are the difference, its
    standard error, and the most that may be won, of 100; seeds; advice, which is empty or begins with a blank.
    """

    better: str
    not_better: str
    unclear: str


_OF_CANDIDATES = Sentences(
    "{best} is better than {base}: {means[0]:.4f} against {means[1]:.4f}. With {seeds} seeds, up to {margin:.4f} may "
    "be chance.",
    "Nothing is better than {base}. With {seeds} seeds, up to {margin:.4f} may be chance.",
    "Nothing is better by more than chance: {best} is ahead by {by:.4f}, and with {seeds} seeds up to {margin:.4f} may "
    "be chance.{advice}",
)


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    means (dict[str, float]): The mean score of each candidate, over the seeds that all of them have.
    differences (dict[str, Difference]): From the base, for each candidate but the base. Empty: one seed can't tell.
    base (str): The candidate that the others are compared with.
    seeds (int): How many seeds all candidates have.
    """

    means: dict[str, float]
    differences: dict[str, Difference]
    base: str
    seeds: int

    def difference(self, name: str) -> float:
        return self.means[name] - self.means[self.base]

    def is_told(self, name: str) -> bool:
        """Whether the difference is more than chance."""
        return name in self.differences and self.differences[name].is_told

    def cells(self, name: str) -> tuple[str, str]:
        """The difference with its standard error, and the verdict on it, for a table. Empty: there is none."""
        found = self.differences.get(name)
        if found is None:
            return "", ""
        verdict = (
            "better" if found.value > found.margin else "worse" if found.value < -found.margin else "may be chance"
        )
        return f"{found.value:+.4f} ± {found.error:.4f}", verdict

    @property
    def best(self) -> str:
        """The candidate with the highest mean; the first one of several."""
        return max(self.means, key=lambda name: self.means[name])

    @property
    def winner(self) -> str:
        """The best candidate that is better by more than chance, or the base."""
        return max([self.base, *filter(self.is_told, self.means)], key=lambda name: self.means[name])

    def verdict(self, base: str, sentences: Sentences = _OF_CANDIDATES) -> str:
        """The verdict in a line. base (str): The base in words."""
        best = self.best
        if not any(self.means.values()):
            return "Nothing can be said: all scores are 0. Try more --steps."
        if not self.differences:
            return (
                f"{best[:1].upper()}{best[1:]} has the best score, {self.means[best]:.4f}. One seed can't tell a "
                "difference from chance. Try --seeds 3."
            )
        if len(set(self.means.values())) == 1 and not any(found.of_seeds for found in self.differences.values()):
            same = f"{listed(list(self.means))} have the same scores"
            return f"Nothing can be said: {same}. Try fewer --steps, or more data to evaluate on."
        if self.winner != self.base:
            name, sentence = self.winner, sentences.better
        elif best != self.base:
            name, sentence = best, sentences.unclear
        else:
            name = max(self.differences, key=lambda name: self.differences[name].margin)
            sentence = sentences.not_better
        found, means = self.differences[name], (self.means[name], self.means[self.base])
        points = [100 * value for value in (found.value, found.error, max(found.value + found.margin, 0.0))]
        facts = {"means": means, "by": found.value, "margin": found.margin, "points": points, "seeds": self.seeds}
        return sentence.format(best=name, base=base, advice=self._advice(name), **facts)

    def _advice(self, name: str) -> str:
        """How to see whether a candidate is better. Empty: nobody knows."""
        found, enough = self.differences[name], self.seeds_for(name)
        if enough is not None:
            return f" If that is the true difference, --seeds {enough} would show it."
        if found.of_texts > found.of_seeds:
            return " More texts to evaluate on would help more than more seeds."
        return ""

    def seeds_for(self, name: str) -> int | None:
        """The number of seeds with which the found difference would be more than chance. None: too many."""
        found = self.differences[name]
        for seeds in range(self.seeds + 1, _MOST_SEEDS + 1):
            freedom = found.freedom // (self.seeds - 1) * (seeds - 1)
            of_seeds = found.of_seeds * math.sqrt(self.seeds / seeds)
            if Difference(found.value, of_seeds, found.of_texts, freedom, found.comparisons).is_told:
                return seeds
        return None


def compare(
    scores: Mapping[str, Mapping[int, float]],
    base: str,
    resampled: Mapping[str, Mapping[int, Sequence[float]]] = {},
    *,
    comparisons: int | None = None,
) -> Comparison:
    """Compare scores. Only seeds that all candidates have count.

    scores (Mapping): For each candidate, one score per seed.
    base (str): The candidate that the others are compared with.
    resampled (Mapping): For each candidate and seed, the scores on texts that were drawn again, the same draws for all.
        Empty: the texts are taken as given.
    comparisons (int | None): How many differences are tested together. None: all from the base.
    """
    names = list(scores)
    seeds = [seed for seed in scores[base] if all(seed in found for found in scores.values())]
    if not seeds:
        return Comparison({name: fmean(found.values()) for name, found in scores.items()}, {}, base, 0)
    means = {name: fmean(scores[name][seed] for seed in seeds) for name in names}
    freedom = (len(names) - 1) * (len(seeds) - 1)
    if not freedom:
        return Comparison(means, {}, base, len(seeds))
    table = numpy.array([[scores[name][seed] for seed in seeds] for name in names])
    left = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    of_seeds = math.sqrt(2.0 * float((left**2).sum()) / freedom / len(seeds))

    def of_texts(name: str) -> float:
        if not resampled:
            return 0.0
        one, other = (numpy.mean([resampled[n][seed] for seed in seeds], axis=0) for n in (name, base))
        return float(numpy.std(one - other, ddof=1))

    differences = {
        name: Difference(means[name] - means[base], of_seeds, of_texts(name), freedom, comparisons or len(names) - 1)
        for name in names
        if name != base
    }
    return Comparison(means, differences, base, len(seeds))


@lru_cache
def t_quantile(level: float, freedom: float) -> float:
    """A quantile of Student's t distribution.

    level (float): The probability, from 0.5 to below 1.
    freedom (float): Degrees of freedom.
    """
    # With t = sqrt(freedom) tan(angle), its density is a power of the cosine.
    angles = numpy.linspace(0.0, math.pi / 2, 20_001)
    density = numpy.cos(angles) ** (freedom - 1)
    below = numpy.concatenate([[0.0], numpy.cumsum(density[1:] + density[:-1])])
    angle = numpy.interp(2 * level - 1, below / below[-1], angles)
    return math.sqrt(freedom) * math.tan(angle)


T = TypeVar("T")


def thinned(dev: Sequence[Example]) -> list[Example]:
    """As many texts as have about `MOST_WORDS`, from all parts of the data; two at least, one for each half."""
    every = min(-(-sum(map(len, dev)) // MOST_WORDS), len(dev) // 2)
    return list(dev[:: max(every, 1)])


def halves(dev: Sequence[T]) -> tuple[list[T], list[T]]:
    """Every second text, and the others, so that texts of a kind that stand together are in both halves.

    RETURNS (tuple): To choose by, and to score on. All of them twice, if there is only one.
    """
    return (list(dev[::2]), list(dev[1::2])) if len(dev) > 1 else (list(dev), list(dev))


class _Predictions(Scorer):
    """Keeps the texts as they are predicted, and leaves the scoring to others."""

    examples: Sequence[Example] = ()

    def score(self, examples: Any, **settings: Any) -> dict[str, Any]:
        self.examples = list(examples)
        return {}


def predict(nlp: Language, examples: Sequence[Example]) -> Sequence[Example]:
    """Predict examples as `Language.evaluate` does. RETURNS (Sequence[Example]): Copies with predictions."""
    found = _Predictions(nlp)
    nlp.evaluate(examples, scorer=found)
    return found.examples


def score(nlp: Language, predicted: Sequence[Example], weights: Mapping[str, float | None]) -> float:
    """The main score of a training, as `spacy train` computes it.

    predicted (Sequence[Example]): From `predict`, or some of them. weights (Mapping): `score_weights` in [training].
    RAISES (ValueError): A weight is for scores by label. RAISES (KeyError): A component has no annotation to score.
    """
    try:
        found, total = Scorer(nlp).score(predicted), 0.0
    except KeyError as error:
        raise KeyError(Errors.E900.format(pipeline=nlp.pipe_names)) from error
    for name, weight in weights.items():
        value = found.get(name)
        if weight is None or value is None:
            continue
        if not isinstance(value, (int, float)):
            raise ValueError(Errors.E915.format(name=name, score_type=type(value)))
        total += weight * float(value)
    return total


def part_of(train: Sequence[Example], share: float, seed: int) -> list[Example]:
    """A part of the training texts, drawn by a seed. A larger share has all texts of a smaller one, and each has the
    same texts whatever their order, which it keeps.

    share (float): Of the number of texts, above 0.
    """
    checksums = checksums_of(train)
    drawn = sorted(range(len(train)), key=checksums.__getitem__)
    Random(seed).shuffle(drawn)
    return [train[i] for i in sorted(drawn[: size_of_part(share, len(train))])]


def size_of_part(share: float, texts: int) -> int:
    """The number of texts of a part. texts (int): All of them."""
    return max(round(share * texts), 1)


def resampled(score: Callable[[Sequence[T]], float], texts: Sequence[T], draws: int) -> list[float]:
    """Scores that other texts of the same kind might give: as many, drawn from these with replacement (bootstrap).

    All trainings get the same draws, so that they can be compared in pairs.
    """
    drawn: Any = numpy.random.default_rng(0).integers(len(texts), size=(draws, len(texts))) if texts else ()
    return [score([texts[i] for i in some]) for some in drawn]
