"""What is checked of saved states before anything is loaded: a file may be damaged, of an older version, or a stranger's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .errors import StateError, TorchOptError

# No run is longer. A position beyond it is no position, and schedules would take hours to get there.
MAX_STEPS = 100_000_000


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
    newest (int): The one that this package writes. It reads those of before.
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
