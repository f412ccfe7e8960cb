"""A lock on a folder of checkpoints or results, for one run.

The run's process locks a file there. The system releases the lock when the process ends in any way, so there are no
stale ones. On disks without locks, and within one process, the latest run gets the folder; the earlier one notices
before it writes again.

The lock is POSIX's (`lockf`): processes that a run has forked, as for loading data, do not inherit it, so it is free
when the run is killed and they live on. The filelock library takes `flock`, which they keep (filelock 3.16.1; 4.2.12
takes care of forks); where a disk has no `flock`, it leaves a marker that outlives its owner; and it must be able to
write to a file to see whether it is locked.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ..core.errors import ConfigError, StateError
from ..core.state import FULL

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NAME = "lock.json"


class RunLock:
    """A run's lock on a folder.

    folder (Path): The folder. Created if it is missing.
    what, setting (str): What the run writes there, and the setting of the folder, for errors.
    """

    def __init__(
        self, folder: Path, *, what: str = "checkpoints", setting: str = "'path' in [training.optimizer.checkpoint]"
    ):
        self.path = folder / _NAME
        self._what, self._setting = what, setting
        self._run = uuid.uuid4().hex
        self._file: _LockFile | None = None
        self._made_folder = False

    def acquire(self) -> None:
        """Lock the folder.

        RAISES (StateError): Another run uses it. (ConfigError): It is not writable, or its lock file is a link.
        """
        try:
            self._acquire()
        except OSError as error:
            if error.errno not in FULL:  # old checkpoints may be removed from a full disk
                raise ConfigError(
                    f"Can't save {self._what} in '{self.path.parent}': expected a folder that can be written to, found "
                    f"'{error.strerror or error}'. Change {self._setting}."
                ) from error

    def check(self) -> None:
        """Check that this run still has the folder.

        RAISES (StateError): Another run has it. (ConfigError): Its lock file is a link. (OSError): The file is gone,
            and can't be written again.
        """
        if self._file is None or not self._file.is_at(self.path):
            self._acquire()
        elif (found := self._file.read()) and found.get("run") != self._run:
            raise StateError(
                f"Can't write {self._what} to '{self.path.parent}': another run uses this folder now: "
                f"{_describe(found)}. Give each run its own {self._setting}."
            )

    def release(self) -> None:
        """Unlock the folder. One that was made for the lock goes, if nothing was written."""
        file, self._file = self._file, None
        if file is not None and file.is_at(self.path) and file.read().get("run") == self._run:
            with suppress(OSError):  # Windows does not remove open files; there are others in the folder
                self.path.unlink()
                if self._made_folder:
                    self.path.parent.rmdir()

    def _acquire(self) -> None:
        self._made_folder |= not self.path.parent.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        key = os.path.join(os.path.realpath(self.path.parent), _NAME)
        # A process must not open it twice: closing either one releases the lock.
        file = _open.get(key)
        while file is None or not file.is_at(self.path):
            file = _LockFile(self.path)
            if not file.lock():
                raise StateError(
                    f"Can't use '{self.path.parent}' for {self._what}: another run uses it: {_describe(file.read())}. "
                    f"Stop it (in a notebook: restart the kernel), or change {self._setting}."
                )
            _open[key] = file
        file.write(
            {
                "run": self._run,
                "process": os.getpid(),
                "host": socket.gethostname(),
                "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
        )
        self._file = file


def hold(descriptor: int) -> None:
    """Lock an open file until it is closed or the process ends. Does nothing on disks without locks."""
    with suppress(OSError):
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool | None:
    """Whether a process has locked a file by `hold`. RETURNS (bool | None): None: unknown."""
    if fcntl is None:
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EACCES, errno.EAGAIN) else None
    return False


class _LockFile:
    """An open file with a lock, as long as the object lives.

    path (Path): Created if it is missing.
    RAISES (ConfigError): It is a link, whose target would be overwritten. (OSError): It can't be written.
    """

    def __init__(self, path: Path):
        if path.is_symlink():
            raise ConfigError(
                f"Can't lock '{path}': expected a file of this package, found a link to '{os.readlink(path)}', which "
                "would be overwritten. Remove the link."
            )
        # O_NOFOLLOW: again, in case a link was made just now.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def lock(self) -> bool:
        """Lock it. RETURNS (bool): False: another process has locked it."""
        if fcntl is not None:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return error.errno not in (errno.EACCES, errno.EAGAIN)  # others: a disk without locks
        return True

    def is_at(self, path: Path) -> bool:
        """Whether this is still the file at a path: it may have been replaced."""
        try:
            there, here = os.lstat(path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def read(self) -> dict[str, Any]:
        """The content. Empty: it is not readable."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        try:
            found = json.loads(os.read(self._descriptor, 4096))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, content: dict[str, Any]) -> None:
        """RAISES (OSError): The disk is full."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, json.dumps(content).encode("utf8"))


_open: WeakValueDictionary[str, _LockFile] = WeakValueDictionary()


def _describe(found: dict[str, Any]) -> str:
    return f"process {found.get('process', '?')} on {found.get('host', '?')}, since {found.get('since', '?')}"
