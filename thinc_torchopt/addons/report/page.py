"""Write a report: a self-contained HTML file, by a jinja2 template; or one picture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from ...core.compat import import_figure
from ...core.errors import ConfigError
from .figures import Panel, keys_of, make_panels
from .log_file import printable
from .runs import LoggedRun, facts_of
from .style import COLOURS, MUTED, TEXT, add_legend, check_place, new_figure, save, set_ticks, style

_ENDINGS = (".html", ".pdf", ".png", ".svg")
# In pixels, of which matplotlib's inch has 90: width of a plot on a wide screen and on a phone, and its margins.
_INCH = 90
_WIDTHS = {"wide": 1080, "narrow": 380}
_LEFT, _RIGHT, _TOP, _BOTTOM = 86, 14, 8, 42
_MAX_EVENTS, _MAX_NAMES = 200, 12
_UNUSED_ID = re.compile(r' id="[^"]*_\d+"')


def check_output(path: Path, read: Sequence[Path]) -> None:
    """Check early that a report can be written.

    path (Path): The file to write.
    read (Sequence[Path]): The logs to read.
    RAISES (ImportError): matplotlib is not installed. (ConfigError): The file has a wrong ending, or is one of the
        logs.
    """
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(
            f"Can't write the report {path}: expected a name that ends in {', '.join(_ENDINGS[:-1])} or "
            f"{_ENDINGS[-1]}, found '{path.suffix}'. Change --output."
        )
    check_place(path, read)
    import_figure()


def draw(runs: Sequence[LoggedRun], path: Path) -> None:
    """Draw runs into one picture, a .png, .svg or .pdf. An existing file is replaced."""
    with style():
        save(_draw_all(runs), path)


def make_page(runs: Sequence[LoggedRun], beside: Mapping[str, Any], *, reload_seconds: int | None = None) -> str:
    """The HTML page of a report.

    beside (Mapping[str, Any]): Values for the template, beside those of the runs.
    reload_seconds (int | None): Seconds between two reloads of the page.
    RAISES (ImportError): matplotlib is not installed. (ConfigError): There is nothing to draw.
    """
    environment = Environment(loader=PackageLoader(__package__, ""), autoescape=True)
    facts = [facts_of(run) for run in runs]
    return environment.get_template("page.html").render(
        title=_title(runs),
        reload_seconds=reload_seconds,
        logs=[printable(str(path)) for run in runs for path in run.paths],
        notes=[printable(note) for run in runs for note in run.notes],
        runs=[(run.label, COLOURS[i % len(COLOURS)], row) for i, (run, row) in enumerate(zip(runs, facts))],
        shown=[i for i, _ in enumerate(facts[0]) if any(row[i].value for row in facts)],
        has_scores=any(run.best for run in runs),
        **beside,
        panels=[_as_html(panel, f"panel-{i}") for i, panel in enumerate(_panels(runs))],
        tables=list(_tables(runs)),
    )


def _title(runs: Sequence[LoggedRun]) -> str:
    return f"Training of {runs[0].label}" if len(runs) == 1 else f"{len(runs)} trainings compared"


def _panels(runs: Sequence[LoggedRun]) -> list[Panel]:
    panels = make_panels(runs)
    if not panels:
        raise ConfigError(
            f"Can't draw {', '.join(str(log) for run in runs for log in run.paths)}: no line has a number for losses, "
            "scores, learning rates or norms."
        )
    return panels


# ---------------------------------------------------------------------- pictures


def _as_html(panel: Panel, salt: str) -> dict[str, Any]:
    """The values of a panel for the template: its pictures and legend."""
    with style():
        figure = import_figure()()
        axes = figure.add_subplot()
        caption = panel.draw(axes)
        svgs = {name: _svg(figure, axes, name, panel.height, f"{salt}-{name}") for name in _WIDTHS}
        keys = []
        for handle, name in keys_of(axes):
            dashes = handle.get_linestyle()
            keys.append((name, handle.get_color(), "\u2605" if dashes == "None" else "", dashes))
    return {"title": panel.title, "caption": caption, "keys": keys, "svgs": svgs}


def _svg(figure: Any, axes: Any, size: str, height: float, salt: str) -> str:
    """A picture as SVG, without title and legend. salt (str): Makes its ids unique."""
    width = _WIDTHS[size]
    figure.set_size_inches(width / _INCH, height / _INCH)
    left, right = _LEFT / width, 1 - _RIGHT / width
    figure.subplots_adjust(left, _BOTTOM / height, right, 1 - _TOP / height)
    set_ticks(axes, x=None if size == "wide" else 4)
    text = StringIO()
    with style(**{"svg.hashsalt": salt}):
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _UNUSED_ID.sub("", text.getvalue()[text.getvalue().index("<svg") :])


def _draw_all(runs: Sequence[LoggedRun]) -> Any:
    """One figure with a table and all panels below each other."""
    panels = _panels(runs)
    facts = [facts_of(run) for run in runs]
    shown = [i for i, _ in enumerate(facts[0]) if any(row[i].value for row in facts)]
    heights = [24 * (len(runs) + 2), *(panel.height for panel in panels)]
    figure = new_figure(_WIDTHS["wide"] / _INCH, sum(heights) / _INCH)
    table, *all_axes = figure.subplots(len(heights), height_ratios=heights)
    table.set_axis_off()
    table.set_title(_title(runs), fontsize="x-large")
    cells = table.table(
        [[run.label, *(f"{row[i].value} {row[i].more}".strip() for i in shown)] for run, row in zip(runs, facts)],
        colLabels=["run", *(facts[0][i].name for i in shown)],
        cellLoc="left",
        colLoc="left",
        edges="open",
        loc="upper left",
    )
    cells.auto_set_font_size(False)
    cells.set_fontsize("small")
    cells.auto_set_column_width([column for _, column in cells.get_celld()])
    for (row, column), cell in cells.get_celld().items():
        by_run = column == 0 and row and len(runs) > 1
        cell.get_text().set_color(MUTED if row == 0 else COLOURS[(row - 1) % len(COLOURS)] if by_run else TEXT)
    for axes, panel in zip(all_axes, panels):
        caption = panel.draw(axes)
        axes.set_title(panel.title)
        axes.set_title(caption, loc="right", fontsize="x-small", fontweight="normal", color=MUTED)
        keys = list(keys_of(axes, _MAX_NAMES))
        if keys:
            add_legend(axes, *zip(*keys), is_beside=True)
        axes.label_outer()
    return figure


# ---------------------------------------------------------------------- tables


def _tables(runs: Sequence[LoggedRun]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, headers and rows of the tables below the pictures."""
    heads = ["value"] if len(runs) == 1 else [run.label for run in runs]
    best = [run.best_scores for run in runs]
    rates = [run.final_rates for run in runs]
    for title, header, columns in (
        ("All scores at the best step, from 0 to 1", "score", best),
        ("Learning rates at the last step", "param group", rates),
    ):
        if names := list(dict.fromkeys(name for column in columns for name in column)):
            rows = [[printable(name), *(_number(column.get(name)) for column in columns)] for name in names]
            yield title, [header, *heads], rows
    told = [
        (event.step, [run.label] * (len(runs) > 1), f"{event.kind} {event.text}".strip())
        for run in runs
        for event in run.events
        if event.kind != "checkpoint saved"
    ]
    if told:
        rows = [[f"{step:,}", *label, text] for step, label, text in sorted(told)[:_MAX_EVENTS]]
        if len(told) > _MAX_EVENTS:
            rows.append([f"and {len(told) - _MAX_EVENTS:,} more"])
        yield "What happened when", ["step", *["run"] * (len(runs) > 1), "what happened"], rows


def _number(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
