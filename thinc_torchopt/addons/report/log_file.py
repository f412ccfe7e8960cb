"""Read one log: lines of JSON, some of which may be damaged."""

from __future__ import annotations

import json
import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

from ...core.checks import MAX_STEPS
from ...core.errors import ConfigError

# Counts, with the names of their events.
COUNTED = {
    "grad_spikes": "gradient spike",
    "skipped_updates": "update skipped",
    "outside_writes": "rates written by others",
}
# All counts of a line.
COUNTS = ("rollbacks", *COUNTED)
_NUMBERS = ("epoch", "seconds", "words", "score", "grad_norm", *COUNTS)
_BY_NAME = ("losses", "scores", "learn_rates", "time_spent")
# log-2.jsonl, log-3.jsonl ...: see addons/loggers/files.py.
NUMBERED = re.compile(r"(.+)-([1-9]\d*)")
# Joiners, which some scripts need; Python counts them as not printable.
_JOINERS = "\u200c\u200d"
# The most damaged lines that are named.
_MAX_NAMED = 5


class LogFile:
    """A log by columns.

    told (dict): Events in the lines, by (kind, content), with the step of the first line that has them. Contents:
        "checkpoint saved": its step; "went back": from and to step; "resumed": the first step; "rule": name, step,
        action; "one label": step, label.
    sums_of_gradients (set[str]): Components whose "loss" is not a loss.
    trained (dict | None): What the newest process says about what it trains.
    """

    def __init__(self, path: Path):
        self.path = path
        self.steps = array("q")
        self.columns: dict[tuple[str, str], array[float]] = {}
        self.told: dict[tuple[str, Any], int] = {}
        self.sums_of_gradients = {"tok2vec", "transformer"}
        self.notes: list[str] = []
        self.trained: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: Path) -> LogFile:
        """Read a log. RAISES (ConfigError): It is no log, or can't be read."""
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
        dev = record.get("dev_losses")
        if isinstance(dev, dict) and isinstance(dev.get("losses"), dict) and number(dev.get("words")) > 0.0:
            for name, value in dev["losses"].items():
                self._put(("dev_losses", name), number(value) / dev["words"])
        for what in _told_by(record):
            self.told.setdefault(what, step)
        if isinstance(names := record.get("sums_of_gradients"), list):
            self.sums_of_gradients.update(name for name in names if isinstance(name, str))
        if isinstance(trained := record.get("trained"), dict):
            self.trained = trained
        self.steps.append(step)

    def _put(self, column: tuple[str, str], value: Any) -> None:
        values = self.columns.setdefault(column, array("d"))
        if missing := len(self.steps) - len(values):
            values.extend([math.nan] * missing)
        values.append(number(value))

    def cut(self, step: int) -> None:
        """Drop everything from a step on."""
        n = bisect_left(self.steps, step)
        del self.steps[n:]
        for values in self.columns.values():
            del values[n:]
        self.told = {what: told for what, told in self.told.items() if told < step}

    def go_on_with(self, log: LogFile) -> None:
        """Append a later log of the same run, which replaces everything from its first step on."""
        self.cut(log.steps[0])
        for key, values in log.columns.items():
            column = self.columns.setdefault(key, array("d"))
            column.extend([math.nan] * (len(self.steps) - len(column)))
            column.extend(values)
        self.steps.extend(log.steps)
        self.told = {**log.told, ("resumed", log.steps[0]): log.steps[0], **self.told}
        self.sums_of_gradients |= log.sums_of_gradients
        self.trained = log.trained or self.trained
        self.notes += log.notes


def _told_by(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, kind in (("last_checkpoint", "checkpoint saved"), ("last_resume", "resumed")):
        if _is_step(record.get(key)):
            yield kind, record[key]
    if isinstance(label := record.get("one_label"), str):
        yield "one label", (record["step"], label)
    back, rules = record.get("last_rollback"), record.get("controller")
    if isinstance(back, list) and len(back) == 2 and all(map(_is_step, back)):
        yield "went back", tuple(back)
    for fired in rules if isinstance(rules, list) else ():
        if isinstance(fired, dict) and isinstance(fired.get("controller"), str) and _is_step(fired.get("step")):
            yield "rule", (fired["controller"], fired["step"], f"{fired.get('operation')}.{fired.get('action')}")


def _lines(path: Path, notes: list[str], kept: Sized) -> Iterator[tuple[int, dict[str, Any]]]:
    """The undamaged lines, with their numbers; at the end, adds notes on others. kept (Sized): The lines kept so
    far.
    """
    damaged, first_damaged, n = [], b"", 0
    try:
        with path.open("rb") as file:
            for n, line in enumerate(file, 1):
                if not line.strip():
                    continue
                record = parse(line.removeprefix(b"\xef\xbb\xbf") if n == 1 else line)
                if record is None:
                    damaged.append(n)
                    first_damaged = first_damaged or line[:80]
                else:
                    yield n, record
    except OSError as error:
        raise ConfigError(f"Can't read the training log {_shown(path)}: {error}.") from error
    if damaged and len(damaged) >= len(kept):
        raise ConfigError(
            f"Can't read the training log {_shown(path)}: expected lines of JSON with 'step' and 'losses', as "
            f"JSONLinesLogger writes them, found in line {damaged[0]}: {_quoted(first_damaged)}. Use the file in "
            "'path' of the block 'thinc-torchopt.JSONLinesLogger.v1'."
        )
    if damaged == [n]:
        notes.append(
            f"{path.name} ends in half a line, which is left out: the training was stopped while it wrote, or is still "
            "running."
        )
    elif damaged:
        named = ", ".join(map(str, damaged[:_MAX_NAMED])) + (" ..." if len(damaged) > _MAX_NAMED else "")
        notes.append(f"{path.name} has {len(damaged)} damaged lines, which are left out: {named}.")


def _shown(path: Path) -> Path:
    """A path as users write it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _quoted(line: bytes) -> str:
    try:
        return repr(line.decode("utf8").strip())
    except UnicodeDecodeError:  # perhaps cut within a letter
        return (
            "other bytes than text"
            if b"\x00" in line or b"\xff" in line
            else repr(line.decode("utf8", "replace").strip())
        )


def _goes_back(path: Path, last: int, step: int, line: int) -> str:
    return f"{path.name} goes back from step {last} to step {step} in line {line}: the later lines are shown."


def parse(line: bytes) -> dict[str, Any] | None:
    """Parse a line. RETURNS (dict | None): None: it is no line of a log."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not _is_step(record.get("step")) or not isinstance(record.get("losses"), dict):
        return None
    return record


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEPS


def number(value: Any) -> float:
    """A finite number, or NaN."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value) if math.isfinite(value) else math.nan
        except OverflowError:
            pass
    return math.nan


def printable(text: str) -> str:
    """A name without line breaks and other control characters."""
    return "".join(character if character.isprintable() or character in _JOINERS else "\ufffd" for character in text)
