"""The lines of a stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.streams import source as source_module
from thinc_torchopt.addons.streams.records import Memory
from thinc_torchopt.addons.streams.source import LineReader, Place
from thinc_torchopt.core.errors import StateError

from ...forks import Started
from .streams import stops

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
        for line in LineReader(path, is_stopped=stops(50, AssertionError)).read(place):
            found.append(line.content)
            assert line.place.lines == content[: line.place.offset].count(b"\n") + line.may_grow
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


def test_source_that_becomes_shorter_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(source_module.time, "sleep", None)  # it is told at once
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\ntwo\n")
    lines = LineReader(path, follows=True, is_stopped=stops(50, AssertionError)).read(Place())
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
        assert len({line for line, n in memory.lines if n == 0}) == 10 and memory.seen == 100
        for line, _ in memory.lines:
            counts[int(line) // 10] += 1
    assert all(abs(count - 1000) < 5 * 28 for count in counts), counts
    assert len(set(memory.draw(4))) == 4 and len(memory.draw(20)) == 10


def read_all(path, place=Place(), **options):  # noqa: B008
    found = list(LineReader(path, **options).read(place))
    return [line.content for line in found], found[-1].place if found else place


def test_source_that_an_editor_has_replaced_goes_on(tmp_path):
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\ntwo\n{\nfour\n")
    _, place = next(lines := LineReader(path).read(Place())), next(lines).place
    path.rename(tmp_path / "stream.jsonl~")
    path.write_bytes(b"one\ntwo\nthree\nfour\n")
    assert read_all(path, place)[0] == [b"three", b"four"]
    for content in (b"one\nTWO\nthree\nfour\n", b"one\n"):
        path.write_bytes(content)
        with pytest.raises(StateError, match=r"expected the same first 2 lines as before.*Restore the file"):
            read_all(path, place)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_source_that_is_rotated_while_it_is_followed_is_an_error(tmp_path, is_replaced):
    """What was written to the old file is read before, also the rest of a line."""
    path = tmp_path / "stream.jsonl"
    path.write_bytes(b"one\ntw")
    lines = LineReader(path, follows=True, is_stopped=stops(50, AssertionError)).read(Place())
    assert next(lines).content == b"one"
    with path.open("ab", buffering=0) as file:
        path.rename(tmp_path / "stream.jsonl.1")
        file.write(b"o\n")
    if is_replaced:
        path.write_bytes(b"three\n")
    assert next(lines).content == b"two"
    problem = "another file has taken its place" if is_replaced else "it was renamed or deleted"
    with pytest.raises(StateError, match=rf"{problem}\. --follow reads one file.*tail -F"):
        next(lines)


def test_source_leaves_a_half_line_when_it_is_stopped(tmp_path, monkeypatch):
    path, pauses = tmp_path / "stream.jsonl", []
    path.write_bytes(b"one\n{half")
    monkeypatch.setattr(source_module.time, "sleep", pauses.append)
    assert [line.content for line in LineReader(path, follows=True, is_stopped=stops(4)).read(Place())] == [b"one"]
    assert pauses == [0.05] * 3
    assert read_all(path)[0] == [b"one", b"{half"]  # without follows, the end of the file is its end
