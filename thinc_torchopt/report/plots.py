"""Pictures, by matplotlib, which comes with the extra `plot`. No display is needed, and none is opened."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..compat import import_figure
from ..errors import ConfigError
from ..state import replacing

# More lines than matplotlib has colours take theirs from one range, from dark to bright.
_MAX_COLOURS = 10
# More names than that are put beside the picture.
_MAX_INSIDE = 6
# Beside each other.
_SLICES = 3
# Of more values than that, only the line is drawn.
_MAX_DOTS = 50


def check_picture(path: Path, read: Sequence[Path] = ()) -> None:
    """Check that a picture can be drawn, before the work that leads to it.

    path (Path): Where it will be.
    read (Sequence[Path]): The files that it is made of.
    RAISES (ImportError): matplotlib is not installed. (ConfigError): It can't write such a file, or it is one of those.
    """
    formats = import_figure()().canvas.get_supported_filetypes()
    if path.suffix.lower().lstrip(".") not in formats:
        raise ConfigError(
            f"Can't draw {path}: expected a name that ends in one of .{', .'.join(sorted(formats))}, found "
            f"'{path.suffix}'. Change --output."
        )
    check_place(path, read)


def check_place(path: Path, read: Sequence[Path]) -> None:
    """Check where a file is to be written. RAISES (ConfigError): There is a folder, or a file that is read."""
    if path.is_dir():
        raise ConfigError(f"Can't write {path}: expected a file, found a folder. Add the name of a file to --output.")
    for other in read:
        if path.exists() and other.exists() and path.samefile(other):
            raise ConfigError(
                f"Can't write {path}: expected another file than those that are read, found {other}. Change --output."
            )


def plot_schedule(rates: Mapping[str, Sequence[float]], path: Path, *, log: bool = False) -> None:
    """Draw learning rates over the steps.

    rates (Mapping[str, Sequence[float]]): By param group, the rate of each step.
    path (Path): The file; its ending says what kind. Replaced if it is there.
    log (bool): A logarithmic scale. Rates of 0 are left out.
    RAISES (ImportError): matplotlib is not installed.
    """
    figure, axes = _start("step", "learning rate")
    lines = []
    for i, values in enumerate(rates.values()):
        shown = [value if value > 0.0 or not log else math.nan for value in values]
        # Lines that lie on each other are seen all the same.
        lines += axes.plot(
            range(len(shown)),
            shown,
            color=_colour(i, len(rates)),
            linewidth=1.5,
            linestyle=["-", "--", ":", "-."][i % 4],
        )
    if log and any(value > 0.0 for values in rates.values() for value in values):
        axes.set_yscale("log")
    elif not log:
        axes.set_ylim(bottom=0.0)
    axes.set_xlim(left=0)
    _add_legend(axes, lines, list(rates))
    _save(figure, path)


def plot_range_test(
    rates: Sequence[float], losses: Sequence[float], smoothed: Sequence[float], marks: Mapping[str, float], path: Path
) -> None:
    """Draw the loss over the learning rate.

    rates (Sequence[float]): The rate of each step.
    losses (Sequence[float]): The loss of each step. Those that are not finite are left out.
    smoothed (Sequence[float]): The same, smoothed.
    marks (Mapping[str, float]): Rates to mark, by what they are called.
    path (Path): The file; its ending says what kind. Replaced if it is there.
    RAISES (ImportError): matplotlib is not installed.
    """
    figure, axes = _start("learning rate", "loss per word")
    lines = axes.plot(
        rates, [loss if math.isfinite(loss) else math.nan for loss in losses], color="C0", alpha=0.3, linewidth=1.0
    )
    lines += axes.plot(rates[: len(smoothed)], smoothed, color="C0", linewidth=2.0)
    names = ["each step", "smoothed"]
    for i, (name, rate) in enumerate(marks.items()):
        lines.append(axes.axvline(rate, color=f"C{i + 1}", linestyle="--", linewidth=1.5))
        names.append(f"{name}: {rate:.2g}")
    axes.set_xscale("log")
    if smoothed:
        # Where it breaks away, the loss of single steps would press all else to the ground.
        low, high = min(loss for loss in losses if math.isfinite(loss)), max(smoothed)
        margin = 0.1 * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)
    _add_legend(axes, lines, names)
    _save(figure, path)


class Panel(NamedTuple):
    """Something over the steps. firings (dict): By rule, the steps at which those that look at it fired."""

    values: Sequence[float]
    firings: Mapping[str, Sequence[int]]


def plot_firings(steps: Sequence[int], panels: Mapping[str, Panel], path: Path) -> None:
    """Draw what rules look at, one panel each below the other, and mark where the rules fired.

    steps (Sequence[int]): Of all values.
    panels (Mapping[str, Panel]): By the name of what is drawn.
    path (Path): The file; its ending says what kind. Replaced if it is there.
    RAISES (ImportError): matplotlib is not installed.
    """
    names = list(dict.fromkeys(rule for panel in panels.values() for rule in panel.firings))
    figure = import_figure()(figsize=(9, 1.0 + 2.2 * len(panels)), dpi=150, layout="constrained")
    all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axes, (label, (values, firings)) in zip(all_axes, panels.items()):
        axes.plot(steps, values, color="0.4", linewidth=1.2, marker="." if len(steps) <= _MAX_DOTS else None)
        at = dict(zip(steps, values))  # what fires before a line, as at the begin of an epoch, has no value there
        for rule, fired in firings.items():
            colour = _colour(names.index(rule), len(names))
            axes.vlines(fired, 0.0, 1.0, transform=axes.get_xaxis_transform(), color=colour, alpha=0.3, linewidth=1.0)
            axes.plot(fired, [at.get(step, math.nan) for step in fired], "o", color=colour, markersize=5)
        axes.set_ylabel(_as_text(label), fontsize="small")
        axes.grid(alpha=0.3)
        if lines := list(axes.lines[1:]):
            _add_legend(axes, lines, list(firings))
    all_axes[-1].set_xlabel("step")
    _save(figure, path)


def plot_trials(curves: Mapping[str, Mapping[int, Sequence[float]]], path: Path) -> None:
    """Draw scores over the steps: of each way to train the mean, and between which scores its seeds are.

    curves (Mapping[str, Mapping[int, Sequence[float]]]): By name, at each step the score of each seed.
    path (Path): The file; its ending says what kind. Replaced if it is there.
    RAISES (ImportError): matplotlib is not installed.
    """
    figure, axes = _start("step", "score")
    lines = []
    for i, curve in enumerate(curves.values()):
        steps, colour = list(curve), _colour(i, len(curves))
        means = [sum(scores) / len(scores) for scores in curve.values()]
        lines += axes.plot(steps, means, color=colour, linewidth=1.5, marker="." if len(steps) <= _MAX_DOTS else None)
        lows, highs = [min(scores) for scores in curve.values()], [max(scores) for scores in curve.values()]
        axes.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0.0)
    axes.set_xlim(left=0)
    _add_legend(axes, lines, list(curves))
    _save(figure, path)


class Point(NamedTuple):
    """A trial of a search. score (float | None): None: it was stopped early. values: What was set, by path."""

    number: int
    score: float | None
    last_score: float
    values: Mapping[str, Any]


def plot_study(
    points: Sequence[Point], importances: Mapping[str, float], logs: Collection[str], as_it_is: float | None, path: Path
) -> None:
    """Draw a search: its history, how much each setting matters, and the score over each of them.

    points (Sequence[Point]): The trials, in their order.
    importances (Mapping[str, float]): By path. Empty: not known.
    logs (Collection[str]): Paths whose values are on a logarithmic scale.
    as_it_is (float | None): The mean score of the config as it is, with other seeds.
    path (Path): The file; its ending says what kind. Replaced if it is there.
    RAISES (ImportError): matplotlib is not installed.
    """
    paths = list(importances) or list(dict.fromkeys(key for point in points for key in point.values))
    rows = max(1, math.ceil(len(paths) / _SLICES))
    figure = import_figure()(figsize=(12, 4.0 + 3.0 * rows), dpi=150, layout="constrained")
    above, below = figure.subfigures(2, height_ratios=[4.0, 3.0 * rows])
    history, bars = above.subplots(1, 2, width_ratios=[2, 1])
    done = [point for point in points if point.score is not None]
    _draw_trials(history, points, [float(point.number) for point in points])
    bests = [max(point.score or 0.0 for point in done[: i + 1]) for i in range(len(done))]
    history.step([point.number for point in done], bests, where="post", color="C0", linewidth=1.5, label="best so far")
    if as_it_is is not None:
        history.axhline(as_it_is, color="C1", linestyle="--", linewidth=1.2, label="the config as it is, other seeds")
    history.set_xlabel("trial")
    history.set_ylabel("score")
    if points:
        history.legend(fontsize="small")
    if importances:
        bars.barh([_as_text(key) for key in importances], list(importances.values()), color="C0")
        bars.invert_yaxis()
        bars.tick_params(axis="y", labelsize="x-small")
    bars.set_xlabel("importance")
    if not importances:
        bars.set_axis_off()
    for axes, key in zip(below.subplots(rows, _SLICES, squeeze=False).flat, [*paths, *[""] * _SLICES]):
        if not key:
            axes.set_axis_off()
            continue
        shown = [point for point in points if key in point.values]
        values = [point.values[key] for point in shown]
        is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        _draw_trials(axes, shown, values if is_number else [str(value) for value in values])
        if key in logs:
            axes.set_xscale("log")
        axes.set_xlabel(_as_text(key), fontsize="small")
        axes.set_ylabel("score")
    _save(figure, path)


def _draw_trials(axes: Any, points: Sequence[Point], at: Sequence[Any]) -> None:
    """at (Sequence): The place of each."""
    for is_done, look in ((False, {"marker": "x", "color": "0.6"}), (True, {"marker": "o", "color": "C0"})):
        chosen = [i for i, point in enumerate(points) if (point.score is not None) == is_done]
        scores = [points[i].last_score for i in chosen]
        if chosen:
            label = "to the end" if is_done else "stopped early"
            axes.scatter([at[i] for i in chosen], scores, s=25, alpha=0.8, label=label, **look)
    axes.grid(alpha=0.3)


@contextmanager
def save_whole(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: inside, to the path that it yields. What was there is replaced.

    RAISES (ConfigError): It can't be written.
    """
    try:
        with replacing(path) as unfinished:
            yield unfinished
    except OSError as error:
        raise ConfigError(f"Can't write {path}: {error}. Make room, or change --output.") from error


def _start(x: str, y: str) -> tuple[Any, Any]:
    figure = import_figure()(figsize=(9, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def _colour(i: int, n: int) -> Any:
    if n <= _MAX_COLOURS:
        return f"C{i}"
    from matplotlib import colormaps

    return colormaps["viridis"](i / n)


def _add_legend(axes: Any, lines: list[Any], names: list[str]) -> None:
    names = [_as_text(name) for name in names]
    if len(names) > _MAX_INSIDE:
        axes.legend(lines, names, fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    else:
        axes.legend(lines, names, fontsize="small")


def _as_text(name: str) -> str:
    """`$` would begin a formula."""
    return name.replace("$", r"\$")


def _save(figure: Any, path: Path) -> None:
    """Write a picture whole or not at all."""
    with save_whole(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix.lower().lstrip("."))
