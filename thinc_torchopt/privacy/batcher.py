"""Batches by Poisson sampling: `thinc-torchopt.poisson.v1` in spaCy's registry of batchers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from ..checks import Section

_SECTION = Section("[training.batcher]")


class PoissonBatcher:
    """See `poisson`.

    size (int): The number of examples that a batch has on average.

    Public: `size`, `population` (the number of examples; 0: unknown before the first batch).
    """

    def __init__(self, size: int):
        self.size = size
        self.population = 0

    @property
    def sample_rate(self) -> float:
        """The probability of each example to be in a batch."""
        return self.size / self.population

    def __call__(self, items: Iterable[Any]) -> Iterator[list[Any]]:
        examples = list(items)
        self.population = len(examples)
        if self.size > self.population:
            _SECTION.refuse("size", f"at most the number of examples, {self.population}", self.size)
        for _ in range(max(1, round(self.population / self.size))):
            yield [example for example in examples if random.random() < self.sample_rate]


def poisson(size: int) -> PoissonBatcher:
    """Batches in which each example is with the same probability, whatever the others are. Registered as
    `thinc-torchopt.poisson.v1`.

    Batches have different sizes, and may be empty. An epoch has as many batches as it would have by that size; examples
    may be in none of them, or in several. For private training, whose accounting needs just this.

    size (int): The number of examples that a batch has on average: examples, not words.
    RETURNS (Callable): The batcher for [training.batcher].
    RAISES (ConfigError): `size` is below 1, or above the number of examples.
    """
    return PoissonBatcher(_SECTION.whole("size", size, at_least=1))
