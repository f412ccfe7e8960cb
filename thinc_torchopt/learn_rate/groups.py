"""Param groups as the writer of learning rates left them, and the sources of their rates.

*identity*: the names and shapes of a group's params, and its options, but not its rate and its place. Its checksum
stands for it.

Nothing here writes a rate.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cached_property
from hashlib import blake2b
from numbers import Real
from operator import is_
from typing import Any, Protocol

import torch

from .policies import Frozen, Policy, check_rate, kind_of, source_of

Group = dict[str, Any]

# Tolerances for equal rates: relative to the larger rate, and absolute. The larger one counts.
RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-12
# The rate of params added in mid-training, as a fraction of their parent's.
NEW_PARAMS_FACTOR = 0.1


class RateSource(Protocol):
    """The source of a group's rates.

    is_frozen (bool): The group must not be updated at all.
    """

    @property
    def is_frozen(self) -> bool: ...

    def rate_at(self, step: int) -> float:
        """The rate of a step. step (int): The writer's."""

    def go_on_from(self, rate: float, ratio: float | None) -> None:
        """Continue from a rate that other code wrote.

        ratio (float | None): Of the new rate to the old one. None: undefined.
        """


class WatchedGroup:
    """A param group under the writer.

    id (str): Does not change while the group exists, wherever it is.
    source (RateSource): Gives its rates.
    rate (float): Its current rate.
    """

    def __init__(self, id: str, source: RateSource, rate: float):
        self.id = id
        self.source = source
        self.rate = rate  # of the last step, without the step's scale
        self.applied_rate = rate  # the value in the group
        self.lr_tensor: torch.Tensor | None = None
        self.warned_of: set[str] = set()  # kinds of differences

    def bind(self, group: Group, option_names: Collection[str], names: tuple[str, ...]) -> None:
        """Record the group as it is now.

        group (Group): Of `optimizer.param_groups`.
        option_names (Collection[str]): Keys that belong to its identity.
        names (tuple[str, ...]): The names of its params.
        """
        self.group = group
        self.names = names
        self.params: tuple[torch.Tensor, ...] = tuple(group["params"])
        self.options = {name: _own(group[name]) for name in option_names if name in group}
        self._options = list(self.options.values())
        if isinstance(group.get("lr"), torch.Tensor):
            self.lr_tensor = group["lr"]
        self.__dict__.pop("checksum", None)

    @cached_property
    def checksum(self) -> str:
        """The checksum of its identity, the same in every process. 16 characters."""
        return self.checksum_as(self.id if any(map(str.isdigit, self.names)) else "")

    def checksum_as(self, id: str) -> str:
        """Its checksum under another id, which distinguishes groups of unnamed params.

        id (str): Empty: distinguish no groups.
        """
        shapes = (tuple(param.shape) for param in self.params)
        # In any order: params may have another order in a resumed run.
        content = (sorted(zip(self.names, shapes)), _lasting(self.options), *([id] if id else ()))
        return blake2b(repr(content).encode("utf8"), digest_size=8).hexdigest()

    def rate_at(self, step: int) -> float:
        """The rate of its source. step (int): The writer's. RAISES (ConfigError): Not a rate."""
        rate = self.source.rate_at(step)
        return rate if type(rate) is float and 0.0 <= rate < math.inf else check_rate(rate, self.id)

    def adopt(self, rate: float) -> None:
        """Continue from a rate that other code wrote."""
        ratio = rate / self.applied_rate if self.applied_rate else math.inf
        is_finite = math.isfinite(ratio)
        self.source.go_on_from(rate, ratio if is_finite else None)
        self.rate = self.rate * ratio if is_finite else rate
        self.applied_rate = rate

    def is_untouched(self, group: Group) -> bool:
        """Whether this is the group, unchanged. Runs at every step."""
        return (
            group is self.group
            and self.has_params(group)
            and same_options(list(map(group.get, self.options)), self._options)
            and self.has_rate(group)
        )

    def has_params(self, group: Group) -> bool:
        params = group["params"]
        return len(params) == len(self.params) and all(map(is_, params, self.params))

    def has_rate(self, group: Group) -> bool:
        return math.isclose(rate_of(group), self.applied_rate, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)


class PolicyRate:
    """A `RateSource` by a policy.

    policy (Policy): Gives the rates.
    base (float): The group's rate when it was registered.
    start (int): The writer's step when it was registered.
    where (str): The group, for errors.
    parent (WatchedGroup | None): For params added in mid-training: the base is then a tenth of the parent's rate.
    """

    def __init__(self, policy: Policy, base: float, start: int, where: str, parent: WatchedGroup | None = None):
        self.policy = policy
        self.base = base
        self.start = start
        self.parent = parent
        self._where = where
        # The effect of adopted rates: a factor, or a rate that replaces the policy's.
        self.factor = 1.0
        self.held_rate: float | None = None

    @property
    def is_frozen(self) -> bool:
        return isinstance(self.policy, Frozen) and self.held_rate is None

    def rate_at(self, step: int) -> float:
        if self.held_rate is not None:
            return self.held_rate
        base = self.base if self.parent is None else NEW_PARAMS_FACTOR * self.parent.rate_at(step)
        rate = self.policy.rate(step - self.start, base)
        if type(rate) is not float or not 0.0 <= rate < math.inf:
            rate = check_rate(rate, self._where)
        return self.factor * rate

    def heeds_metrics(self, step: int) -> bool:
        """Whether its policy uses metrics at this step: not while it warms up. step (int): The writer's."""
        return not hasattr(self.policy, "is_warming_up") or not self.policy.is_warming_up(step - self.start)

    def go_on_from(self, rate: float, ratio: float | None) -> None:
        if self.held_rate is None and ratio is not None:
            self.factor *= ratio
        else:
            self.held_rate = rate

    @property
    def kind(self) -> str:
        """The name of the policy in saved states."""
        return kind_of(self.policy)

    @property
    def keeper(self) -> Any:
        """The object with a state: the policy, or its source, which other groups may share. None: neither has one."""
        source = source_of(self.policy)
        return source if hasattr(source, "state_dict") else None


def policy_rate_of(watched: WatchedGroup) -> PolicyRate:
    """The source of the rates of a group with a policy."""
    assert isinstance(watched.source, PolicyRate)
    return watched.source


def rate_of(group: Group) -> float:
    """The rate in a group; NaN if it is not a number. Waits for a tensor on a GPU."""
    try:
        return float(group["lr"])
    except (KeyError, TypeError, ValueError, RuntimeError):
        return math.nan


def _own(value: Any) -> Any:
    """A value that does not change with its owner's. A tensor becomes another value."""
    return value.copy() if isinstance(value, (list, dict)) else value


def same_options(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # tensors of several numbers
        return False


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
