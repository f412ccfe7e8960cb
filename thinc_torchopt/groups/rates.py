"""The learning rate of a param group: what its settings, their schedules and their policy make of it at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..learn_rate import NEW_PARAMS_FACTOR, NamedPolicy, Policy, source_of
from ..schedules import current
from .settings import ParamSettings

if TYPE_CHECKING:
    from .torch_group import TorchGroup


class Rates:
    """What the rates of all groups depend on.

    default (Callable): The learning rate of params without one of their own.
    step (Callable): The step that comes.
    """

    def __init__(self, default: Callable[[], float], step: Callable[[], int]):
        self.default = default
        self.step = step
        self._policies: dict[NamedPolicy, Policy] = {}

    def policy_of(self, settings: ParamSettings) -> Policy | None:
        """The policy in the settings, as it stands in this run: one for all params that share it."""
        wanted = settings.policy
        if wanted is None:
            return None
        if wanted not in self._policies:
            self._policies[wanted] = wanted.build()
        return self._policies[wanted]


class GroupRate:
    """The policy of a param group, which the controller of learning rates asks at each step.

    settings (ParamSettings): Of its params.
    rates (Rates): What it shares with the other groups.
    group (TorchGroup | None): None: one that is still to be built.
    """

    kind = "Live"

    def __init__(self, settings: ParamSettings, rates: Rates, group: TorchGroup | None = None):
        self._settings = settings
        self._rates = rates
        self._group = group
        self._policy = rates.policy_of(settings)
        source: Any = None if self._policy is None else source_of(self._policy)
        if hasattr(source, "observe"):
            self.source, self.kind = source, "LiveByMetrics"

    @property
    def _policy_step(self) -> int:
        """How many steps the params were trained for, or could have been."""
        return int(max(0, self._rates.step() - self._settings.frozen_until))

    def is_warming_up(self, step: int) -> bool:
        """Whether metrics do not count for the policy at the step that comes."""
        policy: Any = self._policy
        return hasattr(policy, "is_warming_up") and policy.is_warming_up(self._policy_step)

    def rate(self, step: int = 0, base: float = 0.0) -> float:
        """The rate of the step that comes, which is that of the schedules and not the controller's."""
        settings, group = self._settings, self._group
        rate: float = self._rates.default() if settings.learn_rate is None else current(settings.learn_rate)
        if self._policy is not None:
            rate = self._policy.rate(self._policy_step, rate)
        rate = rate * current(settings.lr_scale) * settings.layer_scale
        if settings.joined_at is not None and settings.new_params is not None:
            rate = settings.new_params.rate(0 if group is None else group.updates, NEW_PARAMS_FACTOR * rate)
        return rate
