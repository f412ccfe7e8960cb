"""A prompt: types commands into a terminal of 80 columns, each in a process of its own.

`python -m spacy` takes seconds to import everything. So one process imports it all, computes nothing, and forks for
each command; the fork runs spaCy's own main program, and ends as Python ends: uncaught errors go to `sys.excepthook`.

Run as a program, it reads requests from stdin as JSON lines, and answers each with a line: what the terminal shows, and
the exit status.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import runpy
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROWS, COLUMNS = 24, 80
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Screen(NamedTuple):
    """What a terminal shows of a command, without colours; and the exit status."""

    text: str
    status: int


class Prompt:
    """Types commands. Closed by `close`."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.mistakes.prompt"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def type(self, arguments: Sequence[str], folder: Path, *, ctrl_c_at: str = "", **variables: str) -> Screen:
        """Run `spacy ...` in a folder. ctrl_c_at (str): Press Ctrl-C when the terminal shows this text.

        variables (str): Of the environment.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps([list(arguments), str(folder), variables, ctrl_c_at]), file=self._server.stdin, flush=True)
        return Screen(*json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        self._server.communicate()


def environment() -> dict[str, str]:
    """As users have it, but for what would differ from machine to machine."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"COLUMNS": str(COLUMNS), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("THINC_TORCHOPT_")}
    return {**kept, **own, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(paths)}


def main() -> None:
    import spacy.cli
    import torch

    import thinc_torchopt.addons.report
    import thinc_torchopt.addons.trials  # noqa: F401  # what commands import; but not the commands, which look who imports them

    torch.set_num_threads(1)
    spacy.registry.ensure_populated()
    # torch imports more when it makes its first optimizer.
    spacy.registry.resolve({"algorithm": {"@torch_optimizers": "torch.AdamW.v1"}})["algorithm"].trial  # noqa: B018
    for line in sys.stdin:
        print(json.dumps(_type(*json.loads(line))), flush=True)


def _type(arguments: list[str], folder: str, variables: dict[str, str], ctrl_c_at: str) -> Screen:
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = os.fork()
    if process == 0:
        os.close(terminal)
        for stream in (0, 1, 2):
            os.dup2(inside, stream)
        os.chdir(folder)
        os.environ.update(variables)
        # Ctrl-C is ignored by what was started in the background, as these tests may be.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _run(arguments)
    os.close(inside)
    shown = b""
    while part := _read(terminal):
        shown += part
        if ctrl_c_at and ctrl_c_at.encode() in shown:
            os.kill(process, signal.SIGINT)
            ctrl_c_at = ""
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    lines = _COLOURS.sub("", shown.decode("utf8", "replace").replace("\r\n", "\n")).split("\n")
    # A line that is written anew, as that of what goes on, shows its last text.
    text = "\n".join(line.rpartition("\r")[2] for line in lines)
    return Screen(text, os.waitstatus_to_exitcode(status))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def _run(arguments: list[str]) -> None:
    """As `python -m spacy ...`. It does not return."""
    # The streams that this process began with are pipes.
    sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w", buffering=1, encoding="utf8") for stream in (1, 2))
    sys.argv = ["spacy", *arguments]
    status = 0
    try:
        runpy.run_module("spacy", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
