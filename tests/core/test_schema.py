"""Whatever is of a form comes back equal; whatever is not is a StateError, and nothing else."""

import json
import math
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.core import schema
from thinc_torchopt.core.checks import MAX_STEPS
from thinc_torchopt.core.errors import StateError, StateKeyError
from thinc_torchopt.core.schema import AnyNumber, Count, NotNegative, check_names, check_version, read, write


@dataclass
class Average:
    norm: NotNegative
    updates: Count


@dataclass
class Whole:
    step: Count
    rate: float
    score: AnyNumber | None
    mode: Literal["on", "off", 3, None]
    is_over: bool
    size: int
    name: str | None
    results: list[tuple[AnyNumber, Count]]
    sizes: tuple[int, ...]
    averages: dict[str, Average]
    best: Average | None
    tensor: torch.Tensor
    other: Any
    mixed: int | str | None


WHAT = "the state of a test"
COUNTS = st.integers(0, MAX_STEPS)
FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
NUMBERS = st.floats() | st.integers()
AVERAGES = st.builds(Average, FINITE.map(abs), COUNTS)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(torch.zeros(2)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=5,
)
WHOLES = st.builds(
    Whole,
    COUNTS,
    FINITE,
    st.none() | NUMBERS,
    st.sampled_from(["on", "off", 3, None]),
    st.booleans(),
    st.integers(),
    st.none() | st.text(),
    st.lists(st.tuples(NUMBERS, COUNTS)),
    st.lists(st.integers()).map(tuple),
    st.dictionaries(st.text(), AVERAGES),
    st.none() | AVERAGES,
    st.just(torch.ones(3)),
    st.none() | st.text(),
    st.none() | st.integers() | st.text(),
)


@given(WHOLES)
def test_what_is_of_the_form_comes_back_equal(whole):
    saved = write(whole)

    # By their texts: NaN is not equal to itself, and the values of a tensor are.
    assert repr(read(Whole, saved, WHAT)) == repr(whole)
    assert read(Whole, saved, WHAT).tensor is whole.tensor


@given(ANYTHING)
def test_anything_else_is_a_state_error(found):
    with pytest.raises(StateError):
        read(Whole, found, WHAT)


@given(WHOLES, st.data())
def test_a_state_with_one_wrong_part_is_a_state_error(whole, data):
    saved = write(whole)
    name = data.draw(st.sampled_from([name for name in saved if name != "other"]))
    wrong = data.draw(ANYTHING)
    saved[name] = wrong
    try:
        found = read(Whole, saved, WHAT)
    except StateError as error:
        assert WHAT in str(error) and repr(name)[1:-1] in str(error)
    else:  # it happens to be right, with lists for tuples
        assert repr(write(found)[name]) == repr(listed(wrong))


def listed(value):
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    return [listed(item) for item in value] if isinstance(value, (list, tuple)) else value


WRONG = {
    "step": [-1, MAX_STEPS + 1, 1.0, True, None, "3", [3], 10**5000],
    "rate": [math.nan, math.inf, -math.inf, True, None, "0.1", 10**400, {}],
    "score": [True, "0.5", [0.5], 10**400],
    "mode": ["On", 3.0, True, 0, []],
    "is_over": [0, 1, None, "yes"],
    "size": [1.0, True, "1", None],
    "name": [1, b"ner", ["ner"]],
    "results": [None, {}, [1], [[0.5]], [[0.5, 1, 2]], [[0.5, -1]], [["0.5", 1]], "ab"],
    "sizes": [None, [1.5], "12", {1, 2}],
    "averages": [None, [], {3: {"norm": 1.0, "updates": 1}}, {"a": None}, {"a": {"norm": 1.0}}],
    "best": [[], {}, {"norm": -1.0, "updates": 1}, {"norm": 1.0, "updates": 1, "more": 2}],
    "tensor": [None, [1.0], True],
    "mixed": [1.5, True, []],
}


def whole():
    return Whole(
        3, 0.1, None, "on", True, 7, None, [(0.5, 2)], (1, 2), {"a": Average(1.0, 2)}, None, torch.ones(1), 0, 1
    )


@pytest.mark.parametrize("name", WRONG)
def test_each_kind_of_wrong_value_is_refused_by_its_path(name):
    for wrong in WRONG[name]:
        with pytest.raises(StateError, match=rf"^Can't load the state of a test: expected '{name}(/\w+)*' to be "):
            read(Whole, {**write(whole()), name: wrong}, WHAT)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Count, [0, MAX_STEPS], [-1, MAX_STEPS + 1]),
        (schema.Positive, [1, MAX_STEPS], [0, MAX_STEPS + 1]),
        (schema.Whole, [0, MAX_STEPS + 1], [-1]),
        (NotNegative, [0, 0.5], [-0.5, inf]),
        (schema.FirstStep, [0, 0.5, inf], [-0.5, -inf]),
    ],
)
def test_numbers_have_limits(kind, right, wrong):
    assert read(list[kind], right, WHAT) == right
    for one in wrong:
        with pytest.raises(StateError):
            read(list[kind], [one], WHAT)


def test_errors_name_the_part_and_what_is_expected():
    saved = write(whole())

    def error_of(**changed):
        with pytest.raises(StateError) as error:
            read(Whole, {**saved, **changed}, WHAT)
        return str(error.value)

    assert "'averages/a/updates' to be a whole number from 0 to 100,000,000, found -1." in error_of(
        averages={"a": {"norm": 1, "updates": -1}}
    )
    assert "'results/1/0' to be a number, found 'x'." in error_of(results=[(1.0, 1), ("x", 1)])
    assert "'results/0' to be a list of 2, found one of 3." in error_of(results=[[1.0, 1, 1]])
    assert "'mixed' to be a whole number or a text, found 1.5." in error_of(mixed=1.5)
    assert "'mode' to be 'on' or 'off' or 3 or None, found list." in error_of(mode=[])
    assert "'tensor' to be a Tensor, found None." in error_of(tensor=None)


def test_parts_that_are_missing_or_unexpected_are_key_errors():
    with pytest.raises(StateKeyError, match="expected a dict with norm, updates, found one without updates and with x"):
        read(Average, {"norm": 1.0, "x": 2}, WHAT)
    with pytest.raises(StateKeyError, match="expected 'best' to be a dict with nothing, found one with a, b"):
        check_names({"a": 1, "b": 2}, (), WHAT, "best")
    for n, told in ((10, "f, g, h, i, j"), (11, "f, g, h, i, j, [.]{3}")):
        with pytest.raises(StateKeyError, match=rf"found one with a, b, c, d, e, {told}[.] It is"):
            check_names(dict.fromkeys("abcdefghijk"[:n]), (), WHAT, "best")


def test_a_state_that_went_through_json_is_read_as_before():
    saved = {**write(whole()), "tensor": None}
    again = json.loads(json.dumps(saved))

    assert read(Whole, {**again, "tensor": torch.ones(1)}, WHAT) == whole()


def test_write_takes_the_attributes_of_any_object_and_copies_no_tensor():
    class Owner:
        norm, updates, setting = 2.0, 3, "not saved"

    assert write(Owner(), Average) == {"norm": 2.0, "updates": 3}
    state = whole()
    saved = write(state)
    assert saved["tensor"] is state.tensor
    assert saved["results"] is not state.results and saved["averages"]["a"] == {"norm": 1.0, "updates": 2}


def test_write_takes_values_of_any_kind_as_they_are():
    average = Average(1.0, 2)
    assert write(Whole(**{**vars(whole()), "other": average}))["other"] is average


@pytest.mark.parametrize("saved", [None, 3, {3: 1}])
def test_what_is_no_dict_has_no_version(saved):
    with pytest.raises(StateError, match="expected a dict"):
        check_version(saved, 2, WHAT)


@pytest.mark.parametrize("saved", [{"version": 0}, {"version": True}, {"version": "1"}, {"version": 1.0}])
def test_a_state_of_no_version_is_refused(saved):
    with pytest.raises(StateError, match="expected 'version' to be at least 1, found"):
        check_version(saved, 2, WHAT)


def test_a_state_without_a_version_or_of_another_one_is_refused():
    with pytest.raises(StateKeyError, match="expected a dict with version, found one without it"):
        check_version({}, 2, WHAT)
    check_version({"version": 2}, 2, WHAT)
    with pytest.raises(StateError, match=r"expected version 2, found version 3\. It was written by a newer"):
        check_version({"version": 3}, 2, WHAT)
    with pytest.raises(StateError, match=r"expected version 2, found version 1\. It was written by an older"):
        check_version({"version": 1}, 2, WHAT)
