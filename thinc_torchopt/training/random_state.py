"""The random generators of a run: Python's, NumPy's, torch's, and torch's on each GPU.\n"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from ..checks import check_parts, own_errors

# Of Python's and NumPy's global generators, as they give them.
Generators = tuple[Any, Any]


def read_generators() -> Generators:
    return random.getstate(), numpy.random.get_state()


def set_generators(generators: Generators) -> None:
    random.setstate(generators[0])
    numpy.random.set_state(generators[1])


def save_generators(generators: Generators) -> dict[str, Any]:
    (version, numbers, gauss), (kind, keys, position, has_gauss, cached) = generators
    return {
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)],
    }


def load_generators(saved: Mapping[str, Any]) -> Generators:
    version, numbers, gauss = saved["python"]
    kind, keys, *rest = saved["numpy"]
    return (version, tuple(numbers.tolist()), gauss), (kind, keys.numpy().astype("uint32"), *rest)


def check_random(saved: Any) -> None:
    """Check that random generators can be set to saved states, without doing it.

    RAISES (StateError): They can't.
    """
    check_parts("the random generators", saved, ("global", "torch", "cuda"))
    with own_errors("the random generators"):
        check_generators(saved["global"])
        torch.Generator().set_state(saved["torch"])
        for state in saved["cuda"]:
            state.clone()


def check_generators(saved: Any) -> None:
    """As `check_random`, of Python's and NumPy's alone."""
    with own_errors("the random generators"):
        python, of_numpy = load_generators(saved)
        random.Random().setstate(python)
        numpy.random.RandomState().set_state(of_numpy)


def collect_random() -> dict[str, Any]:
    """The states of all random generators: Python's, NumPy's, torch's, and torch's on each GPU.

    CuPy's can't be read: it is seeded anew, here and in the run that goes on, from Python's.
    """
    _reseed_cupy()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"global": save_generators(read_generators()), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(saved: Mapping[str, Any]) -> None:
    """Set all random generators to saved states."""
    set_generators(load_generators(saved["global"]))
    _reseed_cupy()
    torch.set_rng_state(saved["torch"].clone())
    if saved["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([generator.clone() for generator in saved["cuda"]])


@contextmanager
def preserved_random() -> Iterator[None]:
    """Inside, random numbers may be drawn; afterwards all generators are where they were, CuPy's too."""
    generators, of_torch = read_generators(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    cupy = sys.modules.get("cupy") if on_gpu else None
    of_cupy = None if cupy is None else cupy.random.get_random_state()
    if cupy is not None:
        cupy.random.set_random_state(cupy.random.RandomState(0))
    try:
        yield
    finally:
        set_generators(generators)
        torch.set_rng_state(of_torch)
        if on_gpu:
            torch.cuda.set_rng_state_all(on_gpu)
        if cupy is not None:
            cupy.random.set_random_state(of_cupy)


def seed_all(seed: int) -> None:
    """Let all random generators begin anew. seed (int): Of 32 bits."""
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
