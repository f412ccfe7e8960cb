"""A torch optimizer as the writer of learning rates left it: its groups and their order; and changes by other code.

Nothing here writes a rate.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial, wraps
from typing import Any, Optional

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import LearnRateIntegrityError, LearnRateWarning
from ..host import run_last
from .groups import Group, WatchedGroup, rate_of, same_options
from .policies import Policy

Hooked = tuple[tuple[Any, ...], dict[str, Any]]
Pairs = list[tuple[Optional[WatchedGroup], Group]]

_NOT_OPTIONS = {"self", "params", "lr", "defaults", "args", "kwargs"}

# The messages for each kind of change. `what` of the errors is the kind, or "group" for added or removed groups.
_SAID = {
    "learn_rate": (
        "Learn rate of param group '{group}' was changed outside its schedule",
        'Other code writes group["lr"], often a torch scheduler. Remove it, or set on_outside_write = "adopt".',
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
        "Param group '{group}' was removed from optimizer '{optimizer}'",
        "Call unregister_optimizer for an optimizer that is no longer used.",
    ),
    "taken_out": (
        "Param group '{group}' was removed from optimizer '{optimizer}'",
        "The code that owns the optimizer needs it. To stop training params, freeze them in its settings.",
    ),
}


class WatchedOptimizer:
    """A torch optimizer under the controller.

    name (str): The prefix of the ids of its groups.
    optimizer (torch.optim.Optimizer): Any.
    moving (Collection[str]): Options that its owner moves, and that are not part of the groups' identity.
    param_names (Mapping[Tensor, str]): Names for params. Other params have torch's names, if any, or their positions.
    watch_steps (bool): Whether it is verified before each of its steps.
    keep_groups (bool): Its owner keeps references to the dicts of its groups: they stay in use.
    """

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        moving: Collection[str] = (),
        param_names: Mapping[torch.Tensor, str] | None = None,
        *,
        watch_steps: bool = True,
        keep_groups: bool = False,
    ):
        self.name = name
        self.groups: list[WatchedGroup] = []  # in order
        self.policy: Policy | None = None  # for all of its groups
        self.param_names: Mapping[torch.Tensor, str] = {} if param_names is None else param_names
        self.watch_steps = watch_steps
        self.keep_groups = keep_groups
        self.hooks: list[RemovableHandle] = []
        self._moving = moving
        self._count = 0  # of all groups, including removed ones
        self._use(optimizer)

    def _use(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.all_options = option_names_of(type(optimizer))
        self._option_names = [option for option in self.all_options if option not in self._moving]

    def bind(self, watched: WatchedGroup, group: Group) -> WatchedGroup:
        """Record a group as it is now."""
        watched.bind(group, self._option_names, self._names(group))
        return watched

    def watch(self, watched: WatchedGroup, group: Group) -> WatchedGroup:
        """Register a new group. The caller sets its place in `groups`."""
        self._count += 1
        return self.bind(watched, group)

    def move_to(self, new: torch.optim.Optimizer) -> None:
        """Replace this optimizer by another one: each of its groups takes the record at the same place.

        new (torch.optim.Optimizer): With as many groups. The caller sets their rates.
        """
        standing = [watched for watched, _ in self.pairs()]
        self.groups = []
        self._use(new)
        for watched, group in zip(standing, new.param_groups):
            if watched is not None:
                watched.lr_tensor = None
                self.groups.append(self.bind(watched, group))

    def new_id(self, group: Group, taken: Collection[str], *, later: int = 0) -> str:
        """An id for a group. later (int): The number of new groups before it."""
        label, index = group.get("name"), self._count + later
        if isinstance(label, str) and label:
            id = f"{self.name}/{label}"
        else:
            id = self.name if index == 0 and len(self.optimizer.param_groups) == 1 else f"{self.name}/{index}"
        unique, n = id, 1
        while unique in taken:
            n += 1
            unique = f"{id}-{n}"
        return unique

    def is_untouched(self) -> bool:
        """Whether nothing has changed. Runs at every step."""
        groups = self.optimizer.param_groups
        return len(groups) == len(self.groups) and all(map(WatchedGroup.is_untouched, self.groups, groups))

    def pairs(self) -> Pairs:
        """Each current group, with its record.

        A group is identified by its dict, or by its params: `optimizer.load_state_dict` makes new dicts.
        """
        groups = self.optimizer.param_groups
        by_dict = {id(watched.group): watched for watched in self.groups}
        left = set(by_dict) - set(map(id, groups))
        by_params = {tuple(map(id, by_dict[i].params)): by_dict[i] for i in left}
        return [
            (by_dict.get(id(group)) or by_params.pop(tuple(map(id, group["params"])), None), group) for group in groups
        ]

    def only_moved(self, pairs: Pairs) -> bool:
        """Whether the groups have the same params as before, but exchanged."""
        if len(pairs) != len(self.groups) or any(watched is None for watched, _ in pairs):
            return False
        before = sorted(id(param) for watched in self.groups for param in watched.params)
        return before == sorted(id(param) for _, group in pairs for param in group["params"])

    # ------------------------------------------------------------------ changes by other code

    def differences(self, step: int) -> list[LearnRateIntegrityError]:
        """All changes since. Changes nothing. step (int): The writer's number of steps, for messages."""
        if self.is_untouched():
            return []
        pairs, found = self.pairs(), []

        def add(kind: str, id: str, expected: Any, now: Any) -> None:
            found.append(self._difference(kind, id, step, expected, now))

        known = [watched for watched, _ in pairs if watched is not None]
        came = [group for watched, group in pairs if watched is None]
        here, n_before, n_now = set(known), f"{len(self.groups)} groups", str(len(pairs))
        for gone in self.groups:
            if gone not in here:
                add("taken_out" if self.keep_groups else "gone", gone.id, n_before, n_now)
        for i, group in enumerate(came):
            add("came", self.new_id(group, {other.id for other in self.groups}, later=i), n_before, n_now)
        for watched, group in pairs:
            if watched is None or watched.is_untouched(group):
                continue
            if not watched.has_rate(group):
                add("learn_rate", watched.id, watched.applied_rate, rate_of(group))
            if not watched.has_params(group):
                add("moved" if self.only_moved(pairs) else "params", watched.id, *self._labels(watched, group))
            changed = [name for name, option in watched.options.items() if not same_options(group.get(name), option)]
            if changed:
                before, now = ({name: options.get(name) for name in changed} for options in (watched.options, group))
                add("options", watched.id, before, now)
        in_order = [watched for watched in self.groups if watched in here]
        for place, (wanted, other) in enumerate(zip(in_order, known)):
            if wanted is not other:
                add("order", other.id, in_order.index(other), place)
        return found

    def rate_differences(self, step: int) -> list[LearnRateIntegrityError]:
        """Changed learning rates, also of groups that are not in the optimizer just now."""
        return [
            self._difference("learn_rate", watched.id, step, watched.applied_rate, rate_of(watched.group))
            for watched in self.groups
            if not watched.has_rate(watched.group)
        ]

    def _difference(self, kind: str, group: str, step: int, expected: Any, found: Any) -> LearnRateIntegrityError:
        fact, advice = (text.format(group=group, optimizer=self.name) for text in _SAID[kind])
        fact = f"{fact} at step {step}: expected {_text(expected)}, found {_text(found)}."
        what = "group" if kind in ("came", "gone") else kind
        return LearnRateIntegrityError(fact, advice, group=group, step=step, what=what, expected=expected, found=found)

    def _labels(self, watched: WatchedGroup, group: Group) -> tuple[list[str], list[str]]:
        """Missing and unexpected values of a group; or all, if only their order has changed."""
        known: dict[int, str] = {}
        for other in self.groups:
            named = zip(other.params, other.names)
            known.update({id(param): f"{other.id}[{name}]" if name.isdigit() else name for param, name in named})
        expected, found = list(watched.params), list(group["params"])
        ids_expected, ids_found = set(map(id, expected)), set(map(id, found))
        if ids_expected != ids_found:
            expected = [param for param in expected if id(param) not in ids_found]
            found = [param for param in found if id(param) not in ids_expected]
        new = [
            known.get(id(param)) or self.param_names.get(param) or f"a new one of shape {tuple(param.shape)}"
            for param in found
        ]
        return [known[id(param)] for param in expected], new

    # ------------------------------------------------------------------ undoing

    def put_back(self) -> None:
        """Undo what is possible: the order of the groups, and params that were moved between groups."""
        pairs = self.pairs()
        if self.only_moved(pairs):
            for watched, group in pairs:
                if watched is not None:
                    group["params"] = list(watched.params)
        group_of = {watched: group for watched, group in pairs if watched is not None}
        in_order = [watched for watched in self.groups if watched in group_of]
        if in_order != list(group_of):
            came = [group for watched, group in pairs if watched is None]
            self.optimizer.param_groups[:] = [group_of[watched] for watched in in_order] + came

    def reclaim(self) -> None:
        """Where a new dict replaced one that its owner keeps, copy its content into the old dict, and put that back."""
        groups = self.optimizer.param_groups
        for place, (watched, group) in enumerate(self.pairs()):
            if watched is not None and group is not watched.group:
                watched.group.clear()
                watched.group.update(group)
                groups[place] = watched.group

    def bring_back(self) -> None:
        """Put back groups that its owner keeps and other code removed."""
        pairs = self.pairs()
        if {watched for watched, _ in pairs} < {*self.groups, None}:
            came = [group for watched, group in pairs if watched is None]
            self.optimizer.param_groups[:] = [watched.group for watched in self.groups] + came

    def accept(self, watch_new: Callable[[Group], WatchedGroup]) -> None:
        """Accept all groups as they are, except for their rates.

        watch_new (Callable): Makes a WatchedGroup of a new group.
        """
        pairs = self.pairs()
        for watched, group in pairs:
            if watched is not None:
                self.bind(watched, group)
        self.groups = [watch_new(group) if watched is None else watched for watched, group in pairs]

    # ------------------------------------------------------------------ steps of the optimizer

    def hook_in(self, before_step: Callable[..., Hooked | None] | None = None) -> None:
        """Register hooks for its steps and for loaded states.

        before_step (Callable | None): If its steps are watched: called before each step, with this object and the
            hook's arguments from torch.
        """
        self.hooks.clear()
        if self.watch_steps and before_step is not None:
            self.hooks.append(self.optimizer.register_step_pre_hook(partial(before_step, self)))
        if self.keep_groups:
            self.hooks.append(self.optimizer.register_load_state_dict_post_hook(lambda _: self.reclaim()))

    def unhook(self) -> None:
        """Remove the hooks."""
        for hook in self.hooks:
            hook.remove()

    def have_the_last_word(self) -> None:
        """Let the verification before each step run after the hooks of other code, which may write rates."""
        if self.watch_steps:
            run_last(self.optimizer, self.hooks[0])

    def drop_frozen_grads(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hooked | None:
        """Drop the gradients of frozen params, so that a step does not update them. Runs before each.

        args, kwargs (tuple, dict): Of the optimizer's step, with the optimizer first.
        RETURNS (tuple | None): Replacements, if a closure is among them, which makes new gradients.
        """
        frozen = [param for watched in self.groups if watched.source.is_frozen for param in watched.params]
        if not frozen:
            return None
        _drop_grads(frozen)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return None

        @wraps(closure)
        def without_frozen() -> Any:
            loss = closure()
            _drop_grads(frozen)
            return loss

        return (args[0], without_frozen, *args[2:]), {
            name: value for name, value in kwargs.items() if name != "closure"
        }

    def _names(self, group: Group) -> tuple[str, ...]:
        params, torchs = group["params"], group.get("param_names")
        if torchs is None or len(torchs) != len(params):
            torchs = map(str, range(len(params)))
        return tuple(self.param_names.get(param, name) for param, name in zip(params, torchs))


def option_names_of(cls: type[torch.optim.Optimizer]) -> list[str]:
    """The arguments of an optimizer. Other keys of its groups are its own, counters for example."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            names.update(dict.fromkeys(inspect.signature(vars(base)["__init__"]).parameters))
    return [name for name in names if name not in _NOT_OPTIONS]


def warn_of_steps(replaced: torch.optim.Optimizer, name: str, step: int) -> None:
    """Warn once if an optimizer is stepped after it was replaced. step (int): The step of the replacement."""
    _warn_at_step(
        replaced,
        lambda: (
            f"Optimizer '{name}' was replaced at step {step}, and the old one was stepped after that. It trains the "
            "old params, and nothing sets its learning rates. Step the new one, which preserve_optimizer_state "
            "returned."
        ),
    )


def warn_of_steps_without(
    drives: Callable[[torch.optim.Optimizer], bool], old: torch.optim.Optimizer, new: torch.optim.Optimizer
) -> None:
    """Warn once if an optimizer is stepped whose predecessor a controller still drives.

    drives (Callable): Whether the controller drives an optimizer.
    """
    _warn_at_step(
        new,
        lambda: (
            f"Optimizer {type(new).__name__} was replaced without its controller: expected the new one to get the "
            "learning rates of the controller, found it stepped while the controller drives the old one. It has the "
            "rates that the old one had last. Give controller=controller to preserve_optimizer_state, or call "
            "controller.replace_optimizer."
            if drives(old) and not drives(new)
            else None
        ),
    )


def _warn_at_step(optimizer: torch.optim.Optimizer, message: Callable[[], str | None]) -> None:
    """Warn at the next step of an optimizer. message (Callable): Returns the message, or None for no warning."""
    left = [message]

    def warn(*_: Any) -> None:
        # A hook must not remove itself while torch iterates over hooks.
        if left and (text := left.pop()()) is not None:
            warnings.warn(LearnRateWarning(text), stacklevel=4)

    optimizer.register_step_pre_hook(warn)


def _drop_grads(params: Iterable[torch.Tensor]) -> None:
    for param in params:
        param.grad = None


def _text(value: Any) -> str:
    """For a message."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {option!r}" for name, option in value.items())
    if isinstance(value, list):
        return ", ".join(value[:5]) + (f" and {len(value) - 5} more" if len(value) > 5 else "") if value else "none"
    return str(value)
