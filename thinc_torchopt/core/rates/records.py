"""Torch optimizers and their param groups as the writer of learning rates left them, the sources of rates, and changes
by other code.

*identity*: the names and shapes of a group's params, and its options, but not its rate and its place. Its checksum
stands for it.

Nothing here writes a rate.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from numbers import Real
from operator import is_
from typing import Any, Optional, Protocol

import torch

from ..checks import Section
from ..errors import LearnRateIntegrityError
from ..schema import NotNegative

TorchGroup = dict[str, Any]

# Tolerances for equal rates: relative to the larger rate, and absolute. The larger one counts.
RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-12


@dataclass(frozen=True)
class RateScale:
    """The effect of rules, or of other code, on rates. Also its saved form.

    factor (float): Multiplies them.
    held (float | None): Replaces them.
    """

    factor: NotNegative = 1.0
    held: Optional[NotNegative] = None

    def times(self, factor: float) -> RateScale:
        """Multiply all rates to come."""
        return (
            replace(self, factor=self.factor * factor) if self.held is None else replace(self, held=self.held * factor)
        )

    def going_on_from(self, rate: float, ratio: float) -> RateScale:
        """Continue from a rate that other code wrote.

        ratio (float): Of that rate to the one before; may be infinite.
        """
        return self.times(ratio) if self.held is None and math.isfinite(ratio) else replace(self, held=rate)


class RateSource(Protocol):
    """The source of a group's rates.

    scale (RateScale): The effect of rules, or of other code, on them.
    """

    scale: RateScale

    def rate_at(self, step: int) -> float:
        """The rate of a step, before `scale`. step (int): The writer's."""


class FunctionRate:
    """A `RateSource` by a function, for groups that other code adds. rate_now (Callable): Returns the rate."""

    def __init__(self, rate_now: Callable[[], float]):
        self.scale = RateScale()
        self._rate_now = rate_now

    def rate_at(self, step: int) -> float:
        return self._rate_now()


class GroupRecord:
    """The record of a param group as the writer left it.

    label (str): Does not change while the group exists, wherever it is.
    source (RateSource): Gives its rates.
    rate (float): Its current rate.
    """

    def __init__(self, label: str, source: RateSource, rate: float):
        self.label = label
        self.source = source
        self.rate = rate  # of the last step, without the step's scale
        self.applied_rate = rate  # the value in the group
        self.lr_tensor: torch.Tensor | None = None
        self.warned_of: set[str] = set()  # kinds of differences

    def bind(self, group: TorchGroup, option_names: Collection[str], names: tuple[str, ...]) -> None:
        """Record the group as it is now.

        group (TorchGroup): Of `optimizer.param_groups`.
        option_names (Collection[str]): Keys that belong to its identity.
        names (tuple[str, ...]): The names of its params.
        """
        self.group = group
        self.names = names
        self.params: tuple[torch.Tensor, ...] = tuple(group["params"])
        self.options = {name: _own(group[name]) for name in option_names if name in group}
        if isinstance(group.get("lr"), torch.Tensor):
            self.lr_tensor = group["lr"]
        self.__dict__.pop("checksum", None)

    @cached_property
    def checksum(self) -> str:
        """The checksum of its identity, the same in every process. 16 characters."""
        label = self.label if any(map(str.isdigit, self.names)) else ""  # to tell groups of unnamed params apart
        shapes = (tuple(param.shape) for param in self.params)
        # In any order: params may have another order in a resumed run.
        content = (sorted(zip(self.names, shapes)), _lasting(self.options), *([label] if label else ()))
        return blake2b(repr(content).encode("utf8"), digest_size=8).hexdigest()

    def rate_at(self, step: int) -> float:
        """The rate of a step. step (int): The writer's. RAISES (ConfigError): Its source gives no rate."""
        scale = self.source.scale
        if scale.held is not None:
            return scale.held
        rate = self.source.rate_at(step)
        if type(rate) is not float or not 0.0 <= rate < math.inf:
            rate = check_rate(rate, self.label)
        return scale.factor * rate

    def adopt(self, rate: float) -> None:
        """Continue from a rate that other code wrote."""
        ratio = rate / self.applied_rate if self.applied_rate else math.inf
        self.source.scale = self.source.scale.going_on_from(rate, ratio)
        self.rate = self.rate * ratio if math.isfinite(ratio) else rate
        self.applied_rate = rate

    def is_untouched(self, group: TorchGroup) -> bool:
        """Whether this is the group, unchanged. Runs at every step, for each group: without calls for what is equal."""
        params = group["params"]
        return (
            group is self.group
            and len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and self.options.items() <= group.items()
            and (group["lr"] == self.applied_rate or self.has_rate(group))
        )

    def has_rate(self, group: TorchGroup) -> bool:
        return math.isclose(rate_of(group), self.applied_rate, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)


def rate_of(group: TorchGroup) -> float:
    """The rate in a group; NaN if it is not a number. Waits for a tensor on a GPU."""
    try:
        return float(group["lr"])
    except (KeyError, TypeError, ValueError, RuntimeError):
        return math.nan


def check_rate(value: Any, where: str) -> float:
    """Check a rate.

    value (Any): From a source, or in a group.
    where (str): The group, for messages.
    RETURNS (float): The rate.
    RAISES (ConfigError): It is not a number, or negative, or not finite.
    """
    return Section(f"'{where}'").number("learn_rate", value)


def _own(value: Any) -> Any:
    """A value that does not change with its owner's. A tensor becomes another value."""
    return value.copy() if isinstance(value, (list, dict)) else value


def _lasting(value: Any) -> Any:
    """A form of an option whose repr is the same in every process."""
    if isinstance(value, dict):
        return sorted((str(key), _lasting(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_lasting(item) for item in value]
    if isinstance(value, torch.Tensor):
        return _lasting(value.tolist())
    if value is None or isinstance(value, (bool, str)):
        return value
    return float(value) if isinstance(value, Real) else getattr(value, "__qualname__", type(value).__qualname__)


# ---------------------------------------------------------------------- optimizers

Pairs = list[tuple[GroupRecord | None, TorchGroup]]

_NOT_OPTIONS = {"self", "params", "lr", "defaults", "args", "kwargs"}

# The messages for each kind of change. `what` of the errors is the kind, or "group" for added or removed groups.
_MESSAGES = {
    "learn_rate": (
        "Learn rate of param group '{group}' was changed outside its schedule",
        'Other code writes group["lr"], often a torch scheduler. Remove it, or set on_outside_write = "adopt".',
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
    "added": (
        "Param group '{group}' was added to optimizer '{optimizer}'",
        "Call add_params instead, which also warms new params up.",
    ),
    "removed": (
        "Param group '{group}' was removed from optimizer '{optimizer}'",
        "Call unregister_optimizer for an optimizer that is no longer used.",
    ),
    "taken_out": (
        "Param group '{group}' was removed from optimizer '{optimizer}'",
        "The code that owns the optimizer needs it. To stop training params, freeze them in its settings.",
    ),
}


class OptimizerRecord:
    """The record of a torch optimizer as the writer left it.

    name (str): The prefix of the labels of its groups.
    optimizer (torch.optim.Optimizer): Any.
    moving (Collection[str]): Options that its owner moves, and that are not part of the groups' identity.
    param_names (Mapping[Tensor, str]): Names for params. Other params have torch's names, if any, or their positions.
    keep_groups (bool): Its owner keeps references to the dicts of its groups: they stay in use.

    Public: `groups` (in order), `default_rate` (returns the rate of groups that other code adds, if they have one).
    """

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        moving: Collection[str] = (),
        param_names: Mapping[torch.Tensor, str] | None = None,
        *,
        keep_groups: bool = False,
    ):
        self.name = name
        self.groups: list[GroupRecord] = []
        self.default_rate: Callable[[], float] | None = None
        self.param_names: Mapping[torch.Tensor, str] = {} if param_names is None else param_names
        self.keep_groups = keep_groups
        self._moving = moving
        self._count = 0  # of all groups, including removed ones
        self._use(optimizer)

    def _use(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.all_options = option_names_of(type(optimizer))
        self._option_names = [option for option in self.all_options if option not in self._moving]
        if self.keep_groups:
            optimizer.register_load_state_dict_post_hook(lambda _: self.restore_dicts())

    def bind(self, record: GroupRecord, group: TorchGroup) -> GroupRecord:
        """Record a group as it is now."""
        record.bind(group, self._option_names, self._names(group))
        return record

    def add(self, record: GroupRecord, group: TorchGroup) -> GroupRecord:
        """Record a new group. The caller sets its place in `groups`."""
        self._count += 1
        return self.bind(record, group)

    def move_to(self, new: torch.optim.Optimizer) -> None:
        """Replace this optimizer by another one: each of its groups takes the record at the same place.

        new (torch.optim.Optimizer): With as many groups. The caller sets their rates.
        """
        standing = [record for record, _ in self.pairs()]
        self.groups = []
        self._use(new)
        for record, group in zip(standing, new.param_groups):
            if record is not None:
                record.lr_tensor = None
                self.groups.append(self.bind(record, group))

    def new_label(self, group: TorchGroup, taken: Collection[str], *, later: int = 0) -> str:
        """A label for a group. later (int): The number of new groups before it."""
        name, index = group.get("name"), self._count + later
        if isinstance(name, str) and name:
            label = f"{self.name}/{name}"
        else:
            label = self.name if index == 0 and len(self.optimizer.param_groups) == 1 else f"{self.name}/{index}"
        unique, n = label, 1
        while unique in taken:
            n += 1
            unique = f"{label}-{n}"
        return unique

    def is_untouched(self) -> bool:
        """Whether nothing has changed. Runs at every step."""
        groups = self.optimizer.param_groups
        try:
            return len(groups) == len(self.groups) and all(map(GroupRecord.is_untouched, self.groups, groups))
        except (KeyError, RuntimeError, ValueError):  # no rate; another tensor of several numbers
            return False

    def pairs(self) -> Pairs:
        """Each current group, with its record.

        A group is identified by its dict, or by its params: `optimizer.load_state_dict` makes new dicts.
        """
        groups = self.optimizer.param_groups
        by_dict = {id(record.group): record for record in self.groups}
        left = set(by_dict) - set(map(id, groups))
        by_params = {tuple(map(id, by_dict[i].params)): by_dict[i] for i in left}
        return [
            (by_dict.get(id(group)) or by_params.pop(tuple(map(id, group["params"])), None), group) for group in groups
        ]

    # ------------------------------------------------------------------ changes by other code

    def differences(self, step: int) -> list[LearnRateIntegrityError]:
        """All changes since. Changes nothing. step (int): The writer's number of steps, for messages."""
        if self.is_untouched():
            return []
        pairs, found = self.pairs(), []

        def add(kind: str, label: str, expected: Any, now: Any) -> None:
            found.append(self._difference(kind, label, step, expected, now))

        here, n_before, n_now = [record for record, _ in pairs], f"{len(self.groups)} groups", str(len(pairs))
        for removed in self.groups:
            if removed not in here:
                add("taken_out" if self.keep_groups else "removed", removed.label, n_before, n_now)
        added = [group for record, group in pairs if record is None]
        for i, group in enumerate(added):
            add("added", self.new_label(group, {other.label for other in self.groups}, later=i), n_before, n_now)
        for record, group in pairs:
            if record is None:
                continue
            if not record.has_rate(group):
                add("learn_rate", record.label, record.applied_rate, rate_of(group))
            if list(map(id, group["params"])) != list(map(id, record.params)):
                now = group["params"]
                new = len(set(map(id, now)) - set(map(id, record.params)))
                add("params", record.label, f"{len(record.params)} params", f"{len(now)}, {new} of them new")
            changed = [name for name, option in record.options.items() if not _is_same(group.get(name), option)]
            if changed:
                add("options", record.label, *(_text_of(options, changed) for options in (record.options, group)))
        return found

    def rate_differences(self, step: int) -> list[LearnRateIntegrityError]:
        """Changed learning rates, also of groups that are not in the optimizer just now."""
        return [
            self._difference("learn_rate", record.label, step, record.applied_rate, rate_of(record.group))
            for record in self.groups
            if not record.has_rate(record.group)
        ]

    def _difference(self, kind: str, group: str, step: int, expected: Any, found: Any) -> LearnRateIntegrityError:
        fact, advice = (text.format(group=group, optimizer=self.name) for text in _MESSAGES[kind])
        texts = [f"{value:.9g}" if isinstance(value, float) else value for value in (expected, found)]
        fact = f"{fact} at step {step}: expected {texts[0]}, found {texts[1]}."
        what = "group" if kind in ("added", "removed") else kind
        return LearnRateIntegrityError(fact, advice, group=group, step=step, what=what, expected=expected, found=found)

    # ------------------------------------------------------------------ undoing

    def restore_dicts(self) -> None:
        """Where a new dict replaced one that its owner keeps, copy its content into the old dict, and put that back."""
        groups = self.optimizer.param_groups
        for place, (record, group) in enumerate(self.pairs() if self.keep_groups else ()):
            if record is not None and group is not record.group:
                record.group.clear()
                record.group.update(group)
                groups[place] = record.group

    def restore_groups(self) -> None:
        """Put back groups that its owner keeps and other code removed."""
        pairs = self.pairs()
        if self.keep_groups and {record for record, _ in pairs} < {*self.groups, None}:
            added = [group for record, group in pairs if record is None]
            self.optimizer.param_groups[:] = [record.group for record in self.groups] + added

    def _names(self, group: TorchGroup) -> tuple[str, ...]:
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


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # tensors of several numbers
        return False


def _text_of(options: Mapping[str, Any], names: Collection[str]) -> str:
    return ", ".join(f"{name} = {options.get(name)!r}" for name in names)
