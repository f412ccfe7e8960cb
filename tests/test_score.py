"""The arithmetic of benchmarks/score.py: what "reaches a score" means."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

PATH = Path(__file__).parent.parent / "benchmarks" / "score.py"


@pytest.fixture(scope="module")
def score():
    spec = importlib.util.spec_from_file_location("score", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["score"] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["score"]


def line(seed, scores, *, candidate="baseline", end="full", task="food"):
    found = [[100 * i, value, 2.0 * i] for i, value in enumerate(scores)]
    return {
        "task": task,
        "candidate": candidate,
        "seed": seed,
        "end": end,
        "steps": found[-1][0],
        "best": max(scores),
        "scores": found,
    }


def test_score_reaches_is_for_so_many_steps(score):
    curve = [(0, 0.1), (50, 0.7), (100, 0.7), (150, 0.6), (200, 0.7), (250, 0.7), (300, 0.8), (350, 0.9)]
    assert score.reaches(curve, 0.6, 100) == 50
    assert score.reaches(curve, 0.7, 100) == 200  # at 50 it was there, and at 150 no more
    assert score.reaches(curve, 0.7, 50) == 50
    assert score.reaches(curve, 0.9, 100) == 350  # nothing comes after it
    assert score.reaches(curve, 0.91, 100) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1), st.integers(0, 3))
def test_score_reaches_as_a_plain_loop(score, scores, target, span):
    expected = [i for i in range(len(scores)) if all(one >= target for one in scores[i : i + span + 1])]
    assert score.reaches(list(enumerate(scores)), target, span) == (expected[0] if expected else None)


def test_score_mean_curve(score):
    curves = [[(0, 0.2), (100, 0.4)], [(0, 0.4), (100, 0.8), (200, 1.0)]]
    assert score.mean_curve(curves) == [(0, pytest.approx(0.3)), (100, pytest.approx(0.6))]


def test_score_table(score):
    lines = [line(0, [0.0, 0.4, 0.78, 0.8]), line(1, [0.0, 0.6, 0.82, 0.8])]
    lines += [line(seed, [0.0, 0.79, 0.81], candidate="best", end="own") for seed in (0, 1)]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in score.table(lines, ["food"])][2:]
    found = {row[1]: row for row in rows}
    # The mean of 0.8 and 0.82, with their standard deviation; 0.8 is held from step 200 on.
    assert found["baseline"][3:6] == ["2", "81.0", "1.4"]
    assert found["baseline"][7:] == ["200 (4 s)"] * 3 + ["1.00"]
    assert found["best"][7:] == ["100 (2 s)", "200 (4 s)", "200 (4 s)", "1.00"]  # 0.79 is less than 99% of 0.8
    lines[2:] = [line(0, [0.0, 0.5], candidate="best", end="own")]
    assert list(score.table(lines, ["food"]))[-1].endswith("| never | never | never |  |")


def test_score_files_are_read_and_known(score, tmp_path):
    assert all(name in score.TASKS and candidate in score.CANDIDATES for name, candidate, _, _ in score.PLAN)
    known = [score.key_of(found) for found in score.read()]
    assert len(known) == len(set(known)) and not score.read(tmp_path / "none.jsonl")
    assert {found["task"] for found in score.read()} <= set(score.TASKS)
