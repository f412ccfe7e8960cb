"""Programs that use spaCy and not this package, each in a process of its own, with its entry points and without them.

Run as a program, it imports spaCy's command line, and forks for each request: a line of JSON on stdin. What the program
prints is answered with what it has imported and replaced of ours.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1] / "thinc_torchopt"


def room_of(module: str) -> str:
    """The file or folder in a layer; else the layer."""
    _, layer, *parts = module.split(".")
    return parts[0] if parts else layer


class Ended(NamedTuple):
    """A program that has ended.

    status (int): Its exit status. stdout, stderr (str): What it printed.
    modules (list[str]): Modules of ours that it imported.
    replaced (list[str]): Functions of thinc and spaCy, and of Python for errors and warnings, that are ours now.
    """

    status: int
    stdout: str
    stderr: str
    modules: list[str]
    replaced: list[str]

    @property
    def rooms(self) -> set[str]:
        return {room_of(name) for name in self.modules if "." in name}


class Programs:
    """Runs programs. Closed by `close`."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        command = [sys.executable, "-m", "tests.foreign_programs"]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._server = subprocess.Popen(command, env=environment, **pipes)

    def run(self, program: str | Sequence[str], folder: Path, *, installed: bool = True, **variables: str) -> Ended:
        """Run a program in a folder.

        program (str | Sequence[str]): Python code, or the arguments of `spacy`.
        installed (bool): With the entry points of this package. variables (str): Of the environment.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps([program, str(folder), installed, variables]), file=self._server.stdin, flush=True)
        return Ended(*json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        self._server.communicate()


def main() -> None:
    import spacy.cli

    # No test waits for the registries of others; ours are looked up by each program.
    spacy.registry.ensure_populated()
    assert not _modules()
    for line in sys.stdin:
        print(json.dumps(_run(*json.loads(line))), flush=True)


def _run(program: str | list[str], folder: str, installed: bool, variables: dict[str, str]) -> Ended:
    with tempfile.TemporaryDirectory() as outside:
        files = [Path(outside, name) for name in ("stdout", "stderr", "found")]
        process = os.fork()
        if process == 0:
            for stream, file in enumerate(files[:2], 1):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
            os.chdir(folder)
            os.environ.update(variables)
            _run_here(program, installed, files[2])
        _, status = os.waitpid(process, 0)
        stdout, stderr, found = (file.read_text("utf8") for file in files)
        return Ended(os.waitstatus_to_exitcode(status), stdout, stderr, *json.loads(found))


def _run_here(program: str | list[str], installed: bool, found: Path) -> None:
    """It does not return."""
    import catalogue

    sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w", buffering=1, encoding="utf8") for stream in (1, 2))
    if not installed:
        points = catalogue.AVAILABLE_ENTRY_POINTS
        catalogue.AVAILABLE_ENTRY_POINTS = {
            group: [one for one in points.select(group=group) if not one.value.startswith(PACKAGE.name)]
            for group in points.groups
        }
    status = 0
    try:
        if isinstance(program, str):
            exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = ["spacy", *program]
            runpy.run_module("spacy", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        found.write_text(json.dumps([_modules(), sorted(set(_replaced()))]))
        os._exit(status)


def _modules() -> list[str]:
    return sorted(name for name in sys.modules if name.partition(".")[0] == PACKAGE.name)


def _replaced() -> Iterator[str]:
    """By where the code of a function is written, whatever its name."""
    owners: list[tuple[str, Any]] = [("sys", sys), ("warnings", warnings)]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("spacy", "thinc") and isinstance(module, types.ModuleType):
            owners += [(name, module), *((name, value) for value in vars(module).values() if isinstance(value, type))]
    for name, owner in owners:
        for key, value in list(vars(owner).items()):
            code = getattr(value, "__code__", None)
            if code is not None and Path(code.co_filename).is_relative_to(PACKAGE):
                yield f"{name}.{key}"


if __name__ == "__main__":
    main()
