"""Schedules that end where the training ends: told how long it is, they are those that were given the number."""

import copy
import json
import math
import pickle
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import Adam as ThincAdam
from thinc.api import constant_then, registry

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.own_loops.policies import FromSchedule
from thinc_torchopt.core import schedules
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError, ScheduleError, ScheduleWarning, StateError
from thinc_torchopt.core.schedules.schedules import Schedules
from thinc_torchopt.core.schedules.to_the_end import is_waiting, with_end

from ...models import toy_examples, toy_pipeline
from ...peek import decay_of
from .test_curves import AFTER, EXAMPLES, rates_of, same

SPANNING = {name: example for name, example in EXAMPLES.items() if "total_steps" in example}
TOTALS = st.integers(20, 80)


def without_total(name, **changes):
    arguments = {key: value for key, value in {**SPANNING[name], **changes}.items() if key != "total_steps"}
    return getattr(schedules, name)(**arguments)


@pytest.mark.parametrize("name", SPANNING)
@given(total=TOTALS)
def test_to_the_end_is_the_curve_of_that_total(name, total):
    told, given_ = without_total(name), getattr(schedules, name)(**{**SPANNING[name], "total_steps": total})
    assert is_waiting(told) and 0.0 <= told.value <= 0.1
    told.set_total_steps(total)
    assert not is_waiting(told)
    assert list(islice(told, total + AFTER)) == list(islice(given_, total + AFTER))


def torchs_linear(rate, warmup, total):
    """The shape of transformers' get_linear_schedule_with_warmup."""

    def scale(step):
        return step / max(1, warmup) if step < warmup else max(0.0, (total - step) / max(1, total - warmup))

    return rates_of(lambda o: torch.optim.lr_scheduler.LambdaLR(o, scale), rate, total + AFTER)


@given(rate=st.floats(1e-6, 10.0), ratio=st.floats(0.0, 1.0), total=st.integers(1, 80))
def test_to_the_end_warmup_ratio_is_transformers(rate, ratio, total):
    """Steps of the warm-up are rounded up, as in its TrainingArguments."""
    warmup = math.ceil(total * ratio)
    theirs = torchs_linear(rate, warmup, total)
    assert same(schedules.polynomial(rate, total_steps=total, warmup_ratio=ratio), theirs, rate)
    assert same(with_end(schedules.polynomial(rate, warmup_ratio=ratio), total), theirs, rate)


@pytest.mark.parametrize("total", [7, 100, 101, 1000])
@pytest.mark.parametrize("ratio", [0.0, 0.06, 0.1, 1.0])
def test_to_the_end_equals_transformers_itself(ratio, total):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; the shape is torch's")
    settings_of_theirs = SimpleNamespace(warmup_steps=0, warmup_ratio=ratio)  # all that it reads
    warmup = transformers.TrainingArguments.get_warmup_steps(settings_of_theirs, total)
    get_schedule = transformers.get_cosine_schedule_with_warmup
    theirs = rates_of(lambda o: get_schedule(o, warmup, total), 0.1, total)
    assert same(with_end(schedules.warmup_cosine(0.1, warmup_ratio=ratio), total), theirs, 0.1)


def test_to_the_end_also_of_the_fall():
    ratios = schedules.warmup_stable_decay(0.1, warmup_ratio=0.1, decay_ratio=0.25)
    steps = schedules.warmup_stable_decay(0.1, 11, 27, 105)
    assert list(islice(with_end(ratios, 105), 120)) == list(islice(steps, 120))


@pytest.mark.parametrize("name", SPANNING)
def test_to_the_end_has_no_values_before_it_is_told(name):
    """Neither for thinc's optimizers, nor inside of thinc's schedules, nor for a controller of rates alone."""
    with pytest.raises(ScheduleError, match=f"'thinc-torchopt.{name}.v1' without total_steps"):
        next(without_total(name))
    with pytest.raises(ScheduleError, match="without total_steps: the length of the training is not known"):
        ThincAdam(without_total(name))
    with pytest.raises(ScheduleError, match="'learn_rate': expected total_steps in the schedule inside of another"):
        TorchOptimizer(AdamW(), constant_then(0.1, 5, without_total(name)))
    with pytest.raises(ScheduleError, match="as a policy without total_steps"):
        FromSchedule(without_total(name))


@pytest.mark.parametrize("name", ["warmup_cosine", "warmup_linear", "polynomial", "warmup_stable_decay"])
def test_to_the_end_wants_one_of_steps_and_ratio(name):
    others = {"decay_steps": 1} if name == "warmup_stable_decay" else {}
    for arguments, found in (({}, "neither"), ({"warmup_steps": 5, "warmup_ratio": 0.1}, "both")):
        with pytest.raises(ScheduleError, match=f"either 'warmup_steps' or 'warmup_ratio'.*found {found}"):
            getattr(schedules, name)(0.1, **arguments, **others)
    for ratio in (-0.1, 1.1, math.nan, "0.1", True):
        with pytest.raises(ScheduleError, match="'warmup_ratio' to be a number of at least 0 and at most 1"):
            getattr(schedules, name)(0.1, warmup_ratio=ratio, **others)


def test_to_the_end_refuses_a_training_that_is_too_short():
    with pytest.raises(ScheduleError, match=r"at least 4 \(warmup_steps\), found 3.*Train for longer, or shorten"):
        without_total("warmup_cosine").set_total_steps(3)
    with pytest.raises(
        ScheduleError, match="longer than the 15 steps of the parts before the last one, found one of 15"
    ):
        parts = {"a": {"steps": 15, "schedule": 0.1}, "b": {"schedule": without_total("warmup_cosine")}}
        schedules.sequence(parts).set_total_steps(15)


def in_a_sequence():
    """The first and the second part end with themselves, the last with the training."""
    block = {"@schedules": "thinc-torchopt.polynomial.v1", "initial_rate": 1.0, "warmup_steps": 2}
    last = {"@schedules": "thinc-torchopt.warmup_cosine.v1", "initial_rate": 0.5, "warmup_ratio": 0.1}
    parts = {"a": {"steps": 10, "schedule": block}, "b": {"steps": 5, "schedule": 0.1}, "c": {"schedule": last}}
    return registry.resolve({"s": {"@schedules": "thinc-torchopt.sequence.v1", "parts": parts}})["s"]


def test_to_the_end_in_a_sequence():
    source = in_a_sequence()
    assert is_waiting(source) and source.value == 0.0
    source.set_total_steps(55)
    expected = [
        *islice(schedules.polynomial(1.0, 2, 10), 10),
        *[0.1] * 5,
        *islice(schedules.warmup_cosine(0.5, 4, 40), 50),
    ]
    assert list(islice(source, 65)) == expected and source.total_steps == 55
    nested = schedules.sequence({"a": {"steps": 5, "schedule": 1.0}, "b": {"schedule": in_a_sequence()}})
    assert list(islice(with_end(nested, 60), 70)) == [1.0] * 5 + expected


def tracked(**values):
    found = Schedules()
    for name, value in values.items():
        found.track(name, value)
    return found


def values_of(found):
    return {name: schedule.value for name, schedule in found.by_name.items()}


@pytest.mark.parametrize("build", [lambda: without_total("warmup_cosine"), in_a_sequence], ids=["curve", "sequence"])
@pytest.mark.parametrize("steps", [0, 1, 12, 17, 60])
def test_to_the_end_is_saved(build, steps):
    """The one that goes on knows its end before it is told again."""
    through, resumed = tracked(x=build(), y=0.1), tracked(x=build(), y=0.1)
    through.set_total_steps(50)
    for _ in range(steps):
        through.step()
    state = json.loads(json.dumps(through.state_dict()))
    resumed.load(**state)
    resumed.set_total_steps(50)
    assert resumed.state_dict() == state
    for _ in range(10):
        assert values_of(resumed) == values_of(through)
        resumed.step()
        through.step()


def test_to_the_end_refuses_another_end_unless_that_is_wanted():
    source = without_total("warmup_cosine")
    found = tracked(x=source)
    found.set_total_steps(50)
    for _ in range(20):
        found.step()
    before = found.state_dict()
    with pytest.raises(
        StateError, match=r"of 'x'.*training of 50 steps.*found one of 80.*on_config_change.*total_steps = 50"
    ):
        found.set_total_steps(80)
    other = tracked(x=without_total("warmup_cosine"))
    other.set_total_steps(80)
    with pytest.raises(StateError, match=r"training of 80 steps.*found one of 50"):
        other.load(**before)
    assert found.state_dict() == before
    with pytest.warns(ScheduleWarning, match="'x' continues at step 20 of a training of 80 steps.*had 50"):
        found.set_total_steps(80, may_change=True)
    on_the_new = without_total("warmup_cosine")
    expected = list(islice(with_end(on_the_new, 80), 30))
    for rate in expected[20:]:
        assert found.by_name["x"].value == rate
        found.step()


def test_to_the_end_goes_on_where_the_number_was_in_the_config_before():
    """And the other way round. That the config has changed, the checkpoint says."""
    for old, new in ((False, True), (True, False)):
        build = {False: without_total("polynomial"), True: schedules.polynomial(0.1, 4, 40, power=2.0)}
        before, after = tracked(x=copy.deepcopy(build[False]) if not old else build[True]), tracked(x=build[new])
        before.set_total_steps(40)
        for _ in range(10):
            before.step()
        after.load(**before.state_dict())
        after.set_total_steps(40)
        assert values_of(after) == values_of(before) and after.by_name["x"].position == 10


@pytest.mark.parametrize("name", SPANNING)
def test_to_the_end_can_be_copied(name):
    """Unlike a generator."""
    source = with_end(without_total(name), 40)
    list(islice(source, 12))
    for other in (copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert list(islice(other, 40)) == list(islice(copy.deepcopy(source), 40))


@pytest.mark.parametrize("total", [0, -1, 2.5, None, True])
def test_to_the_end_of_an_optimizer_wants_a_number(total):
    with pytest.raises(ConfigError, match="'total_steps' in the training: expected a whole number of at least 1"):
        TorchOptimizer(AdamW(), without_total("polynomial")).set_total_steps(total)


def test_to_the_end_in_a_loop_of_ones_own():
    """Without the number nothing is trained; with it, all settings move, a shared one once."""
    nlp = toy_pipeline(["tagger"])
    examples = toy_examples(nlp)
    rate = schedules.warmup_linear(0.1, warmup_ratio=0.1)
    optimizer = TorchOptimizer(
        AdamW(weight_decay=rate),
        rate,
        grad_clip=schedules.polynomial(5.0, 0, min_rate=1.0),
        param_groups={"tagger": {"params": ["tagger/*"], "learn_rate": schedules.one_cycle(0.2)}},
    )
    nlp.initialize(lambda: examples, sgd=optimizer)
    assert optimizer.spans_training
    with pytest.raises(
        ScheduleError, match=r"of 'learn_rate' in \[training.optimizer\] without total_steps.*set_total_steps"
    ):
        nlp.update(examples, sgd=optimizer)
    assert not any(optimizer.nr_update.values())
    optimizer.set_total_steps(20)
    expected = zip(
        schedules.warmup_linear(0.1, 2, 20),
        schedules.polynomial(5.0, 0, 20, min_rate=1.0),
        schedules.one_cycle(0.2, 20),
    )
    for shared, clip, of_tagger in islice(expected, 22):
        nlp.update(examples, sgd=optimizer)
        rates = optimizer.learn_rates
        assert (rates["default"], rates["tagger"], optimizer.grad_clip) == (shared, of_tagger, clip)
        assert shared == decay_of(optimizer)
        optimizer.step_schedules()
    with pytest.raises(StateError, match="training of 20 steps"):
        optimizer.set_total_steps(40)
