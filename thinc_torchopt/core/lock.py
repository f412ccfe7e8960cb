"""A lock for each optimizer: several threads may update one pipeline.

No decorator holds the lock: warnings name the line that called, and count the frames up to it.
"""

from __future__ import annotations

import os
from threading import RLock
from typing import Any
from weakref import WeakSet

_all: WeakSet[Any] = WeakSet()


def lock_for(holder: Any) -> Any:
    """A reentrant lock for an object that keeps it as `_lock`.

    In a forked process the object gets a new lock: the thread that would release this one does not exist there.
    """
    _all.add(holder)
    return RLock()


def _renew_locks() -> None:
    for holder in list(_all):
        holder._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
