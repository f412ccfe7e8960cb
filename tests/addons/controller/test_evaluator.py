"""Functions of lists, and of lookups, in rules. Oracles: Python's `statistics` and fractions, and NumPy."""

import math
import statistics
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.controller.evaluator import summary
from thinc_torchopt.addons.controller.rules import Rule
from thinc_torchopt.core.errors import ControllerError

from .test_rules_fuzz import QUIET

# As large as their squares may be.
numbers = st.floats(-1e150, 1e150).filter(lambda x: x == 0 or abs(x) > 1e-140)
FUNCTIONS = ("mean", "median", "std", "slope")


def slope_of(window):
    """Of the line with the least squares, in fractions."""
    places = [Fraction(i) for i in range(len(window))]
    exact = [Fraction(number) for number in window]
    middle, mean = sum(places) / len(places), sum(exact) / len(exact)
    return float(sum((i - middle) * (x - mean) for i, x in zip(places, exact)) / sum((i - middle) ** 2 for i in places))


@given(st.lists(numbers, min_size=1, max_size=60))
@QUIET
def test_functions_of_lists(window):
    """Up to a few roundings of the largest number."""
    largest = 8 * math.ulp(max(map(abs, window)))
    found = {name: Rule(f"{name}(w)", ["w"], gives="a number").evaluate({"w": window}) for name in FUNCTIONS}
    assert found["median"] == statistics.median(window)
    assert abs(found["mean"] - statistics.mean(window)) <= largest
    assert abs(found["std"] - statistics.pstdev(window)) <= largest
    assert abs(found["slope"] - (slope_of(window) if len(window) > 1 else 0.0)) <= largest
    for q in (0.0, 0.1, 0.5, 0.9, 1.0):
        quantile = Rule(f"quantile([x for x in w], {q})", ["w"], gives="a number").evaluate({"w": window})
        assert abs(quantile - numpy.quantile(window, q)) <= largest
    assert summary(window) | found == summary(window)
    assert Rule("std([x] * 9) == 0 and slope([x] * 9) == 0", ["x"]).evaluate({"x": window[0]})


@given(st.lists(st.floats(width=16), min_size=1, max_size=40))
@QUIET
def test_functions_of_lists_with_nan_and_infinities(window):
    with numpy.errstate(invalid="ignore"):
        expected = {name: float(getattr(numpy, name)(window)) for name in ("min", "max", "mean", "median")}
    found = summary(window)
    numpy.testing.assert_allclose([found[name] for name in expected], [*expected.values()], rtol=0, atol=1e-10)
    assert math.isnan(found["std"]) == math.isnan(found["slope"]) == (not all(map(math.isfinite, window)))


SCORES = {"f": {"ORG": {"f": 0.5, "p": None}, "GPE": {}}, "none": None, "list": [1.0, 2.0], "nan": math.nan, "n": 3}


@pytest.mark.parametrize(
    "text",
    [
        "get(s, 'n', 0) == 3",
        "get(s, 'x', 7) == 7 and get(s, 'x') is None",
        "get(s['f'], 'PER', 1) == 1",
        "get(s, ['f', 'ORG', 'f'], 0.0) == 0.5",
        "get(s, ('f', 'PER', 'f'), 0.25) == 0.25 and get(s, ['f', 'GPE', 'f'], 0.25) == 0.25",
        "get(s, ['f', 'ORG', 'p'], 0.125) == 0.125 and get(s, ['none', 'f'], 2) == 2",
        "get(s['list'], -1, 0.0) == 2.0 and get(s['list'], 2, 0.0) == 0.0 and get(s, ['list', 0]) == 1.0",
        "isnan(s['nan']) and not isfinite(s['nan']) and isfinite(s['n']) and not isnan(s['n'])",
        "isfinite(1 << 1000) and not isfinite(1e999)",
        "get(s, 'flag', True)",
    ],
)
def test_functions_get_and_numbers_that_are_not_finite(text):
    assert Rule(text, ["s"]).evaluate({"s": SCORES}) is True


@pytest.mark.parametrize(
    "text, reason",
    [
        ("mean([]) > 0", "expected at least one number, found an empty list"),
        ("mean(s['f']) > 0", r"mean\(\) can't take {"),
        ("std(['a']) > 0", r"std\(\) can't take \['a'\]"),
        ("median([(1 << 1023) + ((1 << 1023) - 1)]) > 0", "failed with OverflowError"),
        ("quantile([1.0], 2) > 0", "from 0 to 1"),
        ("slope(3) > 0", r"slope\(\) can't take 3"),
        ("get(3, 'a') == 1", r"get\(\) can't take 3, 'a'"),
        ("get(s, ['f', ['a']]) == 1", r"get\(\) can't take"),
        ("isnan('a')", r"isnan\(\) can't take 'a'"),
        ("get(s, 'n')", "must give true or false, but gave 3"),
        ("mean(s['list'])", "not a call of a function"),
        ("sum([mean([x] * 1000) for x in [1.0] * 1000]) > 0", "pieces of work"),
    ],
)
def test_functions_refuse(text, reason):
    with pytest.raises(ControllerError, match=reason):
        Rule(text, ["s"]).evaluate({"s": SCORES})


GIVEN = {"x": 3, "s": "abcd", "w": [1.0] * 10, "d": {"a": [1, 2]}}


@pytest.mark.parametrize(
    ("text", "work"),
    [
        ("x > 1", 3),
        ("s + 'ab' == s", 5 + (4 + 1) + (2 + 1) + 6 + (6 + 1) + (4 + 1)),
        ("[[1], 'ab'] == 3", 6 + (2 + 1) + (1 + 1) + (2 + 1)),
        ("{1, 2} == 3", 5 + (2 + 1) + (2 + 1)),
        ("{'a': 1} == 3", 5 + (1 + 1) + (1 + 1) + (1 + 1) + (1 + 1)),
        ("1 in w", 3 + (10 + 1)),
        ("'a' not in d", 3 + (1 + 1)),
        ("w[:2] == 3", 6 + 2 + (2 + 1)),
        ("d['a'] == 3", 5 + (2 + 1)),
        ("d['' + 'a'] == 3", 7 + (0 + 1) + (1 + 1) + 1 + (1 + 1) + (2 + 1)),
        ("sum(w) > 1", 4 + (10 + 1)),
        ("max([], default=s) == 3", 6 + (0 + 1) + (4 + 1) + 4 + (4 + 1)),
        ("mean(w) > 1 or std(w) > 1", 1 + 2 * (4 + 5 * 10 + 1)),
        ("len(w) > 1", 4),
        ("get(d, 'a') == 3", 5 + (1 + 1) + (2 + 1)),
    ],
)
def test_evaluator_counts_nodes_items_and_characters(text, work):
    """Each node is one, and a collection its length and one more, at all depths; a result its length. Lookups and
    lengths read little.
    """
    rule = Rule(text, GIVEN)
    rule.evaluate(GIVEN)
    assert 100_000 - rule._evaluator._work == work


def test_evaluator_limits():
    """Of work, of bits, of digits: just what is allowed, and one more."""
    values = {"x": 3, "w": [0.0] * (100_000 - 5)}
    for most, more in [
        ("sum(w) == 0", "sum(w) + x == 3"),
        ("1 << 1023 > x", "1 << 1024 > x"),
        ("2 ** 512 > x", "2 ** 513 > x"),
        ("round(x, 400) == x", "round(x, 401) == x"),
    ]:
        assert Rule(most, values).evaluate(values)
        with pytest.raises(ControllerError, match=r"limit of 100000|more than 1024 bits|at most 400 digits"):
            Rule(more, values).evaluate(values)


@pytest.mark.parametrize(("n", "more"), [(20, ""), (21, ", ...")])
def test_evaluator_lists_twenty_keys(n, more):
    values = {"d": {f"{i:02}{'x' * 60}": 1 for i in range(n)}, "k": "k"}
    keys = ", ".join(f"{i:02}{'x' * 48}" for i in range(20))
    with pytest.raises(ControllerError) as error:
        Rule("d[k] == 1", values).evaluate(values)
    assert f"({keys}{more}), found 'k'" in str(error.value)
