"""Numbers and names in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def plain(value: float) -> str:
    """A number of three digits, without an exponent where that is readable."""
    rounded = float(f"{value:.3g}")
    if rounded and not 1e-6 <= abs(rounded) < 1e6:
        return f"{rounded:g}"
    return f"{rounded:.9f}".rstrip("0").rstrip(".")


def count(number: int, what: str) -> str:
    """A number of things: "1 text", "2,000 texts"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], joined: str = "and", most: int = 5) -> str:
    """Names in a row: "A, B or C", "A, B, C, D, E and 3 more". most (int): Of them. Empty: there are none."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append(f"{len(names) - most:,} more")
    *others, last = shown or [""]
    return f"{', '.join(others)} {joined} {last}" if others else last


def counted(labels: Counter[str], most: int = 10) -> str:
    """The most frequent labels with their counts: "DRUG 1,105 and DOSE 12"."""
    return listed([f"{label} {n:,}" for label, n in labels.most_common()], most=most)


def short(value: float | None) -> str:
    """A number with three digits. None: empty."""
    return "" if value is None else f"{value:.3g}"


def size_in_words(size: float) -> str:
    """Bytes in words: "12 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * scale:  # less is shown as 999 of the smaller unit
            return f"{size / scale:,.{0 if size >= 9.95 * scale else 1}f} {unit}"
    return f"{size:,.0f} bytes"


def time_in_words(seconds: float) -> str:
    """A duration in words: "2.5 hours", "14 minutes", "0.03 seconds"."""
    if seconds >= 5_400:
        return f"{seconds / 3_600:,.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds:.2g} seconds"
