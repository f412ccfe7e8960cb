"""Keeps the work of CuPy and torch on a GPU in order. Both use views of arrays (param.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def in_order() -> Iterator[None]:
    """Inside, torch works on arrays of CuPy: after what CuPy has been given to do, and before what it will be given.

    Both are on the default stream as a rule, where all comes in order. Inside of `torch.cuda.stream(...)`, or with a
    stream of CuPy's, each waits for an event of the other. The host does not wait.

    A view that is made by DLPack waits once, when it is made. Ours are kept from step to step.
    """
    cupy = sys.modules.get("cupy")  # thinc has imported it, if it is installed
    if cupy is None or not torch.cuda.is_initialized():
        yield
        return
    of_cupy, pointer = cupy.cuda.get_current_stream(), torch.cuda.current_stream().cuda_stream
    if of_cupy.ptr == pointer:
        yield
        return
    of_torch = cupy.cuda.ExternalStream(pointer)
    of_torch.wait_event(of_cupy.record())
    try:
        yield
    finally:
        of_cupy.wait_event(of_torch.record())
