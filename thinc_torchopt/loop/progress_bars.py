"""Progress of slow work, on stderr, so stdout has only the command's output.

Where somebody sees stderr while it is written, in a terminal or a notebook: a bar, which is gone afterwards. In a file
or a pipe: a plain line for each result.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import tqdm


def show_progress(steps: int, what: str, *, wanted: bool = True, done: int = 0) -> Bar:
    """The progress of work whose steps are known, for a `with` block. Call its `update` after each step.

    steps (int): The number of steps.
    what (str): The kind of work, for people.
    wanted (bool): False: show nothing.
    done (int): Steps that were done before, and say nothing about the time that is left.
    """
    return Bar(what, wanted=wanted, total=steps, initial=done)


def show_activity(what: str) -> Bar:
    """Names the work, if nobody knows how long it takes. As `show_progress`."""
    return Bar(f"{what} ...", bar_format="{desc}")


class Bar:
    """A bar. It disappears at the end of its `with` block, also after an error."""

    def __init__(self, what: str, *, wanted: bool = True, **options: Any):
        self._stream = sys.stderr if wanted else None
        self._is_seen = wanted and _is_watched()
        self._bar = tqdm.tqdm(desc=what, leave=False, file=sys.stderr, disable=not self._is_seen, **options)

    def update(self, steps: int = 1) -> None:
        """Some steps are done."""
        self._bar.update(steps)

    def move_to(self, done: int) -> None:
        """So many steps are done in all, also if some were left out."""
        self._bar.update(done - self._bar.n)

    def set_description(self, what: str) -> None:
        """Name the work that begins now."""
        self._bar.set_description(what)

    def tell(self, result: str) -> None:
        """A part of the work has a result. Where there is a bar, the command's output will say it."""
        if not self._is_seen:
            self.say(result)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._stream is not None:
            with suppress(OSError, ValueError):  # the pipe or the file was closed: the work goes on
                self._bar.write(text, file=self._stream)
                self._stream.flush()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def _is_watched() -> bool:
    """Whether somebody sees stderr while it is written. A notebook's is not a terminal, but shows bars."""
    stderr = sys.stderr
    return stderr is not None and (stderr.isatty() or type(stderr).__module__.startswith("ipykernel."))
