"""What is checked of a saved state of the learn rate controller, before anything is changed."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import ConfigError, LearnRateWarning
from .groups import GroupIdentity, WatchedGroup


def check_state(state: Any, parts: Collection[str], here: Mapping[str, WatchedGroup], may_grow: bool) -> None:
    """Check that a state can be loaded.

    parts (Collection[str]): That it must have.
    here (Mapping[str, WatchedGroup]): The groups that there are, by id.
    may_grow (bool): Params may have other shapes than they had there; or else that is a warning.
    RAISES (ConfigError): It can't.
    """
    _check_keys("parts", parts, state)
    groups = state["groups"]
    _check_keys("param groups", here, groups)
    for watched in here.values():
        watched.check_state_dict(groups[watched.id])
    saved = {id: groups[id]["checksum"] for id in here}
    identities = {id: watched.identity for id, watched in here.items()}
    other = {id: found for id, found in identities.items() if saved[id] != found.checksum}
    if other and _are_swapped(other, saved):
        raise ConfigError(
            f"Can't load the state of the learn rate controller: expected param groups {sorted(other)} in the order in "
            "which they were saved, found them in another. Build the optimizer with the groups in the same order."
        )
    if other and not may_grow:
        warnings.warn(
            LearnRateWarning(
                f"Param groups {sorted(other)} have other params, shapes or options than when they were saved. Their "
                "learn rates are kept."
            ),
            stacklevel=3,
        )


def _are_swapped(identities: Mapping[str, GroupIdentity], saved: Mapping[str, str]) -> bool:
    """Whether each saved checksum is that of another group. Both are by id."""
    left = list(identities.values())
    for id in identities:
        found = next((identity for identity in left if saved[id] == identity.checksum_as(id)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _check_keys(what: str, expected: Collection[str], found: Any) -> None:
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"Can't load the state of the learn rate controller: expected a dict of {what}, found {found!r}."
        )
    missing, unexpected = [key for key in expected if key not in found], [key for key in found if key not in expected]
    if missing or unexpected:
        raise ConfigError(
            f"Can't load the state of the learn rate controller: expected the {what} {sorted(expected)}, found none "
            f"for {missing}, and unexpected ones for {unexpected}. Register the same optimizers, and add the same "
            "params, before you load."
        )
