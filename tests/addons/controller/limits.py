"""Measures what a piece of code does, without a clock: byte codes, memory, and what Python's audit hooks see."""

import sys
import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace

STOP = 30_000_000
_seen: list[str] = []
_is_watching = False


def _audit(event, args):
    if _is_watching:
        _seen.append(event)


@contextmanager
def measured(*, counts_codes=True):
    """RETURNS (SimpleNamespace): Filled at the end. `codes`: byte codes that ran, `peak`: bytes, `events`: those of
    Python's audit hooks.

    counts_codes (bool): Count byte codes, which takes long.
    """
    global _is_watching
    found = SimpleNamespace(codes=0, peak=0, events=[])

    codes = 0

    def count(frame, event, arg):
        nonlocal codes
        if event == "opcode":
            codes += 1
            if codes > STOP:
                raise RuntimeError(f"more than {STOP} byte codes")
        return count

    def trace(frame, event, arg):
        """Of each function that is called."""
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    if not hasattr(measured, "is_installed"):
        sys.addaudithook(_audit)
        measured.is_installed = True
    before = sys.gettrace()
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    _seen.clear()
    _is_watching = True
    if counts_codes:
        sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)
        _is_watching = False
        found.codes = codes
        found.peak = tracemalloc.get_traced_memory()[1] - start
        tracemalloc.stop()
        found.events = list(_seen)
