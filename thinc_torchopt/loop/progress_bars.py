"""Progress bars for slow work. They go to stderr, so stdout has only the command's output."""

from __future__ import annotations

import sys
from typing import Any

import tqdm


def show_progress(steps: int, what: str, *, wanted: bool = True) -> tqdm.tqdm[Any]:
    """A bar, for a `with` block: it disappears at the end, also after an error. Call its `update` after each step.

    steps (int): The number of steps.
    what (str): The kind of work, for people.
    wanted (bool): False: no bar. There is none either if stderr is neither a terminal nor a notebook, as in a log.
    """
    return tqdm.tqdm(total=steps, desc=what, disable=not (wanted and _is_watched()), leave=False, file=sys.stderr)


def show_activity(what: str) -> tqdm.tqdm[Any]:
    """A line that names the work, if nobody knows how long it takes. As `show_progress`."""
    return tqdm.tqdm(desc=f"{what} ...", bar_format="{desc}", disable=not _is_watched(), leave=False, file=sys.stderr)


def _is_watched() -> bool:
    """Whether somebody sees stderr while it is written. A notebook's is not a terminal, but shows bars."""
    stderr = sys.stderr
    return stderr is not None and (stderr.isatty() or type(stderr).__module__.startswith("ipykernel."))
