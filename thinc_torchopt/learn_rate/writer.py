"""The one writer of learning rates: nothing else in the package writes the `lr` of a torch param group.

Each `step` first compares every param group with its last state, then writes the rates of the groups' sources. It
restores, adopts, or raises changes by other code: `on_outside_write`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch

from ..checks import Section
from ..errors import ConfigError, LearnRateIntegrityError, LearnRateWarning
from ..schema import Count, NotNegative, write
from ..types import OnOutsideWrite
from .groups import Group, PolicyRate, WatchedGroup, rate_of
from .history import History, HistoryState, Snapshot
from .policies import Constant, check_rate
from .watch import WatchedOptimizer

# All writers that have, or had, an optimizer.
_known: WeakSet[RateWriter] = WeakSet()


def driver_of(optimizer: torch.optim.Optimizer) -> RateWriter | None:
    """The writer of an optimizer's rates, if any."""
    return next((writer for writer in _known if writer.drives(optimizer)), None)


class RateWriter:
    """Writes the learning rates of torch optimizers. Not thread-safe, and can't be pickled.

    on_outside_write ("restore" | "adopt" | "raise"): What to do when other code wrote a rate. Restore the value, and
        warn once per group; or let the source continue from the new value; or raise LearnRateIntegrityError.
    clock (Callable): The time of snapshots, in seconds.
    enable_runtime_guards (bool): Check integrity. False: rates that other code writes are used until the next `step`.
    RAISES (ConfigError): An invalid argument.

    Public: `step_count` (steps so far), `history` (the last 1,000 snapshots), `outside_writes` (the number of changes
        by other code), `scale` (multiplies all rates from the next step on; 1 by default).
    """

    def __init__(
        self,
        *,
        on_outside_write: OnOutsideWrite = "restore",
        clock: Callable[[], float] = time.time,
        enable_runtime_guards: bool = True,
    ):
        section = Section("the learn rate controller")
        section.choice("on_outside_write", on_outside_write, ("restore", "adopt", "raise"))
        self.on_outside_write: OnOutsideWrite = on_outside_write
        self.enable_runtime_guards = section.flag("enable_runtime_guards", enable_runtime_guards)
        self.step_count = 0
        self.history = History()
        self.outside_writes = 0
        self.scale = 1.0
        self._clock = clock
        self._optimizers: dict[str, WatchedOptimizer] = {}
        self._groups: dict[str, WatchedGroup] = {}
        self._checksums: dict[str, str] | None = None  # cache: of the current groups
        _known.add(self)

    # ------------------------------------------------------------------ one step

    def step(self, epoch: float | None = None, *, scale: float = 1.0) -> dict[str, float]:
        """Write the rates of the next step.

        epoch (float): For the history.
        scale (float): Multiplies all rates, of this step only; beside `self.scale`.
        RETURNS (dict[str, float]): The written rates, by group.
        RAISES (ConfigError): A source gives an invalid rate. Nothing is written then. (LearnRateIntegrityError): Other
            code wrote to a group, and `on_outside_write` is "raise".
        """
        self._check(self._optimizers.values())
        rates = self._write_all(epoch, scale)
        self.step_count += 1
        return rates

    def _write_all(self, epoch: float | None, scale: float) -> dict[str, float]:
        """Write the rates of all groups. Arguments and errors are those of `step`."""
        for optimizer in self._optimizers.values():
            optimizer.have_the_last_word()
        step, wanted = self.step_count, self._wanted_rates()
        scale *= self.scale
        for watched, rate in zip(self._groups.values(), wanted):
            if not 0.0 <= rate * scale < math.inf:
                check_rate(rate * scale, watched.id)
        rates = {}
        for watched, rate in zip(self._groups.values(), wanted):
            watched.rate = rate
            rates[watched.id] = self._write(watched, rate * scale)
        if self._is_recorded(step):
            self.history.append(Snapshot(epoch, step, rates.copy(), self.checksums, self._clock()))
        return rates

    def _wanted_rates(self) -> list[float]:
        """The rates of all groups at the next step, without the scale."""
        return [watched.rate_at(self.step_count) for watched in self._groups.values()]

    def _is_recorded(self, step: int) -> bool:
        """Whether the history gets a snapshot of this step."""
        return True

    def verify(self) -> list[LearnRateIntegrityError]:
        """Find changes by other code. Changes nothing."""
        return [error for of in self._optimizers.values() for error in of.differences(self.step_count)]

    @property
    def rates(self) -> dict[str, float]:
        """The last written rate of each group; before the first step, its initial rate."""
        return {id: watched.applied_rate for id, watched in self._groups.items()}

    def rate_to_come(self, watched: WatchedGroup) -> float:
        """The rate of a group at the next step."""
        return watched.rate_at(self.step_count) * self.scale

    @property
    def checksums(self) -> dict[str, str]:
        """The identity of each group: the names and shapes of its params, and its options. A new dict after each
        change.
        """
        if self._checksums is None:
            self._checksums = {id: watched.checksum for id, watched in self._groups.items()}
        return self._checksums

    # ------------------------------------------------------------------ optimizers and groups

    def drives(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it writes the rates of an optimizer."""
        return any(watched.optimizer is optimizer for watched in self._optimizers.values())

    def watch(self, of: WatchedOptimizer, groups: Sequence[tuple[WatchedGroup, Group]]) -> None:
        """Set the groups of an optimizer, after its owner made or changed them. Rates are still verified.

        groups (Sequence): All groups of its owner, each with torch's dict. Groups that other code added stay.
        """
        own = {id(group) for _, group in groups}
        there = {id(group) for group in of.optimizer.param_groups}
        before = set(of.groups)
        came = [watched for watched in of.groups if id(watched.group) in there - own]
        of.groups = [of.bind(watched, group) for watched, group in groups] + came
        for watched, _ in groups:
            if watched not in before:
                self._write(watched, watched.applied_rate)
        self._optimizers[of.name] = of
        self._update_groups(of)

    def note_ids(self) -> None:
        """Update after ids of groups have changed."""
        self._collect()

    def _optimizer(self, wanted: str | torch.optim.Optimizer) -> WatchedOptimizer:
        """RAISES (ConfigError): It is not registered."""
        for name, watched in self._optimizers.items():
            if wanted == name or watched.optimizer is wanted:
                return watched
        found = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise ConfigError(
            f"Can't find the optimizer: expected one of {sorted(self._optimizers)}, found {found}. Register it first."
        )

    def _update_groups(self, of: WatchedOptimizer) -> None:
        """Update after the groups of an optimizer have changed. Each gets its own tensor for its rate: torch shares one
        between all groups.
        """
        seen: set[int] = set()
        for watched in of.groups:
            if watched.lr_tensor is not None and id(watched.lr_tensor) in seen:
                watched.lr_tensor = watched.lr_tensor.detach().clone()
                self._write(watched, watched.applied_rate)
            seen.add(id(watched.lr_tensor))
        self._collect()

    def _collect(self) -> None:
        """Update everything that depends on the set of groups."""
        self._checksums = None
        groups = {watched.id: watched for of in self._optimizers.values() for watched in of.groups}
        # Not `id`: Python 3.12.1 takes that for a local name in the rest of the function.
        self._groups = {key: groups[key] for key in (*(key for key in self._groups if key in groups), *groups)}

    def _accept_groups(self, of: WatchedOptimizer, *, at_default: bool = False) -> None:
        """Accept the groups of an optimizer as they are, except for their rates.

        at_default (bool): Added groups get the policy of all its groups, or else that of the first one.
        """
        first = next(iter(of.groups), None)
        beside = None if first is None or not isinstance(first.source, PolicyRate) else first.source
        policy = of.policy if of.policy is not None or beside is None else beside.policy
        ids = set(self._groups)

        def watch_new(group: Group) -> WatchedGroup:
            id, rate, step = of.new_id(group, ids), rate_of(group), self.step_count
            ids.add(id)
            if not at_default or policy is None:
                return of.watch(WatchedGroup(id, PolicyRate(Constant(rate), rate, step, id), rate), group)
            base, start = (rate, step) if beside is None else (beside.base, beside.start)
            made = of.watch(WatchedGroup(id, PolicyRate(policy, base, start, id), rate), group)
            follows = first is not None and beside is not None and beside.policy is policy
            made.rate = first.applied_rate if follows and first is not None else made.rate_at(step)
            self._write(made, made.rate)
            return made

        of.accept(watch_new)
        self._update_groups(of)

    # ------------------------------------------------------------------ integrity

    def check_rates(self, name: str) -> None:
        """Handle rates that other code wrote since `step`: for owners that give torch some of the groups only while it
        steps.

        RAISES (LearnRateIntegrityError): Rates have changed, and `on_outside_write` is "raise".
        """
        if self.enable_runtime_guards and (found := self._optimizer(name).rate_differences(self.step_count)):
            self._handle(found, ())

    def _check(self, optimizers: Collection[WatchedOptimizer]) -> None:
        """Verify, and handle changes."""
        if not self.enable_runtime_guards or self._are_untouched(optimizers):
            return
        for watched in optimizers:
            if watched.keep_groups:
                watched.reclaim()
        if found := [error for watched in optimizers for error in watched.differences(self.step_count)]:
            self._handle(found, optimizers)
        else:  # the same groups in new dicts
            for watched in optimizers:
                self._accept_groups(watched)

    def _are_untouched(self, optimizers: Collection[WatchedOptimizer]) -> bool:
        return all(watched.is_untouched() for watched in optimizers)

    def _reaction_to(self, errors: list[LearnRateIntegrityError]) -> tuple[OnOutsideWrite, bool]:
        """The treatment of changes by other code, and whether to warn of them."""
        return self.on_outside_write, True

    def _handle(self, errors: list[LearnRateIntegrityError], optimizers: Collection[WatchedOptimizer]) -> None:
        """Handle changes.

        optimizers (Collection[WatchedOptimizer]): The optimizers to restore or to accept.
        RAISES (LearnRateIntegrityError): If `on_outside_write` is "raise". Its `others` are the other changes.
        """
        self.outside_writes += len(errors)
        how, warns = self._reaction_to(errors)
        if how == "raise":
            first, *first.others = errors
            raise first
        for optimizer in optimizers:
            if optimizer.keep_groups:
                optimizer.bring_back()
            if how == "restore":
                optimizer.put_back()
            self._accept_groups(optimizer, at_default=how == "restore")
        for error in errors:
            if error.what == "learn_rate":
                watched = self._groups[error.group]
                # Invalid rates are restored in any case.
                if how == "restore" or not 0.0 <= error.found < math.inf:
                    self._write(watched, watched.applied_rate)
                else:
                    watched.adopt(error.found)
        if warns:
            for error in errors:
                self._warn(error, restores=how == "restore")

    def _warn(self, error: LearnRateIntegrityError, *, restores: bool) -> None:
        """Warn once for each kind of change of a group, with what was done."""
        watched = self._groups.get(error.group)
        if watched is not None:
            if error.what in watched.warned_of:
                return
            watched.warned_of.add(error.what)
        done = (
            "The change was undone."
            if error.what == "taken_out" or (restores and error.can_be_undone)
            else "The change is kept."
        )
        if error.what == "group" and watched is not None:
            done = "It gets the default learn rate." if restores else "It keeps its learn rate."
        warnings.warn(LearnRateWarning(f"{error.fact} {done} {error.advice}"), stacklevel=5)

    # ------------------------------------------------------------------ writing

    def write_last_rates(self) -> None:
        """Write the last rates again, after a state was loaded."""
        for watched in self._groups.values():
            self._write(watched, watched.applied_rate)

    def _write(self, watched: WatchedGroup, rate: float) -> float:
        """Write a rate. RETURNS (float): The value in the group: a tensor may have less precision."""
        value: float | torch.Tensor = rate
        if watched.lr_tensor is not None:
            value = watched.lr_tensor
            with torch.no_grad():
                value.fill_(rate)  # in place: a captured graph reads this tensor
            rate = torch.tensor(rate, dtype=value.dtype).item()
        watched.group["lr"] = value
        watched.applied_rate = rate
        return rate

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """The state beside the groups, for JSON."""
        return {
            "step_count": self.step_count,
            "outside_writes": self.outside_writes,
            "scale": self.scale,
            "history": write(self.history.state),
        }

    def load(self, state: WriterState, what: str) -> None:
        """Resume from a saved state. Rates are written by `write_last_rates`.

        what (str): The owner of the state, for errors.
        RAISES (StateError): Snapshots have the wrong number of groups. Nothing changes then.
        """
        self.history = History.of(state.history, what)
        self.step_count, self.outside_writes, self.scale = state.step_count, state.outside_writes, state.scale


@dataclass
class WriterState:
    """The saved form of a writer."""

    step_count: Count
    outside_writes: Count
    scale: NotNegative
    history: HistoryState
