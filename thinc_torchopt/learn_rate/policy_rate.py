"""The rates that a policy gives to a param group, and what others made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..checks import Section
from .groups import WatchedGroup
from .policies import Frozen, Policy, check_rate, kind_of, source_of

# Params that come in mid-training learn at this part of their parent's rate.
NEW_PARAMS_FACTOR = 0.1
# What is kept beside the policy.
_SAVED = ("start", "base", "factor", "held_rate")


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

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes, for JSON; and by what to know the policy, with its own state."""
        source = source_of(self.policy)
        return {
            **{name: getattr(self, name) for name in _SAVED},
            "parent": None if self.parent is None else self.parent.id,
            "policy": kind_of(self.policy),
            "policy_state": source.state_dict() if hasattr(source, "state_dict") else None,
        }

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """state (Mapping): With all keys. RAISES (ConfigError): The state of another group, or the policy can't load
        its part.
        """
        expected = self.state_dict()
        check = Section(f"the saved learn rate of param group '{self._where}'", takes_texts=False, verb="load")
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
        """All but the policy's, which other groups may share."""
        for name in _SAVED:
            setattr(self, name, state[name])


def policy_rate_of(watched: WatchedGroup) -> PolicyRate:
    """The source of a group's rates, for which a policy was registered."""
    assert isinstance(watched.source, PolicyRate)
    return watched.source
