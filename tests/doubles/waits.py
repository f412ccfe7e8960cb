"""How often the host waited for the GPU: for each value that it read there. And how many operations it gave it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_all: Counter[str] = Counter()
_ops: Counter[str] = Counter()


def count(kind: str, times: int = 1) -> None:
    """Count waits. kind (str): What for."""
    _all[kind] += times


def count_op(name: str) -> None:
    """Count an operation that does something with values: views and new memory are none."""
    _ops[name] += 1


@contextmanager
def operations() -> Iterator[Counter[str]]:
    """Inside, operations of the double are counted, by name."""
    before, found = _ops.copy(), Counter[str]()
    try:
        yield found
    finally:
        found.update(_ops - before)


# What the host calls to wait for a GPU. (A profiler itself calls cudaDeviceSynchronize when it ends.)
_CALLS = {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cuStreamSynchronize", "cuEventSynchronize"}


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """Inside, waits are counted, by kind. On a real GPU torch's profiler counts the calls, those of CuPy too."""
    from . import is_installed

    found: Counter[str] = Counter()
    if not is_installed and torch.cuda.is_available():
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
            yield found
        found.update(event.name for event in seen.events() if event.name in _CALLS)
        return
    before = _all.copy()
    try:
        yield found
    finally:
        found.update(_all - before)
