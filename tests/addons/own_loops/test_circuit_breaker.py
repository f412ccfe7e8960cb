"""The oracle reads the state off the whole story."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.own_loops.watchdog import BreakerState, CircuitBreaker
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.schema import read


@given(story=st.text("sw.", max_size=60), failures=st.integers(1, 4))
def test_circuit_breaker_equals_a_naive_one(story, failures):
    """s: slow work, w: other code wrote, a point: the end of a step. Also one that goes on in another process."""
    breaker = CircuitBreaker(failures)
    for i, event in enumerate(story):
        if event == ".":
            breaker.end_step(i)
        elif event == "w":
            breaker.was_written_to(i)
        else:
            breaker.was_slow()
        # What came since the last clean step.
        since = ("." + story[: i + 1]).rpartition("..")[2].replace(".", "")
        assert breaker.state == ("open" if len(since) >= failures else "closed")
        other = CircuitBreaker(failures)
        other.load(read(BreakerState, breaker.state_dict(), "it"))
        assert other.state_dict() == breaker.state_dict()


def test_circuit_breaker_refuses_bad_arguments():
    with pytest.raises(ConfigError, match="'failures' in the circuit breaker: expected a whole number of at least 1"):
        CircuitBreaker(failures=0)
