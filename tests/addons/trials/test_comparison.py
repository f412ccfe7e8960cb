"""Whether a difference is more than chance, against tables of Student's t and against chance itself."""

import math
from statistics import stdev

import numpy
import pytest

from thinc_torchopt.addons.trials.comparison import compare, t_quantile


@pytest.mark.parametrize(
    ("level", "freedom", "value"),
    [
        # The table of any textbook, to its three digits.
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 4, 2.776),
        (0.95, 8, 1.860),
        (0.995, 1, 63.657),
        (0.995, 4, 4.604),
        (0.975, 120, 1.980),
    ],
)
def test_comparison_knows_students_t(level, freedom, value):
    assert t_quantile(level, freedom) == pytest.approx(value, abs=5e-4 * max(1.0, value / 10))


def test_comparison_of_two_is_students_test():
    """With two ways to train, the margin is that of the two-sided t-test: scores at the margin have p = 0.05."""
    a, b = [0.80, 0.82, 0.81], [0.84, 0.85, 0.83]
    found = compare({"a": a, "b": b}, "a")
    spread = math.sqrt((stdev(a) ** 2 + stdev(b) ** 2) / 2)
    assert found.spread == pytest.approx(spread)
    assert found.margins == {"b": pytest.approx(2.776 * spread * math.sqrt(2 / 3), rel=1e-3)}  # t as in the table
    assert found.is_told("b") and found.winner == "b" and found.best == "b"


@pytest.mark.parametrize("seeds", [2, 5])
def test_comparison_is_seldom_wrong(seeds):
    """Four ways to train that are alike: another than the first one wins by chance in at most 2.5% of all cases, half
    of the level of 5%, as those that are worse win nothing.
    """
    rng = numpy.random.default_rng(0)
    runs = 2000
    wrong = sum(
        compare(dict(zip("abcd", rng.normal(0.8, 0.01, size=(4, seeds)).tolist())), "a").winner != "a"
        for _ in range(runs)
    )
    assert wrong / runs <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / runs)  # three standard deviations


def test_comparison_says_how_many_seeds_would_do():
    found = compare({"a": [0.80, 0.82], "b": [0.81, 0.83], "c": [0.70, 0.72]}, "a")
    assert found.best == "b" and found.winner == "a" and not found.is_told("b")
    assert found.is_told("c") and found.difference("c") == pytest.approx(-0.1)
    seeds = found.seeds_for("b")
    [enough, few] = [
        t_quantile(1 - 0.05 / 4, 3 * (n - 1)) * found.spread * math.sqrt(2 / n) for n in (seeds, seeds - 1)
    ]
    assert enough < found.difference("b") <= few
    assert compare({"a": [0.8, 0.9], "b": [0.8001, 0.9]}, "a").seeds_for("b") is None


def test_comparison_without_spread():
    one = compare({"a": [0.8], "b": [0.9]}, "a")
    assert one.spread is None and not one.is_told("b") and one.winner == "a" and one.best == "b"
    same = compare({"a": [0.8, 0.8], "b": [0.9, 0.9], "c": [0.8, 0.8]}, "a")
    assert same.spread == 0.0 and same.winner == "b" and not same.is_told("c")
    # A trial may be missing: the margin is that of so many.
    fewer = compare({"a": [0.80, 0.82, 0.81], "b": [0.84]}, "a")
    assert fewer.margins["b"] == pytest.approx(4.303 * 0.01 * math.sqrt(1 + 1 / 3), rel=1e-3)
