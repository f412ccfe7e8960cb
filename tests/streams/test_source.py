"""The lines of a stream."""

import os
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.errors import StateError
from thinc_torchopt.streams import Memory, Place, Source

LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b" ").replace(b"\r", b" ")), max_size=12)


@given(lines=LINES, cuts=st.lists(st.integers(0, 12), max_size=4), ended=st.booleans())
def test_source_reads_each_line_once(tmp_path_factory, lines, cuts, ended):
    """In parts, each from where the last one ended; blank lines are left out."""
    path = tmp_path_factory.mktemp("source") / "stream.jsonl"
    place, found = Place(), []
    for cut in [*sorted(cuts), len(lines)]:
        content = b"\n".join(lines[:cut]) + (b"\n" if ended and cut else b"")
        # Without a line end, the last line is complete: more is added behind a line end.
        path.write_bytes(content)
        for line in Source(path).read(place):
            found.append(line.content)
            place = line.place
    assert found == [line.strip() for line in lines if line.strip()]


def test_source_follows_a_file_that_grows(tmp_path):
    path, found, stop = tmp_path / "stream.jsonl", [], threading.Event()
    path.write_bytes(b"one\ntw")
    reader = threading.Thread(
        target=lambda: found.extend(
            line.content for line in Source(path, follows=True, is_stopped=stop.is_set).read(Place())
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
    lines = Source(path, follows=True).read(Place())
    assert [next(lines).content, next(lines).content] == [b"one", b"two"]
    path.write_bytes(b"on")
    with pytest.raises(StateError, match="has become shorter"):
        next(lines)


def test_source_reads_standard_input():
    code = (
        "from thinc_torchopt.streams import Place, Source\n"
        "for line in Source(None).read(Place()): print(line.place.lines, line.content, flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"one\n\ntw")
    process.stdin.flush()
    assert process.stdout.readline() == b"1 b'one'\n"  # while the pipe is open
    out, _ = process.communicate(b"o\nthree", timeout=60)
    assert out.splitlines() == [b"3 b'two'", b"4 b'three'"]


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
        for line in memory.lines:
            counts[int(line) // 10] += 1
    assert all(abs(count - 1000) < 5 * 28 for count in counts), counts
    assert len(set(memory.draw(4))) == 4 and len(memory.draw(20)) == 10


def test_source_has_no_newline_translation(tmp_path):
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\r\ntwo" + os.linesep.encode())
    assert [line.content for line in Source(path).read(Place())] == [b"one", b"two"]
