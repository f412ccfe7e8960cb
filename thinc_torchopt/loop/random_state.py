"""The random generators of a run: Python's, NumPy's, torch's, and torch's on each GPU.\n"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from ..core.checks import own_errors

# The states of Python's and NumPy's global generators, as they return them.
Generators = tuple[Any, Any]


@dataclass
class GeneratorStates:
    """The saved states of Python's and NumPy's global generators."""

    python: tuple[int, torch.Tensor, float | None]
    numpy: tuple[str, torch.Tensor, int, int, float]


@dataclass
class RandomState(GeneratorStates):
    """The saved states of all random generators: those, torch's, and torch's on each GPU."""

    cpu: torch.Tensor
    cuda: list[torch.Tensor]


def read_generators() -> Generators:
    return random.getstate(), numpy.random.get_state()


def set_generators(generators: Generators) -> None:
    random.setstate(generators[0])
    numpy.random.set_state(generators[1])


class OwnGenerators:
    """Inside a `with` block, Python's and NumPy's global generators are those of one part of a program: others draw as
    if it had drawn nothing.

    states (Generators): To begin with.

    Public: `states` (after the last block).
    """

    def __init__(self, states: Generators):
        self.states = states

    def __enter__(self) -> None:
        self._others = read_generators()
        set_generators(self.states)

    def __exit__(self, *error: object) -> None:
        self.states = read_generators()
        set_generators(self._others)


def save_generators(generators: Generators) -> GeneratorStates:
    (version, numbers, gauss), (kind, keys, position, has_gauss, cached) = generators
    return GeneratorStates(
        (version, torch.tensor(numbers, dtype=torch.int64), gauss),
        (kind, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)),
    )


def load_generators(saved: GeneratorStates) -> Generators:
    version, numbers, gauss = saved.python
    kind, keys, *rest = saved.numpy
    return (version, tuple(numbers.tolist()), gauss), (kind, keys.numpy().astype("uint32"), *rest)


def check_generators(saved: GeneratorStates) -> None:
    """Check that saved states can be restored, without doing it. RAISES (StateError): They can't."""
    with own_errors("the random generators"):
        python, of_numpy = load_generators(saved)
        random.Random().setstate(python)
        numpy.random.RandomState().set_state(of_numpy)
        if isinstance(saved, RandomState):
            torch.Generator().set_state(saved.cpu)


def read_random() -> tuple[Generators, torch.Tensor, list[torch.Tensor]]:
    """The states of all random generators but CuPy's, in memory only."""
    is_on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return read_generators(), torch.get_rng_state(), torch.cuda.get_rng_state_all() if is_on_gpu else []


def set_random(states: tuple[Generators, torch.Tensor, list[torch.Tensor]]) -> None:
    """Set the generators to states of `read_random`."""
    generators, of_torch, on_gpu = states
    set_generators(generators)
    torch.set_rng_state(of_torch)
    if on_gpu:
        torch.cuda.set_rng_state_all(on_gpu)


def collect_random() -> RandomState:
    """The states of all random generators: Python's, NumPy's, torch's, and torch's on each GPU.

    CuPy's can't be read: it is seeded from Python's, here and in the resumed run.
    """
    _reseed_cupy()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return RandomState(**vars(save_generators(read_generators())), cpu=torch.get_rng_state(), cuda=cuda)


def restore_random(saved: RandomState) -> None:
    """Set all random generators to saved states."""
    set_generators(load_generators(saved))
    _reseed_cupy()
    torch.set_rng_state(saved.cpu.clone())
    if saved.cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([generator.clone() for generator in saved.cuda])


@contextmanager
def preserved_random() -> Iterator[None]:
    """Restore all random generators on exit, CuPy's too."""
    states = read_random()
    cupy = sys.modules.get("cupy") if states[-1] else None
    of_cupy = None if cupy is None else cupy.random.get_random_state()
    if cupy is not None:
        cupy.random.set_random_state(cupy.random.RandomState(0))
    try:
        yield
    finally:
        set_random(states)
        if cupy is not None:
            cupy.random.set_random_state(of_cupy)


def seed_all(seed: int) -> None:
    """Seed all random generators. seed (int): 32 bits."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    _reseed_cupy()


def _reseed_cupy() -> None:
    if torch.cuda.is_available():
        try:
            import cupy
        except ImportError:
            return
        cupy.random.seed(zlib.crc32(repr(random.getstate()).encode("utf8")))
