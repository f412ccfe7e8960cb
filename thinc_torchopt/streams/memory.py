"""A memory of old texts, from which some are learned again with each new one (experience replay).

It is a uniform sample of all that was seen, of constant size.
SOURCE: Vitter 1985, Random Sampling with a Reservoir, algorithm R.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ..schema import Count


@dataclass
class Memory:
    """A memory of lines. Draws from Python's global random generator.

    size (int): The most lines. seen (int): The lines that were offered. lines (list[str]): Those that are kept.
    """

    size: Count
    seen: Count = 0
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Offer a line, which is kept with a probability of size / seen."""
        self.seen += 1
        if len(self.lines) < self.size:
            self.lines.append(line)
        elif (place := random.randrange(self.seen)) < self.size:
            self.lines[place] = line

    def draw(self, n: int) -> list[str]:
        """Draw n different lines, or all if there are fewer."""
        return random.sample(self.lines, min(n, len(self.lines)))
