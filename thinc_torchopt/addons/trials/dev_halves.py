"""Judge a model on development data by which it was not chosen.

`spacy train` keeps the model with the best of many scores on the development data. The best of many is also the
luckiest, so its score is too good, and the more so the more often a training is evaluated. Here a model is *chosen* on
one half of the development data and *scored* on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy
from spacy.errors import Errors
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.training import Example

T = TypeVar("T")
# With more words of development data, evaluations would take longer than a short training.
MOST_WORDS = 50_000


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

    def score(self, examples: Any, *, per_component: bool = False) -> dict[str, Any]:
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


def resampled(score: Callable[[Sequence[T]], float], texts: Sequence[T], draws: int) -> list[float]:
    """Scores that other texts of the same kind might give: as many, drawn from these with replacement (bootstrap).

    All trainings get the same draws, so that they can be compared in pairs.
    """
    drawn: Any = numpy.random.default_rng(0).integers(len(texts), size=(draws, len(texts))) if texts else ()
    return [score([texts[i] for i in some]) for some in drawn]
