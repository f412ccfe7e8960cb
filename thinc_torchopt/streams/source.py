"""The lines of a stream: a JSONL file that may still grow, or standard input."""

from __future__ import annotations

import os
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import StateError, StreamError
from ..schema import Whole

_CHUNK = 1 << 16
# Seconds between two looks for more.
_PAUSE = 0.5


class Line(NamedTuple):
    """A line that is not blank. content (bytes): Without the line end. place (Place): Where the next one begins."""

    content: bytes
    place: Place


@dataclass(frozen=True)
class Place:
    """A place between two lines of a stream.

    lines, offset (int): Lines and bytes before it. last (int): Length of the line before it, in bytes. checksum (int):
        Its CRC-32.
    """

    lines: Whole = 0
    offset: Whole = 0
    last: Whole = 0
    checksum: Whole = 0

    def after(self, line: bytes) -> Place:
        return Place(self.lines + 1, self.offset + len(line), len(line), zlib.crc32(line))


class Source:
    """Reads lines.

    path (Path | None): The file. None: standard input.
    follows (bool): Wait for more at the end of the file. Standard input is always read until it is closed.
    is_stopped (Callable): Asked while it waits: whether to end.
    """

    def __init__(self, path: Path | None, *, follows: bool = False, is_stopped: Callable[[], bool] = lambda: False):
        self._path = path
        self._follows = follows
        self._is_stopped = is_stopped

    def read(self, start: Place) -> Iterator[Line]:
        """Read from a place on. Standard input begins there.

        RAISES (StateError): The file is not that of before, or has become shorter. (StreamError): There is no file.
        """
        if self._path is None:
            yield from _lines(self._from_stdin(), start)
            return
        try:
            file = self._path.open("rb", buffering=0)
        except OSError as error:
            raise StreamError(f"Can't read the stream '{self._path}': {type(error).__name__}: {error}.") from error
        with file:
            self._check(file.fileno(), start)
            yield from _lines(self._from_file(file.fileno(), start.offset), start)

    def _check(self, file: int, start: Place) -> None:
        """Check that the line before the place is that of before."""
        os.lseek(file, start.offset - start.last, os.SEEK_SET)
        found = b""
        while len(found) < start.last and (more := os.read(file, start.last - len(found))):
            found += more
        if zlib.crc32(found) != start.checksum:
            raise StateError(
                f"Can't go on with the stream '{self._path}': expected the same first {start.lines:,} lines as "
                "before, found others, or fewer. New texts are added at the end. Restore the file, or give another "
                "--output."
            )

    def _from_file(self, file: int, position: int) -> Iterator[bytes]:
        while not self._is_stopped():
            if chunk := os.read(file, _CHUNK):
                position += len(chunk)
                yield chunk
            elif not self._follows:
                return
            elif os.fstat(file).st_size < position:
                raise StateError(
                    f"Can't go on with the stream '{self._path}': it has become shorter. New texts are added at the "
                    "end. To go on with another file, give another --output."
                )
            else:
                time.sleep(_PAUSE)

    def _from_stdin(self) -> Iterator[bytes]:
        file = sys.stdin.fileno()
        while not self._is_stopped():
            with suppress(OSError):  # what can't be waited for, such as a file or a pipe on Windows, is read at once
                if not select.select([file], [], [], _PAUSE)[0]:
                    continue
            if not (chunk := os.read(file, _CHUNK)):
                return
            yield chunk


def _lines(chunks: Iterator[bytes], place: Place) -> Iterator[Line]:
    """Lines, also a last one without a line end."""
    pending: list[bytes] = []
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            whole = b"".join([*pending, line, b"\n"])
            pending, place = [], place.after(whole)
            if whole.strip():
                yield Line(whole.strip(), place)
        pending.append(rest)
    last = b"".join(pending)
    if last.strip():
        yield Line(last.strip(), place.after(last))
