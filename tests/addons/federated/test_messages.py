"""What is checked of messages before anything is done with them."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.modular.scaffold import ScaffoldAuxVar
from thinc_torchopt.core.errors import MessageError

from . import needs_flwr  # noqa: F401  isort:skip

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from thinc_torchopt.addons.federated.messages import (
    Introduction,
    Report,
    Task,
    answer,
    from_arrays,
    question,
    read_answer,
    read_question,
    read_report,
    read_task,
    report_records,
    task_records,
    to_arrays,
)
from thinc_torchopt.addons.federated.pipeline import RoundPlan

WEIGHTS = {
    "ner/W": torch.arange(6.0).reshape(2, 3),
    "ner/b": torch.zeros(3, dtype=torch.float64),
    "trf/half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "trf/empty": torch.zeros(0, 4),
    "trf/number": torch.tensor(3.0),
}
DELTA = {name: torch.ones_like(value, dtype=torch.float32) for name, value in WEIGHTS.items()}


def report(**changes):
    values = {
        "name": "north",
        "round": 2,
        "score": 0.5,
        "scores": {"ents_f": 0.5},
        "dev_examples": 4,
        "examples": 10,
        "steps": 3,
        "words": 99,
        "losses": {"ner": 1.5},
        "aux_vars": {"scaffold": ScaffoldAuxVar(delta=DELTA, clients=("x",))},
        "weights": WEIGHTS,
    }
    return Report(**{**values, **changes})


def read(content, exchanged=("scaffold",)):
    return read_report(content, "north", 2, WEIGHTS, list(exchanged))


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) and value.dtype == other[name].dtype for name, value in one.items()
    )


def test_messages_say_what_was_said():
    content = report_records(report())
    found = read(content)
    assert found == report(weights={}, aux_vars=found.aux_vars, norms=found.norms)
    assert equal(found.aux_vars["scaffold"].delta, DELTA) and found.aux_vars["scaffold"].clients == ("x",)
    assert equal(from_arrays(content, WEIGHTS), WEIGHTS)
    aux = {"scaffold": ScaffoldAuxVar(state=0.0)}
    task = Task("a", RoundPlan(2, 5, 0), {"labels": {"ner": ["A"]}}, 1, aux, WEIGHTS)
    again = read_task(task_records(task, to_arrays(WEIGHTS)), WEIGHTS)
    assert (again.run, again.plan, again.agreement, again.taken, again.aux_vars) == (
        "a",
        task.plan,
        task.agreement,
        1,
        aux,
    )
    assert equal(again.weights, WEIGHTS)
    introduction = Introduction("north", ["a", "b"], 10, 4)
    assert read_answer(answer(introduction)) == introduction
    assert read_question(question({"vectors": "none"})) == {"vectors": "none"}


def test_messages_of_an_evaluation_have_no_weights():
    content = report_records(Report("north", 2, 0.5, {"ents_f": 0.5}, 4))
    assert read_report(content, "north", 2, None).dev_examples == 4
    assert "arrays" not in content and "aux-values" not in content


@pytest.mark.parametrize("name", ["n" * 101, "two\nlines", "\x1b[31mred"])
def test_messages_with_names_that_spoil_logs_are_refused(name):
    with pytest.raises(MessageError, match="expected a name of at most 100 printable characters"):
        read_answer(answer(Introduction(name, [])))


def with_arrays(name, value):
    """Other weights under a name. None: none."""

    def change(content):
        arrays = content["arrays"]
        if value is None:
            del arrays[name]
        else:
            arrays[name] = value if isinstance(value, Array) else Array(value)

    return change


def with_value(record, key, value):
    def change(content):
        content[record][key] = value

    return change


def without_value(record, key):
    def change(content):
        del content[record][key]

    return change


def without(record):
    def change(content):
        del content[record]

    return change


DAMAGE = {
    "a name is missing": (with_arrays("ner/W", None), "1 missing \\(ner/W\\) and 0 unexpected"),
    "a name is new": (with_arrays("ner/V", torch.ones(1)), "0 missing \\(none\\) and 1 unexpected \\(ner/V\\)"),
    "another shape": (with_arrays("ner/W", torch.ones(3, 2)), "expected torch.float32 of shape \\(2, 3\\)"),
    "another dtype": (with_arrays("ner/W", torch.ones(2, 3).double()), "found torch.float64"),
    "NaN": (with_arrays("ner/W", torch.full((2, 3), math.nan)), "'ner/W': expected finite numbers"),
    "infinite": (with_arrays("ner/b", torch.tensor([0.0, -math.inf, 0.0]).double()), "expected finite numbers"),
    "too large for half precision": (with_arrays("trf/half", torch.tensor([1e39, 1.0]).double()), "float32"),
    "no array": (with_arrays("ner/W", Array("float32", (2, 3), "numpy.ndarray", b"nothing")), "can't be read by NumPy"),
    "a pickle": (with_arrays("ner/W", Array("O", (1,), "pickle", b"\x80\x04N.")), "can't be read by NumPy"),
    "no arrays": (without("arrays"), "expected an ArrayRecord"),
    "no head": (without("head"), "expected the record 'head'"),
    "no metrics": (without("metrics"), "expected the record 'metrics'"),
    "no examples": (with_value("metrics", "num-examples", 0), "at least one example and one step, found 0 and 3"),
    "no steps": (with_value("metrics", "steps", 0), "found 10 and 0"),
    "fewer than no examples": (with_value("metrics", "num-examples", -5), "expected a count as 'num-examples'"),
    "half an example": (with_value("metrics", "num-examples", 0.5), "expected a count"),
    "more than anybody has": (with_value("metrics", "num-examples", 10**15), "expected a count"),
    "a list of counts": (with_value("metrics", "num-examples", [1, 2]), "expected a count"),
    "a score of NaN": (with_value("metrics", "score", math.nan), "expected a finite number as 'score'"),
    "a loss of NaN": (with_value("losses", "ner", math.inf), "expected a finite number as 'ner'"),
    "scores that are lists": (with_value("scores", "ents_f", [0.5]), "expected a finite number as 'ents_f'"),
    "a score that is none": (with_value("metrics", "score", 1e308), "of 'north': expected 'score' from -1,000,000"),
    "scores that are none": (with_value("scores", "ents_f", -1e7), "of 'north': expected 'ents_f' from -1,000,000"),
    "a weight that is none": (with_arrays("ner/W", torch.full((2, 3), 6e6)), "of 'north': .* largest weight, 5, in"),
    "the round before": (with_value("head", "round", 1), "of 'north': expected that of round 2, found one of round 1"),
    "no round": (without_value("head", "round"), "expected a count as 'round', found None"),
    "another name": (with_value("head", "name", "south"), "expected that name in it, found 'south'"),
    "a name that is none": (with_value("head", "name", 3), "expected a text as 'name'"),
    "another protocol": (with_value("head", "protocol", 99), "expected protocol 4, found 99"),
    "no auxiliary variables": (
        without("aux-values"),
        "expected the auxiliary variables \\['scaffold'\\], found \\[\\]",
    ),
    "half of the auxiliary variables": (without("aux-arrays"), "expected the record 'aux-arrays'"),
    "no JSON": (with_value("aux-values", "values", "{"), "expected JSON as 'values'"),
    "other JSON": (with_value("aux-values", "values", "[1]"), "expected a dict as 'values'"),
    "unknown auxiliary variables": (
        with_value("aux-values", "values", json.dumps({"scaffold": {}, "other": {}})),
        "Can't use the auxiliary variables",
    ),
    "damaged auxiliary variables": (
        with_value("aux-values", "values", json.dumps({"scaffold": {"field": "x"}})),
        "Can't use the auxiliary variables",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_messages_that_are_damaged_are_refused(damage):
    change, message = DAMAGE[damage]
    content = report_records(report())
    change(content)
    with pytest.raises(MessageError, match=message):
        read(content)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scaffold:ner/W", torch.full((2, 3), math.nan), "expected finite numbers"),
        ("scaffold:ner/W", torch.full((2, 3), 1e30), "the report of 'north': expected numbers .* in 'scaffold'"),
        ("scaffold:ner/W", torch.ones(3, 2), "its shape is unknown"),
        ("other:ner/W", torch.ones(2, 3), "its name or its shape"),
    ],
)
def test_messages_with_damaged_auxiliary_variables_are_refused(key, value, message):
    content = report_records(report())
    content["aux-arrays"][key] = Array(value)
    with pytest.raises(MessageError, match=message):
        read(content)


VALUES = st.one_of(
    st.integers(-3, 3), st.floats(allow_nan=True), st.text(max_size=3), st.binary(max_size=3), st.booleans()
)


@given(st.data())
def test_messages_never_raise_anything_else(data):
    """Whatever takes the place of a record, or of a value in it: it is a MessageError, or it does no harm."""
    content = report_records(report())
    for _ in range(data.draw(st.integers(1, 3))):
        record = data.draw(st.sampled_from(sorted(content)), label="record")
        match data.draw(st.sampled_from(["drop", "replace", "value"])):
            case "drop":
                del content[record]
            case "replace":
                kinds = [ConfigRecord({"x": 1}), MetricRecord({"x": 1.0}), ArrayRecord({"x": Array(torch.ones(2))})]
                content[record] = data.draw(st.sampled_from(kinds))
            case "value" if isinstance(content[record], (ConfigRecord, MetricRecord)) and content[record]:
                key = data.draw(st.sampled_from(sorted(content[record])), label="key")
                value = data.draw(VALUES, label="value")
                if isinstance(content[record], ConfigRecord) or type(value) in (int, float):
                    content[record][key] = value
        if not content:
            break
    try:
        found = read(content)
    except MessageError:
        return
    assert math.isfinite(found.score) and found.examples > 0 and set(found.aux_vars) == {"scaffold"}


@given(st.data())
def test_messages_of_the_server_never_raise_anything_else(data):
    aux = {"scaffold": ScaffoldAuxVar(state=0.0)}
    content = task_records(Task("a", RoundPlan(2, 5, 0), {"labels": {}}, 1, aux), to_arrays(WEIGHTS))
    key = data.draw(st.sampled_from(sorted(content["head"])))
    content["head"][key] = data.draw(VALUES)
    try:
        found = read_task(RecordDict(dict(content)), WEIGHTS)
    except MessageError:
        return
    assert min(found.plan.round, found.plan.steps, found.plan.epochs, found.taken) >= 0
