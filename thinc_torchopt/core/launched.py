"""The launcher's environment, such as torchrun's: whether this is one of several processes."""

from __future__ import annotations

import os

from .errors import ConfigError

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# For errors: another process does not come, or never was.
LEFT_OVER = "If no launcher has started this process, RANK and WORLD_SIZE are left over: unset them."


def is_launched() -> bool:
    """Whether there are several processes.

    RAISES (ConfigError): Invalid values in the environment, or only some of those that a launcher sets.
    """
    given = [name for name in _NEEDED if os.environ.get(name)]
    ranks = [name for name in ("RANK", "WORLD_SIZE") if name in given]
    if not ranks or ("WORLD_SIZE" in given and world_size_in_environment() == 1):
        return False
    if len(given) < len(_NEEDED):
        raise ConfigError(
            f"Can't train in several processes: expected {', '.join(_NEEDED)} in the environment, found only "
            f"{', '.join(given)}. A launcher sets them all: start the training with spacy torchopt train or torchrun. "
            f"To train in one process, unset {' and '.join(ranks)}."
        )
    return True


def rank_in_environment() -> int:
    """The rank of this process from the launcher. 0 if it is the only one.

    RAISES (ConfigError): Not a valid rank.
    """
    if not is_launched():
        return 0
    size = world_size_in_environment()
    return _whole("RANK", 0, size - 1, f" below WORLD_SIZE, {size}")


def world_size_in_environment() -> int:
    """The number of processes. RAISES (ConfigError): Not a valid number."""
    return _whole("WORLD_SIZE", 1)


def master_in_environment() -> tuple[str, int]:
    """The address of the processes' store: a host and a port. RAISES (ConfigError): Not a valid port."""
    return os.environ["MASTER_ADDR"], _whole("MASTER_PORT", 1, 65535, ", a port of 1 to 65535")


def is_one_machine() -> bool:
    """Whether all processes are on this machine. RAISES (ConfigError): Not a valid number of them."""
    return bool(os.environ.get("LOCAL_WORLD_SIZE")) and _whole("LOCAL_WORLD_SIZE", 1) == world_size_in_environment()


def processes_here() -> int:
    """The number of processes on this machine, as far as the launcher tells.

    RAISES (ConfigError): Not a valid number.
    """
    return _whole("LOCAL_WORLD_SIZE", 1) if is_launched() and os.environ.get("LOCAL_WORLD_SIZE") else 1


def _whole(name: str, at_least: int, at_most: float = float("inf"), more: str = "") -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdecimal() and at_least <= int(text) <= at_most):
        raise ConfigError(
            f"Can't train in several processes: expected {name} in the environment to be a whole number"
            f"{more or f' of at least {at_least}'}, found {text!r}. A launcher sets it: start the training with spacy "
            "torchopt train or torchrun, or unset the variable."
        )
    return int(text)
