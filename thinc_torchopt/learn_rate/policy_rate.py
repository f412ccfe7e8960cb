"""The rates that a policy gives to a param group, and what others made of them."""

from __future__ import annotations

import math
from typing import Any

from .groups import WatchedGroup
from .policies import Frozen, Policy, check_rate, kind_of, source_of

# Params that come in mid-training learn at this part of their parent's rate.
NEW_PARAMS_FACTOR = 0.1


class PolicyRate:
    """A `RateSource` by a policy.

    policy (Policy): Gives the rates.
    base (float): The group's rate when it was registered.
    start (int): The writer's step at which it was registered.
    where (str): The group, for errors.
    parent (WatchedGroup | None): For params that came in mid-training: the base is then a tenth of the parent's rate.
    """

    def __init__(self, policy: Policy, base: float, start: int, where: str, parent: WatchedGroup | None = None):
        self.policy = policy
        self.base = base
        self.start = start
        self.parent = parent
        self._where = where
        # What adopted rates made of the policy's: a factor, or a rate that replaces them.
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
        return not hasattr(self.policy, "is_warming_up") or not self.policy.is_warming_up(step - self.start)

    def go_on_from(self, rate: float, ratio: float | None) -> None:
        if self.held_rate is None and ratio is not None:
            self.factor *= ratio
        else:
            self.held_rate = rate

    @property
    def kind(self) -> str:
        """What states call the policy."""
        return kind_of(self.policy)

    @property
    def keeper(self) -> Any:
        """What keeps a state: the policy, or its source, which other groups may share. None: nothing does."""
        source = source_of(self.policy)
        return source if hasattr(source, "state_dict") else None


def policy_rate_of(watched: WatchedGroup) -> PolicyRate:
    """The source of a group's rates, for which a policy was registered."""
    assert isinstance(watched.source, PolicyRate)
    return watched.source
