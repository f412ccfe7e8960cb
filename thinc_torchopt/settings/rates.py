"""How a learning rate is computed.

    learn_rate of a block, or of the optimizer; either may be a schedule
    x lr_scale of a block
    x [training.optimizer.layer_decay] -> the warm-up of params added in mid-training x the changes by rules, and by
    other code if adopted; or the rate that replaces it x the scale of the whole run, after a rollback: see
    learn_rate/writer.py, which writes the result

The first three depend on the settings alone, the fourth and fifth on the group.
"""

from __future__ import annotations

from collections.abc import Callable

from ..learn_rate import NEW_PARAMS_FACTOR
from ..schedules import current
from .param_settings import ParamSettings


class Rates:
    """Computes the rates of params from their settings.

    default (Callable): The learning rate of params without one of their own.
    """

    def __init__(self, default: Callable[[], float]):
        self.default = default

    def at_next_step(self, settings: ParamSettings, updates: int = 0) -> float:
        """The rate of params with these settings, before the warm-up of new ones.

        updates (int): Their updates so far.
        """
        rate = self.default() if settings.learn_rate is None else current(settings.learn_rate)
        rate = rate * current(settings.lr_scale) * settings.layer_scale
        if settings.joined_at is not None and settings.new_params is not None:
            rate = settings.new_params.rate(updates, NEW_PARAMS_FACTOR * rate)
        return rate
