"""Plain values: what rules see, and what a state is made of. Copies; nothing of NumPy's, torch's or spaCy's."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

MAX_DEPTH = 20
_EXACT = frozenset({bool, int, float, str, type(None)})


def plain(value: Any, depth: int = 0, is_strict: bool = False) -> Any:
    """A copy in bools, ints, floats, strs, None, and lists and dicts of these. Arrays and tensors become numbers and
    lists.

    is_strict (bool): Anything else is an error, and not "<type>".
    RAISES (ValueError): It is nested too deep, or something else.
    """
    if type(value) in _EXACT:
        return value
    if depth > MAX_DEPTH:
        raise ValueError(f"expected values nested at most {MAX_DEPTH} deep, found deeper ones")
    if isinstance(value, Mapping):
        return {key if type(key) is str else str(key): plain(item, depth + 1, is_strict) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1, is_strict) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth + 1, is_strict)
    if is_strict:
        raise ValueError(f"expected numbers, texts, true, false, null, lists and dicts, found {type(value).__name__}")
    return f"<{type(value).__name__}>"  # what a rule can't use anyway, and whose repr may be anything


def number(value: Any) -> float | None:
    """A number as a float; None stays None. RAISES (TypeError | ValueError): It is none."""
    return None if value is None else float(value)
