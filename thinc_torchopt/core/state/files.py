"""Files that are either complete or absent: tensors as safetensors, the rest as JSON, in a folder with a checksum of
each file.

Files and folders are written under a temporary name, synced to the disk, and then renamed: see `replacing`. Reading
runs no code, and refuses files that have changed.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..errors import StateError, StateReadError, TorchOptError
from .trees import flatten, unflatten

TENSORS = "tensors.safetensors"
VALUES = "values.json"
MANIFEST = "manifest.json"
# Prefixes of unfinished files, and of replaced ones.
_UNFINISHED = ".unfinished-"
_NEW, _OLD = f"{_UNFINISHED}new-", f"{_UNFINISHED}old-"
# A manifest is a few hundred bytes.
_LARGEST_MANIFEST = 100_000
# Errors of a full disk.
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# Errors in reading that mean damage. After all others the content may be whole.
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Errors of a system that can't sync folders.
_NO_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS)
# Bytes that are read at once.
_BLOCK = 1 << 20


def write_folder(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a tree of values and tensors. An existing folder is replaced.

    path (Path): The folder. Its parents are created.
    tree (Mapping): A tree for `trees.flatten`.
    RAISES (OSError): The disk is full, or the folder can't be written. Nothing changes then. (StateError): The tree has
        a value that can't be written.
    """
    write_parts(path, *flatten(tree))


def write_parts(path: Path, values: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a tree that `flatten` has split. See `write_folder`."""
    with replacing(path) as unfinished:
        unfinished.mkdir()
        try:
            save_file(dict(tensors), unfinished / TENSORS)
        except SafetensorError as error:
            raise OSError(f"Can't write {unfinished / TENSORS}: {error}") from error
        (unfinished / VALUES).write_text(json.dumps(values), encoding="utf8")
        with suppress(OSError):  # not on every disk
            shutil.copymode(unfinished / VALUES, unfinished / TENSORS)  # safetensors lets only the owner read it
        files = {
            name: {"bytes": (unfinished / name).stat().st_size, "crc32": crc32_of(unfinished / name)}
            for name in (TENSORS, VALUES)
        }
        text = json.dumps(files)
        (unfinished / MANIFEST).write_text(
            json.dumps({"files": files, "crc32": zlib.crc32(text.encode("utf8"))}), encoding="utf8"
        )


def write_text(path: Path, text: str) -> None:
    """Write a file with its line endings unchanged. An existing file is replaced.

    path (Path): The file, or a link to it. Its parents are created.
    RAISES (OSError): It can't be written. Nothing changes then.
    """
    with replacing(path) as unfinished, unfinished.open("w", encoding="utf8", newline="") as file:
        file.write(text)


def read_folder(path: Path) -> dict[str, Any]:
    """Read a folder of `write_folder`.

    RETURNS (dict): The tree. Its tensors are read from the file when they are used: copy them.
    RAISES (StateError): There is no such folder, or it is damaged. (StateReadError): It can't be read.
    """
    check_folder(path)
    try:
        with safe_open(path / TENSORS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        tree = unflatten(json.loads((path / VALUES).read_text(encoding="utf8")), tensors)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise _failed(path, "files of this package", error) from error
    if not isinstance(tree, dict):
        raise _damaged(path, f"a dict, found {type(tree).__name__}")
    return tree


def check_folder(path: Path, *, only_sizes: bool = False) -> None:
    """Check that a folder is complete and unchanged. only_sizes (bool): Don't read the files, which may take long.

    RAISES (StateError): It does not exist, or is damaged. (StateReadError): It can't be read.
    """
    put_back(path)
    if not path.is_dir():
        raise StateError(f"Can't read '{path}': expected a folder, found none. Check the path.")
    for name in (MANIFEST, TENSORS, VALUES):
        _check_file(path / name)
    try:
        if (size := (path / MANIFEST).stat().st_size) > _LARGEST_MANIFEST:
            raise _damaged(path / MANIFEST, f"a short file, found {size} bytes")
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf8"))
        files, crc32 = manifest["files"], manifest["crc32"]
        if zlib.crc32(json.dumps(files).encode("utf8")) != crc32 or set(files) != {TENSORS, VALUES}:
            raise _damaged(path, f"{MANIFEST} to match its own checksum, found another checksum")
        for name, expected in files.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"] or (not only_sizes and (crc32 := crc32_of(path / name)) != expected["crc32"]):
                found = f"{size} bytes" if size != expected["bytes"] else f"checksum {crc32}"
                raise _damaged(
                    path / name, f"{expected['bytes']} bytes with checksum {expected['crc32']}, found {found}"
                )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, StateError):
            raise
        raise _failed(path, f"{MANIFEST}, {TENSORS} and {VALUES}", error) from error


def _check_file(path: Path) -> None:
    """RAISES (StateError): Not a file, but for example a pipe or a device, which could block for ever.
    (StateReadError): It can't be read.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _failed(path, "a file", error) from error
    if not stat.S_ISREG(mode):
        raise _damaged(path, "a file, found something else, perhaps a folder, a pipe or a device")


def _failed(path: Path, expected: str, error: Exception) -> TorchOptError:
    """The error to raise after another one in reading."""
    if isinstance(error, OSError) and not isinstance(error, _MISSING):
        return StateReadError(
            f"Can't read '{error.filename or path}': {error.strerror or error}. It may be undamaged. Allow this user "
            "to read it, or look for the cause on this machine or disk, and try again."
        )
    return _damaged(path, f"{expected}, found {type(error).__name__}: {error}")


def _damaged(path: Path, expected_and_found: str) -> StateError:
    return StateError(
        f"Can't read '{path}': expected {expected_and_found}. It is damaged, or was written by another program."
    )


def crc32_of(path: Path) -> int:
    """The checksum of a file, read in blocks: a mapped file would stay in memory as a whole."""
    found, block = 0, memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            found = zlib.crc32(block[:size], found)
    return found


def is_one_of(error: OSError, codes: Collection[int]) -> bool:
    """Whether an error has one of these codes. `shutil` tells the errors of its copies only in words."""
    return error.errno in codes or any(os.strerror(code) in str(error) for code in codes)


def advice_on(error: OSError) -> str:
    """Advice about an error in writing, to end a message with. Empty: there is none."""
    return " Make room on the disk." if is_one_of(error, FULL) else ""


# ---------------------------------------------------------------------- replacing


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file or a folder completely or not at all: write to the yielded path, where nothing exists yet.

    Afterwards it is synced to the disk, and replaces the content of `path`. At any moment either the old or the new
    content is there, even if the process is killed. (Where the system or the disk can't exchange two folders, there is
    a gap between two renames; the next reader or clean-up puts the old content back.) The permissions stay those of the
    old content, and nobody else can read the new one before it has them.

    path (Path): A folder, a file, or a link to a file. Its parents are created.
    RAISES (OSError): It can't be written, as a file where a folder is, or a folder where a file is. Nothing changes
        then, nor after any other error inside.
    """
    if not path.is_dir():
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    put_back(path)
    closed = path.parent / f"{_NEW}{path.name}-{os.getpid()}"
    _remove(closed)
    closed.mkdir(mode=stat.S_IRWXU)
    unfinished = closed / path.name
    try:
        yield unfinished
        if path.exists():
            if path.is_dir() != unfinished.is_dir():
                kind = errno.EISDIR if path.is_dir() else errno.ENOTDIR
                raise OSError(kind, os.strerror(kind), str(path))
            # The owner must be able to move a folder.
            unfinished.chmod(stat.S_IMODE(path.stat().st_mode) | (stat.S_IRWXU if path.is_dir() else 0))
        for part in (*unfinished.rglob("*"), unfinished):
            _sync(part)
        _put_in_place(unfinished, path)
        _sync(path.parent)
    finally:
        _remove(closed)  # with the old content


def put_back(path: Path) -> None:
    """If a path is empty, put back the content that a killed process was about to replace."""
    if not os.path.lexists(path):
        for old in path.parent.glob(f"{_OLD}*"):
            if _name_of(old) == path.name:
                with suppress(OSError):
                    old.rename(path)


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove unfinished files of killed processes from a folder, and put back the content that they were about to
    replace.

    name (str | None): Only for the file or folder of this name. None: for all, so no other process may be writing
        there.
    """
    for leftover in folder.glob(f"{_UNFINISHED}*"):
        if name in (None, _name_of(leftover)):
            if leftover.name.startswith(_OLD):
                put_back(folder / _name_of(leftover))
            _remove(leftover)


def _name_of(leftover: Path) -> str:
    """The intended or earlier name of a leftover."""
    prefix = next(prefix for prefix in (_NEW, _OLD, _UNFINISHED) if leftover.name.startswith(prefix))
    return leftover.name.removeprefix(prefix).rpartition("-")[0]


def _put_in_place(new: Path, path: Path) -> None:
    """Move `new` to `path`. The old content is then at `new`, or removed."""
    if not path.is_dir():
        os.replace(new, path)
    elif not _exchange(new, path):
        old = path.parent / f"{_OLD}{path.name}-{os.getpid()}"
        path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            put_back(path)
            raise
        _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths at once. RETURNS (bool): False: the system or the disk can't do that."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    from_here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return (
        renameat2 is not None and renameat2(from_here, os.fsencode(one), from_here, os.fsencode(other), exchange) == 0
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk. Windows can't open folders; some network drives don't sync them."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if not (is_folder and error.errno in _NO_SYNC):
            raise
    finally:
        os.close(file)
