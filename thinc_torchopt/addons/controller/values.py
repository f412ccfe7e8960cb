"""Plain values of metrics, with nothing of NumPy, torch or spaCy: copies of them, and those that a rule looks up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Union

Path = tuple[str, ...]
# The keys in a metric's value, nested. None: anything, or unknown before the training.
Keys = Mapping[str, Union["Keys", None]]

MAX_ITEMS = 20  # of a list that are shown
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


def value_at(values: Mapping[str, Any], path: Path) -> Any:
    """The value at a path. None: there is none."""
    value: Any = values
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def looked_up(values: Mapping[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """Plain copies of the values at some paths, nested as in `values`. Of a list the newest `MAX_ITEMS`."""
    found: dict[str, Any] = {}
    for path in sorted(paths, key=len):
        *outer, last = path
        if value_at(values, (path[0],)) is None or any(path[: i + 1] in paths for i in range(len(outer))):
            continue  # no value; or it is in another one
        place = found
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = _newest(plain(value_at(values, path)))
    return found


def _newest(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _newest(item) for key, item in value.items()}
    return value[-MAX_ITEMS:] if isinstance(value, list) else value
