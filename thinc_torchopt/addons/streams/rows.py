"""The files of rows that a run writes, one JSON object a line: its log, and the texts that could not be learned."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Append rows to a file. RETURNS (int): Its size now, in bytes. RAISES (OSError): It can't be written."""
    with path.open("ab") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode("utf8"))
        file.flush()
        os.fsync(file.fileno())  # the state that has its size comes after it
        return file.tell()


def trim(path: Path, size: int) -> None:
    """Remove the rows that were appended since a file had a size. RAISES (OSError): It can't be written."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)
