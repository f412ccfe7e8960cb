"""Plain copies of values, for rules and saved states: nothing of NumPy, torch or spaCy."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

MAX_DEPTH = 20
_EXACT = frozenset({bool, int, float, str, type(None)})


def plain(value: Any, depth: int = 0, is_strict: bool = False) -> Any:
    """Copy a value to bools, ints, floats, strs, None, and lists and dicts of these. Arrays and tensors become numbers
    and lists.

    is_strict (bool): Raise an error for anything else, instead of "<type>".
    RAISES (ValueError): The value is nested too deep, or has another type and `is_strict` is set.
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
    return f"<{type(value).__name__}>"  # rules can't use it, and its repr may be anything


def number(value: Any) -> float | None:
    """A number as a float; None stays None. RAISES (TypeError | ValueError): It is not a number."""
    return None if value is None else float(value)
