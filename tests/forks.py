"""Programs in processes of their own that do not take seconds to import everything: one process imports it, computes
nothing, and forks for each program.

A server reads requests from stdin as JSON lines, and answers each with a line.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
# Python code, or the arguments of `spacy`.
Program = str | Sequence[Any]


def environment() -> dict[str, str]:
    """That of this process, with this repository on Python's path."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    return {**os.environ, **own}


class Server:
    """`python -m module` that answers requests. Closed by `close`."""

    def __init__(self, module: str, environment: dict[str, str]) -> None:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, "-m", module], env=environment, **pipes)

    def ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def serve(answer: Callable[..., Any]) -> None:
    """Answer the requests to a server, until it is closed."""
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)


def run_to_the_end(program: Program, *arguments: str, at_the_end: Callable[[], None] = lambda: None) -> NoReturn:
    """Run a program in this process, and end it as Python ends: uncaught errors go to `sys.excepthook`."""
    # The streams that this process began with are pipes.
    sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w", buffering=1, encoding="utf8") for stream in (1, 2))
    random.seed()
    status = 0
    try:
        if isinstance(program, str):
            sys.argv = ["-c", *arguments]
            exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = ["spacy", *program]
            runpy.run_module("spacy", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    finally:
        at_the_end()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def fork(
    program: Program,
    *arguments: str,
    folder: str,
    variables: dict[str, str | None],
    first: Callable[[], None] = lambda: None,
    at_the_end: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run a program in a fork of this process. variables (dict): Of its environment; None: not set.

    RETURNS: Its exit status, and what it wrote to stdout and stderr.
    """
    with TemporaryFile() as stdout, TemporaryFile() as stderr:
        process = os.fork()
        if process == 0:
            for stream, file in enumerate((stdout, stderr), 1):
                os.dup2(file.fileno(), stream)
            os.chdir(folder)
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            first()
            run_to_the_end(program, *arguments, at_the_end=at_the_end)
        _, status = os.waitpid(process, 0)
        printed = []
        for file in (stdout, stderr):
            file.seek(0)
            printed.append(file.read().decode("utf8"))
        return [os.waitstatus_to_exitcode(status), *printed]


# ---------------------------------------------------------------------- programs that begin with spaCy


def python(program: Program, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c program arguments`, or `python -m spacy ...`, would. When it begins, spaCy's command
    line and torch are imported, and nothing of this package. It has the environment and the folder of this process.
    """
    before, now = _environment(), dict(os.environ)
    variables = {name: value for name, value in now.items() if before.get(name) != value}
    variables |= dict.fromkeys(before.keys() - now.keys())
    program = program if isinstance(program, str) else [str(word) for word in program]
    words = [str(argument) for argument in arguments]
    status, stdout, stderr = _server().ask(program, words, str(Path.cwd()), variables)
    run = subprocess.CompletedProcess([program, *words], status, stdout, stderr)
    assert not check or status == 0, stdout + stderr
    return run


@cache
def _environment() -> dict[str, str]:
    """As it was when the server began."""
    return dict(os.environ)


@cache
def _server() -> Server:
    server = Server("tests.forks", environment())
    atexit.register(server.close)
    return server


def import_spacy() -> None:
    import spacy.cli

    # No test waits for the registries of others; ours are looked up by each program.
    spacy.registry.ensure_populated()
    assert not any(name.partition(".")[0] == "thinc_torchopt" for name in sys.modules)


if __name__ == "__main__":
    import_spacy()
    serve(lambda program, words, folder, variables: fork(program, *words, folder=folder, variables=variables))
