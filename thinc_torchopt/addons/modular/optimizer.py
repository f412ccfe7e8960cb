"""Modular: a torch optimizer made of regularizers and modules.

One step, in the order of declearn's Optimizer:

 1. regularizers add their terms to the raw gradients, in order
 2. modules turn the result into updates, in order
 3. updates are multiplied by the learning rate
 4. decoupled weight decay is added: `decay = "adamw"`: lr x weight_decay x weights; "declearn": weight_decay x weights
 5. the sum is subtracted from the weights

step.py runs a step. saved.py saves states by lasting names; aux_vars.py has the values that are exchanged with other
optimizers; step.py has whole training steps, with clipping of each sample's gradient.

SOURCE: declearn 2.9, https://gitlab.inria.fr/magnet/declearn/declearn2 (declearn/optimizer/_base.py).
DIFFERENCES, on purpose:
- Names: `lr` and `weight_decay` are torch's, and the rate scales the decay; `lrate` and `w_decay` are as in declearn.
  Params are given at the start. `regularizers` and `modules` are tuples; classes of declearn, its schedulers, and saved
  states are refused.
- Gradients may be a dict, list or tuple. A param without one stays as it is in `step()`, and is a KeyError in
  `apply_gradients`. Params in half precision have their state in float32.
- `sclip` clips by one norm over all params of a sample, as DP-SGD needs; declearn clips each tensor by its own. Dropout
  has one mask for each sample, and BatchNorm is an error that names the layer. Weights of samples are refused.
- States are copies, and complete: settings, regularizers, seeded noise, and a round of SCAFFOLD that is not over. After
  a failed `set_state` or `process_aux_var` nothing has changed.
- Numbers: NaN and negative settings are errors. Seeded noise has torch's numbers, and noise in safe mode is never
  infinite.
- Auxiliary variables: `process_aux_var` also takes a list of several clients; two from one client, or two modules with
  one name, are errors. SCAFFOLD counts the steps of each param. There is no secure aggregation.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Union, get_args

import numpy
import torch
from torch import Tensor

from ...core.algorithms import Roles
from ...core.checks import Section
from ...core.errors import (
    AuxVarError,
    AuxVarKeyError,
    AuxVarTypeError,
    AuxVarWarning,
    ConfigError,
    ConfigKeyError,
    ConfigTypeError,
    ConfigWarning,
    ParamError,
)
from ...core.near_misses import did_you_mean
from .aux_vars import AuxVar, aggregate
from .module import ENABLED, ModularPart, Module, Regularizer, StateView, matches
from .saved import SharedState, check_shared, own_state_dict, read_state, state_by_name, to_json
from .specs import build_parts, check_can_be_built_again, options_in_group, with_labels
from .step import ActivePart, UpdatedParam, names_in_model, run_chain, train_step

# The gradients of all params, by name or in order.
Grads = Union[Mapping[str, Any], Sequence[Any]]
# Values by key, of params by their names, or of parts by their labels.
Changes = dict[str, dict[str, Any]]
Decay = Literal["adamw", "declearn"]
Normalize = Literal["words", "examples"]
_SECTION = Section("Modular", allows_texts=False)
_OUR_CONFIG = ("lr", "weight_decay", "decay", "normalize", "regularizers", "modules")
_DECLEARNS_CONFIG = ("lrate", "w_decay", "regularizers", "modules")
# Keys of param groups that belong to torch and its schedulers.
_NOT_OPTIONS = ("params", "param_names", "initial_lr")
# Attributes that set an option of all param groups: declearn's names and torch's.
_IN_ALL_GROUPS = {"lr": "lr", "lrate": "lr", "weight_decay": "weight_decay", "w_decay": "weight_decay"}


class Modular(torch.optim.Optimizer):
    """A torch optimizer made of regularizers and modules.

    params (Iterable): As for any torch optimizer: tensors, `model.named_parameters()`, or param groups. Groups may have
        `lr`, `weight_decay`, and the options of parts as `<label>_<option>`, e.g. "adam_beta_1".
    lr (float): The learning rate. `lrate`, as in declearn, works too.
    weight_decay (float): Decoupled weight decay. `w_decay`, as in declearn, implies `decay = "declearn"`.
    decay ("adamw" | "declearn"): Whether the learning rate scales the decay ("adamw") or not ("declearn").
    regularizers, modules (Sequence | Mapping | None): Instances, names, or pairs of a name and its settings. None:
        none.
    normalize ("words" | "examples" | None): Divide gradients, which are sums, by the number of words or examples: set
        `batch_size` before each step. None: gradients are means already, as in torch.
    RAISES (ConfigError): A setting is invalid. It is a ValueError; for a wrong type also a TypeError, for an unknown
        name also a KeyError.

    Public: `modules`, `regularizers`, `decay`, `normalize`, `batch_size`; `lr` or `lrate`, and `weight_decay` or
    `w_decay`, of all param groups, which can be set before each step. In a config, TorchOptimizer moves them.
    """

    state_roles: ClassVar[Roles] = {"momentum_buffer": "sum", "reference": "copy", "slow": "copy"}

    def __init__(
        self,
        params: Any,
        lr: Any = None,
        weight_decay: Any = None,
        *,
        decay: Decay | None = None,
        regularizers: Any = (),
        modules: Any = (),
        normalize: Normalize | None = None,
        lrate: Any = None,
        w_decay: Any = None,
    ):
        lr = _one_of("lr", lr, "lrate", lrate)
        if lr is None:
            raise ConfigTypeError("Can't build Modular: expected a learning rate, found none. Give 'lr'.")
        if decay is None:
            decay = "adamw" if w_decay is None else "declearn"
        self._decay: Decay = _SECTION.choice("decay", decay, get_args(Decay))
        self._normalize: Normalize | None = _SECTION.choice("normalize", normalize, (*get_args(Normalize), None))
        parts = with_labels([*build_parts(regularizers, Regularizer), *build_parts(modules, Module)])
        self._parts: list[ModularPart] = parts
        _check_exchange(parts)
        self._batch_size: int | None = None
        self.shared = SharedState({part.label: part.first_shared() for part in parts})
        self._normalizes_early = False  # in `before_clipping`, and not in `step`
        self._told_names: Mapping[Tensor, str] | None = None
        options = {name: value for part in parts for name, value in options_in_group(part).items()}
        weight_decay = _one_of("weight_decay", weight_decay, "w_decay", w_decay)
        weight_decay = 0.0 if weight_decay is None else weight_decay
        defaults = {"lr": lr, "weight_decay": weight_decay, **options}
        super().__init__(params, self._checked(defaults))
        self._check_patterns()

    @property
    def regularizers(self) -> tuple[Regularizer, ...]:
        return tuple(part for part in self._parts if isinstance(part, Regularizer))

    @property
    def modules(self) -> tuple[Module, ...]:
        return tuple(part for part in self._parts if isinstance(part, Module))

    def __getattr__(self, name: str) -> Any:
        """`lr` and `weight_decay`, if all param groups have the same."""
        if name not in _IN_ALL_GROUPS:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        found = [group[_IN_ALL_GROUPS[name]] for group in self.param_groups]
        if any(value != found[0] for value in found):
            raise AttributeError(
                f"Can't read '{name}' of Modular: expected one '{_IN_ALL_GROUPS[name]}' for all param groups, found "
                f"{found}. Read it in param_groups."
            )
        return found[0]

    def __setattr__(self, name: str, value: Any) -> None:
        """RAISES (ConfigError): The value is invalid, or the option is set in param groups."""
        if name in _IN_ALL_GROUPS:
            key = _IN_ALL_GROUPS[name]
            if name == "w_decay" and self.decay != "declearn":
                raise ConfigError(
                    "Can't set 'w_decay' of Modular: this name needs decay = 'declearn', found "
                    f"'{self.decay}', by which the learning rate scales the decay. Set 'weight_decay'."
                )
            _refuse_schedule(key, value)
            self.defaults[key] = _SECTION.number(key, value)
            for group in self.param_groups:
                group[key] = self.defaults[key]
        elif name in self.__dict__.get("defaults", ()):
            raise ConfigKeyError(
                f"Can't set '{name}' of Modular as an attribute: options of modules and regularizers are in its param "
                f"groups. Set it there: for group in optimizer.param_groups: group['{name}'] = {value!r}"
            )
        else:
            super().__setattr__(name, value)

    @property
    def decay(self) -> Decay:
        return self._decay

    @property
    def draws_alone(self) -> bool:
        """Whether a step draws random numbers that other processes can't reproduce."""
        return any(part.draws_alone for part in self._parts)

    @property
    def normalize(self) -> Normalize | None:
        return self._normalize

    @property
    def batch_size(self) -> int | None:
        """The number of words or examples over which the gradients are summed, for `normalize`."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: int | None) -> None:
        self._batch_size = None if size is None else _SECTION.whole("batch_size", size, at_least=1)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As for any torch optimizer.

        RAISES (ConfigError): An option is unknown, or out of its range. (ParamError): A param is complex, or has the
            name of another one. The group is then not added.
        """
        unknown = sorted(set(param_group) - set(self.defaults) - set(_NOT_OPTIONS))
        if unknown:
            raise ConfigKeyError(
                f"Can't set {', '.join(unknown)} in a param group of Modular: expected some of "
                f"{', '.join(sorted(self.defaults))}.{did_you_mean(unknown[0], self.defaults)}"
            )
        self._checked({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            self._check_params()
        except ParamError:
            self.param_groups.pop()
            raise

    def _checked(self, group: dict[str, Any]) -> dict[str, Any]:
        """RAISES (ConfigError): An option is out of its range, or a schedule."""
        for name in ("lr", "weight_decay"):
            _refuse_schedule(name, group[name])
            _SECTION.number(name, group[name])
        for part in self._parts:
            for key in part.options:
                name = f"{part.label}_{key}"
                _refuse_schedule(name, group[name])
                part.check(key, group[name])
            _SECTION.flag(f"{part.label}_{ENABLED}", group[f"{part.label}_{ENABLED}"])
        return group

    # ------------------------------------------------------------------ steps

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the params that have a gradient.

        closure (Callable): Computes the gradients, and returns the loss.
        RAISES (ParamError): A gradient is sparse. (ConfigError): `batch_size` is missing.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._run([(param, param.grad) for group in self.param_groups for param in group["params"]])
        return loss

    @torch.no_grad()
    def compute_updates_from_gradients(self, model: Any = None, gradients: Grads | None = None) -> dict[str, Tensor]:
        """Compute the updates of a step without changing the params. State changes as in a step.

        model (torch.nn.Module): The model with these params, as in declearn. It may be left out:
            `compute_updates_from_gradients(gradients)`.
        gradients (Mapping | Sequence): The gradients of all params, by name, or in the order of the params: tensors, or
            NumPy arrays.
        RETURNS (dict[str, Tensor]): Updates by name.
        RAISES (ConfigKeyError): The gradients are not those of the params. (ConfigTypeError): They are no tensors, or
            the model is not a torch model. (ParamError): Another model.
        """
        pairs = self._with_params(model, gradients)
        updates = {param: torch.zeros_like(param) for param, _ in pairs}
        self._run(pairs, updates)
        return {name: updates[param] for name, param in self.named_params().items()}

    @torch.no_grad()
    def apply_gradients(self, model: Any = None, gradients: Grads | None = None) -> None:
        """Make a step with these gradients. model, gradients: As for `compute_updates_from_gradients`."""
        self._run(self._with_params(model, gradients))

    def run_train_step(
        self,
        model: torch.nn.Module,
        batch: Any,
        sclip: float | None = None,
        *,
        loss: Callable[..., Tensor] | None = None,
    ) -> float:
        """Compute the gradients of a batch, and make a step.

        model (torch.nn.Module): The model with these params.
        batch (Sequence[Tensor]): Inputs and targets, with the samples in their first dimension. A None at the end is
            left out: declearn's place for weights of samples. For such weights, let the model compute the loss.
        sclip (float | None): Clip the gradient of each sample to this norm over all params, before anything else. The
            step uses the mean of the clipped gradients; with `normalize`, their sum divided by `batch_size`.
        loss (Callable | None): `loss(model(inputs), targets)`, a mean over samples. None: `model(*batch)` is the loss.
        RETURNS (float): The loss.
        RAISES (ConfigTypeError): The batch does not fit the model.
        """
        return train_step(self, model, batch, sclip, loss)

    def start_round(self) -> None:
        """Begin a round of federated training: FedProx copies the weights, and parts with `round_reset` are
        reset.

        Calls `start_round` of each part for each param that it works on, also before the first step.
        """
        chosen = {part.label: self._chosen(part) for part in self._parts}
        with torch.no_grad():
            for group in self.param_groups:
                listening = [part for part in self._parts if part.listens and group[f"{part.label}_{ENABLED}"]]
                for param in group["params"]:
                    state = self.state.get(param, {})
                    for part in listening:
                        if param in chosen[part.label] and not StateView(state, part.label):
                            StateView(state, part.label).update(part.first_state(param.detach()))
                    for part in self._parts:
                        kept = StateView(state, part.label)
                        if kept or (part in listening and param in chosen[part.label]):
                            part.start_round(kept)
                    if state:
                        self.state[param] = state

    def normalize_before_clipping(self) -> None:
        """Normalize gradients in `before_clipping` instead of `step`."""
        self._normalizes_early = True

    def begin_step(self, words: int | None, examples: int | None) -> None:
        """Set the size of the next step's batch. Called by TorchOptimizer. words, examples: Numbers of both. None: not
        known.
        """
        if self.normalize is not None:
            self.batch_size = words if self.normalize == "words" else examples

    def before_clipping(self, group: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        """Normalize the gradients of a group in place. Called by TorchOptimizer before it measures them."""
        if self._normalizes_early and self.normalize is not None:
            factor = 1.0 / self._number_in_batch()
            for tensor in tensors:
                if tensor.grad is not None:
                    tensor.grad.mul_(factor)

    def _run(
        self, pairs: Sequence[tuple[Tensor, Tensor | None]], updates: Mapping[Tensor, Tensor] | None = None
    ) -> None:
        """Run a step over pairs of params and gradients."""
        grads = {param: grad.detach() for param, grad in pairs if grad is not None and param.numel()}
        for param, grad in grads.items():
            if grad.layout is not torch.strided:
                raise ParamError(
                    f"Can't update param '{self._name_of(param)}' with Modular: expected a dense gradient, found one "
                    f"of layout {grad.layout}. Set sparse = False in its layer."
                )
        factor = 1.0
        if self.normalize is not None and not self._normalizes_early:
            factor = 1.0 / self._number_in_batch()
        chosen = {place: self._chosen(part) for place, part in enumerate(self._parts) if part.params is not None}
        members = []
        for group in self.param_groups:
            options = [{key: group[f"{part.label}_{key}"] for key in part.options} for part in self._parts]
            enabled = [(place, part) for place, part in enumerate(self._parts) if group[f"{part.label}_{ENABLED}"]]
            rate, decay = float(group["lr"]), float(group["weight_decay"])
            for param in group["params"]:
                if param in grads:
                    state = self.state[param]
                    work = {
                        place: ActivePart(part, options[place], StateView(state, part.label))
                        for place, part in enabled
                        if place not in chosen or param in chosen[place]
                    }
                    members.append(
                        UpdatedParam(
                            param.detach(), grads[param], rate, decay * rate if self.decay == "adamw" else decay, work
                        )
                    )
        for member in members:
            member.prepare()
        in_order = (param for group in self.param_groups for param in group["params"] if param in grads)
        found = None if updates is None else [updates[param] for param in in_order]
        run_chain(self._parts, members, self.shared.parts, factor=factor, updates=found)

    def _number_in_batch(self) -> int:
        if self._batch_size is None:
            raise ConfigError(
                f"Can't normalize gradients in Modular: the number of {self.normalize} of this step is unknown. 'spacy "
                "train' sets it; elsewhere set optimizer.batch_size before the step."
            )
        return self._batch_size

    # ------------------------------------------------------------------ params

    def _check_params(self) -> None:
        for param in self.param_groups[-1]["params"]:
            if param.is_complex():
                raise ParamError(
                    f"Can't optimize a param of shape {tuple(param.shape)} with Modular: expected floats, found "
                    f"{param.dtype}."
                )
        counts = Counter(name for group in self.param_groups for name in group.get("param_names", ()))
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise ParamError(
                f"Can't tell the params of Modular apart: several are called {', '.join(twice[:5])}. Use the names "
                "of one model, or add prefixes to them."
            )

    def _chosen(self, part: ModularPart) -> set[Tensor]:
        """The params that a part with patterns works on."""
        return {param for name, param in self.named_params().items() if part.concerns(name)}

    def _check_patterns(self) -> None:
        names = list(self.named_params())
        for part in self._parts:
            for text in part.params or ():
                if not any(matches(text, name) for name in names):
                    raise ConfigError(
                        f"Can't use the pattern '{text}' of {part.where}: it matches none of the params "
                        f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}. Pass model.named_parameters() to "
                        "Modular, so that it knows names."
                    )

    def _with_params(self, model: Any, grads: Any) -> list[tuple[Tensor, Tensor | None]]:
        if grads is None:
            grads = model
        elif model is not None:
            names_in_model(self, model, "apply gradients")
        if isinstance(grads, (str, bytes)) or not isinstance(grads, (Mapping, Sequence)):
            raise ConfigTypeError(
                'Can\'t apply gradients: expected a dict by the names of params, as in apply_gradients({"weight": '
                f"tensor}}), or a list, found {type(grads).__name__}. A model may stand before them."
            )
        named = self.named_params()
        if not isinstance(grads, Mapping):
            if len(grads) != len(named):
                raise ConfigKeyError(
                    f"Can't apply gradients: expected {len(named)}, one for each param, found {len(grads)}."
                )
            grads = dict(zip(named, grads))
        different = sorted(named.keys() ^ grads.keys())
        if different:
            raise ConfigKeyError(
                f"Can't apply gradients: expected one for each of the {len(named)} params; missing or unknown: "
                f"{', '.join(different[:5])}."
            )
        grads = {name: _as_tensor(grads[name], name, like=param) for name, param in named.items()}
        for name, grad in grads.items():
            if grad.shape != named[name].shape:
                raise ParamError(
                    f"Can't apply the gradient of param '{name}': expected shape {tuple(named[name].shape)}, found "
                    f"{tuple(grad.shape)}."
                )
        return [(param, grads[name]) for name, param in named.items()]

    # ------------------------------------------------------------------ config

    def get_config(self) -> dict[str, Any]:
        """The config for `from_config`, as JSON. It does not have the options of groups.

        RAISES (ConfigError): A part is of a class of your own that has no name of its own, so it can't be built again.
        """
        for part in self._parts:
            check_can_be_built_again(part)
        return {
            "lr": float(self.defaults["lr"]),
            "weight_decay": float(self.defaults["weight_decay"]),
            "decay": self.decay,
            "normalize": self.normalize,
            "regularizers": [[part.name, part.get_config()] for part in self.regularizers],
            "modules": [[part.name, part.get_config()] for part in self.modules],
        }

    @classmethod
    def from_config(cls, params: Any, config: Mapping[str, Any]) -> Modular:
        """Build an optimizer.

        config (Mapping): From `get_config` of this class, or of declearn's Optimizer. Only the learning rate must be
            there.
        RAISES (ConfigKeyError): The learning rate is missing, or a key is unknown. (ConfigError): Values are invalid.
        """
        of_declearn = "lrate" in config
        expected = _DECLEARNS_CONFIG if of_declearn else _OUR_CONFIG
        missing, unknown = {expected[0]} - set(config), sorted(map(str, set(config) - set(expected)))
        if missing or unknown:
            raise ConfigKeyError(
                f"Can't build Modular from a config: expected {expected[0]}, and any of {', '.join(expected[1:])}; "
                f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}."
            )
        return cls(params, **{"w_decay": 0.0, **config} if of_declearn else config)

    def __getstate__(self) -> dict[str, Any]:
        ours = (
            "_decay",
            "_normalize",
            "shared",
            "_parts",
            "_batch_size",
            "_normalizes_early",
            "_told_names",
        )
        return {**super().__getstate__(), **{name: vars(self)[name] for name in ours}}

    # ------------------------------------------------------------------ names

    def tell_names(self, names: Mapping[Tensor, str]) -> None:
        """Set the lasting names of params. names (Mapping): It is not copied, and may change later."""
        self._told_names = names

    def named_params(self) -> dict[str, Tensor]:
        """All params by name: names from `tell_names`, or those in the param groups, or "0", "1" ..."""
        params = [param for group in self.param_groups for param in group["params"]]
        if self._told_names is not None:
            return {self._told_names[param]: param for param in params}
        names = [name for group in self.param_groups for name in group.get("param_names", ())]
        return dict(zip(names or map(str, range(len(params))), params))

    def _name_of(self, param: Tensor) -> str:
        return next((name for name, other in self.named_params().items() if other is param), "?")

    # ------------------------------------------------------------------ state

    def get_state(self, *, as_json: bool = False) -> dict[str, Any]:
        """Copies of the state, by the names of params. Options are in the config instead.

        as_json (bool): Only values that JSON has: tensors become dicts with their dtype, shape, and bytes in base64.
        """
        states = {name: self.state.get(param, {}) for name, param in self.named_params().items()}
        state = state_by_name(self._parts, states, self.shared.parts)
        return to_json(state) if as_json else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state` of an optimizer with the same parts and params, as JSON or not. An error
        changes nothing.

        RAISES (StateKeyError): Parts, params or values are missing or unknown. (StateError): The state is damaged.
        """
        named, groups = self.named_params(), {param: group for group in self.param_groups for param in group["params"]}
        options = {name: groups[param] for name, param in named.items()}
        new, shared = read_state(self._parts, options, named, state)
        states = defaultdict(dict, {param: new[name] for name, param in named.items() if new[name]})
        self.__dict__.update(state=states, shared=SharedState(shared))

    def state_dict(self) -> dict[str, Any]:
        """As for any torch optimizer, with the shared state of parts as "shared"."""
        return {**super().state_dict(), "shared": self.shared.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As for any torch optimizer, but state keeps its own dtype."""
        shared = check_shared(self._parts, state_dict.get("shared"))
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        own_state_dict(self, state_dict)
        self.shared = SharedState(shared)

    # ------------------------------------------------------------------ in a federation

    def collect_aux_var(self) -> dict[str, AuxVar]:
        """Collect the auxiliary variables for other optimizers of the federation, by name."""
        changes: Changes = {}
        found: dict[str, AuxVar] = {}
        for part in self._parts:
            if part.has_aux:
                aux, of_part = part.collect_aux(self._states_of(part), self.shared.parts[part.label])
                if aux is None:
                    warnings.warn(
                        AuxVarWarning(f"{part.where} has nothing to send: there was no step since the round began."),
                        stacklevel=2,
                    )
                else:
                    found[part.key] = aux
                self._add_changes(changes, part, of_part)
        self._commit(changes, {})
        return found

    def process_aux_var(self, aux: Mapping[str, AuxVar] | Sequence[Mapping[str, AuxVar]]) -> None:
        """Process auxiliary variables of other optimizers. An error changes nothing.

        aux (Mapping | Sequence): From `collect_aux_var`. A list, from several clients, is aggregated.
        RAISES (AuxVarKeyError): No module uses it, or it has other params. (AuxVarError): It is invalid.
        """
        self._commit(*self._effect_of(aux))

    def check_aux_var(self, aux: Mapping[str, AuxVar] | Sequence[Mapping[str, AuxVar]]) -> None:
        """Raise the errors of `process_aux_var`, without any change."""
        self._effect_of(aux)

    def _effect_of(self, aux: Any) -> tuple[Changes, Changes]:
        """RETURNS (tuple): Changes to the states of params, by name, and to the shared state of parts, by label."""
        if isinstance(aux, Sequence) and aux and all(isinstance(own, Mapping) for own in aux):
            aux = aggregate(aux)
        if not isinstance(aux, Mapping):
            raise AuxVarTypeError(
                "Can't process auxiliary variables: expected a dict from collect_aux_var, or a list of them, found "
                f"{aux!r}."
            )
        receivers = {part.key: part for part in self._parts if part.has_aux}
        names = {part.name: part for part in receivers.values()} | receivers
        unknown = sorted(str(name) for name in aux if name not in names)
        if unknown:
            raise AuxVarKeyError(
                f"Can't process auxiliary variables: expected those of {', '.join(receivers) or 'no module'}, found "
                f"{', '.join(unknown)}. Nothing was processed."
            )
        changes: Changes = {}
        shared: Changes = {}
        for name, value in aux.items():
            part = names[name]
            if part.label in shared:
                raise AuxVarKeyError(
                    f"Can't process auxiliary variables: expected one for {part.where}, found several."
                )
            try:
                of_part, shared[part.label] = part.process_aux(
                    value, self._states_of(part), self.shared.parts[part.label]
                )
            except AuxVarError:
                raise
            except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise AuxVarError(
                    f"Can't use auxiliary variables in {part.where}: expected the result of collect_aux_var, found "
                    f"other values ({error!r})."
                ) from error
            self._add_changes(changes, part, of_part)
        return changes, shared

    def _states_of(self, part: ModularPart) -> dict[str, dict[str, Any]]:
        """A part's state of each param that it works on; the first state for params without one."""
        found = {}
        for name, param in self.named_params().items():
            if part.concerns(name):
                kept = dict(StateView(self.state.get(param, {}), part.label))
                found[name] = kept or part.first_state(param.detach())
        return found

    def _add_changes(self, changes: Changes, part: ModularPart, of_part: Mapping[str, dict[str, Any]]) -> None:
        """Add changes, under their keys in the state of a param."""
        named = self.named_params()
        for name, own in of_part.items():
            kept = StateView(self.state.get(named[name], {}), part.label)
            full = own if kept else {**part.first_state(named[name].detach()), **own}
            changes.setdefault(name, {}).update({kept.prefix + key: value for key, value in full.items()})

    def _commit(self, changes: Changes, shared: Changes) -> None:
        """Apply computed changes."""
        named = self.named_params()
        for name, change in changes.items():
            self.state[named[name]] = {**self.state.get(named[name], {}), **change}
        self.shared = SharedState(
            {label: {**kept, **shared.get(label, {})} for label, kept in self.shared.parts.items()}
        )


def _as_tensor(grad: Any, name: str, *, like: Tensor) -> Tensor:
    """A gradient as a tensor on the device of its param."""
    if isinstance(grad, Tensor):
        return grad
    if isinstance(grad, numpy.ndarray) and grad.dtype.kind == "f":
        return torch.tensor(grad).to(like.device)
    found = f"an array of {grad.dtype}" if isinstance(grad, numpy.ndarray) else type(grad).__name__
    raise ConfigTypeError(
        f"Can't apply the gradient of param '{name}': expected a tensor or a NumPy array of floats, found {found}."
    )


def _refuse_schedule(name: str, value: Any) -> None:
    """RAISES (ConfigTypeError): A schedule, a list, or one of declearn's schedulers by its name."""
    if isinstance(value, (list, tuple)) or hasattr(value, "__next__"):
        found = "a schedule" if hasattr(value, "__next__") else repr(value)
        place = f"optimizer.{name}" if name in _IN_ALL_GROUPS else f"'{name}' in each of optimizer.param_groups"
        raise ConfigTypeError(
            f"Can't set '{name}' of Modular: expected a number, found {found}. In a loop of your own, set {place} "
            "before each step. In a config, TorchOptimizer takes schedules."
        )


def _one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise ConfigTypeError(f"Can't build Modular: '{name}' and '{other_name}' mean the same. Remove one of them.")
    return other if value is None else value


def _check_exchange(parts: Iterable[ModularPart]) -> None:
    """RAISES (ConfigError): Two parts exchange auxiliary variables under one name."""
    keys = [part.key for part in parts if part.has_aux]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(f"Can't build Modular: several modules exchange '{twice[0]}'. Remove all but one.")
    behind = None
    for part in parts:
        if part.name == "scaffold-client" and behind is not None:
            warnings.warn(
                ConfigWarning(
                    f"{part.where} comes after {behind.where}, which is not linear, so it would not get gradients. Put "
                    "it first."
                ),
                stacklevel=4,
            )
        if isinstance(part, Module) and not part.is_linear:
            behind = behind or part
