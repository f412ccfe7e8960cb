"""The fall that is told to begin, against the same fall that was planned, and against transformers' own values."""

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ScheduleError, StateError
from thinc_torchopt.core.schedules.curves import polynomial, warmup_stable_decay
from thinc_torchopt.core.schedules.schedules import Schedules
from thinc_torchopt.core.schedules.sequence import sequence
from thinc_torchopt.core.schedules.to_the_end import with_end

from .test_curves import rates_of, same

CURVES = st.sampled_from(["linear", "cosine", "1-sqrt"])
WHEN_TOLD = {"decay_begins": "when told"}


def told_at(source, step, *args, steps=100):
    """Its values, told after `step` steps: the value of the step that comes was drawn."""
    schedules = Schedules()
    schedule = schedules.track("x", source)
    values = []
    for i in range(steps):
        if i == step:
            assert schedule.begin_decay(*args)
        values.append(schedule.value)
        schedule.step()
    return values


@given(
    warmup=st.integers(0, 20),
    stable=st.integers(0, 40),
    decay=st.integers(0, 40),
    low=st.floats(0.0, 0.9),
    rise=CURVES,
    fall=CURVES,
)
def test_stable_decay_falls_as_if_it_had_known(warmup, stable, decay, low, rise, fall):
    """Also one that would have fallen later, or at the end of the training."""
    kwargs = {"min_rate": low, "warmup_type": rise, "decay_type": fall}
    begin = warmup + stable
    total = max(1, begin + decay)
    known = list(islice(warmup_stable_decay(1.0, warmup, decay, total, **kwargs), 120))
    if begin + decay == 0:
        known = [low] * 120
    for source in (
        warmup_stable_decay(1.0, warmup, decay, **WHEN_TOLD, **kwargs),
        warmup_stable_decay(1.0, warmup, decay, total + 60, **kwargs),
        with_end(warmup_stable_decay(1.0, warmup, decay, **kwargs), total + 60),
    ):
        assert told_at(source, begin, steps=120) == known
    assert told_at(warmup_stable_decay(1.0, warmup, 7, **WHEN_TOLD, **kwargs), begin, decay or None, steps=120) == (
        known if decay else told_at(warmup_stable_decay(1.0, warmup, 7, **WHEN_TOLD, **kwargs), begin, steps=120)
    )


@pytest.mark.parametrize("fall", ["linear", "cosine", "1-sqrt"])
def test_stable_decay_equals_transformers(fall):
    transformers = pytest.importorskip("transformers.optimization", reason="transformers is not installed")
    theirs = rates_of(lambda o: transformers.get_wsd_schedule(o, 5, 20, num_stable_steps=30, decay_type=fall), 0.1, 70)
    assert same(told_at(warmup_stable_decay(0.1, 5, 20, **WHEN_TOLD, decay_type=fall), 35), theirs, 0.1)


def test_stable_decay_stays_until_it_is_told():
    source = warmup_stable_decay(1.0, 4, 10, **WHEN_TOLD)
    assert list(islice(source, 50_000))[4:] == [1.0] * 49_996
    assert not source.spans_training and not source.cooldown.begun_at_will and not source.cooldown.is_over


def test_stable_decay_told_in_the_warm_up_falls_from_there():
    values = told_at(warmup_stable_decay(1.0, 10, 10, **WHEN_TOLD, decay_type="linear"), 5)
    # A line from the rate that was reached, 0.5, to 0 in ten steps.
    assert values[:5] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4]) and values[15:] == [0.0] * 85
    assert values[5:15] == pytest.approx([0.5 * (1 - i / 10) for i in range(10)])  # a rounding
    assert told_at(warmup_stable_decay(1.0, 10, 10, **WHEN_TOLD), 0) == [0.0] * 100


def test_stable_decay_told_twice_or_when_it_falls_already_changes_nothing():
    for source in (
        warmup_stable_decay(1.0, 2, 10, **WHEN_TOLD),
        warmup_stable_decay(1.0, 2, 10, 30),
        warmup_stable_decay(1.0, 2, 10, 15),
    ):
        schedule = Schedules().track("x", source)
        for _ in range(5):
            schedule.step()
        schedule.begin_decay()
        for _ in range(3):
            schedule.step()
        before, value = source.state_dict(), schedule.value
        assert not schedule.begin_decay() and not schedule.begin_decay(50)
        assert source.state_dict() == before and schedule.value == value < 1.0
    for steps in (0, -1, 2.5, True):
        with pytest.raises(ScheduleError, match=r"'decay_steps' to be a whole number of at least 1"):
            warmup_stable_decay(1.0, 2, 10, **WHEN_TOLD).cooldown.begin(steps)


@pytest.mark.parametrize(
    "build",
    [
        lambda: warmup_stable_decay(1.0, 2, 10, **WHEN_TOLD),
        lambda: with_end(warmup_stable_decay(1.0, 2, 10), 60),
        lambda: sequence({"a": {"steps": 6, "schedule": 0.5}, "b": {"schedule": warmup_stable_decay(1.0, 2, 10, 60)}}),
    ],
    ids=["when told", "in time", "sequence"],
)
@pytest.mark.parametrize("told", [1, 5, 12])
@pytest.mark.parametrize("saved", [1, 5, 13, 20, 40])
def test_stable_decay_is_saved(build, told, saved):
    through, resumed = Schedules(), Schedules()
    one, other = through.track("x", build()), resumed.track("x", build())
    for step in range(saved):
        if step == told:
            one.begin_decay(8)
        through.step()
    resumed.load(**json.loads(json.dumps(through.state_dict())))
    for _ in range(30):
        assert other.value == one.value and other.cooldown.is_over == one.cooldown.is_over
        through.step()
        resumed.step()


def test_stable_decay_refuses_a_bad_state():
    source = warmup_stable_decay(1.0, 2, 10, 30)
    for state in (None, {}, {"begun_at": -1, "decay_steps": None}, {"begun_at": 1, "decay_steps": 0}):
        with pytest.raises(StateError, match=r"of the schedule 'thinc-torchopt.warmup_stable_decay.v1'"):
            source.load_state_dict(state)
    assert source.state_dict() == {"begun_at": None, "decay_steps": None}


def test_stable_decay_in_a_sequence_falls_when_its_turn_comes():
    last = warmup_stable_decay(1.0, 0, 4, **WHEN_TOLD, decay_type="linear")
    values = told_at(sequence({"a": {"steps": 6, "schedule": 0.5}, "b": {"schedule": last}}), 2, steps=12)
    assert values == [0.5] * 6 + [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"total_steps": 50}, "'total_steps' to be left out beside decay_begins"),
        ({"warmup_steps": None, "warmup_ratio": 0.1}, "'warmup_ratio' to be replaced by warmup_steps"),
        ({"decay_steps": None, "decay_ratio": 0.1}, "'decay_ratio' to be replaced by decay_steps"),
        ({"decay_begins": "soon"}, "'decay_begins' to be 'in time' or 'when told', found 'soon'"),
    ],
)
def test_stable_decay_refuses_what_it_can_not_do(arguments, said):
    with pytest.raises(ScheduleError, match=said):
        warmup_stable_decay(0.1, **{"warmup_steps": 2, "decay_steps": 3, **WHEN_TOLD, **arguments})


def test_stable_decay_of_all_that_an_optimizer_has():
    """Groups that share a schedule fall together, and once; other schedules go on."""
    rate = warmup_stable_decay(1.0, 2, 4, **WHEN_TOLD, decay_type="linear")
    groups = {
        "a": {"params": ["*/W"], "learn_rate": rate},
        "b": {"params": ["*/b"], "learn_rate": warmup_stable_decay(0.5, 0, 8, 100, decay_type="linear")},
    }
    clip = polynomial(5.0, 0, 20)
    optimizer = TorchOptimizer(AdamW(), rate, grad_clip=clip, param_groups=groups)
    assert optimizer.can_begin_decay and not optimizer.decay_is_over
    for _ in range(3):
        optimizer.step_schedules()
    assert optimizer.begin_decay() and not optimizer.begin_decay()
    seen = []
    for _ in range(9):
        values = {name: value.value for name, value in optimizer._settings.by_name.items()}
        seen.append((values["learn_rate"], values["param_groups.a.learn_rate"], values["param_groups.b.learn_rate"]))
        assert optimizer.learn_rate == values["learn_rate"]
        assert optimizer.decay_is_over == (len(seen) == 9)
        optimizer.step_schedules()
    falls = [1.0, 0.75, 0.5, 0.25] + [0.0] * 5
    assert seen == [(fall, fall, 0.5 * (1 - i / 8)) for i, fall in enumerate(falls)]
    assert optimizer.grad_clip == pytest.approx(5.0 * (1 - 12 / 20))


def test_stable_decay_of_an_optimizer_that_has_none():
    with pytest.raises(ScheduleError, match=r"that can decay, found none\. Set learn_rate to"):
        TorchOptimizer(AdamW(), 0.1).begin_decay()
