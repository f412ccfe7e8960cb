"""What is checked of settings, from a config or from Python, and of saved states before anything is loaded.

confection checks what a config says by the types of the arguments, but lets numbers in quotes pass; Python checks
nothing. A file may be damaged, from an older version, or from another program.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy

from .errors import ConfigError, StateError, TorchOptError
from .near_misses import did_you_mean

# No run is longer. A position beyond it is no position, and schedules would take hours to get there.
MAX_STEPS = 100_000_000


class Section:
    """A section of the config, whose values it checks.

    path (str): Its path, for errors, e.g. "[training.optimizer]".
    allows_texts (bool): Whether a number may be in quotes, which a config puts around it where the type is not known.
    verb (str): What can't be done with a value that is wrong.
    """

    def __init__(self, path: str, *, allows_texts: bool = True, verb: str = "set"):
        self.path = path
        self.allows_texts = allows_texts
        self.verb = verb

    def refuse(self, name: str, expected: str, found: Any, advice: str = "") -> NoReturn:
        """RAISES (ConfigError): Always. advice (str): What to do, if that does not follow from what is expected."""
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
        """A number, by default of at least 0; also one of NumPy's. expected (str): The same in words, where these
        limits don't say it.

        RAISES (ConfigError): Not a number, out of range, or not finite.
        """
        try:
            number = float(value) if self._may_be_number(value) else math.nan
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

    def _may_be_number(self, value: Any) -> bool:
        if isinstance(value, (bool, numpy.bool_)):
            return False
        return self.allows_texts or isinstance(value, Real)

    def whole(self, name: str, value: Any, *, at_least: int = 0, because: str = "") -> int:
        """A whole number. because (str): Why so many. RAISES (ConfigError): Not a whole number, or less than
        `at_least`.
        """
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if (
            not (is_whole or (self.allows_texts and isinstance(value, str) and value.isdecimal()))
            or int(value) < at_least
        ):
            self.refuse(name, f"a whole number of at least {at_least}{because}", value)
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
            near = did_you_mean(value, choices) if isinstance(value, str) else ""
            self.refuse(name, f"{', '.join(others)} or {last}" if others else last, value, near.strip())
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


def check_texts(what: str, value: Any, expected: str) -> None:
    """Check a list of texts, of which there is one at least. what (str): What can't be done otherwise.

    RAISES (ConfigError): It is something else: one text, for example, which is a sequence of its letters.
    """
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"Can't {what}: expected {expected}, found {value!r}.")


def check_number(name: str, value: Any) -> float:
    """Check a setting of [training.optimizer] that must be a number of at least 0, or a schedule of such.

    name (str): Its config path below.
    RAISES (ConfigError): Not a number, negative, or not finite.
    """
    return OPTIMIZER.number(name, value, "a number of at least 0, or a schedule of such")


@contextmanager
def own_errors(what: str) -> Iterator[None]:
    """Inside, an error of Python's or torch's becomes one of ours: of the values in a damaged state not all can be
    checked in advance.

    what (str): Whose state, for the error.
    RAISES (StateError): There was such an error.
    """
    try:
        yield
    except TorchOptError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise StateError(
            f"Can't load the state of {what}: expected what this package writes, found something else ({error!r}). It "
            "is damaged, or was written by something else."
        ) from error
