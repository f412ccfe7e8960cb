"""How much work the writer of learning rates may take: what takes more is counted.

It changes nothing else: a run on a slow machine has the rates, and the results, of one on a fast machine. Measured is
the CPU time of the thread, in which a machine that is busy with other things does not count. It is no warning, and is
not shown on a console: nobody has to do anything about it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping

from ..checks import OPTIMIZER, Section

_SECTION, _BUDGET = Section("[training.optimizer.runtime_budgets]"), "milliseconds, above 0"
# In milliseconds of CPU time.
BUDGETS = {"rate_step": 5.0, "integrity_check": 2.0, "state_preservation": 100.0, "adding_params": 20.0}

_WHAT = {
    "rate_step": "Writing the learning rates of a step",
    "integrity_check": "Verifying the param groups",
    "state_preservation": "Keeping the state of an optimizer for a model that has grown",
    "adding_params": "Adding params",
}

logger = logging.getLogger("thinc_torchopt.learn_rate")


class RuntimeGuards:
    """Budgets of CPU time.

    enabled (bool): Whether integrity is checked at all.
    budgets (Mapping[str, float]): Milliseconds by kind, in place of those in `BUDGETS`.
    timer (Callable): Seconds of the thread's work, by a clock that never goes back.
    RAISES (ConfigError): There is no such budget, or it is no time.

    Public: `overruns` (how many there were, by kind; only kinds that had some).
    """

    def __init__(
        self,
        enabled: bool = True,
        budgets: Mapping[str, float] | None = None,
        timer: Callable[[], float] = time.thread_time,
    ):
        given = OPTIMIZER.section("runtime_budgets", {} if budgets is None else budgets)
        if unknown := sorted(set(given) - set(BUDGETS)):
            OPTIMIZER.refuse("runtime_budgets", f"budgets among {list(BUDGETS)}", unknown)
        for kind, budget in given.items():
            # An infinite budget means no limit.
            if budget != math.inf and not _SECTION.number(kind, budget, _BUDGET):
                _SECTION.refuse(kind, _BUDGET, budget)
        self.enabled = OPTIMIZER.flag("enable_runtime_guards", enabled)
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
            logger.info(
                "%s took %.3g ms of CPU time at step %d, with %d param groups and %d params: expected at most %g ms. "
                "Nothing else changes. More of this is counted in controller.overruns; runtime_budgets sets other "
                "limits.",
                _WHAT[kind],
                milliseconds,
                step,
                *size(),
                self.budgets[kind],
            )
        repeats = kind in self._last_was_over
        self._last_was_over.add(kind)
        return repeats
