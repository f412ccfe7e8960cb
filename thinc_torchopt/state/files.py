"""Files that are complete or absent: tensors as safetensors, everything else as JSON, in one folder with a checksum of each file.

A folder, or a text, is written under a temporary name, synced to the disk, and renamed. Reading runs no code: what is not as it was
written is refused.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..errors import StateError
from .trees import put_together, take_apart

TENSORS = "tensors.safetensors"
VALUES = "values.json"
MANIFEST = "manifest.json"
# What the name of a folder that is not finished begins with.
UNFINISHED = ".unfinished-"
# A manifest is a few hundred bytes.
_LARGEST_MANIFEST = 100_000


def write_folder(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a tree of values and tensors. If the path is there already, it is replaced.

    path (Path): The folder. Its parents are made.
    tree (Mapping): What trees.py can take apart.
    RAISES (OSError): The disk is full, or the folder can't be written. Then all is as before. (StateError): There is something in the tree
        that can't be written.
    """
    values, tensors = take_apart(tree)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.parent / f"{UNFINISHED}{path.name}-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        try:
            save_file(tensors, unfinished / TENSORS)
        except SafetensorError as error:
            raise OSError(f"Can't write {unfinished / TENSORS}: {error}") from error
        (unfinished / VALUES).write_text(json.dumps(values, allow_nan=False), encoding="utf8")
        files = {name: {"bytes": (unfinished / name).stat().st_size, "crc32": crc32_of(unfinished / name)} for name in (TENSORS, VALUES)}
        text = json.dumps(files, sort_keys=True)
        (unfinished / MANIFEST).write_text(json.dumps({"files": files, "crc32": zlib.crc32(text.encode("utf8"))}), encoding="utf8")
        for file in (*unfinished.iterdir(), unfinished):
            sync(file)
        with moved_away(path):
            unfinished.rename(path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file with its line endings as they are. If it is there already, it is replaced, and keeps its permissions.

    path (Path): The file, or a link to it. Its parents are made.
    RAISES (OSError): It can't be written. Then all is as before.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.parent / f"{UNFINISHED}{path.name}-{os.getpid()}"
    try:
        with unfinished.open("w", encoding="utf8", newline="") as file:
            file.write(text)
        if path.exists():
            unfinished.chmod(stat.S_IMODE(path.stat().st_mode))
        sync(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(path.parent)


def read_folder(path: Path) -> dict[str, Any]:
    """Read what `write_folder` wrote.

    RETURNS (dict): The tree. Its tensors are read from the file when they are used: copy them.
    RAISES (StateError): There is no such folder, or it is damaged.
    """
    check_folder(path)
    try:
        with safe_open(path / TENSORS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
        tree = put_together(json.loads((path / VALUES).read_text(encoding="utf8")), tensors)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise _damaged(path, f"what this package writes, found {type(error).__name__}: {error}") from error
    if not isinstance(tree, dict):
        raise _damaged(path, f"a dict, found {type(tree).__name__}")
    return tree


def check_folder(path: Path, *, only_sizes: bool = False) -> None:
    """Check that a folder is as it was written. only_sizes (bool): Don't read the files, which may take long.

    RAISES (StateError): It is not there, or damaged.
    """
    if not path.is_dir():
        raise StateError(f"Can't read '{path}': expected a folder, found none. Check the path.")
    for name in (MANIFEST, TENSORS, VALUES):
        _check_file(path / name)
    try:
        if (size := (path / MANIFEST).stat().st_size) > _LARGEST_MANIFEST:
            raise _damaged(path / MANIFEST, f"a short file, found {size} bytes")
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf8"))
        files, crc32 = manifest["files"], manifest["crc32"]
        if zlib.crc32(json.dumps(files, sort_keys=True).encode("utf8")) != crc32 or set(files) != {TENSORS, VALUES}:
            raise _damaged(path, f"{MANIFEST} to match its own checksum, found another")
        for name, expected in files.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"] or (not only_sizes and (crc32 := crc32_of(path / name)) != expected["crc32"]):
                found = f"{size} bytes" if size != expected["bytes"] else f"checksum {crc32}"
                raise _damaged(path / name, f"{expected['bytes']} bytes with checksum {expected['crc32']}, found {found}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, StateError):
            raise
        raise _damaged(path, f"{MANIFEST}, {TENSORS} and {VALUES}, found {type(error).__name__}: {error}") from error


def _check_file(path: Path) -> None:
    """RAISES (StateError): There is something that is no file, and that might be read from for ever, as a pipe or a device."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _damaged(path, f"a file, found {type(error).__name__}: {error}") from error
    if not stat.S_ISREG(mode):
        raise _damaged(path, "a file, found something else, perhaps a folder, a pipe or a device")


def _damaged(path: Path, expected_and_found: str) -> StateError:
    return StateError(f"Can't read '{path}': expected {expected_and_found}. It is damaged, or was written by something else.")


def crc32_of(path: Path) -> int:
    """The checksum of a file."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return zlib.crc32(content)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk. Windows can't open folders."""
    if path.is_dir() and os.name == "nt":
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def moved_away(path: Path) -> Iterator[None]:
    """Move what is at a path away for a `with` block. It is removed afterwards, or restored if the block raised an error."""
    old = path.parent / f"{UNFINISHED}old-{path.name}-{os.getpid()}"
    there = path.exists()
    if there:
        path.rename(old)
    try:
        yield
    except BaseException:
        if there and not path.exists():
            old.rename(path)
        raise
    if there:
        shutil.rmtree(old, ignore_errors=True)
