"""The learning rates of the last thousand steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, overload

MAX_SNAPSHOTS = 1000


class Snapshot(NamedTuple):
    """One step of the controller.

    epoch (float | None): What the caller said.
    step (int): Counted from 0.
    rates (dict[str, float]): What was applied, by group.
    checksums (dict[str, str]): The identities of the groups.
    time (float): By the controller's clock.
    """

    epoch: float | None
    step: int
    rates: dict[str, float]
    checksums: dict[str, str]
    time: float


class Layout:
    """The groups that there are, with their checksums, which are computed when needed. All steps until a change share one.

    ids (Sequence[str]): Of the groups.
    read_checksums (Callable): Makes the checksums of these groups as they are now, also if it is called later.
    """

    def __init__(self, ids: Sequence[str], read_checksums: Callable[[], Sequence[str]]):
        self.ids = tuple(ids)
        self._read_checksums = read_checksums

    @cached_property
    def checksums(self) -> tuple[str, ...]:
        return tuple(self._read_checksums())


class History(Sequence[Snapshot]):
    """The last snapshots, the oldest first. Kept as tuples, since a snapshot of 200 groups is two dicts of 200."""

    def __init__(self) -> None:
        self._rows: deque[tuple[float | None, int, Layout, tuple[float, ...], float]] = deque(maxlen=MAX_SNAPSHOTS)

    def append(self, epoch: float | None, step: int, layout: Layout, rates: tuple[float, ...], time: float) -> None:
        self._rows.append((epoch, step, layout, rates, time))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Snapshot]:
        return map(self._snapshot, self._rows)

    @overload
    def __getitem__(self, index: int) -> Snapshot: ...

    @overload
    def __getitem__(self, index: slice) -> list[Snapshot]: ...

    def __getitem__(self, index: int | slice) -> Snapshot | list[Snapshot]:
        if isinstance(index, slice):
            return [self._snapshot(row) for row in list(self._rows)[index]]
        return self._snapshot(self._rows[index])

    def state_dict(self) -> dict[str, Any]:
        """All snapshots, for JSON, with what they share kept once."""
        places: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
        snapshots = []
        for epoch, step, layout, rates, time in self._rows:
            place = places.setdefault((layout.ids, layout.checksums), len(places))
            snapshots.append([epoch, step, place, list(rates), time])
        layouts = [{"ids": list(ids), "checksums": list(checksums)} for ids, checksums in places]
        return {"layouts": layouts, "snapshots": snapshots}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> History:
        """RAISES (KeyError | IndexError | TypeError | ValueError): It is not the state of a history."""
        layouts = [Layout(saved["ids"], partial(tuple, list(saved["checksums"]))) for saved in state["layouts"]]
        history = cls()
        for epoch, step, place, rates, time in state["snapshots"]:
            history.append(epoch, int(step), layouts[place], tuple(map(float, rates)), float(time))
        return history

    @staticmethod
    def _snapshot(row: tuple[float | None, int, Layout, tuple[float, ...], float]) -> Snapshot:
        epoch, step, layout, rates, time = row
        return Snapshot(epoch, step, dict(zip(layout.ids, rates)), dict(zip(layout.ids, layout.checksums)), time)
