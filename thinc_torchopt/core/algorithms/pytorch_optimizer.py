"""The algorithms of the library pytorch-optimizer: `pytorch-optimizer.create.v1`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Dict

import torch

from ..checks import Section
from ..compat import import_pytorch_optimizer
from ..errors import ConfigError
from ..near_misses import did_you_mean
from .algorithm import IN_ALGORITHM, Algorithm, as_plain
from .state_roles import Roles, register_roles
from .torch_classes import AdamW, is_matrix


@dataclass(frozen=True)
class Traits:
    """Facts about one of the library's optimizers.

    state_roles (Mapping[str, Role]): Roles of its state tensors, where the names mean something else than in torch.
    matrices_only (bool): It is for matrices: AdamW optimizes the rest. Most need a flag in the param group for that.
    contiguous_only (bool): It does not accept params that are transposed, or in another memory order.
    finds_rate (bool): As in `Algorithm`.
    refusal (str): Why it can't be used. Empty: it can, unless a trial fails.
    """

    state_roles: Roles = field(default_factory=dict)
    matrices_only: bool = False
    contiguous_only: bool = False
    finds_rate: bool = False
    refusal: str = ""


_LOW_RANK = "its low-rank projections are objects that can't be saved, and without them it is only Adam."
_TRAITS = {
    "a2grad": Traits({"x_k": "copy"}),
    "accsgd": Traits({"momentum_buffer": "copy"}),
    "adabound": Traits(
        refusal="it counts on a fixed order of param groups, and here the order can change at each update."
    ),
    "adago": Traits(matrices_only=True),
    "adamp": Traits(contiguous_only=True),
    "adamuon": Traits(matrices_only=True),
    "adasmooth": Traits({"prev_param": "copy"}),
    "adatam": Traits({"exp_avg": "sum"}),
    "apollo": Traits(refusal=_LOW_RANK),
    "dadaptadagrad": Traits({"x0": "copy"}, finds_rate=True),
    "dadaptadam": Traits(finds_rate=True),
    "dadaptadan": Traits(finds_rate=True),
    "dadaptlion": Traits(finds_rate=True),
    "dadaptsgd": Traits({"x0": "copy", "z": "copy"}, finds_rate=True),
    "emofact": Traits({"shadow": "copy"}),
    "emolynx": Traits({"shadow": "copy"}),
    "emonavi": Traits({"shadow": "copy"}),
    "fira": Traits(refusal=_LOW_RANK),
    "galore": Traits(refusal=_LOW_RANK),
    "lars": Traits({"momentum_buffer": "sum"}),
    "lorarite": Traits(refusal="it is for pairs of low-rank matrices, not for params of any shape."),
    "madgrad": Traits({"x0": "copy"}),
    "muon": Traits(matrices_only=True),
    "muonclip": Traits({"momentum_buffer": "sum"}, matrices_only=True),
    "nero": Traits(contiguous_only=True),
    "normuon": Traits(matrices_only=True),
    "novograd": Traits({"moments": "sum"}),
    "pid": Traits({"i_buffer": "sum"}),
    "prodigy": Traits({"p0": "copy"}, finds_rate=True),
    "ranger": Traits({"slow_buffer": "copy"}),
    "ranger21": Traits({"lookahead_params": "copy"}),
    "sara": Traits(
        refusal="it computes values from its state only once, and would keep the old ones after a state is loaded."
    ),
    "schedulefreeadamw": Traits({"z": "copy"}),
    "schedulefreeradam": Traits({"z": "copy"}),
    "schedulefreesgd": Traits({"z": "copy"}),
    "sgdp": Traits({"momentum": "sum"}, contiguous_only=True),
    "sgdw": Traits({"momentum_buffer": "sum"}),
    "spectralsphere": Traits(matrices_only=True),
    "srmm": Traits({"mov_avg_param": "copy"}),
    "swats": Traits({"momentum_buffer": "sum"}, contiguous_only=True),
    "tam": Traits({"momentum_buffer": "sum"}),
}
for _name, _traits in _TRAITS.items():
    register_roles("pytorch_optimizer", _name, _traits.state_roles)


def create(name: str, options: Dict[str, Any] = {}) -> Algorithm:
    """Any optimizer of the library pytorch-optimizer (extra `optimizers`), by its name there.

    Algorithms for matrices alone, such as Muon, leave the rest to torch.AdamW.v1.

    name (str): For example "lion". `pytorch_optimizer.get_supported_optimizers()` lists all.
    options (dict[str, Any]): Its keyword arguments, without `lr`, and options that it reads from its param groups, such
        as `cautious`. Numbers may be schedules.
    RAISES (ConfigError): Unknown name, an option that it refuses, or an optimizer that needs more than gradients.
    SOURCE: https://pytorch-optimizers.readthedocs.io
    """
    section = Section(IN_ALGORITHM)
    section.kind("name", name, str, 'a name, as in "lion"')
    section.section("options", options)
    label = f"pytorch-optimizer.create.v1 ({name})"
    library = import_pytorch_optimizer()
    if name.lower() not in library.get_supported_optimizers():
        near = did_you_mean(name, library.get_supported_optimizers())
        raise ConfigError(
            f"Can't build 'pytorch-optimizer.create.v1': the library has no optimizer of the name '{name}'."
            f"{near or ' pytorch_optimizer.get_supported_optimizers() lists them.'}"
        )
    traits = _TRAITS.get(name.lower(), Traits())
    if traits.refusal:
        raise ConfigError(f"Can't train with '{label}' in {IN_ALGORITHM}: {traits.refusal} Choose another algorithm.")
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
    build = partial(_build, cls, frozenset(known), {"use_muon": True} if traits.matrices_only else {})
    build.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]  # for its defaults
    fallback = AdamW() if traits.matrices_only else None
    accepts = partial(_accepts, traits)
    algorithm = Algorithm(
        label,
        build,
        options,
        accepts=accepts,
        fallback=fallback,
        counts_for_group=True,
        finds_rate=traits.finds_rate,
    )
    offered = set(known) | algorithm.trial.reads
    unknown = sorted(set(options) - offered)
    if unknown:
        raise ConfigError(
            f"Can't build '{label}': it has no option {', '.join(unknown)}. It has: {', '.join(sorted(offered))}."
            f"{did_you_mean(unknown[0], offered, is_setting=True)}"
        )
    return algorithm


def _accepts(traits: Traits, name: str, param: torch.Tensor) -> bool:
    return (is_matrix(name, param) or not traits.matrices_only) and (
        param.is_contiguous() or not traits.contiguous_only
    )


def _build(
    cls: Callable[..., torch.optim.Optimizer], known: frozenset[str], flags: Dict[str, Any], params: Any, **options: Any
) -> torch.optim.Optimizer:
    """Build one of them. Options that its constructor does not name, such as Lion's `cautious`, go into the param
    groups.
    """
    in_group = flags | {name: options.pop(name) for name in list(options) if name not in known and name != "lr"}
    return cls([{"params": params, **in_group}], **options)
