"""Watch over the writer of learning rates: counts writes by other code to param groups, and slow work.

Several writes by other code in a row turn on conservative mode. That depends on steps and not on seconds: a resumed
run, or one on a slower machine, has the same rates. Slow work is only counted: it opens the circuit breaker, which
changes nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...core.checks import Section
from ...core.near_misses import did_you_mean
from ...core.schema import Count, write

# Clean steps in a row that end conservative mode.
CLEAN_STEPS = 100
# For this many steps from its beginning, rates may not rise.
HELD_STEPS = 100

_SECTION, _BUDGET = Section("the learn rate controller"), "milliseconds, above 0"
# In milliseconds of CPU time.
BUDGETS = {"rate_step": 5.0, "integrity_check": 2.0, "state_preservation": 100.0, "adding_params": 20.0}

_WHAT = {
    "rate_step": "Writing the learning rates of a step",
    "integrity_check": "Verifying the param groups",
    "state_preservation": "Keeping the state of an optimizer for a model that has grown",
    "adding_params": "Adding params",
}

logger = logging.getLogger("thinc_torchopt.learn_rate")


class CircuitBreaker:
    """Counts failures, and clean steps.

    `state` is "open" after several failures of any kind in a row, without a clean step in between: for inspection only.

    `conservative` is set after several writes by other code in a row, and ends after a hundred clean steps. At first
    rates may fall, but not rise (`holds_rates`).

    failures (int): Failures in a row that open it, or begin conservative mode.
    RAISES (ConfigError): Not a whole number of at least 1.

    Public: `times` (how often conservative mode has begun), and the counters in `BreakerState`.
    """

    def __init__(self, failures: int = 3):
        self.failures = Section("the circuit breaker", allows_texts=False).whole("failures", failures, at_least=1)
        self.conservative = False
        self.times = 0
        self.failures_in_a_row = 0  # of any kind
        self.writes_in_a_row = 0
        self.wrote_since_step = False
        # In conservative mode:
        self.steps = 0
        self.clean_steps = 0
        self._slow_since_step = False

    @property
    def state(self) -> Literal["closed", "open"]:
        return "open" if self.failures_in_a_row >= self.failures else "closed"

    @property
    def holds_rates(self) -> bool:
        """Whether rates may fall, but not rise."""
        return self.conservative and self.steps < HELD_STEPS

    # ------------------------------------------------------------------ events

    def was_slow(self) -> None:
        """Count work that is slow again and again. It does not matter for conservative mode."""
        self._slow_since_step = True
        self.failures_in_a_row += 1

    def was_written_to(self, step: int) -> None:
        """Count a write by other code. Several may come between two steps. step (int): For the log."""
        self.wrote_since_step = True
        self.clean_steps = 0
        self.failures_in_a_row += 1
        self.writes_in_a_row += 1
        if self.conservative or self.writes_in_a_row < self.failures:
            return
        self.conservative = True
        self.times += 1
        self.steps = 0
        logger.warning(
            "Conservative mode began at step %d: other code keeps writing to the param groups. Such writes are undone "
            "without further warnings, and learning rates may fall but not rise for %d steps. The mode ends after %d "
            "steps in a row without such writes. Find the code that writes there, often a torch scheduler, and remove "
            "it.",
            step,
            HELD_STEPS,
            CLEAN_STEPS,
        )

    def end_step(self, step: int) -> None:
        """Count a step, which is clean without a failure since the last one. step (int): For the log."""
        written, self.wrote_since_step = self.wrote_since_step, False
        slow, self._slow_since_step = self._slow_since_step, False
        if not written:
            self.writes_in_a_row = 0
            if not slow:
                self.failures_in_a_row = 0
        if self.conservative:
            self._end_conservative_step(step, is_clean=not written)

    def _end_conservative_step(self, step: int, *, is_clean: bool) -> None:
        self.steps += 1
        self.clean_steps += is_clean
        if self.clean_steps == CLEAN_STEPS:
            self.conservative = False
            self.clean_steps = 0
            logger.info(
                "Conservative mode ended after step %d: no other code wrote to the param groups in the last %d steps.",
                step,
                CLEAN_STEPS,
            )

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """The state, for JSON."""
        return write(self, BreakerState)

    def load(self, state: BreakerState) -> None:
        """Resume from a saved state."""
        vars(self).update(vars(state))


@dataclass
class BreakerState:
    """The saved form of a circuit breaker: its attributes."""

    conservative: bool
    times: Count
    failures_in_a_row: Count
    writes_in_a_row: Count
    wrote_since_step: bool
    steps: Count
    clean_steps: Count


class RuntimeGuards:
    """Budgets for the thread's CPU time, which does not depend on the machine's other work.

    Overruns are counted, and logged for information.

    budgets (Mapping[str, float]): Milliseconds by kind, in place of those in `BUDGETS`.
    timer (Callable): Seconds of the thread's work, by a clock that never goes back.
    RAISES (ConfigError): An unknown budget, or not a time.

    Public: `overruns` (their number by kind; only kinds with overruns).
    """

    def __init__(
        self,
        budgets: Mapping[str, float] | None = None,
        timer: Callable[[], float] = time.thread_time,
    ):
        given = _SECTION.section("runtime_budgets", {} if budgets is None else budgets)
        if unknown := sorted(set(given) - set(BUDGETS)):
            near = did_you_mean(unknown[0], BUDGETS).strip()
            _SECTION.refuse("runtime_budgets", f"budgets among {list(BUDGETS)}", unknown, near)
        # An infinite budget means no limit.
        self.budgets = BUDGETS | {
            kind: math.inf if budget == math.inf else _SECTION.number(kind, budget, _BUDGET, above=0.0)
            for kind, budget in given.items()
        }
        self.timer = timer
        self.overruns: dict[str, int] = {}
        self._last_was_over: set[str] = set()

    def ended(self, kind: str, started: float, step: int) -> bool:
        """Compare the time of some work with its budget.

        kind (str): A key of `BUDGETS`.
        started (float): Its start, by `timer`.
        step (int): For the log.
        RETURNS (bool): Whether it exceeded its budget, and did so the time before as well.
        """
        milliseconds = 1000.0 * (self.timer() - started)
        if milliseconds <= self.budgets[kind]:
            self._last_was_over.discard(kind)
            return False
        self.overruns[kind] = self.overruns.get(kind, 0) + 1
        if self.overruns[kind] == 1:
            logger.info(
                "%s took %.3g ms of CPU time at step %d: expected at most %g ms. Nothing else changes. More of this is "
                "counted in controller.overruns; runtime_budgets sets other limits.",
                _WHAT[kind],
                milliseconds,
                step,
                self.budgets[kind],
            )
        repeats = kind in self._last_was_over
        self._last_was_over.add(kind)
        return repeats
