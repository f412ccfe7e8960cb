"""The table of facts: a row for each class of torch optimizers of which this package knows something.

A *role* of a state tensor decides how it is filled when its param grows, and what is checked before a param is trained
with it:

moment: a value for each cell of the param, usually an average of gradients. New cells get the mean of old ones.
magnitude: the same, and never negative: an average of squares, for example.
sum: a sum of gradients. New cells get a tenth of the mean: the full mean would move them far.
copy: values of the param itself. New cells are those of the param.
count: one non-negative value for all cells, independent of the param's shape.
rows, columns: a magnitude, summed up along the last dimension of the param, or the one before it. That dimension has
    size 1 (torch), or is missing (others).

torch's names decide the roles. A class that uses a name in another sense, or has names of its own, says so in its row,
or itself: `state_roles = {"z": "copy"}`. Other state counts as a moment if it has the param's shape.

*Usual rates* are those in papers, in torch, and in known models. An algorithm whose step follows the size of the
gradients (SGD) has no scale of its own; those that divide by it (Adam) move each number by about the rate. Rates far
above the range hardly ever train anything.

SOURCE: timm's OptimInfo (timm/optim/_optim_factory.py), for the form of the table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..errors import ConfigError, StateError
from ..kernels import ADAGRAD, ADAM, NO_KERNEL, SGD, FusedKernel

Role = Literal["moment", "magnitude", "sum", "copy", "count", "rows", "columns"]
Roles = Mapping[str, Role]

# Roles by torch's names.
ROLES: dict[str, Role] = {
    **dict.fromkeys(["exp_avg", "momentum_buffer", "grad_avg", "prev", "ax"], "moment"),
    **dict.fromkeys(["exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta"], "magnitude"),
    **dict.fromkeys(["variance", "step_size"], "magnitude"),
    **dict.fromkeys(["step", "mu_product", "mu", "eta"], "count"),
    **dict.fromkeys(["row_var", "exp_avg_sq_row"], "rows"),
    **dict.fromkeys(["col_var", "exp_avg_sq_col"], "columns"),
}
PER_CELL = frozenset(["moment", "magnitude", "sum", "copy"])
NEVER_NEGATIVE = frozenset(["magnitude", "count", "rows", "columns"])

# A rate is far above the range if it exceeds the upper end this many times; far below, likewise.
FAR = 10.0


class UsualRates(NamedTuple):
    """lowest, highest (float): The usual range of the highest rate of a training.
    source (str): Where the range is from.
    is_factor (bool): The algorithm finds its rate itself, and multiplies it by this one.
    """

    lowest: float
    highest: float
    source: str
    is_factor: bool = False


_ADAM = UsualRates(1e-5, 5e-3, "Kingma and Ba 2014 and thinc use 0.001, BERT 0.00002 to 0.00005")
_PRETRAINED = UsualRates(1e-6, 1e-4, "Devlin et al. 2018 use 0.00002 to 0.00005 for BERT")
_SIGN = UsualRates(1e-6, 1e-3, "Chen et al. 2023: a third to a tenth of Adam's, as each number moves by the whole rate")
_NONE_NEEDED = UsualRates(0.1, 1.0, "its authors: 1, as it finds the rate itself, and multiplies it by this one", True)


@dataclass(frozen=True)
class Facts:
    """Facts about a class.

    state_roles (Mapping[str, Role]): Roles of its state tensors, where the names mean something else than usual.
    source (str): The paper of the algorithm.
    kernel (FusedKernel): torch's fused kernel of it.
    refusal (str): Why it can't be used, and what to use. Empty: it can, unless a trial fails.
    matrices_only (bool): It is for matrices: its fallback, AdamW by default, optimizes the rest.
    contiguous_only (bool): It does not accept params that are transposed, or in another memory order.
    finds_rate (bool): As in `Algorithm`.
    usual_rates (UsualRates | None): None: unknown.
    least (Mapping[str, float]): Lower limits of options that the class does not check.
    options (tuple[str, ...]): Its options, if the installed torch may lack the class: so the error names the class and
        not an option.
    """

    state_roles: Roles = field(default_factory=dict)
    source: str = ""
    kernel: FusedKernel = NO_KERNEL
    refusal: str = ""
    matrices_only: bool = False
    contiguous_only: bool = False
    finds_rate: bool = False
    usual_rates: UsualRates | None = None
    least: Mapping[str, float] = field(default_factory=dict)
    options: tuple[str, ...] = ()


_TORCH = {
    "adadelta": Facts(
        usual_rates=UsualRates(0.1, 1.0, "Zeiler 2012 and torch use 1: its steps have the scale of the weights"),
        source="Zeiler 2012, https://arxiv.org/abs/1212.5701",
    ),
    "adafactor": Facts(
        usual_rates=UsualRates(1e-4, 1e-2, "Shazeer and Stern 2018 and torch use 0.01"),
        source="Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235",
    ),
    "adagrad": Facts(
        usual_rates=UsualRates(1e-3, 0.1, "torch uses 0.01"),
        source="Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html",
        kernel=ADAGRAD,
    ),
    "adam": Facts(usual_rates=_ADAM, source="Kingma and Ba 2014, https://arxiv.org/abs/1412.6980", kernel=ADAM),
    "adamax": Facts(usual_rates=_ADAM, source="Kingma and Ba 2014, https://arxiv.org/abs/1412.6980"),
    "adamw": Facts(
        usual_rates=_ADAM, source="Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101", kernel=ADAM
    ),
    "asgd": Facts(
        usual_rates=UsualRates(1e-3, 0.1, "torch uses 0.01"),
        source="Polyak and Juditsky 1992, https://doi.org/10.1137/0330046",
        least={"lambd": 0.0, "alpha": 0.0, "t0": 0.0},
    ),
    "nadam": Facts(usual_rates=_ADAM, source="Dozat 2016, https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ"),
    "radam": Facts(usual_rates=_ADAM, source="Liu et al. 2019, https://arxiv.org/abs/1908.03265"),
    "rmsprop": Facts(
        usual_rates=UsualRates(1e-4, 1e-2, "Hinton 2012 uses 0.001, torch 0.01"),
        source="Hinton 2012, https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
        state_roles={"momentum_buffer": "sum"},
    ),
    "rprop": Facts(
        usual_rates=UsualRates(1e-4, 0.1, "Riedmiller and Braun 1993 use 0.1 for the first step, torch 0.01"),
        source="Riedmiller and Braun 1993, https://doi.org/10.1109/ICNN.1993.298623",
    ),
    "sgd": Facts(
        usual_rates=UsualRates(1e-3, 1.0, "He et al. 2015 use 0.1 with a momentum of 0.9, torch 0.001"),
        source="Sutskever et al. 2013 for its momentum, https://proceedings.mlr.press/v28/sutskever13.html",
        kernel=SGD,
        state_roles={"momentum_buffer": "sum"},
    ),
    "lbfgs": Facts(
        source="Liu and Nocedal 1989, https://doi.org/10.1007/BF01589116",
        refusal="it evaluates the loss several times a step through a closure, and a spaCy pipeline computes gradients "
        "before the optimizer is called. Use 'torch.AdamW.v1', or 'torch.SGD.v1' with momentum.",
    ),
    "sparseadam": Facts(
        source="torch, https://docs.pytorch.org/docs/stable/generated/torch.optim.SparseAdam.html",
        refusal="it needs sparse gradients, and those of thinc's layers, its embeddings too, are dense. Use "
        "'torch.Adam.v1'.",
    ),
    "muon": Facts(
        usual_rates=UsualRates(1e-4, 0.05, "Jordan 2024 uses 0.02, torch 0.001"),
        source="Jordan 2024, https://kellerjordan.github.io/posts/muon/",
        least={"eps": 0.0, "ns_steps": 1},
        options=("weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn"),
        matrices_only=True,
    ),
}
_LOW_RANK = "its low-rank projections are objects that can't be saved, and without them it is only Adam."
_PYTORCH_OPTIMIZER = {
    "a2grad": Facts(state_roles={"x_k": "copy"}),
    "accsgd": Facts(state_roles={"momentum_buffer": "copy"}),
    "adabelief": Facts(usual_rates=_ADAM),
    "adabound": Facts(
        refusal="it counts on a fixed order of param groups, and here the order can change at each update."
    ),
    "adago": Facts(matrices_only=True),
    "adamp": Facts(usual_rates=_ADAM, contiguous_only=True),
    "adamuon": Facts(matrices_only=True),
    "adan": Facts(usual_rates=_ADAM),
    "adasmooth": Facts(state_roles={"prev_param": "copy"}),
    "adatam": Facts(state_roles={"exp_avg": "sum"}),
    "apollo": Facts(refusal=_LOW_RANK),
    "dadaptadagrad": Facts(usual_rates=_NONE_NEEDED, state_roles={"x0": "copy"}, finds_rate=True),
    "dadaptadam": Facts(usual_rates=_NONE_NEEDED, finds_rate=True),
    "dadaptadan": Facts(usual_rates=_NONE_NEEDED, finds_rate=True),
    "dadaptlion": Facts(usual_rates=_NONE_NEEDED, finds_rate=True),
    "dadaptsgd": Facts(usual_rates=_NONE_NEEDED, state_roles={"x0": "copy", "z": "copy"}, finds_rate=True),
    "emofact": Facts(state_roles={"shadow": "copy"}),
    "emolynx": Facts(state_roles={"shadow": "copy"}),
    "emonavi": Facts(state_roles={"shadow": "copy"}),
    "fira": Facts(refusal=_LOW_RANK),
    "galore": Facts(refusal=_LOW_RANK),
    "lamb": Facts(usual_rates=_ADAM),
    "lars": Facts(state_roles={"momentum_buffer": "sum"}),
    "lion": Facts(usual_rates=_SIGN),
    "lorarite": Facts(refusal="it is for pairs of low-rank matrices, not for params of any shape."),
    "madgrad": Facts(state_roles={"x0": "copy"}),
    "muon": Facts(matrices_only=True),
    "muonclip": Facts(state_roles={"momentum_buffer": "sum"}, matrices_only=True),
    "nero": Facts(contiguous_only=True),
    "normuon": Facts(matrices_only=True),
    "novograd": Facts(state_roles={"moments": "sum"}),
    "pid": Facts(state_roles={"i_buffer": "sum"}),
    "prodigy": Facts(usual_rates=_NONE_NEEDED, state_roles={"p0": "copy"}, finds_rate=True),
    "ranger": Facts(usual_rates=_ADAM, state_roles={"slow_buffer": "copy"}),
    "ranger21": Facts(usual_rates=_ADAM, state_roles={"lookahead_params": "copy"}),
    "sara": Facts(
        refusal="it computes values from its state only once, and would keep the old ones after a state is loaded."
    ),
    "schedulefreeadamw": Facts(
        usual_rates=UsualRates(1e-5, 0.05, "Defazio et al. 2024: Adam's, or up to ten times that"),
        state_roles={"z": "copy"},
    ),
    "schedulefreeradam": Facts(state_roles={"z": "copy"}),
    "schedulefreesgd": Facts(state_roles={"z": "copy"}),
    "sgdp": Facts(state_roles={"momentum": "sum"}, contiguous_only=True),
    "sgdw": Facts(state_roles={"momentum_buffer": "sum"}),
    "signsgd": Facts(usual_rates=_SIGN),
    "spectralsphere": Facts(matrices_only=True),
    "srmm": Facts(state_roles={"mov_avg_param": "copy"}),
    "stableadamw": Facts(usual_rates=_ADAM),
    "swats": Facts(state_roles={"momentum_buffer": "sum"}, contiguous_only=True),
    "tam": Facts(state_roles={"momentum_buffer": "sum"}),
    "tiger": Facts(usual_rates=_SIGN),
}
_TABLE: Mapping[str, Mapping[str, Facts]] = {"torch": _TORCH, "pytorch_optimizer": _PYTORCH_OPTIMIZER}
# Cache of `roles_of`, which is called for each param.
_FOUND: dict[type, Roles] = {}


def facts_of(library: str, name: str) -> Facts:
    """The row of a class. library (str): Its package. name (str): Its name there, in any case."""
    return _TABLE.get(library, {}).get(name.lower(), Facts())


def usual_rates(label: str, *, pretrained: bool = False) -> UsualRates | None:
    """The usual rates of an algorithm. None: unknown.

    label (str): Its name in the config: "torch.AdamW.v1", "thinc-torchopt.Adam.v1", or "pytorch-optimizer.create.v1
        (lion)".
    pretrained (bool): For a pretrained transformer, which higher rates destroy.
    """
    library, _, name = label.partition(".")
    if library == "pytorch-optimizer":
        found = facts_of("pytorch_optimizer", name.partition("(")[2].rstrip(")")).usual_rates
    else:
        found = facts_of("torch", name.removesuffix(".v1")).usual_rates
    return _PRETRAINED if pretrained and found is _ADAM else found


def roles_of(optimizer_class: type[torch.optim.Optimizer]) -> Roles:
    """The roles of a class's state tensors, by their names: its own, and those of its bases.

    RAISES (ConfigError): Its `state_roles` are not valid.
    """
    if optimizer_class in _FOUND:
        return _FOUND[optimizer_class]
    found: dict[str, Role] = dict(ROLES)
    for cls in reversed(optimizer_class.__mro__):
        roles = vars(cls).get("state_roles") or facts_of(library_of(cls), cls.__name__).state_roles
        if not isinstance(roles, Mapping) or not all(role in get_args(Role) for role in roles.values()):
            raise ConfigError(
                f"Can't use the state_roles of {cls.__name__}: expected a dict of names and roles, each one of "
                f"{list(get_args(Role))}, found {roles!r}."
            )
        found |= roles
    _FOUND[optimizer_class] = found
    return found


def role_of(roles: Roles, key: str) -> Role | None:
    """The role of a state by its key, whose last part is its name: Modular has keys such as "adam/exp_avg". None:
    unknown.
    """
    return roles.get(key.rpartition("/")[2])


def library_of(optimizer_class: type) -> str:
    """The package of a class."""
    return optimizer_class.__module__.partition(".")[0]


# ---------------------------------------------------------------------- checks


def check_states(
    optimizer_class: type[torch.optim.Optimizer], states: Iterable[tuple[str, Mapping[str, Any], Tensor]]
) -> None:
    """Check that params can be trained with their states.

    optimizer_class (type): The class of the optimizer.
    states (Iterable): Names, states and params.
    RAISES (StateError): A state differs from its param in shape or device, is not finite, or is negative and must not
        be.
    """
    roles = roles_of(optimizer_class)
    of_device: dict[torch.device, list[tuple[str, str, Role | None, Tensor, Tensor]]] = defaultdict(list)
    for name, state, param in states:
        if not state:
            raise StateError(f"Can't use the state of param '{name}': expected values, found none.")
        for key, value in state.items():
            role = role_of(roles, key)
            if isinstance(value, Tensor):
                if role in PER_CELL:
                    _check_place(name, key, value, param)
                if value.is_complex():
                    value = torch.view_as_real(value)
                if value.is_floating_point() and value.numel():
                    low, high = torch.aminmax(value) if value.ndim else (value, value)
                    if low.is_cpu:
                        _check_range(name, key, role, low.item(), high.item())
                    else:
                        of_device[low.device].append((name, key, role, low, high))
            elif isinstance(value, (int, float)):
                _check_range(name, key, role, value, value)
    for found in of_device.values():  # one transfer for each device
        *_, lows, highs = zip(*found)
        for (name, key, role, *_), low, high in zip(found, torch.stack(lows).tolist(), torch.stack(highs).tolist()):
            _check_range(name, key, role, low, high)


def _check_place(name: str, key: str, value: Tensor, param: Tensor) -> None:
    if value.shape != param.shape:
        raise StateError(
            f"Can't use the state of param '{name}': {key} has shape {tuple(value.shape)}, the param has "
            f"{tuple(param.shape)}. It is the state of another param, or was saved before this one grew."
        )
    if value.device != param.device or value.is_complex() != param.is_complex():
        raise StateError(
            f"Can't use the state of param '{name}': {key} is {value.dtype} on {value.device}, the param {param.dtype} "
            f"on {param.device}. Convert and move the model before its state."
        )


def _check_range(name: str, key: str, role: Role | None, low: float, high: float) -> None:
    if not -math.inf < low <= high < math.inf:
        raise StateError(
            f"Can't use the state of param '{name}': expected finite values in {key}, found NaN or infinite ones. A "
            "gradient was not finite at some point. Load an earlier state, or start with a new optimizer."
        )
    if low < 0 and role in NEVER_NEGATIVE:
        raise StateError(
            f"Can't use the state of param '{name}': expected values of at least zero in {key}, found {low:g}. It is "
            "damaged."
        )
