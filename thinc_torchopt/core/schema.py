"""The form of saved states, and the one function that reads them.

In memory and on disk a state is plain: dicts, lists, numbers, texts, tensors. Its *form* is a dataclass: the fields are
all its parts, and the annotations are the types of their values.

    @dataclass
    class Window:
        size: Count
        losses: dict[str, list[float]]
        best: float | None

    saved = write(window)
    window = read(Window, saved, "the state of the window")     # or a StateError, before anything has changed

An annotation is `bool`, `int`, `float` (finite), `str`, `None` or `Literal`; one of these with a limit, as `Count`; a
list, tuple or dict of others, `X | None`, another form; `Any`; or another class, as `torch.Tensor`. Values are not
converted, except that a list may stand for a tuple: JSON has no tuples.
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
    """The valid values of a type. words (str): In words, for errors. fits (Callable): Whether a value is valid."""

    words: str
    fits: Callable[[Any], bool] = lambda value: True


Count = Annotated[int, Limit(f"a whole number from 0 to {MAX_STEPS:,}", lambda count: 0 <= count <= MAX_STEPS)]
Whole = Annotated[int, Limit("a whole number of at least 0", lambda number: number >= 0)]
Positive = Annotated[int, Limit("a whole number above 0", lambda count: 0 < count <= MAX_STEPS)]
NotNegative = Annotated[float, Limit("a number of at least 0", lambda number: 0.0 <= number < math.inf)]
# Infinity stands for "never".
FirstStep = Annotated[float, Limit("a step, or infinite", lambda step: step >= 0.0)]
# May be NaN, as a score may.
AnyNumber = Annotated[float, Limit("a number")]

_LIMITS = {
    NoneType: Limit("None"),
    bool: Limit("true or false"),
    int: Limit("a whole number"),
    float: Limit("a number that is finite", math.isfinite),
    str: Limit("a text"),
}


def read(form: type[T], saved: Any, what: str, path: str = "") -> T:
    """Read a saved state. It is not changed; the result shares its tensors.

    form (type): A dataclass, or another annotation, as `dict[str, Any]`.
    what (str): Its name, for errors: "the state of the guard". path (str): The path in it, if it is a part.
    RAISES (StateError): It is not of that form. (StateKeyError): Because parts are missing, or unexpected.
    """
    try:
        found: T = _read(form, saved)
    except _OtherForm as other:
        refuse(what, "/".join(filter(None, (path, *other.path))), other.expected, other.found, error=other.error)
    return found


def write(state: Any, form: type | None = None) -> dict[str, Any]:
    """A state in its saved form: forms as dicts, tuples as lists. Dicts and lists are copied, tensors are not.

    state (Any): From `read`; or any object with attributes named as the fields of `form`.
    """
    return {name: _written(kind, getattr(state, name)) for name, kind in _kinds_of(form or type(state)).items()}


def check_version(saved: Any, newest: int, what: str) -> None:
    """Check the version of a state before it is read: other versions may have another form.

    newest (int): The version that this package writes.
    RAISES (StateError): It has no version, or another one.
    """
    version = read(dict[str, Any], saved, what).get("version")
    if version is None:
        refuse(what, "", "a dict with version", "one without it", error=StateKeyError)
    if not _is_a(int, version) or version < 1:
        refuse(what, "version", "at least 1", _shown(version))
    if version != newest:
        raise StateError(
            f"Can't load {what}: expected version {newest}, found version {version}. It was written by "
            f"{'a newer' if version > newest else 'an older'} thinc-torchopt: install that version, or start again "
            "without it."
        )


def check_names(found: Mapping[str, Any], expected: Collection[str], what: str, path: str = "") -> None:
    """Check that a dict has exactly these names.

    what, path (str): As in `read`.
    RAISES (StateKeyError): It has others.
    """
    if found.keys() != set(expected):
        refuse(what, path, *_differences(found, expected), error=StateKeyError)


def refuse(what: str, path: str, expected: str, found: str, *, error: type[StateError] = StateError) -> NoReturn:
    """what, path (str): As in `read`. expected, found (str): In words. RAISES (StateError): Always."""
    raise error(
        f"Can't load {what}: expected {path and f'{path!r} to be '}{expected}, found {found}. It is damaged, "
        "belongs to another config or pipeline, or was written by another program."
    )


class _OtherForm(Exception):
    """A value is not of its form. expected, found, error: As for `refuse`. path (list[str]): Where it is."""

    def __init__(self, expected: str, found: str, error: type[StateError] = StateError):
        self.expected, self.found, self.error = expected, found, error
        self.path: list[str] = []


def _read(kind: Any, value: Any) -> Any:
    quick = _quick_of(kind)
    if quick.fits(value):
        return quick.copy(value)
    origin, args = get_origin(kind), get_args(kind)
    if value is None and NoneType in args:
        return None
    if origin in (Union, UnionType):
        kinds = tuple(one for one in args if one is not NoneType)
        if len(kinds) == 1:
            return _read(kinds[0], value)
    elif origin is dict or (isinstance(kind, type) and is_dataclass(kind)):
        if not isinstance(value, Mapping):
            raise _OtherForm("a dict", _shown(value))
        if not all(isinstance(key, str) for key in value):
            raise _OtherForm("a dict with texts as keys", "one with others")
        if origin is dict:
            return _read_parts(dict.fromkeys(value, args[1]), value)
        parts = _kinds_of(kind)
        if value.keys() != parts.keys():
            raise _OtherForm(*_differences(value, parts), error=StateKeyError)
        return kind(**_read_parts(parts, value))
    elif origin in (list, tuple):
        if not isinstance(value, (list, origin)):
            raise _OtherForm("a list", _shown(value))
        kinds = _kinds_of_items(kind, value)
        if len(kinds) != len(value):
            raise _OtherForm(f"a list of {len(kinds)}", f"one of {len(value)}")
        return origin(_read_parts(dict(enumerate(kinds)), value).values())
    else:
        kinds = (kind,)
    limits = [_limit_of(one) for one in kinds]
    if not any(_is_a(cls, value) and limit.fits(value) for cls, limit in limits):
        raise _OtherForm(" or ".join(limit.words for _, limit in limits), _shown(value))
    return value


def _read_parts(kinds: Mapping[Any, Any], values: Any) -> dict[Any, Any]:
    """Read parts by their names, or places. kinds (Mapping): The annotation of each."""
    found = {}
    for name, kind in kinds.items():
        quick, value = _quick_of(kind), values[name]
        try:
            found[name] = quick.copy(value) if quick.fits(value) else _read(kind, value)
        except _OtherForm as other:
            other.path.insert(0, str(name))
            raise
    return found


class _Quick(NamedTuple):
    """A fast check that accepts most valid values: those of exactly these types. fits (Callable): Whether a value is
    valid.
    """

    fits: Callable[[Any], bool]
    copy: Callable[[Any], Any] = lambda value: value


@cache
def _quick_of(kind: Any) -> _Quick:
    """The fast check of an annotation, if it has one. `_read` examines other values."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return _Quick(lambda value: True)
    if _is_whole(kind):
        cls, limit = _limit_of(kind)
        return _Quick(lambda value: type(value) is cls and limit.fits(value))
    if origin in (Union, UnionType) and all(map(_is_whole, args)):
        tests = [_quick_of(one).fits for one in args]
        return _Quick(lambda value: any(test(value) for test in tests))
    if origin is list and _is_whole(args[0]):
        test = _quick_of(args[0]).fits
        return _Quick(lambda value: type(value) is list and all(map(test, value)), list)
    if kind == dict[str, Any]:
        return _Quick(lambda value: type(value) is dict and all(type(key) is str for key in value), dict)
    return _Quick(lambda value: False)


def _is_whole(kind: Any) -> bool:
    """Whether the values of an annotation have no parts."""
    return get_origin(kind) is Annotated or (isinstance(kind, type) and not is_dataclass(kind))


def _limit_of(kind: Any) -> tuple[Any, Limit]:
    """The class of values without parts, and their limit."""
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
    """A value for an error: long ones, and those with parts, by type."""
    is_short = isinstance(value, (bool, float, str, NoneType)) or (isinstance(value, int) and value.bit_length() < 64)
    return repr(value)[:200] if is_short else type(value).__name__


@cache
def _kinds_of(form: Any) -> dict[str, Any]:
    """The annotations of the parts of a form, by name."""
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


def _differences(found: Mapping[str, Any], expected: Collection[str]) -> tuple[str, str]:
    """The expected names, and those that differ, in words."""
    missing, unexpected = set(expected) - found.keys(), found.keys() - set(expected)
    differences = [f"{word} {_listed(names)}" for word, names in (("without", missing), ("with", unexpected)) if names]
    return f"a dict with {_listed(expected)}", f"one {' and '.join(differences)}"


def _listed(names: Collection[Any]) -> str:
    listed = sorted(map(str, names))
    return ", ".join(listed[:10]) + (", ..." if len(listed) > 10 else "") or "nothing"
