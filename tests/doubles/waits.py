"""How often the host waited for the GPU: for each value that it read there."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_all: Counter[str] = Counter()


def count(kind: str, times: int = 1) -> None:
    """Count waits. kind (str): What for."""
    _all[kind] += times


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """Inside, waits are counted, by kind."""
    found: Counter[str] = Counter()
    before = _all.copy()
    try:
        yield found
    finally:
        found.update(_all - before)
