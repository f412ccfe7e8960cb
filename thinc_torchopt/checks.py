"""What is checked of saved states before anything is loaded: a file may be damaged, of an older version, or a stranger's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .errors import StateError

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


def check_count(what: str, found: Any) -> int:
    """Check that a value is a number of steps or updates, and return it.

    RAISES (StateError): It is not.
    """
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_STEPS:
        raise StateError(f"Can't load the state of the optimizer: expected '{what}' to be a number of steps, found {found!r}.")
    return found
