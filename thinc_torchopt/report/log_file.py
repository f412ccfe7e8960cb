"""Reading one log: lines of JSON, of which some may be damaged."""

from __future__ import annotations

import json
import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from ..checks import MAX_STEPS
from ..errors import ConfigError

# What counts so far are called when one of them is marked.
COUNTED = {
    "grad_spikes": "spike",
    "skipped_updates": "skip",
    "outside_writes": "outside_write",
    "conservative_mode": "conservative",
}
# All counts of a line.
COUNTS = ("rollbacks", *COUNTED)
_NUMBERS = ("epoch", "seconds", "words", "score", "grad_norm", *COUNTS)
_BY_NAME = ("losses", "scores", "learn_rates")
# log-2.jsonl, log-3.jsonl ...: see loggers/jsonl.py.
NUMBERED = re.compile(r"(.+)-([1-9]\d*)")
# More damaged lines than that are not named.
_MAX_NAMED = 5


class Log:
    """A log, column by column, as its lines are read."""

    def __init__(self, path: Path):
        self.path = path
        self.steps = array("q")
        self.columns: dict[tuple[str, str], array[float]] = {}
        self.rollbacks: dict[tuple[int, int], int] = {}  # after and to, by the step of the line that told first
        self.checkpoints: dict[int, None] = {}
        self.notes: list[str] = []

    @classmethod
    def read(cls, path: Path) -> Log:
        """RAISES (ConfigError): It is no log, or can't be read."""
        log = cls(path)
        for line, record in _lines(path, log.notes, log.steps):
            log._add(record, line)
        return log

    def _add(self, record: Mapping[str, Any], line: int) -> None:
        step = record["step"]
        if self.steps and step <= self.steps[-1]:
            if step < self.steps[-1]:
                self.notes.append(_goes_back(self.path, self.steps[-1], step, line))
            self.cut(step)
        for key in _NUMBERS:
            if key in record:
                self._put((key, ""), record[key])
        for key in _BY_NAME:
            values = record.get(key)
            if isinstance(values, dict):
                for name, value in values.items():
                    if not isinstance(value, (dict, list, str)):
                        self._put((key, name), value)
        saved, back = record.get("last_checkpoint"), record.get("last_rollback")
        if saved is not None and _is_step(saved):
            self.checkpoints[saved] = None
        if isinstance(back, list) and len(back) == 2 and all(map(_is_step, back)):
            self.rollbacks.setdefault((back[0], back[1]), step)
        self.steps.append(step)

    def _put(self, column: tuple[str, str], value: Any) -> None:
        values = self.columns.setdefault(column, array("d"))
        while len(values) < len(self.steps):
            values.append(math.nan)
        values.append(_number(value))

    def cut(self, step: int) -> None:
        """Forget all from a step on."""
        n = bisect_left(self.steps, step)
        del self.steps[n:]
        for values in self.columns.values():
            del values[n:]
        self.checkpoints = {saved: None for saved in self.checkpoints if saved < step}
        self.rollbacks = {back: told for back, told in self.rollbacks.items() if told < step}


def read_history(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of all logs of one run as they are, with rising steps; and notes. Where a run was resumed and did steps
    again, the later log counts.

    paths (Sequence[Path]): In their order; log.jsonl, log-2.jsonl, log-10.jsonl in any.
    RAISES (ConfigError): One is no log or can't be read, or all are empty.
    """
    history: list[dict[str, Any]] = []
    notes: list[str] = []
    empty = []
    for path in _in_order(paths):
        records, more = _read_records(path)
        notes += more
        if not records:
            empty.append(path.name)
            continue
        first, before = records[0]["step"], len(history)
        while history and history[-1]["step"] >= first:
            history.pop()
        if len(history) < before:
            notes.append(
                f"{path.name} begins at step {first}: {before - len(history)} lines of before, from that step on, are "
                "left out."
            )
        history += records
    if not history:
        named = ", ".join(map(str, paths))
        raise ConfigError(f"Can't read the training log {named}: expected at least one line, found none.")
    if empty:
        notes.append(f"{', '.join(empty)} is empty.")
    return history, notes


def _in_order(paths: Sequence[Path]) -> list[Path]:
    """Logs of one name by their numbers: a shell puts log-2.jsonl before log.jsonl. Others as they are."""
    names = [NUMBERED.fullmatch(path.stem) for path in paths]
    bases = {path.with_name(name[1] if name else path.stem) for path, name in zip(paths, names)}
    if len(bases) > 1:
        return list(paths)
    numbers = [int(name[2]) if name else 1 for name in names]
    return [path for _, path in sorted(zip(numbers, paths))]


def _read_records(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """RAISES (ConfigError): It is no log, or can't be read."""
    records: list[dict[str, Any]] = []
    notes: list[str] = []
    for line, record in _lines(path, notes, records):
        if records and record["step"] < records[-1]["step"]:
            notes.append(_goes_back(path, records[-1]["step"], record["step"], line))
        while records and records[-1]["step"] >= record["step"]:
            records.pop()
        records.append(record)
    return records, notes


def _lines(path: Path, notes: list[str], kept: Sized) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines that are whole, with their numbers; at the end, notes on others. kept (Sized): Of them."""
    damaged, first_damaged, n = [], "", 0
    try:
        with path.open("rb") as file:
            for n, line in enumerate(file, 1):
                if not line.strip():
                    continue
                record = parse(line.removeprefix(b"\xef\xbb\xbf") if n == 1 else line)
                if record is None:
                    damaged.append(n)
                    first_damaged = first_damaged or line[:80].decode("utf8", errors="replace").strip()
                else:
                    yield n, record
    except OSError as error:
        raise ConfigError(f"Can't read the training log {path}: {error}.") from error
    if damaged and len(damaged) >= len(kept):
        raise ConfigError(
            f"Can't read the training log {path}: expected lines of JSON with 'step' and 'losses', as "
            f"JSONLinesLogger writes them, found in line {damaged[0]}: {first_damaged!r}. Give the file that "
            "'path' names in the block of 'thinc-torchopt.JSONLinesLogger.v1'."
        )
    if damaged == [n]:
        notes.append(
            f"{path.name} ends in half a line, which is left out: the training was stopped while it wrote, or goes on."
        )
    elif damaged:
        named = ", ".join(map(str, damaged[:_MAX_NAMED])) + (" ..." if len(damaged) > _MAX_NAMED else "")
        notes.append(f"{path.name} has {len(damaged)} damaged lines, which are left out: {named}.")


def _goes_back(path: Path, last: int, step: int, line: int) -> str:
    return f"{path.name} goes back from step {last} to step {step} in line {line}: shown is what comes later."


def parse(line: bytes) -> dict[str, Any] | None:
    """RETURNS (dict | None): None if it is no line of a log."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not _is_step(record.get("step")) or not isinstance(record.get("losses"), dict):
        return None
    return record


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEPS


def _number(value: Any) -> float:
    """A finite number, or NaN."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value) if math.isfinite(value) else math.nan
        except OverflowError:
            pass
    return math.nan
