"""The oracle is a naive breaker that keeps the whole story and reads its state off it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.own_loops.watchdog import CircuitBreaker
from thinc_torchopt.core.errors import ConfigError, StateError

from .kit import Clock


def make(**options):
    clock = Clock(100.0)
    return CircuitBreaker(clock=clock, **options), clock


def test_circuit_breaker_opens_after_three_failures_in_a_row():
    breaker, _ = make()
    for expected in ("closed", "closed", "open", "open"):
        breaker.failed()
        assert breaker.state == expected


def test_circuit_breaker_starts_to_count_again_after_a_success():
    breaker, _ = make()
    for call in (breaker.failed, breaker.failed, breaker.succeeded, breaker.failed, breaker.failed):
        call()
        assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "open"


def test_circuit_breaker_recovers_with_time():
    breaker, clock = make(failures=1, recovery_seconds=60.0)
    breaker.failed()
    clock.now += 59.9
    breaker.succeeded()  # says nothing while it is open
    breaker.failed()  # and a failure does not make it stay open for longer
    assert breaker.state == "open"
    clock.now += 0.1
    assert breaker.state == "half-open"
    breaker.succeeded()
    assert breaker.state == "closed"


def test_circuit_breaker_opens_again_at_one_failure_when_half_open():
    breaker, clock = make()
    for _ in range(3):
        breaker.failed()
    clock.now += 60
    breaker.failed()
    assert breaker.state == "open"
    clock.now += 60
    assert breaker.state == "half-open"
    breaker.reset()
    assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "closed"


@given(events=st.lists(st.sampled_from(["failed", "succeeded", "wait"]), max_size=40), failures=st.integers(1, 4))
def test_circuit_breaker_equals_a_naive_one(events, failures):
    breaker, clock = make(failures=failures, recovery_seconds=2.0)
    in_a_row, opened = 0, None
    for event in events:
        if event == "wait":
            clock.now += 1.0
        else:
            getattr(breaker, event)()
            is_open = opened is not None and clock.now - opened < 2.0
            if event == "succeeded" and not is_open:
                in_a_row, opened = 0, None
            elif event == "failed":
                in_a_row += 1
                if not is_open and (opened is not None or in_a_row >= failures):
                    opened = clock.now
        expected = "closed" if opened is None else "open" if clock.now - opened < 2.0 else "half-open"
        assert breaker.state == expected


def test_circuit_breaker_goes_on_in_another_process():
    breaker, clock = make()
    for _ in range(3):
        breaker.failed()
    clock.now += 20
    other, other_clock = make()
    other_clock.now = -5.0
    other.load_state_dict(json.loads(json.dumps(breaker.state_dict())))
    other_clock.now += 39
    assert other.state == "open"
    other_clock.now += 1
    assert other.state == "half-open"
    counting, _ = make()
    counting.failed()
    other.load_state_dict(counting.state_dict())
    other.failed()
    assert other.state == "closed"
    other.failed()
    assert other.state == "open"


@pytest.mark.parametrize("state", [{}, {"failures_in_a_row": 1}, {"failures_in_a_row": "x", "seconds_open": None}, 3])
def test_circuit_breaker_refuses_another_state(state):
    breaker, _ = make(failures=1)
    breaker.failed()
    with pytest.raises(StateError, match="Can't load the state of the circuit breaker"):
        breaker.load_state_dict(state)
    assert breaker.state == "open"


@pytest.mark.parametrize("options", [{"failures": 0}, {"recovery_seconds": -1.0}, {"recovery_seconds": float("nan")}])
def test_circuit_breaker_refuses_bad_arguments(options):
    with pytest.raises(ConfigError, match=r"in the circuit breaker: expected a (whole )?number of at least"):
        CircuitBreaker(**options)
