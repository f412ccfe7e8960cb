"""A param group as the writer of learning rates left it, and the source of its rates.

*identity*: the names and shapes of a group's params, and its options, but not its rate and its place. Its checksum
stands for it.

Nothing here writes a rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import cached_property
from hashlib import blake2b
from numbers import Real
from operator import is_
from typing import Any, Protocol

import torch

from ..checks import Section

TorchGroup = dict[str, Any]

# Tolerances for equal rates: relative to the larger rate, and absolute. The larger one counts.
RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-12


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
        self._options = list(self.options.values())
        if isinstance(group.get("lr"), torch.Tensor):
            self.lr_tensor = group["lr"]
        self.__dict__.pop("checksum", None)

    @cached_property
    def checksum(self) -> str:
        """The checksum of its identity, the same in every process. 16 characters."""
        return self.checksum_as(self.label if any(map(str.isdigit, self.names)) else "")

    def checksum_as(self, label: str) -> str:
        """Its checksum under another label, which distinguishes groups of unnamed params.

        label (str): Empty: distinguish no groups.
        """
        shapes = (tuple(param.shape) for param in self.params)
        # In any order: params may have another order in a resumed run.
        content = (sorted(zip(self.names, shapes)), _lasting(self.options), *([label] if label else ()))
        return blake2b(repr(content).encode("utf8"), digest_size=8).hexdigest()

    def rate_at(self, step: int) -> float:
        """The rate of its source. step (int): The writer's. RAISES (ConfigError): Not a rate."""
        rate = self.source.rate_at(step)
        return rate if type(rate) is float and 0.0 <= rate < math.inf else check_rate(rate, self.label)

    def adopt(self, rate: float) -> None:
        """Continue from a rate that other code wrote."""
        ratio = rate / self.applied_rate if self.applied_rate else math.inf
        is_finite = math.isfinite(ratio)
        self.source.go_on_from(rate, ratio if is_finite else None)
        self.rate = self.rate * ratio if is_finite else rate
        self.applied_rate = rate

    def is_untouched(self, group: TorchGroup) -> bool:
        """Whether this is the group, unchanged. Runs at every step."""
        return (
            group is self.group
            and self.has_params(group)
            and same_options(list(map(group.get, self.options)), self._options)
            and self.has_rate(group)
        )

    def has_params(self, group: TorchGroup) -> bool:
        params = group["params"]
        return len(params) == len(self.params) and all(map(is_, params, self.params))

    def has_rate(self, group: TorchGroup) -> bool:
        return math.isclose(rate_of(group), self.applied_rate, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)


class FunctionRate:
    """A `RateSource` by a function, for groups that other code adds.

    rate_now (Callable): Returns the rate.
    """

    is_frozen = False

    def __init__(self, rate_now: Callable[[], float]):
        self._rate_now = rate_now
        # The effect of adopted rates: a factor, or a rate that replaces the function's.
        self._factor = 1.0
        self._held_rate: float | None = None

    def rate_at(self, step: int) -> float:
        return self._factor * self._rate_now() if self._held_rate is None else self._held_rate

    def go_on_from(self, rate: float, ratio: float | None) -> None:
        if self._held_rate is None and ratio is not None:
            self._factor *= ratio
        else:
            self._held_rate = rate


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
