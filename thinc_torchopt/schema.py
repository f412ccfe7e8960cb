"""The form of saved states, and the one function that reads them.

In memory and on the disk a state is plain: dicts, lists, numbers, texts, tensors. Its *form* is a dataclass: the fields
are the parts that it has, all of them and no others, and the annotations say what may be in them.

    @dataclass
    class Window:
        size: Count
        losses: dict[str, list[float]]
        best: float | None

    saved = write(window)
    window = read(Window, saved, "the state of the window")     # or a StateError, before anything has changed

An annotation is `bool`, `int`, `float` (which is finite), `str`, `None` or `Literal`; one of these with a limit, as
`Count`; a list, tuple or dict of others, `X | None`, another form; `Any`; or the class of whatever else there is, as
`torch.Tensor`. Nothing is converted, except that a list will do for a tuple: JSON has no tuples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from .checks import MAX_STEPS
from .errors import StateError, StateKeyError

T = TypeVar("T")


class Limit(NamedTuple):
    """Which values of a type there can be. words (str): The same, for errors. fits (Callable): Whether one is."""

    words: str
    fits: Callable[[Any], bool] = lambda value: True


Count = Annotated[int, Limit(f"a whole number from 0 to {MAX_STEPS:,}", lambda count: 0 <= count <= MAX_STEPS)]
Positive = Annotated[int, Limit("a whole number above 0", lambda count: 0 < count <= MAX_STEPS)]
NotNegative = Annotated[float, Limit("a number of at least 0", lambda number: 0.0 <= number < math.inf)]
# Also NaN: a score may be.
AnyNumber = Annotated[float, Limit("a number")]

_LIMITS = {
    NoneType: Limit("None"),
    bool: Limit("true or false"),
    int: Limit("a whole number"),
    float: Limit("a number that is finite", math.isfinite),
    str: Limit("a text"),
}


def read(form: type[T], saved: Any, what: str, path: str = "") -> T:
    """Read a saved state. It stays as it is; what is read shares its tensors.

    form (type): A dataclass; or what else can be an annotation, as `dict[str, Any]`.
    what (str): What it is, for errors: "the state of the guard". path (str): Where in that, if it is a part.
    RAISES (StateError): It is not of that form. (StateKeyError): Because parts are missing, or unexpected.
    """
    found: T = _read(form, saved, what, path)
    return found


def write(state: Any, form: type | None = None) -> dict[str, Any]:
    """A state as it is saved: forms as dicts, tuples as lists. Dicts and lists are copied, tensors are not.

    state (Any): What `read` gave; or any object with attributes that are named as the fields of `form`.
    """
    return {name: _written(kind, getattr(state, name)) for name, kind in _kinds_of(form or type(state)).items()}


def check_version(saved: Any, newest: int, what: str) -> None:
    """Check that a state says of what version it is, before it is read: the rest of another may be another.

    newest (int): The version that this package writes.
    RAISES (StateError): It does not say so, or is newer.
    """
    version = read(dict[str, Any], saved, what).get("version")
    if version is None:
        refuse(what, "", "a dict with version", "one without it", error=StateKeyError)
    if not _is_a(int, version) or version < 1:
        refuse(what, "version", "at least 1", _shown(version))
    if version > newest:
        raise StateError(
            f"Can't load {what}: expected at most version {newest}, found version {version}. It was written by a newer "
            "thinc-torchopt: install that one."
        )


def check_names(found: Mapping[str, Any], expected: Collection[str], what: str, path: str = "") -> None:
    """Check that a dict has these names, and no others.

    what, path (str): As in `read`.
    RAISES (StateKeyError): It has not.
    """
    missing, unexpected = set(expected) - found.keys(), found.keys() - set(expected)
    if missing or unexpected:
        differences = [
            f"{word} {_listed(names)}" for word, names in (("without", missing), ("with", unexpected)) if names
        ]
        expected_text, found_text = f"a dict with {_listed(expected)}", f"one {' and '.join(differences)}"
        refuse(what, path, expected_text, found_text, error=StateKeyError)


def refuse(what: str, path: str, expected: str, found: str, *, error: type[StateError] = StateError) -> NoReturn:
    """what, path (str): As in `read`. expected, found (str): In words. RAISES (StateError): Always."""
    raise error(
        f"Can't load {what}: expected {path and f'{path!r} to be '}{expected}, found {found}. It is damaged, of "
        "another config or pipeline, or was written by something else."
    )


def _read(kind: Any, value: Any, what: str, path: str) -> Any:
    if _test_of(kind)(value):
        return value
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        kinds = tuple(one for one in args if one is not NoneType)
        if len(kinds) == 1:
            return _read(kinds[0], value, what, path)
    elif isinstance(kind, type) and is_dataclass(kind):
        _check_type(value, Mapping, "a dict", what, path)
        parts = _kinds_of(kind)
        check_names(value, parts, what, path)
        found = {
            name: item if _test_of(part)(item := value[name]) else _read(part, item, what, _below(path, name))
            for name, part in parts.items()
        }
        return kind(**found)
    elif origin is dict:
        _check_type(value, Mapping, "a dict", what, path)
        test = _test_of(args[1])
        return {
            name: item if test(item) else _read(args[1], item, what, _below(path, name)) for name, item in value.items()
        }
    elif origin in (list, tuple):
        _check_type(value, (list, origin), "a list", what, path)
        kinds = _kinds_of_items(kind, value)
        if len(kinds) != len(value):
            refuse(what, path, f"a list of {len(kinds)}", f"one of {len(value)}")
        return origin(
            item if _test_of(kinds[i])(item) else _read(kinds[i], item, what, _below(path, str(i)))
            for i, item in enumerate(value)
        )
    else:
        kinds = (kind,)
    limits = [_limit_of(one) for one in kinds]
    if not any(_is_a(cls, value) and limit.fits(value) for cls, limit in limits):
        refuse(what, path, " or ".join(limit.words for _, limit in limits), _shown(value))
    return value


@cache
def _test_of(kind: Any) -> Callable[[Any], bool]:
    """A quick test of whether a value is one that there can be, as most are. If not, `_read` looks closer."""
    if kind is Any:
        return lambda value: True
    if get_origin(kind) in (Union, UnionType):
        tests = [_test_of(one) for one in get_args(kind)]
        return lambda value: any(test(value) for test in tests)
    if kind in _LIMITS or get_origin(kind) is Annotated:
        cls, limit = _limit_of(kind)
        return lambda value: type(value) is cls and limit.fits(value)
    return lambda value: False


def _check_type(value: Any, cls: Any, expected: str, what: str, path: str) -> None:
    if not isinstance(value, cls):
        refuse(what, path, expected, _shown(value))
    if cls is Mapping and not all(isinstance(key, str) for key in value):
        refuse(what, path, "a dict with texts as keys", "one with others")


def _limit_of(kind: Any) -> tuple[Any, Limit]:
    """The class of values that have no parts, and which of them there can be."""
    args = get_args(kind)
    if get_origin(kind) is Annotated:
        return args
    if get_origin(kind) is Literal:
        words = " or ".join(map(repr, args))
        return object, Limit(words, lambda value: any(type(value) is type(one) and value == one for one in args))
    return kind, _LIMITS.get(kind) or Limit(f"a {kind.__name__}")


def _is_a(cls: Any, value: Any) -> bool:
    if cls is float and isinstance(value, int) and not isinstance(value, bool):
        return value.bit_length() < 1024  # JSON has larger ones
    return isinstance(value, cls) and (cls in (bool, object) or not isinstance(value, bool))


def _shown(value: Any) -> str:
    """A value in an error: what has parts, or is long, by its type."""
    is_short = isinstance(value, (bool, float, str, NoneType)) or (isinstance(value, int) and value.bit_length() < 64)
    return repr(value)[:200] if is_short else type(value).__name__


@cache
def _kinds_of(form: Any) -> dict[str, Any]:
    """What may be in the parts of a form, by their names."""
    hints = get_type_hints(form, include_extras=True)
    return {field.name: hints[field.name] for field in fields(form)}


def _kinds_of_items(kind: Any, value: Any) -> tuple[Any, ...]:
    args = get_args(kind)
    return args if get_origin(kind) is tuple and args[1:] != (...,) else args[:1] * len(value)


def _written(kind: Any, value: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin in (Union, UnionType):
        return _written(next(one for one in args if one is not NoneType), value)
    if isinstance(kind, type) and is_dataclass(kind):
        return write(value, kind)
    if origin is dict:
        return {name: _written(args[1], item) for name, item in value.items()}
    if origin in (list, tuple):
        kinds = _kinds_of_items(kind, value)
        return [_written(kinds[i], item) for i, item in enumerate(value)]
    return value


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _listed(names: Collection[Any]) -> str:
    listed = sorted(map(str, names))
    return ", ".join(listed[:10]) + (", ..." if len(listed) > 10 else "") or "nothing"
