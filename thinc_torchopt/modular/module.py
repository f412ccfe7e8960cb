"""Modules and regularizers: what a Modular optimizer is made of.

A *part* is one of the two. It holds settings and nothing else: what it learns is kept by the optimizer, so one part can
be given to several. *Options* are settings that each param group may have for itself, and that schedules may move. The
optimizer finds them in its param groups as `<label>_<option>`, e.g. "adam_beta_1". The *label* is the name of the block
in a config; otherwise the name of the part.
"""

import inspect
import math
import re
from collections.abc import Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, Optional

import torch
from torch import Tensor

from ..algorithms import as_plain, may_move
from ..checks import Section
from ..errors import ConfigError
from .aux_vars import AuxVar
from .blocks import Block, opmath

# What is allowed for an option: see `Part.ranges`.
Range = Literal["beta", "at_least_0", "part", "flag"]
Ranges = Mapping[str, Range]
ENABLED = "enabled"
ROUND_RESET = "round_reset"
# What errors call the part that is being made, if that is known: its place in a config.
where_it_stands: ContextVar[str] = ContextVar("where_it_stands", default="")


class Part:
    """What modules and regularizers have in common.

    options (Mapping[str, Any]): Settings that may differ from group to group.
    settings (Mapping[str, Any]): All others.
    params (list[str] | None): Patterns over the names of params: it works on these only. None: on all.
    label (str | None): What its options are called in param groups. None: its name.

    A class says of itself:

    name: By which it is known to `Modular`, and to other optimizers in a federation.
    ranges: What is allowed for each option.
    tensors: The state tensors that it keeps of each param, zero at first, of the param's shape.
    counts_steps: Whether it keeps the number of steps of each param, as "step".
    scope: What `run` is given: "block": some cells of a param, in one dimension. "tensor": a whole param. "all": as
        "block", after `measure` has seen all params.
    is_pure: Whether the same input gives the same output twice in a step.
    is_linear: Whether its output is linear in its input.
    clips: Whether it is there to limit how large gradients are. `spacy torchopt explain` tells it.
    draws_alone: Whether it draws random numbers that no other process can draw.
    changes_weights: Whether it works on the weights after their update, and not on gradients.
    aux_name: Under which it sends and takes auxiliary variables. None: its name. Modules without any: see `has_aux`.
    """

    name: ClassVar[str] = ""
    ranges: ClassVar[Ranges] = {}
    tensors: ClassVar[tuple[str, ...]] = ()
    counts_steps: ClassVar[bool] = False
    scope: ClassVar[Literal["block", "tensor", "all"]] = "block"
    is_pure: ClassVar[bool] = False
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
        section = Section(self.where, allows_texts=False)
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
        """Under which it takes part in the exchange of auxiliary variables."""
        return self.aux_name or self.name

    def check(self, option: str, value: Any) -> None:
        """Check the value of an option.

        RAISES (ConfigError): It is not in its range.
        """
        section, kind = Section(self.where, allows_texts=False), self.ranges[option]
        if kind == "flag":
            section.flag(option, value)
        elif kind == "beta":
            expected = "a number of at least 0.0 and below 1.0"
            if type(value) is int:  # declearn refuses it too: a 1 that was meant as 0.1 is 1, and a 0 no momentum
                section.refuse(option, f"{expected}, with a decimal point", value)
            section.number(option, value, expected, below=1.0)
        else:
            section.number(option, value, at_most=1.0 if kind == "part" else math.inf)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make a part like this one, for JSON."""
        limits = {} if self.params is None else {"params": list(self.params)}
        return {**self.options, **self.settings, **limits, **({} if self._label is None else {"label": self._label})}

    def named(self, label: str, where: Optional[str] = None) -> "Part":
        """The same under another label. where (str | None): What errors call it."""
        where = f"the {self.kind} '{label}'" if where is None else where
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _label=label, where=where)
        return copy

    def everywhere(self) -> "Part":
        """The same without patterns."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), params=None)
        return copy

    def concerns(self, name: str) -> bool:
        """Whether it works on a param, by its name."""
        return self.params is None or any(matches(text, name) for text in self.params)

    # ------------------------------------------------------------------ what it keeps

    def first_state(self, weights: Tensor) -> dict[str, Any]:
        """What it keeps of a param before its first step.

        weights (Tensor): The param. State is in the same memory order, and of float32 if that is of half precision.
        """
        zeros = {key: torch.zeros_like(weights, dtype=opmath(weights.dtype)) for key in self.tensors}
        return {**({"step": 0} if self.counts_steps else {}), **zeros}

    optional_tensors: ClassVar[tuple[str, ...]] = ()

    def example_state(self, weights: Tensor, options: Mapping[str, Any]) -> dict[str, Any]:
        """What it keeps of a param after some steps: keys, types and shapes count. Tensors have no memory."""
        on_meta = weights.to("meta")
        state = self.first_state(on_meta)
        self.prepare(state, on_meta, options)
        return state

    def prepare(self, state: MutableMapping[str, Any], weights: Tensor, options: Mapping[str, Any]) -> None:
        """A step begins for a param. state (MutableMapping): As `first_state` made it, or as it was left."""
        if self.counts_steps:
            state["step"] += 1

    @property
    def listens(self) -> bool:
        """Whether its class says itself what the begin of a round means."""
        return type(self).start_round is not Part.start_round

    def start_round(self, state: MutableMapping[str, Any]) -> None:
        """A round of federated training begins. It is called for each param on which this part works.

        state (MutableMapping): Of one param, as `first_state` made it, or as it was left.
        """
        if self.settings.get(ROUND_RESET):
            for key in self.tensors:
                state[key].zero_()
            if self.counts_steps:
                state["step"] = 0

    def first_shared(self) -> dict[str, Any]:
        """What it keeps beside the params: numbers, texts, lists and tensors."""
        return {}

    # ------------------------------------------------------------------ one step

    def begin_step(self, shared: Mapping[str, Any]) -> Any:
        """A step begins. RETURNS (Any): What blocks have as `tool`."""
        return None

    def end_step(self, tool: Any, shared: MutableMapping[str, Any]) -> None:
        """A step is done."""

    def measure(self, block: Block) -> None:
        """For the scope "all": see what comes in, before `run`. What was seen goes into `block.tool`."""
        raise NotImplementedError

    def settle(self, tool: Any) -> Any:
        """For the scope "all": everything was seen. RETURNS (Any): What blocks have as `tool` in `run`."""
        raise NotImplementedError

    def run(self, block: Block) -> None:
        """Turn what comes in into what goes out."""
        raise NotImplementedError

    def run_last(self, block: Block, rate: float, decay: float) -> bool:
        """`run` and the update of the weights in one, by a kernel that does both.

        rate, decay (float): As for `Block.update`.
        RETURNS (bool): Whether it was done. If not, nothing was changed.
        """
        return False

    def after_update(self, block: Block) -> None:
        """The weights were updated. They may be changed here. Only for classes that say `changes_weights`: their `run`
        is not called.
        """

    # ------------------------------------------------------------------ in a federation

    def collect_aux(
        self, states: Mapping[str, MutableMapping[str, Any]], shared: Mapping[str, Any]
    ) -> tuple[Optional[AuxVar], dict[str, dict[str, Any]]]:
        """What others should know.

        states (Mapping): Of each param, by its name.
        RETURNS (tuple): The auxiliary variable (None: there is nothing to send), and what changes in the states.
        """
        raise NotImplementedError

    def process_aux(
        self, aux: Any, states: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Take what others sent. Changes nothing.

        RETURNS (tuple): What changes in the states of params, by name, and in what is shared.
        RAISES (KeyError, TypeError, ValueError): It is not what this part takes.
        """
        raise NotImplementedError

    def _default(self, option: str) -> Any:
        """A value to go on with while a schedule is not there."""
        return inspect.signature(type(self).__init__).parameters[option].default


class Module(Part):
    """Turns a gradient into an update, step by step: see `Part`."""

    kind = "module"


class Regularizer(Part):
    """Adds something to the gradient that depends on the weights: see `Part`."""

    kind = "regularizer"
    is_pure = True


def matches(text: str, name: str) -> bool:
    """Whether a pattern matches the name of a param: a shell glob over all of it, or "re:" and a regular expression."""
    return bool(re.search(text[3:], name)) if text.startswith("re:") else fnmatchcase(name, text)


def refuse_schedules(part: Part) -> None:
    """RAISES (ConfigError): An option is a schedule."""
    if part.moving:
        raise ConfigError(
            f"Can't set {', '.join(sorted(part.moving))} of {part.where} to a schedule here: expected a number, found "
            "a schedule. Schedules work in a config, with thinc-torchopt.TorchOptimizer.v1; in a loop of your own, "
            f"write the value of the step into the param groups, as '{part.label}_{sorted(part.moving)[0]}'."
        )
