"""Progress bars for work that takes long. On stderr, so that what a command prints to stdout stays clean."""

from __future__ import annotations

import sys

import tqdm


def show_progress(steps: int, what: str, *, wanted: bool = True) -> tqdm.tqdm[None]:
    """A bar, for a `with` block: it is gone afterwards, also after an error. Call its `update` after each step.

    steps (int): How many there will be.
    what (str): What is done, for people.
    wanted (bool): False: no bar. There is none either where stderr is neither a terminal nor a notebook, as in a log.
    """
    stderr = sys.stderr
    # A notebook's stderr is no terminal, but shows bars.
    is_shown = stderr is not None and (stderr.isatty() or type(stderr).__module__.startswith("ipykernel."))
    return tqdm.tqdm(total=steps, desc=what, disable=not (wanted and is_shown), leave=False, file=stderr)
