"""`spacy torchopt report`: summarize and draw trainings from their logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..errors import ConfigError
from ..report import Run, check_output, facts_of, read_runs, summarize, write_report
from ..training import is_held
from ._util import errors_shown, make_console, print_json, print_notes, print_table

# Seconds between two writes of a watched report; longer if writing takes more than 1/_SHARE of that.
_SECONDS, _SHARE = 10, 4


def show_report(paths: Sequence[Path], *, output_path: Path | None, watch: bool = False, as_json: bool) -> None:
    """Print a summary of runs, and draw them.

    paths (Sequence[Path]): Logs of JSONLinesLogger.
    output_path (Path | None): The page or picture.
    watch (bool): Draw them repeatedly until they end.
    """
    console = make_console()
    with errors_shown(as_json=as_json):
        if watch and output_path is None:
            raise ConfigError("Can't use --watch alone: there is no report to write. Add --output report.html.")
        if output_path is not None:
            check_output(output_path, paths)
        if watch and output_path is not None:
            _watch(paths, output_path, None if as_json else console)
        runs = read_runs(paths)
        if output_path is not None:
            write_report(runs, output_path)
    if as_json:
        print_json([summarize(run) for run in runs])
        return
    rows = [facts_of(run) for run in runs]
    headers = [fact.name for i, fact in enumerate(rows[0]) if any(row[i].value for row in rows)]
    cells = [
        [run.label, *(f"{fact.value} {fact.more}".strip() for fact in row if fact.name in headers)]
        for run, row in zip(runs, rows)
    ]
    print_table(console, ["run", *headers], cells, numbers=headers)
    print_notes(console, [note for run in runs for note in run.notes])
    if output_path is not None:
        console.print(f"Saved the report to {output_path}")


def _watch(paths: Sequence[Path], output_path: Path, console: Console | None) -> None:
    """Rewrite the report until no training writes to a log any more, or until Ctrl-C."""
    if console is not None:
        console.print(f"Writing {output_path} every {_SECONDS} seconds, until the training ends. Stop with Ctrl-C.")
    try:
        while _goes_on(paths):
            start, runs = time.monotonic(), _read_begun(paths)
            if runs:
                write_report(runs, output_path, reload_seconds=_SECONDS)
            time.sleep(max(_SECONDS, _SHARE * (time.monotonic() - start)))
    except KeyboardInterrupt:
        if console is not None:
            console.print()


def _goes_on(paths: Sequence[Path]) -> bool:
    """Whether a training holds a log, or whether that is unknown."""
    return any(is_held(path) is not False for path in paths)


def _read_begun(paths: Sequence[Path]) -> list[Run]:
    """The runs. Empty: no log has a line yet."""
    for path in paths:
        with path.open("rb") as file:
            if file.readline().endswith(b"\n"):
                return read_runs(paths)
    return []
