"""Plain values of metrics, with nothing of NumPy, torch or spaCy: copies of them, and those that a rule looks up."""

from __future__ import annotations

import logging
import re
import reprlib
import string
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Final, Union

from ...core.checks import Section

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


MAX_FORMAT = 2_000
MAX_MESSAGE = 10_000
MAX_WIDTH = 100

# Control characters with escape codes, line separators, characters that change the direction of writing, and
# surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Fields beside metrics.
FIELDS: Final = frozenset(
    {"event_name", "control_name", "step", "global_step", "epoch", "path", "error_type", "error_text"}
)

_SPEC = re.compile(r"(?:.?[<>=^])?[-+ ]?#?0?(\d*)[,_]?(?:\.(\d+))?[bcdeEfFgGnosxX%]?")
_SECTION = Section("the arguments")


class Message:
    """A text with fields: names of metrics, `event_name`, `control_name`, `step`, `epoch`; `path` on
    `on_save`, `error_type` and `error_text` on `on_exception`.

    setting (str): The name of the setting, for errors.
    text (str): As for `str.format`, without attributes, indices and conversions; widths up to 100.
    RAISES (ConfigError): The text is invalid.
    """

    def __init__(self, setting: str, text: str):
        self._setting = setting
        self._text = text
        if not isinstance(text, str) or not 0 < len(text.strip()) <= len(text) <= MAX_FORMAT:
            self._refuse(f"a text of 1 to {MAX_FORMAT} characters")
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            self._refuse(f"a text with fields in braces ({error})")
        self._parts: list[tuple[str, str | None, str]] = []
        for literal, field, spec, conversion in parts:
            if field is not None:
                self._check_field(field, spec or "", conversion)
            self._parts.append((literal, field, spec or ""))

    def _refuse(self, expected: str) -> None:
        _SECTION.refuse(self._setting, expected, reprlib.repr(self._text))

    def _check_field(self, field: str, spec: str, conversion: str | None) -> None:
        if not field or field[0].isdecimal() or conversion is not None:
            self._refuse("fields with a name, and without ! after it, as in {step}")
        if "." in field.partition("/")[0] or "[" in field:
            self._refuse("fields without attributes and indices; write {loss/components/ner} for a value in 'loss'")
        if (
            "{" in spec
            or (match := _SPEC.fullmatch(spec)) is None
            or any(int(size or 0) > MAX_WIDTH for size in match.groups())
        ):
            self._refuse(f"formats of Python's with a width of at most {MAX_WIDTH}, as in {{loss/loss:.3f}}")

    @property
    def names(self) -> set[str]:
        """The names in its fields: of metrics, and others."""
        return {field.partition("/")[0] for _, field, _ in self._parts if field is not None}

    def check(self, metrics: Collection[str]) -> None:
        """metrics (Collection[str] | Mapping[str, Keys | None]): Names of metrics, perhaps with their keys.

        RAISES (ConfigError): A field is unknown.
        """
        for _, field, _ in self._parts:
            if field is None:
                continue
            name, *path = field.split("/")
            if name not in FIELDS.union(metrics):
                self._refuse(f"fields among {', '.join(sorted(FIELDS.union(metrics)))}")
            known = metrics[name] if isinstance(metrics, Mapping) and name in metrics else None
            for key in path:
                if known is None:
                    break
                if key not in known:
                    self._refuse(f"fields of {name} among {', '.join(f'{name}/{part}' for part in known)}")
                name, known = f"{name}/{key}", known[key]

    def fill(self, values: Mapping[str, Any], payload: Mapping[str, Any]) -> str:
        """Fill the fields. An unknown value is "-"; a value that does not fit its format is shown without it."""
        filled = []
        for literal, field, spec in self._parts:
            filled.append(literal)
            if field is not None:
                name, *keys = field.split("/")
                value = values.get(name) if name in values else payload.get(name)
                for key in keys:
                    value = value.get(key) if isinstance(value, Mapping) else None
                filled.append(_shown(value, spec))
        return "".join(filled)[:MAX_MESSAGE]


def one_line(text: str) -> str:
    """Escape control characters of a text, for a log or terminal."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def repr_of(value: Any) -> str:
    """The repr of a plain value, in a few hundred characters at most."""
    return _repr.repr(value)


_repr = reprlib.Repr()
_repr.maxdict = _repr.maxlist = 20


def _shown(value: Any, spec: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        value = value[:1_000]
    elif not isinstance(value, (bool, int, float)):
        return repr_of(value)
    try:
        return format(value, spec)
    except (ValueError, TypeError, OverflowError):
        return str(value)


def level_of(name: Any) -> int | None:
    """The number of a level of Python's logging, by its name in any case. None: unknown name."""
    levels = {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warning": logging.WARNING,
        "error": logging.ERROR,
        "critical": logging.CRITICAL,
    }
    return levels.get(name.lower()) if isinstance(name, str) else None
