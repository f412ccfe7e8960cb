"""Progress bars for work that takes long. On stderr, so that what a command prints to stdout stays clean."""

from __future__ import annotations

import sys
from typing import Any

import tqdm


def show_progress(steps: int, what: str, *, wanted: bool = True) -> tqdm.tqdm[Any]:
    """A bar, for a `with` block: it is gone afterwards, also after an error. Call its `update` after each step.

    steps (int): How many there will be.
    what (str): What is done, for people.
    wanted (bool): False: no bar. There is none either where stderr is neither a terminal nor a notebook, as in a log.
    """
    return tqdm.tqdm(total=steps, desc=what, disable=not (wanted and _is_watched()), leave=False, file=sys.stderr)


def show_activity(what: str) -> tqdm.tqdm[Any]:
    """A line that says what is done, where nobody knows how long it takes. As `show_progress`."""
    return tqdm.tqdm(desc=f"{what} ...", bar_format="{desc}", disable=not _is_watched(), leave=False, file=sys.stderr)


def _is_watched() -> bool:
    """Whether somebody sees stderr as it is written. A notebook's is no terminal, but shows bars."""
    stderr = sys.stderr
    return stderr is not None and (stderr.isatty() or type(stderr).__module__.startswith("ipykernel."))
