"""All optimizers and groups that the learn rate controller watches, and its policies, each once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from ..errors import ConfigError
from .groups import Group, WatchedGroup
from .policies import Policy, source_of
from .watch import WatchedOptimizer


class Watched:
    """What is watched. `changed` comes after each change of the groups.

    Public: `optimizers` (by name), `groups` (by id), `observing` and `advancing` (the policies, or their sources, that
    have such a method, each once).
    """

    def __init__(self) -> None:
        self.optimizers: dict[str, WatchedOptimizer] = {}
        self.groups: dict[str, WatchedGroup] = {}
        self.observing: list[Any] = []
        self.advancing: list[Any] = []
        self._checksums: dict[str, str] | None = None  # of the groups as they are now, when they were asked for

    def optimizer(self, wanted: str | torch.optim.Optimizer) -> WatchedOptimizer:
        """An optimizer. RAISES (ConfigError): It is not registered."""
        for name, watched in self.optimizers.items():
            if wanted == name or watched.optimizer is wanted:
                return watched
        found = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise ConfigError(
            f"Can't find the optimizer: expected one of {sorted(self.optimizers)}, found {found}. Register it first."
        )

    def group(self, id: str) -> WatchedGroup:
        """A group. RAISES (ConfigError): There is none of that id."""
        if id not in self.groups:
            raise ConfigError(
                f"Can't change the rate of param group '{id}': expected one of {', '.join(self.groups) or 'none'}."
            )
        return self.groups[id]

    @property
    def size(self) -> tuple[int, int]:
        """How many groups and params there are."""
        return len(self.groups), sum(len(watched.params) for watched in self.groups.values())

    @property
    def checksums(self) -> dict[str, str]:
        """The identity of each group: the names and shapes of its params, and its options. Another dict after each
        change.
        """
        if self._checksums is None:
            self._checksums = {id: watched.identity.checksum for id, watched in self.groups.items()}
        return self._checksums

    def count_in(
        self,
        of: WatchedOptimizer,
        group: Group,
        policy: Policy,
        base: float,
        start: int,
        *,
        parent: WatchedGroup | None = None,
        id: str | None = None,
    ) -> WatchedGroup:
        """Count a group in. Its place in `of.groups` is the caller's business. The arguments are those of
        WatchedGroup.
        """
        made = WatchedGroup(of.new_id(group, self.groups) if id is None else id, policy, base, start, parent)
        self.groups[made.id] = of.watch(made, group)
        return made

    def rename(self, ids: Mapping[str, str]) -> None:
        """Give groups other ids. ids (Mapping[str, str]): The new one of each group by its old one; all different."""
        self.groups = {ids[watched.id]: watched for watched in self.groups.values()}
        for id, watched in self.groups.items():
            watched.id = id
        self.changed()

    def forget(self, gone: Collection[WatchedGroup]) -> None:
        """Count groups out."""
        for watched in gone:
            del self.groups[watched.id]
        self.changed()

    def changed(self) -> None:
        """Find out what depends on the set of groups."""
        self._checksums = None
        sources = {
            id(source): source for source in (source_of(watched.policy) for watched in self.groups.values())
        }.values()
        self.observing = [source for source in sources if hasattr(source, "observe")]
        self.advancing = [source for source in sources if hasattr(source, "advance")]
