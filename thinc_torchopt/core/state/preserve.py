"""Keep the state of an optimizer when its model grows, shrinks or is rebuilt: match old and new params.

state_fit.py then fits the state of each param.

SOURCE: Tolaria's DynamicOptimizerStatePreserver.
DIFFERENCES: All param groups stay, with their options; there all params are in one group. Left out are params that were
    not trained before, and new ones that are frozen or next to such params; there the new optimizer gets all params of
    the model. A controller keeps its policies, steps and history; there it begins with a new cosine. Names, shapes and
    states are checked first, and an error changes nothing. LBFGS is refused.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..algorithms import Fill, Kind, check_kind, check_on_growth, check_states, fit_param_state, fresh_state
from ..checks import Section
from ..errors import StateError
from ..rates import add_new_params, rate_of, warm_up_new_params, warn_at_step, writer_of

_SECTION = Section("preserve_optimizer_state", allows_texts=False)


@dataclass(frozen=True)
class StateMapping:
    """The source of a param's state.

    old (str | None): Name of the param in the old model. None: it starts with fresh state.
    new (str): Name of the param in the new model.
    kind (Kind | None): How to fit the state. None: found from the shapes.
    """

    old: str | None
    new: str
    kind: Kind | None = None


def preserve_optimizer_state(
    optimizer: torch.optim.Optimizer,
    new_model: torch.nn.Module,
    old_model: torch.nn.Module | Mapping[str, Tensor],
    mappings: Sequence[StateMapping] | Mapping[str, str | None] | None = None,
    *,
    on_growth: Fill = "mean",
    new_params_warmup: int = 100,
    controller: Any = None,
) -> torch.optim.Optimizer:
    """Make an optimizer for a new model, with the state of an optimizer for the old one.

    Params are matched by name; their shapes decide how the state is fitted. Groups keep their order and options. State
    of removed params is dropped. Params that were not trained, or by another optimizer, stay out.

    New params get fresh state, and a group at the end for each group that has their nearest relative in the old model.
    It has the options of that group, and warms up to a tenth of its rate, as by `LearnRateController.add_params`.

    State of params of the same shape is not copied: don't use the old optimizer any more. After an error it is
    unchanged. Hooks and learning rate schedulers stay with the old optimizer.

    optimizer (torch.optim.Optimizer): The optimizer of the old model. Any that steps param by param, so not LBFGS.
    new_model (torch.nn.Module): The model to train from now on, on its device.
    old_model (torch.nn.Module | Mapping[str, Tensor]): The model that the optimizer trained, or, if it was changed in
        place, `dict(model.named_parameters())` from before the change.
    mappings (Sequence[StateMapping] | Mapping[str, str | None]): For params with another name or kind; a dict has new
        names as keys and old ones as values. All other params are matched by name.
    on_growth (Fill): How to fill new cells: the mean over the old ones, a tenth of it where momentum is a sum; or zero.
    new_params_warmup (int): Steps in which the rate of new params rises, from a hundredth of that tenth. 0: they join
        the group of their nearest relative, at its rate, as do those with relatives that are frozen.
    controller (LearnRateController | None): The controller of the old optimizer drives the new one from now on: see its
        `replace_optimizer`. Without one, a hook of the new optimizer, its copies and pickles warms up its new params:
        see `warm_up_new_params` for other ones. The first step of the new optimizer gives a warning if the old one has
        a controller.
    RETURNS (torch.optim.Optimizer): A new optimizer of the same class.
    RAISES (StateError): The models and the optimizer, a mapping and its shapes, or a state and its param do not fit, or
        a state is not finite. (ConfigError): The controller does not know the optimizer, or `new_params_warmup` is
        below 0.
    """
    started = 0.0 if controller is None else controller.timer()
    check_on_growth(on_growth)
    _SECTION.whole("new_params_warmup", new_params_warmup)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise StateError(
            "Can't keep the state of LBFGS: expected state for each param, found one for all together. Build a new "
            "optimizer."
        )
    # Groups whose new params join them: they have no rate, or are frozen.
    joined = {i for i, group in enumerate(optimizer.param_groups) if math.isnan(rate_of(group))}
    if controller is not None:
        joined |= controller.frozen_groups(optimizer)
    members = _match(optimizer, _names(new_model), _names(old_model), mappings)
    state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
    with torch.no_grad():
        # One param at a time: its new state is still in the cache.
        check_states(type(optimizer), _fit_all(optimizer, members, on_growth, state))
    groups: list[dict[str, Any]] = []
    late: dict[int, list[_Member]] = {}
    for i, group in enumerate(optimizer.param_groups):
        of_group = [member for member in members if member.group == i]
        if new_params_warmup and i not in joined:
            late[i] = [member for member in of_group if member.old is None]
            of_group = [member for member in of_group if member.old is not None]
        groups.append({**group, "params": [member.param for member in of_group]})
        if "param_names" in group:
            groups[i]["param_names"] = [member.name for member in of_group]
    made = _build_like(optimizer, groups, state)
    if controller is not None:
        controller.replace_optimizer(optimizer, made, param_names={member.param: member.name for member in members})
    for i, of_group in late.items():
        if of_group:
            has_names = "param_names" in groups[i]
            params: list[Any] = [(member.name, member.param) if has_names else member.param for member in of_group]
            if controller is None:
                add_new_params(made, params, i, new_params_warmup)
            else:
                controller.add_params(made, params, i, warmup_steps=new_params_warmup)
    warm_up_new_params(made)
    if controller is not None:
        controller.took("state_preservation", started)
    elif (writer := writer_of(optimizer)) is not None:
        drives = writer.drives
        warn_at_step(
            made,
            lambda: (
                f"Optimizer {type(made).__name__} was replaced without its controller, which still sets the learning "
                "rates of the old one. Those of the new one stay where they were. Give controller=controller to "
                "preserve_optimizer_state, or call controller.replace_optimizer."
                if drives(optimizer) and not drives(made)
                else None
            ),
        )
    return made


# ---------------------------------------------------------------------- all params


@dataclass
class _Member:
    """A param of the new optimizer.

    old (Tensor | None): The param that it gets its state from.
    group (int): Index of its group.
    place (float): Its place there, or the place of the old param.
    """

    name: str
    param: Tensor
    old: Tensor | None
    kind: Kind | None
    group: int
    place: float


def _names(model: torch.nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All names of all params: a param that is used in several places has several."""
    return dict(model) if isinstance(model, Mapping) else dict(model.named_parameters(remove_duplicate=False))


def _match(
    optimizer: torch.optim.Optimizer, new: dict[str, Tensor], old: dict[str, Tensor], mappings: Any
) -> list[_Member]:
    """The params of the new optimizer, in order."""
    places = {
        id(param): (i, k) for i, group in enumerate(optimizer.param_groups) for k, param in enumerate(group["params"])
    }
    if not any(id(param) in places for param in old.values()):
        raise StateError(
            f"Can't keep the state of {type(optimizer).__name__}: it trains none of the {len(old)} params of the old "
            "model. Give the model itself, not a copy; if it was changed in place, dict(model.named_parameters()) "
            "from before."
        )
    wanted = _read_mappings(mappings, new, old)
    relatives: dict[Any, int | None] | None = None
    names: dict[int, list[str]] = {}
    for name, param in new.items():
        names.setdefault(id(param), []).append(name)
    members = []
    for aliases in names.values():
        found = _find(aliases, wanted, old, places)
        name, param = aliases[0], new[aliases[0]]
        if found is not None and found.old is not None:
            source = old[found.old]
            members.append(_Member(name, param, source, found.kind, *places[id(source)]))
        elif found is not None and param.requires_grad:
            relatives = _index_relatives(old, places) if relatives is None else relatives
            if (group := _find_relative(relatives, name)) is not None:
                members.append(_Member(name, param, None, None, group, math.inf))
    return sorted(members, key=lambda member: (member.group, member.place))


def _fit_all(
    optimizer: torch.optim.Optimizer, members: list[_Member], on_growth: Fill, state: dict[Tensor, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any], Tensor]]:
    """Put the state of each param into `state`, and yield it for `check_states`."""
    taken: set[int] = set()
    for member in members:
        group = optimizer.param_groups[member.group]
        found = None
        if member.old is None:
            found = fresh_state(optimizer, group, member.param)
        elif old_state := optimizer.state.get(member.old):
            if id(member.old) in taken:  # two params can't share one state
                old_state = {
                    key: value.clone() if isinstance(value, Tensor) else value for key, value in old_state.items()
                }
            taken.add(id(member.old))
            found = fit_param_state(
                type(optimizer),
                old_state,
                member.old.shape,
                member.param,
                on_growth=on_growth,
                kind=member.kind,
                name=member.name,
                old_dtype=member.old.dtype,
                options=group,
            )
        if found:
            state[member.param] = found
            yield member.name, found, member.param


def _find(
    aliases: list[str],
    wanted: Mapping[str, StateMapping],
    old: Mapping[str, Tensor],
    places: Mapping[int, tuple[int, int]],
) -> StateMapping | None:
    """The source of a param's state. RETURNS (StateMapping | None): None: the param is old, and was not trained by this
    optimizer.
    """
    for name in aliases:
        if name in wanted:
            mapping = wanted[name]
            if mapping.old is not None and id(old[mapping.old]) not in places:
                raise StateError(
                    f"Can't map param '{mapping.old}' to '{name}': the optimizer does not have it in any of its groups."
                )
            return mapping
    known = [name for name in aliases if name in old]
    for name in known:
        if id(old[name]) in places:
            return StateMapping(name, name)
    return None if known else StateMapping(None, aliases[0])


def _index_relatives(old: Mapping[str, Tensor], places: Mapping[int, tuple[int, int]]) -> dict[Any, int | None]:
    """The group of the first param, by module and last part of the name (weight, bias, ..., or "" for any); None if it
    belongs to another optimizer.
    """
    found: dict[Any, int | None] = {}
    for name, param in old.items():
        is_ours = id(param) in places
        if not is_ours and not param.requires_grad:
            continue  # frozen, which says nothing about new neighbours
        group = places[id(param)][0] if is_ours else None
        parts = tuple(name.split("."))
        for depth in range(
            0 if is_ours else 1, len(parts) + 1
        ):  # relatives through the whole model must be in this optimizer
            found.setdefault((parts[:depth], parts[-1]), group)
            found.setdefault((parts[:depth], ""), group)
    return found


def _find_relative(relatives: Mapping[Any, int | None], name: str) -> int | None:
    """The group of the nearest relative, from the innermost module outwards; same last part of the name first."""
    parts = tuple(name.split("."))
    for depth in range(len(parts), -1, -1):
        for last in (parts[-1], ""):
            if (parts[:depth], last) in relatives:
                return relatives[parts[:depth], last]
    return None


def _read_mappings(mappings: Any, new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> dict[str, StateMapping]:
    """Mappings by new name, checked."""
    if mappings is None:
        return {}
    if isinstance(mappings, Mapping):
        mappings = [StateMapping(old_name, new_name) for new_name, old_name in mappings.items()]
    found: dict[str, StateMapping] = {}
    taken: dict[int, str] = {}
    for mapping in mappings:
        if not isinstance(mapping, StateMapping):
            raise StateError(
                f"Can't use a mapping: expected a StateMapping, or a dict of new and old names, found {mapping!r}."
            )
        for which, name, names in (("new", mapping.new, new), ("old", mapping.old, old)):
            if name is not None and name not in names:
                raise StateError(
                    f"Can't map param '{mapping.old}' to '{mapping.new}': expected a name of the {which} model, found "
                    f"'{name}'. It has: {', '.join(list(names)[:5])}{', ...' if len(names) > 5 else ''}."
                )
        param = new[mapping.new]
        if id(param) in taken:
            raise StateError(
                f"Can't map param '{mapping.new}': expected one mapping for it, found another for '{taken[id(param)]}'."
            )
        if mapping.kind is not None and mapping.old is not None:
            check_kind(
                mapping.kind, tuple(old[mapping.old].shape), tuple(param.shape), f"the state of param '{mapping.new}'"
            )
        taken[id(param)] = mapping.new
        found[mapping.new] = mapping
    return found


def _build_like(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: defaultdict[Tensor, dict[str, Any]]
) -> torch.optim.Optimizer:
    """An optimizer made as pickle would. Calling its class might need other arguments, or make all state again, as
    Adagrad does.
    """
    made: torch.optim.Optimizer = object.__new__(type(optimizer))
    # Attributes that other code set belong to the old one: hooks, and `step`, which learning rate schedulers replace.
    left = {"state", "param_groups", "defaults", "step", "__reduce_ex__"}
    vars(made).update(
        {key: value for key, value in vars(optimizer).items() if key not in left and not key.endswith("_hooks")}
    )
    made.__setstate__({"defaults": dict(optimizer.defaults), "state": state, "param_groups": groups})
    return made
