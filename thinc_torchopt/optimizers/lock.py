"""One thread at a time: several may update one pipeline.

A lock, and no decorator that holds it: warnings tell the line that called, and count the frames up to it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import RLock
from typing import Any
from weakref import WeakSet


class Lock:
    """A lock that the thread which holds it may take again. A forked process has one of its own."""

    def __init__(self) -> None:
        self._lock = RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: Any) -> None:
        with suppress(RuntimeError):  # the process was forked inside of the block: it has another one
            self._lock.release()


_all: WeakSet[Lock] = WeakSet()


def _renew_locks() -> None:
    """In a forked process there is no other thread that would release them."""
    for lock in list(_all):
        lock._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
