"""The recorded runs of the framework whose definitions ours are: the same firings, and errors for the same mistakes."""

import copy
import json

import pytest

from thinc_torchopt.controller import TrainerController
from thinc_torchopt.errors import ControllerError

from ..conftest import SHARED

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
}
# Beyond the recorded cases: accepted or left open there, refused here.
REFUSED = {
    "x = True": "a statement",
    "True;False": "a statement",
    "rand() < 0.5": "another result when a run is resumed, or in another process",
    "len(list(w['a'])) > 1": "a comprehension does the same",
    "w.keys() == 1": "methods are attributes",
    "w is 1": "depends on how Python keeps numbers",
}


def cases():
    return json.loads(CASES.read_text())["cases"] if CASES.is_file() else []


def payload(case, event):
    known = {
        "log_history": case["logs"][: event["n_logs"]],
        "epoch": event["epoch"],
        "global_step": event["global_step"],
    }
    return known | {"metrics": event.get("kwargs", {}).get("metrics")}


@pytest.mark.skipif(not CASES.is_file(), reason="../shared/oracles is absent")
def test_oracle_is_there():
    assert len(cases()) >= 39 and {case["id"] for case in cases()} >= EARLIER.keys()


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in cases()])
def test_oracle_same_firings_and_errors(case):
    definition = copy.deepcopy(case["definition"])
    fails = case["init_error"] is not None or case["id"] in EARLIER
    if fails:
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


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in cases() if "trigger_log" in str(case)])
def test_oracle_same_log(case, caplog):
    """Each action is logged, at the level that the definition asks for; ours adds the step and the values."""
    if case["init_error"] is not None or case["id"] in EARLIER:
        pytest.skip("fails early")
    controller = TrainerController(case["definition"])
    with caplog.at_level("DEBUG", "thinc_torchopt.controller"):
        for event in case["events"]:
            caplog.clear()
            controller.on_event(event["event"], **payload(case, event))
            logged = [
                (record.levelname, record.getMessage()) for record in caplog.records if "Taking" in record.getMessage()
            ]
            expected = event.get("trigger_log", [])
            assert len(logged) == len(expected)
            for (level, message), (expected_level, expected_message) in zip(logged, expected):
                assert level == expected_level and message.startswith(expected_message)


@pytest.mark.parametrize("rule", REFUSED)
def test_oracle_what_we_refuse_on_purpose(rule):
    controllers = [{"name": "c", "triggers": ["on_log"], "rule": rule, "operations": []}]
    with pytest.raises(ControllerError, match=r"controllers\[0\]\.rule"):
        TrainerController({"controller_metrics": [{"name": "w", "class": "Loss"}], "controllers": controllers})
