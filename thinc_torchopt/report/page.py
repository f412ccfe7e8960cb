"""A report as one HTML file, which needs nothing else: no network, no other files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy

from .drawing import (
    BAD,
    COLOURS,
    COLOURS_IN_THE_DARK,
    GLYPHS,
    GRID,
    LINE,
    TEXT,
    curve_colour,
    draw_svg,
    mark_colour,
    padded,
    plot_edges,
)
from .panels import WORDS, Curve, Marks, Panel, describe
from .runs import Run, printable
from .summary import Fact, facts_of

_NONE = "\u2013"
# Width and height of a plot in points, on a wide screen and on a phone.
_WIDE, _NARROW = (1080, 220), (380, 200)
# Names that take more room are put into a box of their own.
_MANY_KEYS = 16
# Marks that are nearer to the pointer than this part of the steps are told of.
_NEAR = 0.006
_MAX_EVENTS = 200
# What the page has other colours for on a dark background.
_VARIABLES = {TEXT: "--text", GRID: "--grid", LINE: "--line", BAD: "--bad"} | {
    colour: f"--c{i}" for i, colour in enumerate(COLOURS)
}
_DASHED = {"rollback": "dashed", "resumed": "dotted"}


def make_page(runs: Sequence[Run], panels: Sequence[Panel], title: str, steps: tuple[int, int]) -> str:
    """The whole file.

    steps (tuple[int, int]): The first and the last one.
    RAISES (ImportError): matplotlib is not installed.
    """
    template = Template((files(__package__) / "page.html").read_text(encoding="utf8"))
    return template.substitute(
        title=escape(title),
        subtitle=escape(", ".join(printable(str(path)) for run in runs for path in run.paths)),
        colours=_definitions(COLOURS),
        colours_in_the_dark=_definitions(COLOURS_IN_THE_DARK),
        notes=_list([note for run in runs for note in run.notes]),
        summary=_tiles(facts_of(runs[0])) if len(runs) == 1 else _summary(runs),
        panels="\n".join(_panel(i, panel, steps, of_runs=len(runs) > 1) for i, panel in enumerate(panels)),
        tables="\n".join([*_scores(runs), *_rates(runs), *_events(runs)]),
        data=json.dumps(_data(panels, steps), allow_nan=False).replace("<", "\\u003c"),
    )


def _definitions(colours: Sequence[str]) -> str:
    return " ".join(f"--c{i}: {colour};" for i, colour in enumerate(colours))


def _css(colour: str) -> str:
    return f"var({_VARIABLES[colour]})" if colour in _VARIABLES else colour


# ---------------------------------------------------------------------- above the pictures


def _list(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(printable(note))}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _tiles(facts: Sequence[Fact]) -> str:
    def tile(fact: Fact) -> str:
        more = f"<small>{escape(fact.more)}</small>" if fact.more else ""
        return f"<div><dt>{escape(fact.name)}</dt><dd>{escape(fact.value)}{more}</dd></div>"

    return f'<dl class="tiles">{"".join(tile(fact) for fact in facts if fact.value)}</dl>'


def _summary(runs: Sequence[Run]) -> str:
    rows = [facts_of(run) for run in runs]
    shown = [i for i, _ in enumerate(rows[0]) if any(row[i].value for row in rows)]
    scores = [run.best[0] for run in runs if run.best is not None]
    head = "".join(f"<th scope='col'>{escape(rows[0][i].name)}</th>" for i in shown)
    body = ""
    for n, (run, row) in enumerate(zip(runs, rows)):
        cells = ""
        for i in shown:
            fact = row[i]
            is_best = fact.name == "best score" and run.best is not None and run.best[0] == max(scores)
            more = f' <span class="muted">{escape(fact.more)}</span>' if fact.more else ""
            value = f'<span class="best">{escape(fact.value)} \u2605</span>' if is_best else escape(fact.value)
            cells += f'<td data-label="{escape(fact.name)}"><span>{value or _NONE}{more}</span></td>'
        swatch = f'<span class="key"><i style="color:{_css(curve_colour(n))}"></i>{escape(run.label)}</span>'
        body += f"<tr><th scope='row'>{swatch}</th>{cells}</tr>"
    return (
        "<div class='scroll summary'><table><thead><tr><th "
        f"scope='col'>run</th>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


# ---------------------------------------------------------------------- pictures


def _panel(i: int, panel: Panel, steps: tuple[int, int], *, of_runs: bool) -> str:
    svgs = ""
    for name, size in (("wide", _WIDE), ("narrow", _NARROW)):
        svg = draw_svg(panel, size, steps, f"{name}-{i}-")
        for colour, variable in _VARIABLES.items():
            svg = svg.replace(colour, f"var({variable})")
        svgs += svg.replace("<svg ", f'<svg class="{name}" role="img" aria-label="{escape(panel.alt)}" ', 1)
    keys = [_key(n, curve, of_runs=of_runs) for n, curve in enumerate(panel.named)] + list(_mark_keys(panel.marks))
    many = " many" if len(keys) > _MANY_KEYS else ""
    return (
        f'<section class="panel"><header><h2>{escape(panel.title)}</h2><p '
        f'class="muted">{escape(panel.caption)}</p></header><div class="keys{many}">{"".join(keys)}</div><div '
        f'class="plot">{svgs}<div class="cursor" hidden></div><div class="tip" hidden></div></div></section>'
    )


def _key(n: int, curve: Curve, *, of_runs: bool) -> str:
    run = f' data-run="{curve.colour}"' if of_runs else ""
    swatch = f'<i style="color:{_css(curve_colour(curve.colour))}"></i>'
    return (
        f'<button type="button" class="key" data-curve="{n}"{run} '
        f'aria-pressed="true">{swatch}{escape(curve.name)}</button>'
    )


def _mark_keys(found: Sequence[Marks]) -> Iterator[str]:
    for kind in dict.fromkeys(marks.kind for marks in found):
        of_kind = [marks for marks in found if marks.kind == kind]
        colour = _css(mark_colour(of_kind[0])) if len(of_kind) == 1 else "inherit"
        text = of_kind[0].texts[0] if kind == "best" and len(of_kind) == 1 else WORDS[kind]
        tag, look, glyph = ("i", _DASHED[kind], "") if kind in _DASHED else ("b", "", GLYPHS[kind][1])
        yield f'<span class="key"><{tag} class="{look}" style="color:{colour}">{glyph}</{tag}>{escape(text)}</span>'


def _data(panels: Sequence[Panel], steps: tuple[int, int]) -> dict[str, Any]:
    """What the pointer shows."""
    begin, end = padded(steps)
    return {
        "first": steps[0],
        "last": steps[1],
        "from": begin,
        "to": end,
        "near": _NEAR * (end - begin),
        "wide": plot_edges(_WIDE[0]),
        "narrow": plot_edges(_NARROW[0]),
        "panels": [
            {
                "curves": [_points(curve) for curve in panel.named],
                "marks": [[int(x), text] for marks in panel.marks for x, text in zip(marks.x, marks.texts)],
            }
            for panel in panels
        ],
    }


def _points(curve: Curve) -> dict[str, Any]:
    known = numpy.isfinite(curve.y)
    found = {
        "name": curve.name,
        "colour": _css(curve_colour(curve.colour)),
        "x": curve.x[known].tolist(),
        "y": _short(curve.y[known]),
    }
    if curve.low is not None:
        found["low"] = _short(numpy.where(numpy.isfinite(curve.low), curve.low, curve.y)[known])
    return found


def _short(values: numpy.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


# ---------------------------------------------------------------------- below them


def _table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)) -> str:
    def cell(tag: str, i: int, text: str) -> str:
        return f"<{tag}{' class=words' if i in words else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", i, text) for i, text in enumerate(headers))
    body = "".join("<tr>" + "".join(cell("td", i, text) for i, text in enumerate(row)) + "</tr>" for row in rows)
    return (
        f"<details><summary>{escape(title)}</summary><div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _scores(runs: Sequence[Run]) -> Iterator[str]:
    """All scores of the best step."""
    found = []
    for run in runs:
        at = None if run.best is None else int(numpy.searchsorted(run.steps, run.best[1]))
        scores = {name: values[at] for name, values in run.columns.get("scores", {}).items()} if at is not None else {}
        found.append({name: float(value) for name, value in scores.items() if math.isfinite(value)})
    names = list(dict.fromkeys(name for scores in found for name in scores))
    if names:
        rows = [
            [printable(name), *(_number(scores[name]) if name in scores else _NONE for scores in found)]
            for name in names
        ]
        yield _table("All scores at the best step", ["score", *_heads(runs)], rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _heads(runs: Sequence[Run]) -> list[str]:
    return ["value"] if len(runs) == 1 else [run.label for run in runs]


def _rates(runs: Sequence[Run]) -> Iterator[str]:
    found = [run.final_rates for run in runs]
    names = list(dict.fromkeys(name for rates in found for name in rates))
    if names:
        rows = [
            [printable(name), *(f"{rates[name]:.4g}" if name in rates else _NONE for rates in found)] for name in names
        ]
        yield _table("Learning rates at the last step", ["param group", *_heads(runs)], rows)


def _events(runs: Sequence[Run]) -> Iterator[str]:
    """Everything that is marked, but for checkpoints, in words."""
    found = sorted(
        (
            (event.step, i, describe(event))
            for i, run in enumerate(runs)
            for event in run.events
            if event.kind != "checkpoint"
        )
    )
    if not found:
        return
    rows = [[f"{step:,}", *([runs[i].label] if len(runs) > 1 else []), text] for step, i, text in found[:_MAX_EVENTS]]
    if len(found) > _MAX_EVENTS:
        rows.append([f"and {len(found) - _MAX_EVENTS:,} more"])
    headers = ["step", *(["run"] if len(runs) > 1 else []), "what happened"]
    yield _table("What happened when", headers, rows, words=(1, 2))
