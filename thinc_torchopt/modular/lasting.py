"""What a Modular optimizer has by the lasting names of its params: its state, and what it tells other optimizers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .aux_vars import AuxVar
from .exchange import collect_aux_vars, process_aux_vars
from .module import Part
from .saved import check_shared, own_state_dict, read_state, state_by_name


class SharedState:
    """What parts keep beside params. parts (dict): By label."""

    def __init__(self, parts: dict[str, dict[str, Any]]):
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {label: dict(kept) for label, kept in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.parts = {label: dict(kept) for label, kept in state.items()}


class Lasting(torch.optim.Optimizer):
    """The part of Modular that goes by names."""

    shared: SharedState
    _parts: list[Part]
    _told_names: Mapping[Tensor, str] | None

    # ------------------------------------------------------------------ names

    def tell_names(self, names: Mapping[Tensor, str]) -> None:
        """Tell the lasting names of params. names (Mapping): May change later; it is not copied."""
        self._told_names = names

    def named_params(self) -> dict[str, Tensor]:
        """All params by name: those that were told, or those in the param groups, or "0", "1" ..."""
        params = [param for group in self.param_groups for param in group["params"]]
        if self._told_names is not None:
            return {self._told_names[param]: param for param in params}
        names = [name for group in self.param_groups for name in group.get("param_names", ())]
        return dict(zip(names or map(str, range(len(params))), params))

    def _name_of(self, param: Tensor) -> str:
        return next((name for name, other in self.named_params().items() if other is param), "?")

    # ------------------------------------------------------------------ state

    def get_state(self) -> dict[str, Any]:
        """All that was learned, by the names of params: copies. Options are in the config."""
        return state_by_name(self._parts, self._states(), self.shared.parts)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take a state from `get_state`, of an optimizer with the same parts and params. What fails changes nothing.

        RAISES (StateKeyError): Parts, params or values are missing or unexpected. (StateError): It is damaged.
        """
        new, shared = read_state(self._parts, self._states(), self._options_of(), self.named_params(), state)
        states = defaultdict(dict, {param: new[name] for name, param in self.named_params().items() if new[name]})
        self.__dict__.update(state=states, shared=SharedState(shared))

    def state_dict(self) -> dict[str, Any]:
        """As for any torch optimizer, with what parts keep beside params as "shared"."""
        return {**super().state_dict(), "shared": self.shared.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As for any torch optimizer. State keeps its own dtype."""
        shared = check_shared(self._parts, state_dict.get("shared"))
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "shared"})
        own_state_dict(self, state_dict)
        self.shared = SharedState(shared)

    def collect_aux_var(self) -> dict[str, AuxVar]:
        """What other optimizers of the federation should know, by the name of the module that sends it."""
        changes, found = collect_aux_vars(self._parts, self._states(), self.named_params(), self.shared.parts)
        self._commit(changes, {})
        return found

    def process_aux_var(self, aux: Mapping[str, AuxVar] | Sequence[Mapping[str, AuxVar]]) -> None:
        """Take what others sent. What fails changes nothing.

        aux (Mapping | Sequence): From `collect_aux_var`; of several clients, a list, which is aggregated.
        RAISES (AuxVarKeyError): No module takes it, or it is of other params. (AuxVarError): It can't be used.
        """
        self._commit(*process_aux_vars(self._parts, self._states(), self.named_params(), self.shared.parts, aux))

    def check_aux_var(self, aux: Mapping[str, AuxVar] | Sequence[Mapping[str, AuxVar]]) -> None:
        """Raise the errors that `process_aux_var` would raise. Changes nothing."""
        process_aux_vars(self._parts, self._states(), self.named_params(), self.shared.parts, aux)

    def _states(self) -> dict[str, dict[str, Any]]:
        """The state of each param, by name. Empty: it has none yet."""
        return {name: self.state.get(param, {}) for name, param in self.named_params().items()}

    def _options_of(self) -> dict[str, Mapping[str, Any]]:
        """The param group of each param, by its name."""
        groups = {param: group for group in self.param_groups for param in group["params"]}
        return {name: groups[param] for name, param in self.named_params().items()}

    def _commit(self, changes: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Mapping[str, Any]]) -> None:
        """Make changes that were computed before."""
        named = self.named_params()
        new = {named[name]: {**self.state.get(named[name], {}), **change} for name, change in changes.items()}
        all_shared = {label: {**kept, **shared.get(label, {})} for label, kept in self.shared.parts.items()}
        self.state.update(new)
        self.shared = SharedState(all_shared)
