"""Gaussian noise, for differential privacy.

In safe mode the random numbers come from the operating system's cryptographic generator, and each is the sum of four
normal ones, halved: the gaps between floats of a single one would reveal the added noise (Mironov 2012,
https://doi.org/10.1145/2382196.2382264; Holohan and Braghin 2021, https://arxiv.org/abs/2107.10138). Opacus does the
same in its secure mode. It needs 32 random bytes a number. No number is infinite, as some of declearn's are.

Otherwise the numbers come from a seeded generator, whose state is saved: a resumed run gets the same noise. That is for
tests and regularization, not for privacy.
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
    """Gaussian noise, added to gradients for differential privacy: Abadi et al. 2016, https://arxiv.org/abs/1607.00133.

        out: g + N(0, std^2)

    std (float): Standard deviation of the noise.
    safe_mode (bool): Use cryptographic random numbers, which privacy needs: 32 random bytes a number.
    seed (int | None): Seed of the generator, without safe mode. None: a random seed.
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
        section = Section(self.where, allows_texts=False)
        section.flag("safe_mode", safe_mode)
        if seed is not None:
            section.whole("seed", seed)
            if safe_mode:
                section.refuse(
                    "seed", "none in safe mode, whose noise must be unpredictable", seed, "Set safe_mode = false."
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
    return torch.randn(shape, generator=generator)  # on the CPU, for the same numbers on every device


def secure_normal(shape: torch.Size) -> Tensor:
    """Normal random numbers, float64."""
    n = math.prod(shape)
    # Box-Muller: two uniform numbers make two normal ones.
    bits = numpy.frombuffer(os.urandom(8 * 4 * n), dtype=numpy.uint64) >> 11
    radius = numpy.sqrt(-2.0 * numpy.log((bits[: 2 * n] + 1.0) * 2.0**-53))  # of numbers in (0, 1]
    angle = bits[2 * n :] * (2.0 * math.pi * 2.0**-53)
    sums = (radius * numpy.cos(angle) + radius * numpy.sin(angle)).reshape(2, n).sum(0)
    return torch.from_numpy(sums / 2.0).view(shape)
