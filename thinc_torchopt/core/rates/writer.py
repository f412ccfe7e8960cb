"""The one writer of learning rates: nothing else in the package writes the `lr` of a torch param group.

Each `step` first compares every param group with its last state, then writes the rates of the groups' sources. It
restores, adopts, or raises changes by other code: `on_outside_write`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

import torch

from ..checks import Section
from ..errors import ConfigError, ConfigTypeError, LearnRateIntegrityError, LearnRateWarning
from ..schema import Count, NotNegative, write
from ..types import OnOutsideWrite
from .records import FunctionRate, GroupRecord, OptimizerRecord, RateSource, TorchGroup, check_rate, rate_of

# The history has the rates of this many steps.
MAX_SNAPSHOTS = 1000
# All writers that have, or had, an optimizer.
_writers: WeakSet[RateWriter] = WeakSet()


def writer_of(optimizer: torch.optim.Optimizer) -> RateWriter | None:
    """The writer of an optimizer's rates, if any."""
    return next((writer for writer in _writers if writer.drives(optimizer)), None)


def warn_at_step(optimizer: torch.optim.Optimizer, message: Callable[[], str | None]) -> None:
    """Warn at the next step of an optimizer. message (Callable): Returns the message, or None for no warning."""
    left = [message]

    def warn(*_: Any) -> None:
        # A hook must not remove itself while torch iterates over hooks.
        if left and (text := left.pop()()) is not None:
            warnings.warn(LearnRateWarning(text), stacklevel=4)

    optimizer.register_step_pre_hook(warn)


class RateWriter:
    """Writes the learning rates of torch optimizers. Not thread-safe, and can't be copied or pickled.

    on_outside_write ("restore" | "adopt" | "raise"): What to do when other code wrote a rate. Restore the value, and
        warn once per group; or let the source continue from the new value; or raise LearnRateIntegrityError.
    clock (Callable): The time of snapshots, in seconds.
    enable_runtime_guards (bool): Check integrity. False: rates that other code writes are used until the next `step`.
    RAISES (ConfigError): An invalid argument.

    Public: `step_count` (steps so far), `history` (the last 1,000 snapshots, of this process), `outside_writes` (the
        number of changes by other code), `scale` (multiplies all rates from the next step on; 1 by default).
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
        self.history: deque[Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self.outside_writes = 0
        self.scale = 1.0
        self._clock = clock
        self._optimizers: dict[str, OptimizerRecord] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._checksums: dict[str, str] | None = None  # cache: of the current groups
        _writers.add(self)

    # ------------------------------------------------------------------ one step

    def step(self, epoch: float | None = None, *, scale: float = 1.0) -> dict[str, float]:
        """Write the rates of the next step.

        epoch (float): For the history.
        scale (float): Multiplies all rates, of this step only; beside `self.scale`.
        RETURNS (dict[str, float]): The written rates, by group.
        RAISES (ConfigError): A source gives an invalid rate. Nothing is written then. (LearnRateIntegrityError): Other
            code wrote to a group, and `on_outside_write` is "raise".
        """
        rates = self.write(scale)
        self._record(epoch, rates)
        self.step_count += 1
        return rates

    def write(self, scale: float) -> dict[str, float]:
        """Write the rates as `step` does, for a part of a step: it is not counted, and not in the history."""
        self._check(self._optimizers.values())
        return self._write_all(scale)

    def _write_all(self, scale: float) -> dict[str, float]:
        """Write the rates of all groups. Arguments and errors are those of `step`."""
        wanted = self._wanted_rates()
        scale *= self.scale
        for record, rate in zip(self._groups.values(), wanted):
            if not 0.0 <= rate * scale < math.inf:
                check_rate(rate * scale, record.label)
        rates = {}
        for record, rate in zip(self._groups.values(), wanted):
            record.rate = rate
            rates[record.label] = self._write(record, rate * scale)
        return rates

    def _record(self, epoch: float | None, rates: dict[str, float]) -> None:
        if self._is_recorded(self.step_count):
            self.history.append(Snapshot(epoch, self.step_count, rates.copy(), self.checksums, self._clock()))

    def _wanted_rates(self) -> list[float]:
        """The rates of all groups at the next step, without the scale."""
        return [record.rate_at(self.step_count) for record in self._groups.values()]

    def _is_recorded(self, step: int) -> bool:
        """Whether the history gets a snapshot of this step."""
        return True

    def verify(self) -> list[LearnRateIntegrityError]:
        """Find changes by other code. Changes nothing."""
        return [error for of in self._optimizers.values() for error in of.differences(self.step_count)]

    @property
    def learn_rates(self) -> dict[str, float]:
        """The last written rate of each group; before the first step, its initial rate."""
        return {label: record.applied_rate for label, record in self._groups.items()}

    def rate_to_come(self, record: GroupRecord) -> float:
        """The rate of a group at the next step."""
        return record.rate_at(self.step_count) * self.scale

    @property
    def checksums(self) -> dict[str, str]:
        """The identity of each group: the names and shapes of its params, and its options. A new dict after each
        change.
        """
        if self._checksums is None:
            self._checksums = {label: record.checksum for label, record in self._groups.items()}
        return self._checksums

    # ------------------------------------------------------------------ optimizers and groups

    def drives(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it writes the rates of an optimizer."""
        return any(record.optimizer is optimizer for record in self._optimizers.values())

    def set_groups(self, of: OptimizerRecord, groups: Sequence[tuple[GroupRecord, TorchGroup]]) -> None:
        """Set the groups of an optimizer, after its owner made or changed them. Rates are still verified.

        groups (Sequence): All groups of its owner, each with torch's dict. Groups that other code added stay.
        """
        own = {id(group) for _, group in groups}
        there = {id(group) for group in of.optimizer.param_groups}
        before = set(of.groups)
        added = [record for record in of.groups if id(record.group) in there - own]
        of.groups = [of.bind(record, group) for record, group in groups] + added
        for record, _ in groups:
            if record not in before:
                self._write(record, record.applied_rate)
        self._optimizers[of.name] = of
        self._update_groups(of)

    def update_labels(self) -> None:
        """Update after labels of groups have changed."""
        self._collect()

    def _optimizer(self, wanted: str | torch.optim.Optimizer) -> OptimizerRecord:
        """RAISES (ConfigError): It is not registered."""
        for name, record in self._optimizers.items():
            if wanted == name or record.optimizer is wanted:
                return record
        found = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise ConfigError(
            f"Can't find the optimizer: expected one of {sorted(self._optimizers)}, found {found}. Register it first."
        )

    def _update_groups(self, of: OptimizerRecord) -> None:
        """Update after the groups of an optimizer have changed. Each gets its own tensor for its rate: torch shares one
        between all groups.
        """
        seen: set[int] = set()
        for record in of.groups:
            if record.lr_tensor is not None and id(record.lr_tensor) in seen:
                record.lr_tensor = record.lr_tensor.detach().clone()
                self._write(record, record.applied_rate)
            seen.add(id(record.lr_tensor))
        self._collect()

    def _collect(self) -> None:
        """Update everything that depends on the set of groups."""
        self._checksums = None
        groups = {record.label: record for of in self._optimizers.values() for record in of.groups}
        known = [label for label in self._groups if label in groups]
        self._groups = {label: groups[label] for label in (*known, *groups)}

    def _accept_groups(self, of: OptimizerRecord, *, at_default: bool = False) -> None:
        """Accept the groups of an optimizer as they are, except for their rates.

        at_default (bool): Added groups get the default rate of the optimizer, if it has one.
        """
        labels, accepted = set(self._groups), []
        for record, group in of.pairs():
            if record is not None:
                accepted.append(of.bind(record, group))
                continue
            label, rate = of.new_label(group, labels), rate_of(group)
            labels.add(label)
            source, default = self._source_of_added(of, label, rate, at_default=at_default)
            added = of.add(GroupRecord(label, source, rate), group)
            if default is not None:
                added.rate = default
                self._write(added, default)
            accepted.append(added)
        of.groups = accepted
        self._update_groups(of)

    def _source_of_added(
        self, of: OptimizerRecord, label: str, rate: float, *, at_default: bool
    ) -> tuple[RateSource, float | None]:
        """The source of the rates of a group that other code added.

        rate (float): Its rate. at_default (bool): As of `_accept_groups`.
        RETURNS (tuple): With its new rate, or None if it keeps its own.
        """
        if not at_default or of.default_rate is None:
            return FunctionRate(lambda: rate), None
        return FunctionRate(of.default_rate), check_rate(of.default_rate(), label)

    # ------------------------------------------------------------------ integrity

    def check_rates(self, name: str) -> None:
        """Handle rates that other code wrote since `step`: for owners that give torch some of the groups only while it
        steps.

        RAISES (LearnRateIntegrityError): Rates have changed, and `on_outside_write` is "raise".
        """
        if self.enable_runtime_guards and (found := self._optimizer(name).rate_differences(self.step_count)):
            self._handle(found, ())

    def _check(self, optimizers: Collection[OptimizerRecord]) -> None:
        """Verify, and handle changes."""
        if not self.enable_runtime_guards or self._are_untouched(optimizers):
            return
        for of in optimizers:
            of.restore_dicts()
        self._handle([error for of in optimizers for error in of.differences(self.step_count)], optimizers)

    def _are_untouched(self, optimizers: Collection[OptimizerRecord]) -> bool:
        return all(record.is_untouched() for record in optimizers)

    def _reaction_to(self, errors: list[LearnRateIntegrityError]) -> tuple[OnOutsideWrite, bool]:
        """The treatment of changes by other code, and whether to warn of them."""
        return self.on_outside_write, True

    def _handle(self, errors: list[LearnRateIntegrityError], optimizers: Collection[OptimizerRecord]) -> None:
        """Handle changes.

        optimizers (Collection[OptimizerRecord]): The optimizers to restore or to accept.
        RAISES (LearnRateIntegrityError): If `on_outside_write` is "raise". Its `others` are the other changes.
        """
        self.outside_writes += len(errors)
        how, warns = self._reaction_to(errors) if errors else ("restore", False)
        if how == "raise":
            first, *first.others = errors
            raise first
        for of in optimizers:
            of.restore_groups()
            self._accept_groups(of, at_default=how == "restore")
        for error in errors:
            if error.what == "learn_rate":
                record = self._groups[error.group]
                # Invalid rates are restored in any case.
                if how == "restore" or not 0.0 <= error.found < math.inf:
                    self._write(record, record.applied_rate)
                else:
                    record.adopt(error.found)
        for error in errors if warns else ():
            self._warn(error, restores=how == "restore")

    def _warn(self, error: LearnRateIntegrityError, *, restores: bool) -> None:
        """Warn once for each kind of change of a group, with what was done."""
        record = self._groups.get(error.group)
        if record is not None:
            if error.what in record.warned_of:
                return
            record.warned_of.add(error.what)
        done = (
            "The change was undone."
            if error.what == "taken_out" or (restores and error.can_be_undone)
            else "The change is kept."
        )
        if error.what == "group" and record is not None:
            done = "It gets the default learn rate." if restores else "It keeps its learn rate."
        warnings.warn(LearnRateWarning(f"{error.fact} {done} {error.advice}"), stacklevel=5)

    # ------------------------------------------------------------------ writing

    def write_last_rates(self) -> None:
        """Write the last rates again, after a state was loaded."""
        for record in self._groups.values():
            self._write(record, record.applied_rate)

    def _write(self, record: GroupRecord, rate: float) -> float:
        """Write a rate. RETURNS (float): The value in the group: a tensor may have less precision."""
        value: float | torch.Tensor = rate
        if record.lr_tensor is not None:
            value = record.lr_tensor
            with torch.no_grad():
                value.fill_(rate)  # in place: a captured graph reads this tensor
            rate = torch.tensor(rate, dtype=value.dtype).item()
        record.group["lr"] = value
        record.applied_rate = rate
        return rate

    # ------------------------------------------------------------------ saving

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """RAISES (ConfigTypeError): Always: a copy would write to the same groups, or to copies that nobody steps."""
        name = type(self).__name__
        raise ConfigTypeError(
            f"Can't copy or pickle a {name}: it belongs to the optimizers whose rates it writes. Save its "
            f"state_dict(), and load that into a {name} of other optimizers."
        )

    def state_dict(self) -> dict[str, Any]:
        """The state beside the groups, for JSON."""
        return write(self, WriterState)

    def load(self, state: WriterState) -> None:
        """Resume from a saved state. Rates are written by `write_last_rates`."""
        self.step_count, self.outside_writes, self.scale = state.step_count, state.outside_writes, state.scale
        while self.history and self.history[-1].step >= self.step_count:
            self.history.pop()


@dataclass
class WriterState:
    """The saved form of a writer."""

    step_count: Count
    outside_writes: Count
    scale: NotNegative


class Snapshot(NamedTuple):
    """One step of the writer.

    epoch (float | None): From the caller.
    step (int): Counted from 0.
    rates (dict[str, float]): The applied rates, by group.
    checksums (dict[str, str]): The identities of the groups. All steps until a change share one dict.
    time (float): By the writer's clock.
    """

    epoch: float | None
    step: int
    rates: dict[str, float]
    checksums: dict[str, str]
    time: float
