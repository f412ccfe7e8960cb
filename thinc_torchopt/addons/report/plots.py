"""Pictures of other commands: schedules, the range test, a search, a learning curve. They need the extra `plot`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill
from typing import Any, NamedTuple, Protocol

from ...core.compat import import_figure
from ...core.errors import ConfigError
from .log_file import printable
from .style import COLOURS, MUTED, add_legend, check_place, colour_of, new_figure, save, scale_rates, set_ticks, style

# Longer legends are put beside the picture.
_MAX_INSIDE = 6
# Characters of names in a line of the legend.
_NAMES_WIDTH = 44
# Slices beside each other.
_SLICES = 3


def check_picture(path: Path, read: Sequence[Path] = ()) -> None:
    """Check early that a picture can be written.

    path (Path): The file to write.
    read (Sequence[Path]): The files to read.
    RAISES (ImportError): matplotlib is not installed. (ConfigError): The file has a wrong ending, or is one of those
        read.
    """
    formats = import_figure()().canvas.get_supported_filetypes()
    if path.suffix.lower().lstrip(".") not in formats:
        raise ConfigError(
            f"Can't draw {path}: expected a name that ends in one of .{', .'.join(sorted(formats))}, found "
            f"'{path.suffix}'. Change the ending."
        )
    check_place(path, read)


def plot_schedule(rates: Mapping[str, Sequence[float]], path: Path, *, title: str = "") -> None:
    """Draw learning rates over the steps. Groups with the same rates at every step share a curve.

    rates (Mapping[str, Sequence[float]]): By param group, the rate of each step.
    path (Path): The file; its ending says what kind. Replaced if it is there.
    title (str): Title of the picture.
    RAISES (ImportError): matplotlib is not installed.
    """
    alike: dict[tuple[float, ...], list[str]] = {}
    for name, values in rates.items():
        alike.setdefault(tuple(values), []).append(printable(name))
    with style():
        figure, axes = _start("step", "learning rate", title)
        for i, (values, names) in enumerate(sorted(alike.items(), key=lambda item: -max(item[0]))):
            look = {"color": colour_of(i, len(alike)), "linestyle": ["-", "--", ":", "-."][i % 4]}
            label = fill(", ".join(names), _NAMES_WIDTH) + (" (always 0)" if not any(values) else "")
            axes.plot(range(len(values)), values, label=label, **look)
        scale_rates(axes, alike)
        axes.set_xlim(left=0)
        set_ticks(axes)
        _add_legend(axes)
        save(figure, path)


class RangeTested(Protocol):
    """A range test, as `thinc_torchopt.addons.trials.lr_finder.RangeTest` is one."""

    rates: list[float]
    losses: list[float]
    first: int
    smoothed: list[float]
    stretch: tuple[int, int] | None

    @property
    def suggestion(self) -> float | None: ...


def plot_range_test(found: RangeTested, path: Path) -> None:
    """Draw the loss over the learning rate: what counts and what was left out, the stretch, the suggestion, and a third
    to three times of it.

    found (Range): The test. Losses that are not finite are left out.
    path (Path): The file; its ending says what kind. Replaced if it is there.
    RAISES (ImportError): matplotlib is not installed.
    """
    rates, smoothed = found.rates, found.smoothed
    losses = [loss if math.isfinite(loss) else math.nan for loss in found.losses]
    end = found.first + len(smoothed)
    with style():
        figure, axes = _start("learning rate", "loss per word", "Learning rate range test")
        if smoothed:
            counted = slice(found.first, end)
            axes.plot(rates[counted], losses[counted], ".", color=COLOURS[0], label="loss")
            axes.plot(rates[counted], smoothed, color=COLOURS[0], label="smoothed")
        if found.stretch is not None and found.suggestion is not None:
            first, last = found.stretch
            near = slice(first - found.first, last - found.first + 1)
            axes.plot(rates[first : last + 1], smoothed[near], color=COLOURS[2], label="stretch: nearly as low")
            look = {"color": COLOURS[1], "alpha": 0.1, "label": "a third to three times of it"}
            axes.axvspan(found.suggestion / 3, 3 * found.suggestion, **look)
            label = f"suggestion: {found.suggestion:.2g}"
            axes.axvline(found.suggestion, color=COLOURS[1], linestyle="--", label=label)
        axes.set_xscale("log")
        top = math.inf
        if smoothed:
            # Where it diverges, the loss of single points would press all else to the ground.
            low, high = min(losses[counted]), max(smoothed)
            margin = 0.1 * (high - low) or 1.0
            top = high + margin
            axes.set_ylim(low - margin, top)
        out = [i for i in range(len(rates)) if not found.first <= i < end]
        if out:
            # Points that are too high for the picture are drawn at its edge.
            at = [losses[i] if losses[i] <= top else top for i in out]
            axes.plot([rates[i] for i in out], at, "x", color=MUTED, clip_on=False, label="left out")
        set_ticks(axes)
        _add_legend(axes)
        save(figure, path)


def plot_learning_curve(scores: Mapping[int, Sequence[float]], path: Path, *, title: str = "") -> None:
    """Draw the score over the number of texts: each seed's, their mean, and their standard deviation as a bar.

    scores (Mapping[int, Sequence[float]]): By number of texts, those of the seeds.
    path (Path): The file; its ending says what kind. Replaced if it is there.
    title (str): Title of the picture.
    RAISES (ImportError): matplotlib is not installed.
    """
    with style():
        figure, axes = _start("texts", "score (0 to 1)", title)
        each = [(texts, score) for texts, found in scores.items() for score in found]
        axes.plot(*zip(*each), ".", color=COLOURS[0], label="of each seed")
        means = [fmean(found) for found in scores.values()]
        spreads = [stdev(found) if len(found) > 1 else 0.0 for found in scores.values()]
        look = {"color": COLOURS[0], "marker": "o", "label": "mean and spread"}
        axes.errorbar(list(scores), means, spreads, **look)
        axes.set_xlim(left=0)
        set_ticks(axes)
        axes.set_xticks(list(scores))
        _add_legend(axes)
        save(figure, path)


class Point(NamedTuple):
    """A trial of a search. score (float): Its best so far, if it did not finish. state (str): As in `TrialRecord`.
    values: The searched settings, by path.
    """

    number: int
    score: float
    state: str
    values: Mapping[str, Any]


def plot_study(
    points: Sequence[Point], importances: Mapping[str, float], logs: Collection[str], as_it_is: float | None, path: Path
) -> None:
    """Draw a search: its history, the importance of settings, and the score over each setting.

    points (Sequence[Point]): The trials, in order.
    importances (Mapping[str, float]): By path. Empty: unknown.
    logs (Collection[str]): Paths with a logarithmic scale.
    as_it_is (float | None): The mean score of the config as it is, with other seeds.
    path (Path): The file; its ending gives the format. An existing file is replaced.
    RAISES (ImportError): matplotlib is not installed.
    """
    paths = list(importances) or list(dict.fromkeys(key for point in points for key in point.values))
    rows = max(1, math.ceil(len(paths) / _SLICES))
    with style():
        figure = new_figure(12, 3 * (1 + rows))
        above, below = figure.subfigures(2, height_ratios=[1, rows])
        history, bars = above.subplot_mosaic("AAB").values()
        done = [point for point in points if point.state == "complete"]
        _draw_trials(history, points, [float(point.number) for point in points])
        bests = [max(point.score for point in done[: i + 1]) for i in range(len(done))]
        numbers = [point.number for point in done]
        history.step(numbers, bests, where="post", color=COLOURS[0], label="best so far")
        if as_it_is is not None:
            history.axhline(as_it_is, color=COLOURS[1], linestyle="--", label="the config as it is, other seeds")
        history.set_xlabel("trial")
        history.set_ylabel("score (0 to 1)")
        history.set_title("Trials")
        if points:
            history.legend()
        bars.barh(list(importances), list(importances.values()), color=COLOURS[0])
        bars.invert_yaxis()
        bars.set_title("How much each setting matters" if importances else "")
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
                set_ticks(axes)
            axes.set_xlabel(key, fontsize="small")
            axes.set_ylabel("score (0 to 1)")
        save(figure, path)


def _draw_trials(axes: Any, points: Sequence[Point], at: Sequence[Any]) -> None:
    """at (Sequence): The horizontal position of each point."""
    ends = {"pruned": "stopped early", "complete": "to the end"}
    for label, marker, color in (
        ("not finished", "+", MUTED),
        ("stopped early", "x", MUTED),
        ("to the end", "o", COLOURS[0]),
    ):
        chosen = [i for i, point in enumerate(points) if ends.get(point.state, "not finished") == label]
        if chosen:
            look = {"linestyle": "", "marker": marker, "color": color}
            axes.plot([at[i] for i in chosen], [points[i].score for i in chosen], label=label, **look)


def _start(x: str, y: str, title: str) -> tuple[Any, Any]:
    figure = new_figure(9, 5)
    axes = figure.add_subplot(xlabel=x, ylabel=y)
    axes.set_title(printable(title))
    return figure, axes


def _add_legend(axes: Any) -> None:
    """Add a legend; a long one goes beside the picture."""
    lines = "\n".join(axes.get_legend_handles_labels()[1]).splitlines()
    add_legend(axes, is_beside=len(lines) > _MAX_INSIDE)
