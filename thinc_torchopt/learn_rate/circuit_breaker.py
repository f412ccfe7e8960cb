"""A circuit breaker: it opens after several failures in a row, and tries again after a while."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ..errors import ConfigError

State = Literal["closed", "open", "half-open"]


class CircuitBreaker:
    """Counts failures. It only says what state it is in; what that means is up to its owner.

    closed: all is well. open: too much failed. half-open: open for long enough; a success closes it, a failure opens it again.

    failures (int): So many in a row, without a success in between, open it.
    recovery_seconds (float): How long it stays open.
    clock (Callable): The time in seconds, of which only differences count.
    RAISES (ConfigError): An argument is out of its range.
    """

    def __init__(self, failures: int = 3, recovery_seconds: float = 60.0, clock: Callable[[], float] = time.monotonic):
        if failures < 1 or not 0.0 <= recovery_seconds < math.inf:
            raise ConfigError(
                "Can't build a circuit breaker: expected at least 1 failure and 0 recovery seconds, found "
                f"{failures} and {recovery_seconds}."
            )
        self.failures = failures
        self.recovery_seconds = recovery_seconds
        self._clock = clock
        self._in_a_row = 0
        self._opened_at: float | None = None

    @property
    def state(self) -> State:
        if self._opened_at is None:
            return "closed"
        return "open" if self._clock() - self._opened_at < self.recovery_seconds else "half-open"

    def failed(self) -> None:
        """Count a failure."""
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

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes, for JSON. Times are kept as durations: clocks differ between processes."""
        seconds_open = None if self._opened_at is None else self._clock() - self._opened_at
        return {"failures_in_a_row": self._in_a_row, "seconds_open": seconds_open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another one was.

        RAISES (ConfigError): It is not the state of a circuit breaker. Nothing has changed then.
        """
        try:
            in_a_row, seconds_open = int(state["failures_in_a_row"]), state["seconds_open"]
            opened_at = None if seconds_open is None else self._clock() - float(seconds_open)
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"Can't load the state of a circuit breaker: expected 'failures_in_a_row' and 'seconds_open', found {state!r}."
            ) from None
        self._in_a_row, self._opened_at = in_a_row, opened_at
