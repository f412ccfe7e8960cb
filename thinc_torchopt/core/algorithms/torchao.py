"""Adam and AdamW of the library torchao, with state of 8 or 4 bits a number: `torchao.AdamW8bit.v1` and so on.

torchao quantizes the state of params with 4,096 numbers or more, in blocks of `block_size` with one scale each. All
other state is as the param.

Adapted here: a rate is a float, as in torch's own classes, so that schedules can write it. The step is compiled by
torch.compile for GPUs only: for a CPU it takes half a minute for each shape of a param, and a C++ compiler. And
quantized state can be saved, and fitted to a param that has grown.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Optional

import torch

from ..checks import Section
from ..compat import import_torchao_optim
from ..errors import ConfigError, StateError
from ..registry import signed
from ..types import FloatOrSchedule
from .algorithm import IN_ALGORITHM, Algorithm, as_torch_option, may_move
from .torch_classes import pair_of_numbers

# torchao quantizes no smaller state.
_LEAST = 4096
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Quantized:
    """Adapts torchao's classes. Listed before them, as a base."""

    param_groups: list[dict[str, Any]]
    _compiles: bool | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        rate = param_group.get("lr", self.defaults["lr"])  # type: ignore[attr-defined]
        super().add_param_group(param_group)  # type: ignore[misc]
        self.param_groups[-1]["lr"] = rate

    def step(self, closure: Any = None) -> Any:
        rates = [group["lr"] for group in self.param_groups]
        devices = {param.device.type for group in self.param_groups for param in group["params"]}
        compiles = devices.isdisjoint({"cpu"}) if self._compiles is None else self._compiles
        try:
            for group, rate in zip(self.param_groups, rates):
                group["lr"] = torch.as_tensor(rate, dtype=torch.float32)
            with torch.compiler.set_stance("default" if compiles else "force_eager"):
                return super().step(closure)  # type: ignore[misc]
        finally:
            for group, rate in zip(self.param_groups, rates):
                group["lr"] = rate

    # ------------------------------------------------------------------ for saving and growing

    def to_plain(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a param with plain tensors only: a dict of its parts for each quantized one."""
        return {key: _parts_of(value) if _is_quantized(value) else value for key, value in state.items()}

    def from_plain(self, state: Mapping[str, Any], param: torch.Tensor) -> dict[str, Any]:
        """Undo `to_plain`, for a param of the same shape.

        RAISES (StateError): The parts are of another shape, class, or block size.
        """
        return {
            key: self._put_together(key, value, param) if isinstance(value, Mapping) else value
            for key, value in state.items()
        }

    def as_floats(self, state: Mapping[str, Any], param: torch.Tensor) -> dict[str, Any]:
        """A state of `to_plain` in floats, of the param's dtype. Rounds nothing.

        param (Tensor): Of the shape of the state.
        """
        return {
            key: value.dequantize(param.dtype) if _is_quantized(value) else value
            for key, value in self.from_plain(state, param).items()
        }

    def quantize(self, state: Mapping[str, Any], param: torch.Tensor) -> dict[str, Any]:
        """A state in floats, quantized where torchao would do so."""
        return {key: self._quantized(key, value, param) for key, value in state.items()}

    def _quantized(self, key: str, value: Any, param: torch.Tensor) -> Any:
        if key == "step":
            return value
        made = self._new_buffer(param, key == "exp_avg")  # type: ignore[attr-defined]
        return made.copy_(value) if _is_quantized(made) else value

    def _put_together(self, key: str, parts: Mapping[str, Any], param: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self._new_buffer(param, key == "exp_avg")  # type: ignore[attr-defined]
        own = _parts_of(made) if _is_quantized(made) else {}
        if {name: _form_of(part) for name, part in own.items()} != {
            name: _form_of(part) for name, part in parts.items()
        }:
            raise StateError(
                f"Can't load the state '{key}' of a param of shape {tuple(param.shape)}: expected the state of "
                f"{type(self).__name__} with the current block_size, found that of another one. Restore the algorithm "
                "and its block_size, or start with a new optimizer."
            )
        for name, part in own.items():
            part.copy_(parts[name])
        return made


def _is_quantized(value: Any) -> bool:
    return hasattr(value, "__tensor_flatten__")


def _parts_of(value: Any) -> dict[str, torch.Tensor]:
    """The parts of a quantized tensor, which share its memory."""
    names, _ = value.__tensor_flatten__()
    return {name: getattr(value, name) for name in names}


def _form_of(part: Any) -> Any:
    return (tuple(part.shape), part.dtype) if isinstance(part, torch.Tensor) else part


# ---------------------------------------------------------------------- the registered functions


@cache
def _adapted(name: str) -> Any:
    base = getattr(import_torchao_optim(), name)
    return type(name, (Quantized, base), {"__module__": base.__module__, "__doc__": base.__doc__})


def _build(name: str, params: Any, *, compile: bool | None = None, **options: Any) -> torch.optim.Optimizer:
    adapted = _adapted(name)
    made: torch.optim.Optimizer = adapted(params, **options)
    vars(made)["_compiles"] = compile
    return made


def _state_bytes(bits: int, options: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """The size of the state of a float32 param."""
    cells: int = math.prod(shape)
    block: int = options["block_size"]
    if cells < _LEAST or cells % block:
        return 2 * 4 * cells + 4
    table = 0 if bits == 0 else 4 * 2**bits  # of the values that codes stand for; fp8 has none
    return 2 * ((bits or 8) * cells // 8 + 4 * cells // block + table) + 4


def _offer(name: str, *, bits: int, weight_decay: float, block_size: int) -> Callable[..., Algorithm]:
    label = f"torchao.{name}.v1"
    params = [
        inspect.Parameter("betas", _KEYWORD, default=(0.9, 0.999), annotation=pair_of_numbers(2)),
        inspect.Parameter("eps", _KEYWORD, default=1e-8, annotation=FloatOrSchedule),
        inspect.Parameter("weight_decay", _KEYWORD, default=weight_decay, annotation=FloatOrSchedule),
        inspect.Parameter("block_size", _KEYWORD, default=block_size, annotation=int),
        inspect.Parameter("bf16_stochastic_round", _KEYWORD, default=False, annotation=bool),
        inspect.Parameter("compile", _KEYWORD, default=None, annotation=Optional[bool]),
    ]

    def factory(**given: Any) -> Algorithm:
        import_torchao_optim()
        taken = {p.name: as_torch_option(p.name, p.default, given.get(p.name, p.default), IN_ALGORITHM) for p in params}
        if moving := [option for option, value in taken.items() if may_move(value)]:
            raise ConfigError(
                f"Can't set {', '.join(moving)} in {IN_ALGORITHM} to a schedule: '{label}' is compiled again for each "
                "value. Set a number. Only learning rates can be scheduled."
            )
        if taken["block_size"] < 2 or taken["block_size"] % 2:
            Section(IN_ALGORITHM).refuse("block_size", "an even number above 0", taken["block_size"])
        return Algorithm(label, partial(_build, name), taken, state_bytes=partial(_state_bytes, bits))

    doc = f"""torchao.optim.{name} (library torchao): state of {bits or 8} bits a number{"" if bits else ", in fp8"}.

    betas, eps, weight_decay: As in torch's {"AdamW" if weight_decay else "Adam"}. Numbers.
    block_size (int): Numbers that share a scale. Params whose size it does not divide, or with less than 4,096 numbers,
        have state that is not quantized.
    bf16_stochastic_round (bool): Round params of bfloat16 up or down at random, so that small updates are not lost.
    compile (bool): Compile the step by torch.compile. null: on GPUs. On a CPU it takes about half a minute for each
        shape of a param, and needs a C++ compiler.

    SOURCE: Dettmers et al. 2022, https://arxiv.org/abs/2110.02861
    """
    return signed(factory, name, params, Algorithm, doc)


Adam8bit = _offer("Adam8bit", bits=8, weight_decay=0.0, block_size=256)
Adam4bit = _offer("Adam4bit", bits=4, weight_decay=0.0, block_size=128)
AdamFp8 = _offer("AdamFp8", bits=0, weight_decay=0.0, block_size=256)
AdamW8bit = _offer("AdamW8bit", bits=8, weight_decay=0.01, block_size=256)
AdamW4bit = _offer("AdamW4bit", bits=4, weight_decay=0.01, block_size=128)
AdamWFp8 = _offer("AdamWFp8", bits=0, weight_decay=0.01, block_size=256)
