"""Whether this process is one of several that a launcher, such as torchrun, has started: what the environment says."""

from __future__ import annotations

import os

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def is_launched() -> bool:
    """Whether there are several processes."""
    return all(name in os.environ for name in _NEEDED) and int(os.environ["WORLD_SIZE"]) > 1


def rank_in_environment() -> int:
    """The rank that the launcher gave to this process. 0 if it is the only one."""
    return int(os.environ["RANK"]) if is_launched() else 0
