"""Statistics of the newest numbers. Oracles: Python's `statistics` and fractions, and NumPy, on a plain list."""

import math
import statistics
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.controller.rolling import Rolling, packed, unpacked
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


@given(st.lists(numbers, min_size=1, max_size=60), st.integers(1, 12))
@QUIET
def test_rolling_is_as_a_plain_list(found, size):
    rolling = Rolling(size)
    for i, number in enumerate(found):
        rolling.add(number)
        window = found[max(0, i + 1 - size) : i + 1]
        assert rolling.numbers == window
        assert rolling.mean() == statistics.mean(window)  # exact
        expected = statistics.pstdev(window)
        assert abs(rolling.std() - expected) <= math.ulp(expected)  # the root of a rounded number
        assert rolling.median() == statistics.median(window)
        if len(window) > 1:
            assert rolling.slope() == slope_of(window)
        for q in (0.0, 0.1, 0.5, 0.9, 1.0):
            # In other words, so up to some roundings of the largest.
            assert abs(rolling.quantile(q) - numpy.quantile(window, q)) <= 4 * math.ulp(max(map(abs, window)))
    again = Rolling(size, unpacked(packed(rolling.numbers), size))
    for name in FUNCTIONS:
        assert getattr(again, name)() == getattr(rolling, name)()


@given(st.lists(st.floats(width=16), min_size=1, max_size=40), st.integers(1, 5))
@QUIET
def test_rolling_with_nan_and_infinities(found, size):
    """They go out of the window again, and leave no trace."""
    rolling = Rolling(size)
    for i, number in enumerate(found):
        rolling.add(number)
        window = found[max(0, i + 1 - size) : i + 1]
        with numpy.errstate(invalid="ignore"):
            expected = [float(numpy.mean(window)), float(numpy.median(window))]
        if math.isfinite(expected[0]):
            expected[0] = statistics.mean(window)
        numpy.testing.assert_array_equal([rolling.mean(), rolling.median()], expected)
        assert math.isnan(rolling.std()) == math.isnan(rolling.slope()) == (not all(map(math.isfinite, window)))
    assert str(unpacked(packed(found), len(found))) == str(found)


@pytest.mark.parametrize("text", ["", "nothing", packed([1.0] * 4), packed([1.0] * 100_000), packed([1.0])[:-3]])
def test_rolling_refuses_other_states(text):
    with pytest.raises(ValueError):  # the words are base85's, zlib's or ours
        unpacked(text, 3)


@given(st.lists(numbers, min_size=2, max_size=20))
@QUIET
def test_rolling_functions_of_rules(window):
    for name in FUNCTIONS:
        expected = getattr(Rolling(len(window), window), name)()
        assert Rule(f"{name}(w)", ["w"], gives="a number").evaluate({"w": window}) == expected
        assert Rule(f"{name}([x for x in w]) == {name}(w)", ["w"]).evaluate({"w": window})
    assert Rule("quantile(w, 0.25)", ["w"], gives="a number").evaluate({"w": window}) == Rolling(20, window).quantile(
        0.25
    )


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
def test_rolling_get_and_numbers_that_are_not_finite(text):
    assert Rule(text, ["s"]).evaluate({"s": SCORES}) is True


@pytest.mark.parametrize(
    "text, reason",
    [
        ("mean([]) > 0", "expected at least one number, found an empty list"),
        ("mean(s['f']) > 0", "failed with TypeError"),
        ("std(['a']) > 0", "failed with TypeError"),
        ("median([(1 << 1023) + ((1 << 1023) - 1)]) > 0", "failed with OverflowError"),
        ("quantile([1.0], 2) > 0", "from 0 to 1"),
        ("slope(3) > 0", "failed with TypeError"),
        ("get(3, 'a') == 1", "failed with TypeError"),
        ("get(s, ['f', ['a']]) == 1", "failed with TypeError"),
        ("isnan('a')", "failed with TypeError"),
        ("get(s, 'n')", "must give true or false, but gave 3"),
        ("mean(s['list'])", "not a call of a function"),
        ("sum([mean([x] * 1000) for x in [1.0] * 1000]) > 0", "pieces of work"),
    ],
)
def test_rolling_functions_refuse(text, reason):
    with pytest.raises(ControllerError, match=reason):
        Rule(text, ["s"]).evaluate({"s": SCORES})
