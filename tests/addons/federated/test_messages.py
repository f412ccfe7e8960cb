"""What is checked of messages before anything is done with them."""

import json
import math
from contextlib import nullcontext, suppress
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.modular.scaffold import ScaffoldAuxVar
from thinc_torchopt.core.errors import MessageError

from . import needs_flwr  # noqa: F401  isort:skip

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from thinc_torchopt.addons.federated.messages import (
    Introduction,
    Question,
    Report,
    Task,
    from_arrays,
    pack,
    to_arrays,
    unpack,
    unpack_aux,
    unpack_report,
    unpack_scores,
)
from thinc_torchopt.addons.federated.pipeline import RoundPlan

from .grid import change_form

WEIGHTS = {
    "ner/W": torch.arange(6.0).reshape(2, 3),
    "ner/b": torch.zeros(3, dtype=torch.float64),
    "trf/half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "trf/empty": torch.zeros(0, 4),
    "trf/number": torch.tensor(3.0),
}
DELTA = {name: torch.ones_like(value, dtype=torch.float32) for name, value in WEIGHTS.items()}


def report(**changes):
    values = {"name": "north", "round": 2, "score": 0.5, "scores": {"ents_f": 0.5}, "dev_examples": 4}
    values |= {"examples": 10, "steps": 3, "words": 99, "losses": {"ner": 1.5}}
    return Report(**{**values, **changes})


def sent():
    return pack(report(), to_arrays(WEIGHTS), {"scaffold": ScaffoldAuxVar(delta=DELTA, clients=("x",))})


def read(content, exchanged=("scaffold",)):
    return unpack_report(content, "north", 2, WEIGHTS, list(exchanged))


def equal(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) and value.dtype == other[name].dtype for name, value in one.items()
    )


def test_messages_say_what_was_said():
    found, model, aux_vars = read(sent())
    assert found == report()
    assert equal(aux_vars["scaffold"].delta, DELTA) and aux_vars["scaffold"].clients == ("x",)
    assert equal(model, WEIGHTS)
    aux = {"scaffold": ScaffoldAuxVar(state=0.0)}
    task = Task("a", RoundPlan(2, 5, 0), {"labels": {"ner": ["A"]}}, 1)
    content = pack(task, to_arrays(WEIGHTS), aux)
    assert unpack(Task, content, "a task") == task and unpack_aux(content, WEIGHTS) == aux
    assert equal(from_arrays(content, WEIGHTS), WEIGHTS)
    introduction, question = Introduction("north", ["a", "b"]), Question({"vectors": "none"})
    assert unpack(Introduction, pack(introduction), "an introduction") == introduction
    assert unpack(Question, pack(question), "a question") == question


def test_messages_of_an_evaluation_have_no_weights():
    content = pack(Report("north", 2, 0.5, {"ents_f": 0.5}, 4))
    assert unpack_scores(content, "north", 2) == Report("north", 2, 0.5, {"ents_f": 0.5}, 4, 0, 0, 0, 0, {})
    assert list(content) == ["head"]


def test_messages_at_their_limits_are_read():
    for name in ("n", "n" * 100):
        assert unpack(Introduction, pack(Introduction(name, [])), "an introduction").name == name
    found = report(score=-1e6, scores={"ents_f": 1e6}, words=10**10)
    assert unpack_scores(pack(found), "north", 2) == found


@pytest.mark.parametrize("name", ["", "n" * 101, "two\nlines", "\x1b[31mred"])
def test_messages_with_names_that_spoil_logs_are_refused(name):
    with pytest.raises(MessageError, match="'name' to be a name of 1 to 100 printable characters"):
        unpack(Introduction, pack(Introduction(name, [])), "an introduction")


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


def with_aux(values):
    return with_value("head", "aux", json.dumps(values))


def with_form(**values):
    return lambda content: change_form(content, **values)


def with_record(name, record):
    return lambda content: content.update({name: record})


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
    "infinite in half precision": (with_arrays("trf/half", torch.tensor([3.4e38, 1.0])), "expected finite numbers"),
    "no head": (without("head"), "expected protocol 5, found None"),
    "another record as head": (with_record("head", MetricRecord({"protocol": 5})), "expected protocol 5, found None"),
    "another protocol": (with_value("head", "protocol", 99), "expected protocol 5, found 99"),
    "no form": (with_value("head", "form", 3), "expected JSON as 'form'"),
    "no JSON": (with_value("head", "form", "{"), "the report of 'north': expected JSON as 'form'"),
    "endless JSON": (with_value("head", "form", "[" * 100_000), "expected JSON as 'form'"),
    "other JSON": (with_value("head", "form", "[1]"), "the report of 'north': expected a dict, found list"),
    "a part that is new": (with_form(other=1), "the report of 'north': expected a dict with .*, found one with other"),
    "no examples": (with_form(examples=0), "at least one example and one step, found 0 and 3"),
    "no steps": (with_form(steps=0), "found 10 and 0"),
    "fewer than no examples": (with_form(examples=-5), "'examples' to be a count up to 10,000,000,000, found -5"),
    "half an example": (with_form(examples=0.5), "'examples' to be a count"),
    "more than anybody has": (with_form(examples=10**15), "'examples' to be a count"),
    "more dev examples than anybody has": (with_form(dev_examples=10**15), "'dev_examples' to be a count"),
    "a list of counts": (with_form(examples=[1, 2]), "'examples' to be a count"),
    "a score of NaN": (with_form(score=math.nan), "'score' to be from -1,000,000 to 1,000,000"),
    "a loss of NaN": (with_form(losses={"ner": math.inf}), "'losses/ner' to be a number that is finite"),
    "scores that are lists": (with_form(scores={"ents_f": [0.5]}), "'scores/ents_f' to be from"),
    "a score that is none": (with_form(score=1e308), "of 'north': expected 'score' to be from -1,000,000"),
    "a score just above": (with_form(score=1.000001e6), "of 'north': expected 'score' to be from -1,000,000"),
    "scores that are none": (with_form(scores={"ents_f": -1e7}), "of 'north': expected 'scores/ents_f' to be from"),
    "a weight that is none": (with_arrays("ner/W", torch.full((2, 3), 6e6)), "of 'north': .* largest weight, 5, in"),
    "the round before": (with_form(round=1), "of 'north': expected that name and round 2 in it, found .* round 1"),
    "no round": (with_form(round=None), "'round' to be a whole number"),
    "another name": (with_form(name="south"), "expected that name and round 2 in it, found 'south'"),
    "a name that is none": (with_form(name=3), "'name' to be a text"),
    "no auxiliary variables": (with_value("head", "aux", "{}"), r"variables \['scaffold'\], found \[\]"),
    "half of the auxiliary variables": (without("aux-arrays"), "expected an ArrayRecord as 'aux-arrays'"),
    "no JSON of auxiliary variables": (with_value("head", "aux", "{"), "expected JSON as 'aux'"),
    "other JSON of auxiliary variables": (with_value("head", "aux", "[1]"), "auxiliary variables: expected a dict"),
    "unknown auxiliary variables": (with_aux({"scaffold": {}, "other": {}}), "Can't use the auxiliary variables"),
    "damaged auxiliary variables": (with_aux({"scaffold": {"field": "x"}}), "Can't use the auxiliary variables"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_messages_that_are_damaged_are_refused(damage):
    change, message = DAMAGE[damage]
    content = sent()
    change(content)
    with pytest.raises(MessageError, match=message):
        read(content)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scaffold:ner/W", torch.full((2, 3), math.nan), "expected finite numbers"),
        ("scaffold:ner/W", torch.full((2, 3), 1e30), "the report of 'north': expected numbers .* in 'scaffold:ner/W'"),
        ("scaffold:ner/W", torch.ones(3, 2), "its shape is unknown"),
        ("other:ner/W", torch.ones(2, 3), "its name or its shape"),
    ],
)
def test_messages_with_damaged_auxiliary_variables_are_refused(key, value, message):
    content = sent()
    content["aux-arrays"][key] = Array(value)
    with pytest.raises(MessageError, match=message):
        read(content)


VALUES = st.one_of(
    st.integers(-3, 3), st.floats(allow_nan=True), st.text(max_size=3), st.binary(max_size=3), st.booleans()
)


PARTS = st.one_of(
    st.none(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.lists(st.integers()), st.just({"round": -1})
)


@given(st.data())
def test_messages_never_raise_anything_else(data):
    """Whatever takes the place of a record, or of a value in it: it is a MessageError, or it does no harm."""
    content = sent()
    for _ in range(data.draw(st.integers(1, 3))):
        record = data.draw(st.sampled_from(sorted(content)), label="record")
        match data.draw(st.sampled_from(["drop", "replace", "value", "part"])):
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
            case "part" if isinstance(content.get("head"), ConfigRecord) and "form" in content["head"]:
                with suppress(ValueError, TypeError):
                    key = data.draw(st.sampled_from([field.name for field in fields(Report)]), label="part")
                    change_form(content, **{key: data.draw(PARTS, label="value")})
        if not content:
            break
    try:
        found, model, aux_vars = read(content)
    except MessageError:
        return
    assert math.isfinite(found.score) and found.examples > 0 and set(aux_vars) == {"scaffold"}
    assert all(bool(value.isfinite().all()) for value in model.values())


@given(st.data())
def test_messages_of_the_server_never_raise_anything_else(data):
    task = Task("a", RoundPlan(2, 5, 0), {"labels": {}}, 1)
    content = pack(task, to_arrays(WEIGHTS), {"scaffold": ScaffoldAuxVar(state=0.0)})
    key = data.draw(st.sampled_from(["run", "plan", "agreement", "taken"]))
    change_form(content, **{key: data.draw(PARTS)})
    try:
        found = unpack(Task, content, "a task")
    except MessageError:
        return
    assert min(found.plan.round, found.plan.steps, found.plan.epochs, found.taken) >= 0


def test_messages_with_numbers_that_are_large_for_the_server():
    """A weight may be a million times the server's largest one."""
    weights = {"a": torch.tensor([0.5, -3.0]), "b": torch.zeros(0, 2), "c": torch.tensor(2.0, dtype=torch.bfloat16)}
    for start, largest in ((weights, 3e6), ({"a": torch.zeros(2)}, 1e6)):
        for factor, is_refused in ((1.0, False), (1.01, True)):
            model = start | {"a": torch.tensor([0.0, -largest * factor])}
            content = pack(report(), to_arrays(model))
            with pytest.raises(MessageError, match="at most 1,000,000 times") if is_refused else nullcontext():
                assert equal(unpack_report(content, "north", 2, start, [])[1], model)
