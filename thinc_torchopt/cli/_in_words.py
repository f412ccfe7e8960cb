"""Numbers, and learning rates over time, in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..controller import ControllerSpec

_MOST_TURNS = 6


def tell_rates(values: Sequence[float], begin: int = 0) -> str:
    """Say in words how a rate moves.

    values (Sequence[float]): The rate of each step. begin (int): The step of the first.
    """
    runs = _runs(values)
    first, last = values[0], begin + len(values) - 1
    if not runs:
        return f"{plain(first)} all the time" if first else "0 all the time: nothing is learned"
    if len(runs) > _MOST_TURNS:
        return (
            f"moves between {plain(min(values))} and {plain(max(values))}, {len(runs) - 1} turns; to see them: "
            "spacy torchopt schedule"
        )
    texts = []
    for i, (direction, end) in enumerate(runs):
        step = begin + end
        if direction == 0:
            until = "from there on" if step == last else f"until step {step:,}"
            texts.append(f"stays at {plain(values[end])} {until}")
        else:
            start = f"from {plain(first)} " if i == 0 and first else ""
            texts.append(f"{'rises' if direction > 0 else 'falls'} {start}to {plain(values[end])} at step {step:,}")
    return ", then ".join(texts)


def _runs(values: Sequence[float]) -> list[tuple[int, int]]:
    """Split rates where they turn: direction (1, 0 or -1) and last index of each part. Empty: the rate is constant."""
    runs: list[tuple[int, int]] = []
    for i, (value, following) in enumerate(pairwise(values)):
        direction = (
            0 if abs(following - value) <= 1e-9 * max(abs(value), abs(following)) else 1 if following > value else -1
        )
        if runs and runs[-1][0] == direction:
            runs[-1] = direction, i + 1
        else:
            runs.append((direction, i + 1))
    # A single step at the top is a peak, not a plateau.
    kept: list[tuple[int, int]] = []
    for direction, end in runs:
        start = kept[-1][1] if kept else 0
        if direction == 0 and end - start <= 1 and kept:
            kept[-1] = kept[-1][0], end
        elif kept and kept[-1][0] == direction:
            kept[-1] = direction, end
        else:
            kept.append((direction, end))
    return [] if all(direction == 0 for direction, _ in kept) else kept


def plain(value: float) -> str:
    """A number of three digits, without an exponent where that is readable."""
    rounded = float(f"{value:.3g}")
    if rounded and not 1e-6 <= abs(rounded) < 1e6:
        return f"{rounded:g}"
    text = f"{rounded:.9f}".rstrip("0").rstrip(".")
    return text or "0"


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size_in_words(size: float) -> str:
    """Bytes in words: "12 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.{0 if size >= 9.95 * scale else 1}f} {unit}"
    return f"{size:,.0f} bytes"


def time_in_words(seconds: float) -> str:
    """A duration in words: "2.5 hours", "14 minutes", "0.03 seconds"."""
    if seconds >= 5_400:
        return f"{seconds / 3_600:,.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds:.2g} seconds" if seconds < 10 else f"{seconds:.0f} seconds"


def actions_of(spec: ControllerSpec) -> list[str]:
    """The actions of a rule, as in its definition."""
    return [f"{operation}.{action}" for operation, action in spec.actions]


def tell_limits(spec: ControllerSpec) -> str:
    """The limits on the firings of a rule."""
    parts = []
    if spec.patience is not None:
        in_a_row = " in a row" if spec.patience.resets else ""
        parts.append(f"more than {count(spec.patience.threshold, 'time')}{in_a_row}")
    if spec.cooldown:
        parts.append(f"then not for {count(spec.cooldown, 'step')}")
    if spec.max_firings is not None:
        parts.append(f"at most {count(spec.max_firings, 'firing')}")
    return ", ".join(parts) or "each time"
