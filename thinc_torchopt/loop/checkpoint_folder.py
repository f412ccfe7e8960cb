"""The folder of a run's checkpoints: write them while the training continues, find them, check them, remove old ones.

A checkpoint is recognized by its name, which is its step, and by its files, which core/state/files.py writes. Other
files are never touched.

To write one, the tensors are copied, and a thread writes the copies: one checkpoint at a time. A write that failed is
told at the next step, or where the run waits for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from ..core.errors import CheckpointWarning, StateError, StateReadError
from ..core.log import inform
from ..core.schema import Positive, check_version, read
from ..core.state import (
    MANIFEST,
    TENSORS,
    VALUES,
    advice_on,
    check_folder,
    copies_in_main_memory,
    flatten,
    read_folder,
    write_parts,
)
from .data_stream import StreamState
from .model_state import SavedPipeline
from .progress import Progress
from .run_lock import RunLock

VERSION = 4
# Subfolder for the checkpoint of a step at which a signal stopped the run, and none was due.
STOPPED = "stopped"
# Writes under way, by folder: an abandoned run of this process may still write when the next one begins.
_under_way: WeakValueDictionary[Path, Future[None]] = WeakValueDictionary()


@dataclass
class RanksState:
    """The seed and the number of several processes."""

    seed: int
    world_size: Positive


@dataclass
class SavedTraining(SavedPipeline):
    """The content of a checkpoint.

    label_data (dict): By component, the labels at the start as [initialize.components] takes them: JSON.
    late_labels (dict): By component, the labels that came since, in order: see late_labels.py.
    performance (dict): The scores that spaCy saves with its models.
    own (dict): The user's own values, in a loop of theirs.
    """

    label_data: dict[str, str]
    late_labels: dict[str, list[str]]
    progress: Progress
    data: StreamState
    performance: dict[str, Any]
    listeners: dict[str, Any]
    ranks: RanksState | None
    own: dict[str, Any]

    def check_place(self, *, is_spacys: bool) -> None:
        """Check that the step, batches and optimizer of a checkpoint agree. A wrong position could take forever to
        reach.

        is_spacys (bool): Whether it is a run of `spacy train`.
        RAISES (StateError): They don't agree.
        """
        batches, steps, left_out = self.data.position, self.progress.step + 1, self.progress.left_out
        of_optimizer = self.optimizer.get("step")
        # A user's own loop may step its schedules at any time.
        if (
            batches != steps + left_out
            or batches != sum(n for _, n in self.data.sizes)
            or (is_spacys and of_optimizer != steps)
        ):
            raise StateError(
                "Can't resume: the checkpoint is damaged. Its numbers of batches and steps should agree, but are "
                f"{batches} and {steps + left_out}, and the optimizer has made {of_optimizer} steps."
            )


def name_of(step: int) -> str:
    """The folder name of a checkpoint."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """The step in a checkpoint's folder name. None: it is not such a name."""
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() and digits.isascii() and name_of(int(digits)) == path.name else None


def steps_of(*folders: Path) -> list[Path]:
    """The folders with names of checkpoints in some folders, oldest first. Their content is not checked."""
    found = ((step_of(path), path) for folder in folders for path in folder.glob("step-*") if path.is_dir())
    return [path for step, path in sorted((step, path) for step, path in found if step is not None)]


def resumable(folder: Path) -> list[Path]:
    """As `steps_of`, with the one that was written only because a signal stopped the run. A resumed run does not go
    back to that one: a run that was never stopped could not.
    """
    return steps_of(folder, folder / STOPPED)


def nearest(folder: Path) -> Path:
    """A folder, or the nearest one around it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def room_for(folder: Path, each: int, keep: int) -> int:
    """Bytes that checkpoints still need: those that are kept, and the one being written, less those there.

    each (int): Bytes of one. keep (int): How many are kept.
    """
    return max(0, most_at_once(folder, keep) * each - sum(map(bytes_of, resumable(folder))))


def most_at_once(folder: Path, keep: int) -> int:
    """How many checkpoints there are while one is written, if `keep` are kept."""
    return keep + 1 + bool(steps_of(folder / STOPPED))


def bytes_of(path: Path) -> int:
    """Bytes of a checkpoint's files. 0: it was just removed, or can't be read."""
    try:
        return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    except OSError:
        return 0


def read_checkpoint(path: Path) -> SavedTraining:
    """Read a checkpoint.

    RAISES (StateError): It is missing or damaged, the name of its folder is that of another step, or a newer version
        wrote it. (StateReadError): It can't be read.
    """
    found = read_folder(path)
    check_version(found, VERSION, _what(path))
    return _read(path, found)


def _read(path: Path, found: Any) -> SavedTraining:
    saved = read(SavedTraining, found, _what(path))
    if (step := step_of(path)) not in (None, saved.progress.step):
        raise StateError(
            f"Can't use '{path}': expected the checkpoint of step {step}, found that of step {saved.progress.step}. "
            "The folder was renamed."
        )
    return saved


def _what(path: Path) -> str:
    return f"the training in '{path}'"


def newest_whole(folder: Path, damaged: set[Path] | None = None) -> SavedTraining | None:
    """The newest undamaged checkpoint to resume from, if there is one. damaged (set[Path]): See `whole_ones`."""
    return next(whole_ones(reversed(resumable(folder)), damaged), None)


def whole_ones(paths: Iterable[Path], damaged: set[Path] | None = None) -> Iterator[SavedTraining]:
    """The undamaged ones of some checkpoints, in their order. Warns of damaged ones.

    damaged (set[Path]): Those are added here.
    RAISES (StateError): A newer version wrote one. (StateReadError): One can't be read. Skipping it would lose
        training.
    """
    for path in paths:
        try:
            found = read_folder(path)
        except StateError as error:
            _tell_damaged(path, error, damaged)
            continue
        check_version(found, VERSION, _what(path))
        try:
            saved = _read(path, found)
        except StateError as error:
            _tell_damaged(path, error, damaged)
        else:
            yield saved


def _tell_damaged(path: Path, error: StateError, damaged: set[Path] | None) -> None:
    if damaged is not None:
        damaged.add(path)
    warnings.warn(CheckpointWarning(f"{error} The next one is used, if there is one."), stacklevel=5)


def prune(
    folder: Path,
    keep: int,
    damaged: Collection[Path] = (),
    ranked: Callable[[int | None], Sequence[int]] = lambda until: (),
) -> None:
    """Remove all checkpoints that are older than the newest `keep` undamaged ones.

    damaged (Collection[Path]): Those known to be damaged. For others only file names and sizes are checked, as reading
        them all is slow.
    ranked (Callable): Returns steps up to a given one, the best first. For each checkpoint that is kept, the best one
        up to it is kept too: a run resumed there may go back to it.
    """
    paths = steps_of(folder)
    whole = [path for path in paths if path not in damaged and _looks_whole(path)]
    if len(whole) > keep:
        there = set(map(step_of, whole))
        best = {next((step for step in ranked(step_of(path)) if step in there), None) for path in whole[-keep:]}
        remove(path for path in paths[: paths.index(whole[-keep])] if step_of(path) not in best)


def remove(paths: Iterable[Path]) -> None:
    """Remove checkpoints. A folder with other files in it stays, with these files."""
    for path in paths:
        with suppress(OSError):
            ours = [path / name for name in (MANIFEST, VALUES, TENSORS) if (path / name).exists()]
            if ours and not path.is_symlink():
                for file in ours:
                    file.unlink()
                path.rmdir()


def _looks_whole(path: Path) -> bool:
    try:
        check_folder(path, only_sizes=True)
    except (StateError, StateReadError):
        return False
    return True


# ---------------------------------------------------------------------- writing


class _Writing(NamedTuple):
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
        self._writing: _Writing | None = None

    def wait_for_earlier_run(self) -> None:
        """Wait until a run of this process that was abandoned has written its last checkpoint."""
        earlier = _under_way.get(self.folder.resolve())
        if earlier is not None and not earlier.done():
            inform("Waiting until an earlier run has written its checkpoint to %s.", self.folder)
            futures.wait([earlier])

    def write(self, folder: Path, step: int, state: Any, then: Callable[[], None]) -> None:
        """Write the state after a step. Warns if the disk is full.

        folder (Path): That of the checkpoints, or its subfolder.
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
        done = self._thread.submit(write_parts, folder / name_of(step), values, tensors)
        _under_way[self.folder.resolve()] = done
        self._writing = _Writing(self.newest, then, done)
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
                f"unchanged.{advice_on(error)}"
            ),
            stacklevel=5,
        )
