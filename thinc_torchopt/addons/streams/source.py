"""The lines of a stream: a JSONL file that may still grow, or standard input.

The file may be rotated: renamed, so that another one takes its name, as logrotate does by default. Then the rest of it
is read, and the new file from its beginning. A place in a stream is one in a file, which is recognized by its content:
its lines before the place may not change. A copy of the file will do, with later lines repaired, for example.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    (str): Its number and its file, for messages. may_grow (bool): It is the last of the stream, without a line end.
    """

    content: bytes
    place: Place
    where: str
    may_grow: bool = False


@dataclass(frozen=True)
class Place:
    """A place between two lines of a file.

    lines, offset (int): Lines and bytes before it. checksum (int): The CRC-32 of these bytes. inode (int): Of the file.
        0: it is standard input.
    """

    lines: Whole = 0
    offset: Whole = 0
    checksum: Whole = 0
    inode: Whole = 0

    def after(self, line: bytes) -> Place:
        return replace(
            self,
            lines=self.lines + 1,
            offset=self.offset + len(line),
            checksum=zlib.crc32(line, self.checksum),
        )


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

        RAISES (StateError): The lines before the place have changed, or the file has become shorter.
            (StreamError): It can't be read.
        """
        if self._path is None:
            yield from self._lines(self._from_stdin(), start, "the stream")
            return
        path: Path | None = self._find(self._path, start)
        place = start
        while path is not None:
            name = "the stream" if path == self._path else f"'{path}'"
            with self._reading(path) as file:
                place = replace(place, inode=os.fstat(file.fileno()).st_ino)
                # The rest of a line that was read before it had a line end, often only that, is not a line of its own.
                first = place if self._is_at_line_end(file, place.offset) else replace(place, lines=place.lines - 1)
                for line in self._lines(self._from_file(file.fileno(), place.offset), first, name):
                    place = line.place
                    # The last line of a file that was rotated is whole.
                    yield line._replace(may_grow=line.may_grow and self._next(file.fileno()) is None)
                path = None if self._is_stopped() else self._next(file.fileno())
                if path is not None and not self._is_copy(path, os.fstat(file.fileno()), place):
                    place = Place()

    def begin(self, place: Place) -> Place:
        """A place with its file: also one before the first line, so that the file is known if it is rotated then."""
        if self._path is None or place.inode:
            return place
        with self._reading(self._path) as file:
            return replace(place, inode=os.fstat(file.fileno()).st_ino)

    @contextmanager
    def _reading(self, path: Path) -> Iterator[BinaryIO]:
        """Open a file. RAISES (StreamError): An error of the system, here or inside."""
        try:
            with path.open("rb", buffering=0) as file:
                yield file
        except OSError as error:
            raise StreamError(f"Can't read the stream '{path}': {type(error).__name__}: {error}.") from error

    # ------------------------------------------------------------------ the files of a stream

    def _find(self, path: Path, start: Place) -> Path:
        """The file of a place: of this name, or a renamed one beside it.

        RAISES (StateError): There is none with these lines before the place.
        """
        same = [
            other
            for other in (path.parent.iterdir() if start.inode else ())
            if other.is_file() and other.stat().st_ino == start.inode
        ]
        rotated = {other for other, _, _ in self._rotated()}
        # A rotated file comes first, as the one after it may begin with the same lines. Under another name it may be a
        # backup, whose later lines were repaired since: it comes last. Before the first line there is no content to
        # know it by, and the inode may be that of any new file.
        for other in [*(other for other in same if other in rotated), *([path, *same] if start.offset else [])]:
            if self._begins_as(other, start):
                return other
        if start.offset:
            raise self._changed(start)
        return path

    def _changed(self, place: Place) -> StateError:
        return StateError(
            f"Can't go on with the stream '{self._path}': expected the same first {place.lines:,} lines as before, "
            "found others, or fewer. New texts are added at the end; a file that was rotated must be beside it, "
            "not compressed. Restore the file, or give another --output."
        )

    def _begins_as(self, path: Path, place: Place) -> bool:
        """Whether the lines before a place are in a file."""
        checksum, left = 0, place.offset
        with self._reading(path) as file:
            while left and (chunk := file.read(min(left, _CHUNK))):
                checksum, left = zlib.crc32(chunk, checksum), left - len(chunk)
        return not left and checksum == place.checksum

    def _is_copy(self, path: Path, before: os.stat_result, place: Place) -> bool:
        """Whether the file after another one is a copy of it, as an editor puts it in its place, and no later part.

        before (os.stat_result): Of the other one, which is open. place (Place): Its end.
        RAISES (StateError): The other one is gone, and lines before its end have changed.
        """
        was_rotated = any(
            # Who packs a file keeps its time, at least in seconds, and deletes it.
            stat.st_ino == before.st_ino or (is_packed and int(stat.st_mtime) == int(before.st_mtime))
            for _, stat, is_packed in self._rotated()
        )
        if was_rotated or path != self._path or not place.offset:
            return False
        if self._begins_as(path, place):
            return True
        if not before.st_nlink:
            raise self._changed(place)
        return False

    def _next(self, file: int) -> Path | None:
        """The file after an open one, if that was rotated. None: it is the newest.

        RAISES (StateError): It is compressed.
        """
        assert self._path is not None
        own = os.fstat(file)
        with suppress(OSError):
            if self._path.stat().st_ino == own.st_ino:
                return None
        # It may have been rotated more than once.
        later = [
            (stat.st_mtime_ns, path, is_packed)
            for path, stat, is_packed in self._rotated()
            if stat.st_ino != own.st_ino and stat.st_size and stat.st_mtime_ns > own.st_mtime_ns
        ]
        if not later:
            return self._path if self._path.exists() else None
        _, path, is_packed = min(later)
        if is_packed:
            raise StateError(
                f"Can't go on with the stream '{self._path}': expected its next part as text, found '{path.name}'. "
                "It was rotated more than once. Unpack that file, and remove the packed one."
            )
        return path

    def _rotated(self) -> Iterator[tuple[Path, os.stat_result, bool]]:
        """The files beside the stream that have its name with a number or a date, and whether they are packed."""
        assert self._path is not None
        for path in self._path.parent.iterdir():
            match = re.fullmatch(rf"{re.escape(self._path.name)}[.-]\d[\d.-]*(\.[a-z]+\d?)?", path.name)
            if match is not None and path.is_file():
                yield path, path.stat(), match[1] is not None

    # ------------------------------------------------------------------ bytes and lines

    def _is_at_line_end(self, file: BinaryIO, offset: int) -> bool:
        """Whether the lines before a place in a file have ended, the last one too."""
        file.seek(max(0, offset - 1))
        return not offset or file.read(1) == b"\n"

    def _from_file(self, file: int, position: int) -> Iterator[bytes]:
        """Read to the end of a file, which was rotated or stays as it is; or until the run is stopped."""
        os.lseek(file, position, os.SEEK_SET)
        was_rotated = False
        while not self._is_stopped():
            if chunk := os.read(file, _CHUNK):
                position += len(chunk)
                yield chunk
            elif was_rotated or not self._follows:
                return
            elif os.fstat(file).st_size < position:
                raise StateError(
                    f"Can't go on with the stream '{self._path}': it has become shorter. New texts are added at the "
                    "end. To go on with another file, give another --output."
                )
            # Whoever writes has the old file open until there is something in the new one.
            elif (path := self._next(file)) is not None and path.stat().st_size:
                was_rotated = True
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

    def _lines(self, chunks: Iterator[bytes], place: Place, name: str) -> Iterator[Line]:
        """Lines, also a last one without a line end, unless the run was stopped."""
        pending: list[bytes] = []
        for chunk in chunks:
            *ended, rest = chunk.split(b"\n")
            for line in ended:
                whole = b"".join([*pending, line, b"\n"])
                pending, place = [], place.after(whole)
                if whole.strip():
                    yield Line(whole.strip(), place, f"line {place.lines:,} of {name}")
            pending.append(rest)
        last = b"".join(pending)
        if last.strip() and not self._is_stopped():
            place = place.after(last)
            yield Line(last.strip(), place, f"line {place.lines:,} of {name}", may_grow=True)
