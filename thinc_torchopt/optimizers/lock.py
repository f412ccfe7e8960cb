"""One thread at a time: several may update one pipeline.

A lock, and no decorator that holds it: warnings tell the line that called, and count the frames up to it.
"""

from __future__ import annotations

import os
from threading import RLock
from typing import Any
from weakref import WeakSet

_all: WeakSet[Any] = WeakSet()


def lock_for(holder: Any) -> Any:
    """A lock for an object, which has it as `_lock`; the thread that holds it may take it again. In a forked process
    the object gets another one: there is no other thread that would release this.
    """
    _all.add(holder)
    return RLock()


def _renew_locks() -> None:
    for holder in list(_all):
        holder._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
