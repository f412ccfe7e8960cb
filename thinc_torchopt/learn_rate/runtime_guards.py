"""How long the learn rate controller may take: what takes longer is counted, and logged once.

It changes nothing else: a run on a slow machine has the rates, and the results, of one on a fast machine.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from numbers import Real

from ..errors import ConfigError

# In milliseconds.
BUDGETS = {"rate_step": 5.0, "integrity_check": 2.0, "state_preservation": 100.0, "adding_params": 20.0}

_WHAT = {
    "rate_step": "Writing the learning rates of a step",
    "integrity_check": "Verifying the param groups",
    "state_preservation": "Keeping the state of an optimizer for a model that has grown",
    "adding_params": "Adding params",
}

logger = logging.getLogger("thinc_torchopt.learn_rate")


class RuntimeGuards:
    """Budgets of time.

    enabled (bool): Whether integrity is checked at all.
    budgets (Mapping[str, float]): Milliseconds by kind, in place of those in `BUDGETS`.
    timer (Callable): Seconds, by a clock that never goes back.
    RAISES (ConfigError): There is no such budget, or it is no time.

    Public: `overruns` (how many there were, by kind; only kinds that had some).
    """

    def __init__(self, enabled: bool = True, budgets: Mapping[str, float] | None = None, timer: Callable[[], float] = time.monotonic):
        if not isinstance(enabled, bool):
            raise ConfigError(f"Can't set 'enable_runtime_guards' in [training.optimizer]: expected true or false, found {enabled!r}.")
        given = {} if budgets is None else budgets
        if not isinstance(given, Mapping) or (unknown := sorted(map(str, set(given) - set(BUDGETS)))):
            found = given if not isinstance(given, Mapping) else unknown
            raise ConfigError(f"Can't read [training.optimizer.runtime_budgets]: expected budgets among {list(BUDGETS)}, found {found!r}.")
        for kind, budget in given.items():
            if isinstance(budget, bool) or not isinstance(budget, Real) or math.isnan(budget) or budget <= 0:
                raise ConfigError(
                    f"Can't set '{kind}' in [training.optimizer.runtime_budgets]: expected milliseconds, above 0, found {budget!r}."
                )
        self.enabled = enabled
        self.budgets = {**BUDGETS, **given}
        self.timer = timer
        self.overruns: dict[str, int] = {}
        self._last_was_over: set[str] = set()

    def ended(self, kind: str, started: float, size: Callable[[], tuple[int, int]], step: int) -> bool:
        """Look how long something took.

        kind (str): A key of `BUDGETS`.
        started (float): When it began, by `timer`.
        size (Callable): Of how many groups and params. For the log, as is `step`.
        RETURNS (bool): Whether it took too long, and did so the time before as well.
        """
        milliseconds = 1000.0 * (self.timer() - started)
        if milliseconds <= self.budgets[kind]:
            self._last_was_over.discard(kind)
            return False
        self.overruns[kind] = self.overruns.get(kind, 0) + 1
        if self.overruns[kind] == 1:
            logger.warning(
                "%s took %.3g ms at step %d, with %d param groups and %d params: expected at most %g ms. Nothing else changes. More of "
                "this is counted in controller.overruns. Perhaps the machine was busy; runtime_budgets sets other limits.",
                _WHAT[kind],
                milliseconds,
                step,
                *size(),
                self.budgets[kind],
            )
        repeats = kind in self._last_was_over
        self._last_was_over.add(kind)
        return repeats
