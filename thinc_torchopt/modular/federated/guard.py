"""`[federated.guard]`: how far a client's update may be from those of the others.

A wrong model mostly shows in the norm of its update, the change of all weights in a round. Its limit is a multiple of
the median over the clients of the round, which less than half of them can't move. A small wrong update passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ...checks import Section

GUARD = Section("[federated.guard]")
# A median of fewer numbers is a mean, or one of them.
LEAST = 3


@dataclass(frozen=True)
class GuardSettings:
    """The settings in [federated.guard]: see `UpdateGuard`."""

    times: float

    def limits(self, norms: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """The highest norms that pass, by kind. Without a limit: kinds with fewer than three norms, or all zero.

        norms (Mapping): By client and kind.
        """
        kinds = {kind for own in norms.values() for kind in own}
        found = {kind: [own[kind] for own in norms.values() if kind in own] for kind in sorted(kinds)}
        return {
            kind: self.times * middle
            for kind, values in found.items()
            if len(values) >= LEAST and (middle := median(values)) > 0.0
        }


def UpdateGuard(*, times: float = 3.0) -> GuardSettings:
    """Leave out updates of clients that are much larger than the others. Registered as `thinc-torchopt.UpdateGuard.v1`.

    Checked are the norm of a client's change of the weights, and the norms of its auxiliary variables, as SCAFFOLD has
    them. A round with fewer than three reports is not checked.

    times (float): The limit, in medians over the clients of the round.
    RAISES (ConfigError): An argument is out of its range.
    """
    return GuardSettings(GUARD.number("times", times, above=1.0))
