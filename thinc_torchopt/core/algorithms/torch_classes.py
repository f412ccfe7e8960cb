"""The algorithms of the registry `@torch_optimizers`: torch's own classes.

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
from collections.abc import Callable, Mapping
from typing import Any, Dict, List, Literal, Optional, Tuple, Union

import torch

from ..checks import Section
from ..errors import ConfigError
from ..near_misses import did_you_mean
from ..registry import arguments_of, signed
from ..types import FloatOrSchedule
from .algorithm import AN_ALGORITHM, IN_ALGORITHM, Algorithm, as_torch_option
from .facts import facts_of

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
        unknown = sorted(set(given) - {param.name for param in params})
        if unknown:
            raise ConfigError(
                f"Can't build '{label}': it has no option {', '.join(unknown)}. It has: "
                f"{', '.join(p.name for p in params)}."
                f"{did_you_mean(unknown[0], [p.name for p in params], is_setting=True)}"
            )
        taken = {p.name: as_torch_option(p.name, p.default, given.get(p.name, p.default), IN_ALGORITHM) for p in params}
        if not facts.matrices_only:
            return Algorithm(label, build, taken, kernel=facts.kernel)
        fallback = taken.pop("fallback")
        if fallback is not None:
            Section(IN_ALGORITHM).kind("fallback", fallback, Algorithm, AN_ALGORITHM)
        return Algorithm(label, build, taken, accepts=is_matrix, fallback=AdamW() if fallback is None else fallback)

    return signed(factory, name, params, Algorithm, f"torch.optim.{name}.\n\n    SOURCE: {facts.source}\n    ")


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
