"""A prompt: types commands into a terminal of 80 columns, each in a process of its own.

Run as a program, it answers requests, see forks.py: each with what the terminal shows, and the exit status.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .. import forks
from ..forks import Server, run_to_the_end, serve

ROWS, COLUMNS = 24, 80
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Screen(NamedTuple):
    """What a terminal shows of a command, without colours; and the exit status."""

    text: str
    status: int


class Prompt:
    """Types commands. Closed by `close`."""

    def __init__(self) -> None:
        self._server = Server("tests.mistakes.prompt", environment())
        self.close = self._server.close

    def type(self, arguments: Sequence[str], folder: Path, *, ctrl_c_at: str = "", **variables: str) -> Screen:
        """Run `spacy ...` in a folder. ctrl_c_at (str): Press Ctrl-C when the terminal shows this text.

        variables (str): Of the environment.
        """
        return Screen(*self._server.ask(list(arguments), str(folder), variables, ctrl_c_at))


def environment() -> dict[str, str]:
    """As users have it, but for what would differ from machine to machine. Python leaves nothing beside their code."""
    kept = {name: value for name, value in forks.environment().items() if not name.startswith("THINC_TORCHOPT_")}
    return {**kept, "COLUMNS": str(COLUMNS), "TERM": "xterm", "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> None:
    import spacy.cli
    import torch

    import thinc_torchopt.addons.preview
    import thinc_torchopt.addons.report
    import thinc_torchopt.addons.trials  # noqa: F401  # what commands import; but not the commands, which look who imports them

    torch.set_num_threads(1)
    forks.save_time()
    spacy.registry.ensure_populated()
    spacy.blank("en")  # compiles its regular expressions
    # torch imports more when it makes its first optimizer.
    spacy.registry.resolve({"algorithm": {"@torch_optimizers": "torch.AdamW.v1"}})["algorithm"].trial  # noqa: B018
    serve(_type)


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
        run_to_the_end(arguments)
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


if __name__ == "__main__":
    main()
