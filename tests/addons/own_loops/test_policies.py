"""Each policy against torch's scheduler of that kind."""

import inspect
import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as torchs

from thinc_torchopt.addons.own_loops.policies import (
    Adaptive,
    Constant,
    Cosine,
    FromFunction,
    FromSchedule,
    Frozen,
    PolicyReader,
)
from thinc_torchopt.core import schedules
from thinc_torchopt.core.errors import ConfigError, ScheduleError, ScheduleWarning, StateError
from thinc_torchopt.core.rates.new_params import Warmup

RATES = st.floats(1e-6, 10.0)


def rates_of(build, rate, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler, rates = build(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def same(ours, theirs, scale):
    # torch multiplies the rate of the step before, and gathers roundings of 1e-16 each, relative to the largest rate.
    return ours == pytest.approx(theirs, rel=1e-9, abs=1e-12 * scale)


@given(base=RATES, total=st.integers(1, 60), factor=st.floats(0.0, 1.0))
def test_learn_rate_policies_cosine_equals_torchs(base, total, factor):
    policy = Cosine(total, min_factor=factor)
    theirs = rates_of(lambda o: torchs.CosineAnnealingLR(o, total, eta_min=base * factor), base, total)
    assert same([policy.rate(step, base) for step in range(total + 5)], [*theirs, *[base * factor] * 5], base)


@given(base=RATES, total=st.integers(1, 60), warmup=st.integers(0, 60))
def test_learn_rate_policies_cosine_warms_up_as_the_schedule(base, total, warmup):
    total = max(total, warmup)
    theirs = list(itertools.islice(schedules.warmup_cosine(base, warmup, total), total + 5))
    assert same([Cosine(total, warmup).rate(step, base) for step in range(total + 5)], theirs, base)


@given(base=RATES, steps=st.integers(1, 60), factor=st.floats(0.01, 1.0))
def test_learn_rate_policies_warmup_equals_torchs(base, steps, factor):
    theirs = rates_of(lambda o: torchs.LinearLR(o, factor, total_iters=steps), base, steps + 5)
    assert same([Warmup(steps, factor).rate(step, base) for step in range(steps + 5)], theirs, base)


def test_learn_rate_policies_warmup_of_no_steps_is_none():
    assert Warmup(0).rate(0, 0.1) == 0.1


@given(
    base=RATES,
    metrics=st.lists(
        st.one_of(st.floats(-2.0, 2.0), st.integers(-2, 2), st.sampled_from([math.nan, "worst"])), max_size=40
    ),
    mode=st.sampled_from(["min", "max"]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    threshold=st.sampled_from([0.0, 1e-4, 0.3]),
    factor=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    patience=st.integers(0, 3),
    cooldown=st.integers(0, 3),
    min_factor=st.sampled_from([0.0, 0.05, 0.6]),
)
def test_learn_rate_policies_adaptive_equals_torchs(
    base, metrics, mode, threshold_mode, threshold, factor, patience, cooldown, min_factor
):
    """To the bit: it makes the same operations in the same order."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    common = {
        "mode": mode,
        "factor": factor,
        "patience": patience,
        "threshold": threshold,
        "threshold_mode": threshold_mode,
    }
    theirs = torchs.ReduceLROnPlateau(optimizer, cooldown=cooldown, min_lr=base * min_factor, **common)
    ours = Adaptive("loss", cooldown=cooldown, min_factor=min_factor, **common)
    worst = math.inf if mode == "min" else -math.inf
    for i, metric in enumerate(worst if metric == "worst" else metric for metric in metrics):
        theirs.step(metric)
        ours.observe({"other": 1.0})  # passed over
        ours.observe({"loss": None})
        ours.observe({"loss": torch.tensor(metric, dtype=torch.float64) if i % 2 else metric})
        assert ours.rate(i, base) == optimizer.param_groups[0]["lr"]
        if i % 7 == 3:
            saved, ours = ours.state_dict(), Adaptive("loss", cooldown=cooldown, min_factor=min_factor, **common)
            ours.load_state_dict(json.loads(json.dumps(saved, allow_nan=False)))


def test_learn_rate_policies_adaptive_defaults_are_torchs():
    theirs = inspect.signature(torchs.ReduceLROnPlateau).parameters
    ours = inspect.signature(Adaptive).parameters
    for name in ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "eps"):
        assert ours[name].default == theirs[name].default


def test_learn_rate_policies_adaptive_refuses_metrics_that_are_no_numbers():
    with pytest.raises(ConfigError, match="expected the metric 'loss' to be a number, found 'high'"):
        Adaptive().observe({"loss": "high"})


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"best": 1.0, "bad": 0, "cooling": 0},
        {"best": "x", "bad": 0, "cooling": 0, "reductions": 0},
        {"best": None, "bad": -1, "cooling": 0, "reductions": 0},
        {"best": None, "bad": 0, "cooling": 0, "reductions": 1.5},
    ],
)
def test_learn_rate_policies_adaptive_refuses_another_state(state):
    policy = Adaptive()
    before = policy.state_dict()
    with pytest.raises(StateError, match=r"Can't load the state of the learn rate policy 'adaptive': expected"):
        policy.load_state_dict(state)
    assert policy.state_dict() == before


def test_learn_rate_policies_schedules_move_when_told():
    policy = FromSchedule(schedules.warmup_cosine(1.0, 0, 10))
    expected = list(itertools.islice(schedules.warmup_cosine(1.0, 0, 10), 6))
    found = []
    for _ in expected:
        found += [policy.rate(0, 0.5), policy.rate(9, 3.0)]
        policy.advance()
    assert found == [rate for rate in expected for _ in range(2)]
    other = FromSchedule(schedules.warmup_cosine(1.0, 0, 10))
    other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert other.rate(0, 1.0) == policy.rate(0, 1.0)
    for bad in ({"position": 2}, {"schedule": {"position": 2, "source": None}, "is_due": False}, None):
        with pytest.raises((StateError, ScheduleError), match="learn_rate"):
            other.load_state_dict(bad)


def test_learn_rate_policies_schedules_do_not_warn_of_an_end_that_nobody_meets():
    policy = FromSchedule([3.0, 2.0])
    for expected in (3.0, 2.0):
        assert policy.rate(0, 1.0) == expected
        policy.advance()
    other = FromSchedule([3.0, 2.0])
    other.load_state_dict(policy.state_dict())
    for ended in (policy, other):
        with pytest.warns(ScheduleWarning, match="ended after 2 steps"):
            assert ended.rate(2, 1.0) == 2.0


def test_learn_rate_policies_schedules_that_watch_a_score_are_told():
    class Watching:
        def __init__(self):
            self.value = 1.0

        def __iter__(self):
            return self

        def __next__(self):
            return self.value

        def observe(self, score):
            self.value = score / 2

    policy = FromSchedule(Watching())
    policy.observe({"loss": 3.0})
    assert policy.rate(0, 1.0) == 1.0
    policy.observe({"score": 0.5})
    assert policy.rate(0, 1.0) == 0.25


def test_learn_rate_policies_are_made_of_what_stands_for_them():
    reader = PolicyReader()
    told = [type(reader.read(name, "m")) for name in ("cosine", "warmup", "adaptive", "frozen")]
    assert told == [Cosine, Warmup, Adaptive, Frozen]
    assert reader.read("cosine", "m", {"total_steps": 7}).total_steps == 7
    assert reader.read(2, "m").rate(5, 0.1) == 2.0 and isinstance(reader.read(2, "m"), Constant)
    assert reader.read([0.5, 0.25], "m").rate(0, 0.1) == 0.5
    values = iter([0.5, 0.25])
    assert reader.read(values, "m") is reader.read(values, "n")
    assert reader.read(lambda step: step * 2.0, "m").rate(4, 0.1) == 8.0
    assert isinstance(reader.read(abs, "m"), FromFunction)
    own = Warmup(4)
    assert reader.read(own, "m") is own
    assert Frozen().rate(0, 0.1) == 0.0


@pytest.mark.parametrize(
    "value, options, said",
    [
        ("steep", {}, r"policy of 'm': expected one of 'adaptive', 'cosine', 'frozen', 'warmup', found 'steep'"),
        ("cosine", {"steps": 3},
         r"expected settings among \['total_steps', 'warmup_steps', 'min_factor'\], found \['steps'\]"),
        ("frozen", {"args": 3}, r"'frozen' of 'm': expected settings among \[\], found \['args'\]"),
        (0.1, {"steps": 3}, r"expected settings with a policy given by its name, found \['steps'\] with 0.1"),
        (-0.1, {}, r"'learn_rate' in 'm': expected a number of at least 0, found -0.1"),
        (math.nan, {}, "found nan"),
        (math.inf, {}, "found inf"),
        (True, {}, "found True"),
        (None, {}, "found None"),
        (Cosine, {}, "found <class"),
        ([], {}, "schedule of 'm': expected at least one value, found none"),
        ("cosine", {"total_steps": 0},
         "'total_steps' in the learn rate policy 'cosine': expected a whole number of at least 1, found 0"),
        ("cosine", {"total_steps": 5, "warmup_steps": 6},
         "'total_steps' in .*: expected a whole number of at least 6, found 5"),
        ("cosine", {"min_factor": 1.5}, "'min_factor' in .*: expected a number of at least 0 and at most 1, found 1.5"),
        ("warmup", {"steps": 0.5}, "'steps' in .*: expected a whole number of at least 0, found 0.5"),
        ("warmup", {"start_factor": -1}, "'start_factor'"),
        ("adaptive", {"factor": 1.0}, "'factor' in .*: expected a number of at least 0 and below 1, found 1.0"),
        ("adaptive", {"mode": "mean"}, "'mode' in .*: expected 'max' or 'min', found 'mean'"),
        ("adaptive", {"threshold_mode": 1}, "'threshold_mode'"),
        ("adaptive", {"threshold": math.inf}, "'threshold'"),
        ("adaptive", {"patience": -1}, "'patience'"),
        ("adaptive", {"cooldown": None}, "'cooldown'"),
        ("adaptive", {"min_factor": "low"}, "'min_factor'"),
        ("adaptive", {"eps": -1.0}, "'eps'"),
        ("adaptive", {"metric": 3}, "'metric' in .*: expected a name, found 3"),
        ("warmup", {"min_rate": -1.0}, "'min_rate' in the learn rate policy 'warmup': expected a number of at least 0"),
        ("warmup", {"min_rate": 0.1, "max_rate": 0.01}, "'max_rate' in .*: expected a number of at least 0.1"),
        ("cosine", {"max_rate": math.inf}, "'max_rate'"),
        ("adaptive", {"warmup_factor": 2}, "'warmup_factor'"),
        ("adaptive", {"warmup_type": "steep"}, "'warmup_type' in .*: expected 'linear' or 'cosine', found 'steep'"),
        ("cosine", {"min_rate": 0.1, "min_factor": 0.1},
         r"expected settings among .*'min_rate'.*, found \['min_factor'\]"),
    ],
)  # fmt: skip
def test_learn_rate_policies_refuse_what_can_not_be(value, options, said):
    with pytest.raises(ConfigError, match=said):
        PolicyReader().read(value, "m", options)


def test_learn_rate_policies_for_each_group():
    reader, groups = PolicyReader(), [{"name": "head"}, {}, {"name": "tail"}]
    found = reader.read_all({"head": 0.1, 1: "frozen", 2: "cosine"}, "m", groups, {})
    assert [type(policy) for policy in found] == [Constant, Frozen, Cosine]
    shared = reader.read_all("cosine", "m", groups, {"total_steps": 5})
    assert shared[0] is shared[1] is shared[2]
    for bad, options in [
        ({0: 0.1}, {}),
        ({0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1}, {}),
        ({0: "cosine", 1: 0.1, 2: 0.1}, {"total_steps": 5}),
    ]:
        with pytest.raises(ConfigError, match=r"expected one for each of its groups \['head', 1, 'tail'\]"):
            reader.read_all(bad, "m", groups, options)


@given(base=st.floats(1e-4, 10.0), total=st.integers(2, 40), warmup=st.integers(1, 20), factor=st.floats(0.1, 1.0))
def test_learn_rate_policies_by_name_take_rates(base, total, warmup, factor):
    """Against torch's schedulers, one after the other."""
    given, total = {"warmup_steps": warmup, "warmup_factor": factor}, total + warmup
    rise = lambda o: torchs.LinearLR(o, factor, total_iters=warmup)  # noqa: E731
    theirs = rates_of(rise, base, total)
    policy = PolicyReader().read("warmup", "m", given)
    assert same([policy.rate(step, base) for step in range(total)], theirs, base)
    theirs = theirs[:warmup] + rates_of(
        lambda o: torchs.CosineAnnealingLR(o, total - warmup, eta_min=1e-6), base, total - warmup
    )
    policy = PolicyReader().read("cosine", "m", {"total_steps": total, **given})
    assert same([policy.rate(step, base) for step in range(total + 5)], [*theirs, *[1e-6] * 5], base)
    policy = PolicyReader().read("cosine", "m", {"total_steps": total, "max_rate": base, **given})
    assert same([policy.rate(step, 77.0) for step in range(total)], theirs, base)


def test_learn_rate_policies_by_name_have_the_defaults_of_the_config():
    read = PolicyReader().read
    rise = read("warmup", "m", {"warmup_steps": 10})
    assert rise.rate(0, 1.0) == pytest.approx(0.1, rel=1e-12) and rise.rate(5, 1.0) == pytest.approx(0.55, rel=1e-12)
    assert read("warmup", "m", {"warmup_factor": 0.0, "warmup_type": "cosine"}).rate(0, 1.0) == 1e-6
    curve = read("warmup", "m", {"warmup_steps": 10, "warmup_type": "cosine"})
    assert [curve.rate(step, 1.0) for step in (0, 5, 10, 99)] == pytest.approx([0.1, 0.55, 1.0, 1.0], rel=1e-12)
    assert curve.rate(2, 1.0) == pytest.approx(0.1 + 0.9 * (1 - math.cos(math.pi / 5)) / 2, rel=1e-12)
    # A base below the lowest rate is not raised.
    assert read("cosine", "m", {"total_steps": 5, "min_rate": 0.1}).rate(9, 0.01) == 0.01


def test_learn_rate_policies_adaptive_takes_rates():
    twin = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = torchs.ReduceLROnPlateau(twin, factor=0.5, patience=1, min_lr=0.04)
    policy = PolicyReader().read("adaptive", "m", {"factor": 0.5, "patience": 1, "min_rate": 0.04, "warmup_steps": 4})
    for step in range(20):
        assert policy.is_warming_up(step) == (step < 4)
        if step >= 4:
            theirs.step(1.0)
            policy.source.observe({"loss": 1.0})
        expected = twin.param_groups[0]["lr"] if step >= 4 else 0.5 * (0.1 + 0.9 * step / 4)
        assert policy.rate(step, 0.5) == pytest.approx(expected, rel=1e-12)
    assert policy.rate(20, 0.5) == 0.04
    # A group that comes later warms up to what the others have.
    assert [policy.rate(step, 0.5) for step in (2, 3, 4)] == [0.04] * 3
    other = PolicyReader().read("adaptive", "m", {"factor": 0.5, "patience": 1, "min_rate": 0.04})
    other.source.load_state_dict(json.loads(json.dumps(policy.source.state_dict())))
    assert other.rate(20, 0.5) == 0.04


def test_learn_rate_policies_adaptive_follows_bases_that_move():
    policy = Adaptive(patience=0)
    rates = [policy.rate(0, 1.0 + i / 1000) for i in range(1000)]
    assert rates == [1.0 + i / 1000 for i in range(1000)] and len(policy._rates) <= 100
