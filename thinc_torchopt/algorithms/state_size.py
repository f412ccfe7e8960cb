"""Estimate the memory for the state of a param, by a stand-in.

The stand-in has as many dimensions as the param, each of another prime size (a size of 1 stays). After one step, the
prime factors of the sizes of its state tell its dimensions: 7 x 11 is one number for each cell, 7 one for each row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

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
            self._known[key] = [_read_off(tensor) for tensor in _state_of(algorithm, options, sizes, dtype)]
        real = dict(zip(sizes, shape))
        return sum(
            fixed * math.prod(real[prime] ** power for prime, power in powers.items())
            for fixed, powers in self._known[key]
        )


def _state_of(
    algorithm: Algorithm, options: Mapping[str, Any], sizes: tuple[int, ...], dtype: torch.dtype
) -> list[torch.Tensor]:
    device = small_matrix(algorithm.options).device.type
    fixed = {name: value for name, value in {**algorithm.options, **options}.items() if not may_move(value)}
    with same_generators(device):
        param = torch.ones(sizes, device=device, dtype=dtype, requires_grad=True)
        optimizer = algorithm.build([param], lr=0.001, **fixed)
        for _ in range(2):
            param.grad = torch.randn(sizes, device=device, dtype=dtype)
            optimizer.step()
    return [value for value in optimizer.state.get(param, {}).values() if isinstance(value, torch.Tensor)]


def _read_off(tensor: torch.Tensor) -> tuple[int, dict[int, int]]:
    """The bytes per cell, and how often each prime divides the number of cells."""
    rest = tensor.numel()
    powers: dict[int, int] = {}
    for prime in _PRIMES:
        while rest and rest % prime == 0:
            rest //= prime
            powers[prime] = powers.get(prime, 0) + 1
    return rest * tensor.element_size(), powers
