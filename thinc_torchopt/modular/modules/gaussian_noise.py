"""Gaussian noise, for differential privacy.

In safe mode the random numbers come from the operating system's generator for cryptography, and each is the sum of four
normal ones, halved: a single one has gaps between floats that tell what was added (Mironov 2012,
https://doi.org/10.1145/2382196.2382264; Holohan and Braghin 2021, https://arxiv.org/abs/2107.10138). Opacus does the
same in its secure mode. It costs 32 random bytes a number. None is infinite, as some of declearn's are.

Otherwise the numbers come from a seeded generator, whose state is saved: a run is resumed with the same noise. That is
for tests and for regularization, not for privacy.
"""

import math
import os
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, List, Optional

import numpy
import torch
from torch import Tensor

from ...checks import Section
from ...types import FloatOrSchedule
from ..blocks import Block
from ..module import Module, Ranges


class GaussianNoise(Module):
    """Gaussian noise, for differential privacy: Abadi et al. 2016, https://arxiv.org/abs/1607.00133.

        out: g + N(0, std^2)

    std (float): Standard deviation. safe_mode (bool): Secure random numbers, of 32 random bytes each. seed (int |
    None): Without safe mode, the seed of the generator; None: any.
    """

    name = "gaussian-noise"
    ranges: ClassVar[Ranges] = {"std": "at_least_0"}
    is_linear = True  # in the mean

    def __init__(
        self,
        std: FloatOrSchedule = 1.0,
        safe_mode: bool = True,
        seed: Optional[int] = None,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"std": std}, {"safe_mode": safe_mode, "seed": seed}, params=params, label=label)
        section = Section(self.where, takes_texts=False)
        section.flag("safe_mode", safe_mode)
        if seed is not None:
            section.whole("seed", seed)
            if safe_mode:
                section.refuse(
                    "seed", "none in safe mode, whose noise can't be foretold", seed, "Set safe_mode = false."
                )

    @property
    def draws_alone(self) -> bool:  # type: ignore[override]
        return self.settings["seed"] is None

    def first_shared(self) -> dict[str, Any]:
        if self.settings["safe_mode"]:
            return {}
        generator = torch.Generator()
        if self.settings["seed"] is None:
            generator.seed()
        else:
            generator.manual_seed(self.settings["seed"])
        return {"generator": generator.get_state()}

    def begin_step(self, shared: Mapping[str, Any]) -> Any:
        if self.settings["safe_mode"]:
            return None
        generator = torch.Generator()
        generator.set_state(shared["generator"])
        return generator

    def end_step(self, tool: Any, shared: MutableMapping[str, Any]) -> None:
        if tool is not None:
            shared["generator"] = tool.get_state()

    def run(self, block: Block) -> None:
        std, values = block.options["std"], block.own()
        if std:
            noise = secure_normal(values.shape) if block.tool is None else normal(values.shape, block.tool)
            values.add_(noise.to(values.device, values.dtype), alpha=std)


def normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)  # on the CPU: the same numbers for every device


def secure_normal(shape: torch.Size) -> Tensor:
    """Normal random numbers, of float64."""
    n = math.prod(shape)
    # Box and Muller: two uniform numbers make two normal ones.
    bits = numpy.frombuffer(os.urandom(8 * 4 * n), dtype=numpy.uint64) >> 11
    radius = numpy.sqrt(-2.0 * numpy.log((bits[: 2 * n] + 1.0) * 2.0**-53))  # of numbers above 0, and at most 1
    angle = bits[2 * n :] * (2.0 * math.pi * 2.0**-53)
    sums = (radius * numpy.cos(angle) + radius * numpy.sin(angle)).reshape(2, n).sum(0)
    return torch.from_numpy(sums / 2.0).view(shape)
