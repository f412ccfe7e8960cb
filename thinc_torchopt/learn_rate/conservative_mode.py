"""Whether the learn rate controller fights writes of others, or has become conservative."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from .circuit_breaker import CircuitBreaker

# The clean steps, in a row, after which conservative mode ends.
CLEAN_STEPS = 100

logger = logging.getLogger("thinc_torchopt.learn_rate")


class ConservativeMode:
    """Off, until the circuit breaker opens; then on, until a hundred steps in a row are clean.

    breaker (CircuitBreaker): Is told of failures and of clean steps.
    """

    def __init__(self, breaker: CircuitBreaker):
        self.breaker = breaker
        self.is_on = False
        self._clean_steps = 0
        self._failed_since_step = False

    def failed(self, step: int) -> None:
        """Count a failure. Several may come between two steps. step (int): For the log."""
        self._failed_since_step = True
        self._clean_steps = 0
        self.breaker.failed()
        if not self.is_on and self.breaker.state != "closed":
            self.is_on = True
            logger.warning(
                "Learn rates are conservative from step %d on, as others write to the param groups again and again: rates may fall but not "
                "rise, and writes of others are only counted, until %d steps in a row are clean.",
                step,
                CLEAN_STEPS,
            )

    def end_step(self, step: int) -> None:
        """Count a step, which is clean if nothing failed since the one before. step (int): For the log."""
        failed, self._failed_since_step = self._failed_since_step, False
        if failed:
            return
        self.breaker.succeeded()
        if not self.is_on:
            return
        self._clean_steps += 1
        if self._clean_steps == CLEAN_STEPS:
            self.is_on = False
            self._clean_steps = 0
            self.breaker.reset()
            logger.info("Learn rates follow their policies again after step %d: the last %d were clean.", step, CLEAN_STEPS)

    def state_dict(self) -> dict[str, Any]:
        return {
            "is_on": self.is_on,
            "clean_steps": self._clean_steps,
            "failed_since_step": self._failed_since_step,
            "breaker": self.breaker.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """RAISES (KeyError | TypeError | ValueError): It is not the state of such a mode. Nothing has changed then."""
        is_on, clean_steps, failed = bool(state["is_on"]), int(state["clean_steps"]), bool(state["failed_since_step"])
        self.breaker.load_state_dict(state["breaker"])
        self.is_on, self._clean_steps, self._failed_since_step = is_on, clean_steps, failed
