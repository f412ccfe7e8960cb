"""Modules and regularizers, the parts of a Modular optimizer.

A *part* is a module or a regularizer. It only has settings: its state is kept by the optimizer, so several optimizers
can share a part. *Options* are settings that can differ between param groups, and can be schedules. In param groups
they are called `<label>_<option>`, e.g. "adam_beta_1". The *label* is the name of the block in a config; otherwise the
name of the part.
"""

import inspect
import math
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, Optional

import torch
from torch import Tensor

from ...core.algorithms import as_plain, may_move
from ...core.checks import Section
from .aux_vars import AuxVar

# The ranges of options: see `ModularPart.ranges`.
OptionRange = Literal["beta", "at_least_0", "part", "flag"]
Ranges = Mapping[str, OptionRange]
ENABLED = "enabled"
ROUND_RESET = "round_reset"
# The place in a config of the part that is being built, for errors.
where_it_stands: ContextVar[str] = ContextVar("where_it_stands", default="")


class StateView(MutableMapping[str, Any]):
    """A part's state of a param: a view of the optimizer's state, where keys begin with the part's label."""

    def __init__(self, state: dict[str, Any], label: str):
        self.state, self.prefix = state, f"{label}/"

    def __getitem__(self, key: str) -> Any:
        return self.state[self.prefix + key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.state[self.prefix + key] = value

    def __delitem__(self, key: str) -> None:
        del self.state[self.prefix + key]

    def __iter__(self) -> Iterator[str]:
        n = len(self.prefix)
        return iter([key[n:] for key in self.state if key.startswith(self.prefix)])

    def __len__(self) -> int:
        return sum(key.startswith(self.prefix) for key in self.state)


class Block:
    """A param, and its gradient on the way through the modules.

    weights (Tensor): The values before the update. Read-only.
    state (MutableMapping[str, Any]): The current module's state of the param, by name. Tensors are written in place.
    options (Mapping[str, Any]): The current module's options for the param.
    tool (Any): The result of the module's `begin_step`.

    All tensors have the same shape. Half-precision params are computed in float32.
    """

    def __init__(self, weights: Tensor, values: Tensor, factor: float):
        wide = opmath(weights.dtype)
        self.weights = weights.to(wide)
        self._values = values.to(wide)
        self._lent = values
        self.state: MutableMapping[str, Any] = {}
        self.options: Mapping[str, Any] = {}
        self.tool: Any = None
        self.scale(factor)

    @property
    def step(self) -> int:
        """Number of steps of the module on the param, this one included."""
        return int(self.state["step"])

    def read(self) -> Tensor:
        """The input. Read-only: it may be the gradient itself."""
        return self._values

    def own(self) -> Tensor:
        """The input, to be changed in place to the output."""
        if self._values is self._lent:
            self._values = self._values.clone()
        return self._values

    def put(self, values: Tensor) -> None:
        """Set the output. values (Tensor): Perhaps a state tensor: it is not changed."""
        self._values = self._lent = values

    def scale(self, factor: float) -> None:
        """Multiply the input by a number."""
        if factor != 1.0:
            self._values = self._values * factor

    def update(self, rate: float, decay: float) -> None:
        """Update the weights.

        rate (float): Multiplies the output of the last module. decay (float): Part of the weights to subtract.
        """
        if decay:
            self.weights.mul_(1.0 - decay)
        self.weights.add_(self._values, alpha=-rate)


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in."""
    return torch.promote_types(dtype, torch.float32)


class ModularPart:
    """The base class of modules and regularizers.

    options (Mapping[str, Any]): Settings that may differ between param groups.
    settings (Mapping[str, Any]): All other settings.
    params (list[str] | None): Patterns over the names of params that it works on. None: all params.
    label (str | None): The prefix of its options in param groups. None: its name.

    Attributes of a class:

    name: Its name in `Modular`, and for other optimizers in a federation.
    ranges: The range of each option.
    tensors: Names of its state tensors for each param: zero at first, of the param's shape.
    counts_steps: Whether it counts the steps of each param, as "step".
    is_linear: Whether its output is linear in its input.
    clips: Whether it limits the size of gradients, for `spacy torchopt explain`.
    draws_alone: Whether it draws random numbers that other processes can't reproduce.
    changes_weights: Whether it changes the weights after their update, instead of gradients.
    has_aux: Whether it exchanges auxiliary variables. aux_name: Their name. None: its own name.
    """

    name: ClassVar[str] = ""
    ranges: ClassVar[Ranges] = {}
    tensors: ClassVar[tuple[str, ...]] = ()
    counts_steps: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    clips: ClassVar[bool] = False
    draws_alone: bool = False
    changes_weights: ClassVar[bool] = False
    has_aux: ClassVar[bool] = False
    aux_name: ClassVar[Optional[str]] = None

    def __init__(
        self,
        options: Mapping[str, Any] = {},
        settings: Mapping[str, Any] = {},
        *,
        params: Optional[Sequence[str]] = None,
        label: Optional[str] = None,
    ):
        self.where = where_it_stands.get() or f"the {self.kind} '{label or self.name}'"
        section = Section(self.where)
        if params is not None and not (
            isinstance(params, (list, tuple)) and params and all(isinstance(text, str) for text in params)
        ):
            section.refuse("params", 'a list of patterns, as in ["transformer/*"]', params)
        if label is not None and not (isinstance(label, str) and label):
            section.refuse("label", "a name", label)
        self.params = None if params is None else tuple(params)
        self._label = label
        self.settings = {key: as_plain(value) for key, value in settings.items()}
        if ROUND_RESET in self.settings:
            section.flag(ROUND_RESET, self.settings[ROUND_RESET])
        self.moving = {key: value for key, value in options.items() if may_move(value)}
        self.options = {
            key: self._default(key) if key in self.moving else as_plain(value) for key, value in options.items()
        }
        for key, value in self.options.items():
            self.check(key, value)

    kind: ClassVar[str] = "part"

    @property
    def label(self) -> str:
        return self._label or self.name.replace("-", "_")

    @property
    def key(self) -> str:
        """The name of its auxiliary variables."""
        return self.aux_name or self.name

    def check(self, option: str, value: Any) -> None:
        """Check the value of an option. RAISES (ConfigError): It is out of its range."""
        section, kind = Section(self.where, allows_texts=False), self.ranges[option]
        if kind == "flag":
            section.flag(option, value)
        elif kind == "beta":
            expected = "a number of at least 0.0 and below 1.0"
            if type(value) is int:  # as declearn: a whole number is a typo, such as 1 for 0.1
                section.refuse(option, f"{expected}, with a decimal point", value)
            section.number(option, value, expected, below=1.0)
        else:
            section.number(option, value, at_most=1.0 if kind == "part" else math.inf)

    def get_config(self) -> dict[str, Any]:
        """The arguments that build an equal part, for JSON."""
        limits = {} if self.params is None else {"params": list(self.params)}
        return {**self.options, **self.settings, **limits, **({} if self._label is None else {"label": self._label})}

    def named(self, label: str, where: Optional[str] = None) -> "ModularPart":
        """A copy with another label. where (str | None): Its name in errors."""
        where = f"the {self.kind} '{label}'" if where is None else where
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _label=label, where=where)
        return copy

    def everywhere(self) -> "ModularPart":
        """A copy without patterns."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), params=None)
        return copy

    def concerns(self, name: str) -> bool:
        """Whether it works on a param with this name."""
        return self.params is None or any(matches(text, name) for text in self.params)

    # ------------------------------------------------------------------ state

    def first_state(self, weights: Tensor) -> dict[str, Any]:
        """Its state of a param before the first step.

        weights (Tensor): The param. State has the same memory order, and float32 for half-precision params.
        """
        zeros = {key: torch.zeros_like(weights, dtype=opmath(weights.dtype)) for key in self.tensors}
        return {**({"step": 0} if self.counts_steps else {}), **zeros}

    optional_tensors: ClassVar[tuple[str, ...]] = ()

    def example_state(self, weights: Tensor, options: Mapping[str, Any]) -> dict[str, Any]:
        """An example of its state of a param after some steps, with the right keys, types and shapes. Tensors are on
        the meta device.
        """
        on_meta = weights.to("meta")
        state = self.first_state(on_meta)
        self.prepare(state, on_meta, options)
        return state

    def prepare(self, state: MutableMapping[str, Any], weights: Tensor, options: Mapping[str, Any]) -> None:
        """Begin a step for a param. state (MutableMapping): From `first_state`, or from the last step."""
        if self.counts_steps:
            state["step"] += 1

    @property
    def listens(self) -> bool:
        """Whether its class overrides `start_round`."""
        return type(self).start_round is not ModularPart.start_round

    def start_round(self, state: MutableMapping[str, Any]) -> None:
        """Begin a round of federated training. Called for each param that this part works on.

        state (MutableMapping): The state of one param.
        """
        if self.settings.get(ROUND_RESET):
            for key in self.tensors:
                state[key].zero_()
            if self.counts_steps:
                state["step"] = 0

    def first_shared(self) -> dict[str, Any]:
        """Its state that belongs to no param: numbers, texts, lists and tensors."""
        return {}

    # ------------------------------------------------------------------ one step

    @property
    def measures(self) -> bool:
        """Whether its class overrides `measure`."""
        return type(self).measure is not ModularPart.measure

    def begin_step(self, shared: Mapping[str, Any]) -> Any:
        """Begin a step. RETURNS (Any): The `tool` of blocks."""

    def end_step(self, tool: Any, shared: MutableMapping[str, Any]) -> None:
        """End a step."""

    def measure(self, block: Block) -> None:
        """If it is overridden: look at the input of each param before any `run`, and store the findings in
        `block.tool`.
        """

    def after_measure(self, tool: Any) -> Any:
        """Called after `measure` has seen all params. RETURNS (Any): The `tool` of blocks in `run`."""
        return tool

    def run(self, block: Block) -> None:
        """Compute the output for a param from its input."""
        raise NotImplementedError

    def run_last(self, block: Block, rate: float, decay: float) -> None:
        """Run, and update the weights. A class may do both in one kernel.

        rate, decay (float): As for `Block.update`.
        """
        self.run(block)
        block.update(rate, decay)

    def after_update(self, block: Block) -> None:
        """Change the weights after their update. Only for classes with `changes_weights`, whose `run` is not called."""

    # ------------------------------------------------------------------ in a federation

    def collect_aux(
        self, states: Mapping[str, MutableMapping[str, Any]], shared: Mapping[str, Any]
    ) -> tuple[Optional[AuxVar], dict[str, dict[str, Any]]]:
        """Collect the auxiliary variable to send.

        states (Mapping): The states of params, by name.
        RETURNS (tuple): The auxiliary variable (None: nothing to send), and changes to the states.
        """
        raise NotImplementedError

    def process_aux(
        self, aux: Any, states: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Process a received auxiliary variable. Changes nothing.

        RETURNS (tuple): Changes to the states of params, by name, and to the shared state.
        RAISES (KeyError, TypeError, ValueError): It is not valid for this part.
        """
        raise NotImplementedError

    def _default(self, option: str) -> Any:
        """A placeholder for the value of a schedule."""
        return inspect.signature(type(self).__init__).parameters[option].default


class Module(ModularPart):
    """Changes gradients, or weights after their update: see `ModularPart`."""

    kind = "module"


class Regularizer(ModularPart):
    """Adds a term that depends on the weights to the gradient: see `ModularPart`."""

    kind = "regularizer"


def matches(text: str, name: str) -> bool:
    """Whether a pattern matches the name of a param: a shell glob over the whole name, or "re:" with a regular
    expression.
    """
    return bool(re.search(text[3:], name)) if text.startswith("re:") else fnmatchcase(name, text)
