"""The command line of benchmarks/teacher.py: nothing is run under a name that it does not know."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def teacher(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    yield importlib.import_module("teacher")
    for name in ("teacher", "score"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("some ADJ 0 before plan", "ADJ has no row 'plan', but before, plain"),
        ("some taught-food 0 plain", "has no row 'plain', but alone, share1"),
        ("some ADK 0 plain", "invalid choice: 'ADK'"),
        ("run --rows plan", "invalid choice: 'plan'"),
    ],
)
def test_teacher_knows_its_rows(teacher, args, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["teacher.py", *args.split()])
    monkeypatch.setattr(teacher, "run_labels", pytest.fail)
    with pytest.raises(SystemExit):
        teacher.main()
    assert said in capsys.readouterr().err


def test_teacher_has_a_name_for_each_row_that_it_plans(teacher):
    for task, row, _ in teacher.PLAN:
        assert row in (teacher.LESSON_NAMES if task in teacher.LESSONS else teacher.LABEL_NAMES)
        assert task in teacher.HEADS
