"""What a report shows: panels over the same steps, each with its curves and marks. How they are drawn is drawing.py's.

One run: its components, scores and param groups side by side, a colour for each. Several runs: a colour for each run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy

from .runs import Event, Run, printable

Look = Literal["line", "thin", "faint", "points"]

# More curves than that take their colours from one range.
MAX_COLOURS = 8
# Curves of more points than that are drawn as the lowest and the highest of what falls together.
_MAX_POINTS = 1200
_SMOOTHED_POINTS = 400
# What is drawn on a logarithmic scale: what differs by such a factor.
_LOG_FROM = 20.0
# Where there are fewer lines than that, nothing is smoothed.
_MIN_SMOOTHED = 60
# Marks nearer to each other than this part of the picture are one.
_MARKS_APART = 1 / 500

# Precision and recall beside their F-score, and scores of the tokenizer, are in the table.
_SECONDARY = ("token_", "speed")


@dataclass
class Curve:
    """A line, or a band between two.

    name (str): What it is called; "" if it goes with the curve before, as what that one smoothes.
    colour (int | float): Which colour; or, of a range, from 0.0 to 1.0.
    x, y (numpy.ndarray): Its points. NaN: a gap. Shape: (n,)
    low (numpy.ndarray | None): The lower edge of a band, whose upper one is `y`. Shape: (n,)
    look (str): "line", "thin", "faint", or "points": a line with a dot for each point.
    """

    name: str
    colour: int | float
    x: numpy.ndarray
    y: numpy.ndarray
    low: numpy.ndarray | None = None
    look: Look = "line"


@dataclass
class Marks:
    """Points to mark, of one kind and one run.

    kind (str): As of an Event, or "best".
    colour (int | None): The run's; None: that of the kind.
    x (numpy.ndarray): Their steps. Shape: (n,)
    y (numpy.ndarray | None): Their heights, NaN: at the upper edge. None: they are at an edge, or lines from top to
        bottom. Shape: (n,)
    texts (list[str]): What each says.
    """

    kind: str
    colour: int | None
    x: numpy.ndarray
    y: numpy.ndarray | None
    texts: list[str]


@dataclass
class Panel:
    """A picture over the steps.

    title (str): What it shows. unit (str): The same for its vertical axis.
    caption (str): How to read it, as sentences.
    is_log (bool): Whether the vertical axis is logarithmic.
    limits (tuple[float, float] | None): Where it begins and ends; None: where the curves do.
    """

    title: str
    unit: str
    curves: list[Curve] = field(default_factory=list)
    marks: list[Marks] = field(default_factory=list)
    caption: str = ""
    is_log: bool = False
    limits: tuple[float, float] | None = None

    @property
    def named(self) -> list[Curve]:
        return [curve for curve in self.curves if curve.name]

    @property
    def alt(self) -> str:
        """The same in words."""
        parts = []
        for curve in self.named:
            known = numpy.isfinite(curve.y)
            if known.any():
                x, y = curve.x[known], curve.y[known]
                parts.append(
                    f"{curve.name}: {y[0]:.3g} at step {x[0]}, {y[-1]:.3g} at step {x[-1]}, lowest {y.min():.3g}, "
                    f"highest {y.max():.3g}"
                )
        parts += [f"{WORDS[marks.kind]}: {len(marks.x)}" for marks in self.marks if marks.kind != "best"]
        return f"{self.title} over the steps. {'; '.join(parts)}."


# What marks are called in a legend.
WORDS = {
    "best": "best score",
    "spike": "spike",
    "skip": "update skipped",
    "rollback": "went back to a checkpoint",
    "checkpoint": "checkpoint saved",
    "outside_write": "rates written by others",
    "conservative": "conservative mode began",
    "resumed": "resumed",
}


def make_panels(runs: Sequence[Run]) -> list[Panel]:
    """What there is to show of runs, in the order of interest. What none of them has is left out."""
    span = max(1, max(int(run.steps[-1]) for run in runs) - min(int(run.steps[0]) for run in runs))
    makers = (_scores, _losses, _rates, _norm, _speed)
    panels = [
        panel
        for maker in makers
        for panel in maker(runs, span)
        if any(numpy.isfinite(curve.y).any() for curve in panel.curves)
    ]
    for panel in panels:
        panel.marks += _marks(runs, span, "rollback", "resumed")
    return panels


def describe(event: Event) -> str:
    """An event, as a sentence without its end."""
    times = f", {event.count} times" if event.count > 1 else ""
    if event.kind == "rollback" and event.to is not None:
        return f"went back to the checkpoint of step {event.to}"
    return WORDS[event.kind] + times


# ---------------------------------------------------------------------- panels


def _scores(runs: Sequence[Run], span: int) -> Iterator[Panel]:
    panel = Panel("Score", "score", caption="At each evaluation, on the dev set.")
    for i, run in enumerate(runs):
        name = "main score" if len(runs) == 1 else run.label
        panel.curves += _curve(run, run.numbers("score"), name, i, "points")
        if run.best is not None:
            score, step = run.best
            text = f"best: {score:.4g}"
            panel.marks.append(Marks("best", i, numpy.array([step]), numpy.array([score]), [text]))
    if len(runs) == 1:
        [run] = runs
        others = {
            name: values
            for name, values in run.columns.get("scores", {}).items()
            if _is_shown(name, run.columns["scores"])
        }
        # A score that is the main score is not drawn twice.
        others = {
            name: values
            for name, values in others.items()
            if not numpy.array_equal(values, run.numbers("score"), equal_nan=True)
        }
        shown = dict(list(others.items())[: MAX_COLOURS - 1])
        for i, (name, values) in enumerate(shown.items(), 1):
            panel.curves += _curve(run, values, printable(name), i, "thin")
        if len(shown) < len(others):
            panel.caption += f" {len(others) - len(shown)} more are in the table below."
    yield panel


def _is_shown(name: str, scores: dict[str, numpy.ndarray]) -> bool:
    """Whether a score is worth a curve: a share, and no precision or recall beside its F-score."""
    if name.startswith(_SECONDARY) or (name[-2:] in ("_p", "_r") and f"{name[:-2]}_f" in scores):
        return False
    values = scores[name]
    return bool(numpy.nanmin(values) >= 0.0 and numpy.nanmax(values) <= 1.0)


def _losses(runs: Sequence[Run], span: int) -> Iterator[Panel]:
    components = list(dict.fromkeys(name for run in runs for name in run.columns.get("losses", {})))
    if len(runs) > 1:
        for component in components:
            panel = Panel(f"Loss of {printable(component)}", "loss per step")
            windows = [
                _add_smoothed(panel, run, values, run.label, i)
                for i, run in enumerate(runs)
                if (values := run.columns.get("losses", {}).get(component)) is not None
            ]
            yield _finish_smoothed(panel, windows)
        return
    panel, silent = Panel("Loss", "loss per step"), []
    windows = []
    for i, component in enumerate(components):
        values = runs[0].columns["losses"][component]
        if numpy.nanmax(numpy.abs(values)) == 0.0:
            silent.append(printable(component))
            continue
        windows.append(_add_smoothed(panel, runs[0], values, printable(component), _colour_of(i, len(components))))
    _finish_smoothed(panel, windows)
    if silent:
        panel.caption += f" Always 0, and left out: {', '.join(silent)}."
    yield panel


def _rates(runs: Sequence[Run], span: int) -> Iterator[Panel]:
    panel = Panel("Learning rate", "learning rate")
    by_run = [run.columns.get("learn_rates", {}) for run in runs]
    highest = [float(numpy.nanmax(values)) for rates in by_run for values in rates.values()]
    active = [rate for rate in highest if rate > 0.0]
    panel.is_log = bool(active) and max(active) / min(active) > _LOG_FROM
    if panel.is_log:
        panel.limits = min(active) / 100, max(active) * 1.5
    if len(runs) > 1:
        for i, (run, rates) in enumerate(zip(runs, by_run)):
            if not rates:
                continue
            top, bottom = _edges(list(rates.values()))
            panel.curves += _curve(run, top, run.label, i, "line", bottom if len(rates) > 1 else None)
        if any(len(rates) > 1 for rates in by_run):
            panel.caption = (
                "From the lowest to the highest rate of a run's param groups, without those that are frozen."
            )
    else:
        frozen = [printable(name) for name, values in by_run[0].items() if active and numpy.nanmax(values) == 0.0]
        groups = _alike({name: values for name, values in by_run[0].items() if printable(name) not in frozen})
        groups.sort(key=lambda group: -float(numpy.nanmax(group[1])))
        look: Look = "line" if len(groups) <= MAX_COLOURS else "thin"
        most = max(300, _MAX_POINTS * MAX_COLOURS // max(MAX_COLOURS, len(groups)))
        for i, (names, values) in enumerate(groups):
            panel.curves += _curve(runs[0], values, _name_groups(names), _colour_of(i, len(groups)), look, most=most)
        if len(groups) < len(by_run[0]) - len(frozen):
            panel.caption = "Param groups with the same rates at every step share a curve."
        if frozen:
            panel.caption += f" Always at 0, and left out: {_name_groups(frozen)}."
    if panel.is_log:
        panel.caption += " Rates of 0 have no place on this scale."
        for curve in panel.curves:
            curve.y = _positive(curve.y)
            curve.low = None if curve.low is None else _positive(curve.low)
    panel.marks += _marks(runs, span, "outside_write", "conservative")
    yield panel


def _norm(runs: Sequence[Run], span: int) -> Iterator[Panel]:
    panel = Panel("Gradient norm", "gradient norm", caption="Of all gradients, before clipping. ")
    windows = []
    for i, run in enumerate(runs):
        values = run.numbers("grad_norm")
        if numpy.isfinite(values).any():
            windows.append(_add_smoothed(panel, run, values, "norm" if len(runs) == 1 else run.label, i))
    _finish_smoothed(panel, windows, in_full=True)
    panel.marks += [*_marks(runs, span, "spike", "skip"), *_marks(runs, span, "checkpoint")]
    for marks in panel.marks:
        if marks.kind == "spike":
            run = runs[marks.colour or 0]
            norms = dict(zip(run.steps.tolist(), run.numbers("grad_norm").tolist()))
            marks.y = numpy.array([norms.get(int(step), math.nan) for step in marks.x])
    yield panel


def _speed(runs: Sequence[Run], span: int) -> Iterator[Panel]:
    panel = Panel("Speed", "words per second", caption="Words of the training data, as means over stretches of time.")
    for i, run in enumerate(runs):
        x, y = run.speeds()
        panel.curves.append(Curve("words per second" if len(runs) == 1 else run.label, i, x, y))
    panel.curves = [curve for curve in panel.curves if len(curve.x)]
    panel.limits = 0.0, 1.08 * max((float(curve.y.max()) for curve in panel.curves), default=1.0)
    yield panel


# ---------------------------------------------------------------------- curves


def _add_smoothed(panel: Panel, run: Run, values: numpy.ndarray, name: str, colour: int | float) -> int:
    """Add a curve and, faint behind it, what it smoothes.

    RETURNS (int): Over how many lines of the log; 1 if it is not smoothed.
    """
    known = numpy.isfinite(values)
    x, y = run.steps[known], values[known]
    if len(x) < _MIN_SMOOTHED:
        panel.curves += _curve(run, values, name, colour, "line")
        return 1
    panel.curves += _curve(run, values, "", colour, "faint")
    half = len(x) // 80
    centres = numpy.unique(numpy.linspace(0, len(x) - 1, min(len(x), _SMOOTHED_POINTS)).astype("int64"))
    smoothed = numpy.array([_trimmed_mean(y[max(0, centre - half) : centre + half + 1]) for centre in centres])
    panel.curves.append(Curve(name, colour, x[centres], smoothed))
    return 2 * half + 1


def _finish_smoothed(panel: Panel, windows: Sequence[int], *, in_full: bool = False) -> Panel:
    """Say how curves were smoothed, and choose the scale. in_full (bool): What is faint must not leave the picture."""
    if any(window > 1 for window in windows):
        fewest, most = min(window for window in windows if window > 1), max(windows)
        over = str(most) if fewest == most else f"{fewest} to {most}"
        panel.caption += f"Bold: the mean of {over} lines of the log, without the most extreme. Faint: each line."
    panel.is_log = _needs_log([curve.y for curve in panel.curves], of_all=in_full)
    if panel.is_log:
        for curve in panel.curves:
            curve.y = _positive(curve.y)
    if in_full:
        return panel
    bold = [curve.y[numpy.isfinite(curve.y)] for curve in panel.curves if curve.look != "faint"]
    faint = [
        numpy.percentile(curve.y[numpy.isfinite(curve.y)], [1, 99]) for curve in panel.curves if curve.look == "faint"
    ]
    values = numpy.concatenate([*bold, *faint] or [[]])
    if faint and len(values) and values.min() < values.max():
        low, high = (float(value) for value in (values.min(), values.max()))
        margin = 0.06 * (math.log(high / low) if panel.is_log else high - low)
        panel.limits = (
            (low * math.exp(-margin), high * math.exp(margin)) if panel.is_log else (low - margin, high + margin)
        )
    return panel


def _name_groups(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


# ---------------------------------------------------------------------- numbers


def _colour_of(i: int, n: int) -> int | float:
    return i if n <= MAX_COLOURS else i / (n - 1)


def _curve(
    run: Run,
    values: numpy.ndarray,
    name: str,
    colour: int | float,
    look: Look,
    low: numpy.ndarray | None = None,
    most: int = _MAX_POINTS,
) -> list[Curve]:
    """A curve of the lines that have a value, or none."""
    known = numpy.isfinite(values)
    x, y, low = run.steps[known], values[known], None if low is None else low[known]
    if not len(x):
        return []
    if low is None:
        x, y = _thinned(x, y, most)
    elif len(x) > _MAX_POINTS:
        kept = numpy.unique(numpy.linspace(0, len(x) - 1, _MAX_POINTS).astype("int64"))
        x, y, low = x[kept], y[kept], low[kept]
    return [Curve(name, colour, x, y, low, look)]


def _thinned(x: numpy.ndarray, y: numpy.ndarray, most: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The lowest and the highest point of each of some stretches, in their order: no peak is lost."""
    if len(x) <= most:
        return x, y
    kept = [0, len(x) - 1]
    for part in numpy.array_split(numpy.arange(len(x)), most // 2):
        kept += [int(part[y[part].argmin()]), int(part[y[part].argmax()])]
    chosen = numpy.unique(kept)
    return x[chosen], y[chosen]


def _trimmed_mean(values: numpy.ndarray) -> float:
    """The mean without an eighth at each end: a spike makes no plateau, and where most values are 0, it is not 0 as the
    median.
    """
    n = len(values) // 8
    return float(numpy.sort(values)[n : len(values) - n].mean())


def _needs_log(found: Sequence[numpy.ndarray], *, of_all: bool) -> bool:
    """Whether values are better seen on a logarithmic scale: positive, but for a few, and of different sizes.

    of_all (bool): Also where few are far from the others.
    """
    values = numpy.concatenate(
        [numpy.abs(y[numpy.isfinite(y)]) if (y[numpy.isfinite(y)] >= 0).all() else [-1.0] for y in found] or [[]]
    )
    if not len(values) or (values < 0.0).any() or (values == 0.0).mean() > 0.05:
        return False
    low, high = numpy.percentile(values[values > 0.0], [1, 100 if of_all else 99])
    return bool(high > _LOG_FROM * low)


def _positive(values: numpy.ndarray) -> numpy.ndarray:
    return numpy.where(values > 0.0, values, math.nan)


def _edges(rates: Sequence[numpy.ndarray]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The highest rate of each line, and the lowest that is not 0. NaN where there are none; where all are 0, 0."""
    found = numpy.stack(rates)
    top = numpy.where(
        numpy.isfinite(found).any(axis=0), numpy.where(numpy.isfinite(found), found, -math.inf).max(axis=0), math.nan
    )
    bottom = numpy.where(found > 0.0, found, math.inf).min(axis=0)
    return top, numpy.where(numpy.isfinite(bottom), bottom, top)


def _alike(rates: Mapping[str, numpy.ndarray]) -> list[tuple[list[str], numpy.ndarray]]:
    """Groups by their rates: those with the same ones at each step go together."""
    found: dict[bytes, tuple[list[str], numpy.ndarray]] = {}
    for name, values in rates.items():
        found.setdefault(values.tobytes(), ([], values))[0].append(printable(name))
    return list(found.values())


# ---------------------------------------------------------------------- marks


def _marks(runs: Sequence[Run], span: int, *kinds: str) -> Iterator[Marks]:
    """The events of some kinds. Those too near to each other to be seen apart become one."""
    for kind in kinds:
        for i, run in enumerate(runs):
            kept: dict[int, list[Event]] = {}
            for event in run.events:
                if event.kind == kind:
                    kept.setdefault(round(event.step / (span * _MARKS_APART)), []).append(event)
            if kept:
                x = numpy.array([events[0].step for events in kept.values()])
                texts = [
                    describe(events[0]) if len(events) == 1 else describe(_together(events)) for events in kept.values()
                ]
                yield Marks(kind, i if len(runs) > 1 else None, x, None, texts)


def _together(events: Sequence[Event]) -> Event:
    first = events[0]
    return Event(first.kind, first.step, sum(event.count for event in events))
