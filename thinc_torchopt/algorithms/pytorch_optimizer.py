"""The algorithms of the library pytorch-optimizer: `pytorch-optimizer.create.v1`."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any, Dict

import torch

from ..checks import Section
from ..compat import import_pytorch_optimizer
from ..errors import ConfigError
from .algorithm import IN_ALGORITHM, Algorithm, accepts_all, as_plain, takes_any_strides, try_out
from .torch_classes import AdamW, is_matrix


def create(name: str, options: Dict[str, Any] = {}) -> Algorithm:
    """Any optimizer of the library pytorch-optimizer (extra `optimizers`), by its name there.

    Its Muons and others that are for matrices alone leave the rest to torch.AdamW.v1.

    name (str): For example "lion". `pytorch_optimizer.get_supported_optimizers()` lists all.
    options (dict[str, Any]): Its keyword arguments, without `lr`, and what else it reads from its param groups:
        `cautious`, or GaLore's `rank`. Numbers may be schedules.
    RAISES (ConfigError): Unknown name, an option that it refuses, or an optimizer that needs more than gradients.
    SOURCE: https://pytorch-optimizers.readthedocs.io
    """
    section = Section(IN_ALGORITHM)
    section.kind("name", name, str, 'a name, as in "lion"')
    section.section("options", options)
    label = f"pytorch-optimizer.create.v1 ({name})"
    library = import_pytorch_optimizer()
    if name.lower() not in library.get_supported_optimizers():
        near = ", ".join(get_close_matches(name.lower(), library.get_supported_optimizers(), n=5, cutoff=0.3))
        raise ConfigError(
            f"Can't build 'pytorch-optimizer.create.v1': the library has no optimizer '{name}'. Similar names: "
            f"{near or 'none'}."
        )
    if name.lower() in _NOT_FOR_PIPELINES:
        raise ConfigError(
            f"Can't train with '{label}' in {IN_ALGORITHM}: {_NOT_FOR_PIPELINES[name.lower()]} Choose another "
            "algorithm."
        )
    cls = library.load_optimizer(name)
    known = {
        key: p
        for key, p in inspect.signature(cls.__init__).parameters.items()
        if key not in {"self", "params", "lr", "kwargs"}
    }
    defaults = {key: p.default for key, p in known.items() if p.default is not inspect.Parameter.empty}
    options = defaults | {
        key: tuple(value) if isinstance(value, list) else as_plain(value) for key, value in options.items()
    }
    matrices_only = name.lower() in _MATRICES_ONLY
    build = partial(_build, cls, frozenset(known), {"use_muon": True} if matrices_only else {})
    build.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]  # which tells what its defaults are
    trial = try_out(build, label, options)
    unknown = sorted(set(options) - set(known) - trial.read)
    if unknown:
        offered = ", ".join(sorted(set(known) | trial.looked_for))
        raise ConfigError(f"Can't build '{label}': it has no option {', '.join(unknown)}. It has: {offered}.")
    accepts: Callable[[str, torch.Tensor], bool] = is_matrix if matrices_only else accepts_all
    if not takes_any_strides(build, options, [(3, 2)] if matrices_only else [(3, 2), (2, 3, 4)]):
        accepts = partial(_is_contiguous, accepts)
    fallback = AdamW() if matrices_only else None
    return Algorithm(label, build, options, accepts=accepts, fallback=fallback, counts_for_group=True, trial=trial)


def _is_contiguous(accepts: Callable[[str, torch.Tensor], bool], name: str, param: torch.Tensor) -> bool:
    return param.is_contiguous() and accepts(name, param)


# What a trial does not show.
_NOT_FOR_PIPELINES = {"lorarite": "expected one for params of any shape, found one for pairs of low-rank matrices."}


# pytorch-optimizer's optimizers for matrices. Most want to be told so by a flag in the param group.
_MATRICES_ONLY = {"adago", "adamuon", "muon", "muonclip", "normuon", "spectralsphere"}


def _build(
    cls: Callable[..., torch.optim.Optimizer], known: frozenset[str], flags: Dict[str, Any], params: Any, **options: Any
) -> torch.optim.Optimizer:
    """Build one of them. What its constructor does not name, such as GaLore's `rank`, its steps read from the param
    group.
    """
    in_group = flags | {name: options.pop(name) for name in list(options) if name not in known and name != "lr"}
    return cls([{"params": params, **in_group}], **options)
