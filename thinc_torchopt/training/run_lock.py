"""One run for each folder, of checkpoints or of results: a file there says whose it is.

The run's process holds a lock on it, which the system lets go of when the process ends, however it ends: there are no
stale ones. Where disks have no locks, and within one process, the last run that comes has the folder; the one before
finds out before it writes again.
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

from ..errors import ConfigError, StateError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NAME = "lock.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class RunLock:
    """A run's claim to a folder.

    folder (Path): The folder. It is made if it is not there.
    what, setting (str): What the run writes there, and where it is told to, for errors.
    """

    def __init__(
        self, folder: Path, *, what: str = "checkpoints", setting: str = "'path' in [training.optimizer.checkpoint]"
    ):
        self.path = folder / _NAME
        self._what, self._setting = what, setting
        self._run = uuid.uuid4().hex
        self._file: _LockFile | None = None

    def take(self) -> None:
        """Claim the folder.

        RAISES (StateError): It is that of a run that goes on. (ConfigError): Nothing can be written there, or its lock
            is a link.
        """
        try:
            self._take()
        except OSError as error:
            if error.errno not in _FULL:  # of a full disk something may be removed
                raise ConfigError(
                    f"Can't save {self._what} in '{self.path.parent}': expected a folder that can be written to, found "
                    f"{type(error).__name__}: {error}. Change {self._setting}."
                ) from error

    def check(self) -> None:
        """Check that the folder is still this run's.

        RAISES (StateError): Another run has taken it. (ConfigError): Its lock is a link. (OSError): It is gone, and
            can't be made again.
        """
        if self._file is None or not self._file.is_at(self.path):
            self._take()
        elif (found := self._file.read()) and found.get("run") != self._run:
            raise StateError(
                f"Can't write {self._what} to '{self.path.parent}': expected a folder for this run alone, found that "
                f"another run has taken it since: {_describe(found)}. Give each run its own {self._setting}."
            )

    def release(self) -> None:
        """Let the folder go."""
        file, self._file = self._file, None
        if file is not None and file.is_at(self.path) and file.read().get("run") == self._run:
            with suppress(OSError):  # Windows removes no open file
                self.path.unlink()

    def _take(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        key = os.path.join(os.path.realpath(self.path.parent), _NAME)
        # A process must not open it twice: to close one of two lets go of the lock.
        file = _open.get(key)
        while file is None or not file.is_at(self.path):
            file = _LockFile(self.path)
            if not file.lock():
                raise StateError(
                    f"Can't use '{self.path.parent}' for {self._what}: expected a folder for this run alone, found one "
                    f"that another run uses: {_describe(file.read())}. Stop it (in a notebook: restart the kernel), or "
                    f"change {self._setting}."
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


def is_in_use(folder: Path) -> bool | None:
    """Whether a run that goes on has a folder. Takes nothing from it.

    RETURNS (bool | None): None: it can't be told. The last run was on another machine, or there are no locks.
    """
    path = folder / _NAME
    if os.path.realpath(path) in _open:
        return True
    try:
        # A pipe would be waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        if fcntl is None:
            return None
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        host = json.loads(os.read(descriptor, 4096))["host"]
    except OSError as error:
        return True if error.errno in (errno.EACCES, errno.EAGAIN) else None
    except (ValueError, LookupError, TypeError):
        return False
    finally:
        os.close(descriptor)
    return False if host == socket.gethostname() else None


def hold(descriptor: int) -> None:
    """Hold an open file until it is closed, or the process ends, however it ends. Nothing where disks have no locks."""
    with suppress(OSError):
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(path: Path) -> bool | None:
    """Whether a process holds a file: `hold`. RETURNS (bool | None): None: it can't be told."""
    if fcntl is None:
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EACCES, errno.EAGAIN) else None
    return False


class _LockFile:
    """An open file with a lock on it, for as long as somebody has it.

    path (Path): Made if it is not there.
    RAISES (ConfigError): It is a link: what it links to would be overwritten. (OSError): It can't be written.
    """

    def __init__(self, path: Path):
        if path.is_symlink():
            raise ConfigError(
                f"Can't lock '{path}': expected a file of this package, found a link to '{os.readlink(path)}'. "
                "That would be overwritten. Remove the link."
            )
        # The same once more, for who makes a link just now.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def lock(self) -> bool:
        """Lock it. RETURNS (bool): No other process has."""
        if fcntl is not None:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return error.errno not in (errno.EACCES, errno.EAGAIN)  # others: a disk without locks
        return True

    def is_at(self, path: Path) -> bool:
        """Whether this is the file at a path: it may have been removed, and another be there."""
        try:
            there, here = os.lstat(path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def read(self) -> dict[str, Any]:
        """What was written; nothing if that is not readable."""
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
