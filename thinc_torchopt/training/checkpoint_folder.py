"""The folder of a run's checkpoints: which there are, which are whole, which are to go.

A checkpoint is known by its name, which is its step, and by what is in it: what files.py writes. All else is left
alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..checks import check_version
from ..errors import CheckpointWarning, StateError
from ..state import MANIFEST, TENSORS, VALUES, check_folder, read_folder
from .progress import check_progress

VERSION = 1
PARTS = {
    "config",
    "progress",
    "optimizer",
    "model",
    "data",
    "random",
    "performance",
    "values",
    "identity",
    "listeners",
}
# What is not in the checkpoints of all runs: of several processes, and of loops of a user's own.
_OF_SOME: dict[str, Any] = {"ranks": None, "own": {}, "grads": None}


def name_of(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """The step of a checkpoint by its folder's name; None if it has another name."""
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() and digits.isascii() and name_of(int(digits)) == path.name else None


def steps_of(folder: Path) -> list[Path]:
    """What is named as a checkpoint in a folder, oldest first. Whether it is one, and whole, is not known yet."""
    found = ((step_of(path), path) for path in folder.glob("step-*") if path.is_dir())
    return [path for step, path in sorted((step, path) for step, path in found if step is not None)]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint.

    RAISES (StateError): It is not there, or damaged; or a newer version wrote it.
    """
    saved = _OF_SOME | read_folder(path)
    _check_version(saved, path)
    _check_parts(saved, path)
    return saved


def _check_version(saved: Mapping[str, Any], path: Path) -> None:
    check_version(f"the training in '{path}'", saved, VERSION)


def _check_parts(saved: Mapping[str, Any], path: Path) -> None:
    if missing := PARTS - saved.keys():
        raise StateError(f"Can't read '{path}': expected a checkpoint, found none of its parts {sorted(missing)}.")
    check_progress(saved["progress"])


def newest_whole(folder: Path, damaged: set[Path] | None = None) -> dict[str, Any] | None:
    """The first of `whole_ones`, if there is one."""
    return next(whole_ones(folder, damaged), None)


def whole_ones(folder: Path, damaged: set[Path] | None = None) -> Iterator[dict[str, Any]]:
    """The checkpoints that are not damaged, newest first. Warns of those that are.

    damaged (set[Path]): Those are put in here.
    RAISES (StateError): One was written by a newer version. It is not passed over, or what was trained since would be
        lost.
    """
    yield from _whole(reversed(steps_of(folder)), "older", damaged)


def best_ones(folder: Path, ranked: Iterable[int]) -> Iterator[dict[str, Any]]:
    """As `whole_ones`, in the order of some steps. Of which there is no checkpoint, that is left out."""
    paths = (folder / name_of(step) for step in ranked)
    yield from _whole((path for path in paths if path.is_dir()), "best")


def _whole(paths: Iterable[Path], order: str, damaged: set[Path] | None = None) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            saved = _OF_SOME | read_folder(path)
        except StateError as error:
            _tell_damaged(path, error, order, damaged)
            continue
        _check_version(saved, path)
        try:
            _check_parts(saved, path)
            if (step := saved["progress"]["step"]) != step_of(path):
                raise StateError(
                    f"Can't use '{path}': expected the checkpoint of step {step_of(path)}, found that of {step}. It "
                    "was renamed."
                )
        except StateError as error:
            _tell_damaged(path, error, order, damaged)
        else:
            yield saved


def _tell_damaged(path: Path, error: StateError, order: str, damaged: set[Path] | None) -> None:
    if damaged is not None:
        damaged.add(path)
    warnings.warn(CheckpointWarning(f"{error} The next {order} checkpoint is taken, if there is one."), stacklevel=6)


def prune(
    folder: Path,
    keep: int,
    damaged: Collection[Path] = (),
    ranked: Callable[[int | None], Sequence[int]] = lambda until: (),
) -> None:
    """Remove all checkpoints that are older than the newest `keep` whole ones.

    damaged (Collection[Path]): Those of which it is known. Of others files are only counted and measured: reading all
        takes long.
    ranked (Callable): Gives steps up to one, the best first. For each checkpoint that stays, the best that there is
        stays too: a run that goes on from there may go back to it.
    """
    paths = steps_of(folder)
    whole = [path for path in paths if path not in damaged and _looks_whole(path)]
    if len(whole) > keep:
        there = set(map(step_of, whole))
        best = {next((step for step in ranked(step_of(path)) if step in there), None) for path in whole[-keep:]}
        remove(path for path in paths[: paths.index(whole[-keep])] if step_of(path) not in best)


def remove(paths: Iterable[Path]) -> None:
    """Remove checkpoints. What else is in their folders stays, and the folder with it."""
    for path in paths:
        ours = [path / name for name in (MANIFEST, VALUES, TENSORS) if (path / name).exists()]
        if ours and not path.is_symlink():
            with suppress(OSError):
                for file in ours:
                    file.unlink()
                path.rmdir()


def _looks_whole(path: Path) -> bool:
    try:
        check_folder(path, only_sizes=True)
    except StateError:
        return False
    return True
