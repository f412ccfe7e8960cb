"""All optimizers and groups that the learn rate controller watches, and its policies, each once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any
from weakref import WeakSet

import torch

from ..errors import ConfigError
from .by_name import PolicyReader
from .conservative import CircuitBreaker
from .groups import Group, WatchedGroup
from .policies import Policy, source_of
from .runtime_guards import RuntimeGuards
from .watch import Hooked, WatchedOptimizer

# All that have, or had, an optimizer to drive.
_known: WeakSet[Watched] = WeakSet()


def driver_of(optimizer: torch.optim.Optimizer) -> Watched | None:
    """The controller that drives an optimizer, if one does."""
    return next((controller for controller in _known if controller.drives(optimizer)), None)


class Watched(ABC):
    """The part of the controller that knows which optimizers and groups there are. See LearnRateController for what is
    public.
    """

    def __init__(self, breaker: CircuitBreaker, guards: RuntimeGuards):
        self.breaker = breaker
        self.guards = guards
        self.step_count = 0
        self._optimizers: dict[str, WatchedOptimizer] = {}
        self._groups: dict[str, WatchedGroup] = {}  # by id
        # The policies, or their sources, that have such a method, each once.
        self._observing: list[Any] = []
        self._advancing: list[Any] = []
        self._reader = PolicyReader()
        self._checksums: dict[str, str] | None = None  # of the groups as they are now, when they were asked for
        _known.add(self)

    def drives(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer is registered."""
        return any(watched.optimizer is optimizer for watched in self._optimizers.values())

    @abstractmethod
    def _write(self, watched: WatchedGroup, rate: float) -> float:
        """Write a rate. RETURNS (float): What then stands in the group."""

    @abstractmethod
    def _before_step(
        self,
        watched_optimizer: WatchedOptimizer,
        optimizer: torch.optim.Optimizer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Hooked | None:
        """Runs before each step of an optimizer."""

    def took(self, kind: str, started: float) -> None:
        """Look how long something took that has a budget: what is too slow twice in a row, or more often, is told to
        the breaker.

        kind (str): A key of `overruns`. started (float): When it began, by `guards.timer`.
        """
        if self.guards.ended(kind, started, self._size, self.step_count):
            self.breaker.was_slow()

    def _size(self) -> tuple[int, int]:
        groups = self._groups
        return len(groups), sum(len(watched.params) for watched in groups.values())

    def _optimizer(self, wanted: str | torch.optim.Optimizer) -> WatchedOptimizer:
        """An optimizer. RAISES (ConfigError): It is not registered."""
        for name, watched in self._optimizers.items():
            if wanted == name or watched.optimizer is wanted:
                return watched
        found = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise ConfigError(
            f"Can't find the optimizer: expected one of {sorted(self._optimizers)}, found {found}. Register it first."
        )

    @property
    def checksums(self) -> dict[str, str]:
        """The identity of each group: the names and shapes of its params, and its options. Another dict after each
        change.
        """
        if self._checksums is None:
            self._checksums = {id: watched.identity.checksum for id, watched in self._groups.items()}
        return self._checksums

    def _watch(
        self,
        of: WatchedOptimizer,
        group: Group,
        policy: Policy,
        base: float,
        *,
        start: int | None = None,
        parent: WatchedGroup | None = None,
        id: str | None = None,
    ) -> WatchedGroup:
        """Count a group in. Its place in `of.groups` is the caller's business. The arguments are those of
        WatchedGroup.
        """
        made = WatchedGroup(
            of.new_id(group, self._groups) if id is None else id,
            policy,
            base,
            self.step_count if start is None else start,
            parent,
        )
        self._groups[made.id] = of.watch(made, group)
        return made

    def _changed(self, of: WatchedOptimizer | None = None) -> None:
        """Find out what depends on the set of groups. of (WatchedOptimizer): Whose groups have changed."""
        seen: set[int] = set()
        for watched in [] if of is None else of.groups:
            # Each group gets a tensor of its own for its rate: torch puts the one that it was given into all groups.
            if watched.lr_tensor is not None and id(watched.lr_tensor) in seen:
                watched.lr_tensor = watched.lr_tensor.detach().clone()
                self._write(watched, watched.applied_rate)
            seen.add(id(watched.lr_tensor))
        self._checksums = None
        sources = {
            id(source): source for source in (source_of(watched.policy) for watched in self._groups.values())
        }.values()
        self._observing = [source for source in sources if hasattr(source, "observe")]
        self._advancing = [source for source in sources if hasattr(source, "advance")]

    def _forget(self, gone: Collection[WatchedGroup]) -> None:
        for watched in gone:
            del self._groups[watched.id]
        self._changed()
