"""The number of threads for a step on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

# Elements up to which one thread does a step. torch splits each kernel between all threads and waits for the last one:
# for a small model that saves less than a millisecond on an idle machine, and costs tens of them on a busy one
# (benchmarks/README.md).
ONE_THREAD = 4_000_000


@contextmanager
def threads_for(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, torch works on one thread if the tensors are few and small; otherwise on its usual number.

    tensors (Sequence[Tensor]): The tensors to work on.
    """
    before = torch.get_num_threads()
    if (
        before == 1
        or not any(tensor.is_cpu for tensor in tensors)
        or sum(tensor.numel() for tensor in tensors) > ONE_THREAD
    ):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
