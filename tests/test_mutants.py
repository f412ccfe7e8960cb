"""The tool that makes mutants, on a package of one file."""

import subprocess
from types import SimpleNamespace

import pytest
import srsly

from . import mutants
from .mutants import EQUIVALENT, PACKAGE, ROOT, Mutator, Order, chosen_tests, copied, drawn, run_tests, survives, wilson

SOURCE = '''
"""No 1."""
from typing import Any


class Counter:
    """Counts to 10."""

    least: int = 0

    def add(self, n: int | None = 1, *, top=10) -> "int | str":
        """Add 2."""
        self.n += n
        if n < 0 or n > top:
            raise ValueError(f"Expected {n + 1}")
        def note():
            warn("3" + str(4))
            self.noted.append(n)
        try:
            first = n * 2
            second = first - 1
            other = None
        except KeyError:
            return 5
        return second
'''
EXPECTED = [
    ("Counter", "default", "= 0", "= 1"),
    ("Counter.add", "default", "top=10", "top=11"),
    ("Counter.add", "default", "= 1,", "= 2,"),
    ("Counter.add", "arithmetic", "self.n += n", "self.n -= n"),
    ("Counter.add", "removed statement", "self.n += n", "pass"),
    ("Counter.add", "and/or", "n < 0 or n > top", "(n < 0 and n > top)"),
    ("Counter.add", "comparison", "n < 0", "(n <= 0)"),
    ("Counter.add", "constant", "n < 0", "n < 1"),
    ("Counter.add", "comparison", "n > top", "(n >= top)"),
    ("Counter.add", "arithmetic", "n * 2", "(n / 2)"),
    ("Counter.add", "constant", "n * 2", "n * 3"),
    ("Counter.add", "arithmetic", "first - 1", "(first + 1)"),
    ("Counter.add", "constant", "first - 1", "first - 2"),
    ("Counter.add", "handler", "return 5", "raise"),
    ("Counter.add", "removed statement", "return 5", "pass"),
    ("Counter.add", "constant", "return 5", "return 6"),
    ("Counter.add", "removed statement", "return second", "pass"),
    ("Counter.add.note", "early return", "", "return"),
    ("Counter.add.note", "removed statement", "self.noted.append(n)", "pass"),
]


def test_mutants_are_small_mistakes_and_no_docstrings_messages_or_annotations():
    source = SOURCE.encode()
    found = Mutator("pkg.py", source).mutants()
    for mutant in found:
        compile(mutant.apply(source), "pkg.py", "exec")
    left = list(found)
    for function, kind, before, after in EXPECTED:
        matching = [
            mutant
            for mutant in left
            if (mutant.function, mutant.kind) == (function, kind)
            and before in mutant.lines(source)[0]
            and after in mutant.lines(source)[1]
        ]
        assert matching, (function, kind, before)
        left.remove(matching[0])
    changed = [(mutant.kind, *mutant.lines(source)) for mutant in left]
    kinds = sorted(kind for kind, *_ in changed)
    # The body of `add`, its `raise`, and statements that depend on each other.
    assert kinds == ["early return", "removed statement", "swapped statements"], changed
    assert not [mutant for mutant in found if "other" in mutant.new and mutant.kind == "swapped statements"]


@pytest.mark.parametrize("one", ["a = 1", "a, b = 1, 2", "a[0] = 1", "a += 1", "a.update(b)", "self.a = 1"])
def test_mutants_swap_statements_whose_order_may_matter(one):
    place = "self.a" if "self" in one else "a"
    for other, is_swapped in ((f"c = {place}", True), ("c += c", False), ("c.add(c)", False), ("call(c)", True)):
        for source in (f"if c:\n    {one}\n    {other}\n", f"if c:\n    {other}\n    {one}\n"):
            found = Mutator("pkg.py", source.encode()).mutants()
            assert ("swapped statements" in [mutant.kind for mutant in found]) == is_swapped, source


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with a package of one file, and its test."""
    root = tmp_path / "project"
    (root / PACKAGE / "room").mkdir(parents=True)
    (root / "tests" / "room").mkdir(parents=True)
    for folder in (PACKAGE, f"{PACKAGE}/room", "tests", "tests/room"):
        (root / folder / "__init__.py").touch()
    lines = [
        "def largest(numbers):",
        "best = 0",
        "while numbers:",
        "    best = max(best, numbers.pop())",
        "return best",
    ]
    (root / PACKAGE / "room" / "top.py").write_text("\n    ".join(lines) + "\n")
    test = f"from {PACKAGE}.room.top import largest\n\ndef test_largest():\n    assert largest([1, 3, 2]) == 3\n"
    test += "\ndef test_that_fails_without_a_mutant():\n    assert False\n"
    (root / "tests" / "room" / "test_top.py").write_text(test)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["slow"]\n')
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    monkeypatch.setattr(mutants, "ROOT", root)
    return root


def test_mutants_are_killed_survive_or_take_too_long_in_a_copy(project, tmp_path):
    copy = copied(tmp_path / "copies")
    file = project / PACKAGE / "room" / "top.py"
    source = file.read_bytes()
    results = {}
    assert run_tests(copy, ["tests"], 60) == (1, ["tests/room/test_top.py::test_that_fails_without_a_mutant"])
    for mutant in drawn("room", 1, 100):
        assert chosen_tests(mutant, {}) == [["tests/room/test_top.py"]]
        results[mutant.kind] = survives(mutant, copy, chosen_tests(mutant, {}), 10)
        assert file.read_bytes() == source == (copy / file.relative_to(project)).read_bytes()
    # 1 in place of 0 is found by no test; `return` at the start, and no `return` at the end, are.
    assert results["constant"][0] and not results["early return"][0] and not results["removed statement"][0]
    assert "test_largest" in results["early return"][1]
    endless = source.index(b"numbers:"), source.index(b":\n        best")
    slow = drawn("room", 1, 1)[0]._replace(start=endless[0], end=endless[1], new="not (numbers := [4])[1:]")
    assert survives(slow, copy, [["tests/room/test_top.py"]], 2) == (True, "more than 2 s")
    assert survives(slow, copy, [["tests/room/test_gone.py::test_largest"]], 2)[0]
    (copy / "tests" / "room" / "test_broken.py").write_text("import nothing")
    with pytest.raises(SystemExit, match="can't be collected, with or without one"):
        survives(slow, copy, [["tests/room/test_broken.py"]], 10)


def test_mutants_are_tested_by_what_is_newer_than_the_record_too(project):
    names = [f"tests/room/test_more.py::test_{name}" for name in ("old", "of_another", "new")]
    items = [SimpleNamespace(nodeid=name, function=test_wilsons_interval) for name in names]
    mutant, known = drawn("room", 1, 1)[0], {"": names[:2], f"{PACKAGE}/room/top.py": names[:1]}
    Order(mutant, names[:1], known).pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [names[0], names[2]]


def test_wilsons_interval():
    """SOURCE: Brown, Cai, DasGupta (2001); R's `prop.test(x, n, correct = FALSE)`."""
    for hits, n, low, high in ((8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (50, 60, 0.7196, 0.9069)):
        assert wilson(hits, n) == pytest.approx((low, high), abs=2e-4)


def test_equivalent_mutants_are_in_the_package():
    for row in srsly.read_yaml(EQUIVALENT):
        assert row["reason"]
        source = (ROOT / row["file"]).read_bytes()
        found = [mutant.lines(source) for mutant in Mutator(row["file"], source).mutants()]
        assert (row["before"], row["after"]) in found, row
