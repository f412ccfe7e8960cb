"""The learning rates of the last thousand steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from ..schema import Count, NotNegative, refuse

MAX_SNAPSHOTS = 1000


class Snapshot(NamedTuple):
    """One step of the controller.

    epoch (float | None): From the caller.
    step (int): Counted from 0.
    rates (dict[str, float]): The applied rates, by group.
    checksums (dict[str, str]): The identities of the groups. All steps until a change share one dict.
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

    @property
    def state(self) -> HistoryState:
        """All snapshots, with shared values kept once."""
        places: dict[tuple[tuple[str, str], ...], int] = {}
        snapshots = []
        for epoch, step, rates, checksums, time in self:
            place = places.setdefault(tuple(checksums.items()), len(places))
            snapshots.append(SavedSnapshot(epoch, step, place, list(rates.values()), time))
        return HistoryState([dict(layout) for layout in places], snapshots)

    @classmethod
    def of(cls, state: HistoryState, what: str) -> History:
        """RAISES (StateError): Snapshots have the wrong number of groups. what (str): For the error: the owner of the
        history.
        """
        history = cls()
        for i, found in enumerate(state.snapshots):
            layout = state.layouts[found.layout] if found.layout < len(state.layouts) else {}
            if len(layout) != len(found.rates):
                refuse(what, f"history/snapshots/{i}", f"one of {len(layout)} rates", f"{len(found.rates)}")
            history.append(Snapshot(found.epoch, found.step, dict(zip(layout, found.rates)), layout, found.time))
        return history


@dataclass
class SavedSnapshot:
    """A snapshot without shared values. layout (int): The index of its groups' ids and checksums."""

    epoch: Optional[float]
    step: Count
    layout: Count
    rates: list[NotNegative]
    time: float


@dataclass
class HistoryState:
    """The saved form of a history. layouts (list): Checksums by the ids of groups."""

    layouts: list[dict[str, str]]
    snapshots: list[SavedSnapshot]
