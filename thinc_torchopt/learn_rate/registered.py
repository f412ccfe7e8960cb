"""The optimizers under the learn rate controller, with all of their groups: how they come, change, and go.

Nothing here writes a rate by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch

from ..errors import ConfigError
from .by_name import PolicyReader
from .groups import Group, WatchedGroup, rate_of
from .policies import Constant, Policy, PolicyLike, check_rate, source_of
from .watch import Hooked, WatchedOptimizer, warn_of_steps


class Registered:
    """Optimizers, by name.

    write (Callable): Writes a rate into a group.
    before_step (Callable): Called before each step of an optimizer, with that and what torch gives to such a hook.

    Public: `by_name` (the optimizers), `groups` (those of all of them, by id), and, each once, those policies that are `watching` metrics or
    `moving` with the steps.
    """

    def __init__(self, write: Callable[[WatchedGroup, float], float], before_step: Callable[..., Hooked | None]):
        self.by_name: dict[str, WatchedOptimizer] = {}
        self.groups: dict[str, WatchedGroup] = {}
        self.watching: list[Any] = []
        self.moving: list[Any] = []
        self.reader = PolicyReader()
        self._checksums: dict[str, str] | None = None
        self._write = write
        self._before_step = before_step

    def find(self, wanted: str | torch.optim.Optimizer) -> WatchedOptimizer:
        """An optimizer. RAISES (ConfigError): It is not registered."""
        for name, watched in self.by_name.items():
            if wanted == name or watched.optimizer is wanted:
                return watched
        found = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise ConfigError(f"Can't find the optimizer: expected one of {sorted(self.by_name)}, found {found}. Register it first.")

    @property
    def checksums(self) -> dict[str, str]:
        """The identities of the groups, which are computed when they are needed. Another dict after each change."""
        if self._checksums is None:
            self._checksums = {id: watched.identity.checksum for id, watched in self.groups.items()}
        return self._checksums

    # ------------------------------------------------------------------ optimizers

    def add(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        policy: PolicyLike | Mapping[int | str, PolicyLike],
        settings: Mapping[str, Any],
        step: int,
        **of_optimizer: Any,
    ) -> WatchedOptimizer:
        """As `register_optimizer` of the controller. of_optimizer (Any): Arguments of WatchedOptimizer."""
        if not isinstance(name, str) or not name or not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"Can't register an optimizer as {name!r}: expected a name and a torch optimizer, found {type(optimizer).__name__}."
            )
        for other in self.by_name.values():
            if other.name == name or other.optimizer is optimizer:
                taken = "name" if other.name == name else f"optimizer, known as '{other.name}'"
                raise ConfigError(f"Can't register optimizer '{name}': expected a new one, found this {taken}. Unregister it first.")
        added = WatchedOptimizer(name, optimizer, **of_optimizer)
        policies = self.reader.read_all(policy, name, optimizer.param_groups, settings)
        if not isinstance(policy, Mapping):
            added.policy = policies[0] if policies else self.reader.read(policy, name, settings)
        rates = [check_rate(rate_of(group), f"{name}/{i}") for i, group in enumerate(optimizer.param_groups)]
        for group, of_group, rate in zip(optimizer.param_groups, policies, rates):
            added.groups.append(self.watch(added, group, of_group, rate, step))
        self._hook_into(added)
        self.by_name[name] = added
        self.changed(added)
        return added

    def remove(self, name: str) -> None:
        """As `unregister_optimizer` of the controller."""
        gone = self.find(name)
        gone.unhook()
        del self.by_name[gone.name]
        self._forget(gone.groups)

    def replace(
        self,
        old: str | torch.optim.Optimizer,
        new: torch.optim.Optimizer,
        step: int,
        param_names: Mapping[torch.Tensor, str] | None,
    ) -> None:
        """As `replace_optimizer` of the controller."""
        moved = self.find(old)
        replaced = moved.optimizer
        groups, n_groups = getattr(new, "param_groups", None), len(replaced.param_groups)
        if not isinstance(new, torch.optim.Optimizer) or len(new.param_groups) != n_groups:
            found = type(new).__name__ if groups is None else f"one with {len(groups)}"
            raise ConfigError(
                f"Can't replace optimizer '{moved.name}': expected a torch optimizer with {n_groups} param groups, found {found}. Build it "
                "by preserve_optimizer_state, or unregister the old one and register the new one."
            )
        if any(other.optimizer is new for other in self.by_name.values()):
            raise ConfigError(f"Can't replace optimizer '{moved.name}': expected a new one, found one that is registered already.")
        moved.unhook()
        if param_names is not None and moved.param_names:
            moved.param_names = param_names
        self._forget(moved.move_to(new))
        self.take(moved, step)
        for watched in moved.groups:
            self._write(watched, watched.applied_rate)
        self._hook_into(moved)
        warn_of_steps(replaced, moved.name, step)

    def take(self, of: WatchedOptimizer, step: int, *, at_default: bool = False) -> None:
        """Take the groups of an optimizer as they now are, except for their rates.

        at_default (bool): Groups that came get the policy that holds for all of its groups, or else the rates of the first one.
        """
        first = next(iter(of.groups), None)
        policy = of.policy if first is None or of.policy is not None else first.policy

        def take_in(group: Group) -> WatchedGroup:
            rate = rate_of(group)
            if not at_default or policy is None:
                return self.watch(of, group, Constant(rate), rate, step)
            base, start = (rate, step) if first is None else (first.base, first.start)
            made = self.watch(of, group, policy, base, start)
            made.rate = first.applied_rate if first is not None and first.policy is policy else made.rate_at(step)
            self._write(made, made.rate)
            return made

        self._forget(of.accept(take_in))
        self.changed(of)

    def _hook_into(self, of: WatchedOptimizer) -> None:
        of.hook_in(partial(self._before_step, of))

    # ------------------------------------------------------------------ groups

    def add_group(
        self,
        name: str,
        group: Group,
        policy: PolicyLike,
        step: int,
        *,
        id: str | None,
        param_names: Mapping[torch.Tensor, str] | None,
        adopted: tuple[float, float | None],
    ) -> WatchedGroup:
        """As `add_group` of the controller."""
        of = self.find(name)
        place = next((i for i, other in enumerate(of.optimizer.param_groups) if other is group), None)
        if place is None or any(watched.group is group for watched in of.groups) or id in self.groups:
            raise ConfigError(
                f"Can't take in a param group of optimizer '{name}': expected one in optimizer.param_groups that is new, and a new id, "
                f"found {id!r} of {sorted(self.groups)}."
            )
        if param_names is not None:
            of.param_names = param_names
        id = of.new_id(group, self.groups) if id is None else id
        made = self.watch(of, group, self.reader.read(policy, id), check_rate(rate_of(group), id), step, id=id)
        made.factor, made.held_rate = adopted
        of.groups.insert(place, made)
        self.changed(of)
        return made

    def watch(
        self,
        of: WatchedOptimizer,
        group: Group,
        policy: Policy,
        base: float,
        start: int,
        parent: WatchedGroup | None = None,
        id: str | None = None,
    ) -> WatchedGroup:
        """Count a group in. Its place in `of.groups` is the caller's business. The arguments are those of WatchedGroup."""
        made = WatchedGroup(of.new_id(group, self.groups) if id is None else id, policy, base, start, parent)
        self.groups[made.id] = of.watch(made, group)
        return made

    def rename(self, ids: Mapping[str, str]) -> None:
        """Give groups other ids. ids (Mapping[str, str]): The new one of each group by its old one; all different."""
        self.groups = {ids[watched.id]: watched for watched in self.groups.values()}
        for id, watched in self.groups.items():
            watched.id = id
        self.changed()

    def changed(self, of: WatchedOptimizer | None = None) -> None:
        """Find out what depends on the set of groups. of (WatchedOptimizer): Whose groups have changed."""
        seen: set[int] = set()
        for watched in [] if of is None else of.groups:
            # Each group gets a tensor of its own for its rate: torch puts the one that it was given into all groups.
            if watched.lr_tensor is not None and id(watched.lr_tensor) in seen:
                watched.lr_tensor = watched.lr_tensor.detach().clone()
                self._write(watched, watched.applied_rate)
            seen.add(id(watched.lr_tensor))
        self._checksums = None
        sources = {id(source): source for source in (source_of(watched.policy) for watched in self.groups.values())}.values()
        self.watching = [source for source in sources if hasattr(source, "observe")]
        self.moving = [source for source in sources if hasattr(source, "advance")]

    def _forget(self, gone: Collection[WatchedGroup]) -> None:
        for watched in gone:
            del self.groups[watched.id]
        self.changed()
