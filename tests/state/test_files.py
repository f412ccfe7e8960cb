"""Folders of tensors and values: written whole or not at all, and refused when they are damaged."""

import math
import os
import random
import shutil
import subprocess
import sys

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinc_torchopt.errors import StateError
from thinc_torchopt.state import files
from thinc_torchopt.state.files import MANIFEST, TENSORS, VALUES, check_folder, read_folder, write_folder

TREE = {
    "weights": {"a": torch.arange(12.0).reshape(3, 4), "half": torch.ones(5, dtype=torch.bfloat16), "count": torch.tensor(3)},
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
    st.lists(st.integers(0, 3), max_size=3), st.sampled_from([torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
).map(lambda found: (torch.rand(found[0]) * 9).to(found[1]))


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


@given(st.dictionaries(st.text("ab/:. ", min_size=1, max_size=4), values | tensors, max_size=4))
@settings(deadline=None, max_examples=60)
def test_files_come_back_as_they_were(tree):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = files.Path(folder) / "state"
        write_folder(path, tree)
        assert same(read_folder(path), tree)
        assert os.listdir(folder) == ["state"]


def test_files_take_tensors_that_share_memory(tmp_path):
    tensor = torch.arange(12.0).reshape(3, 4)
    tree = {"one": tensor, "tied": tensor, "part": tensor[1:], "turned": tensor.T, "again": tensor.T}
    write_folder(tmp_path / "state", tree)
    assert same(read_folder(tmp_path / "state"), tree)
    # One copy of what is tied; a part is a copy of its own.
    assert (tmp_path / "state" / TENSORS).stat().st_size < 1000


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
        with pytest.raises(StateError, match=f"Can't read '{broken}"):
            raise AssertionError(f"loaded after: {what} -> {read_folder(broken)}")
    check_folder(tmp_path / "whole")


def test_files_refuse_what_a_stranger_made(tmp_path):
    """Right checksums around nonsense."""
    import json
    import zlib

    for text in ('{"$tensor": "missing"}', "[1]", '{"a": {"$number": "x"}}', "[" * 100_000, '{"a": {"$set": [[1]]}}'):
        write_folder(tmp_path / "state", TREE)
        (tmp_path / "state" / VALUES).write_text(text)
        parts = {
            name: {"bytes": (tmp_path / "state" / name).stat().st_size, "crc32": files.crc32_of(tmp_path / "state" / name)}
            for name in (TENSORS, VALUES)
        }
        crc32 = zlib.crc32(json.dumps(parts, sort_keys=True).encode())
        (tmp_path / "state" / MANIFEST).write_text(json.dumps({"files": parts, "crc32": crc32}))
        with pytest.raises(StateError, match="Can't read"):
            read_folder(tmp_path / "state")


@pytest.mark.parametrize("step", ["save_file", "sync", "crc32_of"])
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


KILLED = """
import sys, torch
from pathlib import Path
from thinc_torchopt.state.files import write_folder
i = 0
while True:
    i += 1
    write_folder(Path(sys.argv[1]), {"i": i, "tensor": torch.full((300_000,), float(i))})
    print(i, flush=True)
"""


def test_files_are_whole_whenever_the_process_is_killed(tmp_path):
    """Replacing a folder is two renames: between them there is none, but never half of one."""
    path = tmp_path / "state"
    rng = random.Random(0)
    seen = 0
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as process:
            for _ in range(rng.randrange(2, 12)):
                process.stdout.readline()
            process.kill()
        if path.exists():
            tree = read_folder(path)
            assert (tree["tensor"] == tree["i"]).all()
            seen += 1
    assert seen > 0


def test_files_survive_a_full_disk(small_disk):
    write_folder(small_disk / "state", {"a": torch.zeros(1000)})
    with pytest.raises(OSError):
        write_folder(small_disk / "state", {"a": torch.zeros(1_000_000)})
    assert torch.equal(read_folder(small_disk / "state")["a"], torch.zeros(1000))
    assert os.listdir(small_disk) == ["state"]


def test_files_read_numpys_numbers(tmp_path):
    write_folder(tmp_path / "state", {"a": numpy.float64(2.5)})
    assert read_folder(tmp_path / "state") == {"a": 2.5}


STRIDED = {
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).T,
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.rand(2, 3, 4).permute(1, 2, 0),
    "of one row": lambda: torch.rand(64, 1).T,
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
    tree = {"part": torch.arange(18.0).reshape(3, 6)[:, :3], "expanded": torch.ones(1, 4).expand(4, 4), "empty": torch.zeros(0, 3).T}
    write_folder(tmp_path / "state", tree)
    found = read_folder(tmp_path / "state")
    assert same(found, tree) and all(tensor.is_contiguous() for tensor in found.values())


def test_files_tell_their_own_marks_from_keys(tmp_path):
    tensor, other = torch.ones(2), torch.zeros(2)
    tree = {
        "marks": [{mark: value} for mark in ("$tensor", "$set", "$tuple", "$number", "$dict") for value in (1, "nan", [1], tensor)],
        "a:b": {"c": tensor},
        "a": {"b:c": other},
        "__metadata__": tensor + 2,
        "\ud800": tensor + 3,
    }
    write_folder(tmp_path / "state", tree)
    assert same(read_folder(tmp_path / "state"), tree)


def test_files_keep_the_kinds_of_keys_and_values(tmp_path):
    tree = {
        "keys": {0.9: torch.ones(1), 1: "a", "1": "b", (2, None): 3, False: 4, None: 5},
        "sets": [frozenset({1, 2}), {frozenset({1}), (1, 2)}],
        "numpy": [numpy.float32(0.1), numpy.int64(3), numpy.bool_(True), numpy.float64("nan"), numpy.uint8(200)],
        "arrays": [numpy.arange(6.0).reshape(2, 3), numpy.zeros((0, 2), "f"), numpy.asfortranarray(numpy.ones((2, 3), "i"))],
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
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_files_do_not_wait_for_what_is_no_file(name, kind, tmp_path):
    write_folder(tmp_path / "state", TREE)
    path = tmp_path / "state" / name
    path.unlink()
    {"fifo": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/zero"), "folder": path.mkdir}[kind]()
    for read in (check_folder, read_folder):
        with pytest.raises(StateError, match=f"Can't read '{path}': expected a file, found something else"):
            read(tmp_path / "state")
