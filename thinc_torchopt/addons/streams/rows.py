"""The files of rows that a run writes, one JSON object a line: its log, and the texts that could not be learned."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import StateError
from ...core.state import write_text


@dataclass
class LogRow:
    """A row of the log.

    texts, tokens (int): Learned so far. skipped (int): Texts that were left out so far, by their labels or annotators.
    rejected (int): Texts that could not be learned so far. skipped_updates (int): Those that the optimizer has left out
        so far, as their gradients were not finite or spiked: nothing was learned of their texts.
    score, scores: Of the texts since the row before, each before it was learned. None: unknown.
    losses (dict): By component, the mean over these texts.
    learn_rate (float): The highest of all param groups. watched, watched_scores: Of the watched corpus.
    watched_old, watched_new: The F score there of all annotations with labels from before the run, and of those with
        labels that were added. None: there are none of them.
    seconds (float): Since the start of this process. is_last (bool): The stream has ended, or the run was stopped. The
        next run goes on with the block, and removes this row.
    """

    texts: int
    tokens: int
    skipped: int
    rejected: int
    skipped_updates: int
    score: float | None
    scores: dict[str, float]
    losses: dict[str, float]
    learn_rate: float
    watched: float | None
    watched_scores: dict[str, float]
    watched_old: float | None
    watched_new: float | None
    seconds: float
    is_last: bool = False


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
