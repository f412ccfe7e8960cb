"""Mutants: the package with one small mistake, which a test should find. One that all tests pass shows what no test
looks at.

    python -m tests.mutants --record [TESTS ...]
    python -m tests.mutants --seed 1 --count 60 [ROOM]

A ROOM is a folder or file below thinc_torchopt, such as core/update or loop/checkpoint.py. Each mutant is tested in a
fork of this process, which has imported spaCy and torch once, and in a copy of the repository: the files here never
change. The tests of its file come first (core/x/y.py: tests/core/x/test_y*.py), then those that call its function, the
most specific ones first. Those are known from `--record`, which runs the tests with `-n 2` and takes twice their time;
what a test runs in threads and processes of its own is not seen. Without a record of it, those follow that seem near:
of the same folder, for example. A mutant that takes longer than --limit has survived.

Mutants that behave as the package does stand in equivalent_mutants.yaml, each with its reason. They do not count.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from compileall import compile_dir
from contextlib import suppress
from copy import copy
from importlib import import_module
from itertools import accumulate, pairwise
from math import inf, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import srsly

from .forks import environment

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "thinc_torchopt"
PLACE, START = str(ROOT / PACKAGE), len(str(ROOT)) + 1
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.yaml"
RECORD = Path(".pytest_cache", "mutants")
PAIRS = ["Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "In NotIn", "And Or", "Add Sub", "Mult Div", "BitOr BitAnd"]
PAIRS += [" ".join(reversed(pair.split())) for pair in PAIRS] + ["FloorDiv Mult", "Mod Mult", "Pow Mult"]
SWAPS = {getattr(ast, one): getattr(ast, two) for one, two in map(str.split, PAIRS)}
MESSAGES = ("warn", "warning", "info", "inform", "debug", "error", "print")
# Methods of collections; what a statement may name.
CHANGING = ("append", "extend", "add", "update", "clear", "remove", "discard")
PLACES = (ast.Name, ast.Attribute, ast.Subscript)
# Of files with tests that import from a package, or have a word of a mutant.
FEW = 15
# Fields of a node.
NO_CODE = ("annotation", "returns", "decorator_list")
WITHIN = ("body", "args")
# Compares docs/reference with defaults, of functions and of fields, and calls nothing.
REFERENCE = "tests/test_reference.py"
# pytest's status: all tests pass, there are none.
PASSED = (0, 5)
DEFAULTS, BODIES = ("defaults", "kw_defaults"), ("body", "orelse", "finalbody")


class Mutant(NamedTuple):
    file: str
    line: int
    # Of the function that it is in: "" at the top of a file.
    function: str
    kind: str
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def lines(self, source: bytes) -> tuple[str, str]:
        """The whole lines that differ, before and after."""
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        last = len(source) if last < 0 else last
        after = self.apply(source)[first : last + len(self.new.encode()) - (self.end - self.start)]
        return source[first:last].decode().strip(), after.decode().strip()


class Mutator:
    """Finds the mutants of one file."""

    def __init__(self, file: str, source: bytes):
        self._file, self._source = file, source
        self._starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]

    def mutants(self) -> list[Mutant]:
        return [*self._inside(ast.parse(self._source), "", "constant")]

    def _span(self, node: Any) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        return self._source[slice(*self._span(node))].decode()

    def _mutant(self, node: Any, function: str, kind: str, new: str, last: Any = None) -> Mutant:
        start, end = self._span(node)[0], self._span(last or node)[1]
        return Mutant(self._file, node.lineno, function, kind, start, end, new)

    def _inside(self, node: ast.AST, function: str, constant: str) -> Iterator[Mutant]:
        """Of a node and all in it, in the function `function`. constant (str): What a number in it is."""
        if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)) or _is_message(node) or _is_for_types(node):
            return
        yield from self._of(node, function, constant)
        for name, value in ast.iter_fields(node):
            named = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and name in WITHIN
            inner = f"{function}.{node.name}".lstrip(".") if named else function  # type: ignore[attr-defined]
            children = value if isinstance(value, list) else [value]
            children = [child for child in children if isinstance(child, ast.AST) and name not in NO_CODE]
            for child in children:
                is_default = name in DEFAULTS or (isinstance(node, ast.AnnAssign) and name == "value")
                yield from self._inside(child, inner, "default" if is_default else constant)
            for one, two in pairwise(children) if name in BODIES else ():
                if _is_simple(one) and _is_simple(two) and _depend(one, two):
                    between = self._source[self._span(one)[1] : self._span(two)[0]].decode()
                    new = self._text(two) + between + self._text(one)
                    yield self._mutant(one, inner, "swapped statements", new, two)

    def _of(self, node: Any, function: str, constant: str) -> Iterator[Mutant]:
        ops = getattr(node, "ops", [getattr(node, "op", None)])
        for i, op in enumerate(ops):
            if type(op) in SWAPS and (isinstance(node, (ast.Compare, ast.BoolOp)) or not _has_text(node)):
                changed = copy(node)
                changed.op, changed.ops = SWAPS[type(op)](), [*ops[:i], SWAPS[type(op)](), *ops[i + 1 :]]
                kind = {ast.Compare: "comparison", ast.BoolOp: "and/or"}.get(type(node), "arithmetic")
                text = ast.unparse(changed)
                yield self._mutant(node, function, kind, text if isinstance(node, ast.AugAssign) else f"({text})")
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            yield self._mutant(node, function, constant, repr(new))
        elif isinstance(node, ast.ExceptHandler) and not isinstance(node.body[0], ast.Raise):
            yield self._mutant(node.body[0], function, "handler", "raise", node.body[-1])
        elif isinstance(node, ast.FunctionDef) and len(body := node.body[ast.get_docstring(node) is not None :]) > 1:
            inner = f"{function}.{node.name}".lstrip(".")
            yield self._mutant(body[0], inner, "early return", "return", body[-1])
        elif _is_removable(node):
            yield self._mutant(node, function, "removed statement", "pass")


def _is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return getattr(node.value.func, "attr", getattr(node.value.func, "id", None)) in MESSAGES
    return isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith(("Error", "Warning"))


def _is_for_types(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    # `Names = dict[str, int | None]`, or a type in a `cast`.
    return isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in ("dict", "list", "tuple", "Union")


def _has_text(node: Any) -> bool:
    """A message that is put together, or a type: `int | None`."""
    parts = [getattr(node, name, node) for name in ("left", "right", "value")]
    return any(isinstance(part, ast.JoinedStr) or isinstance(getattr(part, "value", 0), str | None) for part in parts)


def _is_simple(node: ast.AST) -> bool:
    """A call, or an assignment: what may stand in another order. No docstring."""
    is_one = isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign)) and not _is_message(node)
    return is_one and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _depend(one: Any, two: Any) -> bool:
    """Whether their order may matter: not that of two that each change something which the other one does not name."""
    changed = _changed_by(one), _changed_by(two)
    named = [{ast.unparse(found) for found in ast.walk(node) if isinstance(found, PLACES)} for node in (two, one)]
    return not all(changed) or any({*map(ast.unparse, found)} & names for found, names in zip(changed, named))


def _changed_by(node: Any) -> list[ast.AST]:
    """What it assigns to, or the collection that it changes. Empty: not known."""
    if isinstance(node, ast.Expr):
        method = getattr(node.value, "func", None)
        return [method.value] if isinstance(method, ast.Attribute) and method.attr in CHANGING else []
    targets = getattr(node, "targets", None) or [node.target]
    parts = [part for target in targets for part in getattr(target, "elts", [target])]
    return [part.value if isinstance(part, (ast.Subscript, ast.Starred)) else part for part in parts]


def _is_removable(node: ast.AST) -> bool:
    """Not an assignment to a name: who reads it afterwards would fail."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    return _is_simple(node) or isinstance(node, (ast.Raise, ast.Delete, ast.Return, ast.Continue, ast.Break))


# ------------------------------------------------------------------------------------------------ what reaches a line


class Recorder:
    """A plugin of pytest that writes which functions of the package each test called, if it passed."""

    def __init__(self) -> None:
        (ROOT / RECORD).mkdir(parents=True, exist_ok=True)
        self._file = (ROOT / RECORD / f"{os.getpid()}.jsonl").open("a")
        self._called: dict[int, Any] = {}

    def _trace(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(PLACE):
            self._called[id(code)] = code

    def pytest_runtest_setup(self, item: Any) -> None:
        self._called.clear()
        sys.settrace(self._trace)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            sys.settrace(None)
            if report.passed:
                functions = {(code.co_filename[START:], code.co_qualname) for code in self._called.values()}
                names = [f"{file}:{name.replace('.<locals>', '')}" for file, name in sorted(functions)]
                print(json.dumps([report.nodeid, names]), file=self._file, flush=True)


def pytest_configure(config: Any) -> None:
    """In the workers of `-p tests.mutants -n 2`."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def recorded() -> dict[str, list[str]]:
    """By function, and by file, the tests that call it: first those that call little else. "": all."""
    tests: dict[str, list[str]] = {}
    for path in sorted((ROOT / RECORD).glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        tests |= map(json.loads, path.read_text().splitlines())
    found = defaultdict(list, {"": [*tests]} if tests else {})
    for test in sorted(tests, key=lambda test: len(tests[test])):
        for name in dict.fromkeys([*tests[test], *(name.split(":")[0] for name in tests[test])]):
            found[name].append(test)
    return found


def mirror_of(file: str) -> list[str]:
    """The files with the tests of a file, which are not those of one with a longer name."""
    path = Path("tests", *Path(file).parts[1:])
    stem = path.stem.rstrip("_")  # try_.py: a word of Python's
    there = {f"test_{other.stem}" for other in (ROOT / file).parent.glob(f"{stem}_*.py")}
    found = sorted((ROOT / path).parent.glob(f"test_{stem}*.py"))
    return [str(test.relative_to(ROOT)) for test in found if test.stem not in there]


def near(mutant: Mutant) -> list[str]:
    """The files with tests in the same folder, those that import from its file or package, and those with one of its
    words, if they are few.
    """
    folder, module = ROOT.joinpath("tests", *Path(mutant.file).parts[1:-1]), mutant.file[:-3].replace("/", ".")
    texts = {test: test.read_text() for test in sorted((ROOT / "tests").rglob("test_*.py"))}
    found = {test: None for test in texts if test.parent == folder}
    words = [f"from {name} import" for name in (module, module.rpartition(".")[0])] + words_of(mutant)
    for word in words:
        naming = [test for test, text in texts.items() if word in text]
        found |= dict.fromkeys(naming) if len(naming) <= FEW else {}
    return [str(test.relative_to(ROOT)) for test in found]


def words_of(mutant: Mutant) -> list[str]:
    """The name of its function, and the long ones in its line."""
    line = (ROOT / mutant.file).read_text().splitlines()[mutant.line - 1]
    return mutant.function.split(".") + re.findall(r"\w{7,}", line)


def chosen_tests(mutant: Mutant, reached: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Those of its file, and, if these pass, others: to collect them takes longer than most mutants live."""
    own = mirror_of(mutant.file)
    others = [*(callers(mutant, reached) or near(mutant))]
    others += [REFERENCE] if mutant.kind == "default" else []
    return [part for part in (own, [test for test in others if _file_of(test) not in own]) if part]


def callers(mutant: Mutant, reached: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Nobody calls the body of a class: then all tests of the file."""
    return reached.get(f"{mutant.file}:{mutant.function}") or reached.get(mutant.file, ())


class Order:
    """A plugin of pytest that runs `tests` alone, files or single ones, and what is newer than the record in their
    files. It begins with those that tell most of a mutant.
    """

    def __init__(self, mutant: Mutant, tests: Sequence[str], reached: Mapping[str, Sequence[str]]):
        self._places = {test: place for place, test in enumerate(callers(mutant, reached))}
        self._tests, self._own, self._names = {*tests}, mirror_of(mutant.file), words_of(mutant)
        self._recorded = {*reached.get("", ())}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        known = self._recorded
        items[:] = [
            item
            for item in items
            if {item.nodeid, _file_of(item.nodeid)} & self._tests or (known and item.nodeid not in known)
        ]
        items.sort(key=self._place)

    def _place(self, item: Any) -> tuple[float, bool, int]:
        source, place = inspect.getsource(item.function), self._places.get(item.nodeid, inf)
        return place, _file_of(item.nodeid) not in self._own, -sum(name in source for name in self._names)


def _file_of(test: str) -> str:
    return test.partition("::")[0]


# ------------------------------------------------------------------------------------------------ to test a mutant


def copied(folder: Path) -> Path:
    """What git has, or would have, of a repository; beside it the folder of corpora."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    copy = folder / "repository"
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
    return copy


def run_tests(
    copy: Path, tests: Sequence[str], limit: float, plugins: Sequence[Any] = ()
) -> tuple[int | None, list[str]]:
    """Run tests in a fork, up to the first failure.

    RETURNS (tuple): pytest's status, None after `limit` seconds; and the test that failed.
    """
    with tempfile.TemporaryFile("w+") as output:
        process = os.fork()
        if process == 0:
            status = 70
            try:
                os.setsid()
                for stream in (1, 2):
                    os.dup2(output.fileno(), stream)
                status = _in_fork(copy, tests, plugins)
            finally:
                os._exit(status)
        end, status = time.monotonic() + limit, None
        while status is None and time.monotonic() < end:
            ended, code = os.waitpid(process, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if ended else None
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # whatever it started, too
        if status is None:
            os.waitpid(process, 0)
        output.seek(0)
        failed = [line for line in output.read().splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return status, [line.partition(" ")[2].partition(" - ")[0] for line in failed]  # ids may have spaces


def _in_fork(copy: Path, tests: Sequence[str], plugins: Sequence[Any]) -> int:
    import pytest

    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", PACKAGE)]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    sys.dont_write_bytecode = True
    os.chdir(copy)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w", buffering=1) for stream in (1, 2))
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir"]
    return int(pytest.main([*options, str(copy), "-m", "not slow", *tests], list(plugins)))


def survives(
    mutant: Mutant, copy: Path, parts: Sequence[Sequence[str]], limit: float, reached: Mapping[str, Sequence[str]] = {}
) -> tuple[bool, str]:
    """RETURNS (tuple): Whether all tests pass, but those that fail without it too, or take too long; and why."""
    path, why, end = copy / mutant.file, "it has no tests, or none recorded that reach it", time.monotonic() + limit
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()  # the same size in the same second: Python would take it for that of the mutant
    source = path.read_bytes()
    for tests in parts:
        files = [file for file in dict.fromkeys(map(_file_of, tests)) if (copy / file).is_file()]
        failing: list[str] = []
        while files:
            path.write_bytes(mutant.apply(source))
            try:
                left = end - time.monotonic()
                status, failed = run_tests(copy, [*files, *failing], left, [Order(mutant, tests, reached)])
            finally:
                path.write_bytes(source)
            if status is None:
                return True, f"more than {limit:g} s"
            if status in PASSED:
                why = "all tests pass"
                break
            without = run_tests(copy, failed or files, limit)
            if not (without[1] if failed else without[0] == status):
                return False, " ".join(failed) or f"status {status}"
            if not failed or failed[0] in failing:
                sys.exit(f"Can't test mutants: {failed or files} can't be collected, with or without one.")
            failing += ["--deselect", failed[0]]
    return True, why


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share, at 95%. SOURCE: Wilson (1927), Probable inference, JASA 22."""
    share, square = hits / n, z * z / n
    middle, half = share + square / 2, z * sqrt(share * (1 - share) / n + square / n / 4)
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def drawn(room: str, seed: int, count: int) -> list[Mutant]:
    place, mutants = ROOT / PACKAGE / room, []
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        mutants += Mutator(str(path.relative_to(ROOT)), path.read_bytes()).mutants()
    if not mutants:
        sys.exit(f"Can't draw mutants: expected a folder or file of {PACKAGE}, found {room!r}.")
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def record(tests: Sequence[str]) -> None:
    if not tests:
        shutil.rmtree(ROOT / RECORD, ignore_errors=True)
    options = ["-q", "-n", "2", "--dist", "worksteal", "-p", "tests.mutants", "-m", "not slow"]
    subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT, env=environment())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", nargs="?", default="", help="Default: the whole package.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--limit", type=float, default=120, help="Seconds for a mutant. Default: 120.")
    parser.add_argument("--record", nargs="*", metavar="TESTS", help="Record what tests call. Default: all of them.")
    args = parser.parse_args()
    if args.record is not None:
        return record(args.record)
    for module in ("torch", "spacy.cli"):  # before the forks, which need them
        import_module(module)
    mutants, reached = drawn(args.room, args.seed, args.count), recorded()
    if not reached:
        print("Only tests near to each mutant run. Others are known after: python -m tests.mutants --record")
    known = {(row["file"], row["before"], row["after"]) for row in srsly.read_yaml(EQUIVALENT)}
    results: dict[str, list[bool]] = defaultdict(list)
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        compile_dir(copy / PACKAGE, quiet=1)
        print("Ctrl-C ends the draw, and prints the score so far.", flush=True)
        signal.signal(signal.SIGINT, lambda *_: mutants.clear())
        for i, mutant in enumerate(list(mutants), start=1):
            if not mutants:
                break
            before, after = mutant.lines((ROOT / mutant.file).read_bytes())
            if (mutant.file, before, after) in known:
                continue
            survived, why = survives(mutant, copy, chosen_tests(mutant, reached), args.limit, reached)
            for room in ("all", Path(mutant.file).parent.as_posix()):
                results[room].append(not survived)
            text = f"{mutant.file}:{mutant.line} ({mutant.kind}): {why}"
            print(f"{i} {'SURVIVED' if survived else 'killed'} {text}", flush=True)
            survivors += [f"{text}\n  - {before}\n  + {after}"] if survived else []
    print("", *survivors, "", sep="\n")
    for room, killed in sorted(results.items()):
        low, high = wilson(sum(killed), len(killed))
        print(f"{room:24} {sum(killed)} of {len(killed)} killed: {low:.0%} to {high:.0%}")


if __name__ == "__main__":
    main()
