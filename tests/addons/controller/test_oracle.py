"""The recorded runs of the framework whose definitions ours are: the same firings, and errors for the same mistakes."""

import copy
import json

import pytest

from thinc_torchopt.addons.controller.controller import TrainerController
from thinc_torchopt.core.errors import ControllerError

from ...conftest import SHARED
from .kit import LOG, definition, part, rule

CASES = SHARED / "oracles" / "controller_cases.json"

# Where we differ on purpose: what fails there in mid-training, ours refuses when the definition is read.
EARLIER = {
    "rule-error:int-result": "an arithmetic expression can be seen to give no bool",
    "rule-error:undefined-name": "names are checked against the metrics of the definition",
    "rule-error:undefined-function": "functions are known",
    "rule-error:number-too-high": "a rule without metrics always gives the same: it is evaluated once",
    "rule-error:iterable-too-long": "the same",
    "rule-error:int-of-str": "the same",
    "rule-error:attribute-missing": "there are no attributes in rules",
    "rule-error:lambda": "nor lambdas",
    "rule-error:dict-vs-float": "what Loss holds is known: loss['loss'] is a number",
    "rule-error:missing-key": "the same",
    "rule-error:dict-result": "the same",
    'patience:{"patience_threshold": -1}': "it does the same as 0",
}


def cases():
    return json.loads(CASES.read_text())["cases"] if CASES.is_file() else []


def fails_early(case):
    return case["init_error"] is not None or case["id"] in EARLIER


def payload(case, event):
    known = {"log_history": case["logs"][: event["n_logs"]], "scores": event.get("kwargs", {}).get("metrics")}
    return known | {"epoch": event["epoch"], "global_step": event["global_step"]}


@pytest.mark.skipif(not CASES.is_file(), reason="../shared/oracles is absent")
def test_oracle_is_there():
    assert len(cases()) >= 39 and {case["id"] for case in cases()} >= EARLIER.keys()


@pytest.mark.skipif(not CASES.is_file(), reason="../shared/oracles is absent")
def test_oracle_patience_of_minus_one_is_no_patience():
    """Nobody loses what they had: who wrote -1 is told to write 0."""
    events = {case["id"]: case["events"] for case in cases()}
    assert events['patience:{"patience_threshold": -1}'] == events['patience:{"patience_threshold": 0}']


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in cases()])
def test_oracle_same_firings_and_errors(case):
    definition = copy.deepcopy(case["definition"])
    if fails_early(case):
        with pytest.raises(ControllerError, match=r"(controllers|controller_metrics|operations)\[0\]"):
            TrainerController(definition)
        return
    controller = TrainerController(definition)
    assert definition == case["definition"]
    controller.on_event("on_init_end", **payload(case, case["init"]))
    for event in case["events"]:
        if "error" in event:
            with pytest.raises(ControllerError, match=r"controller 'c'.*step 1"):
                controller.on_event(event["event"], **payload(case, event))
            continue
        firings = controller.on_event(event["event"], **payload(case, event))
        assert [firing.action for firing in firings] == event["fired"], event
        assert all(firing.step == event["global_step"] and firing.event == event["event"] for firing in firings)


# ---------------------------------------------------------------------- the differences that docs/controller.md lists


def define(metric, text, event="on_log", **more):
    return definition(rule("c", event, text, LOG, **more), metrics=[metric])


LOSS, STATE = part("m", "Loss"), part("m", "TrainingState")


def history(size):
    return part("m", "HistoryBasedMetric", window_size=size)


@pytest.mark.parametrize(
    "definition, reason",
    [
        (define({**history(1), "arguments": {"window-size": 1}}, "True"), "window-size"),
        (definition(metrics=[], operations=[part("h", "HFControlsWithPatience")]), "registered"),
        (define(LOSS, "m < 1.0"), "as in m\\['loss'\\]"),
        (define(history(0), "True"), "window_size"),
        (define(history(-2), "True"), "window_size"),
        (define(STATE, "m['log_history'] == 1"), "a key of m"),
    ],
)
def test_oracle_forms_that_are_refused(definition, reason):
    with pytest.raises(ControllerError, match=reason):
        TrainerController(definition)


def test_oracle_window_without_a_limit_and_before_the_first_loss():
    controller = TrainerController(define(history(-1), "m['training_loss']['loss'][:2] == [1.0, 1.0]", "on_epoch_end"))
    fired = []
    for step in range(4):
        fired += controller.on_event("on_epoch_end", step=step)
        controller.on_event("on_log", step=step, log_history=[{"loss": 1.0, "epoch": 0.0, "step": step}])
        # A score may come later.
        controller.on_event("on_evaluate", step=step, scores={"a": 1.0} | ({"b": 2.0} if step else {}))
    assert [firing.step for firing in fired] == [2, 3]
    assert fired[-1].values["m"]["training_loss"]["loss"] == [1.0] * 3
    assert controller.values["m"]["metrics"]["b"] == [2.0] * 3


@pytest.mark.parametrize("text", ["m == None", "m is None", "m != None"])
def test_oracle_metric_without_a_value_is_skipped(text, caplog):
    """Also by patience; and warned of once."""
    controller = TrainerController(define(LOSS, text, "on_epoch_end"))
    for step in range(3):
        assert not controller.on_event("on_epoch_end", step=step)
    assert len(caplog.records) == 1
    controller.on_event("on_log", log_history=[{"loss": 1.0}])
    controller.on_event("on_log", log_history=[])  # none that is new
    assert bool(controller.on_event("on_epoch_end")) == (text == "m != None")


def test_oracle_firings_are_logged_as_debug(caplog):
    controller = TrainerController(define(LOSS, "m['loss'] < 1"))
    with caplog.at_level("DEBUG", "spacy.torchopt"):
        controller.on_event("on_log", log_history=[{"loss": 0.5}])
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
