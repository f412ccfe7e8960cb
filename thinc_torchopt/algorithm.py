"""What a `@torch_optimizers` block in the config becomes: a torch optimizer that is still to be built."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .errors import ConfigError
from .kernels import NO_KERNEL, FusedKernel

IN_ALGORITHM = "[training.optimizer.algorithm]"


def accepts_all(name: str, param: torch.Tensor) -> bool:
    return True


@dataclass(frozen=True)
class Algorithm:
    """A torch optimizer that is still to be built.

    label (str): What the config calls it, for error messages, e.g. "torch.AdamW.v1".
    build (Callable): `build(params, lr=..., **options)` returns a `torch.optim.Optimizer`.
    options (Mapping[str, Any]): Hyper-parameters by torch's names; a value may be a schedule.
    accepts (Callable): Whether the algorithm can optimize a param, by its name and tensor. The rest goes to `fallback`.
    fallback (Algorithm): Optimizes what `accepts` refuses and what `fallback_params` matches.
    fallback_params (tuple[str, ...]): Patterns over the names of params.
    kernel (FusedKernel): Its fused kernel in torch.
    counts_for_group (bool): It counts steps for all params together, as if each were updated every time: so in pytorch-optimizer.
    """

    label: str
    build: Callable[..., torch.optim.Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)
    accepts: Callable[[str, torch.Tensor], bool] = accepts_all
    fallback: Algorithm | None = None
    fallback_params: tuple[str, ...] = ()
    kernel: FusedKernel = NO_KERNEL
    counts_for_group: bool = False

    def check_options(self, given: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Check options for some of the params, as a config gives them.

        given (Mapping[str, Any]): Some of its options.
        where (str): Config path, for the error.
        RETURNS (dict[str, Any]): The same as torch takes them.
        RAISES (ConfigError): It refuses one, or has one value for all params.
        """
        checked = {name: as_torch_takes_it(name, self.options[name], value, where) for name, value in given.items()}
        in_group = try_out(self.build, self.label, {**self.options, **checked}, where)
        shared = sorted(set(checked) - in_group)
        if shared:
            raise ConfigError(
                f"Can't set {', '.join(shared)} in {where}: '{self.label}' has one value of it for all params. Set it in {IN_ALGORITHM}."
            )
        return checked


def as_torch_takes_it(name: str, default: Any, value: Any, where: str) -> Any:
    """A pair as a tuple; everything else untouched.

    name (str): The option's name. default (Any): A value that torch takes. where (str): Config path, for the error.
    RAISES (ConfigError): A text for a number, or a pair that is none.
    """
    if isinstance(value, str) and isinstance(default, (int, float)):
        raise ConfigError(f"Can't set '{name}' in {where}: expected a number, found {value!r}.")
    if not isinstance(default, tuple):
        return value
    # A section for `betas` has `beta1` and `beta2`, in any order: confection puts plain values before sections.
    entries = [option_entry(name, place) for place in range(len(default))]
    if not isinstance(value, (tuple, list, dict)) or len(value) != len(entries) or (isinstance(value, dict) and set(value) != set(entries)):
        raise ConfigError(
            f"Can't set '{name}' in {where}: expected {len(entries)} values, as in {list(default)}, "
            f"or a section with {' and '.join(entries)}, found {value}."
        )
    return tuple(value[key] for key in entries) if isinstance(value, dict) else tuple(value)


def option_entry(name: str, place: int | None) -> str:
    """What a config calls an option, or the number at a place of an option that has several: "beta2"."""
    if place is None:
        return name
    return f"{name if name == 'eps' else name.removesuffix('s')}{place + 1}"


def small_matrix(options: Mapping[str, Any]) -> torch.Tensor:
    """A param on which options can be tried out."""
    # capturable: torch checks for a device that has graphs.
    device = "cuda" if options.get("capturable") and torch.cuda.is_available() else "cpu"
    return torch.ones(2, 2, device=device, requires_grad=True)


def try_out(build: Callable[..., Any], label: str, options: Mapping[str, Any], where: str = IN_ALGORITHM) -> set[str]:
    """Build a torch optimizer for a small matrix and let it step, so that what it refuses is known before training.

    Values of schedules can't be checked here.
    RETURNS (set[str]): The options that each param group has for itself.
    RAISES (ConfigError): It refuses an option, moves one that it reads once only, or can't be driven by gradients alone.
    """
    fixed = {name: value for name, value in options.items() if not may_move(value)}
    _check_finite(build, label, fixed, where)
    param = small_matrix(fixed)
    param.grad = torch.ones_like(param)
    try:
        optimizer = build([param], lr=0.001, **fixed)
        in_group = set(optimizer.param_groups[0])
        optimizer.step()
    except Exception as error:
        reason = str(error).rstrip(".")
        raise ConfigError(f"Can't build '{label}' in {where}: {reason}. Options found: {fixed}.") from error
    stuck = sorted(set(options) - set(fixed) - in_group)
    if stuck:
        raise ConfigError(
            f"Can't set {', '.join(stuck)} in {where} to a schedule: '{label}' reads it when it is built, and never again. Give a number."
        )
    return in_group


def _check_finite(build: Callable[..., Any], label: str, options: Mapping[str, Any], where: str) -> None:
    """RAISES (ConfigError): A number is NaN, or infinite where that is not the option's default."""
    known = inspect.signature(build).parameters
    for name, value in options.items():
        for number in value if isinstance(value, tuple) else (value,):
            is_default = name in known and known[name].default == value
            if isinstance(number, float) and not math.isfinite(number) and not is_default:
                raise ConfigError(f"Can't set '{name}' of '{label}' in {where}: expected a finite number, found {number}.")


def may_move(value: Any) -> bool:
    """Whether a value as the config gives it is a schedule, or a tuple that holds one."""
    if isinstance(value, tuple):
        return any(map(may_move, value))
    return isinstance(value, list) or hasattr(value, "__next__")
