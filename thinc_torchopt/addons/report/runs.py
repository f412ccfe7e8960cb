"""Join the logs of `JSONLinesLogger` to runs, and summarize them.

A *run* is one training, from one log or several, as a resumed run may continue in the next numbered file. Logs may come
from other versions, from trainings that were killed, or from anyone, so everything is checked: a value that is
not a number is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as counted_from
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy

from ...core.errors import ConfigError
from .labels import Trained, read_line
from .log_file import COUNTED, NUMBERED, LogFile, parse, printable

# The most stretches that speeds are averaged over.
_STRETCHES = 150
# The log in the folder of a training: see addons/loggers/files.py.
_NAME = "log.jsonl"


@dataclass(frozen=True)
class LoggedEvent:
    """An event of a run.

    kind (str): "gradient spike", "update skipped", "went back", "checkpoint saved", "rates written by others",
        "resumed", "one label for all texts"; or "rule " and its name.
    step (int): Its step; with `every` above 1, perhaps that of the next line.
    text (str): Details.
    """

    kind: str
    step: int
    text: str = ""


@dataclass
class LoggedRun:
    """One training.

    label (str): Its name, unique among the runs.
    paths (list[Path]): Its logs.
    steps (numpy.ndarray): The step of each line, rising. Shape: (n,)
    columns (dict): Values of each line by key and name ("" if there is none); NaN: no value. `dev_losses` are per word.
        Shape: (n,)
    sums_of_gradients (set[str]): Components whose "loss" in the log is not a loss.
    events (list[LoggedEvent]): In the order of their steps.
    notes (list[str]): Where the run was resumed, and problems in the logs.
    trained (Trained | None): What was trained, if the log says it.
    """

    label: str
    paths: list[Path]
    steps: numpy.ndarray
    columns: dict[str, dict[str, numpy.ndarray]]
    sums_of_gradients: set[str]
    events: list[LoggedEvent]
    notes: list[str] = field(default_factory=list)
    trained: Trained | None = None

    @property
    def losses(self) -> list[str]:
        """The components that have a loss."""
        return [name for name in self.columns.get("losses", {}) if name not in self.sums_of_gradients]

    @property
    def counts_words(self) -> bool:
        """Whether losses per word can be computed."""
        return bool(numpy.isfinite(self._per_word).any())

    def loss(self, component: str, *, per_word: bool) -> numpy.ndarray:
        """The loss of a component at each line: the mean since the line before, per word or per step."""
        nothing = numpy.full(len(self.steps), math.nan)
        values = self.columns.get("losses", {}).get(component, nothing)
        return values * self._per_word if per_word else values

    @property
    def _per_word(self) -> numpy.ndarray:
        """Steps per word, from one line to the next."""
        words = numpy.diff(self.numbers("words"), prepend=0.0 if self.steps[0] == 0 else math.nan)
        return numpy.diff(self.steps, prepend=-1) / numpy.where(words > 0.0, words, math.nan)

    def numbers(self, key: str) -> numpy.ndarray:
        """A column with one number a line. All NaN: there is no such column."""
        return self.columns.get(key, {}).get("", numpy.full(len(self.steps), math.nan))

    def last(self, key: str) -> float | None:
        """The last value of such a column."""
        found = self.numbers(key)
        found = found[numpy.isfinite(found)]
        return float(found[-1]) if len(found) else None

    @property
    def best(self) -> tuple[float, int] | None:
        """The highest score and its step, the first one if there are several, as in spaCy."""
        scores = self.numbers("score")
        return (
            None
            if numpy.isnan(scores).all()
            else (float(numpy.nanmax(scores)), int(self.steps[numpy.nanargmax(scores)]))
        )

    @property
    def best_scores(self) -> dict[str, float]:
        """All scores at the step of the highest one."""
        at = None if self.best is None else int(numpy.searchsorted(self.steps, self.best[1]))
        found = {} if at is None else {name: float(row[at]) for name, row in self.columns.get("scores", {}).items()}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    @property
    def final_rates(self) -> dict[str, float]:
        """The learning rates of the last line that has some."""
        rates = self.columns.get("learn_rates", {})
        for i in reversed(range(len(self.steps))):
            found = {name: float(values[i]) for name, values in rates.items() if math.isfinite(values[i])}
            if found:
                return found
        return {}

    @property
    def time_spent(self) -> dict[str, float]:
        """Seconds by phase. Each process counts from 0; the time of steps that were done again is left out."""
        begins = [event.step for event in self.events if event.kind == "resumed"]
        found = {}
        for phase, values in self.columns.get("time_spent", {}).items():
            known = numpy.isfinite(values)
            values, steps = values[known], self.steps[known]
            more = numpy.diff(values, prepend=0.0)
            anew = (more < 0.0) | numpy.isin(numpy.arange(len(steps)), numpy.searchsorted(steps, begins))
            found[phase] = float(numpy.where(anew, values, more).sum())
        return found

    def speeds(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Words per second, as means over stretches of the run, each at its last step.

        Time for evaluations is left out if the log allows that: not if it has whole seconds, or hardly any lines but
        evaluations.
        """
        stretches = self._stretches()
        total = sum(seconds for _, seconds in stretches.values())
        at_least = max(total / _STRETCHES, 0.0 if self._has_exact_seconds else 5.0)
        steps, speeds, words, seconds = [], [], 0.0, 0.0
        for step, (more_words, more_seconds) in stretches.items():
            words, seconds = words + more_words, seconds + more_seconds
            if seconds > 0.0 and seconds >= at_least:
                steps.append(step)
                speeds.append(words / seconds)
                words = seconds = 0.0
        if not steps and seconds > 0.0:
            steps, speeds = [int(self.steps[-1])], [words / seconds]
        return numpy.array(steps, dtype="int64"), numpy.array(speeds)

    @property
    def speed(self) -> float | None:
        """Words per second over the whole run."""
        stretches = self._stretches().values()
        seconds = sum(seconds for _, seconds in stretches)
        return sum(words for words, _ in stretches) / seconds if seconds > 0.0 else None

    @property
    def _has_exact_seconds(self) -> bool:
        seconds = self.numbers("seconds")
        return bool((seconds[numpy.isfinite(seconds)] % 1.0).any())

    def _stretches(self) -> dict[int, tuple[float, float]]:
        """Words and seconds from one line to the next, by the step of the next."""
        words, seconds = self.numbers("words"), self.numbers("seconds")
        known = numpy.isfinite(words) & numpy.isfinite(seconds)
        words, seconds, steps, evaluated = (
            words[known],
            seconds[known],
            self.steps[known],
            numpy.isfinite(self.numbers("score"))[known],
        )
        if not len(steps):
            return {}
        # Without the first line: a training starts slowly, and a log may begin later.
        more_words, more_seconds = (numpy.diff(column, prepend=math.nan) for column in (words, seconds))
        counts = (more_words >= 0.0) & (more_seconds >= 0.0)
        if self._has_exact_seconds and evaluated.mean() < 0.5:
            counts[1:] &= ~evaluated[:-1]
        return {
            int(step): (float(w), float(s))
            for step, w, s in zip(steps[counts], more_words[counts], more_seconds[counts])
        }


def read_runs(paths: Sequence[Path]) -> list[LoggedRun]:
    """Read logs.

    paths (Sequence[Path]): The logs. Of a resumed run, one is enough.
    RETURNS (list[LoggedRun]): In the order of the logs, with unique labels.
    RAISES (ConfigError): A file is no log or can't be read, or all are empty.
    """
    given = with_others(paths)
    logs = {path: LogFile.read(path) for path in given}
    filled = [path for path in given if logs[path].steps]
    if not filled:
        raise ConfigError(
            f"Can't make a report of {', '.join(map(str, paths))}: expected at least one line, found an empty file. A "
            "training writes its first line after its first step."
        )
    chains = _chains(filled, logs)
    labels = _labels([chain[0] for chain in chains])
    runs = [_join(label, chain, logs) for label, chain in zip(labels, chains)]
    empty = [f"{path.name} is empty, and left out." for path in given if path not in filled]
    runs[0].notes[:0] = empty
    return runs


# ---------------------------------------------------------------------- logs of one run


def logs_in(paths: Sequence[Path]) -> list[Path]:
    """The logs, and for each folder the newest log in it, or in each of the folders in it.

    RAISES (ConfigError): A folder has none.
    """
    found = []
    for path in paths:
        begun = [path / _NAME] if (path / _NAME).is_file() else sorted(path.glob(f"*/{_NAME}"))
        if path.is_dir() and not begun:
            raise ConfigError(
                f"Can't make a report of '{path}': expected {_NAME} in it, or in folders in it, found none. Give the "
                "--output of a training whose [training.logger] has the JSONLinesLogger of this package, or the path "
                "of its log."
            )
        found += [[log, *_siblings(log, 1)][-1] for log in begun] if path.is_dir() else [path]
    return found


def with_others(paths: Sequence[Path]) -> list[Path]:
    """The logs, and those beside them that belong to the same runs: see `_continued_by`."""
    found = list(dict.fromkeys(path.absolute() for path in paths))
    for path in tuple(found):
        before = path
        while (earlier := _continued_by(before)) is not None:
            found.append(before := earlier)
        for later in _siblings(path, 1):
            if _continued_by(later) in found:
                found.append(later)
    return list(dict.fromkeys(found))


def _continued_by(path: Path) -> Path | None:
    """The log that another one continues, if that does not begin at step 0: the one of the same run with the highest
    number before. The first lines tell the runs; older logs don't, and are taken for one run.
    """
    first = _first_line(path)
    if first is None or not first["step"]:
        return None
    earlier = ((beside, _first_line(beside)) for beside in _siblings(path, -1))
    return next((log for log, line in earlier if line is not None and line.get("run_id") == first.get("run_id")), None)


def _chains(paths: Sequence[Path], logs: Mapping[Path, LogFile]) -> list[list[Path]]:
    """The logs that belong together."""
    chains: dict[Path, list[Path]] = {}
    for path in sorted(paths, key=lambda path: _stem_and_number(path)[1]):
        before = _continued_by(path)
        chain = None if before is None else chains.get(before)
        if chain is not None and logs[chain[0]].steps[0] < logs[path].steps[0]:
            chains[path] = chain
            chain.append(path)
        else:
            chains[path] = [path]
    return [chains[path] for path in paths if chains[path][0] == path]


def _stem_and_number(path: Path) -> tuple[str, int]:
    found = NUMBERED.fullmatch(path.stem)
    return (path.stem, 1) if found is None else (found[1], int(found[2]))


def _siblings(path: Path, further: Literal[-1, 1]) -> Iterator[Path]:
    """The numbered logs before a log, or after it, the nearest first."""
    stem, number = _stem_and_number(path)
    numbers = takewhile(lambda n: n > 0, counted_from(number + further, further))
    return takewhile(Path.is_file, (path.with_name(f"{stem}{'' if n == 1 else f'-{n}'}{path.suffix}") for n in numbers))


def _join(label: str, chain: Sequence[Path], logs: Mapping[Path, LogFile]) -> LoggedRun:
    """Join the logs of a run."""
    run, *others = (logs[path] for path in chain)
    for log in others:
        again = run.steps[-1] - log.steps[0] + 1
        run.go_on_with(log)
        run.notes.append(_resumed(log, again))
    notes = [*run.notes, *_hints(chain, run.steps[0], logs)]
    steps, columns = numpy.array(run.steps, dtype="int64"), _as_arrays(run)
    given_up = run.sums_of_gradients & set(columns.get("losses", {}))
    events = sorted(_events(steps, columns, run), key=lambda event: event.step)
    trained = None if run.trained is None else read_line(run.trained)
    return LoggedRun(label, list(chain), steps, columns, given_up, events, notes, trained)


def _resumed(log: LogFile, again: int) -> str:
    """In words, where a run was resumed. again (int): The steps that were done again."""
    what = "" if again < 1 else "; one step was done again" if again == 1 else f"; {again:,} steps were done again"
    return f"The run was stopped, and resumed at step {log.steps[0]:,}{what} (in {log.path.name})."


def _hints(chain: Sequence[Path], first_step: int, logs: Collection[Path]) -> Iterator[str]:
    """Notes on a log that is not there, or not in the report. logs (Collection[Path]): All that are in it."""
    if first_step > 0:
        yield f"{chain[0].name} begins at step {first_step:,}: the log of the earlier steps is not in its folder."
    *_, newest = chain[-1], *_siblings(chain[-1], 1)
    if newest not in logs and _first_line(newest) is not None:
        yield f"A later training has written {newest.name}, which is not in this report."


def _first_line(path: Path) -> dict[str, Any] | None:
    """The first line of a log. None: it is none, or empty."""
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError:
        line = b""
    return parse(line)


def _as_arrays(log: LogFile) -> dict[str, dict[str, numpy.ndarray]]:
    columns: dict[str, dict[str, numpy.ndarray]] = {}
    for (key, name), values in log.columns.items():
        column = numpy.full(len(log.steps), math.nan)
        column[: len(values)] = values
        if numpy.isfinite(column).any():
            columns.setdefault(key, {})[name] = column
    return columns


def _events(
    steps: numpy.ndarray, columns: Mapping[str, Mapping[str, numpy.ndarray]], log: LogFile
) -> Iterator[LoggedEvent]:
    counted = {**COUNTED, **({} if any(kind == "went back" for kind, _ in log.told) else {"rollbacks": "went back"})}
    for key, kind in counted.items():
        for step, count in _increases(steps, columns.get(key, {}).get("")):
            yield LoggedEvent(kind, step, f"{count} times" if count > 1 else "")
    for kind, what in log.told:
        if kind == "rule":
            yield LoggedEvent(f"rule {printable(what[0])}", what[1], printable(what[2]))
        elif kind == "one label":
            yield LoggedEvent("one label for all texts", what[0], printable(what[1]))
        elif kind == "went back":
            yield LoggedEvent(kind, what[0], f"to the checkpoint of step {what[1]:,}")
        else:
            yield LoggedEvent(kind, what)


def _increases(steps: numpy.ndarray, counts: numpy.ndarray | None) -> Iterator[tuple[int, int]]:
    """The steps at which a cumulative count rises, and by how much."""
    if counts is None:
        return
    known = numpy.isfinite(counts)
    steps, counts = steps[known], counts[known]
    # In a log that doesn't begin at step 0, the first line's count is from before.
    more = numpy.diff(counts, prepend=0.0 if steps[0] == 0 else counts[0])
    for i in numpy.flatnonzero(more > 0):
        yield int(steps[i]), int(more[i])


# ---------------------------------------------------------------------- the summary


class Fact(NamedTuple):
    """One number. value (str): Empty: unknown. more (str): Details."""

    name: str
    value: str
    more: str = ""


def facts_of(run: LoggedRun) -> list[Fact]:
    """The facts of a run, the same ones in the same order for all runs."""
    found = summarize(run)
    best = f"at step {found['best_step']:,}" if found["best_step"] is not None else ""
    low, high = found["lowest_final_rate"], found["highest_final_rate"]
    return [
        Fact("best score", _short(found["best_score"]), best),
        Fact("last score", _short(found["last_score"])),
        Fact("last step", f"{found['last_step']:,}", "" if found["epoch"] is None else f"epoch {found['epoch']}"),
        Fact("words per second", "" if found["words_per_second"] is None else f"{found['words_per_second']:,.0f}"),
        Fact("duration", "" if found["seconds"] is None else duration(found["seconds"])),
        Fact("skipped updates", _count(found["skipped_updates"])),
        Fact("gradient spikes", _count(found["grad_spikes"])),
        Fact("rollbacks", _count(found["rollbacks"])),
        Fact("final rate", "" if high is None else f"{high:.3g}", "" if low == high else f"down to {low:.3g}"),
    ]


def summarize(run: LoggedRun) -> dict[str, Any]:
    """The numbers of a summary, for JSON. None: not in the log."""
    # A rate of 0: the group is frozen, or its schedule is over.
    rates = [rate for rate in run.final_rates.values() if rate] or list(run.final_rates.values())
    counts = {name: run.last(name) for name in ("epoch", "skipped_updates", "grad_spikes", "rollbacks", "words")}
    return {
        "run": run.label,
        "logs": [str(path) for path in run.paths],
        "first_step": int(run.steps[0]),
        "last_step": int(run.steps[-1]),
        "best_score": None if run.best is None else run.best[0],
        "best_step": None if run.best is None else run.best[1],
        "last_score": run.last("score"),
        "words_per_second": run.speed,
        "seconds": run.last("seconds"),
        **{name: None if count is None else int(count) for name, count in counts.items()},
        "time_spent": run.time_spent,
        "lowest_final_rate": min(rates, default=None),
        "highest_final_rate": max(rates, default=None),
        "notes": run.notes,
    }


def duration(seconds: float) -> str:
    """A duration in words: 4.2 s, 42 s, 7 min 5 s, 3 h 20 min. It is rounded first: 59.7 s are 1 min 0 s."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


# ---------------------------------------------------------------------- labels


def _labels(paths: Sequence[Path]) -> list[str]:
    """Unique names of runs: the shortest ends of their paths."""
    parts = [[*path.parts[:-1], path.stem] for path in paths]
    if len({tuple(part) for part in parts}) < len(parts):
        parts = [list(path.parts) for path in paths]
    if len(paths) == 1:
        return [printable("/".join(parts[0][-2:]).lstrip("/"))]
    without_number = [[*path.parts[:-1], _stem_and_number(path)[0]] for path in paths]
    if len({tuple(part) for part in without_number}) == len(parts):  # one of each folder
        parts = without_number
    longest = max(map(len, parts))
    n = next((n for n in range(1, longest) if len({tuple(part[-n:]) for part in parts}) == len(parts)), longest)
    parts = [part[-n:] for part in parts]
    while all(len(part) > 1 for part in parts) and len({part[-1] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    names = [printable("/".join(part).replace("//", "/")) for part in parts]
    return names if len(set(names)) == len(names) else [f"{name} ({i})" for i, name in enumerate(names, 1)]
