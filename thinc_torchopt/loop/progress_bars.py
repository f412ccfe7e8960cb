"""Progress of slow work, on stderr, so stdout has only the command's output.

Where somebody sees stderr while it is written, in a terminal or a notebook: a bar, which is gone afterwards. In a file
or a pipe: plain lines, one for each result, and one every 30 seconds with the time that is left.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Event, Thread
from timeit import default_timer
from typing import IO, Any

import tqdm

_interval = tqdm.tqdm.format_interval
# In a file or a pipe, there is a line at least that often.
_SECONDS = 30.0


def show_progress(steps: int, what: str, *, wanted: bool = True, done: int = 0) -> Bar | Lines:
    """The progress of work whose steps are known, for a `with` block. Call its `update` after each step.

    steps (int): The number of steps.
    what (str): The kind of work, for people.
    wanted (bool): False: show nothing.
    done (int): Steps that were done before, and say nothing about the time that is left.
    """
    if wanted and _is_watched():
        return Bar(what, total=steps, initial=done)
    return Lines(what, sys.stderr if wanted else None, steps, done)


def show_activity(what: str) -> Bar | Lines:
    """Names the work, if nobody knows how long it takes. As `show_progress`."""
    what = f"{what} ..."
    return Bar(what, bar_format="{desc}") if _is_watched() else Lines(what, sys.stderr)


class Bar:
    """A bar. It disappears at the end of its `with` block, also after an error."""

    def __init__(self, what: str, **options: Any):
        self._bar = tqdm.tqdm(desc=what, leave=False, file=sys.stderr, **options)

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
        """A part of the work has a result: here, the command's output will say it."""

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._bar.write(text, file=sys.stderr)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class Lines:
    """Plain lines, for files and pipes. For the methods, see `Bar`.

    stream (IO[str] | None): Where they go. None: there are none.
    steps (int | None): The number of steps. None: unknown.
    """

    def __init__(self, what: str, stream: IO[str] | None, steps: int | None = None, done: int = 0):
        self._what = what
        self._stream = stream
        self._steps = steps
        self._done = self._done_before = done
        self._began = default_timer()
        self._ended = Event()
        # A step or an evaluation may take long, so no step could say that the work goes on.
        self._clock = Thread(target=self._go_on_telling, daemon=True)

    def update(self, steps: int = 1) -> None:
        self._done += steps

    def move_to(self, done: int) -> None:
        self._done = done

    def set_description(self, what: str) -> None:
        self._what = what

    def tell(self, result: str) -> None:
        self.say(f"{self._progress()} {result}")

    def say(self, text: str) -> None:
        if self._stream is not None:
            with suppress(OSError, ValueError):  # the pipe or the file was closed: the work goes on
                print(text, file=self._stream, flush=True)

    def _go_on_telling(self) -> None:
        while not self._ended.wait(_SECONDS):
            self.tell(self._what)

    def _progress(self) -> str:
        seconds, done = default_timer() - self._began, self._done - self._done_before
        if not self._steps or done <= 0:
            return f"[{_interval(seconds)} so far]"
        left = max(0, self._steps - self._done)
        return f"[{self._done / self._steps:4.0%}, {_interval(seconds / done * left)} left]"

    def __enter__(self) -> Lines:
        if self._stream is not None:
            self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._stream is not None:
            self._clock.join()


def _is_watched() -> bool:
    """Whether somebody sees stderr while it is written. A notebook's is not a terminal, but shows bars."""
    stderr = sys.stderr
    return stderr is not None and (stderr.isatty() or type(stderr).__module__.startswith("ipykernel."))
