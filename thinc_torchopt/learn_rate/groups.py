"""Param groups as the learn rate controller left them: what each one is, where it stands, and what its rate should be.

*identity*: what a group is: the names and shapes of its params, and its options. Its rate and its place are not part of
it.

Nothing here writes a rate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cached_property
from hashlib import blake2b
from numbers import Real
from operator import is_
from typing import Any

import torch

from ..checks import Section
from .policies import Frozen, Policy, check_rate, kind_of, source_of

Group = dict[str, Any]

# Two rates are the same within the larger of these: relative to the larger rate, and absolute.
RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-12
# Params that come in mid-training learn at this part of their parent's rate.
NEW_PARAMS_FACTOR = 0.1
# What is kept of each group beside its policy.
_SAVED = ("start", "base", "factor", "held_rate", "rate", "applied_rate")


class GroupIdentity:
    """What a group is, as it was when this was made.

    id (str): The group's, which tells groups apart whose params have no names.
    """

    def __init__(self, id: str, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], options: Group):
        self.id = id
        self.names = names
        self.shapes = shapes
        self.options = options

    @cached_property
    def checksum(self) -> str:
        """The same in every process. 16 characters."""
        return self.checksum_as(self.id if any(map(str.isdigit, self.names)) else "")

    def checksum_as(self, id: str) -> str:
        """The checksum that it would have under another id. An empty one: that which tells no groups apart."""
        # In any order: a param that was frozen at first stands last in its group, until the run is resumed.
        content = (sorted(zip(self.names, self.shapes)), _lasting(self.options), *([id] if id else ()))
        return blake2b(repr(content).encode("utf8"), digest_size=8).hexdigest()


class WatchedGroup:
    """A param group under the controller.

    id (str): Stays the same as long as there is the group, wherever it stands.
    policy (Policy): Gives its rates.
    base (float): Its rate when it was registered.
    start (int): The controller's step at which it was registered.
    parent (WatchedGroup): For params that came in mid-training: its base is then a tenth of the parent's rate.
    """

    def __init__(self, id: str, policy: Policy, base: float, start: int, parent: WatchedGroup | None = None):
        self.id = id
        self.policy = policy
        self.base = base
        self.start = start
        self.parent = parent
        # What adopted rates made of the policy's: a factor, or a rate that replaces them.
        self.factor = 1.0
        self.held_rate: float | None = None
        self.rate = base  # of the last step, without the step's scale
        self.applied_rate = base  # what stands in the group
        self.lr_tensor: torch.Tensor | None = None
        self.warned_of: set[str] = set()  # kinds of differences

    def bind(self, group: Group, option_names: Collection[str], names: tuple[str, ...]) -> None:
        """Take the group as it is now.

        group (Group): Of `optimizer.param_groups`.
        option_names (Collection[str]): Keys that belong to its identity.
        names (tuple[str, ...]): Of its params.
        """
        self.group = group
        self.params: tuple[torch.Tensor, ...] = tuple(group["params"])
        self.options = {name: _own(group[name]) for name in option_names if name in group}
        self._options = list(self.options.values())
        self.identity = GroupIdentity(self.id, names, tuple(tuple(param.shape) for param in self.params), self.options)
        if isinstance(group.get("lr"), torch.Tensor):
            self.lr_tensor = group["lr"]

    @property
    def is_frozen(self) -> bool:
        return isinstance(self.policy, Frozen) and self.held_rate is None

    def rate_at(self, step: int) -> float:
        """The rate that its policy wants.

        step (int): The controller's step.
        RAISES (ConfigError): The policy gives no rate.
        """
        if self.held_rate is not None:
            return self.held_rate
        base = self.base if self.parent is None else NEW_PARAMS_FACTOR * self.parent.rate_at(step)
        rate = self.policy.rate(step - self.start, base)
        if type(rate) is not float or not 0.0 <= rate < math.inf:
            rate = check_rate(rate, self.id)
        return self.factor * rate

    def heeds_metrics(self, step: int) -> bool:
        """Whether metrics count for its policy: not while that warms up. step (int): The controller's step."""
        return not hasattr(self.policy, "is_warming_up") or not self.policy.is_warming_up(step - self.start)

    def adopt(self, rate: float) -> None:
        """Let the policy continue from a rate that other code wrote."""
        ratio = rate / self.applied_rate if self.applied_rate else math.inf
        if self.held_rate is None and math.isfinite(ratio):
            self.factor *= ratio
            self.rate *= ratio
        else:
            self.held_rate = self.rate = rate
        self.applied_rate = rate

    def scale_by(self, factor: float) -> None:
        """Multiply all rates that are to come."""
        if self.held_rate is None:
            self.factor *= factor
        else:
            self.held_rate *= factor

    def hold(self, rate: float) -> None:
        """From now on the rate is this one, whatever the policy wants."""
        self.held_rate = rate

    def state_dict(self) -> dict[str, Any]:
        source = source_of(self.policy)
        return {
            **{name: getattr(self, name) for name in _SAVED},
            "parent": None if self.parent is None else self.parent.id,
            "checksum": self.identity.checksum,
            "policy": kind_of(self.policy),
            "policy_state": source.state_dict() if hasattr(source, "state_dict") else None,
        }

    def check_state_dict(self, state: Any) -> None:
        """RAISES (ConfigError): The state of another group, or the policy can't load its part."""
        expected = self.state_dict()
        Section("the saved learn rates", verb="load").parts(self.id, state, expected)
        check = Section(f"the saved learn rate of param group '{self.id}'", takes_texts=False, verb="load")
        for name in ("parent", "policy"):
            if state[name] != expected[name]:
                advice = "Register the same optimizers with the same policies before you load."
                check.refuse(name, repr(expected[name]), state[name], advice)
        for name in _SAVED:
            if state[name] is not None or name != "held_rate":
                check.number(name, state[name])
        if hasattr(source_of(self.policy), "check_state_dict"):
            source_of(self.policy).check_state_dict(state["policy_state"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """All but the policy's, which other groups may share, and the group itself."""
        for name in _SAVED:
            setattr(self, name, state[name])

    def is_untouched(self, group: Group) -> bool:
        """Whether this is the group, as it was left. Runs at every step."""
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


def rate_of(group: Group) -> float:
    """The rate in a group; NaN if it is not a number. Waits for a tensor on a GPU."""
    try:
        return float(group["lr"])
    except (KeyError, TypeError, ValueError, RuntimeError):
        return math.nan


def _own(value: Any) -> Any:
    """A value that stays what it is when its owner changes it in place. A tensor may move to another value unseen."""
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
