"""Writes checkpoints while the training continues.

The tensors are copied, and a thread writes the copies: one checkpoint at a time. A write that failed is told at the
next step, or where the run waits for it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from ..core.errors import CheckpointWarning
from ..core.state import copies_in_main_memory, flatten, write_parts
from .checkpoint_folder import name_of
from .run_lock import RunLock

logger = logging.getLogger("spacy.torchopt")

# Writes under way, by folder: an abandoned run of this process may still write when the next one begins.
_under_way: WeakValueDictionary[Path, Future[None]] = WeakValueDictionary()


class Writing(NamedTuple):
    """A checkpoint that is being written.

    before (int | None): Step of the checkpoint before. then (Callable): Called when it is written.
    """

    before: int | None
    then: Callable[[], None]
    done: Future[None]


class CheckpointWriter:
    """Writes the checkpoints of a run into its folder.

    folder (Path): The folder. lock (RunLock): Its lock, checked before each write.
    in_background (bool): Write in a thread. False: the run waits.

    Public: `newest` (step of the newest checkpoint that is written, is being written, or from which the run was
        resumed; None: there is none).
    """

    def __init__(self, folder: Path, lock: RunLock, *, in_background: bool):
        self.folder = folder
        self.newest: int | None = None
        self._lock = lock
        self._in_background = in_background
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Writing | None = None

    def wait_for_earlier_run(self) -> None:
        """Wait until a run of this process that was abandoned has written its last checkpoint."""
        earlier = _under_way.get(self.folder.resolve())
        if earlier is not None and not earlier.done():
            logger.info("Waiting until an earlier run has written its checkpoint to %s.", self.folder)
            futures.wait([earlier])

    def write(self, step: int, state: Any, then: Callable[[], None]) -> None:
        """Write the state after a step. Warns if the disk is full.

        state (Any): A tree of plain values and tensors, which the training may change afterwards.
        then (Callable): Called by the run's own thread once the checkpoint is written.
        """
        self.wait()
        values, tensors = flatten(state)
        if self._in_background:
            tensors = copies_in_main_memory(tensors)
        try:
            self._lock.check()
        except OSError as error:
            self.warn(error)
            return
        done = self._thread.submit(write_parts, self.folder / name_of(step), values, tensors)
        _under_way[self.folder.resolve()] = done
        self._writing = Writing(self.newest, then, done)
        self.newest = step
        if not self._in_background:
            self.wait()

    def look(self) -> None:
        """Finish a write whose thread is done, without waiting."""
        if self._writing is not None and self._writing.done.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is written. Warns if the disk is full."""
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        try:
            writing.done.result()
        except BaseException as error:
            self.newest = writing.before
            if not isinstance(error, OSError):
                raise
            self.warn(error)
            return
        writing.then()

    def close(self) -> None:
        """Wait for the last checkpoint, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def warn(self, error: OSError) -> None:
        """Warn about a checkpoint that can't be written."""
        warnings.warn(
            CheckpointWarning(
                f"Can't write a checkpoint to '{self.folder}': {error}. Training continues, and older checkpoints are "
                "unchanged. Make room on the disk, or lower 'keep'."
            ),
            stacklevel=5,
        )
