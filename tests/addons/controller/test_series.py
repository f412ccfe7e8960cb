"""Windows and bests over other metrics. Oracle: plain lists, with the same numbers."""

import copy
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.core.errors import ControllerError, StateError

from .kit import LOG, NORMS, SCORES, STEP, make, part, rule
from .test_rules_fuzz import QUIET


def controller(*metrics, text="True", events="on_train_end"):
    return make(rule("c", events, text, LOG), metrics=metrics)


def window(of="norms['total']", size=3, name="w", **more):
    return part(name, "Window", of=of, size=size, **more)


def best(of="norms['total']", mode="min", name="b", **more):
    return part(name, "Best", of=of, mode=mode, **more)


def steps(one, values, start=0):
    found = []
    for step, value in enumerate(values, start):
        one.on_event("on_step_end", step=step, grad_norm=value)
        found.append(copy.deepcopy(dict(one.values)))
    return found


def test_series_window_has_a_value_once_it_is_full():
    found = [one["w"] for one in steps(controller(NORMS, window()), [1.0, 2.0, 6.0, 5.0])]
    assert found[:2] == [None, None]
    expected = {"values": [2.0, 6.0, 5.0], "count": 3, "first": 2.0, "last": 5.0, "min": 2.0, "max": 6.0, "median": 5.0}
    assert found[3] | expected == found[3]
    assert found[3]["mean"] == 13 / 3 and found[3]["slope"] == 1.5
    assert found[3]["std"] == pytest.approx(statistics.pstdev([2.0, 6.0, 5.0]), rel=1e-15)  # one rounding
    found = [one["w"] for one in steps(controller(NORMS, window(at_least=1)), [1.0, 2.0])]
    assert found[0]["slope"] == 0.0 and found[1]["count"] == 2


def test_series_of_scores_are_by_evaluations():
    """A step without an evaluation adds nothing; with `by` it does."""
    both = window("scores['f'] * norms['total']", name="v")
    one = controller(SCORES, NORMS, window("scores['f']"), both, window("w['mean']", 1, "x"))
    for step in range(6):
        one.on_event("on_step_end", step=step, grad_norm=1.0)
        if step % 2:
            one.on_event("on_evaluate", step=step, scores={"f": step / 10})
    assert one.values["w"]["values"] == [0.1, 0.3, 0.5] and one.values["v"]["values"] == [0.1, 0.3, 0.3]
    assert one.values["x"]["values"] == [statistics.mean([0.1, 0.3, 0.5])]
    one = controller(NORMS, window(by="evaluations", size=1))
    one.on_event("on_step_end", step=0, grad_norm=3.0)
    assert one.values["w"] is None
    one.on_event("on_evaluate", step=0)
    assert one.values["w"]["last"] == 3.0


def test_series_computes_its_metrics_where_no_rule_is():
    """The step is computed on events with rules alone, unless a window needs it."""
    one = controller(STEP, window("state['step']", 2))
    for step in range(3):
        one.on_event("on_step_end", step=step)
    assert one.values["w"]["values"] == [1.0, 2.0]


def test_series_skips_what_is_unknown():
    """A label that is missing at one evaluation: no number, no error."""
    one = controller(SCORES, window("get(scores, ['per_type', 'ORG', 'f'])", 2), best("get(scores, 'f')", "max"))
    for step, f in enumerate((0.5, None, 0.25)):
        per_type = {} if f is None else {"ORG": {"f": f}}
        one.on_event("on_evaluate", step=step, scores={"per_type": per_type, "f": f})
    assert one.values["w"]["values"] == [0.5, 0.25]
    assert one.values["b"] == {"value": 0.5, "step": 0, "steps_since": 2, "evaluations_since": 2}


@given(
    st.lists(st.one_of(st.floats(-9, 9), st.just(math.nan)), max_size=30),
    st.sampled_from(["min", "max"]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
)
@QUIET
def test_series_best_is_as_a_plain_loop(values, mode, delta, is_relative):
    more = {"min_delta": delta, "min_delta_mode": "relative" if is_relative else "absolute"}
    one = controller(SCORES, best("scores['f']", mode, **more))
    known, at, since = None, None, 0
    for step, value in enumerate(values):
        one.on_event("on_evaluate", step=10 * step, scores={"f": value})
        since += 1
        if known is None and value == value:
            known, at, since = value, 10 * step, 0
        elif known is not None:
            margin = delta * abs(known) if is_relative else delta
            if (mode == "min" and value < known - margin) or (mode == "max" and value > known + margin):
                known, at, since = value, 10 * step, 0
        expected = {"value": known, "step": at, "steps_since": 10 * step - (at or 0), "evaluations_since": since}
        assert one.values["b"] == (None if known is None else expected)


@pytest.mark.parametrize("size, values", [(3, [1.0, 0.1, 3.0, math.nan]), (31, [i / 7 for i in range(40)])])
def test_series_are_resumed(size, values):
    metrics = (NORMS, window(size=size, at_least=1), best("w['mean']"))
    one, again = controller(*metrics), controller(*metrics)
    for step, value in enumerate(values):
        one.on_event("on_step_end", step=step, grad_norm=value)
    again.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert repr(dict(again.values)) == repr(dict(one.values))
    found, expected = (steps(each, values[:20], start=len(values)) for each in (again, one))
    assert repr(found) == repr(expected)


@pytest.mark.parametrize("saved", ["x", None, ["y"]])
def test_series_refuses_another_state(saved):
    one = controller(NORMS, window())
    steps(one, [1.0, 2.0, 3.0])
    state, before = one.state_dict(), copy.deepcopy(dict(one.values))
    state["metrics"]["w"]["state"]["values"] = saved
    with pytest.raises(StateError, match="metric Window"):
        one.load_state_dict(state)
    assert one.values == before


@pytest.mark.parametrize(
    "metrics, reason",
    [
        ((window(), NORMS), r"metrics\[0\].arguments: Can't use 'of' .*the name of a metric \(there is none\)"),
        ((NORMS, window("w['mean']")), "name of a metric"),
        ((NORMS, window("norms")), r"norms\['total'\]"),
        ((NORMS, window("norms['totl']")), "Did you mean 'total'"),
        ((NORMS, window("1.0")), "an expression with a metric"),
        ((NORMS, window("[norms['total']]")), "must give a number"),
        ((NORMS, window(3)), "expected a text"),
        ((NORMS, window(size=0)), "'size'"),
        ((NORMS, window(size=10_001)), "at most 10,000"),
        ((NORMS, window(at_least=4)), "at most 'size', which is 3"),
        ((NORMS, window(by="step")), "'steps' or 'evaluations'"),
        ((NORMS, best(mode="lower")), "'min' or 'max'"),
        ((NORMS, best(min_delta=-1.0)), "min_delta"),
    ],
)
def test_series_bad_input(metrics, reason):
    with pytest.raises(ControllerError, match=reason):
        controller(*metrics)


def test_series_that_is_no_number():
    one = controller(SCORES, window("scores['f']"))
    reason = r"metric 'w' on on_evaluate at step 3.*a number, but gave 'a'.*scores\['f'\]"
    with pytest.raises(ControllerError, match=reason):
        one.on_event("on_evaluate", step=3, scores={"f": "a"})


def test_series_keys_in_a_run():
    """A window over a component that there is not is refused before the training."""
    one = controller(NORMS, window("norms['components']['nr']"))
    with pytest.raises(ControllerError, match=r"metric 'w'.*Did you mean 'ner'"):
        one.check_keys(["default"], ["ner"])


def test_series_a_window_that_fills_is_not_warned_of(caplog):
    one = controller(NORMS, window(), text="w['mean'] > 0", events="on_step_end")
    assert [bool(one.on_event("on_step_end", step=i, grad_norm=1.0)) for i in range(3)] == [False, False, True]
    assert not caplog.records
    for told, missing in (({}, "w"), ({"grad_norm": 1.0}, "scores")):
        one = controller(NORMS, SCORES, window(size=1), text="w['mean'] > scores['f']", events="on_step_end")
        one.on_event("on_step_end", step=0, **told)
        assert f"The metric '{missing}' is not available" in caplog.text
