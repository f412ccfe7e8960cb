"""`spacy torchopt report`: trainings, from their logs, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..report import check_output, facts_of, read_runs, summarize, write_report
from ._util import errors_shown, make_console, print_json, print_notes, print_table


def show_report(paths: Sequence[Path], *, output_path: Path | None, as_json: bool) -> None:
    """Print what runs came to, and draw them.

    paths (Sequence[Path]): Logs of JSONLinesLogger.
    output_path (Path | None): The page or picture.
    """
    with errors_shown(as_json=as_json):
        if output_path is not None:
            check_output(output_path, paths)
        runs = read_runs(paths)
        if output_path is not None:
            write_report(runs, output_path)
    if as_json:
        print_json([summarize(run) for run in runs])
        return
    console = make_console()
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
