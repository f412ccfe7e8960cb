import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import Adam

from thinc_torchopt.errors import ConfigError, ScheduleError, ScheduleWarning
from thinc_torchopt.scheduled_values import Schedules, check_number, current, is_moving

RATES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@pytest.mark.filterwarnings("ignore::thinc_torchopt.errors.ScheduleWarning")
@given(values=RATES, steps=st.integers(0, 30))
def test_scheduled_values_yield_what_thinc_would_use(values, steps):
    schedules = Schedules()
    value = schedules.track("learn_rate", iter(values))
    reference = Adam(learn_rate=iter(values))
    for _ in range(steps):
        assert current(value) == reference.learn_rate
        schedules.step()
        reference.step_schedules()


def test_scheduled_values_leave_plain_values_alone():
    schedules = Schedules()
    for value in (0.1, 3, None, True, "mode", (0.9, 0.999)):
        assert schedules.track("x", value) == value
        assert not is_moving(value) and current(value) == value
    assert not schedules.by_name


def test_scheduled_values_inside_a_pair():
    schedules = Schedules()
    pair = schedules.track("betas", (itertools.count(1), 0.999))
    assert is_moving(pair) and current(pair) == (1.0, 0.999)
    schedules.step()
    assert current(pair) == (2.0, 0.999) and set(schedules.by_name) == {"betas.0"}


def test_scheduled_values_count_their_position():
    schedules = Schedules()
    schedule = schedules.track("x", itertools.count())
    for _ in range(5):
        schedules.step()
    assert schedule.position == 5 and schedule.value == 5.0


def test_scheduled_values_shared_source_moves_once():
    schedules, source = Schedules(), itertools.count()
    assert schedules.track("x", source) is schedules.track("y", source)
    schedules.step()
    assert current(schedules.by_name["x"]) == 1.0


def test_scheduled_values_warn_once_when_one_ends():
    schedules = Schedules()
    value = schedules.track("learn_rate", [0.5])
    with pytest.warns(ScheduleWarning, match=r"'learn_rate' ended after 1 steps.*0\.5") as warned:
        schedules.step()
        schedules.step()
    assert len(warned) == 1 and current(value) == 0.5


@pytest.mark.parametrize("source, said", [([], "at least one value"), (["a"], "expected a number, found 'a'")])
def test_scheduled_values_name_a_bad_source(source, said):
    with pytest.raises(ScheduleError, match=f"'algorithm.eps'.*{said}"):
        Schedules().track("algorithm.eps", source)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "x", None, [1]])
def test_scheduled_values_check_number_refuses(value):
    with pytest.raises(ConfigError, match=r"'learn_rate' in \[training\.optimizer\]: expected a number of at least 0"):
        check_number("learn_rate", value)
