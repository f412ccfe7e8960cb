"""The state that an algorithm will have of a param, by the example of a small one; and the memory for it.

For the memory, the example has as many dimensions as the param, each of another prime size (a size of 1 stays). The
prime factors of the sizes of its state tell its dimensions: 7 x 11 is one number for each cell, 7 one for each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..host import step
from .algorithm import Algorithm, may_move, same_generators, small_matrix

# Larger than the factors 2 and 3, which algorithms may add.
_PRIMES = (7, 11, 13, 17, 19, 23)


class StateSizes:
    """The sizes of the state of params. An algorithm is tried once for each kind of shape."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], list[tuple[int, dict[int, int]]]] = {}

    def bytes_of(
        self,
        algorithm: Algorithm,
        options: Mapping[str, Any],
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
    ) -> int:
        """The size of the state of a param after its first updates, in bytes.

        algorithm (Algorithm): Optimizes it.
        options (Mapping[str, Any]): Its options at some step.
        """
        if algorithm.state_bytes is not None:
            return algorithm.state_bytes({**algorithm.options, **options}, shape)
        sizes = tuple(1 if size == 1 else prime for size, prime in zip(shape, _PRIMES))
        # Sizes don't depend on the values of options, except that 0 switches some off, e.g. momentum.
        switches = tuple(
            (name, value if isinstance(value, (bool, str, type(None))) else bool(value))
            for name, value in sorted(options.items())
        )
        key = id(algorithm), switches, sizes, dtype
        if key not in self._known:
            both = {**algorithm.options, **options}
            fixed = {name: value for name, value in both.items() if not may_move(value)}
            state = example_state(algorithm, fixed, sizes, dtype, updates=2)
            self._known[key] = [_read_off(value) for value in state.values() if isinstance(value, torch.Tensor)]
        real = dict(zip(sizes, shape))
        return sum(
            fixed * math.prod(real[prime] ** power for prime, power in powers.items())
            for fixed, powers in self._known[key]
        )


def example_state(
    algorithm: Algorithm,
    options: Mapping[str, Any],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    updates: int = 1,
) -> dict[str, Any]:
    """The state of a param of this shape after its first updates. Random generators keep their state.

    options (Mapping[str, Any]): Options at some step: numbers, no schedules.
    updates (int): The number of its updates.
    RAISES (Exception): Whatever the algorithm says of such a param.
    """
    device = small_matrix(options).device.type
    with same_generators(device):
        param = torch.ones(shape, device=device, dtype=dtype, requires_grad=True)
        optimizer = algorithm.build([param], lr=0.001, **options)
        for _ in range(updates):
            param.grad = torch.randn(shape, device=device, dtype=dtype)
            step(optimizer)
    return dict(optimizer.state.get(param, {}))


def _read_off(tensor: torch.Tensor) -> tuple[int, dict[int, int]]:
    """The bytes per cell, and how often each prime divides the number of cells."""
    rest = tensor.numel()
    powers: dict[int, int] = {}
    for prime in _PRIMES:
        while rest and rest % prime == 0:
            rest //= prime
            powers[prime] = powers.get(prime, 0) + 1
    return rest * tensor.element_size(), powers
