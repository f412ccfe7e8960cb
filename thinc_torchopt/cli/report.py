"""`spacy torchopt report`: what a training did, from its log and the trained pipeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from rich.console import Console
from typer import Argument as Arg
from typer import Option as Opt

from ..addons.report import Report, check_output, logs_in, read_report, with_others
from ..core.errors import ConfigError
from ..core.host import cli_util
from ..loop.run_lock import is_held
from ._command import CODE, JSON
from ._screen import errors_shown, make_console, print_json, print_notes

# Seconds between two writes of a watched report; longer if writing takes more than 1/_SHARE of that.
_SECONDS, _SHARE = 10, 4


def report(
    log_paths: list[Path] = Arg(
        ...,
        help="Log files of JSONLinesLogger, or folders of trainings. Several are compared; a resumed run's further "
        "logs are found",
        exists=True,
    ),
    output_path: Optional[Path] = Opt(
        None, "--output", "-o", help="File for the report: .html, .png, .svg or .pdf. Needs matplotlib"
    ),
    model_path: Optional[Path] = Opt(
        None, "--model", "-m", help="Folder of the trained pipeline, for the score of each label", exists=True
    ),
    texts_path: Optional[Path] = Opt(
        None, "--texts", "-t", help="Annotated texts (.spacy), to show the worst errors on. Needs --model", exists=True
    ),
    code_path: Optional[Path] = CODE,
    watch: bool = Opt(False, "--watch", "-w", help="Rewrite the report every ten seconds until the training ends"),
    as_json: bool = JSON,
) -> None:
    """
    Show how a training went, or compare several. Reads the log: losses, scores, learning rates, gradient norms, the
    speed, where the time went, and when rules fired, updates were skipped, the run was rolled back or resumed, and
    checkpoints were saved. With --model also the score of each label, with --texts the twenty worst errors. Without
    --output, only the summary is printed.
    """
    console = make_console()
    with errors_shown(as_json=as_json):
        if watch and output_path is None:
            raise ConfigError("Can't use --watch alone: there is no report to write. Add --output report.html.")
        if watch and model_path is not None:
            raise ConfigError("Can't use --watch with --model: the pipeline is not trained yet. Leave out one of them.")
        logs = logs_in(log_paths)
        if output_path is not None:
            check_output(output_path, logs)
        cli_util().import_code(code_path)
        if watch and output_path is not None:
            _watch(logs, output_path, None if as_json else console)
        found = read_report(*log_paths, model=model_path, texts=texts_path)
        if output_path is not None:
            found.to_disk(output_path)
    if as_json:
        print_json(found.summary())
        return
    found.print(console)
    print_notes(console, [note for run in found.runs for note in run.notes])
    if output_path is not None:
        console.print(f"Saved the report to {output_path}")


def _watch(paths: Sequence[Path], output_path: Path, console: Console | None) -> None:
    """Rewrite the report until no training writes to a log any more, or until Ctrl-C."""
    if console is not None:
        console.print(f"Writing {output_path} every {_SECONDS} seconds, until the training ends. Stop with Ctrl-C.")
    try:
        # None: unknown, so it may go on.
        while any(is_held(path) is not False for path in with_others(paths)):
            start, found = time.monotonic(), _read_begun(paths)
            if found is not None:
                found.to_disk(output_path, reload_seconds=_SECONDS)
            time.sleep(max(_SECONDS, _SHARE * (time.monotonic() - start)))
    except KeyboardInterrupt:
        if console is not None:
            console.print()


def _read_begun(paths: Sequence[Path]) -> Report | None:
    """The report. None: no log has a line yet."""
    for path in paths:
        with path.open("rb") as file:
            if file.readline().endswith(b"\n"):
                return read_report(*paths)
    return None
