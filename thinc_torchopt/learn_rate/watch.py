"""Torch optimizers as the learn rate controller left them: which groups there are, in which order, and what has changed since.

Nothing here writes a rate.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import LearnRateIntegrityError, LearnRateWarning
from .groups import Group, WatchedGroup, rate_of, same_options
from .policies import Policy

Hooked = tuple[tuple[Any, ...], dict[str, Any]]

_NOT_OPTIONS = {"self", "params", "lr", "defaults", "args", "kwargs"}


class WatchedOptimizer:
    """A torch optimizer under the controller.

    name (str): What ids of its groups begin with.
    optimizer (torch.optim.Optimizer): Any.
    moving (Collection[str]): Options that its owner moves, which are not part of the groups' identity.
    param_names (Mapping[Tensor, str]): Names for params. Others are named by torch, if at all, or by their position.
    watch_steps (bool): Whether it is verified before each of its steps.
    keep_groups (bool): Its owner holds on to the dicts of its groups: they stay the ones that count.
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
        self.groups: list[WatchedGroup] = []  # in the order in which they stand
        self.policy: Policy | None = None  # that was given for all of its groups
        self.param_names: Mapping[torch.Tensor, str] = {} if param_names is None else param_names
        self.watch_steps = watch_steps
        self.keep_groups = keep_groups
        self.hooks: list[RemovableHandle] = []
        self._moving = moving
        self._count = 0  # of groups that there ever were
        self._use(optimizer)

    def _use(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.all_options = option_names_of(type(optimizer))
        self._option_names = [option for option in self.all_options if option not in self._moving]

    def move_to(self, new: torch.optim.Optimizer) -> list[WatchedGroup]:
        """Let another optimizer take the place of this one: each of its groups becomes what stands there in this one.

        new (torch.optim.Optimizer): With as many groups. Their rates are the caller's business.
        RETURNS (list[WatchedGroup]): Those that were gone already.
        """
        before, standing = self.groups, [watched for watched, _ in self._pairs()]
        self.groups = []
        self._use(new)
        for watched, group in zip(standing, new.param_groups):
            if watched is not None:
                watched.lr_tensor = None
                watched.bind(group, self._option_names, self._names(group))
                self.groups.append(watched)
        return [watched for watched in before if watched not in self.groups]

    def new_id(self, group: Group, taken: Collection[str], *, later: int = 0) -> str:
        """An id for a group. later (int): How many new groups come before it."""
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

    def watch(self, watched: WatchedGroup, group: Group) -> WatchedGroup:
        """Count a new group in. Its place in `groups` is the caller's business."""
        self._count += 1
        watched.bind(group, self._option_names, self._names(group))
        return watched

    def is_untouched(self) -> bool:
        """Whether all is as it was left. Runs at every step."""
        groups = self.optimizer.param_groups
        return len(groups) == len(self.groups) and all(map(WatchedGroup.is_untouched, self.groups, groups))

    def differences(self, step: int) -> list[LearnRateIntegrityError]:
        """What is not as it was left. Changes nothing.

        step (int): For the messages.
        """
        pairs = self._pairs()
        known = [watched for watched, _ in pairs if watched is not None]
        errors = self._came_and_gone(pairs, step)
        moved = self._only_moved(pairs)
        for watched, group in pairs:
            if watched is not None and not watched.is_untouched(group):
                errors += self._changes(watched, group, moved, step)
        still_here = set(known)
        in_order = [watched for watched in self.groups if watched in still_here]
        for place, (expected, found) in enumerate(zip(in_order, known)):
            if expected is not found:
                fact = f"Param group '{found.id}' was moved to another place in optimizer '{self.name}'"
                advice = "Other code sorts optimizer.param_groups. Remove it."
                errors.append(_difference("order", found.id, step, fact, in_order.index(found), place, advice))
        return errors

    def put_back(self) -> None:
        """Undo what can be: the order of the groups, and params that were moved between groups."""
        pairs = self._pairs()
        if self._only_moved(pairs):
            for watched, group in pairs:
                if watched is not None:
                    group["params"] = list(watched.params)
        group_of = {watched: group for watched, group in pairs if watched is not None}
        in_order = [watched for watched in self.groups if watched in group_of]
        if in_order != [watched for watched, _ in pairs if watched is not None]:
            came = [group for watched, group in pairs if watched is None]
            self.optimizer.param_groups[:] = [group_of[watched] for watched in in_order] + came

    def reclaim(self) -> None:
        """Where a new dict took the place of one that its owner keeps, put its content into that, and that in its place."""
        groups = self.optimizer.param_groups
        for place, (watched, group) in enumerate(self._pairs()):
            if watched is not None and group is not watched.group:
                watched.group.clear()
                watched.group.update(group)
                groups[place] = watched.group

    def bring_back(self) -> None:
        """Put groups that were taken out, and that its owner keeps, in again."""
        pairs = self._pairs()
        if {watched for watched, _ in pairs} < {*self.groups, None}:
            came = [group for watched, group in pairs if watched is None]
            self.optimizer.param_groups[:] = [watched.group for watched in self.groups] + came

    def accept(self, take_in: Callable[[Group], WatchedGroup]) -> list[WatchedGroup]:
        """Take all groups as they now are, except for their rates.

        take_in (Callable): Makes a WatchedGroup of a group that came.
        RETURNS (list[WatchedGroup]): Those that are gone.
        """
        before, pairs = self.groups, self._pairs()
        for watched, group in pairs:
            if watched is not None:
                watched.bind(group, self._option_names, self._names(group))
        self.groups = [take_in(group) if watched is None else watched for watched, group in pairs]
        here = set(self.groups)
        return [watched for watched in before if watched not in here]

    def have_the_last_word(self) -> None:
        """Let the verification before each step run after the hooks of others, which may write rates."""
        hooks: Any = self.optimizer._optimizer_step_pre_hooks  # an OrderedDict
        if self.watch_steps and len(hooks) > 1:
            hooks.move_to_end(self.hooks[0].id)

    def drop_frozen_grads(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hooked | None:
        """Take the gradients of frozen params away, so that a step has nothing to update them by. Runs before each.

        args, kwargs (tuple, dict): Of the optimizer's step, with the optimizer first.
        RETURNS (tuple | None): Others to use, if a closure is among them, which makes new gradients.
        """
        frozen = [param for watched in self.groups if watched.is_frozen for param in watched.params]
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

        return (args[0], without_frozen, *args[2:]), {name: value for name, value in kwargs.items() if name != "closure"}

    def _pairs(self) -> list[tuple[WatchedGroup | None, Group]]:
        """Each group that there is now, with what we know of it.

        The same dict is the same group. So is a new dict around the same params: `optimizer.load_state_dict` makes such.
        """
        groups = self.optimizer.param_groups
        by_dict = {id(watched.group): watched for watched in self.groups}
        left = set(by_dict) - set(map(id, groups))
        by_params = {tuple(map(id, by_dict[i].params)): by_dict[i] for i in left}
        return [(by_dict.get(id(group)) or by_params.pop(tuple(map(id, group["params"])), None), group) for group in groups]

    def _came_and_gone(self, pairs: list[tuple[WatchedGroup | None, Group]], step: int) -> list[LearnRateIntegrityError]:
        errors = []
        here = {watched for watched, _ in pairs}
        n_before, n_now = f"{len(self.groups)} groups", str(len(pairs))
        for watched in self.groups:
            if watched not in here:
                fact = f"Param group '{watched.id}' was taken out of optimizer '{self.name}'"
                advice = "Call unregister_optimizer for an optimizer that is no longer used."
                if self.keep_groups:
                    advice = "The code that owns the optimizer needs it. To stop training params, freeze them in its settings."
                what = "taken_out" if self.keep_groups else "group"
                errors.append(_difference(what, watched.id, step, fact, n_before, n_now, advice))
        new_groups = [group for watched, group in pairs if watched is None]
        for i, group in enumerate(new_groups):
            id = self.new_id(group, {watched.id for watched in self.groups}, later=i)
            fact = f"Param group '{id}' was added to optimizer '{self.name}'"
            advice = "Call add_params instead, which also warms new params up."
            errors.append(_difference("group", id, step, fact, n_before, n_now, advice))
        return errors

    def _changes(self, watched: WatchedGroup, group: Group, moved: bool, step: int) -> list[LearnRateIntegrityError]:
        id = watched.id
        errors = [] if watched.has_rate(group) else [self.rate_difference(watched, group, step)]
        if not watched.has_params(group) and moved:
            fact = f"Params of group '{id}' were moved between groups or sorted"
            advice = "Keep params in the group and order in which they were registered."
            errors.append(_difference("moved", id, step, fact, *self._labels(watched, group), advice))
        elif not watched.has_params(group):
            fact = f"Params of group '{id}' were changed"
            advice = f"If that is intended, call refresh('{self.name}') afterwards. For new params, call add_params, which warms them up."
            errors.append(_difference("params", id, step, fact, *self._labels(watched, group), advice))
        before, now = watched.options, {name: group.get(name) for name in watched.options}
        changed = [name for name in before if not same_options(now[name], before[name])]
        if changed:
            fact = f"Options of param group '{id}' were changed"
            advice = "If a schedule of yours changes them, list them in `moving` when you register the optimizer."
            expected, found = ({name: options[name] for name in changed} for options in (before, now))
            errors.append(_difference("options", id, step, fact, expected, found, advice))
        return errors

    def rate_difference(self, watched: WatchedGroup, group: Group, step: int) -> LearnRateIntegrityError:
        """That the rate of a group is not as it was left."""
        fact = f"Learn rate of param group '{watched.id}' was changed outside its schedule"
        advice = 'Something else writes group["lr"], often a torch scheduler. Remove it, or set on_outside_write = "adopt".'
        return _difference("learn_rate", watched.id, step, fact, watched.applied_rate, rate_of(group), advice)

    def _only_moved(self, pairs: list[tuple[WatchedGroup | None, Group]]) -> bool:
        """Whether the groups have the same params as before, if not each its own."""
        if len(pairs) != len(self.groups) or any(watched is None for watched, _ in pairs):
            return False
        before = sorted(id(param) for watched in self.groups for param in watched.params)
        return before == sorted(id(param) for _, group in pairs for param in group["params"])

    def _labels(self, watched: WatchedGroup, group: Group) -> tuple[list[str], list[str]]:
        """What a group should have and has not, and the other way round; or all, if it is only in another order."""
        known: dict[int, str] = {}
        for other in self.groups:
            named = zip(other.params, other.identity.names)
            known.update({id(param): f"{other.id}[{name}]" if name.isdigit() else name for param, name in named})
        expected, found = watched.params, group["params"]
        ids_expected, ids_found = set(map(id, expected)), set(map(id, found))
        if ids_expected != ids_found:
            expected = tuple(param for param in expected if id(param) not in ids_found)
            found = [param for param in found if id(param) not in ids_expected]
        new = [known.get(id(param)) or self.param_names.get(param) or f"a new one of shape {tuple(param.shape)}" for param in found]
        return [known[id(param)] for param in expected], new

    def _names(self, group: Group) -> tuple[str, ...]:
        params, torchs = group["params"], group.get("param_names")
        if torchs is None or len(torchs) != len(params):
            torchs = map(str, range(len(params)))
        return tuple(self.param_names.get(param, name) for param, name in zip(params, torchs))


def option_names_of(cls: type[torch.optim.Optimizer]) -> list[str]:
    """What an optimizer is built with. Keys of its groups that are not among these are its own, counters for example."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" in vars(base):
            names.update(dict.fromkeys(inspect.signature(vars(base)["__init__"]).parameters))
    return [name for name in names if name not in _NOT_OPTIONS]


def warn_of_steps(replaced: torch.optim.Optimizer, name: str, step: int) -> None:
    """Warn once if an optimizer is stepped after another took its place. step (int): At which that was."""

    def warn(*_: Any) -> None:
        hook.remove()
        warnings.warn(
            LearnRateWarning(
                f"Optimizer '{name}' was replaced at step {step}, and the old one was stepped after that. It trains the old params, and "
                "nothing sets its learning rates. Step the new one, which preserve_optimizer_state returned."
            ),
            stacklevel=4,
        )

    hook = replaced.register_step_pre_hook(warn)


def _drop_grads(params: Iterable[torch.Tensor]) -> None:
    for param in params:
        param.grad = None


def _difference(what: str, id: str, step: int, fact: str, expected: Any, found: Any, advice: str) -> LearnRateIntegrityError:
    fact = f"{fact} at step {step}: expected {_text(expected)}, found {_text(found)}."
    return LearnRateIntegrityError(fact, advice, group=id, step=step, what=what, expected=expected, found=found)


def _text(value: Any) -> str:
    """For a message."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {option!r}" for name, option in value.items())
    if isinstance(value, list):
        return ", ".join(value[:5]) + (f" and {len(value) - 5} more" if len(value) > 5 else "") if value else "none"
    return str(value)
