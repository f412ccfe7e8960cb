"""The lines of a stream."""

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.streams import source as source_module
from thinc_torchopt.addons.streams.records import Memory
from thinc_torchopt.addons.streams.source import LineReader, Place
from thinc_torchopt.core.errors import StateError

from ...forks import Started

LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b" ").replace(b"\r", b" ")), max_size=12)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(source_module, "_PAUSE", 0.05)


@given(lines=LINES, cuts=st.lists(st.integers(0, 12), max_size=4), ended=st.booleans())
def test_source_reads_each_line_once(tmp_path_factory, lines, cuts, ended):
    """In parts, each from where the last one ended; blank lines are left out."""
    path = tmp_path_factory.mktemp("source") / "stream.jsonl"
    place, found = Place(), []
    for cut in [*sorted(cuts), len(lines)]:
        content = b"\n".join(lines[:cut]) + (b"\n" if ended and cut else b"")
        # Without a line end, the last line is complete: more is added behind a line end.
        path.write_bytes(content)
        for line in LineReader(path).read(place):
            found.append(line.content)
            place = line.place
    assert found == [line.strip() for line in lines if line.strip()]


@pytest.mark.parametrize("added", [b"\n", b"\r\n", b"\n\n"])
def test_source_numbers_lines_after_one_that_had_no_line_end(tmp_path, added):
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\ntwo")
    _, place = read_all(path)
    path.write_bytes(b"one\ntwo" + added + b"last")
    (line,) = LineReader(path).read(place)
    number = path.read_bytes().count(b"\n") + 1
    assert (line.place.lines, line.where) == (number, f"line {number} of the stream")


def test_source_follows_a_file_that_grows(tmp_path):
    path, found, stop = tmp_path / "stream.jsonl", [], threading.Event()
    path.write_bytes(b"one\ntw")
    reader = threading.Thread(
        target=lambda: found.extend(
            line.content for line in LineReader(path, follows=True, is_stopped=stop.is_set).read(Place())
        )
    )
    reader.start()
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    end = time.monotonic() + 20
    while len(found) < 3 and time.monotonic() < end and reader.is_alive():
        time.sleep(0.05)
        if path.stat().st_size and len(found) == 0:
            stop.set() if time.monotonic() > end - 1 else None
    stop.set()
    reader.join(10)
    assert found == [b"one", b"two", b"three"] and not reader.is_alive()


def test_source_that_becomes_shorter_is_an_error(tmp_path):
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\ntwo\n")
    lines = LineReader(path, follows=True).read(Place())
    assert [next(lines).content, next(lines).content] == [b"one", b"two"]
    path.write_bytes(b"on")
    with pytest.raises(StateError, match="has become shorter"):
        next(lines)


def test_source_reads_standard_input():
    code = (
        "from thinc_torchopt.addons.streams.source import Place, LineReader\n"
        "for line in LineReader(None).read(Place()): print(line.place.lines, line.content, flush=True)"
    )
    with Started(code, stdin=True) as process:
        process.stdin.write(b"one\n\ntw")
        assert process.readline() == "1 b'one'\n"  # while the pipe is open
        out, _ = process.communicate(b"o\nthree", timeout=60)
    assert out.splitlines()[1:] == ["3 b'two'", "4 b'three'"]


def test_memory_is_a_uniform_sample():
    """1,000 times 10 of 100 lines: each tenth of the stream has 1,000 of the 10,000 lines that were kept, with a
    standard deviation of about 28 (hypergeometric). 5 of them: one failure in 10^6.
    """
    import random

    random.seed(0)
    counts = [0] * 10
    for _ in range(1000):
        memory = Memory(10)
        for i in range(100):
            memory.add(str(i))
        assert len(set(memory.lines)) == 10 and memory.seen == 100
        for line, _ in memory.lines:
            counts[int(line) // 10] += 1
    assert all(abs(count - 1000) < 5 * 28 for count in counts), counts
    assert len(set(memory.draw(4))) == 4 and len(memory.draw(20)) == 10


def test_source_has_no_newline_translation(tmp_path):
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\r\ntwo" + os.linesep.encode())
    assert [line.content for line in LineReader(path).read(Place())] == [b"one", b"two"]


# ---------------------------------------------------------------------- rotation


def read_all(path, place=Place(), **options):  # noqa: B008
    found = list(LineReader(path, **options).read(place))
    return [line.content for line in found], found[-1].place if found else place


def rotate(path, n=1):
    """As logrotate does it: .1 becomes .2, and so on."""
    for i in range(n, 0, -1):
        old = path if i == 1 else path.with_name(f"{path.name}.{i - 1}")
        if old.exists():
            old.rename(path.with_name(f"{path.name}.{i}"))


def write_at(path, content, time):
    path.write_bytes(content)
    os.utime(path, ns=(time * 10**9, time * 10**9))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_source_that_was_rotated_while_nobody_read(tmp_path, n):
    """Once or several times: the rest of the old file, then the newer ones."""
    path = tmp_path / "stream.jsonl"
    write_at(path, b"one\ntwo\n", 1)
    _, place = read_all(path)
    write_at(path, b"one\ntwo\nthree", 2)
    for i in range(n):
        rotate(path, i + 1)
        write_at(path, b"%d\n%d\n" % (i, i), 3 + i)
    (tmp_path / "stream.jsonl.bak").write_bytes(b"a copy\n")
    lines = list(LineReader(path).read(place))
    assert [line.content for line in lines] == [b"three", *(b"%d" % i for i in range(n) for _ in range(2))]
    assert lines[0].where == f"line 3 of '{path}.{n}'" and lines[-1].where == "line 2 of the stream"
    assert not lines[0].may_grow
    assert read_all(path, lines[-1].place)[0] == []


def test_source_whose_next_part_is_packed_is_an_error(tmp_path):
    path = tmp_path / "stream.jsonl"
    write_at(path, b"one\n", 1)
    _, place = read_all(path)
    rotate(path, 1)
    write_at(tmp_path / "stream.jsonl.0.gz", b"packed", 2)
    write_at(path, b"three\n", 3)
    with pytest.raises(StateError, match=r"'stream.jsonl.0.gz'.*Unpack"):
        read_all(path, place)
    os.remove(tmp_path / "stream.jsonl.1")  # that of the place is nowhere
    with pytest.raises(StateError, match=r"expected the same first 1 lines.*not compressed"):
        read_all(path, place)


def test_source_that_an_editor_has_replaced_goes_on(tmp_path):
    """The old file may be a backup beside it, with the inode of before."""
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\ntwo\n{\nfour\n")
    _, place = next(lines := LineReader(path).read(Place())), next(lines).place
    path.rename(tmp_path / "stream.jsonl~")
    path.write_bytes(b"one\ntwo\nthree\nfour\n")
    assert read_all(path, place)[0] == [b"three", b"four"]
    path.write_bytes(b"one\nTWO\nthree\nfour\n")
    os.remove(tmp_path / "stream.jsonl~")
    with pytest.raises(StateError, match="expected the same first 2 lines"):
        read_all(path, place)


def replaced_while_open(path, content, keep=None):
    """The lines that follow when another file takes the place of an open one.

    keep (Path | None): The name that the open one gets. None: it is deleted, as by `sed -i`.
    """
    path.write_bytes(b"one\ntwo\n")
    lines = LineReader(path).read(Place())
    next(lines)
    if keep is not None:
        os.link(path, keep)
    edited = path.with_name("edited")
    edited.write_bytes(content)
    edited.replace(path)
    return [line.content for line in lines]


def test_source_whose_read_lines_are_edited_while_it_is_read(tmp_path):
    """It is no later part, unless the old file is somewhere: under another name, or packed."""
    path = tmp_path / "stream.jsonl"
    assert replaced_while_open(path, b"one\ntwo\nthree\n") == [b"two", b"three"]
    with pytest.raises(StateError, match="expected the same first 2 lines as before"):
        replaced_while_open(path, b"ONE\ntwo\nthree\n")
    assert replaced_while_open(path, b"three\n", keep=tmp_path / "moved away") == [b"two", b"three"]


def test_source_that_is_rotated_and_packed_while_it_is_read(tmp_path):
    path = tmp_path / "stream.jsonl"
    write_at(path, b"one\ntwo\n", 1)
    lines = LineReader(path).read(Place())
    next(lines)
    write_at(tmp_path / "stream.jsonl.1.gz", b"packed", 1)
    path.unlink()
    write_at(path, b"three\n", 2)
    assert [line.content for line in lines] == [b"two", b"three"]


def following(path):
    found, stop = [], threading.Event()

    source = LineReader(path, follows=True, is_stopped=stop.is_set)
    reader = threading.Thread(target=lambda: found.extend(line.content for line in source.read(Place())))
    reader.start()
    return found, stop, reader


def wait_for(found, n):
    end = time.monotonic() + 30
    while len(found) < n and time.monotonic() < end:
        time.sleep(0.02)
    assert len(found) >= n, found


def test_source_that_is_rotated_while_it_is_followed(tmp_path):
    """Also what is written to the old file after it was renamed. A half line at its end is a line."""
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\n")
    found, stop, reader = following(path)
    wait_for(found, 1)
    with path.open("ab", buffering=0) as file:
        path.rename(tmp_path / "stream.jsonl.1")
        file.write(b"two\n")
        wait_for(found, 2)
        path.write_bytes(b"")
        file.write(b"three\nfour")
        wait_for(found, 3)
    path.write_bytes(b"five\n")
    wait_for(found, 5)
    with path.open("ab") as file:
        file.write(b"six\n")
    wait_for(found, 6)
    stop.set()
    reader.join(10)
    assert found == [b"one", b"two", b"three", b"four", b"five", b"six"]


def test_source_leaves_a_half_line_when_it_is_stopped(tmp_path):
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\n{half")
    found, stop, reader = following(path)
    wait_for(found, 1)
    stop.set()
    reader.join(10)
    assert found == [b"one"] and not reader.is_alive()
    assert read_all(path)[0] == [b"one", b"{half"]  # without follows, the end of the file is its end


def test_source_that_is_rotated_before_anything_was_read_goes_on_with_the_old_file(tmp_path):
    """A run that ended at its first line, which was bad, has a place before it."""
    path = tmp_path / "stream.jsonl"
    write_at(path, b"one\n", 1)
    place = LineReader(path).begin(Place())
    rotate(path)
    write_at(path, b"two\n", 2)
    assert read_all(path, place)[0] == [b"one", b"two"]
    assert LineReader(path).begin(place) == place and LineReader(None).begin(Place()) == Place()


def test_source_that_was_empty_is_not_another_file_with_its_inode(tmp_path):
    """A new file may get the inode of a deleted one; here by a name of its own."""
    path = tmp_path / "stream.jsonl"
    path.touch()
    place = LineReader(path).begin(Place())
    path.rename(tmp_path / "other.jsonl").write_bytes(b"other\n")
    path.write_bytes(b"one\n")
    assert read_all(path, place)[0] == [b"one"]


def test_source_that_is_rotated_may_begin_with_the_same_lines(tmp_path):
    """It is no copy by an editor, as the old file is there."""
    path = tmp_path / "stream.jsonl"
    write_at(path, b"one\n", 1)
    _, place = read_all(path)
    for i in (2, 3):
        rotate(path, i - 1)
        write_at(path, b"same\n", i)
    found, after = read_all(path, place)
    assert found == [b"same", b"same"]
    rotate(path, 3)
    write_at(path, b"same\nlast\n", 4)
    assert read_all(path, after)[0] == [b"same", b"last"]
