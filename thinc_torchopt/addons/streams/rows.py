"""The files of rows that a run writes, one JSON object a line: its log, and the texts that could not be learned."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import StateError
from ...core.state import write_text


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a file. RAISES (OSError): It can't be written."""
    with path.open("a", encoding="utf8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())  # the state that counts them comes after them


def trim_rows(path: Path, number: str, at_most: int) -> None:
    """Remove the rows after a number, and that of a run's end. RAISES (StateError): The file is damaged."""
    if path.exists():
        kept = [row for row in read_rows(path, number) if row[number] <= at_most and not row.get("is_last")]
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))


def read_rows(path: Path, number: str) -> list[dict[str, Any]]:
    """Read rows. One without a line end is left out: the run was killed while it wrote it.

    number (str): A number that each row has.
    RAISES (StateError): The file is damaged.
    """
    rows = []
    try:
        for i, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
            try:
                row = json.loads(line)
                if not isinstance(row[number], (int, float)):
                    raise TypeError
            except (ValueError, TypeError, LookupError, RecursionError):
                raise StateError(
                    f"Can't read '{path}': expected a JSON object with '{number}' in line {i:,}, found "
                    f"{line[:60].decode('utf8', errors='replace')!r}. The file is damaged: remove that line, or move "
                    "the file away."
                ) from None
            rows.append(row)
    except OSError as error:
        raise StateError(f"Can't read '{path}': {type(error).__name__}: {error}.") from error
    return rows
