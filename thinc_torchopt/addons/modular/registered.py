"""The registered functions: `@torch_optimizers = "thinc-torchopt.Modular.v1"`, `@gradient_modules` and `@regularizers`.

Modules and regularizers have the arguments of their class. Numbers can be schedules. In a block of
[training.optimizer.param_groups] they are called `<block>_<option>`, by the name of the module's block: "adam_beta_1"
for beta_1 in [training.optimizer.algorithm.modules.adam]. `<block>_enabled = false` there turns a module off.
"""

from collections.abc import Callable
from inspect import Parameter
from typing import Any, Dict, List, Literal, Optional, TypeVar, get_args

from torch import Tensor

from ...core.algorithms import IN_ALGORITHM, Algorithm
from ...core.checks import Section
from ...core.registry import arguments_of, signed
from ...core.types import FloatOrSchedule
from . import clipping, moments, regularizers, scaffold, torch_optim
from .module import ENABLED, ModularPart, Module, Regularizer, where_it_stands
from .optimizer import Decay, Modular, Normalize
from .specs import REGISTRIES, build_parts, options_in_group, with_labels

P = TypeVar("P", bound=ModularPart)
LABEL = "thinc-torchopt.Modular.v1"


def create(
    *,
    weight_decay: FloatOrSchedule = 0.0,
    decay: Literal["adamw", "declearn"] = "adamw",
    normalize: Optional[Literal["words", "examples"]] = None,
    regularizers: Dict[str, Any] = {},
    modules: Dict[str, Any] = {},
) -> Algorithm:
    """An optimizer made of regularizers and modules, in the order of their blocks in the config.

    weight_decay (float): Decoupled weight decay.
    decay ("adamw" | "declearn"): Whether the learning rate scales the decay ("adamw") or not ("declearn").
    normalize ("words" | "examples" | None): Divide gradients, which are sums in spaCy, by the number of words or
        examples in the batch. None: don't.
    regularizers (dict[str, Regularizer]): Blocks with `@regularizers`, in order.
    modules (dict[str, Module]): Blocks with `@gradient_modules`, in order. In each block of both kinds, `params` may
        list patterns over names of params: the part then works on these only.
    """
    section = Section(IN_ALGORITHM)
    for name, value, choices in (
        ("decay", decay, get_args(Decay)),
        ("normalize", normalize, (*get_args(Normalize), None)),
    ):
        section.choice(name, value, choices)
    parts = with_labels(
        [
            part
            for base, blocks in ((Regularizer, regularizers), (Module, modules))
            for part in build_parts(section.section(f"{base.kind}s", blocks), base, IN_ALGORITHM)
        ]
    )
    everywhere = [part.everywhere() for part in parts]
    options: Dict[str, Any] = {"weight_decay": weight_decay}
    for part in parts:
        options |= options_in_group(part)
    for part in everywhere:
        part.moving = {}

    def build(params: Any, lr: float, **given: Any) -> Modular:
        tensors = [param for param in params if isinstance(param, Tensor)]
        group = {"params": tensors, "lr": lr, **given}
        kinds: Dict[type, List[ModularPart]] = {
            base: [part for part in everywhere if isinstance(part, base)] for base in (Regularizer, Module)
        }
        optimizer = Modular(
            [group], lr, decay=decay, regularizers=kinds[Regularizer], modules=kinds[Module], normalize=normalize
        )
        optimizer.normalize_before_clipping()
        return optimizer

    limits = {f"{part.label}_{ENABLED}": part.params for part in parts if part.params is not None}
    return Algorithm(LABEL, build, options, limits=limits)


def offered(cls: type[P]) -> Callable[..., P]:
    """The registered function of a class: with its arguments except the label, which is the name of its block."""
    label = f"thinc-torchopt.{cls.__name__}.v1"
    registry_name = REGISTRIES[Module if issubclass(cls, Module) else Regularizer]
    where = f'[training.optimizer.algorithm.{cls.kind}s], @{registry_name} = "{label}"'

    def make(**settings: Any) -> P:
        token = where_it_stands.set(where)
        try:
            return cls(**settings)
        finally:
            where_it_stands.reset(token)

    arguments = [
        argument.replace(kind=Parameter.KEYWORD_ONLY)
        for argument in arguments_of(cls)
        if argument.name != "label" and argument.kind is not Parameter.VAR_KEYWORD
    ]
    return signed(make, cls.__name__, arguments, cls, cls.__doc__)


AdaGrad = offered(moments.AdaGrad)
Adam = offered(moments.Adam)
AGC = offered(clipping.AGC)
Centralize = offered(clipping.Centralize)
EWMA = offered(moments.EWMA)
GaussianNoise = offered(clipping.GaussianNoise)
L2Clipping = offered(clipping.L2Clipping)
L2GlobalClipping = offered(clipping.L2GlobalClipping)
Lion = offered(moments.Lion)
Lookahead = offered(moments.Lookahead)
Momentum = offered(moments.Momentum)
RMSProp = offered(moments.RMSProp)
ScaffoldClient = offered(scaffold.ScaffoldClient)
ScaffoldServer = offered(scaffold.ScaffoldServer)
TorchOptim = offered(torch_optim.TorchOptim)
Yogi = offered(moments.Yogi)
YogiMomentum = offered(moments.YogiMomentum)
FedProx = offered(regularizers.FedProx)
L2SP = offered(regularizers.L2SP)
Lasso = offered(regularizers.Lasso)
Ridge = offered(regularizers.Ridge)
