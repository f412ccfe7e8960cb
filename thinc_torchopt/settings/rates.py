"""How a learning rate is computed.

    learn_rate of a block, or of the optimizer; either may be a schedule
    -> the policy of a block
    x lr_scale of a block
    x [training.optimizer.layer_decay] -> the warm-up of params added in mid-training x the changes by rules, and by
    other code if adopted; or the rate that replaces it x the scale of the whole run, after a rollback: see
    learn_rate/writer.py, which writes the result

The first four depend on the settings alone, the fifth and sixth on the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..errors import ConfigError
from ..learn_rate import NEW_PARAMS_FACTOR, NamedPolicy, Policy, source_of
from ..schedules import current
from .param_settings import ParamSettings


class Rates:
    """Computes the rates of params from their settings.

    default (Callable): The learning rate of params without one of their own.
    step (Callable): The next step.
    """

    def __init__(self, default: Callable[[], float], step: Callable[[], int]):
        self.default = default
        self._step = step
        self._policies: dict[NamedPolicy, Policy] = {}

    def policy_of(self, settings: ParamSettings) -> Policy | None:
        """The policy in the settings, in its form for this run: one for all params that share it."""
        wanted = settings.policy
        if wanted is None:
            return None
        if wanted not in self._policies:
            self._policies[wanted] = wanted.build()
        return self._policies[wanted]

    @property
    def policies(self) -> dict[str, Policy]:
        """All policies in use, by the config paths of their blocks."""
        return {wanted.where: policy for wanted, policy in self._policies.items()}

    def check_metrics(self, scores: Collection[str]) -> None:
        """Check that the metrics of policies exist: the loss of each step, or a score of the evaluation.

        scores (Collection[str]): The names of all scores.
        RAISES (ConfigError): A metric does not exist.
        """
        for where, policy in self.policies.items():
            metric = getattr(source_of(policy), "metric", "loss")
            if metric != "loss" and metric not in scores:
                raise ConfigError(
                    f"Can't use the policy of '{where}': expected 'metric' to be \"loss\" or a score of the evaluation "
                    f"({', '.join(sorted(scores))}), found '{metric}'."
                )

    def policy_step(self, settings: ParamSettings) -> int:
        """For how many steps the params were trained, or could have been."""
        return int(max(0, self._step() - settings.frozen_until))

    def at_next_step(self, settings: ParamSettings, updates: int = 0) -> float:
        """The rate of params with these settings, before the warm-up of new ones.

        updates (int): Their updates so far.
        """
        rate = self.default() if settings.learn_rate is None else current(settings.learn_rate)
        policy = self.policy_of(settings)
        if policy is not None:
            rate = policy.rate(self.policy_step(settings), rate)
        rate = rate * current(settings.lr_scale) * settings.layer_scale
        if settings.joined_at is not None and settings.new_params is not None:
            rate = settings.new_params.rate(updates, NEW_PARAMS_FACTOR * rate)
        return rate
