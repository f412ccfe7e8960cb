"""One thread at a time: several may update one pipeline.

A lock, and no decorator that holds it: warnings tell the line that called, and count the frames up to it.
"""

from __future__ import annotations

import os
from threading import RLock
from typing import Any, Protocol
from weakref import WeakSet


class Locked(Protocol):
    """What has a lock.

    _lock (RLock): Who holds it may call what wants it.
    """

    _lock: Any


_all: WeakSet[Locked] = WeakSet()


def give_lock(to: Locked) -> None:
    """Give an object a lock of its own."""
    to._lock = RLock()
    _all.add(to)


def _renew_locks() -> None:
    """In a forked process there is no other thread that would release them."""
    for holder in list(_all):
        holder._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
