"""How the writer of learning rates fares: a circuit breaker, which also says when learning rates are conservative.

Two things are counted. What the machine is to blame for, a step that is too slow for example, opens the breaker, and
that is all. What other code writes to param groups opens it too; and so many of these in a row turn conservative mode
on. That is counted in steps and not in
seconds: a run that is resumed, or made on a slower machine, has the same rates.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Optional

from ..errors import ConfigError
from ..schema import Count, read, write

# The clean steps, in a row, after which conservative mode ends.
CLEAN_STEPS = 100
# For so many steps, from its beginning, rates may not rise.
HELD_STEPS = 100
# It says how often others wrote every so many steps.
REPORT_STEPS = 1000

State = Literal["closed", "open", "half-open"]

logger = logging.getLogger("thinc_torchopt.learn_rate")


class CircuitBreaker:
    """Counts failures, and clean steps.

    `state` says how it went of late. "closed": well. "open": too much failed. "half-open": too much failed, but some
    time ago; a clean step closes it, a failure opens it again. Nothing depends on it: it is there to be looked at.

    `conservative` says whether learning rates are. That begins when other code wrote to param groups several times in a
    row, and ends after a hundred clean steps. At first rates may fall, but not rise (`holds_rates`).

    failures (int): So many in a row, without a clean step in between, open it, or begin conservative mode.
    recovery_seconds (float): How long it stays open.
    clock (Callable): The time in seconds, of which only differences count.
    RAISES (ConfigError): An argument is out of its range.

    Public: `times` (how often conservative mode has begun).
    """

    def __init__(self, failures: int = 3, recovery_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic):
        if failures < 1 or not 0.0 <= recovery_seconds < math.inf:
            raise ConfigError(
                "Can't build a circuit breaker: expected at least 1 failure and 0 recovery seconds, found "
                f"{failures} and {recovery_seconds}."
            )
        self.failures = failures
        self.recovery_seconds = recovery_seconds
        self.conservative = False
        self.times = 0
        self._clock = clock
        self._in_a_row = 0  # failures of any kind
        self._opened_at: float | None = None
        self._writes_in_a_row = 0
        self._wrote_since_step = False
        self._slow_since_step = False
        # In conservative mode:
        self._steps = 0
        self._clean_steps = 0
        self._writes = 0  # since the last report

    @property
    def state(self) -> State:
        if self._opened_at is None:
            return "closed"
        return "open" if self._clock() - self._opened_at < self.recovery_seconds else "half-open"

    @property
    def holds_rates(self) -> bool:
        """Whether rates may fall, but not rise."""
        return self.conservative and self._steps < HELD_STEPS

    # ------------------------------------------------------------------ what happens

    def failed(self) -> None:
        """Count a failure that conservative mode does not care for."""
        state = self.state
        self._in_a_row += 1
        if state == "half-open" or (state == "closed" and self._in_a_row >= self.failures):
            self._opened_at = self._clock()

    def succeeded(self) -> None:
        """Count a success, which while it is open says nothing."""
        if self.state != "open":
            self.reset()

    def reset(self) -> None:
        """Close it."""
        self._in_a_row = 0
        self._opened_at = None

    def was_slow(self) -> None:
        """Count what takes too long again and again."""
        self._slow_since_step = True
        self.failed()

    def was_written_to(self, step: int) -> None:
        """Count that other code wrote. Several may come between two steps. step (int): For the log."""
        self.failed()
        self._wrote_since_step = True
        self._clean_steps = 0
        self._writes += 1
        self._writes_in_a_row += 1
        if self.conservative or self._writes_in_a_row < self.failures:
            return
        self.conservative = True
        self.times += 1
        self._steps, self._writes = 0, 1
        logger.warning(
            "Learn rates are conservative from step %d on: other code keeps writing to the param groups. From now on "
            "such writes are undone without a warning each. Learn rates may fall but not rise for %d steps, and then "
            "follow their schedules again. Conservative mode ends after %d steps in a row without such writes. Find "
            "the code that writes there, often a torch scheduler, and remove it.",
            step,
            HELD_STEPS,
            CLEAN_STEPS,
        )

    def end_step(self, step: int) -> None:
        """Count a step, which is clean if nothing failed since the one before. step (int): For the log."""
        written, self._wrote_since_step = self._wrote_since_step, False
        slow, self._slow_since_step = self._slow_since_step, False
        if not written:
            self._writes_in_a_row = 0
            if self._in_a_row and not slow:
                self.succeeded()
        if self.conservative:
            self._end_conservative_step(step, is_clean=not written)

    def _end_conservative_step(self, step: int, *, is_clean: bool) -> None:
        self._steps += 1
        if self._steps % REPORT_STEPS == 0 and self._writes:
            message = (
                "Other code wrote to the param groups %d times in the %d steps up to step %d. All writes were undone."
            )
            logger.warning(message, self._writes, REPORT_STEPS, step)
            self._writes = 0
        self._clean_steps += is_clean
        if self._clean_steps == CLEAN_STEPS:
            self.conservative = False
            self._clean_steps = 0
            self.reset()
            logger.info(
                "Conservative mode ended after step %d: no other code wrote to the param groups in the last %d steps.",
                step,
                CLEAN_STEPS,
            )

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes, for JSON. Times are kept as durations: clocks differ between processes."""
        return write(self._state)

    @property
    def _state(self) -> BreakerState:
        return BreakerState(
            is_on=self.conservative,
            times=self.times,
            in_a_row=self._writes_in_a_row,
            steps=self._steps,
            failures=self._writes,
            clean_steps=self._clean_steps,
            failed_since_step=self._wrote_since_step,
            failures_in_a_row=self._in_a_row,
            seconds_open=None if self._opened_at is None else self._clock() - self._opened_at,
        )

    def load_state_dict(self, state: Any) -> None:
        """Go on from where another one was.

        RAISES (StateError): It is not the state of a circuit breaker. Nothing has changed then.
        """
        self.load(read(BreakerState, state, "the state of the circuit breaker"))

    def load(self, state: BreakerState) -> None:
        """As `load_state_dict`, what was read."""
        self.conservative, self.times = state.is_on, state.times
        self._writes_in_a_row, self._in_a_row = state.in_a_row, state.failures_in_a_row
        self._steps, self._clean_steps, self._writes = state.steps, state.clean_steps, state.failures
        self._wrote_since_step = state.failed_since_step
        self._opened_at = None if state.seconds_open is None else self._clock() - state.seconds_open


@dataclass
class BreakerState:
    """What a circuit breaker is saved as.

    is_on, times: Whether rates are conservative, and how often that has begun.
    steps, failures, clean_steps: Counted since then.
    in_a_row, failed_since_step: Of what other code wrote. failures_in_a_row: Of all failures.
    seconds_open: For how long it has been open. None: it is closed.
    """

    is_on: bool
    times: Count
    in_a_row: Count
    steps: Count
    failures: Count
    clean_steps: Count
    failed_since_step: bool
    failures_in_a_row: Count
    seconds_open: Optional[float]
