"""What other code changed in the param groups of an optimizer: it is found here, all at once, and dealt with here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ..errors import LearnRateIntegrityError, LearnRateWarning
from ..types import OnOutsideWrite
from .conservative import CircuitBreaker
from .groups import Group, WatchedGroup, rate_of, same_options
from .registered import Registered
from .watch import WatchedOptimizer

# What is said of each kind of difference, and what to do. `what` of the errors is the kind, or "group" for one that came or is gone.
_SAID = {
    "learn_rate": (
        "Learn rate of param group '{group}' was changed outside its schedule",
        'Something else writes group["lr"], often a torch scheduler. Remove it, or set on_outside_write = "adopt".',
    ),
    "order": (
        "Param group '{group}' was moved to another place in optimizer '{optimizer}'",
        "Other code sorts optimizer.param_groups. Remove it.",
    ),
    "moved": (
        "Params of group '{group}' were moved between groups or sorted",
        "Keep params in the group and order in which they were registered.",
    ),
    "params": (
        "Params of group '{group}' were changed",
        "If that is intended, call refresh('{optimizer}') afterwards. For new params, call add_params, which warms them up.",
    ),
    "options": (
        "Options of param group '{group}' were changed",
        "If a schedule of yours changes them, list them in `moving` when you register the optimizer.",
    ),
    "came": (
        "Param group '{group}' was added to optimizer '{optimizer}'",
        "Call add_params instead, which also warms new params up.",
    ),
    "gone": (
        "Param group '{group}' was taken out of optimizer '{optimizer}'",
        "Call unregister_optimizer for an optimizer that is no longer used.",
    ),
    "taken_out": (
        "Param group '{group}' was taken out of optimizer '{optimizer}'",
        "The code that owns the optimizer needs it. To stop training params, freeze them in its settings.",
    ),
}


@dataclass(frozen=True)
class Difference:
    """One thing that is not as the controller left it.

    kind (str): What has changed, a key of `_SAID`.
    optimizer (str): Its name.
    group (str): The id of the group.
    expected, found (Any): What should be there, and what is.
    """

    kind: str
    optimizer: str
    group: str
    expected: Any
    found: Any

    def error(self, step: int) -> LearnRateIntegrityError:
        """The same as an error. step (int): How many steps the controller has made."""
        fact, advice = (text.format(group=self.group, optimizer=self.optimizer) for text in _SAID[self.kind])
        fact = f"{fact} at step {step}: expected {_text(self.expected)}, found {_text(self.found)}."
        what = "group" if self.kind in ("came", "gone") else self.kind
        return LearnRateIntegrityError(fact, advice, group=self.group, step=step, what=what, expected=self.expected, found=self.found)


def find(of: WatchedOptimizer) -> list[Difference]:
    """All that is not as it was left. Changes nothing."""
    if of.is_untouched():
        return []
    pairs, found = of.pairs(), []

    def add(kind: str, id: str, expected: Any, now: Any) -> None:
        found.append(Difference(kind, of.name, id, expected, now))

    known = [watched for watched, _ in pairs if watched is not None]
    came = [group for watched, group in pairs if watched is None]
    here, n_before, n_now = set(known), f"{len(of.groups)} groups", str(len(pairs))
    for gone in of.groups:
        if gone not in here:
            add("taken_out" if of.keep_groups else "gone", gone.id, n_before, n_now)
    for i, group in enumerate(came):
        add("came", of.new_id(group, {other.id for other in of.groups}, later=i), n_before, n_now)
    for watched, group in pairs:
        if watched is None or watched.is_untouched(group):
            continue
        if not watched.has_rate(group):
            add("learn_rate", watched.id, watched.applied_rate, rate_of(group))
        if not watched.has_params(group):
            add("moved" if of.only_moved(pairs) else "params", watched.id, *_labels(of, watched, group))
        changed = [name for name, option in watched.options.items() if not same_options(group.get(name), option)]
        if changed:
            add("options", watched.id, *({name: options.get(name) for name in changed} for options in (watched.options, group)))
    in_order = [watched for watched in of.groups if watched in here]
    for place, (wanted, now) in enumerate(zip(in_order, known)):
        if wanted is not now:
            add("order", now.id, in_order.index(now), place)
    return found


def find_rates(of: WatchedOptimizer) -> list[Difference]:
    """The learning rates that are not as they were left, also of groups that are not in the optimizer just now."""
    return [
        Difference("learn_rate", of.name, watched.id, watched.applied_rate, rate_of(watched.group))
        for watched in of.groups
        if not watched.has_rate(watched.group)
    ]


class Integrity:
    """Deals with what is found: undoes it, or takes it as it is, or raises an error.

    registered (Registered): The optimizers.
    breaker (CircuitBreaker): Is told. In conservative mode nothing is said, and nothing raised.
    write (Callable): Writes a rate.

    Public: `outside_writes` (how many changes were found).
    """

    def __init__(self, registered: Registered, breaker: CircuitBreaker, write: Callable[[WatchedGroup, float], float]):
        self.outside_writes = 0
        self._registered = registered
        self._breaker = breaker
        self._write = write

    def handle(
        self, differences: list[Difference], optimizers: Collection[WatchedOptimizer], step: int, on_outside_write: OnOutsideWrite
    ) -> None:
        """Deal with differences.

        optimizers (Collection[WatchedOptimizer]): Those that are to be as before, or are taken as they are.
        RAISES (LearnRateIntegrityError): If `on_outside_write` is "raise". It knows of the others.
        """
        errors = [difference.error(step) for difference in differences]
        self.outside_writes += len(errors)
        conservative = self._breaker.conservative
        # In conservative mode a run that would be stopped is protected instead.
        how = "restore" if conservative and on_outside_write == "raise" else on_outside_write
        if how == "raise" or (how == "restore" and any(error.can_be_undone for error in errors)):
            self._breaker.was_written_to(step)
        if how == "raise":
            first, *first.others = errors
            raise first
        for optimizer in optimizers:
            if optimizer.keep_groups:
                optimizer.bring_back()
            if how == "restore":
                optimizer.put_back()
            self._registered.take(optimizer, step, at_default=how == "restore")
        for difference in differences:
            if difference.kind == "learn_rate":
                watched = self._registered.groups[difference.group]
                if how == "restore" or not 0.0 <= difference.found < math.inf:  # what can't be a rate is put back in any case
                    self._write(watched, watched.applied_rate)
                else:
                    watched.adopt(difference.found)
        if not conservative:
            for error in errors:
                self._warn(error, restores=how == "restore")

    def _warn(self, error: LearnRateIntegrityError, *, restores: bool) -> None:
        """Say what was done, once for each kind of change of a group."""
        watched = self._registered.groups.get(error.group)
        if watched is not None:
            if error.what in watched.warned_of:
                return
            watched.warned_of.add(error.what)
        done = "The change was undone." if error.what == "taken_out" or (restores and error.can_be_undone) else "The change is kept."
        if error.what == "group" and watched is not None:
            done = "It gets the default learn rate." if restores else "It keeps its learn rate."
        warnings.warn(LearnRateWarning(f"{error.fact} {done} {error.advice}"), stacklevel=5)


def _labels(of: WatchedOptimizer, watched: WatchedGroup, group: Group) -> tuple[list[str], list[str]]:
    """What a group should have and has not, and the other way round; or all, if it is only in another order."""
    known: dict[int, str] = {}
    for other in of.groups:
        named = zip(other.params, other.identity.names)
        known.update({id(param): f"{other.id}[{name}]" if name.isdigit() else name for param, name in named})
    expected, found = list(watched.params), list(group["params"])
    ids_expected, ids_found = set(map(id, expected)), set(map(id, found))
    if ids_expected != ids_found:
        expected = [param for param in expected if id(param) not in ids_found]
        found = [param for param in found if id(param) not in ids_expected]
    new = [known.get(id(param)) or of.param_names.get(param) or f"a new one of shape {tuple(param.shape)}" for param in found]
    return [known[id(param)] for param in expected], new


def _text(value: Any) -> str:
    """For a message."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {option!r}" for name, option in value.items())
    if isinstance(value, list):
        return ", ".join(value[:5]) + (f" and {len(value) - 5} more" if len(value) > 5 else "") if value else "none"
    return str(value)
