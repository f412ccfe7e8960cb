"""Programs in processes of their own that do not take seconds to import everything: one process imports it, computes
nothing, and forks for each program.

A server reads requests from stdin as JSON lines, and answers each with a line.

Only on Linux: Windows has no forks, and on macOS they may crash. There each program imports everything anew.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pickle
import random
import runpy
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryFile, mkdtemp
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
FORKS = sys.platform == "linux"
# Python code, or the arguments of `spacy`.
Program = str | Sequence[Any]
# Runs a script, whose path is the first argument.
RUN_SCRIPT = """
import os, runpy, sys
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


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
    """Answer the requests to a server, until it is closed. What it imported is never garbage: no program that it forks
    looks through it, or counts it in each epoch.
    """
    gc.freeze()
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen
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


def begin(
    program: Program,
    *arguments: str,
    stdout: int,
    stderr: int,
    stdin: str = os.devnull,
    folder: str,
    variables: dict[str, str | None],
    first: Callable[[], None] = lambda: None,
    at_the_end: Callable[[], None] = lambda: None,
) -> int:
    """Begin a program in a fork of this process.

    stdout, stderr (int): Open files that it writes to. stdin (str): A file or named pipe that it reads.
    variables (dict): Of its environment; None: not set.
    RETURNS: The id of its process.
    """
    process = os.fork()
    if process == 0:
        for stream, file in enumerate((os.open(stdin, os.O_RDONLY), stdout, stderr)):
            os.dup2(file, stream)
        sys.stdin = os.fdopen(os.dup(0), encoding="utf8")
        # Ctrl-C is ignored by what was started in the background, as tests may be.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        first()
        run_to_the_end(program, *arguments, at_the_end=at_the_end)
    return process


def fork(program: Program, *arguments: str, **options: Any) -> list[Any]:
    """Run a program in a fork of this process, see `begin`. RETURNS: Its exit status, and what it wrote to stdout and
    stderr.
    """
    with TemporaryFile() as stdout, TemporaryFile() as stderr:
        process = begin(program, *arguments, stdout=stdout.fileno(), stderr=stderr.fileno(), **options)
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
    program, words = _words(program, arguments)
    if FORKS:
        status, stdout, stderr = server().ask("run", program, words, str(Path.cwd()), _changed_variables())
        run = subprocess.CompletedProcess([program, *words], status, stdout, stderr)
    else:
        run = subprocess.run(_command(program, words), env=_own_process(), capture_output=True, encoding="utf8")
    assert not check or status == 0, stdout + stderr
    return run


class Started:
    """A program that runs as those of `python` do, while the test goes on, with what tests use of a `subprocess.Popen`.
    What it prints, errors too, is kept in a file.

    stdin (bool): Whether it is given input, by `stdin` or `communicate`; else it has none.
    variables (dict): Of its environment, beside those of this process.
    """

    def __init__(
        self, program: Program, *arguments: object, stdin: bool = False, variables: dict[str, str] | None = None
    ) -> None:
        self.returncode: int | None = None
        folder = Path(mkdtemp())
        weakref.finalize(self, rmtree, folder)
        self._printed, pipe = folder / "printed", folder / "stdin"
        self._printed.touch()
        self._read = 0
        program, words = _words(program, arguments)
        self.stdin: Any
        if not FORKS:
            streams: dict[str, Any] = {"stdin": subprocess.PIPE if stdin else subprocess.DEVNULL, "bufsize": 0}
            with self._printed.open("ab") as file:
                streams |= {"stdout": file, "stderr": subprocess.STDOUT}
                process = subprocess.Popen(_command(program, words), env=_own_process() | (variables or {}), **streams)
            self.pid, self.stdin, self._status = process.pid, process.stdin, process.poll
            return
        if stdin:
            os.mkfifo(pipe)
        changed = _changed_variables() | (variables or {})
        files = [str(pipe) if stdin else os.devnull, str(self._printed)]
        self.pid = server().ask("start", program, words, str(Path.cwd()), changed, *files)
        self._status = partial(server().ask, "poll", self.pid)
        # Waits for the program to open it.
        self.stdin = pipe.open("wb", buffering=0) if stdin else None

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self.wait()

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._status()
            if self.returncode is not None and self.stdin is not None:
                self.stdin.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))  # which ends it at once on Windows

    def wait(self, timeout: float = 300) -> int:
        """RAISES (TimeoutExpired): It still runs."""
        self._until(lambda: self.poll() is not None, timeout)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, given: bytes = b"", timeout: float = 300) -> tuple[str, None]:
        """Give it the rest of its input, and wait for its end. RETURNS: What it printed."""
        if self.stdin is not None:
            if given:
                self.stdin.write(given)
            self.stdin.close()
        self.wait(timeout)
        return self._printed.read_text("utf8"), None

    def readline(self) -> str:
        """Wait for its next line, or its end."""
        self._until(lambda: b"\n" in self._rest() or self.poll() is not None, 300)
        line, newline, _ = self._rest().partition(b"\n")
        self._read += len(line + newline)
        return (line + newline).decode("utf8")

    def _rest(self) -> bytes:
        return self._printed.read_bytes()[self._read :]

    def _until(self, condition: Callable[[], bool], timeout: float) -> None:
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)


def _words(program: Program, arguments: Sequence[object]) -> tuple[Program, list[str]]:
    program = program if isinstance(program, str) else [str(word) for word in program]
    return program, [str(argument) for argument in arguments]


def _command(program: Program, words: list[str]) -> list[str]:
    """Of a program that is not forked."""
    own = ["-c", program] if isinstance(program, str) else ["-m", "spacy", *program]
    return [sys.executable, *own, *words]


def _own_process() -> dict[str, str]:
    """The environment of a program that is not forked: it prints as those do that are."""
    return environment() | {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}


def _changed_variables() -> dict[str, str | None]:
    """Of the environment, since the server began."""
    before, now = _environment(), dict(os.environ)
    variables: dict[str, str | None] = dict.fromkeys(before.keys() - now.keys())
    return variables | {name: value for name, value in now.items() if before.get(name) != value}


@cache
def _environment() -> dict[str, str]:
    """As it was when the server began."""
    return dict(os.environ)


@cache
def server() -> Server:
    """It has imported spaCy, and nothing of this package."""
    found = Server("tests.forks", environment())
    atexit.register(found.close)
    return found


def save_time() -> None:
    """Leave out what takes more than half of the time of trainings as small as ours.

    For each message that it reads or writes, and for each function of a config, catalogue looks through the entry
    points of all installed packages. For each block of a config, confection reads the signature of its function anew,
    and it parses a config as text each time that it is interpolated, ten times in a training.
    An English pipeline is made with 1,347 exceptions for its tokenizer. A parser or entity recognizer finds the scale
    of a layer from 5,000 random vectors; 1,000 do, and fewer the function can't take.
    So some words have another NORM, layers another scale, and a training ends with other weights than in spaCy: alike
    in all trainings that a test compares. The hosts' own tests run with all of it.
    """
    import catalogue
    import confection._config
    from confection.validation import Schema
    from spacy.lang.en import EnglishDefaults
    from spacy.language import BaseDefaults
    from spacy.ml import _precomputable_affine as affine
    from srsly import msgpack

    points: Any = catalogue.AVAILABLE_ENTRY_POINTS
    if hasattr(points, "select"):
        catalogue.AVAILABLE_ENTRY_POINTS = {group: list(points.select(group=group)) for group in points.groups}
    coders: Any
    for coders in (msgpack.msgpack_encoders, msgpack.msgpack_decoders):
        coders.get_all = cache(coders.get_all)
    config: Any = confection._config
    parse = config.parse_config

    @lru_cache(100)
    def parsed(text: str, interpolate: bool) -> bytes:
        return pickle.dumps(parse(text, interpolate=interpolate))

    config.parse_config = lambda text, *, interpolate=True, overrides={}: (
        parse(text, interpolate=interpolate, overrides=overrides)
        if overrides
        else pickle.loads(parsed(text, interpolate))
    )
    schema: Any = Schema
    schema.from_function = cache(schema.from_function)
    init: Any = affine.init
    constants = tuple(1000 if value == 5000 else value for value in init.__code__.co_consts)
    init.__code__ = init.__code__.replace(co_consts=constants)
    defaults: Any
    for defaults, words in ((EnglishDefaults, ("can't", "it's", "e.g.")), (BaseDefaults, (":)",))):
        defaults.tokenizer_exceptions = {word: defaults.tokenizer_exceptions[word] for word in words}


def import_spacy() -> None:
    import spacy.cli
    from spacy.lang.en import English

    # No test waits for the registries of others, or for regular expressions, which Python keeps once they are compiled;
    # ours are looked up by each program.
    spacy.registry.ensure_populated()
    for affix in ("prefix", "suffix", "infix"):
        getattr(spacy.util, f"compile_{affix}_regex")(getattr(English.Defaults, f"{affix}es"))
    assert not any(name.partition(".")[0] == "thinc_torchopt" for name in sys.modules)


def _run(program: Program, words: list[str], folder: str, variables: dict[str, str | None]) -> list[Any]:
    return fork(program, *words, folder=folder, variables=variables)


def _start(
    program: Program, words: list[str], folder: str, variables: dict[str, str | None], stdin: str, printed: str
) -> int:
    with open(printed, "ab") as file:
        options: dict[str, Any] = {"stdout": file.fileno(), "stderr": file.fileno(), "stdin": stdin}
        return begin(program, *words, **options, folder=folder, variables=variables)


def _poll(process: int) -> int | None:
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    from .foreign_programs import fork_foreign

    import_spacy()
    save_time()
    answers = {"run": _run, "start": _start, "poll": _poll, "foreign": fork_foreign}
    serve(lambda name, *request: answers[name](*request))
