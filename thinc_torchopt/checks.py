"""What is checked of settings, from a config or from Python, and of saved states before anything is loaded.

confection checks what a config says by the types of the arguments, but lets numbers in quotes pass; Python checks nothing. A file may be
damaged, from an older version, or from another program.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any, NoReturn

import numpy

from .errors import ConfigError, StateError, TorchOptError

# No run is longer. A position beyond it is no position, and schedules would take hours to get there.
MAX_STEPS = 100_000_000


class Section:
    """A section of the config, whose values it checks.

    path (str): Its path, for errors, e.g. "[training.optimizer]".
    """

    def __init__(self, path: str):
        self.path = path

    def refuse(self, name: str, expected: str, found: Any, advice: str = "") -> NoReturn:
        """RAISES (ConfigError): Always. advice (str): What to do, if that does not follow from what is expected."""
        raise ConfigError(f"Can't set '{name}' in {self.path}: expected {expected}, found {found!r}.{advice and ' '}{advice}")

    def number(
        self, name: str, value: Any, expected: str = "a number of at least 0", *, at_most: float = math.inf, below: float = math.inf
    ) -> float:
        """A number of at least 0, also one of NumPy's. expected (str): The same in words.

        RAISES (ConfigError): Not a number, out of range, or not finite.
        """
        try:
            number = math.nan if isinstance(value, (bool, numpy.bool_)) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not 0.0 <= number < math.inf or number > at_most or number >= below:
            self.refuse(name, expected, value)
        return number

    def whole(self, name: str, value: Any, *, at_least: int = 0) -> int:
        """A whole number. RAISES (ConfigError): Not a whole number, or less than `at_least`."""
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not (is_whole or (isinstance(value, str) and value.isdecimal())) or int(value) < at_least:
            self.refuse(name, f"a whole number of at least {at_least}", value)
        return int(value)

    def flag(self, name: str, value: Any) -> bool:
        """True or false. RAISES (ConfigError): It is neither."""
        if not isinstance(value, (bool, numpy.bool_)):
            self.refuse(name, "true or false", value)
        return bool(value)

    def choice(self, name: str, value: Any, choices: Collection[Any]) -> Any:
        """One of several. RAISES (ConfigError): Not one of them."""
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            *others, last = ("null" if choice is None else repr(choice) for choice in choices)
            self.refuse(name, f"{', '.join(others)} or {last}", value)
        return value

    def kind(self, name: str, value: Any, cls: type, expected: str) -> Any:
        """An object of a class. expected (str): What makes one. RAISES (ConfigError): It is of another class."""
        if not isinstance(value, cls):
            self.refuse(name, expected, value)
        return value

    def section(self, name: str, value: Any) -> Mapping[str, Any]:
        """A section below this one. RAISES (ConfigError): Not a section."""
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            self.refuse(name, "a section, or in Python a dict with texts as keys", value)
        return value


OPTIMIZER = Section("[training.optimizer]")


def check_number(name: str, value: Any) -> float:
    """Check a setting of [training.optimizer] that must be a number of at least 0, or a schedule of such.

    name (str): Its config path below.
    RAISES (ConfigError): Not a number, negative, or not finite.
    """
    return OPTIMIZER.number(name, value, "a number of at least 0, or a schedule of such")


def check_parts(what: str, found: Any, expected: Collection[str] | None = None, *, optional: Collection[str] = ()) -> None:
    """Check that a part of a state is a dict with texts as keys.

    what (str): Whose state, for the error.
    expected (Collection[str]): The keys that it must have, all of them and no others. None: any.
    optional (Collection[str]): Keys that it may have: what older versions did not write.
    RAISES (StateError): It is not.
    """
    is_dict = isinstance(found, Mapping) and all(isinstance(key, str) for key in found)
    if not is_dict or (expected is not None and set(found) - set(optional) != set(expected)):
        raise StateError(
            f"Can't load the state of {what}: expected {'a dict' if expected is None else f'the parts {sorted(expected)}'}, found "
            f"{sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__}."
        )


def check_version(what: str, found: Any, newest: int) -> None:
    """Check that a state says of what version it is, and that this package can read that. Before anything else: the rest may be another.

    what (str): Whose state, for the error.
    newest (int): The one that this package writes. Older ones are read too.
    RAISES (StateError): It does not, or is newer.
    """
    version = found.get("version") if isinstance(found, Mapping) else None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise StateError(
            f"Can't load the state of {what}: expected a state of at least version 1, found version {version!r}. It is damaged, or was "
            "written by something else."
        )
    if version > newest:
        raise StateError(
            f"Can't load the state of {what}: expected at most version {newest}, found version {version}. It was written by a newer "
            "thinc-torchopt: install that one."
        )


@contextmanager
def own_errors(what: str) -> Iterator[None]:
    """Inside, an error of Python's or torch's becomes one of ours: of the values in a damaged state not all can be checked in advance.

    what (str): Whose state, for the error.
    RAISES (StateError): There was such an error.
    """
    try:
        yield
    except TorchOptError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise StateError(
            f"Can't load the state of {what}: expected what this package writes, found something else ({error!r}). It is damaged, or was "
            "written by something else."
        ) from error


def check_count(what: str, found: Any) -> int:
    """Check that a value is a number of steps or updates, and return it.

    RAISES (StateError): It is not.
    """
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_STEPS:
        raise StateError(f"Can't load the state of the optimizer: expected '{what}' to be a number of steps, found {found!r}.")
    return found
