"""Auxiliary variables between the parts of an optimizer and the others of a federation."""

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
    """What parts have to send. Changes nothing.

    states (Mapping): Of params, by name. params (Mapping): The same names.
    RETURNS (tuple): What changes in the states of params when it is sent, and the auxiliary variables by name.
    """
    changes: Changes = {}
    found: dict[str, AuxVar] = {}
    for part in parts:
        if part.has_aux:
            aux, of_part = part.collect_aux(states_of(part, states, params), shared[part.label])
            if aux is None:
                warnings.warn(
                    AuxVarWarning(
                        f"{part.where} has nothing to send: expected at least one step since the round began, found "
                        "none."
                    ),
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
    """Let parts take what others sent. Changes nothing.

    RETURNS (tuple): What changes in the states of params, and in what parts keep beside them.
    RAISES (AuxVarError): No part takes one of them, or it can't be used.
    """
    if isinstance(aux, Sequence) and aux and all(isinstance(own, Mapping) for own in aux):
        aux = aggregate(aux)
    if not isinstance(aux, Mapping):
        raise AuxVarTypeError(
            f"Can't process auxiliary variables: expected a dict from collect_aux_var, or a list of such, found "
            f"{aux!r}."
        )
    takers = {part.key: part for part in parts if part.has_aux}
    names = {part.name: part for part in takers.values()} | takers
    unknown = sorted(str(name) for name in aux if name not in names)
    if unknown:
        raise AuxVarKeyError(
            f"Can't process auxiliary variables: expected those of {', '.join(takers) or 'no module'}, found "
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
                f"Can't take auxiliary variables in {part.where}: expected what collect_aux_var gives, found "
                f"something else ({error!r})."
            ) from error
        changed_shared[part.label] = of_shared
        add_changes(changes, part, of_part, states, params)
    return changes, changed_shared


def states_of(part: Part, states: States, params: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """What a part keeps of each param on which it works, as it would be if the param had begun."""
    found = {}
    for name, state in states.items():
        if part.concerns(name):
            kept = dict(Kept(state, part.label))
            found[name] = kept or part.first_state(params[name].detach())
    return found


def add_changes(
    changes: Changes, part: Part, of_part: Mapping[str, dict[str, Any]], states: States, params: Mapping[str, Tensor]
) -> None:
    """Note changes, under the keys that they have in the state of a param."""
    for name, own in of_part.items():
        kept = Kept(states[name], part.label)
        full = own if kept else {**part.first_state(params[name].detach()), **own}
        changes.setdefault(name, {}).update({kept.prefix + key: value for key, value in full.items()})
