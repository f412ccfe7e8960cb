"""Rules by name. Each fires where a plain loop says so, and stays quiet otherwise."""

import math
from unittest.mock import Mock

import pytest
from spacy.util import registry

from thinc_torchopt.controller import Control, Steering, TrainerController, trainer_controller
from thinc_torchopt.errors import ConfigError, ControllerError


def named(kind, **arguments):
    """As the config makes it."""
    return registry.resolve({"rule": {"@controller_rules": f"thinc-torchopt.{kind}.v1", **arguments}})["rule"]


def fired(definition, events, **more):
    """The events, by their numbers, at which each controller fires."""
    controller = TrainerController(definition)
    found = []
    for i, (event, payload) in enumerate(events):
        control = Control(steering=Mock(spec=Steering))
        payload = {"step": i, **payload, "control": control}
        found += [(i, f"{one.operation}.{one.action}") for one in controller.on_event(event, **payload)]
    return found


def scores(*values):
    return [("on_evaluate", {"metrics": {"f": value}, "score": value}) for value in values]


def losses(*values):
    return [("on_step_end", {"losses": {"ner": value}, "batch_words": 1}) for value in values]


STOP = "control.should_training_stop"


@pytest.mark.parametrize(
    "arguments, values, at",
    [
        ({"evaluations": 2}, (0.5, 0.4, 0.6, 0.6, 0.5), [4]),
        ({"evaluations": 2, "min_delta": 0.2}, (0.5, 0.4, 0.6, 0.8), [2]),
        ({"mode": "min", "evaluations": 1, "of": "scores['f'] * 2"}, (0.5, 0.4, 0.5), [2]),
        ({"stopping_threshold": 0.7}, (0.5, 0.7, 0.71), [2]),
        ({"mode": "min", "stopping_threshold": 0.3}, (0.5, 0.3, 0.2), [2]),
        ({"divergence_threshold": 0.3}, (0.5, 0.3, 0.2), [2]),
        ({"mode": "min", "divergence_threshold": 3}, (0.5, 3.0, 4.0), [2]),
        ({}, (0.5, math.nan), [1]),
        ({"check_finite": False}, (0.5, math.nan), []),
    ],
)
def test_named_stop_early(arguments, values, at):
    assert fired(named("stop_early", **arguments), scores(*values)) == [(i, STOP) for i in at]


def test_named_cut_on_plateau():
    """Every two evaluations in a row without a better one."""
    definition = named("cut_on_plateau", evaluations=2, factor=0.1, min_rate=1e-6, groups=["enc*"])
    found = fired(definition, scores(0.5, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6))
    assert found == [(4, "rates_down.should_cut"), (6, "rates_down.should_cut")]
    assert definition["operations"][0]["arguments"] == {"factor": 0.1, "min_rate": 1e-6, "groups": ["enc*"]}


def test_named_roll_back_on_spike():
    found = fired(named("roll_back_on_spike", times=2, size=3), losses(*[1.0] * 3, 2.0, 2.1, 5.0, 1.0, 1.0, 9.0))
    both = ["back.should_rollback", "rates_down.should_cut"]
    assert found == [(i, action) for i in (5, 8) for action in both] or found == [(5, one) for one in both]
    found = fired(named("roll_back_on_spike", times=2, size=3, factor=None), losses(*[1.0] * 4, 5.0))
    assert found == [(4, "back.should_rollback")]


def test_named_unfreeze_when():
    definition = named("unfreeze_when", params=["a/*"], when="scores['f'] > 0.5")
    events = [("on_train_begin", {}), *scores(0.4, 0.6, 0.7)]
    assert fired(definition, events) == [(0, "frozen.should_freeze"), (2, "frozen.should_unfreeze")]
    definition = named("unfreeze_when", params=["a/*"], when="scores['f'] > 0.5", freeze_first=False)
    assert fired(definition, events) == [(2, "frozen.should_unfreeze")]


def test_named_keep_best():
    assert fired(named("keep_best", of="scores['f']", keep=2), scores(0.1, 0.2)) == [
        (i, "best.should_keep") for i in (0, 1)
    ]


def test_named_notify(monkeypatch):
    monkeypatch.setenv("TEST_HOOK", "http://localhost:1/secret")
    definition = named("notify", when="True", on="on_train_begin", url_from="TEST_HOOK", message="{state/step} {dev}")
    assert "secret" not in str(definition)  # nor in checkpoints
    assert [one["name"] for one in definition["controller_metrics"]] == ["dev", "state"]
    TrainerController(definition)
    monkeypatch.setenv("TEST_HOOK", "http://169.254.169.254/secret")
    with pytest.raises(ControllerError, match="link-local") as caught:
        TrainerController(definition)
    assert "secret" not in str(caught.value)
    allowed = named("notify", when="True", url_from="TEST_HOOK", allow_link_local=True)
    TrainerController(allowed)
    monkeypatch.setenv("TEST_HOOK", "no address, but secret")
    with pytest.raises(ControllerError, match=r"'url_from'.*an address as in") as caught:
        TrainerController(definition)
    assert "secret" not in str(caught.value)
    monkeypatch.delenv("TEST_HOOK")
    with pytest.raises(ControllerError, match="environment variable that is set, found 'TEST_HOOK'"):
        TrainerController(definition)
    for both in ({}, {"url": "http://localhost/", "url_from": "TEST_HOOK"}):
        with pytest.raises(ControllerError, match="an address, or 'url_from' without it"):
            TrainerController(named("notify", when="True", **both))


def test_named_several_of_a_kind_in_one_config():
    """Each has its own best value; metrics that the config defines replace the standard ones."""
    metrics = {"scores": registry.controller_metrics.get("EvalMetrics")(min_delta=0.5)}
    rules = {
        "2-stop": named("stop_early", of="scores['f']", evaluations=1),
        "stop-": named("stop_early", of="-scores['f']", evaluations=1),
        "both": named("unfreeze_when", params=["a/*"], when="True"),
    }
    settings = trainer_controller(metrics=metrics, rules=rules)
    assert list(settings.definition.metrics) == ["scores", "rule_2_stop_best_so_far", "stop_best_so_far"]
    assert settings.definition.metrics["scores"].arguments == {"min_delta": 0.5}
    assert [spec.name for spec in settings.definition.controllers] == [
        "2-stop",
        "stop-",
        "both-freeze",
        "both-unfreeze",
    ]
    controller = settings.build()
    found = [controller.decide(event, step=i, **payload) for i, (event, payload) in enumerate(scores(0.5, 0.4))]
    assert [[one.controller for one in firings] for firings in found] == [["both-unfreeze"], ["2-stop"]]


def test_named_own_metrics_are_not_those_of_the_config():
    metrics = {"best_so_far": registry.controller_metrics.get("EvalMetrics")()}
    with pytest.raises(ConfigError, match=r"rules.stop\]: it has a metric 'best_so_far' of its own"):
        trainer_controller(metrics=metrics, rules={"stop": named("stop_early")})


@pytest.mark.parametrize(
    "kind, arguments, reason",
    [
        ("stop_early", {"mode": "lower"}, "mode"),
        ("stop_early", {"evaluations": 0}, "at least 1"),
        ("cut_on_plateau", {"evaluations": 0}, "at least 1"),
        ("roll_back_on_spike", {"times": 1.0}, "above 1"),
        ("notify", {"when": "True", "message": "{"}, "fields in braces"),
    ],
)
def test_named_bad_input(kind, arguments, reason):
    with pytest.raises(ValueError, match=reason):
        named(kind, **arguments)


@pytest.mark.parametrize("of", ["scors['f']", "scores[", 3, "__import__('os')", "scores['f'] or ().x"])
def test_named_expressions_that_are_none(of):
    with pytest.raises(ValueError, match=r"of|rule"):
        trainer_controller(rules={"stop": named("stop_early", of=of)})
