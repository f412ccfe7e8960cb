"""Detects other code that keeps writing to param groups, and says how long learning rates must not rise.

Counted in steps and not in seconds: a run that is resumed, or made on a slower machine, has the same rates.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .circuit_breaker import CircuitBreaker

# The clean steps, in a row, after which conservative mode ends.
CLEAN_STEPS = 100
# For so many steps, from its beginning, rates may not rise.
HELD_STEPS = 100
# It says how often others wrote every so many steps.
REPORT_STEPS = 1000

logger = logging.getLogger("thinc_torchopt.learn_rate")


class ConservativeMode:
    """Off, until as many failures in a row as open the circuit breaker; then on, until a hundred steps in a row are clean.

    breaker (CircuitBreaker): Is told of failures and of clean steps, and of what is too slow, which turns nothing on: rates must not go by
        how fast a machine is.
    """

    def __init__(self, breaker: CircuitBreaker):
        self.breaker = breaker
        self.is_on = False
        self.times = 0  # that it was turned on
        self._in_a_row = 0  # failures
        self._is_slow = False  # since the last step
        self._steps = 0  # since it is on
        self._clean_steps = 0
        self._failures = 0  # since the last report
        self._failed_since_step = False

    @property
    def holds_rates(self) -> bool:
        """Whether rates may fall, but not rise."""
        return self.is_on and self._steps < HELD_STEPS

    def failed(self, step: int) -> None:
        """Count a failure. Several may come between two steps. step (int): For the log."""
        self._failed_since_step = True
        self._clean_steps = 0
        self._failures += 1
        self._in_a_row += 1
        self.breaker.failed()
        if not self.is_on and self._in_a_row >= self.breaker.failures:
            self.is_on = True
            self.times += 1
            self._steps, self._failures = 0, 1
            logger.warning(
                "Learn rates are conservative from step %d on: other code keeps writing to the param groups. From now on such writes are "
                "undone without a warning each. Learn rates may fall but not rise for %d steps, and then follow their schedules again. "
                "Conservative mode ends after %d steps in a row without such writes. Find the code that writes there, often a torch "
                "scheduler, and remove it.",
                step,
                HELD_STEPS,
                CLEAN_STEPS,
            )

    def was_slow(self) -> None:
        """Tell the breaker that something takes too long again and again."""
        self._is_slow = True
        self.breaker.failed()

    def end_step(self, step: int) -> None:
        """Count a step, which is clean if nothing failed since the one before. step (int): For the log."""
        failed, self._failed_since_step = self._failed_since_step, False
        is_slow, self._is_slow = self._is_slow, False
        if self.is_on:
            self._steps += 1
            if self._steps % REPORT_STEPS == 0 and self._failures:
                message = "Other code wrote to the param groups %d times in the %d steps up to step %d. All writes were undone."
                logger.warning(message, self._failures, REPORT_STEPS, step)
                self._failures = 0
        if failed:
            return
        self._in_a_row = 0
        if not is_slow:
            self.breaker.succeeded()
        if not self.is_on:
            return
        self._clean_steps += 1
        if self._clean_steps == CLEAN_STEPS:
            self.is_on = False
            self._clean_steps = 0
            self.breaker.reset()
            logger.info(
                "Conservative mode ended after step %d: no other code wrote to the param groups in the last %d steps.", step, CLEAN_STEPS
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "is_on": self.is_on,
            "times": self.times,
            "in_a_row": self._in_a_row,
            "steps": self._steps,
            "failures": self._failures,
            "clean_steps": self._clean_steps,
            "failed_since_step": self._failed_since_step,
            "breaker": self.breaker.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """RAISES (KeyError | TypeError | ValueError): It is not the state of such a mode. Nothing has changed then."""
        is_on, clean_steps, failed = bool(state["is_on"]), int(state["clean_steps"]), bool(state["failed_since_step"])
        steps, failures, times = int(state.get("steps", 0)), int(state.get("failures", 0)), int(state.get("times", is_on))
        in_a_row = int(state["breaker"]["failures_in_a_row"] if "in_a_row" not in state else state["in_a_row"])
        self.breaker.load_state_dict(state["breaker"])
        self._in_a_row = in_a_row
        self._steps, self._failures, self.times = steps, failures, times
        self.is_on, self._clean_steps, self._failed_since_step = is_on, clean_steps, failed
