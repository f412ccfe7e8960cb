"""Rules by name. Each fires where a plain loop says so, and stays quiet otherwise."""

import math
import statistics
from unittest.mock import Mock

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.util import registry

from thinc_torchopt.addons.controller import TrainerController, trainer_controller
from thinc_torchopt.addons.controller.operations import RunHandle
from thinc_torchopt.addons.controller.rules import Rule
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.optimizer import TorchOptimizer
from thinc_torchopt.loop.events import Control
from thinc_torchopt.loop.saved_models import SavedModels

from .kit import LOG, STEP, STOP, make, part, rule


def named(kind, **arguments):
    """As the config makes it."""
    return registry.resolve({"rule": {"@controller_rules": f"thinc-torchopt.{kind}.v1", **arguments}})["rule"]


def fired(definition, events, **more):
    """The events, by their numbers, at which each controller fires."""
    controller = TrainerController(definition)
    found = []
    for i, (event, payload) in enumerate(events):
        run = RunHandle(Mock(spec=TorchOptimizer), Mock(spec=SavedModels))
        payload = {"step": i, **payload, "control": Control(), "run": run}
        found += [(i, f"{one.operation}.{one.action}") for one in controller.on_event(event, **payload)]
    return found


def scores(*values):
    return [("on_evaluate", {"scores": {"f": value}, "score": value}) for value in values]


def losses(*values):
    return [("on_step_end", {"losses": {"ner": value}, "batch_words": 1}) for value in values]


@pytest.mark.parametrize(
    "arguments, values, at",
    [
        ({"evaluations": 2, "min_delta": 0.2}, (0.5, 0.4, 0.6, 0.8), [2]),
        ({"mode": "min", "evaluations": 1, "of": "scores['f'] * 2"}, (0.5, 0.4, 0.5), [2]),
        ({"stopping_threshold": 0.7}, (0.5, 0.7, 0.71), [2]),
        ({"mode": "min", "stopping_threshold": 0.3}, (0.5, 0.3, 0.2), [2]),
        ({"divergence_threshold": 0.3}, (0.5, 0.3, 0.2), [2]),
        ({"mode": "min", "divergence_threshold": 3}, (0.5, 3.0, 4.0), [2]),
    ],
)
def test_named_stop_early(arguments, values, at):
    assert fired(named("stop_early", **arguments), scores(*values)) == [(i, STOP) for i in at]


@pytest.mark.parametrize("arguments, warmup", [({}, 0), ({}, 90), ({"min_steps": 70}, 90), ({"min_steps": 0}, 90)])
@pytest.mark.parametrize("evaluations", [1, 2, 3])
def test_named_stop_early_waits_for_the_end_of_the_warm_up(arguments, warmup, evaluations):
    """Oracle: the list of all evaluations. Those before that step count for nothing but the best score."""
    begin = arguments.get("min_steps", warmup)
    values = [0.1, 0.3, 0.0, 0.2, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3]
    told = {"scores": {}, "warmup_steps": warmup}
    events = [("on_evaluate", {**told, "score": value, "step": 20 * i}) for i, value in enumerate(values)]
    expected = [
        i
        for i in range(evaluations, len(values))
        if 20 * (i - evaluations + 1) >= begin
        and max(values[i - evaluations + 1 : i + 1]) <= max(values[: i - evaluations + 1])
    ]
    assert fired(named("stop_early", evaluations=evaluations, **arguments), events) == [(i, STOP) for i in expected]
    assert expected


def test_named_cut_on_plateau():
    """Every two evaluations in a row without a better one."""
    definition = named("cut_on_plateau", evaluations=2, factor=0.1, min_rate=1e-6, groups=["enc*"])
    found = fired(definition, scores(0.5, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6))
    assert found == [(4, "rates_down.should_cut"), (6, "rates_down.should_cut")]
    assert definition["operations"][0]["arguments"] == {"factor": 0.1, "min_rate": 1e-6, "groups": ["enc*"]}


@pytest.mark.parametrize(
    ("kind", "usual"),
    [
        ("stop_early", {"of": "scores['score']", "evaluations": 5, "min_delta": 0.0, "check_finite": True}),
        ("cut_on_plateau", {"evaluations": 3, "min_delta": 0.0, "factor": 0.5, "min_rate": 0.0, "groups": ["*"]}),
        ("roll_back_on_spike", {"times": 3.0, "size": 50, "at_least": 0.0, "factor": 0.5, "max_firings": 3}),
    ],
)
def test_named_rules_have_the_settings_of_the_docs(kind, usual):
    assert named(kind) == named(kind, **usual)


def test_named_roll_back_on_spike():
    found = fired(named("roll_back_on_spike", times=2, size=3), losses(*[1.0] * 3, 2.0, 2.1, 5.0, 1.0, 1.0, 9.0))
    both = ["back.should_rollback", "rates_down.should_cut"]
    assert found == [(5, one) for one in both]
    once = {"size": 1, "factor": None, "max_firings": 1}
    found = fired(named("roll_back_on_spike", times=2, **once), losses(*[1.0] * 4, math.nan, 1.0, 1.0, math.nan))
    assert found == [(4, "back.should_rollback")]


def test_named_unfreeze_when():
    definition = named("unfreeze_when", params=["a/*"], when="scores['f'] > 0.5")
    events = [("on_train_begin", {}), *scores(0.4, 0.6, 0.7)]
    assert fired(definition, events) == [(0, "frozen.should_freeze"), (2, "frozen.should_unfreeze")]
    definition = named("unfreeze_when", params=["a/*"], when="scores['f'] > 0.5", freeze_first=False)
    assert fired(definition, events) == [(2, "frozen.should_unfreeze")]


def test_named_keep_best():
    assert fired(named("keep_best", of="scores['f']"), scores(0.1, 0.2)) == [(i, "best.should_keep") for i in (0, 1)]


def test_named_several_of_a_kind_in_one_config():
    """Each has its own best value; metrics that the config defines replace the standard ones."""
    metrics = {"scores": registry.controller_metrics.get("EvalMetrics")(min_delta=0.5)}
    rules = {
        "2-stop": named("stop_early", of="scores['f']", evaluations=1),
        "stop-": named("stop_early", of="-scores['f']", evaluations=1),
        "both": named("unfreeze_when", params=["a/*"], when="True"),
    }
    settings = trainer_controller(metrics=metrics, rules=rules)
    own = [f"{rule}_{metric}" for rule in ("rule_2_stop", "stop") for metric in ("best_so_far", "counted")]
    assert list(settings.definition.metrics) == ["state", "scores", *own]
    assert settings.definition.metrics["scores"].arguments == {"min_delta": 0.5}
    names = [spec.name for spec in settings.definition.controllers]
    assert names == ["2-stop", "stop-", "both-freeze", "both-unfreeze"]
    controller = settings.build()
    found = [controller.decide(event, step=i, **payload) for i, (event, payload) in enumerate(scores(0.5, 0.4))]
    assert [[one.controller for one in firings] for firings in found] == [["both-unfreeze"], ["2-stop"]]


@pytest.mark.parametrize(
    "names",
    [("Größe", "stop--early"), ("стоп", "снизить"), ("stop-early", "stop_early"), ("1", "rule_1"), ("__", "2 x")],
)
def test_named_rules_in_blocks_of_any_name(names):
    """They have metrics of the same name, and names of metrics are ASCII letters, digits and _."""
    rules = {names[0]: named("stop_early"), names[1]: named("cut_on_plateau")}
    found = trainer_controller(rules=rules).definition
    assert [spec.name for spec in found.controllers] == list(names)
    assert len([name for name in found.metrics if name.endswith("_best_so_far")]) == 2


def test_named_own_metrics_are_not_those_of_the_config():
    metrics = {"best_so_far": registry.controller_metrics.get("EvalMetrics")()}
    with pytest.raises(ConfigError, match=r"rules.stop\]: it has a metric 'best_so_far' of its own"):
        trainer_controller(metrics=metrics, rules={"stop": named("stop_early")})


@pytest.mark.parametrize(
    "kind, arguments, reason",
    [
        ("stop_early", {"mode": "lower"}, "mode"),
        ("stop_early", {"evaluations": 0}, "at least 1"),
        ("stop_early", {"min_steps": -1}, "'min_steps'.*at least 0"),
        ("cut_on_plateau", {"evaluations": 0}, "at least 1"),
        ("roll_back_on_spike", {"times": 1.0}, "above 1"),
        ("roll_back_on_spike", {"size": 0}, "'size'.*at least 1"),
        ("roll_back_on_spike", {"max_firings": 0}, "'max_firings'.*at least 1"),
    ],
)
def test_named_bad_input(kind, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        named(kind, **arguments)


def test_named_numbers_in_quotes():
    """confection accepts them where it expects numbers."""
    given = {"times": 2, "size": 5, "at_least": 1, "factor": 0.5, "max_firings": 2}
    texts = {name: str(value) for name, value in given.items()}
    found = trainer_controller(rules={"spike": named("roll_back_on_spike", **texts)}).definition
    (spec,) = found.controllers
    assert "2.0 * " in spec.rule.text and (spec.cooldown, spec.max_firings) == (5, 2)


@pytest.mark.parametrize("of", ["scors['f']", "scores[", 3, "__import__('os')", "scores['f'] or ().x"])
def test_named_expressions_that_are_none(of):
    with pytest.raises(ValueError, match=r"of|rule"):
        trainer_controller(rules={"stop": named("stop_early", of=of)})


# ---------------------------------------------------------------------- numbers that are none

NUMBERS = st.one_of(st.floats(-9, 9), st.sampled_from([math.nan, math.inf, -math.inf]))


def evaluations_since_best(values, better=float.__gt__):
    """At each value, the number of evaluations since the best that is finite. None: there is none yet."""
    best, since = None, 0
    for value in values:
        since += 1
        if math.isfinite(value) and (best is None or better(value, best)):
            best, since = value, 0
        yield None if best is None else since


@given(st.lists(NUMBERS, max_size=20), st.integers(1, 3), st.booleans(), st.sampled_from([None, 5.0]))
def test_named_stop_early_with_numbers_that_are_not_finite(values, evaluations, check_finite, threshold):
    rule = named("stop_early", evaluations=evaluations, check_finite=check_finite, stopping_threshold=threshold)
    expected = [
        i
        for i, (value, since) in enumerate(zip(values, evaluations_since_best(values)))
        if (check_finite and not math.isfinite(value))
        or (threshold is not None and value > threshold)
        or (since is not None and since >= evaluations)
    ]
    assert fired(rule, scores(*values)) == [(i, STOP) for i in expected]


@given(st.lists(NUMBERS, max_size=20), st.integers(1, 3))
def test_named_cut_on_plateau_with_numbers_that_are_not_finite(values, evaluations):
    expected, waited = [], 0
    for i, since in enumerate(evaluations_since_best(values)):
        waited = waited + 1 if since else 0
        if waited == evaluations:
            expected, waited = [*expected, i], 0
    found = fired(named("cut_on_plateau", evaluations=evaluations), scores(*values))
    assert found == [(i, "rates_down.should_cut") for i in expected]


@given(st.lists(NUMBERS.map(abs), max_size=40), st.integers(1, 4), st.sampled_from([0.0, 2.0]))
def test_named_roll_back_on_spike_with_numbers_that_are_not_finite(values, size, at_least):
    """It goes back on them, and from a finite number only by the median of finite ones."""
    definition = named("roll_back_on_spike", times=2, size=size, at_least=at_least, factor=None, max_firings=99)
    lately, expected = [], []
    for i, value in enumerate(values):
        lately += [value] * math.isfinite(value)
        is_spike = not math.isfinite(value) or (
            len(lately) >= size and value > max(at_least, 2 * statistics.median(lately[-size:]))
        )
        if is_spike and not (expected and i - expected[-1] <= size):
            expected.append(i)
    assert fired(definition, losses(*values)) == [(i, "back.should_rollback") for i in expected]


@given(st.lists(NUMBERS, max_size=9))
def test_named_rules_with_an_expression_ignore_nan(values):
    definition = named("unfreeze_when", params=["a/*"], when="scores['f'] > 0.5", freeze_first=False)
    first = next((i for i, value in enumerate(values) if value > 0.5), None)
    assert fired(definition, scores(*values)) == [(first, "frozen.should_unfreeze")] * (first is not None)


@given(st.lists(NUMBERS, max_size=12), st.sampled_from(["min", "max"]), st.sampled_from(["absolute", "relative"]))
def test_named_nothing_that_is_not_finite_is_the_best(values, mode, margin):
    """Of `Best`, of the scores, and of the run: at any place in the series, with any margin."""
    arguments = {"of": "scores['f']", "mode": mode, "min_delta": 0.5, "min_delta_mode": margin}
    scored = part("scores", "EvalMetrics", min_delta=0.5, min_delta_mode=margin)
    controller = make(rule("r", "on_evaluate", "True", LOG), metrics=[scored, STEP, part("best", "Best", **arguments)])
    best = {"min": None, "max": None}
    for step, (event, payload) in enumerate(scores(*values)):
        controller.on_event(event, step=step, **payload)
        value = payload["score"]
        for sign, each in ((-1, "min"), (1, "max")):
            known = best[each]
            delta = 0.5 * (abs(known or 0.0) if margin == "relative" else 1.0)
            if math.isfinite(value) and (known is None or sign * (value - known) > delta):
                best[each] = value
        assert (controller.values["best"] or {}).get("value") == best[mode]
        assert controller.values["scores"]["best_score"] == best["max"]
        assert controller.values["state"]["best_score"] == max(filter(math.isfinite, values[: step + 1]), default=None)


@given(st.lists(NUMBERS, min_size=1, max_size=6))
def test_named_largest_and_smallest_of_nan_are_nan_in_any_order(values):
    """As NumPy has it. Python's depend on the order: max(0.0, nan) is 0.0."""
    for name, expected in (("max", numpy.max(values)), ("min", numpy.min(values))):
        each = ", ".join(f"m[{i}]" for i in range(len(values)))
        for text in (f"{name}([x for x in m])", f"{name}(x for x in m)", f"{name}({each}, m[0])"):
            found = Rule(text, ["m"], gives="a number").evaluate({"m": values})
            assert found == expected or (math.isnan(found) and math.isnan(expected)), text


# ---------------------------------------------------------------------- percent in the place of fractions


ONE_SCORE, PARAMS = "scores['ents_f']", {"params": ["*"]}


@pytest.mark.parametrize(
    ("kind", "arguments", "told"),
    [
        ("stop_early", {"of": ONE_SCORE, "stopping_threshold": 90}, "scores['ents_f'] with 90"),
        ("stop_early", {"stopping_threshold": 90.5}, "what spaCy's table shows as 90.50 is 0.905"),
        ("stop_early", {"of": ONE_SCORE, "divergence_threshold": 20}, "scores['ents_f'] with 20"),
        ("stop_early", {"min_delta": 1}, "min_delta = 1 of the metric"),
        ("cut_on_plateau", {"of": ONE_SCORE, "min_delta": 2.5}, "min_delta = 2.5 of the metric"),
        ("unfreeze_when", {**PARAMS, "when": "scores['ents_f'] > 80 or state['step'] > 9"}, "['ents_f'] with 80"),
        ("unfreeze_when", {**PARAMS, "when": "80 <= scores['ents_f'] < 2"}, "scores['ents_f'] with 80"),
        # large numbers that are right; scores of the user's own may be above 1
        ("stop_early", {"of": ONE_SCORE, "stopping_threshold": 1.0, "min_delta": 0.01}, None),
        ("stop_early", {"of": "100 * scores['ents_f']", "stopping_threshold": 90, "min_delta": 1}, None),
        ("stop_early", {"of": "scores['speed']", "stopping_threshold": 9000, "min_delta": 100}, None),
        ("stop_early", {"of": "dev['per_word']", "mode": "min", "divergence_threshold": 9.0, "min_delta": 2.0}, None),
        ("unfreeze_when", {**PARAMS, "when": "scores['ents_f'] > 0.8 and scores['mine'] > 80"}, None),
        ("stop_early", {"of": "scores['reward']", "stopping_threshold": 90}, None),
    ],
)
def test_named_rule_that_takes_scores_for_percent(kind, arguments, told):
    rules = trainer_controller(rules={"mine": named(kind, **arguments)}).build()
    doubts = " ".join(rules.check_keys(["default"], ["ner"], ["ents_f", "ents_per_type", "speed"]))
    assert ("from 0 to 1" in doubts) == (told is not None) and (told or "") in doubts


def test_named_rule_on_a_main_score_that_counts_the_users_own():
    rules = trainer_controller(rules={"mine": named("stop_early", stopping_threshold=90)}).build()
    assert "from 0 to 1" not in " ".join(rules.check_keys(["default"], ["ner"], ["ents_f", "reward"]))
