"""Files that are whole or not there: tensors as safetensors, everything else as JSON, in one folder with a checksum of each file.

A folder is written under a temporary name, synced to the disk, and renamed. Reading runs no code: what is not as it was written is refused.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .errors import StateError

TENSORS = "tensors.safetensors"
VALUES = "values.json"
MANIFEST = "manifest.json"
# What the name of a folder that is not finished begins with.
UNFINISHED = ".unfinished-"
# JSON has only lists, and no words for these numbers.
_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def write_folder(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a tree of values and tensors. If the path is there already, it is replaced.

    path (Path): The folder. Its parents are made.
    tree (Mapping): Dicts, lists, tuples, sets, numbers, texts, None and tensors. Keys are texts.
    RAISES (OSError): The disk is full, or the folder can't be written. Then all is as before.
    """
    apart = _Apart()
    values = apart.take(tree)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.parent / f"{UNFINISHED}{path.name}-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        try:
            save_file(apart.tensors, unfinished / TENSORS)
        except SafetensorError as error:
            raise OSError(f"Can't write {unfinished / TENSORS}: {error}") from error
        (unfinished / VALUES).write_text(json.dumps(values, allow_nan=False), encoding="utf8")
        files = {name: {"bytes": (unfinished / name).stat().st_size, "crc32": _crc32(unfinished / name)} for name in (TENSORS, VALUES)}
        text = json.dumps(files, sort_keys=True)
        (unfinished / MANIFEST).write_text(json.dumps({"files": files, "crc32": zlib.crc32(text.encode("utf8"))}), encoding="utf8")
        for file in (*unfinished.iterdir(), unfinished):
            _sync(file)
        with _moved_away(path):
            unfinished.rename(path)
        _sync(path.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def read_folder(path: Path) -> dict[str, Any]:
    """Read what `write_folder` wrote.

    RETURNS (dict): The tree. Its tensors are read from the file when they are used: copy them.
    RAISES (StateError): There is no such folder, or it is damaged.
    """
    check_folder(path)
    try:
        with safe_open(path / TENSORS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
        tree = _put_together(json.loads((path / VALUES).read_text(encoding="utf8")), tensors)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise _damaged(path, f"what this package writes, found {type(error).__name__}: {error}") from error
    if not isinstance(tree, dict):
        raise _damaged(path, f"a dict, found {type(tree).__name__}")
    return tree


def check_folder(path: Path) -> None:
    """Check that a folder is as it was written.

    RAISES (StateError): It is not there, or damaged.
    """
    if not path.is_dir():
        raise StateError(f"Can't read '{path}': expected a folder, found none. Check the path.")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf8"))
        files, crc32 = manifest["files"], manifest["crc32"]
        if zlib.crc32(json.dumps(files, sort_keys=True).encode("utf8")) != crc32 or set(files) != {TENSORS, VALUES}:
            raise _damaged(path, f"{MANIFEST} to match its own checksum, found another")
        for name, expected in files.items():
            found = {"bytes": (path / name).stat().st_size, "crc32": _crc32(path / name)}
            if found != expected:
                raise _damaged(path / name, f"{expected['bytes']} bytes with checksum {expected['crc32']}, found {found}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, StateError):
            raise
        raise _damaged(path, f"{MANIFEST}, {TENSORS} and {VALUES}, found {type(error).__name__}: {error}") from error


def _damaged(path: Path, expected_and_found: str) -> StateError:
    return StateError(f"Can't read '{path}': expected {expected_and_found}. It is damaged, or was written by something else.")


class _Apart:
    """Takes a tree apart: a form for JSON, and its tensors by their path."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names_by_memory: dict[int, list[str]] = {}

    def take(self, value: Any, *path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._name(value, ":".join(path))}
        if isinstance(value, Mapping):
            return {str(key): self.take(item, *path, str(key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.take(item, *path, str(i)) for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return {"$tuple": self.take(list(value), *path)}
        if isinstance(value, (set, frozenset)):
            return {"$set": self.take(sorted(value, key=repr), *path)}
        if isinstance(value, numpy.generic):
            value = value.item()
        if isinstance(value, float) and repr(value) in _NUMBERS:
            return {"$number": repr(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise StateError(f"Can't save '{':'.join(path)}': expected numbers, texts and tensors, found {type(value).__name__}.")

    def _name(self, tensor: torch.Tensor, path: str) -> str:
        """Where a tensor is. safetensors takes no two that share memory, as tied params do: one stands for both, and a part is copied."""
        tensor = tensor.detach().contiguous()
        sharing = self._names_by_memory.setdefault(tensor.untyped_storage().data_ptr(), []) if tensor.numel() else []
        for name in sharing:
            other = self.tensors[name]
            if other.data_ptr() == tensor.data_ptr() and other.shape == tensor.shape and other.dtype == tensor.dtype:
                return name
        self.tensors[path] = tensor.clone() if sharing else tensor
        sharing.append(path)
        return path


def _put_together(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_together(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, content)] = value.items()
        if key == "$tensor":
            return tensors[content]
        if key == "$tuple":
            return tuple(_put_together(content, tensors))
        if key == "$set":
            return set(_put_together(content, tensors))
        if key == "$number":
            return _NUMBERS[content]
    return {key: _put_together(item, tensors) for key, item in value.items()}


def _crc32(path: Path) -> int:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return zlib.crc32(content)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk. Windows can't open folders."""
    if path.is_dir() and os.name == "nt":
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _moved_away(path: Path) -> Iterator[None]:
    """Inside, there is nothing at the path; afterwards, what was there is gone, or back if something failed."""
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
