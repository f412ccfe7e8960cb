"""A double of a GPU, for tests on machines that have none: arrays of CuPy and tensors of torch that are in the main
memory, but behave as if they were on a GPU.

Tests that are marked `device` run on it a second time: see test_marked.py. plugin.py lets pytest run any tests on it.
"""

import os

_VARIABLE = "TORCHOPT_TESTS_ON_DOUBLE"
is_installed = False


def install() -> None:
    """Have a GPU in this process, and in those that it starts. Before thinc is imported."""
    global is_installed
    if not is_installed:
        from . import cupy, torch_cuda

        torch_cuda.install()
        cupy.install()
        is_installed = True
        os.environ[_VARIABLE] = "1"


def install_as_parent() -> None:
    """Have a GPU if the process that started this one has."""
    if os.environ.get(_VARIABLE):
        install()
