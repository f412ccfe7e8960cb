"""Runs tests on a GPU, or on its double: `pytest -p tests.doubles.plugin --device double -m device`.

Models that tests build then are on it, as after `spacy train --gpu-id 0`.
"""

import pytest
import torch


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        choices=["cpu", "double", "cuda"],
        default="cpu",
        help="where tests run; double: on a double of a GPU",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    if early_config.known_args_namespace.device == "double":  # before a conftest imports spaCy
        from . import install

        install()
        torch.set_num_threads(1)  # tests fork it, and the threads would be missing there


@pytest.fixture(autouse=True)
def on_device(request, fixed_seed):
    """Tests run with the ops of the device. The generators that it brings have their seed, too. Those that are marked
    `gpu` choose for themselves.
    """
    if request.config.getoption("--device") == "cpu" or request.node.get_closest_marker("gpu"):
        yield
        return
    from thinc.api import fix_random_seed, require_cpu, require_gpu

    require_gpu()
    fix_random_seed(0)
    yield
    require_cpu()


@pytest.fixture(autouse=True)
def memory_of_cupy(request):
    """thinc lets CuPy take memory from torch once a torch module is wrapped on a GPU: memory of the CPU,
    in later tests whose ops are the CPU's.
    """
    yield
    if request.config.getoption("--device") == "cuda":
        import cupy
        from thinc.backends import context_pools

        context_pools.get().pop("pytorch", None)
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
