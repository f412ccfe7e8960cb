"""The learning rates of the last thousand steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_SNAPSHOTS = 1000


class Snapshot(NamedTuple):
    """One step of the controller.

    epoch (float | None): What the caller said.
    step (int): Counted from 0.
    rates (dict[str, float]): What was applied, by group.
    checksums (dict[str, str]): The identities of the groups. All steps until a change share one.
    time (float): By the controller's clock.
    """

    epoch: float | None
    step: int
    rates: dict[str, float]
    checksums: dict[str, str]
    time: float


class History(deque[Snapshot]):
    """The last snapshots, the oldest first."""

    def __init__(self) -> None:
        super().__init__(maxlen=MAX_SNAPSHOTS)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index] if isinstance(index, slice) else super().__getitem__(index)

    def state_dict(self) -> dict[str, Any]:
        """All snapshots, for JSON, with what they share kept once."""
        places: dict[tuple[tuple[str, str], ...], int] = {}
        snapshots = []
        for epoch, step, rates, checksums, time in self:
            place = places.setdefault(tuple(checksums.items()), len(places))
            snapshots.append([epoch, step, place, list(rates.values()), time])
        return {
            "layouts": [{"ids": [id for id, _ in of], "checksums": [sum for _, sum in of]} for of in places],
            "snapshots": snapshots,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> History:
        """RAISES (KeyError | IndexError | TypeError | ValueError): It is not the state of a history."""
        layouts = [dict(zip(saved["ids"], saved["checksums"])) for saved in state["layouts"]]
        history = cls()
        for epoch, step, place, rates, time in state["snapshots"]:
            checksums = layouts[place]
            history.append(Snapshot(epoch, int(step), dict(zip(checksums, map(float, rates))), checksums, float(time)))
        return history
