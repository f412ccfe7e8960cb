"""Exchange auxiliary variables between the parts of an optimizer and the rest of a federation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ..errors import AuxVarError, AuxVarKeyError, AuxVarTypeError, AuxVarWarning
from .aux_vars import AuxVar, aggregate
from .chain import Kept
from .module import Part

States = Mapping[str, dict[str, Any]]
Changes = dict[str, dict[str, Any]]


def collect_aux_vars(
    parts: Sequence[Part], states: States, params: Mapping[str, Tensor], shared: Mapping[str, dict[str, Any]]
) -> tuple[Changes, dict[str, AuxVar]]:
    """Collect the auxiliary variables that parts send. Changes nothing.

    states (Mapping): States of params, by name. params (Mapping): The params, by the same names.
    RETURNS (tuple): Changes to the states of params after sending, and the auxiliary variables by name.
    """
    changes: Changes = {}
    found: dict[str, AuxVar] = {}
    for part in parts:
        if part.has_aux:
            aux, of_part = part.collect_aux(states_of(part, states, params), shared[part.label])
            if aux is None:
                warnings.warn(
                    AuxVarWarning(f"{part.where} has nothing to send: there was no step since the round began."),
                    stacklevel=3,
                )
            else:
                found[part.key] = aux
            add_changes(changes, part, of_part, states, params)
    return changes, found


def process_aux_vars(
    parts: Sequence[Part],
    states: States,
    params: Mapping[str, Tensor],
    shared: Mapping[str, dict[str, Any]],
    aux: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[Changes, dict[str, dict[str, Any]]]:
    """Compute the effect of received auxiliary variables on parts. Changes nothing.

    RETURNS (tuple): Changes to the states of params, and to the shared state of parts.
    RAISES (AuxVarError): No part uses one of them, or it is invalid.
    """
    if isinstance(aux, Sequence) and aux and all(isinstance(own, Mapping) for own in aux):
        aux = aggregate(aux)
    if not isinstance(aux, Mapping):
        raise AuxVarTypeError(
            "Can't process auxiliary variables: expected a dict from collect_aux_var, or a list of them, found "
            f"{aux!r}."
        )
    receivers = {part.key: part for part in parts if part.has_aux}
    names = {part.name: part for part in receivers.values()} | receivers
    unknown = sorted(str(name) for name in aux if name not in names)
    if unknown:
        raise AuxVarKeyError(
            f"Can't process auxiliary variables: expected those of {', '.join(receivers) or 'no module'}, found "
            f"{', '.join(unknown)}. Nothing was processed."
        )
    changes: Changes = {}
    changed_shared: dict[str, dict[str, Any]] = {}
    for name, value in aux.items():
        part = names[name]
        if part.label in changed_shared:
            raise AuxVarKeyError(f"Can't process auxiliary variables: expected one for {part.where}, found several.")
        try:
            of_part, of_shared = part.process_aux(value, states_of(part, states, params), shared[part.label])
        except AuxVarError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise AuxVarError(
                f"Can't use auxiliary variables in {part.where}: expected the result of collect_aux_var, found other "
                f"values ({error!r})."
            ) from error
        changed_shared[part.label] = of_shared
        add_changes(changes, part, of_part, states, params)
    return changes, changed_shared


def states_of(part: Part, states: States, params: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """A part's state of each param that it works on; the first state for params without one."""
    found = {}
    for name, state in states.items():
        if part.concerns(name):
            kept = dict(Kept(state, part.label))
            found[name] = kept or part.first_state(params[name].detach())
    return found


def add_changes(
    changes: Changes, part: Part, of_part: Mapping[str, dict[str, Any]], states: States, params: Mapping[str, Tensor]
) -> None:
    """Add changes, under their keys in the state of a param."""
    for name, own in of_part.items():
        kept = Kept(states[name], part.label)
        full = own if kept else {**part.first_state(params[name].detach()), **own}
        changes.setdefault(name, {}).update({kept.prefix + key: value for key, value in full.items()})
