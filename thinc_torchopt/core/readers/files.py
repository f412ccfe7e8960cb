"""The files at a path: a file, a folder, an archive, compressed or not, decoded. Memory is bounded."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from ..errors import ConfigError
from ..text_files import encoding_of

# Of one file, and of all at a path: they are read whole.
_MOST_OF_FILE: Final = 200_000_000
_MOST: Final = 1_000_000_000
# Where Hugging Face's datasets keep the names of labels.
_ABOUT: Final = "dataset_info.json"
_DAMAGED: Final = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)


@dataclass
class File:
    """A file that was read.

    path (str): For messages. content (bytes): Not compressed. others (dict): All that were read with it, by path.
    """

    path: str
    content: bytes
    others: dict[str, File] = field(default_factory=dict)

    def about(self) -> File | None:
        """The file beside it that has the names of labels."""
        return self.others.get(str(PurePosixPath(self.path).with_name(_ABOUT)))

    def marks(self) -> File | None:
        """The file beside it in which brat keeps the annotations of a text."""
        return self.others.get(str(PurePosixPath(self.path).with_suffix(".ann")))

    @cached_property
    def text(self) -> str:
        """It, decoded, with its line ends. RAISES (ConfigError): It is not text."""
        start = self.content[:200]
        encoding = encoding_of(start)
        if encoding == "UTF-8" and b"\0" in start:  # UTF-16 without a mark
            encoding = "utf-16-be" if start[0] == 0 else "utf-16-le"
        try:
            return self.content.decode(encoding)
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"Can't read '{self.path}': expected text in UTF-8 or UTF-16, found a byte at {error.start:,} that is "
                "not. Save the file as UTF-8."
            ) from None

    @property
    def is_binary(self) -> bool:
        """Whether it is a picture, a program or the like: no text has zeros, but in UTF-16."""
        try:
            return b"\0" in self.content and not self.text
        except ConfigError:
            return True

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]

    @cached_property
    def records(self) -> list[tuple[str, Any]]:
        """The values of a file of JSON, with their places: of one array, or of each line. Empty: it is not JSON.

        RAISES (ConfigError): It begins as JSON, and has an error.
        """
        if not re.match(r"\s*(\{|\[\s*[^\sa-zA-Z])", self.text):  # [paths] begins a config
            return []
        number, line = 1, ""
        try:
            try:
                return [(f"text {i:,}", value) for i, value in enumerate(_array_in(json.loads(self.text)), start=1)]
            except ValueError:
                found = []
                for number, line in enumerate(self.lines, start=1):
                    found += [(f"line {number:,}", json.loads(line))] if line.strip() else []
                return found
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"Can't read '{self.path}': expected JSON in line {number:,}, found {line.strip()[:60]!r} ({error}). "
                "Is the file cut off? Repair the line, or take it out."
            ) from None


def _array_in(found: Any) -> list[Any]:
    """The texts in a value of JSON: an array, one that stands in an object, or one text."""
    if isinstance(found, dict) and "text" not in found:
        found = next((found[key] for key in ("annotations", "data") if isinstance(found.get(key), list)), found)
    is_pair = isinstance(found, list) and list(map(type, found)) == [str, dict]
    return found if isinstance(found, list) and not is_pair else [found]


def read_files(path: Path) -> list[File]:
    """The files at a path, those of folders and archives too, by name. Hidden ones are left out.

    RAISES (ConfigError): There are none, or one can't be read or is too large.
    """
    if not path.exists():
        raise ConfigError(f"Can't read '{path}': there is no such file or folder. Correct the path.")
    if path.suffix == ".ann" and path.with_suffix(".txt").is_file():
        path = path.with_suffix(".txt")
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    beside = [] if path.is_dir() else [path.with_suffix(".ann"), path.with_name(_ABOUT)]
    others: dict[str, File] = {}
    for one in [*paths, *beside]:
        if one.is_file() and not (path.is_dir() and _is_hidden(one.relative_to(path).as_posix())):
            for name, content in _contents_of(one):
                others[name] = File(name, content, others)
                if sum(len(file.content) for file in others.values()) > _MOST:
                    raise _too_large(str(path), _MOST)
    of_others = {str(path.with_suffix(".ann")) for path in map(PurePosixPath, others) if path.suffix == ".txt"}
    found = [file for name, file in others.items() if name not in of_others and PurePosixPath(name).name != _ABOUT]
    if not found:
        raise ConfigError(f"Can't read '{path}': expected files in it, found none.")
    return found


def _contents_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """The content of a file: itself, or the files of an archive. Nothing is written, so no name can lead anywhere."""
    name = path.as_posix()
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PK\x03\x04":
                with zipfile.ZipFile(file) as archive:
                    for info in sorted(archive.infolist(), key=lambda one: one.filename):
                        if not info.is_dir() and not _is_hidden(info.filename):
                            with archive.open(info) as opened:
                                yield f"{name}/{info.filename}", _read(opened, name)
            else:
                file.seek(0)
                yield name, _read(file, name)
    except _DAMAGED as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConfigError(f"Can't read '{path}': {said.rstrip('.')}. Is the file damaged, or cut off?") from error


def _read(file: IO[bytes], path: str) -> bytes:
    """Read a file, and unpack it if it is compressed."""
    content = file.read(_MOST_OF_FILE + 1)
    if content[:2] == b"\x1f\x8b":
        content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_MOST_OF_FILE + 1)
    if len(content) > _MOST_OF_FILE:
        raise _too_large(path, _MOST_OF_FILE)
    return content


def _too_large(path: str, most: int) -> ConfigError:
    return ConfigError(
        f"Can't read '{path}': expected at most {most // 1_000_000} MB, found more. Divide it into several files, and "
        "give their folder."
    )


def _is_hidden(name: str) -> bool:
    return any(part.strip(".") and part.startswith((".", "__MACOSX")) for part in name.split("/"))
