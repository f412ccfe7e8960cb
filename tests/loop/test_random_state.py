"""The random generators of a run. The oracle: what they draw."""

import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch

from thinc_torchopt.core.errors import StateError
from thinc_torchopt.loop.random_state import (
    check_generators,
    collect_random,
    preserved_random,
    read_random,
    restore_random,
    seed_all,
)

FEW = torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    "damaged",
    [{"python": (3, FEW, None)}, {"numpy": ("MT19937", FEW, 0, 0, 0.0)}, {"cpu": FEW.byte()}],
    ids=lambda damaged: next(iter(damaged)),
)
def test_random_states_are_checked_before_any_is_restored(damaged):
    saved = collect_random()
    check_generators(saved)
    with pytest.raises(StateError, match="state of the random generators"):
        check_generators(replace(saved, **damaged))
    now = collect_random()
    assert now.python[1].equal(saved.python[1]) and now.numpy[1].equal(saved.numpy[1]) and now.cpu.equal(saved.cpu)


@pytest.fixture
def gpu(monkeypatch):
    """The generators of a GPU, torch's and CuPy's, in words."""
    state = SimpleNamespace(torch=[torch.arange(4)], cupy="first")

    def give(name):
        return lambda value: setattr(state, name, value)

    cuda = {"is_available": lambda: True, "is_initialized": lambda: True, "set_rng_state_all": give("torch")}
    cuda["get_rng_state_all"] = lambda: [one.clone() for one in state.torch]
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    rng = {"get_random_state": lambda: state.cupy, "set_random_state": give("cupy"), "RandomState": lambda seed: seed}
    rng["seed"] = lambda seed: setattr(state, "cupy", f"seed {seed}")
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(random=SimpleNamespace(**rng)))
    return state


def test_random_states_of_a_gpu(gpu, monkeypatch):
    """CuPy's is seeded from Python's, when it is saved and when it is restored."""
    saved = collect_random()
    kept = gpu.torch, gpu.cupy
    assert kept[1].startswith("seed ") and torch.equal(saved.cuda[0], torch.arange(4))

    def others():
        gpu.torch, gpu.cupy = [torch.zeros(4)], "other"
        return random.random(), numpy.random.rand(), torch.rand(3).tolist()

    with preserved_random():
        assert gpu.cupy == 0
        drawn = others()
    assert (torch.equal(gpu.torch[0], kept[0][0]), gpu.cupy) == (True, kept[1]) and others() == drawn
    restore_random(saved)
    assert (torch.equal(gpu.torch[0], kept[0][0]), gpu.cupy) == (True, kept[1]) and others() == drawn
    seed_all(3)
    assert gpu.cupy.startswith("seed ") and gpu.cupy != kept[1]
    drawn = others()
    seed_all(3)
    assert others() == drawn
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert read_random()[2] == []
    monkeypatch.setitem(sys.modules, "cupy", None)  # not installed
    assert collect_random().cuda
