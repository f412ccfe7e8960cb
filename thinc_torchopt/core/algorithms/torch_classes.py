"""The algorithms of the registry `@torch_optimizers`: torch's own classes, and those of the library pytorch-optimizer.

Each registered function has the arguments of its class in torch, with torch's names and the defaults of the installed
torch, and returns an `Algorithm`: the class is built later, when the params are known. Left out are `params` and `lr`,
which TorchOptimizer sets, and `differentiable`, for training loops that are themselves differentiated.

Any number may be a schedule. Pairs such as `betas` are lists in a config; if one of the two is a schedule, a section
with `beta1` and `beta2`: [training.optimizer.algorithm.betas.beta1] @schedules = ...

`fused`, `foreach`: null uses the fused kernel where torch has one for the params' device, and otherwise torch's choice,
which is never `foreach` on a CPU. `benchmarks/README.md` has the figures. Params that a fused kernel does not accept
(core/kernels.py) are updated without it, even if `fused` is true.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Dict, List, Literal, Optional, Tuple, Union

import torch

from ..checks import Section
from ..compat import import_pytorch_optimizer
from ..errors import ConfigError
from ..near_misses import did_you_mean
from ..registry import arguments_of, signed
from ..types import FloatOrSchedule
from .algorithm import AN_ALGORITHM, IN_ALGORITHM, Algorithm, as_plain, as_torch_option
from .facts import Facts, facts_of

AlgorithmFactory = Callable[..., Algorithm]

_NOT_OFFERED = {"params", "lr", "differentiable"}
_CHOICES = {"adjust_lr_fn": Optional[Literal["original", "match_rms_adamw"]]}


def _offer(name: str) -> AlgorithmFactory:
    """Make the registered function of one of torch's classes. name (str): Its name in torch.optim."""
    facts = facts_of("torch", name)
    label = f"torch.{name}.v1"
    cls: Any = getattr(torch.optim, name, None)
    refusal = facts.refusal
    if cls is None:
        refusal = f"torch {torch.__version__} has no torch.optim.{name}. Upgrade torch, or choose another algorithm."
    params = [_any(option) for option in facts.options] if cls is None else _config_params(cls)
    if facts.matrices_only:
        params.append(_any("fallback").replace(annotation=Optional[Algorithm]))
    build = _from(facts.least, cls) if facts.least and cls is not None else cls

    def factory(**given: Any) -> Algorithm:
        if refusal:
            raise ConfigError(f"Can't train with '{label}' in [training.optimizer.algorithm]: {refusal}")
        _check_known(label, given, [param.name for param in params])
        taken = {p.name: as_torch_option(p.name, p.default, given.get(p.name, p.default), IN_ALGORITHM) for p in params}
        if not facts.matrices_only:
            return Algorithm(label, build, taken, kernel=facts.kernel)
        fallback = taken.pop("fallback")
        if fallback is not None:
            Section(IN_ALGORITHM).kind("fallback", fallback, Algorithm, AN_ALGORITHM)
        return Algorithm(label, build, taken, accepts=is_matrix, fallback=AdamW() if fallback is None else fallback)

    return signed(factory, name, params, Algorithm, f"torch.optim.{name}.\n\n    SOURCE: {facts.source}\n    ")


def _check_known(label: str, given: Collection[str], known: Sequence[str]) -> None:
    """RAISES (ConfigError): An algorithm has no such option."""
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(
            f"Can't build '{label}': it has no option {', '.join(unknown)}. It has: {', '.join(known)}."
            f"{did_you_mean(unknown[0], known, is_setting=True)}"
        )


def _from(
    least: Mapping[str, float], cls: Callable[..., torch.optim.Optimizer]
) -> Callable[..., torch.optim.Optimizer]:
    """A function that builds a class, and refuses options below these limits."""

    def build(params: Any, **options: Any) -> torch.optim.Optimizer:
        for name, lowest in least.items():
            if name in options and options[name] < lowest:
                raise ValueError(f"expected {name} to be at least {lowest:g}, found {options[name]}")
        return cls(params, **options)

    build.__signature__ = inspect.signature(cls)  # type: ignore[attr-defined]  # for its defaults
    return build


def _config_params(cls: type) -> list[inspect.Parameter]:
    """The arguments of a torch class as those of a config block."""
    return [
        param.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=_config_type(param))
        for param in arguments_of(cls)
        if param.name not in _NOT_OFFERED
    ]


def _any(name: str) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)


def _config_type(param: inspect.Parameter) -> Any:
    """The type for confection's check of an argument."""
    default = param.default
    if param.name in _CHOICES:
        return _CHOICES[param.name]
    if isinstance(default, tuple):
        return pair_of_numbers(len(default), or_none=None in default)
    if isinstance(default, bool) or param.annotation is int:
        return type(default)
    return FloatOrSchedule if isinstance(default, (int, float)) else Optional[bool]


def pair_of_numbers(length: int, *, or_none: bool = False) -> Any:
    """The type of an option with several numbers: a list, or a section."""
    item: Any = Union[FloatOrSchedule, None] if or_none else FloatOrSchedule
    return Union[Tuple[(item,) * length], List[item], Dict[str, item]]


Adadelta = _offer("Adadelta")
Adafactor = _offer("Adafactor")
Adagrad = _offer("Adagrad")
Adam = _offer("Adam")
Adamax = _offer("Adamax")
AdamW = _offer("AdamW")
ASGD = _offer("ASGD")
NAdam = _offer("NAdam")
RAdam = _offer("RAdam")
RMSprop = _offer("RMSprop")
Rprop = _offer("Rprop")
SGD = _offer("SGD")
LBFGS = _offer("LBFGS")
SparseAdam = _offer("SparseAdam")
# Muon and its fallback share the learning rate: `adjust_lr_fn = "match_rms_adamw"` scales Muon's so that a rate for
# AdamW fits. Muon's author advises another algorithm for embeddings and output layers, which are matrices too: a block
# of [training.optimizer.param_groups] with its own `algorithm`.
Muon = _offer("Muon")


def is_matrix(name: str, param: torch.Tensor) -> bool:
    # The biases of thinc's maxout layers have two dimensions.
    return param.ndim == 2 and not name.endswith(("/b", "/bias"))


# ---------------------------------------------------------------------- the library pytorch-optimizer


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
    _check_known(label, options, sorted(set(known) | algorithm.trial.reads))
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
