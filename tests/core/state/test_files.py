"""Folders of tensors and values: written whole or not at all, and refused when they are damaged."""

import errno
import itertools
import json
import math
import os
import random
import re
import shutil
import stat
import sys
import zlib
from textwrap import dedent

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.core.errors import StateError, StateReadError
from thinc_torchopt.core.state import files
from thinc_torchopt.core.state.files import (
    MANIFEST,
    TENSORS,
    VALUES,
    check_folder,
    clear_leftovers,
    put_back,
    read_folder,
    replacing,
    write_folder,
    write_text,
)
from thinc_torchopt.core.state.trees import flatten

from ...forks import Started, python
from ...models import same_tree
from ...runs import contents

needs_unix = pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions, and no such files")

TREE = {
    "weights": {
        "a": torch.arange(12.0).reshape(3, 4),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "count": torch.tensor(3),
    },
    "values": [1, 2.5, math.inf, None, True, "text", (1, (2.0, "x")), {"x", "y"}],
}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab/:.", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)
tensors = st.tuples(
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool]),
).map(lambda found: (torch.rand(found[0]) * 9).to(found[1]))


@given(st.dictionaries(st.text("ab/:. ", min_size=1, max_size=4), values | tensors, max_size=4))
def test_files_come_back_as_they_were(tree):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = files.Path(folder) / "new" / "one" / "state"
        write_folder(path, tree)
        assert same_tree(read_folder(path), tree)
        assert os.listdir(path.parent) == ["state"]


def test_files_take_tensors_that_share_memory(tmp_path):
    tensor = torch.arange(12.0).reshape(3, 4)
    tree = {"one": tensor, "tied": tensor, "part": tensor[1:], "turned": tensor.T, "again": tensor.T}
    tree |= {"cell": torch.arange(3.0)[1], "count": (count := torch.tensor(3)), "counts": count}
    write_folder(tmp_path / "state", tree)
    assert same_tree(read_folder(tmp_path / "state"), tree)
    # One copy of what is tied; a part is a copy of its own, which does not keep the rest.
    _, parts = flatten(tree)
    assert set(parts) == {"one", "part", "cell", "count"}
    assert all(part.nbytes == part.untyped_storage().nbytes() for part in parts.values())


def test_files_refuse_what_they_do_not_know(tmp_path):
    with pytest.raises(StateError, match="Can't save 'a:0': expected numbers, texts and tensors, found object"):
        write_folder(tmp_path / "state", {"a": [object()]})
    assert os.listdir(tmp_path) == []


def damage(folder, rng):
    """One random damage: a byte flipped, a file cut, emptied, removed, or two files exchanged."""
    name = rng.choice([TENSORS, VALUES, MANIFEST])
    path = folder / name
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "cut", "empty", "remove", "swap", "longer"])
    if kind == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    elif kind == "cut":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "longer":
        path.write_bytes(content + b"\0")
    elif kind == "remove":
        path.unlink()
    else:
        other = folder / rng.choice([found for found in (TENSORS, VALUES, MANIFEST) if found != name])
        path.rename(folder / "x")
        other.rename(path)
        (folder / "x").rename(other)
    return f"{kind} {name}"


def test_files_refuse_every_damage(tmp_path):
    """200 random ones: never loaded, and no other error than StateError."""
    write_folder(tmp_path / "whole", TREE)
    rng = random.Random(0)
    for i in range(200):
        broken = tmp_path / f"broken{i}"
        shutil.copytree(tmp_path / "whole", broken)
        what = damage(broken, rng)
        with pytest.raises(StateError, match=re.escape(f"Can't read '{broken}")):
            raise AssertionError(f"loaded after: {what} -> {read_folder(broken)}")
    check_folder(tmp_path / "whole")


def test_files_that_can_not_be_read_are_not_taken_for_damaged(without_privileges, tmp_path):
    folder = tmp_path / "state"
    write_folder(folder, TREE)
    for path in (folder / TENSORS, folder / VALUES, folder / MANIFEST, folder):
        mode = path.stat().st_mode
        path.chmod(0)
        with pytest.raises(StateReadError, match=re.escape(f"Can't read '{path}") + ".*: Permission denied. It may be"):
            read_folder(folder)
        path.chmod(mode)
    assert same_tree(read_folder(folder), TREE)


def test_files_are_written_where_modes_can_not_be_changed(monkeypatch, tmp_path):
    def refuse(*paths):
        raise PermissionError

    monkeypatch.setattr(shutil, "copymode", refuse)
    write_folder(tmp_path / "state", {"x": torch.ones(2)})
    assert torch.equal(read_folder(tmp_path / "state")["x"], torch.ones(2))


@needs_unix
@pytest.mark.parametrize("mask", [0o002, 0o077])
def test_files_can_be_read_by_those_whom_the_umask_allows(mask, tmp_path):
    before = os.umask(mask)
    try:
        write_folder(tmp_path / "state", TREE)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()} == {0o666 & ~mask}


def test_files_refuse_what_a_stranger_made(tmp_path):
    """Right checksums around nonsense."""
    texts = ['{"$tensor": "missing"}', "[1]", '{"a": {"$number": "x"}}', "[" * 100_000, '{"a": {"$set": [[1]]}}']
    texts += ['{"a": {"$bytes": "*"}}']
    for order, strides in (([0, 1, 1], [4, 1]), ([0, 1], [4, 2]), ([0, 1], [4]), ([0, 1], [4, 1, 1]), ({}, [4, 1])):
        texts.append(json.dumps({"a": {"$strided": ["weights:a", order, strides]}}))
    for text in texts:
        write_folder(tmp_path / "state", TREE)
        (tmp_path / "state" / VALUES).write_text(text)
        paths = [tmp_path / "state" / name for name in (TENSORS, VALUES)]
        parts = {path.name: {"bytes": path.stat().st_size, "crc32": files.crc32_of(path)} for path in paths}
        crc32 = zlib.crc32(json.dumps(parts).encode())
        (tmp_path / "state" / MANIFEST).write_text(json.dumps({"files": parts, "crc32": crc32}))
        with pytest.raises(StateError, match="Can't read"):
            read_folder(tmp_path / "state")


@pytest.mark.parametrize("step", ["save_file", "_sync", "crc32_of"])
def test_files_leave_the_old_one_whole_when_writing_fails(step, tmp_path, monkeypatch):
    write_folder(tmp_path / "state", {"a": 1})
    calls = iter([None, OSError("No space left on device")])

    def fails(*args, **kwargs):
        error = next(calls, OSError("No space left on device"))
        if error is not None:
            raise error

    monkeypatch.setattr(files, step, fails)
    with pytest.raises((OSError, StateError)):
        write_folder(tmp_path / "state", TREE)
        write_folder(tmp_path / "state", TREE)
    monkeypatch.undo()
    if step != "save_file":
        assert read_folder(tmp_path / "state") == {"a": 1}
    assert os.listdir(tmp_path) == ["state"]


@pytest.fixture(params=[True, False], ids=["exchange", "two renames"])
def can_exchange(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    return request.param


KILLED = """
import sys, torch
from pathlib import Path
from thinc_torchopt.core.state.files import write_folder
i = 0
while True:
    i += 1
    write_folder(Path(sys.argv[1]), {"i": i, "tensor": torch.full((300_000,), float(i))})
    print(i, flush=True)
"""


def test_files_are_whole_whenever_the_process_is_killed(tmp_path):
    """And there, old or new: two folders are exchanged at once, or the old one is put back."""
    path = tmp_path / "state"
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    can_exchange = files._exchange(tmp_path / "one", tmp_path / "other")
    rng = random.Random(0)
    for _ in range(5):
        with Started(KILLED, path) as process:
            for _ in range(rng.randrange(2, 12)):
                process.readline()
        assert path.exists() or not can_exchange
        tree = read_folder(path)
        assert (tree["tensor"] == tree["i"]).all()
    clear_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["one", "other", "state"]


def killed(write, monkeypatch, *, at):
    """Write in a process that is killed before its so-manieth change of a name."""
    calls = itertools.count(1)

    def dies(change):
        def changed(*args, **kwargs):
            if next(calls) == at:
                os._exit(9)
            return change(*args, **kwargs)

        return changed

    if (child := os.fork()) == 0:
        try:
            for owner, name in (
                (files.Path, "rename"),
                (os, "replace"),
                (files, "_exchange"),
                (files.shutil, "rmtree"),
            ):
                monkeypatch.setattr(owner, name, dies(getattr(owner, name)))
            write()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes can't be forked here")
def test_replacing_is_all_or_nothing_at_any_moment(can_exchange, monkeypatch, tmp_path):
    """A folder with one file, killed before each change of a name, one after the other."""

    def write(text):
        with replacing(tmp_path / "folder") as unfinished:
            unfinished.mkdir()
            (unfinished / "file").write_text(text)

    found, at = [], 1
    write("old")
    while killed(lambda: write("new"), monkeypatch, at=at):
        put_back(tmp_path / "folder")
        found.append((tmp_path / "folder" / "file").read_text())
        clear_leftovers(tmp_path)
        assert os.listdir(tmp_path) == ["folder"]
        write("old")
        at += 1
    assert found == (["old", "new"] if can_exchange else ["old", "old", "old", "new", "new"])


def test_replacing_keeps_links_and_permissions_of_files(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with replacing(tmp_path / "link") as unfinished:
        unfinished.write_text("new")
    assert (tmp_path / "file").read_text() == "new" and (tmp_path / "link").is_symlink()
    if os.name != "nt":  # which has other permissions
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    # A folder takes the place of a link to one: what is at its end is somebody's else.
    (tmp_path / "kept").mkdir()
    (tmp_path / "to folder").symlink_to(tmp_path / "kept")
    with replacing(tmp_path / "to folder") as unfinished:
        unfinished.mkdir()
        (unfinished / "file").write_text("new")
    assert not (tmp_path / "to folder").is_symlink() and os.listdir(tmp_path / "kept") == []
    with pytest.raises(ValueError), replacing(tmp_path / "file") as unfinished:
        unfinished.write_text("newer")
        raise ValueError
    assert (tmp_path / "file").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["file", "kept", "link", "to folder"]


def test_replacing_takes_no_file_for_a_folder(can_exchange, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").write_text("old")
    (tmp_path / "file").write_text("old")
    before = contents(tmp_path)
    with pytest.raises(IsADirectoryError, match="folder"):
        write_text(tmp_path / "folder", "new")
    with pytest.raises(NotADirectoryError, match="file"):
        write_folder(tmp_path / "file", TREE)
    assert contents(tmp_path) == before and sorted(os.listdir(tmp_path)) == ["file", "folder"]


@needs_unix
def test_replacing_keeps_the_permissions_of_folders(can_exchange, tmp_path):
    """Nobody else can read the new content before it has them."""
    folder = tmp_path / "folder"
    write_folder(folder, {"a": 1})
    usual = folder.stat().st_mode & 0o777
    for mode in (usual, 0o700, 0o750, 0o500):
        folder.chmod(mode)
        with replacing(folder) as unfinished:
            unfinished.mkdir()
            around = [unfinished, *unfinished.parents][: len(unfinished.parts) - len(tmp_path.parts)]
            assert any(not part.stat().st_mode & 0o077 for part in around)
        # The owner can always write: it is replaced all the same.
        assert folder.stat().st_mode & 0o777 == mode | 0o700
        assert os.listdir(tmp_path) == ["folder"]


def test_replacing_on_a_drive_that_does_not_sync_folders(monkeypatch, tmp_path):
    original, is_there = os.fsync, []

    def fsync(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            is_there.append((tmp_path / "model").exists())
            raise OSError(errno.EINVAL, "Invalid argument")  # as SMB's
        original(file)

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(tmp_path / "model") as unfinished:
        unfinished.mkdir()
        (unfinished / "file").write_text("whole")
    assert (tmp_path / "model" / "file").read_text() == "whole" and is_there == [False, True]
    monkeypatch.setattr(os, "fsync", lambda file: os.read(-1, 1))
    with pytest.raises(OSError, match="Bad file"):
        write_text(tmp_path / "model" / "file", "new")
    assert (tmp_path / "model" / "file").read_text() == "whole"


def test_replacing_puts_a_folder_back_whose_new_content_can_not_be_moved(monkeypatch, tmp_path):
    """And one that a killed process has left, before anything is written."""
    path, rename = tmp_path / "state", files.Path.rename
    write_folder(path, {"a": 1})

    def fails(self, target):
        if "new" in str(self.parent):
            raise OSError("not moved")
        return rename(self, target)

    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    monkeypatch.setattr(files.Path, "rename", fails)
    with pytest.raises(OSError, match="not moved"):
        write_folder(path, TREE)
    assert os.listdir(tmp_path) == ["state"] and read_folder(path) == {"a": 1}
    rename(path, tmp_path / ".unfinished-old-state-1")
    (tmp_path / f".unfinished-new-state-{os.getpid()}").mkdir()
    with pytest.raises(ValueError), replacing(path):
        raise ValueError
    assert os.listdir(tmp_path) == ["state"] and read_folder(path) == {"a": 1}


def test_clear_leftovers_of_one_name_leaves_others(tmp_path):
    """Also names that look like ours. Version 0.1 wrote the third."""
    for name in (".unfinished-new-a-1", ".unfinished-new-old-a-1", ".unfinished-b-1", ".unfinished-old-a-1"):
        (tmp_path / name).touch() if "-b-" in name else (tmp_path / name).mkdir()
    clear_leftovers(tmp_path, "a")
    assert sorted(os.listdir(tmp_path)) == [".unfinished-b-1", ".unfinished-new-old-a-1", "a"]
    clear_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_files_survive_a_full_disk(small_disk):
    write_folder(small_disk / "state", {"a": torch.zeros(1000)})
    with pytest.raises(OSError):
        write_folder(small_disk / "state", {"a": torch.zeros(1_000_000)})
    assert torch.equal(read_folder(small_disk / "state")["a"], torch.zeros(1000))
    assert os.listdir(small_disk) == ["state"]


STRIDED = {
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).T,
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.rand(2, 3, 4).permute(1, 2, 0),
    "of one row": lambda: torch.rand(64, 1).T,
    "of one row of a wider one": lambda: torch.rand(2, 7)[:1, :4],
    "of one channel": lambda: torch.rand(2, 1, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", STRIDED)
def test_files_keep_the_strides_of_dense_tensors(name, tmp_path):
    tensor = STRIDED[name]()
    write_folder(tmp_path / "state", {"a": tensor})
    found = read_folder(tmp_path / "state")["a"]
    assert torch.equal(found, tensor) and found.stride() == tensor.stride()
    assert (tmp_path / "state" / TENSORS).stat().st_size < 4 * tensor.numel() + 200


def test_files_make_tensors_with_gaps_plain(tmp_path):
    tree = {
        "part": torch.arange(18.0).reshape(3, 6)[:, :3],
        "expanded": torch.ones(1, 4).expand(4, 4),
        "empty": torch.zeros(0, 3).T,
    }
    write_folder(tmp_path / "state", tree)
    found = read_folder(tmp_path / "state")
    assert same_tree(found, tree) and all(tensor.is_contiguous() for tensor in found.values())


def test_files_tell_their_own_marks_from_keys(tmp_path):
    tensor, other = torch.ones(2), torch.zeros(2)
    tree = {
        "marks": [
            {mark: value}
            for mark in ("$tensor", "$set", "$tuple", "$number", "$dict")
            for value in (1, "nan", [1], tensor)
        ],
        "a:b": {"c": tensor},
        "a": {"b:c": other},
        "__metadata__": tensor + 2,
        "\ud800": tensor + 3,
    }
    write_folder(tmp_path / "state", tree)
    assert same_tree(read_folder(tmp_path / "state"), tree)


def test_files_keep_the_kinds_of_keys_and_values(tmp_path):
    tree = {
        "keys": {0.9: torch.ones(1), 1: "a", "1": "b", (2, None): 3, False: 4, None: 5},
        "sets": [frozenset({1, 2}), {frozenset({1}), (1, 2)}],
        "numpy": [numpy.float32(0.1), numpy.int64(3), numpy.bool_(True), numpy.float64("nan"), numpy.uint8(200)],
        "arrays": [
            numpy.arange(6.0).reshape(2, 3),
            numpy.zeros((0, 2), "f"),
            numpy.asfortranarray(numpy.ones((2, 3), "i")),
            numpy.arange(3)[::-1],
        ],
        "bytes": b"\x00\xff",
    }
    write_folder(tmp_path / "state", tree)
    found = read_folder(tmp_path / "state")
    assert found["keys"] == tree["keys"] and [type(key) for key in found["keys"]] == [type(key) for key in tree["keys"]]
    assert found["sets"] == tree["sets"] and type(found["sets"][0]) is frozenset and found["bytes"] == tree["bytes"]
    assert repr(found["numpy"]) == repr(tree["numpy"])
    for array, expected in zip(found["arrays"], tree["arrays"]):
        numpy.testing.assert_array_equal(array, expected)
        assert type(array) is numpy.ndarray and array.dtype == expected.dtype and array.flags.writeable


@pytest.mark.parametrize("name", [TENSORS, VALUES, MANIFEST])
@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=needs_unix) for kind in ("fifo", "device")), "folder"])
def test_files_do_not_wait_for_what_is_no_file(name, kind, tmp_path):
    write_folder(tmp_path / "state", TREE)
    path = tmp_path / "state" / name
    path.unlink()
    {"fifo": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/zero"), "folder": path.mkdir}[kind]()
    for read in (check_folder, read_folder):
        with pytest.raises(StateError, match=re.escape(f"Can't read '{path}': expected a file, found something else")):
            read(tmp_path / "state")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the most memory of a process is not told so")
def test_files_are_read_in_blocks(tmp_path):
    """A mapped file stays in memory: gigabytes for a few numbers."""
    (tmp_path / "file").write_bytes(os.urandom(1 << 16) * (1 << 10) + b"rest")
    code = """
        import sys
        from pathlib import Path
        from thinc_torchopt.core.state.files import crc32_of

        def most():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

        before = most()
        print(crc32_of(Path(sys.argv[1])), most() - before)
    """
    found, more = map(int, python(dedent(code), tmp_path / "file").stdout.split())
    assert found == zlib.crc32((tmp_path / "file").read_bytes())
    assert more < 8 << 10  # KiB; the file has 64 MiB


@pytest.mark.parametrize("size", [0, 1, files._BLOCK - 1, files._BLOCK, 2 * files._BLOCK + 1])
def test_files_have_the_checksum_of_their_bytes(size, tmp_path):
    (tmp_path / "file").write_bytes(content := os.urandom(size))
    assert files.crc32_of(tmp_path / "file") == zlib.crc32(content)
