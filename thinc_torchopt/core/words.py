"""Numbers in words."""

from __future__ import annotations


def plain(value: float) -> str:
    """A number of three digits, without an exponent where that is readable."""
    rounded = float(f"{value:.3g}")
    if rounded and not 1e-6 <= abs(rounded) < 1e6:
        return f"{rounded:g}"
    text = f"{rounded:.9f}".rstrip("0").rstrip(".")
    return text or "0"


def count(number: int, what: str) -> str:
    """A number of things: "1 text", "2,000 texts"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
