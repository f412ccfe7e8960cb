"""Checks of settings, from a config or from Python, and of saved states before anything is loaded.

confection checks the types of settings in a config, but accepts numbers in quotes; Python checks nothing. A file may be
damaged, from an older version, or from another program.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy

from .errors import ConfigArgumentError, ConfigError, StateError, TorchOptError
from .near_misses import did_you_mean, there_are

_Function = TypeVar("_Function", bound=Callable[..., Any])

# No run is longer: a larger position is damage, and schedules would take hours to get there.
MAX_STEPS = 100_000_000


class Section:
    """A section of the config, to check its values.

    path (str): Its path, for errors, e.g. "[training.optimizer]".
    allows_texts (bool): Accept numbers in quotes, as a config has them where the type is not known.
    verb (str): For errors: "Can't {verb} ...".
    """

    def __init__(self, path: str, *, allows_texts: bool = True, verb: str = "set"):
        self.path = path
        self.allows_texts = allows_texts
        self.verb = verb

    def refuse(self, name: str, expected: str, found: Any, advice: str = "") -> NoReturn:
        """RAISES (ConfigError): Always. advice (str): What to do, if the expected value does not say it."""
        raise ConfigError(
            f"Can't {self.verb} '{name}' in {self.path}: expected {expected}, found {found!r}.{advice and ' '}{advice}"
        )

    def number(
        self,
        name: str,
        value: Any,
        expected: str | None = None,
        *,
        at_least: float = 0.0,
        above: float = -math.inf,
        at_most: float = math.inf,
        below: float = math.inf,
    ) -> float:
        """Check a number, by default of at least 0; NumPy's are accepted.

        expected (str): The limits in words, if they need other words.
        RAISES (ConfigError): Not a number, out of range, or not finite.
        """
        try:
            may_be_number = self.allows_texts or isinstance(value, Real)
            number = float(value) if may_be_number and not isinstance(value, (bool, numpy.bool_)) else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not (math.isfinite(number) and at_least <= number <= at_most and above < number < below):
            low = (
                f"above {above:g}"
                if above > -math.inf
                else f"of at least {at_least:g}"
                if at_least > -math.inf
                else "that is finite"
            )
            high = (
                f" and at most {at_most:g}"
                if at_most < math.inf
                else f" and below {below:g}"
                if below < math.inf
                else ""
            )
            self.refuse(name, expected or f"a number {low}{high}", value)
        return number

    def whole(self, name: str, value: Any, *, at_least: int = 0, because: str = "") -> int:
        """Check a whole number. because (str): Reason for the limit. RAISES (ConfigError): Not one, or too small."""
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if (
            not (is_whole or (self.allows_texts and isinstance(value, str) and value.isdecimal()))
            or int(value) < at_least
        ):
            self.refuse(name, f"a whole number of at least {at_least}{because}", value)
        return int(value)

    def flag(self, name: str, value: Any) -> bool:
        """Check a bool. RAISES (ConfigError): Neither true nor false."""
        if not isinstance(value, (bool, numpy.bool_)):
            self.refuse(name, "true or false", value)
        return bool(value)

    def choice(self, name: str, value: Any, choices: Collection[Any]) -> Any:
        """Check one of several values. RAISES (ConfigError): Not one of them."""
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            *others, last = ("null" if choice is None else repr(choice) for choice in choices)
            near = did_you_mean(value, choices) if isinstance(value, str) else ""
            self.refuse(name, f"{', '.join(others)} or {last}" if others else last, value, near.strip())
        return value

    def kind(self, name: str, value: Any, cls: type, expected: str) -> Any:
        """Check the class of an object. expected (str): How to make one. RAISES (ConfigError): Another class."""
        if not isinstance(value, cls):
            self.refuse(name, expected, value)
        return value

    def file(self, name: str, value: Any, expected: str) -> Path:
        """Check the path of a file or folder. RAISES (ConfigError): Not a path, or an empty one."""
        if not isinstance(value, (str, Path)) or not str(value):
            self.refuse(name, expected, value)
        return Path(value)

    def section(self, name: str, value: Any) -> Mapping[str, Any]:
        """Check a section below this one. RAISES (ConfigError): Not a section."""
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            self.refuse(name, "a section, or in Python a dict with texts as keys", value)
        return value


OPTIMIZER = Section("[training.optimizer]")


def check_ops_threads(section: Section, name: str, value: int | str) -> int | str:
    """Check a number of threads. RAISES (ConfigError): Neither a whole number of at least 1 nor "auto"."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool) and value >= 1
    if value != "auto" and not is_whole:
        section.refuse(name, 'a whole number of at least 1, or "auto"', value)
    return value


def check_texts(what: str, value: Any, expected: str) -> None:
    """Check a list of at least one text. what (str): For errors: "Can't {what}: ...".

    RAISES (ConfigError): Anything else, for example one text.
    """
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"Can't {what}: expected {expected}, found {value!r}.")


def check_number(name: str, value: Any) -> float:
    """Check a setting of [training.optimizer] that must be a number of at least 0, or a schedule of such numbers.

    name (str): Its path in the config, below [training.optimizer].
    RAISES (ConfigError): Not a number, negative, or not finite.
    """
    return OPTIMIZER.number(name, value, "a number of at least 0, or a schedule of such numbers")


def known_settings(function: _Function) -> _Function:
    """For a function whose arguments are settings: refuse unknown ones as a config does, with a suggestion."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: Any, **settings: Any) -> Any:
        for name in settings:
            if name not in known:
                near = did_you_mean(name, known, is_setting=True) or there_are(known)
                what = function.__qualname__.removesuffix(".__init__")
                raise ConfigArgumentError(f"Can't build {what}: it has no setting '{name}'.{near}")
        return function(*args, **settings)

    return checked  # type: ignore[return-value]


@contextmanager
def own_errors(what: str) -> Iterator[None]:
    """Turn errors of Python or torch inside into a StateError: not every value of a damaged state can be checked first.

    what (str): For the error: "Can't load the state of {what}".
    RAISES (StateError): For each such error.
    """
    try:
        yield
    except TorchOptError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise StateError(
            f"Can't load the state of {what}: it is damaged, or was not written by this package ({error!r})."
        ) from error
