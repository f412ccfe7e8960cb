"""Curves from numbers: thinned, smoothed, and what needs a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy

from .runs import Run, printable

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


def colour_of(i: int, n: int) -> int | float:
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
