"""The lines of a stream: a JSONL file that may still grow, or standard input.

A place in a file is recognized by its content: its lines before the place may not change. A copy of the file will do,
with later lines repaired, for example. A file that is renamed while it is followed, as logrotate does, is an error.
"""

from __future__ import annotations

import os
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ...core.errors import StateError, StreamError
from ...core.schema import Whole

_CHUNK = 1 << 18
# Seconds between two looks for more.
_PAUSE = 0.5


class Line(NamedTuple):
    """A line that is not blank. content (bytes): Without the line end. place (Place): Where the next one begins. where
    (str): Its number, for messages. may_grow (bool): It is the last of the stream, without a line end.
    """

    content: bytes
    place: Place
    where: str
    may_grow: bool = False


@dataclass(frozen=True)
class Place:
    """A place between two lines of a file.

    lines, offset (int): Lines and bytes before it. checksum (int): The CRC-32 of these bytes.
    """

    lines: Whole = 0
    offset: Whole = 0
    checksum: Whole = 0

    def after(self, line: bytes) -> Place:
        return Place(self.lines + 1, self.offset + len(line), zlib.crc32(line, self.checksum))


class LineReader:
    """Reads lines.

    path (Path | None): The file. None: standard input.
    follows (bool): Wait for more at the end of the file. Standard input is always read until it is closed.
    is_stopped (Callable): Asked while it waits: whether to end. A line that is still being written is left for later
        then.
    """

    def __init__(self, path: Path | None, *, follows: bool = False, is_stopped: Callable[[], bool] = lambda: False):
        self._path = path
        self._follows = follows
        self._is_stopped = is_stopped

    def read(self, start: Place) -> Iterator[Line]:
        """Read from a place on. Standard input begins there.

        RAISES (StateError): The lines before the place have changed, the file has become shorter, or another one has
            taken its place. (StreamError): It can't be read.
        """
        if self._path is None:
            yield from self._lines(self._from_stdin(), start)
            return
        try:
            with self._path.open("rb", buffering=0) as file:
                self._check_before(file, start)
                # The rest of a line that was read before it had a line end, often only that, is not a line of its own.
                first = start if self._is_at_line_end(file, start.offset) else replace(start, lines=start.lines - 1)
                yield from self._lines(self._from_file(file.fileno(), start.offset), first)
        except OSError as error:
            raise StreamError(f"Can't read the stream '{self._path}': {type(error).__name__}: {error}.") from error

    def _check_before(self, file: BinaryIO, place: Place) -> None:
        """RAISES (StateError): The lines before a place are not in a file."""
        checksum, left = 0, place.offset
        while left and (chunk := file.read(min(left, _CHUNK))):
            checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
        if left or checksum != place.checksum:
            raise StateError(
                f"Can't go on with the stream '{self._path}': expected the same first {place.lines:,} lines as before, "
                "found others, or fewer. New texts are added at the end. Restore the file, or give another --output."
            )

    # ------------------------------------------------------------------ bytes and lines

    def _is_at_line_end(self, file: BinaryIO, offset: int) -> bool:
        """Whether the lines before a place in a file have ended, the last one too. Goes to the place."""
        if not offset:
            return True
        file.seek(offset - 1)
        return file.read(1) == b"\n"

    def _from_file(self, file: int, position: int) -> Iterator[bytes]:
        """Read a file from its position to the end; or, if more may come, until the run is stopped."""
        while not self._is_stopped():
            if chunk := os.read(file, _CHUNK):
                position += len(chunk)
                yield chunk
            elif not self._follows:
                return
            else:
                self._check_grows(file, position)
                time.sleep(_PAUSE)

    def _check_grows(self, file: int, position: int) -> None:
        """RAISES (StateError): An open file has become shorter, or no longer has its name: nothing more will come."""
        assert self._path is not None
        own = os.fstat(file)
        problem = "it has become shorter" if own.st_size < position else ""
        if not self._path.exists():
            problem = "it was renamed or deleted"
        elif not os.path.samestat(self._path.stat(), own):
            problem = "another file has taken its place"
        if problem:
            raise StateError(
                f"Can't go on with the stream '{self._path}': {problem}. --follow reads one file that grows at its "
                f"end. For a file that is rotated, pipe 'tail -F {self._path}' to standard input."
            )

    def _from_stdin(self) -> Iterator[bytes]:
        file = sys.stdin.fileno()
        while not self._is_stopped():
            with suppress(OSError):  # what can't be waited for, such as a file or a pipe on Windows, is read at once
                if not select.select([file], [], [], _PAUSE)[0]:
                    continue
            if not (chunk := os.read(file, _CHUNK)):
                return
            yield chunk

    def _lines(self, chunks: Iterator[bytes], place: Place) -> Iterator[Line]:
        """Lines, also a last one without a line end, unless the run was stopped."""
        pending: list[bytes] = []
        for chunk in chunks:
            *ended, rest = chunk.split(b"\n")
            for line in ended:
                whole = b"".join([*pending, line, b"\n"])
                pending, place = [], place.after(whole)
                if whole.strip():
                    yield Line(whole.strip(), place, f"line {place.lines:,} of the stream")
            pending.append(rest)
        last = b"".join(pending)
        if last.strip() and not self._is_stopped():
            place = place.after(last)
            yield Line(last.strip(), place, f"line {place.lines:,} of the stream", may_grow=True)
