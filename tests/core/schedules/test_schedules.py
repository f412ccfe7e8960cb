import itertools
import json
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import Adam, registry

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ScheduleError, ScheduleWarning, StateError
from thinc_torchopt.core.schedules.curves import warmup_cosine
from thinc_torchopt.core.schedules.plateau import plateau
from thinc_torchopt.core.schedules.schedule import current, is_moving
from thinc_torchopt.core.schedules.schedules import Schedules
from thinc_torchopt.core.schedules.sequence import sequence

from .test_curves import DATA, EXAMPLES

RATES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.ScheduleWarning")
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


# ---------------------------------------------------------------- scores


def tracked(**values):
    schedules = Schedules()
    for name, value in values.items():
        schedules.track(name, value)
    return schedules


def test_scheduled_values_follow_a_score_without_a_step():
    schedules = tracked(learn_rate=plateau(1.0, factor=0.5, patience=0), grad_clip=itertools.count())
    schedules.step()
    for score, rate in [(0.5, 1.0), (0.4, 0.5), (0.3, 0.25), (0.6, 0.25)]:
        schedules.observe({"score": score})
        assert schedules.by_name["learn_rate"].value == rate
    assert {schedule.position for schedule in schedules.by_name.values()} == {1}
    assert schedules.by_name["grad_clip"].value == 1.0


def test_scheduled_values_shared_source_sees_a_score_once():
    source = plateau(1.0, factor=0.5, patience=0)
    schedules = tracked(x=source, y=source)
    schedules.observe({"score": 0.5})
    schedules.observe({"score": 0.5})
    assert current(schedules.by_name["x"]) == current(schedules.by_name["y"]) == 0.5


@given(losses=st.lists(st.floats(0.0, 10.0), max_size=30))
def test_scheduled_values_follow_any_score_as_torchs(losses):
    """One that is to be low, beside others that say something else."""
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=2)
    schedules = tracked(x=plateau(1.0, metric="dev_loss", mode="min", factor=0.5, patience=2))
    for i, loss in enumerate(losses):
        theirs.step(loss)
        schedules.observe({"score": float(i), "dev_loss": loss, "ents_per_type": {}})
        assert schedules.by_name["x"].value == optimizer.param_groups[0]["lr"]


def test_scheduled_values_of_a_sequence_follow_the_score_of_their_part():
    parts = {
        "a": {"steps": 3, "schedule": plateau(1.0, metric="ents_f", factor=0.5, patience=0)},
        "b": {"schedule": plateau(0.1, metric="loss", mode="min", factor=0.5, patience=0)},
    }
    schedules = tracked(x=sequence(parts))
    seen = []
    for _ in range(6):
        schedules.observe({"score": 0.0, "ents_f": 0.5, "loss": 3.0})
        seen.append(schedules.by_name["x"].value)
        schedules.step()
    assert seen == [1.0, 0.5, 0.25, 0.1, 0.05, 0.025] and schedules.by_name["x"].watches_score
    assert not tracked(x=sequence({"a": {"schedule": 0.1}})).by_name["x"].watches_score


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        ({"score": 0.5, "ents_f": 0.4}, "none of that name. The numbers of the evaluation are: ents_f, score"),
        ({"score": 0.5, "ents_p": {"x": 1.0}}, "dict. The numbers of the evaluation are: score"),
        ({"score": 0.5, "ents_p": None}, "NoneType"),
    ],
)
def test_scheduled_values_name_a_score_that_is_not_there(scores, found):
    with pytest.raises(ScheduleError, match=f"of 'learn_rate': expected the watched score 'ents_p' .*found {found}"):
        tracked(learn_rate=plateau(1.0, metric="ents_p")).observe(scores)


class Watching:
    """A schedule of one's own that watches scores and ends after three steps. Its state holds the position too."""

    def __init__(self):
        self.value, self.left = 1.0, 3

    def __iter__(self):
        return self

    def __next__(self):
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.value

    def observe(self, score):
        self.value = score

    def state_dict(self):
        return {"value": self.value, "left": self.left}

    def load_state_dict(self, state):
        self.value, self.left = state["value"], state["left"]


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.ScheduleWarning")
def test_scheduled_values_keep_the_last_value_also_of_a_source_that_watches():
    schedules = tracked(x=Watching())
    for score, value in [(2.0, 2.0), (3.0, 3.0), (4.0, 3.0)]:
        schedules.step()
        schedules.observe({"score": score})
        assert schedules.by_name["x"].value == value


def test_scheduled_values_name_a_bad_value_after_a_score():
    class Spelling(Watching):
        def observe(self, score):
            self.value = "a"

    with pytest.raises(ScheduleError, match="'x' at step 0: expected a number, found 'a'"):
        tracked(x=Spelling()).observe({"score": 0.5})


# ---------------------------------------------------------------- restart


@given(values=RATES, position=st.integers(0, 30), more=st.integers(0, 10))
def test_scheduled_values_move_to_a_position(values, position, more):
    """Warnings too: a source that ended on the way was reported by the run that stopped there, one that ends later was
    not.
    """
    stepped, moved = tracked(x=list(values)), tracked(x=list(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(position):
            stepped.step()
    moved.by_name["x"].move_to(position)
    for _ in range(more):
        assert moved.by_name["x"].value == stepped.by_name["x"].value
        assert moved.by_name["x"].position == stepped.by_name["x"].position
        assert said_by(stepped.step) == said_by(moved.step)


def said_by(step):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("position", [2, -1, 4.0, None, "4"])
def test_scheduled_values_move_only_forwards(position):
    schedule = tracked(x=itertools.count()).by_name["x"]
    schedule.move_to(3)
    with pytest.raises(ScheduleError, match=f"'x': expected a step of at least 3, its current one, found {position!r}"):
        schedule.move_to(position)
    assert schedule.position == 3 and schedule.value == 3.0


NUMBERS = st.floats(0.0, 1.0)
THINCS = [
    {"@schedules": "constant.v1", "rate": 0.1},
    {
        "@schedules": "constant_then.v1",
        "rate": 0.1,
        "steps": 3,
        "schedule": {"@schedules": "decaying.v1", "base_rate": 0.1, "decay": 0.5},
    },
    {"@schedules": "decaying.v1", "base_rate": 0.1, "decay": 0.5},
    {"@schedules": "compounding.v1", "start": 1.0, "stop": 9.0, "compound": 1.3},
    {"@schedules": "warmup_linear.v1", "initial_rate": 0.1, "warmup_steps": 4, "total_steps": 12},
    {"@schedules": "slanted_triangular.v1", "max_rate": 0.1, "num_steps": 20},
    {"@schedules": "cyclic_triangular.v1", "min_lr": 0.1, "max_lr": 0.5, "period": 4},
]
OURS = [{"@schedules": f"thinc-torchopt.{name}.v1", **arguments} for name, arguments in EXAMPLES.items()]
PLATEAUS = st.fixed_dictionaries(
    {
        "@schedules": st.just("thinc-torchopt.plateau.v1"),
        "initial_rate": st.floats(0.1, 1.0),
        "factor": st.just(0.7),
        "patience": st.integers(0, 2),
        "mode": st.sampled_from(["max", "min"]),
        "cooldown": st.integers(0, 2),
    }
)
# What a config may have: a block, or a list; blocks may hold others.
SOURCES = st.recursive(
    st.sampled_from(THINCS + OURS) | PLATEAUS | st.lists(NUMBERS, min_size=1, max_size=6),
    lambda sources: st.lists(st.tuples(st.integers(1, 6), sources | NUMBERS), min_size=1, max_size=4).map(
        lambda parts: {
            "@schedules": "thinc-torchopt.sequence.v1",
            "parts": {f"part{i}": {"steps": steps, "schedule": source} for i, (steps, source) in enumerate(parts)},
        }
    ),
    max_leaves=6,
)
# One entry a step: the score, if there was an evaluation.
ENTRIES = st.none() | st.sampled_from([0.2, 0.5, 0.7, math.nan])
RUNS = st.lists(ENTRIES, max_size=6) | st.lists(ENTRIES, min_size=10, max_size=20)


def built(sources, shared):
    """All places of a config, some of which share a source."""
    schedules = Schedules()
    resolved = registry.resolve({f"s{i}": source for i, source in enumerate(sources)})
    for name, source in resolved.items():
        source = iter(source) if isinstance(source, list) else source
        schedules.track(name, source)
        if shared[int(name[1:])]:
            schedules.track(f"algorithm.{name}", (0.9, source))
    return schedules


def run(schedules, scores):
    values = []
    for score in scores:
        said = said_by(schedules.step)
        if score is not None:
            schedules.observe({"score": score})
        values.append(
            ({name: (schedule.value, schedule.position) for name, schedule in schedules.by_name.items()}, said)
        )
    return values


@given(
    sources=st.lists(PLATEAUS | SOURCES, min_size=1, max_size=3),
    shared=st.tuples(*[st.booleans()] * 3),
    before=RUNS,
    after=RUNS,
)
def test_scheduled_values_go_on_exactly_where_a_saved_run_stood(sources, shared, before, after):
    """Values, positions and warnings. Through JSON, into objects that were built anew."""
    through, resumed = built(sources, shared), built(sources, shared)
    run(through, before)
    state = json.loads(json.dumps(through.state_dict(), allow_nan=False))
    resumed.load(**state)
    assert resumed.state_dict() == state
    assert {name: current(schedule) for name, schedule in resumed.by_name.items()} == {
        name: current(schedule) for name, schedule in through.by_name.items()
    }
    assert run(resumed, after) == run(through, after)


@pytest.mark.parametrize("steps", range(5))
def test_scheduled_values_load_a_state_that_holds_the_position_too(steps):
    through, resumed = tracked(x=Watching()), tracked(x=Watching())
    run(through, [2.0, 3.0, 4.0, 5.0][:steps])
    resumed.load(**through.state_dict())
    assert resumed.by_name["x"].value == through.by_name["x"].value
    assert run(resumed, [6.0, None, 7.0]) == run(through, [6.0, None, 7.0])


@pytest.mark.parametrize(
    "at",
    [
        lambda rate: rate,
        lambda rate: plateau(rate, factor=0.5, patience=0),
        lambda rate: warmup_cosine(rate, 2, 50),
        lambda rate: registry.schedules.get("warmup_linear.v1")(rate, 2, 50),
        lambda rate: sequence({"a": {"steps": 5, "schedule": rate}, "b": {"schedule": plateau(rate, patience=0)}}),
    ],
)
def test_scheduled_values_of_a_changed_config_count_from_the_first_step(at):
    scores = [0.5, 0.5, *[None] * 6, 0.5, 0.5]
    before, expected = (Schedules(learn_rate=at(rate), grad_clip=rate) for rate in (0.5, 0.125))
    run(before, scores)
    run(expected, scores)
    resumed = Schedules(learn_rate=at(0.125), grad_clip=0.125)
    resumed.load(**before.state_dict())
    for _ in range(3):
        assert {name: resumed[name] for name in ("learn_rate", "grad_clip")} == {
            name: expected[name] for name in ("learn_rate", "grad_clip")
        }
        resumed.step()
        expected.step()


@pytest.mark.parametrize("at, in_next_step", [(lambda rate: rate, 0.75), (lambda rate: iter([rate] * 9), 0.125)])
def test_scheduled_values_set_by_hand_go_on_in_a_resumed_run(at, in_next_step):
    before, resumed = Schedules(learn_rate=at(0.5), grad_clip=1.0), Schedules(learn_rate=at(0.125), grad_clip=2.0)
    before.step()
    before["learn_rate"] = 0.75
    before.observe({"score": 0.5})
    resumed.load(**before.state_dict())
    assert (resumed["learn_rate"], resumed["grad_clip"]) == (0.75, 2.0)
    resumed.step()
    assert resumed["learn_rate"] == in_next_step


def of_kinds():
    source = plateau(1.0, factor=0.5, patience=0)
    return tracked(
        learn_rate=source, grad_clip=itertools.count(), x=source, y=sequence({"a": {"schedule": plateau(2.0)}})
    )


STATE = DATA["state"]


def test_scheduled_values_state_is_by_config_path():
    schedules = of_kinds()
    for score in (0.25, 0.25):
        schedules.step()
        schedules.observe({"score": score})
    assert schedules.state_dict() == {"step": 2, "settings": {}, "schedules": STATE}


@pytest.mark.parametrize("change, said", DATA["changes"])
def test_scheduled_values_check_all_of_a_state_before_they_load_it(change, said):
    state = {name: part for name, part in {**STATE, **change}.items() if part is not None}
    schedules = of_kinds()
    before = schedules.state_dict()
    with pytest.raises(StateError, match=said):
        schedules.load({}, state, 3)
    assert schedules.state_dict() == before


def test_scheduled_values_say_what_is_missing_of_a_state_that_is_none():
    with pytest.raises(StateError, match="expected a dict, found None"):
        tracked(x=itertools.count()).load({}, None, 0)


@pytest.mark.parametrize(
    "schedule, arguments",
    [
        ("warmup_linear.v1", {"initial_rate": 0.1, "warmup_steps": 20, "total_steps": 100}),
        ("thinc-torchopt.warmup_linear.v1", {"initial_rate": 0.1, "warmup_steps": 20, "total_steps": 100}),
        ("thinc-torchopt.warmup_linear.v1", {"initial_rate": 0.1, "warmup_ratio": 0.3}),
        ("thinc-torchopt.warmup_cosine.v1", {"initial_rate": 0.1, "warmup_ratio": 0.3, "total_steps": 100}),
        ("thinc-torchopt.one_cycle.v1", {"max_rate": 0.1}),
        ("thinc-torchopt.one_cycle.v1", {"max_rate": 0.1, "total_steps": 90, "pct_start": 0.25}),
        ("thinc-torchopt.inverse_sqrt.v1", {"initial_rate": 0.1, "warmup_steps": 20}),
        ("thinc-torchopt.polynomial.v1", {"initial_rate": 0.1, "warmup_steps": 20}),
        ("thinc-torchopt.warmup_stable_decay.v1", {"initial_rate": 0.1, "warmup_ratio": 0.2, "decay_ratio": 0.2}),
        ("constant.v1", {"rate": 0.1}),
        ("decaying.v1", {"base_rate": 0.1, "decay": 0.1}),
        ("thinc-torchopt.plateau.v1", {"initial_rate": 0.1}),
    ],
)
@pytest.mark.parametrize("place", ["learn_rate", "group", "sequence"])
def test_schedule_tells_its_warm_up(schedule, arguments, place):
    """Oracle: the step from which on the rate does not rise. An update earlier it may be as high as it gets."""
    block = {"@schedules": schedule, **arguments}
    before = 0
    if place == "sequence":
        parts = {"low": {"schedule": 0.001, "steps": 7}, "rest": {"schedule": block}}
        block, before = {"@schedules": "thinc-torchopt.sequence.v1", "parts": parts}, 7
    source = registry.resolve({"it": block})["it"]
    groups = {"x": {"params": ["*"], "learn_rate": source}} if place == "group" else {}
    optimizer = TorchOptimizer(AdamW(), 0.1 if groups else source, param_groups=groups)
    if optimizer.spans_training:
        optimizer.set_total_steps(100 + before)
    [schedule] = optimizer._settings.by_name.values()
    values = []
    for _ in range(100 + before):
        values.append(schedule.value)
        optimizer.step_schedules()
    highest = values.index(max(values))
    told = optimizer.warmup_steps
    assert told - highest in (0, 1) if highest > before else told == 0
