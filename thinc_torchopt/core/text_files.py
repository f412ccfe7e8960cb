"""Files of text: their encodings."""

from __future__ import annotations

import codecs
from pathlib import Path

from .errors import ConfigError

# Byte order marks, the longer ones first: that of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF8: "UTF-8-SIG",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def encoding_of(content: bytes) -> str:
    """The encoding that a byte order mark tells; without one, UTF-8."""
    return next((name for mark, name in _MARKS.items() if content.startswith(mark)), "UTF-8")


def decode(content: bytes) -> str:
    """The text of a file. RAISES (UnicodeDecodeError): It is not in UTF-8, nor one with a byte order mark."""
    return content.decode(encoding_of(content))


def check_encoding(path: Path, where: str) -> None:
    """Check a file that a host is about to read as UTF-8. A missing file is left to others.

    where (str): What it is, for the error: "'config.cfg'".
    RAISES (ConfigError): It begins with a byte order mark.
    """
    try:
        with path.open("rb") as file:
            found = encoding_of(file.read(4))
    except OSError:
        return
    if found != "UTF-8":
        found = found.replace("-SIG", " with a byte order mark")
        raise ConfigError(
            f"Can't read {where}: expected a text in UTF-8, found {found}. Save it as UTF-8 without a byte order mark."
        )


def check_config_file(path: Path) -> None:
    """Check that a config is a text that confection can read. A missing file is left to others.

    RAISES (ConfigError): It is not.
    """
    check_encoding(path, f"'{path}'")
    if path.is_file():
        try:
            path.read_text("utf8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"Can't read '{path}': it is not a text in UTF-8 ({error}). Is it a config?") from error
