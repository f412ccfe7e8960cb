"""`spacy torchopt report`: summarize and draw trainings from their logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from rich.console import Console
from typer import Argument as Arg
from typer import Option as Opt

from ..addons.report import LoggedRun, check_output, facts_of, read_runs, summarize, write_report
from ..core.errors import ConfigError
from ..loop.run_lock import is_held
from ._command import JSON
from ._screen import errors_shown, make_console
from ._terminal import print_json, print_notes, print_table

# Seconds between two writes of a watched report; longer if writing takes more than 1/_SHARE of that.
_SECONDS, _SHARE = 10, 4


def report(
    log_paths: list[Path] = Arg(
        ..., help="Log files of JSONLinesLogger. Several are drawn together", exists=True, dir_okay=False
    ),
    output_path: Optional[Path] = Opt(
        None, "--output", "-o", help="File for the report: .html, .png, .svg or .pdf. Needs matplotlib"
    ),
    watch: bool = Opt(False, "--watch", "-w", help="Rewrite the report every ten seconds until the training ends"),
    as_json: bool = JSON,
) -> None:
    """
    Draw a training from its log, or compare several. Shows losses, scores, learning rates, gradient norms, the speed,
    and when rules fired, updates were skipped, the run was rolled back, and checkpoints were saved. Without --output,
    only the summary is printed.
    """
    console = make_console()
    with errors_shown(as_json=as_json):
        if watch and output_path is None:
            raise ConfigError("Can't use --watch alone: there is no report to write. Add --output report.html.")
        if output_path is not None:
            check_output(output_path, log_paths)
        if watch and output_path is not None:
            _watch(log_paths, output_path, None if as_json else console)
        runs = read_runs(log_paths)
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
        # None: unknown, so it may go on.
        while any(is_held(path) is not False for path in paths):
            start, runs = time.monotonic(), _read_begun(paths)
            if runs:
                write_report(runs, output_path, reload_seconds=_SECONDS)
            time.sleep(max(_SECONDS, _SHARE * (time.monotonic() - start)))
    except KeyboardInterrupt:
        if console is not None:
            console.print()


def _read_begun(paths: Sequence[Path]) -> list[LoggedRun]:
    """The runs. Empty: no log has a line yet."""
    for path in paths:
        with path.open("rb") as file:
            if file.readline().endswith(b"\n"):
                return read_runs(paths)
    return []
