"""Measures what a piece of code does, without a clock: lines, memory, and what Python's audit hooks see."""

import sys
import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace

STOP = 5_000_000
_seen: set[str] = set()
_is_watching = False


def _audit(event, args):
    if _is_watching:
        _seen.add(event)


@contextmanager
def measured(*, counts_lines=True):
    """RETURNS (SimpleNamespace): Filled at the end. `lines`: of Python that ran, those of a loop in each of its rounds,
    `peak`: bytes, `events`: those of Python's audit hooks.

    counts_lines (bool): Count lines, which takes long.
    """
    global _is_watching
    found, lines = SimpleNamespace(lines=0.0, peak=0, events=set()), 0.0

    def count(frame, event, arg):
        nonlocal lines
        lines += 1.0  # to make a float takes no memory that is traced, which takes long
        if lines > STOP:
            raise RuntimeError(f"more than {STOP} lines")
        return count

    if not hasattr(measured, "is_installed"):
        sys.addaudithook(_audit)
        measured.is_installed = True
    before = sys.gettrace()
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    _seen.clear()
    _is_watching = True
    if counts_lines:
        sys.settrace(count)
    try:
        yield found
    finally:
        sys.settrace(before)
        _is_watching = False
        found.lines = lines
        found.peak = tracemalloc.get_traced_memory()[1] - start
        tracemalloc.stop()
        found.events = set(_seen)
