"""benchmarks/find_lr.py: its arithmetic, and that its rule, in plain Python, finds what the package does."""

import math
import sys
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.util import import_file

from thinc_torchopt.addons.trials.lr_finder import RangeTest, _analyse, _has_diverged, make_ramp
from thinc_torchopt.core.algorithms import FAR, usual_rates

PATH = Path(__file__).parent.parent / "benchmarks" / "find_lr.py"


@pytest.fixture(scope="module")
def find_lr():
    before = list(sys.path)
    try:
        yield import_file("find_lr", PATH)
    finally:
        sys.path[:] = before
        sys.modules.pop("score", None)


@given(
    falls_at=st.floats(1e-4, 1e-2),
    width=st.floats(30, 1000),
    highest=st.floats(1.5, 30.0),
    noise=st.floats(0.0, 0.04),
    seed=st.integers(0, 1000),
)
def test_find_lr_rule_is_that_of_the_package(find_lr, falls_at, width, highest, noise, seed):
    rng = numpy.random.default_rng(seed)
    rates = make_ramp(1e-6, 10.0, 71)
    losses = [
        0.1 + 0.9 / (1 + (rate / falls_at) ** 2) + highest / (1 + (falls_at * width / rate) ** 4) + noise * rng.normal()
        for rate in rates
    ]
    found = RangeTest()
    for rate, loss in zip(rates, losses):
        found.rates.append(rate)
        found.losses.append(loss)
        if _has_diverged(found):
            found.ended = "diverged"
            break
    _analyse(found)
    # The loss is still low at the highest rate, or hardly above it.
    if found.problem is None:
        expected = find_lr.RULES["half of the middle, 20%"]((rates, losses))
        assert found.suggestion == pytest.approx(expected, rel=1e-9)


def test_find_lr_score_between_rates(find_lr):
    grid = {-6: [0.2, 0.4], -4: [0.6, 0.8]}
    assert find_lr.score_at(grid, 1e-3) == pytest.approx(0.3)
    assert find_lr.score_at(grid, 1e-2) == pytest.approx(0.7)
    assert find_lr.score_at(grid, math.sqrt(1e-3 * 1e-2)) == pytest.approx(0.5)
    assert find_lr.score_at(grid, 1e-9) == pytest.approx(0.3)
    assert find_lr.score_at(grid, 1.0) == pytest.approx(0.7)
    # The best is 0.7, with a spread of 0.14.
    assert find_lr.is_as_good(grid, 5e-3) and not find_lr.is_as_good(grid, 2e-3)
    assert not find_lr.is_as_good({-6: [0.5], -5: [0.6]}, 1e-3)


def test_find_lr_grid_grows_until_the_best_is_inside(find_lr):
    lines = []
    score = {-7: 0.5, -6: 0.6, -5: 0.4, -4: 0.3}
    while rates := find_lr.missing_rates(lines, "food", "AdamW", 0):
        line = {"kind": "train", "task": "food", "algorithm": "AdamW", "seed": 0, "rate": rates[0]}
        lines.append({**line, "score": score.get(rates[0], 0.1)})
    assert sorted(line["rate"] for line in lines) == [-8, -7, -6, -5, -4]
    # Other seeds have the same rates.
    assert find_lr.missing_rates(lines, "food", "AdamW", 1) == [-8, -7, -6, -5, -4]


def test_find_lr_explain_has_no_doubts_of_the_best_rates(find_lr):
    """`explain` warns of rates far above the usual ones."""
    grids = find_lr.grids_of(find_lr.read())
    assert grids
    for (task, algorithm), grid in grids.items():
        usual = usual_rates(f"torch.{algorithm}.v1", pretrained=task == "minilm")
        assert 10 ** (max(grid, key=lambda half: sum(grid[half]) / len(grid[half])) / 2) <= FAR * usual.highest


def test_find_lr_file_is_read_and_makes_tables(find_lr):
    lines = find_lr.read()
    assert {line["task"] for line in lines} <= set(find_lr.TASKS)
    rows = list(find_lr.table(lines, list(find_lr.TASKS), list(find_lr.ALGORITHMS)))
    assert len(rows) == 2 + len(find_lr.CURVES) * len(find_lr.RULES) + 2
    assert len(list(find_lr.grid_table(lines, find_lr.RULES["half of the middle, 20%"]))) > 2
