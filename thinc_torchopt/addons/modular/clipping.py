"""Modules that change gradients by themselves: clipping, centralization and noise."""

import math
import os
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, List, Optional

import numpy
import torch
from torch import Tensor

from ...core.checks import Section
from ...core.types import FloatOrSchedule
from .module import Block, Module, Ranges

_PART = 262_144


class L2Clipping(Module):
    """Clipping by the norm of each tensor: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063.

        out: g min(1, max_norm / |g|)        |g|: 2-norm of one tensor

    The same as thinc's `grad_clip`, and as `clip_by = "param"`.

    max_norm (float): Largest norm of a tensor. 0.0: all gradients become zero.
    """

    name = "l2-clipping"
    ranges: ClassVar[Ranges] = {"max_norm": "at_least_0"}
    clips = True

    def __init__(
        self,
        max_norm: FloatOrSchedule = 1.0,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"max_norm": max_norm}, params=params, label=label)

    def run(self, block: Block) -> None:
        block.scale(clip_factor(norm_of([block.read()]), block.options["max_norm"]))


class L2GlobalClipping(L2Clipping):
    """Clipping by one norm over all gradients: Pascanu et al. 2013, https://arxiv.org/abs/1211.5063.

        out: g min(1, max_norm / |G|)        |G|: 2-norm of all tensors together

    As torch.nn.utils.clip_grad_norm_, which adds 1e-6 to the norm. The norm is over all tensors of this step that the
    module works on, also if param groups have different `max_norm`.

    max_norm (float): Largest norm of all gradients together. 0.0: all gradients become zero.
    """

    name = "l2-global-clipping"

    def begin_step(self, shared: Any) -> Any:
        return []

    def measure(self, block: Block) -> None:
        block.tool.append(block.read())

    def after_measure(self, tool: list[Tensor]) -> float:
        return norm_of(tool)

    def run(self, block: Block) -> None:
        block.scale(clip_factor(block.tool, block.options["max_norm"]))


class AGC(Module):
    """Adaptive gradient clipping: Brock et al. 2021, https://arxiv.org/abs/2102.06171.

        out, for each unit: g min(1, clip max(|w|, eps) / |g|)

    A unit is one index of the first dimension: an output with its weights. A tensor of one dimension is one unit. The
    same as `clip_by = "adaptive"`.

    clip (float): Largest norm of a unit's gradient, as a part of the norm of its weights.
    eps (float): Least value for the norm of the weights, so that weights of 0 can change.
    """

    name = "agc"
    ranges: ClassVar[Ranges] = {"clip": "at_least_0", "eps": "at_least_0"}
    clips = True

    def __init__(
        self,
        clip: FloatOrSchedule = 0.01,
        eps: FloatOrSchedule = 1e-3,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"clip": clip, "eps": eps}, params=params, label=label)

    def run(self, block: Block) -> None:
        values = block.own()
        limits = unit_norms(block.weights).clamp_(min=block.options["eps"]).mul_(block.options["clip"])
        # A gradient of 0 with a limit above it gives an infinite factor, which becomes 1; with a limit of 0, NaN.
        values.mul_(limits.div_(unit_norms(values)).nan_to_num_(nan=math.inf).clamp_(max=1.0))


class Centralize(Module):
    """Gradient centralization: Yong et al. 2020, https://arxiv.org/abs/2004.01461.

        out: g - mean(g), over all dimensions but the first

    Params of one dimension, such as biases, are not changed. thinc's Maxout has biases of two dimensions: exclude them
    with `params = ["*/W", "*/weight"]`.
    """

    name = "centralize"
    is_linear = True

    def __init__(self, *, params: Optional[List[str]] = None, label: Optional[str] = None):
        super().__init__(params=params, label=label)

    def run(self, block: Block) -> None:
        if block.weights.ndim > 1:
            values = block.own()
            values.sub_(values.mean(tuple(range(1, values.ndim)), keepdim=True))


class GaussianNoise(Module):
    """Gaussian noise, added to gradients for differential privacy: Abadi et al. 2016, https://arxiv.org/abs/1607.00133.

        out: g + N(0, std^2)

    In safe mode the random numbers come from the operating system's cryptographic generator, and each is the sum of
    four normal ones, halved: the gaps between floats of a single one would reveal the added noise (Mironov 2012,
    https://doi.org/10.1145/2382196.2382264; Holohan and Braghin 2021, https://arxiv.org/abs/2107.10138). Opacus does
    the same in its secure mode. It needs 32 random bytes a number. No number is infinite, as some of declearn's are.

    Otherwise the numbers come from a seeded generator, whose state is saved: a resumed run gets the same noise. That is
    for tests and regularization, not for privacy.

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
                expected = "null in safe mode, whose noise must be unpredictable"
                section.refuse("seed", expected, seed, "Remove it, or set safe_mode = false.")

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
            if block.tool is None:
                noise = secure_normal(values.shape)
            else:  # on the CPU, for the same numbers on every device
                noise = torch.randn(values.shape, generator=block.tool)
            values.add_(noise.to(values.device, values.dtype), alpha=std)


def norm_of(tensors: List[Tensor]) -> float:
    """The 2-norm of tensors together. They are added up by parts: torch's own norm adds everything in float32, which is
    off by 0.1% for 20M elements.
    """
    squares: dict[torch.device, List[Tensor]] = {}
    for tensor in tensors:
        for part in tensor.reshape(-1).split(_PART):
            squares.setdefault(part.device, []).append(torch.dot(part, part).double())
    # One transfer for each device.
    return math.sqrt(math.fsum(value for found in squares.values() for value in torch.stack(found).tolist()))


def clip_factor(norm: float, max_norm: float) -> float:
    return max_norm / norm if norm > max_norm else 1.0


def unit_norms(tensor: Tensor) -> Tensor:
    """The 2-norm of each unit, in a shape that broadcasts to the tensor's."""
    return torch.linalg.vector_norm(tensor, dim=tuple(range(1, tensor.ndim)) or None, keepdim=True)


def secure_normal(shape: torch.Size) -> Tensor:
    """Normal random numbers, float64."""
    n = math.prod(shape)
    # Box-Muller: two uniform numbers make two normal ones.
    bits = numpy.frombuffer(os.urandom(8 * 4 * n), dtype=numpy.uint64) >> 11
    radius = numpy.sqrt(-2.0 * numpy.log((bits[: 2 * n] + 1.0) * 2.0**-53))  # of numbers in (0, 1]
    angle = bits[2 * n :] * (2.0 * math.pi * 2.0**-53)
    sums = (radius * numpy.cos(angle) + radius * numpy.sin(angle)).reshape(2, n).sum(0)
    return torch.from_numpy(sums / 2.0).view(shape)
