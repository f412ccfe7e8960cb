"""Panels as pictures, by matplotlib: all below each other in one file, or one by one as SVG for a page."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from ..compat import import_figure
from .panels import MAX_COLOURS, WORDS, Marks, Panel
from .plots import save_whole

# Of runs, or of the curves of one: told apart also by those who don't see all colours. For a bright background, and for
# a dark one.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#a8428a", "#a87800", "#3a93c9", "#6b4fbb", "#5f6b76")
COLOURS_IN_THE_DARK = ("#58a9e6", "#ff8b3d", "#2fc79b", "#e386c6", "#e0b13a", "#8fd0f5", "#ab97f0", "#a3adb8")
TEXT, MUTED, LINE, GRID, BAD = "#24292f", "#57606a", "#8c959f", "#dfe3e8", "#cf222e"

# How marks look: matplotlib's name, and a character for the page.
GLYPHS = {
    "best": ("*", "\u2605"),
    "spike": ("v", "\u25bc"),
    "skip": ("x", "\u2715"),
    "rollback": ("|", "\u2506"),
    "checkpoint": ("^", "\u25b2"),
    "outside_write": ("D", "\u25c6"),
    "conservative": ("s", "\u25a0"),
    "resumed": ("|", "\u2506"),
}
# Where those are that have no height of their own, from 0 at the lower edge to 1 at the upper one.
_EDGES = {"skip": 0.96, "spike": 0.96, "checkpoint": 0.05, "outside_write": 0.04, "conservative": 0.04}
_LINES = ("rollback", "resumed")
_WIDTHS = {"line": 1.7, "thin": 1.0, "faint": 0.7, "points": 2.0}

# The place of a plot in its SVG, in points, the same in each, so that steps are below each other.
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 8, 42
# More names than that don't fit beside a plot.
_MAX_NAMES, _MAX_NAME = 12, 30
# In inches, of the table above the plots.
_LINE_HEIGHT = 0.21
_LINE_CHARACTERS = 150
_ID = re.compile(r'\bid="([^"]*)"')
_REFERENCE = re.compile(r'((?:xlink:)?href="#|url\(#)')


def draw_picture(
    panels: Sequence[Panel],
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    path: Path,
    steps: tuple[int, int],
) -> None:
    """Draw panels below each other, and a table above them, into a file.

    headers (Sequence[str]), rows (Sequence): The table: a row for each run, which begins with its name.
    path (Path): Its ending says what kind of picture. Replaced if it is there.
    steps (tuple[int, int]): The first and the last one.
    RAISES (ImportError): matplotlib is not installed. (ConfigError): The file can't be written.
    """
    names = [name for panel in panels for name in (panel.title, panel.caption, *(curve.name for curve in panel.curves))]
    with _style([title, *(row[0] for row in rows), *names]):
        heights = [max(2.1, 0.19 * (2 + len(_legend_of(panel)))) for panel in panels]
        head = 0.85 + _LINE_HEIGHT * len(rows)
        height = head + sum(heights)
        figure = import_figure()(figsize=(12, height), dpi=130, layout="constrained", facecolor="white")
        figure.get_layout_engine().set(rect=(0.0, 0.0, 1.0, 1.0 - head / height))
        figure.text(0.012, 1.0 - 0.3 / height, title, fontsize=14, fontweight="bold")
        _add_table(figure, height, headers, rows)
        all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel in zip(all_axes, panels):
            _draw(axes, panel, steps)
            axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", pad=4)
            axes.set_title(panel.caption, loc="right", fontsize=8, color=MUTED, pad=4)
            handles, labels = zip(*_legend_of(panel))
            axes.legend(
                handles,
                labels,
                fontsize=8.5,
                loc="upper left",
                bbox_to_anchor=(1.005, 1.03),
                frameon=False,
                borderaxespad=0.0,
            )
        all_axes[-1].set_xlabel("step")
        figure.align_ylabels(all_axes)
        with save_whole(path) as unfinished:
            figure.savefig(unfinished, format=path.suffix.lower().lstrip("."))


def _add_table(figure: Any, height: float, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Below the title, as wide as the figure."""
    cells = [[_shortened(text) for text in row] for row in (headers, *rows)]
    if len(rows) == 1:
        cells = [row[1:] for row in cells]  # the title says which
    widths = [3 + max(map(len, column)) for column in zip(*cells)]
    size = min(9.5, 9.5 * _LINE_CHARACTERS / sum(widths))
    for n, row in enumerate(cells):
        for i, text in enumerate(row):
            colour = MUTED if n == 0 else curve_colour(n - 1) if i == 0 and len(rows) > 1 else TEXT
            weight = "bold" if n and (i == 0 or len(rows) == 1) else "normal"
            x, y = (
                0.012 + sum(widths[:i]) / max(sum(widths), _LINE_CHARACTERS),
                1.0 - (0.58 + _LINE_HEIGHT * n) / height,
            )
            figure.text(x, y, text, fontsize=size, color=colour, fontweight=weight)


def draw_svg(panel: Panel, size: tuple[int, int], steps: tuple[int, int], prefix: str) -> str:
    """Draw one panel for a page: without title and legend, which are the page's. Curves have the classes "curve-0",
    "curve-1" ...

    size (tuple[int, int]): Width and height in points.
    prefix (str): What its ids begin with, as a page has several.
    RAISES (ImportError): matplotlib is not installed.
    """
    width, height = size
    with _style([], 12.0):
        figure = import_figure()(figsize=(width / 72, height / 72), facecolor="none")
        left, right = plot_edges(width)
        axes = figure.add_axes((left, _BOTTOM / height, right - left, 1 - (_TOP + _BOTTOM) / height))
        _draw(axes, panel, steps, is_narrow=width < 600)
        axes.set_xlabel("step")
        axes.yaxis.set_label_coords(15 / width, 0.5 + (_BOTTOM - _TOP) / height / 2, transform=figure.transFigure)
        axes.yaxis.label.set_verticalalignment("center")
        text = StringIO()
        figure.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    return _REFERENCE.sub(rf"\g<1>{prefix}", _ID.sub(lambda found: _class_or_id(found[1], prefix), svg))


def plot_edges(width: int) -> tuple[float, float]:
    """Where a plot begins and ends in an SVG of some width, from 0 to 1."""
    return _LEFT / width, 1 - _RIGHT / width


def _class_or_id(name: str, prefix: str) -> str:
    # Ids that we gave say what belongs together; so there are several of each.
    return f'class="{name}"' if name.startswith("curve-") else f'id="{prefix}{name}"'


# ---------------------------------------------------------------------- one panel


def _draw(axes: Any, panel: Panel, steps: tuple[int, int], *, is_narrow: bool = False) -> None:
    from matplotlib import ticker

    number, faint = 0, 0.35 if len(panel.named) <= 4 else 0.15
    for curve in panel.curves:
        colour, gid = curve_colour(curve.colour), f"curve-{number}"
        if curve.low is not None:
            axes.fill_between(curve.x, curve.low, curve.y, color=colour, alpha=0.2, linewidth=0, gid=gid)
            axes.plot(curve.x, curve.low, color=colour, linewidth=1.0, gid=gid)
        dots = {"marker": "o", "markersize": 3.5} if curve.look == "points" or len(curve.x) == 1 else {}
        is_faint = curve.look == "faint"
        look = {
            "linewidth": _WIDTHS[curve.look],
            "alpha": faint if is_faint else 1.0,
            "zorder": 2.0 if is_faint else 2.5,
        }
        axes.plot(curve.x, curve.y, color=colour, gid=gid, **look, **dots)
        number += bool(curve.name)
    axes.set_xlim(*padded(steps))
    if panel.is_log:
        axes.set_yscale("log")
    if panel.limits is not None:
        axes.set_ylim(panel.limits)
    if panel.is_log:
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=_subs(axes.get_ylim()), numticks=8))
    else:
        axes.yaxis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: _number(value)))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4 if is_narrow else 10, integer=True, steps=[1, 2, 2.5, 5, 10]))
    limits = axes.get_ylim()
    for marks in panel.marks:
        _mark(axes, marks, next((i for i, curve in enumerate(panel.named) if curve.colour == marks.colour), None))
    axes.set_ylim(limits)
    axes.set_ylabel(panel.unit)
    axes.grid(True)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def padded(steps: tuple[int, int]) -> tuple[float, float]:
    """Where the steps begin and end in a plot: with some room at both sides."""
    margin = 0.01 * (steps[1] - steps[0]) or 0.5
    return steps[0] - margin, steps[1] + margin


def _mark(axes: Any, marks: Marks, curve: int | None) -> None:
    """curve (int | None): The number of the curve that they go with."""
    colour, gid = mark_colour(marks), None if curve is None else f"curve-{curve}"
    if marks.kind in _LINES:
        for step in marks.x:
            axes.axvline(step, color=colour, linewidth=1.3, linestyle=_dashes(marks.kind), gid=gid, zorder=2.2)
        return
    size = 11 if marks.kind == "best" else 6
    look: dict[str, Any] = {"linestyle": "none", "marker": GLYPHS[marks.kind][0], "markersize": size, "color": colour}
    if marks.kind == "skip":
        look["markeredgewidth"] = 1.6
    at = axes.get_xaxis_transform()
    known = [] if marks.y is None else [i for i, y in enumerate(marks.y) if y == y]
    others = [i for i in range(len(marks.x)) if i not in set(known)]
    if known and marks.y is not None:
        axes.plot(marks.x[known], marks.y[known], gid=gid, zorder=4, **look)
    if others:
        axes.plot(marks.x[others], [_EDGES[marks.kind]] * len(others), transform=at, gid=gid, zorder=4, **look)


def mark_colour(marks: Marks) -> str:
    """The colour of their run, or of their kind."""
    if marks.colour is not None:
        return curve_colour(marks.colour)
    return {"checkpoint": COLOURS[7], "resumed": COLOURS[7], "best": COLOURS[0]}.get(marks.kind, BAD)


def _dashes(kind: str) -> str:
    return "--" if kind == "rollback" else ":"


def _legend_of(panel: Panel) -> list[tuple[Any, str]]:
    """What goes beside a plot, each with its name. Of many curves some are named, in their order."""
    shown = panel.named
    if len(shown) > _MAX_NAMES:
        shown = [shown[i * (len(shown) - 1) // (_MAX_NAMES - 1)] for i in range(_MAX_NAMES)]
    found = [
        (_line2d(color=curve_colour(curve.colour), linewidth=_WIDTHS[curve.look]), _shortened(curve.name))
        for curve in shown
    ]
    if len(shown) < len(panel.named):
        found.append((_line2d(linewidth=0), f"({len(panel.named) - len(shown)} more between these)"))
    for kind in dict.fromkeys(marks.kind for marks in panel.marks):
        of_kind = [marks for marks in panel.marks if marks.kind == kind]
        colour = mark_colour(of_kind[0]) if len(of_kind) == 1 else TEXT
        if kind in _LINES:
            handle = _line2d(color=colour, linestyle=_dashes(kind), linewidth=1.3)
        else:
            handle = _line2d(color=colour, linestyle="none", marker=GLYPHS[kind][0], markersize=6)
        found.append((handle, of_kind[0].texts[0] if kind == "best" and len(of_kind) == 1 else WORDS[kind]))
    return found


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME // 2]}\u2026{name[-_MAX_NAME // 2 + 1 :]}"


# ---------------------------------------------------------------------- style


def curve_colour(colour: int | float | None) -> str:
    """The colour of a run or curve: one of a few, or of a range that is seen on bright and dark backgrounds."""
    if colour is None:
        return TEXT
    if isinstance(colour, int):
        return COLOURS[colour % MAX_COLOURS]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["turbo"](0.08 + 0.84 * colour))


def _line2d(**look: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def _number(value: float) -> str:
    """A number at an axis: 2,000; 0.0005; 1e-5."""
    if value == 0.0 or 1e-4 <= abs(value) < 1e6:
        return f"{round(value, 10):,.10g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _subs(limits: tuple[float, float]) -> tuple[float, ...]:
    """Which parts of a decade get a number."""
    ratio = limits[1] / limits[0]
    return (1.0, 2.0, 5.0) if ratio < 200.0 else (1.0, 3.0) if ratio < 5000.0 else (1.0,)


@contextmanager
def _style(texts: Collection[str], size: float = 9.5) -> Iterator[None]:
    """Inside, matplotlib draws as a report looks. texts (Collection[str]): What fonts must have glyphs for."""
    import_figure()
    from matplotlib import rc_context

    settings: Any = {
        "font.family": ["DejaVu Sans", *_fonts_for({character for text in texts for character in text})],
        "font.size": size,
        "axes.edgecolor": LINE,
        "axes.labelcolor": TEXT,
        "xtick.color": TEXT,
        "ytick.color": TEXT,
        "text.color": TEXT,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
        "text.parse_math": False,
        "path.simplify_threshold": 0.3,
    }
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    with rc_context(settings), warnings.catch_warnings():
        # A character that no font has is drawn as a box; one that has no bold form, as it is.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _fonts_for(characters: Collection[str]) -> list[str]:
    """Installed fonts for the characters that matplotlib's own has not."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager
    from matplotlib.ft2font import FT2Font

    def without_glyph(path: str, characters: Collection[str]) -> set[str]:
        try:
            font = FT2Font(path)
        except (OSError, RuntimeError):
            return set(characters)
        return {character for character in characters if not font.get_char_index(ord(character))}

    missing = {character for character in characters if not character.isascii()}
    missing = without_glyph(findfont(FontProperties(family="DejaVu Sans")), missing)
    found: list[str] = []
    # matplotlib's own last resort has boxes for all of them.
    fonts = [font for font in fontManager.ttflist if not font.name.startswith("Last Resort")]
    for font in sorted(fonts, key=lambda font: (font.style != "normal", font.weight not in (400, "normal"), font.name)):
        if not missing:
            break
        rest = without_glyph(font.fname, missing)
        if len(rest) < len(missing):
            found.append(font.name)
            missing = rest
    return found
