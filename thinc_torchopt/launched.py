"""Whether this process is one of several that a launcher, such as torchrun, has started: what the environment says."""

from __future__ import annotations

import os

from .errors import ConfigError

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_launched() -> bool:
    """Whether there are several processes. RAISES (ConfigError): The environment says what can't be."""
    return all(name in os.environ for name in _NEEDED) and world_size_in_environment() > 1


def rank_in_environment() -> int:
    """The rank that the launcher gave to this process. 0 if it is the only one.

    RAISES (ConfigError): It is none.
    """
    if not is_launched():
        return 0
    size = world_size_in_environment()
    return _whole("RANK", 0, size - 1, f" below WORLD_SIZE, {size}")


def world_size_in_environment() -> int:
    """How many processes the launcher says there are. RAISES (ConfigError): It says no such number."""
    return _whole("WORLD_SIZE", 1)


def master_in_environment() -> tuple[str, int]:
    """Where the processes meet: a host and a port. RAISES (ConfigError): There is no such port."""
    return os.environ["MASTER_ADDR"], _whole("MASTER_PORT", 1, 65535, ", a port of 1 to 65535")


def _whole(name: str, at_least: int, at_most: float = float("inf"), more: str = "") -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdecimal() and at_least <= int(text) <= at_most):
        raise ConfigError(
            f"Can't train in several processes: expected {name} in the environment to be a whole number"
            f"{more or f' of at least {at_least}'}, found {text!r}. A launcher sets it: start the training with spacy "
            "torchopt train or torchrun, or unset the variable."
        )
    return int(text)
