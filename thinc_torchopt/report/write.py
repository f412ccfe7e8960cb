"""A report, from runs to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..compat import import_figure
from ..errors import ConfigError
from .drawing import draw_picture
from .page import make_page
from .panels import make_panels
from .plots import check_place, save_whole
from .runs import Run
from .summary import facts_of

_ENDINGS = (".html", ".pdf", ".png", ".svg")


def check_output(path: Path, read: Sequence[Path]) -> None:
    """Check that a report can be written, before the work that leads to it.

    path (Path): Where it will be.
    read (Sequence[Path]): The logs that it is made of.
    RAISES (ImportError): matplotlib is not installed. (ConfigError): It is no such file, or one of those.
    """
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(
            f"Can't write the report {path}: expected a name that ends in {', '.join(_ENDINGS[:-1])} or "
            f"{_ENDINGS[-1]}, found '{path.suffix}'. Change --output."
        )
    check_place(path, read)
    import_figure()


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Draw runs, into one file.

    path (Path): .html is a page, .png, .svg and .pdf are one picture. Replaced if it is there.
    RAISES (ImportError): matplotlib is not installed. (ConfigError): The file can't be written, or there is nothing to
        draw.
    """
    check_output(path, [log for run in runs for log in run.paths])
    panels = make_panels(runs)
    if not panels:
        raise ConfigError(
            f"Can't draw {', '.join(str(log) for run in runs for log in run.paths)}: expected losses, scores, learning "
            "rates or norms, found no number in any line."
        )
    steps = min(int(run.steps[0]) for run in runs), max(int(run.steps[-1]) for run in runs)
    title = f"Training of {runs[0].label}" if len(runs) == 1 else f"{len(runs)} trainings compared"
    if path.suffix.lower() == ".html":
        page = make_page(runs, panels, title, steps)
        with save_whole(path) as unfinished:
            unfinished.write_text(page, encoding="utf8")
    else:
        facts = [facts_of(run) for run in runs]
        shown = [i for i, _ in enumerate(facts[0]) if any(row[i].value for row in facts)]
        headers = ["run", *(facts[0][i].name for i in shown)]
        rows = [[run.label, *(f"{row[i].value} {row[i].more}".strip() for i in shown)] for run, row in zip(runs, facts)]
        draw_picture(panels, title, headers, rows, path, steps)
