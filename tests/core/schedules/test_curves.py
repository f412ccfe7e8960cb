"""Each schedule against torch's schedulers, and restarts that these lack against transformers', if it is installed."""

import inspect
import math
import re
from itertools import islice
from pathlib import Path

import numpy
import pytest
import srsly
import torch
from confection import Config, ConfigValidationError
from hypothesis import example, given
from hypothesis import strategies as st
from thinc.api import registry
from thinc.api import warmup_linear as thincs_warmup_linear
from torch.optim import lr_scheduler as torchs

from thinc_torchopt.core import schedules
from thinc_torchopt.core.errors import ConfigError, ScheduleError, StateError

RATES = st.floats(1e-6, 10.0)
PARTS = st.floats(0.0, 0.99)  # min_rate / initial_rate
WARMUPS = st.integers(0, 20)
DECAYS = st.integers(1, 60)
AFTER = 10  # steps looked at when the schedule is over


# One example of each, as a config has it.
DATA = srsly.read_yaml(Path(__file__).with_name("schedules.yaml"))
EXAMPLES = DATA["examples"]


def same(ours, theirs, scale):
    # One formula, with the operations in another order: a few roundings of 1e-16 each, relative to the largest rate;
    # torch's schedulers also multiply the rate of the step before, and gather up to 80 of them.
    return list(islice(ours, len(theirs))) == pytest.approx(theirs, rel=1e-9, abs=1e-12 * scale)


def rates_of(build, rate, steps):
    """The rates that a torch scheduler gives an optimizer. build (Callable): Makes the scheduler of the optimizer."""
    if steps == 0:
        return []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler, rates = build(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def torchs_warmup(rate, steps):
    return rates_of(lambda o: torchs.LambdaLR(o, lambda step: step / steps), rate, steps)


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip(
        "transformers.optimization", reason="transformers is not installed; torch's schedulers are compared with"
    )


# ---------------------------------------------------------------- warmup_linear


@given(rate=RATES, warmup=WARMUPS, decay=st.integers(0, 60))
def test_schedules_warmup_linear_is_thincs_one_step_ahead_in_warmup(rate, warmup, decay):
    total = max(1, warmup + decay)
    theirs = list(islice(thincs_warmup_linear(rate, warmup, total), total + AFTER))
    theirs[:warmup] = list(islice(thincs_warmup_linear(rate, warmup, total), 1, warmup)) + [rate] * (warmup > 0)
    assert same(schedules.warmup_linear(rate, warmup, total), theirs, rate)
    assert next(schedules.warmup_linear(rate, warmup, total)) == pytest.approx(
        rate / max(1, warmup), rel=1e-15
    )  # one rounding


# ---------------------------------------------------------------- warmup_cosine


@given(rate=RATES, part=PARTS, warmup=WARMUPS, cycle=DECAYS, cycles=st.integers(1, 5))
def test_schedules_warmup_cosine_equals_torchs(rate, part, warmup, cycle, cycles):
    low, decay = rate * part, cycle * cycles
    if cycles == 1:
        fall = rates_of(lambda o: torchs.CosineAnnealingLR(o, decay, eta_min=low), rate, decay)
    else:
        fall = rates_of(lambda o: torchs.CosineAnnealingWarmRestarts(o, cycle, eta_min=low), rate, decay)
    ours = schedules.warmup_cosine(rate, warmup, warmup + decay, min_rate=low, cycles=cycles)
    assert same(ours, [*torchs_warmup(rate, warmup), *fall, *[low] * AFTER], rate)


@given(rate=RATES, warmup=WARMUPS, decay=DECAYS, cycles=st.integers(1, 9))
def test_schedules_warmup_cosine_restarts_as_transformers(transformers, rate, warmup, decay, cycles):
    total = warmup + decay
    theirs = rates_of(
        lambda o: transformers.get_cosine_with_hard_restarts_schedule_with_warmup(o, warmup, total, cycles),
        rate,
        total + AFTER,
    )
    assert same(schedules.warmup_cosine(rate, warmup, total, cycles=cycles), theirs, rate)


# ---------------------------------------------------------------- one_cycle


@given(
    rate=RATES,
    total=st.integers(1, 80),
    start=PARTS,
    strategy=st.sampled_from(["cos", "linear"]),
    div=st.floats(0.5, 100.0),
    final=st.floats(0.5, 1e5),
    three_phase=st.booleans(),
)
def test_schedules_one_cycle_equals_torchs(rate, total, start, strategy, div, final, three_phase):
    start = start / 2 if three_phase else start
    options = {
        "pct_start": start,
        "anneal_strategy": strategy,
        "div_factor": div,
        "final_div_factor": final,
        "three_phase": three_phase,
    }
    if start * total == 1:
        return  # torch divides by 0
    theirs = rates_of(lambda o: torchs.OneCycleLR(o, rate, total, cycle_momentum=False, **options), rate, total)
    ours = schedules.one_cycle(rate, total, **options)
    assert same(ours, theirs, rate)
    assert list(islice(ours, AFTER)) == pytest.approx([theirs[-1]] * AFTER, rel=1e-9, abs=1e-12 * rate)  # as in `same`


def test_schedules_one_cycle_defaults_are_torchs():
    theirs = inspect.signature(torchs.OneCycleLR).parameters
    ours = inspect.signature(schedules.one_cycle).parameters
    for name in ("pct_start", "anneal_strategy", "div_factor", "final_div_factor", "three_phase"):
        assert ours[name].default == theirs[name].default


@pytest.mark.parametrize("three_phase", [False, True])
def test_schedules_one_cycle_may_rise_within_one_step(three_phase):
    """Where torch fails: pct_start x total_steps is 1. The rise is over as it begins."""
    values = list(
        islice(schedules.one_cycle(1.0, 4, pct_start=0.25, anneal_strategy="linear", three_phase=three_phase), 6)
    )
    first, last = 1 / 25, 1 / 25 / 1e4
    assert values[0] == 1.0 and values[3:] == pytest.approx([last] * 3)
    begin = first if three_phase else 1.0
    assert values[1] == pytest.approx(begin + (last - begin) / 3)


# ---------------------------------------------------------------- inverse_sqrt


@given(rate=RATES, warmup=WARMUPS, timescale=st.none() | st.integers(1, 100))
def test_schedules_inverse_sqrt_equals_torchs(rate, warmup, timescale):
    scale = timescale or warmup or 10_000
    fall = rates_of(lambda o: torchs.LambdaLR(o, lambda step: (1 + step / scale) ** -0.5), rate, 60)
    assert same(schedules.inverse_sqrt(rate, warmup, timescale=timescale), torchs_warmup(rate, warmup) + fall, rate)


# ---------------------------------------------------------------- polynomial


@given(rate=RATES, part=PARTS, warmup=WARMUPS, decay=DECAYS, power=st.floats(0.25, 4.0))
def test_schedules_polynomial_equals_torchs(rate, part, warmup, decay, power):
    low = rate * part
    fall = rates_of(lambda o: torchs.PolynomialLR(o, decay, power), rate - low, decay)
    theirs = torchs_warmup(rate, warmup) + [low + value for value in fall] + [low] * AFTER
    assert same(schedules.polynomial(rate, warmup, warmup + decay, min_rate=low, power=power), theirs, rate)


# ---------------------------------------------------------------- warmup_stable_decay

CURVES = st.sampled_from(["linear", "cosine", "1-sqrt"])


def torchs_curve(curve, start, end, steps):
    """From one rate to another: a cosine by torch's own scheduler, which rises as well; the others on LambdaLR."""
    if curve == "cosine":
        return rates_of(lambda o: torchs.CosineAnnealingLR(o, steps, eta_min=end), start, steps)
    root = 0.5 if curve == "1-sqrt" else 1.0
    if start > end:
        return [
            end + value
            for value in rates_of(lambda o: torchs.LambdaLR(o, lambda s: 1 - (s / steps) ** root), start - end, steps)
        ]
    return [
        start + value
        for value in rates_of(lambda o: torchs.LambdaLR(o, lambda s: 1 - (1 - s / steps) ** root), end - start, steps)
    ]


@given(rate=RATES, part=PARTS, warmup=WARMUPS, stable=WARMUPS, decay=DECAYS, up=CURVES, down=CURVES)
def test_schedules_warmup_stable_decay_equals_torchs(rate, part, warmup, stable, decay, up, down):
    low, total = rate * part, warmup + stable + decay
    theirs = [
        *torchs_curve(up, low, rate, warmup),
        *[rate] * stable,
        *torchs_curve(down, rate, low, decay),
        *[low] * AFTER,
    ]
    ours = schedules.warmup_stable_decay(rate, warmup, decay, total, min_rate=low, warmup_type=up, decay_type=down)
    assert same(ours, theirs, rate)


# ---------------------------------------------------------------- plateau

# Few values, so that the same comes twice, and some just above and below a threshold; and any others.
SCORES = st.lists(st.sampled_from([math.nan, 0.0, 0.5, 0.50004, 0.5001, 0.6, -0.5]) | st.floats(-2.0, 2.0), max_size=40)


def values_after(schedule, scores):
    """The values of a schedule that sees a score after each step, as in our loop: when the next value was drawn."""
    values = [next(schedule)]
    for score in scores:
        next(schedule)
        schedule.observe(score)
        values.append(schedule.value)
    return values


def torchs_plateau(rate, scores, **options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler, rates = torchs.ReduceLROnPlateau(optimizer, **options), [rate]
    for score in scores:
        scheduler.step(score)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@given(
    rate=RATES,
    part=PARTS,
    scores=SCORES,
    worst=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "factor": PARTS,
            "patience": st.integers(0, 4),
            "mode": st.sampled_from(["max", "min"]),
            "cooldown": st.integers(0, 4),
            "eps": st.sampled_from([0.0, 1e-8, 0.05]),
        }
    ),
    threshold=st.sampled_from([("rel", 0.0), ("rel", 1e-4), ("rel", 0.9), ("abs", 0.1), ("abs", 1.0), ("abs", 2.0)]),
)
@example(
    rate=1.0,
    part=0.0,
    scores=[0.5, 0.5],
    worst=False,
    options={"factor": 0.5, "patience": 0, "mode": "max", "eps": 0.5},
    threshold=("rel", 1e-4),
)  # a fall of eps
def test_schedules_plateau_equals_torchs(rate, part, scores, worst, options, threshold):
    """To the last bit: the same operations in the same order."""
    options = {**options, **dict(zip(("threshold_mode", "threshold"), threshold))}
    if worst:
        scores = [-math.inf if options["mode"] == "max" else math.inf, *scores]
    theirs = torchs_plateau(rate, scores, min_lr=part * rate, **options)
    assert values_after(schedules.plateau(rate, min_rate=part * rate, **options), scores) == theirs


def test_schedules_plateau_defaults_are_torchs_but_for_the_mode():
    theirs = inspect.signature(torchs.ReduceLROnPlateau).parameters
    ours = inspect.signature(schedules.plateau).parameters
    for name in ("factor", "patience", "threshold", "threshold_mode", "cooldown", "eps"):
        assert ours[name].default == theirs[name].default
    assert ours["min_rate"].default == theirs["min_lr"].default and ours["mode"].default == "max"


@pytest.mark.parametrize("mode, best", [("max", math.inf), ("min", -math.inf)])
def test_schedules_plateau_takes_no_infinite_score_for_the_best(mode, best):
    """Where torch never finds a better one again, and lowers the rate for good."""
    scores = [best, 0.5, 0.5, best, 0.5]
    options = {"factor": 0.5, "patience": 2, "mode": mode}
    assert values_after(schedules.plateau(1.0, **options), scores) == [1.0, 1.0, 1.0, 1.0, 1.0, 0.5]
    assert torchs_plateau(1.0, scores, **options) == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]


def warmup_then(schedule, **last):
    warmup = schedules.warmup_linear(1.0, 3, 3)
    return schedules.sequence({"rise": {"steps": 3, "schedule": warmup}, "then": {"schedule": schedule, **last}})


@given(scores=SCORES, first=st.integers(1, 9), second=st.integers(1, 9))
def test_schedules_plateau_in_a_sequence_of_sequences(scores, first, second):
    """Each plateau is as one of its own that sees the scores of its turn."""
    options = {"factor": 0.5, "patience": 1}
    inner = schedules.sequence(
        {
            "a": {"steps": first, "schedule": schedules.plateau(1.0, **options)},
            "b": {"schedule": schedules.plateau(9.0, **options)},
        }
    )
    outer = warmup_then(inner, steps=first + second)
    one, two = 2 + first, 2 + first + second
    expected = [1 / 3, 2 / 3, 1.0]
    # The value of the step at which a turn begins is the first that its plateau can change.
    expected += values_after(schedules.plateau(1.0, **options), scores[2:one])[1:]
    expected += values_after(schedules.plateau(9.0, **options), scores[one:two])[1:]
    expected = (expected + [expected[-1]] * len(scores))[: len(scores) + 1]
    assert values_after(outer, scores) == expected


class Falling:
    """The least that a schedule of one's own needs to watch scores."""

    def __init__(self):
        self.value = 1.0

    def __iter__(self):
        return self

    def __next__(self):
        return self.value

    def observe(self, score):
        self.value -= score


def test_schedules_sequence_passes_scores_on_to_any_schedule_that_watches():
    ours = warmup_then(Falling())
    assert values_after(ours, [0.5, 0.25, 0.25, 0.125])[3:] == [0.75, 0.625]
    assert ours.state_dict() == {}


PLATEAU_STATE = {"reductions": 1, "best": 0.25, "bad_evaluations": 1, "cooldown_left": 0}


@pytest.mark.parametrize(
    "state, said",
    [
        (None, "a dict, found None"),
        ({"reductions": 1},
         "a dict with bad_evaluations, best, cooldown_left, reductions, found one without bad_evaluations, bes"),
        ({**PLATEAU_STATE, "reductions": -1}, "'reductions' to be a whole number from 0 to 100,000,000, found -1"),
        ({**PLATEAU_STATE, "best": math.inf}, "'best' to be a number that is finite, found inf"),
        ({**PLATEAU_STATE, "bad_evaluations": -1},
         "'bad_evaluations' to be a whole number from 0 to 100,000,000, found -1"),
        ({**PLATEAU_STATE, "cooldown_left": 0.5},
         "'cooldown_left' to be a whole number from 0 to 100,000,000, found 0.5"),
    ],
)  # fmt: skip
def test_schedules_refuse_a_bad_state_and_change_nothing(state, said):
    plateau = schedules.plateau(1.0)
    before = plateau.state_dict()
    with pytest.raises(StateError) as error:
        plateau.load_state_dict(state)
    assert f"Can't load the state of thinc-torchopt.plateau.v1: expected {said}" in str(error.value)
    sequence = schedules.sequence({"a": {"steps": 1, "schedule": plateau}, "b": {"schedule": schedules.plateau(2.0)}})
    for parts in ({"a": PLATEAU_STATE, "b": state}, {"a": PLATEAU_STATE}, None):
        with pytest.raises(StateError, match="a dict, found None|a dict with a, b, found|" + re.escape(said)):
            sequence.load_state_dict(parts)
    assert plateau.state_dict() == before


# ---------------------------------------------------------------- sequence


# Older versions of torch's SequentialLR give their parts an epoch, of which torch itself warns.
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
@given(rate=RATES, steps=st.tuples(DECAYS, DECAYS, DECAYS))
def test_schedules_sequence_equals_torchs(rate, steps):
    first, second, third = steps

    def build(optimizer):
        parts = [
            torchs.ConstantLR(optimizer, 0.5, total_iters=100),
            torchs.CosineAnnealingLR(optimizer, second),
            torchs.PolynomialLR(optimizer, third),
        ]
        return torchs.SequentialLR(optimizer, parts, milestones=[first, first + second])

    ours = schedules.sequence(
        {
            "hold": {"steps": first, "schedule": 0.5 * rate},
            "fall": {"steps": second, "schedule": schedules.warmup_cosine(rate, 0, second)},
            "line": {"schedule": schedules.polynomial(rate, 0, third)},
        }
    )
    assert same(ours, rates_of(build, rate, sum(steps) + AFTER), rate)


def test_schedules_sequence_keeps_the_last_value_of_what_ends():
    ours = schedules.sequence(
        {"a": {"steps": 4, "schedule": [3.0, 2.0]}, "b": {"steps": 2, "schedule": iter([1.0, 0.5, 0.25])}}
    )
    assert list(islice(ours, 8)) == [3.0, 2.0, 2.0, 2.0, 1.0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    "part, said",
    [
        ([], "of 'parts.a.schedule': expected at least one value, found none"),
        (iter("x"), "of 'parts.a.schedule' at step 0: expected a number, found 'x'"),
        ("0.1", "'parts.a.schedule' to be a number, or a list or schedule of numbers, found '0.1'"),
    ],
)
def test_schedules_sequence_names_a_bad_part(part, said):
    with pytest.raises(ScheduleError, match=said):
        schedules.sequence({"a": {"schedule": part}})


def test_schedules_sequence_runs_its_parts_in_the_order_of_the_config():
    """Not in that of their names, also after what spaCy does to a config."""
    names = ["3", "1", "zebra", "10", "11", "2"]
    text = '[s]\n@schedules = "thinc-torchopt.sequence.v1"\n\n[s.parts]\n'
    for i, name in enumerate(names):
        text += (
            f'\n[s.parts.{name}]\nsteps = 1\n\n[s.parts.{name}.schedule]\n@schedules = "constant.v1"\nrate = {i}.0\n'
        )
    config = Config().from_str(text)
    for same_config in (
        config,
        Config().from_str(config.to_str()),
        registry.fill(config),
        config.copy(),
        config.merge({"x": {"y": 1}}),
    ):
        assert list(islice(registry.resolve(same_config)["s"], 7)) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0]
    longer = Config().from_str(text, overrides={"s.parts.3.steps": 2})
    assert list(islice(registry.resolve(longer)["s"], 3)) == [0.0, 0.0, 1.0]


# ---------------------------------------------------------------- all of them


def block(name):
    return {"@schedules": f"thinc-torchopt.{name}.v1", **EXAMPLES[name]}


def test_schedules_examples_are_all_that_are_registered():
    from importlib.metadata import entry_points

    ours = {point.name for point in entry_points(group="thinc_schedules") if point.value.startswith("thinc_torchopt.")}
    assert ours == {f"thinc-torchopt.{name}.v1" for name in EXAMPLES}


OPTIMIZERS = {
    "thinc": '[o]\n@optimizers = "SGD.v1"\ngrad_clip = 0.0\nuse_averages = false\n',
    "torch": '[o]\n@optimizers = "thinc-torchopt.TorchOptimizer.v1"\ngrad_clip = 0.0\n\n'
    '[o.algorithm]\n@torch_optimizers = "torch.SGD.v1"\n',
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_schedules_drive_thincs_optimizer_and_ours(name, optimizer):
    """From a config that was written and read again, as `spacy train` does."""
    config = Config().from_str(OPTIMIZERS[optimizer])
    config["o"]["learn_rate"] = block(name)
    written = Config(registry.fill(config)).to_str()
    assert Config().from_str(written)["o"]["learn_rate"] == registry.fill(config)["o"]["learn_rate"]
    sgd = registry.resolve(Config().from_str(written))["o"]
    expected = list(islice(registry.resolve({"s": block(name)})["s"], 30))
    weights, gradient = numpy.zeros(2, dtype="f"), numpy.ones(2, dtype="f")
    for i, rate in enumerate(expected):
        assert sgd.learn_rate == rate
        weights, _ = sgd((0, "W"), weights, gradient.copy())
        assert weights == pytest.approx(-math.fsum(expected[: i + 1]), rel=1e-5)  # 30 additions in float32
        sgd.step_schedules()


@pytest.mark.parametrize("name", EXAMPLES)
def test_schedules_are_checked_by_confection(name):
    good = block(name)
    for key in EXAMPLES[name]:
        with pytest.raises(ConfigValidationError, match=key):
            registry.resolve({"s": {**good, key: {"a": 1}}})
    with pytest.raises(ConfigValidationError, match="mistyped"):
        registry.resolve({"s": {**good, "mistyped": 1}})


# Beside what each setting may be by itself: tests/test_every_setting.py.


@pytest.mark.parametrize("name, arguments, said", DATA["refused"])
def test_schedules_refuse_bad_arguments_when_the_config_is_read(name, arguments, said):
    with pytest.raises(ScheduleError) as error:
        registry.resolve({"s": {"@schedules": f"thinc-torchopt.{name}.v1", **arguments}})
    assert f"Can't build the schedule 'thinc-torchopt.{name}.v1': expected" in str(error.value) and said in str(
        error.value
    )
    assert isinstance(error.value, ConfigError)
