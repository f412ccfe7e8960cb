"""What other code changed in the param groups of an optimizer: all of it is found here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import LearnRateIntegrityError
from .groups import Group, WatchedGroup, rate_of, same_options
from .watch import WatchedOptimizer

# What is said of each kind of difference, and what to do. `what` of the errors is the kind, or "group" for one that
# came or is gone.
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
        "If that is intended, call refresh('{optimizer}') afterwards. For new params, call add_params, which warms "
        "them up.",
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
        return LearnRateIntegrityError(
            fact, advice, group=self.group, step=step, what=what, expected=self.expected, found=self.found
        )


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
            add(
                "options",
                watched.id,
                *({name: options.get(name) for name in changed} for options in (watched.options, group)),
            )
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


def _labels(of: WatchedOptimizer, watched: WatchedGroup, group: Group) -> tuple[list[str], list[str]]:
    """What a group should have and has not, and the other way round; or all, if it is only in another order."""
    known: dict[int, str] = {}
    for other in of.groups:
        named = zip(other.params, other.names)
        known.update({id(param): f"{other.id}[{name}]" if name.isdigit() else name for param, name in named})
    expected, found = list(watched.params), list(group["params"])
    ids_expected, ids_found = set(map(id, expected)), set(map(id, found))
    if ids_expected != ids_found:
        expected = [param for param in expected if id(param) not in ids_found]
        found = [param for param in found if id(param) not in ids_expected]
    new = [
        known.get(id(param)) or of.param_names.get(param) or f"a new one of shape {tuple(param.shape)}"
        for param in found
    ]
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
