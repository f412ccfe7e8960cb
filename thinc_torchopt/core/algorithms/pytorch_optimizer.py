"""The algorithms of the library pytorch-optimizer: `pytorch-optimizer.create.v1`."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Dict

import torch

from ..checks import Section
from ..compat import import_pytorch_optimizer
from ..errors import ConfigError
from ..near_misses import did_you_mean
from .algorithm import IN_ALGORITHM, Algorithm, as_plain
from .facts import Facts, facts_of
from .torch_classes import AdamW, is_matrix


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
    facts = facts_of("pytorch_optimizer", name)
    if facts.refusal:
        raise ConfigError(f"Can't train with '{label}' in {IN_ALGORITHM}: {facts.refusal} Choose another algorithm.")
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
    build = partial(_build, cls, frozenset(known), {"use_muon": True} if facts.matrices_only else {})
    build.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]  # for its defaults
    fallback = AdamW() if facts.matrices_only else None
    accepts = partial(_accepts, facts)
    algorithm = Algorithm(
        label,
        build,
        options,
        accepts=accepts,
        fallback=fallback,
        counts_for_group=True,
        finds_rate=facts.finds_rate,
    )
    offered = set(known) | algorithm.trial.reads
    unknown = sorted(set(options) - offered)
    if unknown:
        raise ConfigError(
            f"Can't build '{label}': it has no option {', '.join(unknown)}. It has: {', '.join(sorted(offered))}."
            f"{did_you_mean(unknown[0], offered, is_setting=True)}"
        )
    return algorithm


def _accepts(facts: Facts, name: str, param: torch.Tensor) -> bool:
    return (is_matrix(name, param) or not facts.matrices_only) and (param.is_contiguous() or not facts.contiguous_only)


def _build(
    cls: Callable[..., torch.optim.Optimizer], known: frozenset[str], flags: Dict[str, Any], params: Any, **options: Any
) -> torch.optim.Optimizer:
    """Build one of them. Options that its constructor does not name, such as Lion's `cautious`, go into the param
    groups.
    """
    in_group = flags | {name: options.pop(name) for name in list(options) if name not in known and name != "lr"}
    return cls([{"params": params, **in_group}], **options)
