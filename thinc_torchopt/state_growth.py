"""Optimizer state that follows its params when a model grows, shrinks or is built anew.

The method is Tolaria's dynamic optimizer state preservation. What becomes of a state tensor is told by its *kind*:

identity: same shape. The very same tensor goes on.
expand: dimensions grew. Old cells keep index and value, new ones are filled.
contract: dimensions shrank. The leading cells keep index and value.
reshape: the cells have no index in common. With as many cells as before they keep their order (as in `torch.reshape`); or else they are
    interpolated linearly, along each dimension, or along all cells in their order if the number of dimensions is another.

A *fill* is made dimension after dimension: new rows are the mean of the old rows, then new columns the mean of the old columns, over old
and new rows alike. So the new cells of a corner get the mean of all old cells. Neither a mean nor an interpolation of second moments is
below zero.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor

from .errors import ConfigError, StateError

Kind = Literal["identity", "expand", "contract", "reshape"]
OnGrowth = Literal["mean", "zero"]
Shape = tuple[int, ...]

# What torch.optim and its relatives call their state.
_SECOND_MOMENTS = frozenset(["exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta", "variance"])
_PER_ELEMENT = _SECOND_MOMENTS | {"exp_avg", "momentum_buffer", "grad_avg", "prev", "step_size", "ax"}
_PER_PARAM = frozenset(["step", "mu_product", "mu", "eta"])
# Factored second moments: along which dimension they were summed up. That has size 1 there (torch), or is missing (others).
_FACTORED = {"row_var": -1, "col_var": -2, "exp_avg_sq_row": -1, "exp_avg_sq_col": -2}
_NON_NEGATIVE = _SECOND_MOMENTS | _FACTORED.keys() | {"step", "step_size"}
# What stands there before a param's first step, if not 0: a number, or the option that holds it.
_FIRST_VALUES: dict[str, float | str] = {"mu_product": 1.0, "mu": 1.0, "eta": "lr", "step_size": "lr", "sum": "initial_accumulator_value"}
# SGD's momentum is a sum of gradients, and no average: in full it would throw new cells far.
_MOMENTUM_SCALE = 0.1


@dataclass(frozen=True)
class StateMapping:
    """Whose state a param gets.

    old (str | None): Name of the param in the old model. None: nobody's, it starts anew.
    new (str): Name of the param in the new model.
    kind (Kind | None): What becomes of the state. None: found from the shapes.
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
    on_growth: OnGrowth = "mean",
) -> torch.optim.Optimizer:
    """Make the optimizer that goes on with a new model where another stood with the old one.

    Params are matched by name; the shapes tell what becomes of their state. A param that is new to the model joins the group of its
    nearest relative in the old one, with fresh state; params that did not learn, or that another optimizer trained, stay out. Groups keep
    their order and options. State of params that are gone goes.

    State of params of the same shape is not copied: it is the new optimizer's, give up the old one. If anything is wrong, an error says
    so, and the old optimizer is as it was. Hooks and learning rate schedulers stay with the old one.

    optimizer (torch.optim.Optimizer): The one that trained the old model. Any that steps param by param, so not LBFGS.
    new_model (torch.nn.Module): The model that is trained from now on, on its device.
    old_model (torch.nn.Module | Mapping[str, Tensor]): The model that the optimizer trained, or, if it was changed in place,
        `dict(model.named_parameters())` of before.
    mappings (Sequence[StateMapping] | Mapping[str, str | None]): For params of another name or kind; a dict is of new names and old ones.
        Params that are not named there are matched as always.
    on_growth (OnGrowth): What new cells get: the mean over the old ones, a tenth of it for SGD's momentum; or zero.
    RETURNS (torch.optim.Optimizer): A new one, of the same class.
    RAISES (StateError): The models and the optimizer, a mapping and its shapes, or a state and its param do not fit, or a state is not
        finite.
    """
    _check_on_growth(on_growth)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise StateError("Can't keep the state of LBFGS: expected state for each param, found one for all together. Begin with a new one.")
    members = _match(optimizer, _names(new_model), _names(old_model), mappings)
    state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
    with torch.no_grad():
        check_states(_fit_all(optimizer, members, on_growth, state))  # one param after the other: what was just made is in the cache
    groups = []
    for i, group in enumerate(optimizer.param_groups):
        of_group = [member for member in members if member.group == i]
        groups.append({**group, "params": [member.param for member in of_group]})
        if "param_names" in group:
            groups[i]["param_names"] = [member.name for member in of_group]
    return _build_like(optimizer, groups, state)


def fit_param_state(
    optimizer_class: type[torch.optim.Optimizer],
    state: Mapping[str, Any],
    old_shape: Sequence[int],
    new_param: Tensor,
    *,
    on_growth: OnGrowth = "mean",
    kind: Kind | None = None,
    name: str = "?",
    old_dtype: torch.dtype | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fit the whole state of one param to the shape that it now has.

    State of the param's shape is fitted, factored state along the dimensions that it has, numbers are kept. What needs no change is not
    copied.

    optimizer_class (type): The class whose state it is.
    state (Mapping[str, Any]): As the optimizer keeps it.
    old_shape (Sequence[int]): Shape of the param to which it belonged.
    new_param (Tensor): The param to which it will belong. Its device, and its strides, are the state's from now on.
    on_growth (OnGrowth): What new cells get.
    kind (Kind | None): None: found from the shapes.
    name (str): Name of the param, for errors.
    old_dtype (torch.dtype | None): Dtype of the old param. State of this dtype gets the new param's. None: all keep theirs.
    options (Mapping[str, Any]): The new param's group: `fused` and `capturable` say whether `step` is on the param's device.
    RETURNS (dict[str, Any]): The same keys.
    RAISES (StateError): The kind does not fit the shapes, or there is state of an unknown shape.
    """
    _check_on_growth(on_growth)
    old, new = tuple(old_shape), tuple(new_param.shape)
    _check_kind(kind, old, new, f"the state of param '{name}'")
    if old != new and kind is None and _is_reshape(old, new):
        kind = "reshape"  # and so for factored state, whose own shapes may look like another kind
    on_device = bool(options and (options.get("fused") or options.get("capturable")))
    fitted: dict[str, Any] = {}
    for key, value in state.items():
        shape = _new_shape(key, value, old, new, name)
        if not isinstance(value, Tensor):
            fitted[key] = value
        elif shape is None:
            stays = key == "step" and value.device.type == "cpu" and not on_device
            fitted[key] = value if stays or value.device == new_param.device else value.to(new_param.device)
        else:
            dtype = new_param.dtype if value.dtype == old_dtype else value.dtype
            if value.device != new_param.device or value.dtype != dtype:
                value = value.to(new_param.device, dtype)
            scale = _MOMENTUM_SCALE if key == "momentum_buffer" and issubclass(optimizer_class, torch.optim.SGD) else 1.0
            fitted[key] = _with_strides_of(new_param, fit_state(value, shape, kind=kind, fill=on_growth, scale=scale))
    if math.prod(old) != math.prod(new) and {"square_avg", "grad_avg"} <= fitted.keys():  # or else there are no new cells
        _keep_variance(fitted["square_avg"], fitted["grad_avg"], state["square_avg"] if kind != "reshape" else None)
    return fitted


def fit_state(value: Tensor, shape: Sequence[int], *, kind: Kind | None = None, fill: OnGrowth = "mean", scale: float = 1.0) -> Tensor:
    """Fit one state tensor to a shape.

    value (Tensor): State before, e.g. exp_avg. Shape: any.
    shape (Sequence[int]): The shape to come.
    kind (Kind | None): What becomes of the cells. None: found from the shapes; dimensions may grow and shrink at once, and are then first
        contracted.
    fill (OnGrowth): What new cells get: the mean over the old ones along the dimension that grew, or zero.
    scale (float): Multiplies what new cells get.
    RETURNS (Tensor): Of the same dtype and device. `value` itself if nothing changes; a view of it if only the dimensions are other ones.
    RAISES (StateError): The kind does not fit the shapes.
    """
    old, new = tuple(value.shape), tuple(shape)
    if old == new:
        return value
    _check_kind(kind, old, new, "a state tensor")
    if not (value.is_floating_point() or value.is_complex()):
        return fit_state(value.double(), new, kind=kind, fill=fill, scale=scale).round_().to(value.dtype)
    if kind == "reshape" or (kind is None and _is_reshape(old, new)):
        return _interpolate(value, new)
    return _expand(_contract(value, new), new, fill, scale)


def check_states(states: Iterable[tuple[str, Mapping[str, Any], Tensor]]) -> None:
    """Check that states are such that their params can be trained with them.

    states (Iterable): Names, states and params.
    RAISES (StateError): One has another shape or device than its param, is not finite, or is below zero and must not be.
    """
    of_device: dict[torch.device, list[tuple[str, str, Tensor, Tensor]]] = defaultdict(list)
    for name, state, param in states:
        if not state:
            raise StateError(f"Can't use the state of param '{name}': expected values, found none.")
        for key, value in state.items():
            if isinstance(value, Tensor):
                if key in _PER_ELEMENT:
                    _check_place(name, key, value, param)
                if value.is_complex():
                    value = torch.view_as_real(value)
                if value.is_floating_point() and value.numel():
                    bounds = (value, value) if value.ndim == 0 else torch.aminmax(value)
                    of_device[value.device].append((name, key, *bounds))
            elif isinstance(value, (int, float)):
                _check_range(name, key, value, value)
    for found in of_device.values():  # one transfer for each device
        _, _, lows, highs = zip(*found)
        for (name, key, _, _), low, high in zip(found, torch.stack(lows).tolist(), torch.stack(highs).tolist()):
            _check_range(name, key, low, high)


# ---------------------------------------------------------------------- one tensor


def _contract(value: Tensor, shape: Shape) -> Tensor:
    if all(size >= old for size, old in zip(shape, value.shape)):
        return value
    return _leading(value, shape).clone(memory_format=torch.contiguous_format)  # a view would keep all of the old cells in memory


def _expand(value: Tensor, shape: Shape, fill: OnGrowth, scale: float) -> Tensor:
    if fill == "zero" or not value.numel():
        grown = value.new_zeros(shape)
        _leading(grown, value.shape).copy_(value)
        return grown
    if value.shape == shape:
        return value
    grown = value.new_empty(shape)
    filled = _leading(grown, value.shape).copy_(value)  # before the mean, which then finds it in the cache
    for dim, size in enumerate(shape):
        if size > filled.shape[dim]:
            mean = filled.mean(dim, keepdim=True)
            old_size, sizes = filled.shape[dim], [*filled.shape[:dim], size, *filled.shape[dim + 1 :]]
            filled = _leading(grown, sizes)
            filled.narrow(dim, old_size, size - old_size).copy_(mean)
    if scale != 1.0:
        grown.mul_(scale)
        _leading(grown, value.shape).copy_(value)
    return grown


def _interpolate(value: Tensor, shape: Shape) -> Tensor:
    if value.numel() == math.prod(shape):
        return value.reshape(shape)
    if not value.numel() or not math.prod(shape):
        return value.new_zeros(shape)
    if value.ndim != len(shape):
        return _resample(value.flatten(), 0, math.prod(shape)).view(shape)
    for dim, size in enumerate(shape):
        value = _resample(value, dim, size)
    return value


def _resample(value: Tensor, dim: int, size: int) -> Tensor:
    """Interpolate linearly along one dimension, as `torch.nn.functional.interpolate` does along the last one of floats."""
    old_size = value.shape[dim]
    if size == old_size:
        return value
    positions = torch.arange(size, dtype=torch.float64, device=value.device).add_(0.5).mul_(old_size / size).sub_(0.5)
    positions.clamp_(0, old_size - 1)
    lower = positions.long()
    weight = (positions - lower).to(value.dtype).view(-1, *[1] * (value.ndim - dim - 1))
    upper_cells = value.index_select(dim, (lower + 1).clamp_(max=old_size - 1))
    return value.index_select(dim, lower).lerp_(upper_cells, weight)


def _leading(value: Tensor, shape: Sequence[int]) -> Tensor:
    """View of the cells that have an index in a shape too."""
    for dim, size in enumerate(shape):
        if size < value.shape[dim]:
            value = value.narrow(dim, 0, size)
    return value


def _with_strides_of(param: Tensor, value: Tensor) -> Tensor:
    """State in the memory format of its param: torch's fused steps go through both cell by cell, as they lie in memory."""
    if value.shape != param.shape or value.stride() == param.stride():
        return value
    return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)


def _keep_variance(square_avg: Tensor, grad_avg: Tensor, old_square_avg: Tensor | None) -> None:
    """Centered RMSprop takes the root of `square_avg - grad_avg**2`: see to it that rounding in the new cells brings it not below zero.

    old_square_avg (Tensor | None): Its cells stay as they are. None: there are none left.
    """
    if not square_avg.is_floating_point():
        return
    least = grad_avg.square().mul_(1 + 4 * torch.finfo(square_avg.dtype).eps)
    torch.maximum(square_avg, least, out=square_avg)
    if old_square_avg is not None:
        shape = [min(sizes) for sizes in zip(square_avg.shape, old_square_avg.shape)]
        _leading(square_avg, shape).copy_(_leading(old_square_avg, shape))


# ---------------------------------------------------------------------- one param


def _new_shape(key: str, value: Any, old: Shape, new: Shape, name: str) -> Shape | None:
    """The shape that a state will have. None: it has nothing to do with the param's."""
    if not isinstance(value, Tensor):
        if old != new and not (value is None or isinstance(value, (bool, int, float, str))):
            _refuse_state(name, key, f"a {type(value).__name__}", old)
        return None
    if key in _PER_PARAM:
        return None
    found = tuple(value.shape)
    if key in _FACTORED:
        if _factored(old, key, len(found)) == found and len(old) == len(new):
            return _factored(new, key, len(found))
    elif found == old:
        return new
    elif value.numel() == 1:
        return None
    if old == new:
        return found
    _refuse_state(name, key, f"shape {found}", old)


def _factored(shape: Shape, key: str, ndim: int) -> Shape:
    """Shape of a factored state."""
    if len(shape) < 2:
        return ()
    summed = len(shape) + _FACTORED[key]
    return (*shape[:summed], *([1] if ndim == len(shape) else []), *shape[summed + 1 :])


def _refuse_state(name: str, key: str, found: str, old: Shape) -> NoReturn:
    raise StateError(
        f"Can't fit the state of param '{name}' to its new shape: expected '{key}' to have the param's shape, {old}, or to be a number, "
        f"found {found}."
    )


def _fresh_state(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], param: Tensor) -> dict[str, Any] | None:
    """The state that a class makes before a param's first step, by the example of another param of the group.

    RETURNS (dict | None): None: no example, or none that tells. The class makes it at the first step.
    """
    for other in group["params"]:
        example = optimizer.state.get(other)
        if example and all(isinstance(value, Tensor) for value in example.values()):
            break
    else:
        return None
    if not example.keys() <= (_PER_ELEMENT - {"variance"}) | _PER_PARAM:
        return None
    fresh = {}
    for key, value in example.items():
        first = _FIRST_VALUES.get(key, 0.0)
        number = float(group[first] if isinstance(first, str) else first)
        if key in _PER_ELEMENT:
            dtype = param.dtype if value.dtype == other.dtype else value.dtype
            fresh[key] = torch.full_like(param, number, dtype=dtype, requires_grad=False)
        else:
            fresh[key] = torch.full_like(value, number)
    return fit_param_state(type(optimizer), fresh, param.shape, param, options=group)


def _check_place(name: str, key: str, value: Tensor, param: Tensor) -> None:
    if value.shape != param.shape:
        raise StateError(
            f"Can't use the state of param '{name}': {key} has shape {tuple(value.shape)}, the param has {tuple(param.shape)}. It is the "
            "state of another param, or of the same before it grew."
        )
    if value.device != param.device or value.is_complex() != param.is_complex():
        raise StateError(
            f"Can't use the state of param '{name}': {key} is {value.dtype} on {value.device}, the param {param.dtype} on {param.device}. "
            "Convert and move the model before its state."
        )


def _check_range(name: str, key: str, low: float, high: float) -> None:
    if not -math.inf < low <= high < math.inf:
        raise StateError(
            f"Can't use the state of param '{name}': expected finite values in {key}, found NaN or infinite ones. A gradient was not "
            "finite once: go back to a state of before, or begin with a new optimizer."
        )
    if low < 0 and key in _NON_NEGATIVE:
        raise StateError(f"Can't use the state of param '{name}': expected no values below zero in {key}, found {low:g}. It is damaged.")


def _check_kind(kind: Kind | None, old: Shape, new: Shape, what: str) -> None:
    if kind is None or kind == "reshape":
        return
    pairs = list(zip(old, new))
    fits = {
        "identity": old == new,
        "expand": len(old) == len(new) and all(before <= after for before, after in pairs),
        "contract": len(old) == len(new) and all(before >= after for before, after in pairs),
    }
    if kind not in fits:
        raise StateError(f"Can't fit {what}: expected one of {list(get_args(Kind))} as kind, found {kind!r}.")
    if not fits[kind]:
        expected = {"identity": "the same shape", "expand": "no dimension to shrink", "contract": "no dimension to grow"}[kind]
        raise StateError(f"Can't fit {what} by '{kind}': expected {expected}, found {old} before and {new} now. Leave the kind out.")


def _check_on_growth(on_growth: str) -> None:
    if on_growth not in get_args(OnGrowth):
        raise ConfigError(f"Can't grow optimizer state: expected on_growth to be one of {list(get_args(OnGrowth))}, found {on_growth!r}.")


def _is_reshape(old: Shape, new: Shape) -> bool:
    """Whether the cells of two shapes, which are not the same, have no index in common."""
    return len(old) != len(new) or math.prod(old) == math.prod(new)


# ---------------------------------------------------------------------- all params


@dataclass
class _Member:
    """A param of the new optimizer.

    old (Tensor | None): The param whose state it gets. None: nobody's.
    group (int): Index of its group.
    place (float): Its place there, or that of the param whose state it gets.
    """

    name: str
    param: Tensor
    old: Tensor | None
    kind: Kind | None
    group: int
    place: float


def _names(model: torch.nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All names of all params: one that stands in several places has several."""
    return dict(model) if isinstance(model, Mapping) else dict(model.named_parameters(remove_duplicate=False))


def _match(optimizer: torch.optim.Optimizer, new: dict[str, Tensor], old: dict[str, Tensor], mappings: Any) -> list[_Member]:
    """Who will be in the optimizer, in order."""
    places = {id(param): (i, k) for i, group in enumerate(optimizer.param_groups) for k, param in enumerate(group["params"])}
    if not any(id(param) in places for param in old.values()):
        raise StateError(
            f"Can't keep the state of {type(optimizer).__name__}: expected it to train params of the old model, found none of its "
            f"{len(old)} there. Give the model itself, not a copy; if it was changed in place, dict(model.named_parameters()) of before."
        )
    wanted = _read_mappings(mappings, new, old)
    relatives = _index_relatives(old, places)
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
        elif found is not None and param.requires_grad and (group := _find_relative(relatives, name)) is not None:
            members.append(_Member(name, param, None, None, group, math.inf))
    return sorted(members, key=lambda member: (member.group, member.place))


def _fit_all(
    optimizer: torch.optim.Optimizer, members: list[_Member], on_growth: OnGrowth, state: dict[Tensor, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any], Tensor]]:
    """Put the state of each param into `state`, and yield it, as `check_states` takes it."""
    taken: set[int] = set()
    for member in members:
        group = optimizer.param_groups[member.group]
        if member.old is None:
            if fresh := _fresh_state(optimizer, group, member.param):
                state[member.param] = fresh
        elif old_state := optimizer.state.get(member.old):
            if id(member.old) in taken:  # two params can't share one state
                old_state = {key: value.clone() if isinstance(value, Tensor) else value for key, value in old_state.items()}
            taken.add(id(member.old))
            state[member.param] = fit_param_state(
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
        if member.param in state:
            yield member.name, state[member.param], member.param


def _find(
    aliases: list[str], wanted: Mapping[str, StateMapping], old: Mapping[str, Tensor], places: Mapping[int, tuple[int, int]]
) -> StateMapping | None:
    """Whose state a param gets. RETURNS (StateMapping | None): None: it was there before, and this optimizer did not train it."""
    for name in aliases:
        if name in wanted:
            mapping = wanted[name]
            if mapping.old is not None and id(old[mapping.old]) not in places:
                raise StateError(
                    f"Can't map param '{mapping.old}' to '{name}': expected it to be in the optimizer, found it in none of its groups."
                )
            return mapping
    known = [name for name in aliases if name in old]
    for name in known:
        if id(old[name]) in places:
            return StateMapping(name, name)
    return None if known else StateMapping(None, aliases[0])


def _index_relatives(old: Mapping[str, Tensor], places: Mapping[int, tuple[int, int]]) -> dict[Any, int | None]:
    """By module and last name part (weight, bias, ..., or "" for any): the group of the first param there, None if it is another's."""
    found: dict[Any, int | None] = {}
    for name, param in old.items():
        is_ours = id(param) in places
        if not is_ours and not param.requires_grad:
            continue  # frozen: its new neighbours need not be
        group = places[id(param)][0] if is_ours else None
        parts = tuple(name.split("."))
        for depth in range(0 if is_ours else 1, len(parts) + 1):  # those who are related by the whole model only are ours
            found.setdefault((parts[:depth], parts[-1]), group)
            found.setdefault((parts[:depth], ""), group)
    return found


def _find_relative(relatives: Mapping[Any, int | None], name: str) -> int | None:
    """The group of the nearest relative: from the innermost module outwards, one of the same last name part first."""
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
            raise StateError(f"Can't use a mapping: expected a StateMapping, or a dict of new and old names, found {mapping!r}.")
        for which, name, names in (("new", mapping.new, new), ("old", mapping.old, old)):
            if name is not None and name not in names:
                raise StateError(
                    f"Can't map param '{mapping.old}' to '{mapping.new}': expected a name of the {which} model, found '{name}'. It has: "
                    f"{', '.join(list(names)[:5])}{', ...' if len(names) > 5 else ''}."
                )
        param = new[mapping.new]
        if id(param) in taken:
            raise StateError(f"Can't map param '{mapping.new}': expected one mapping for it, found another for '{taken[id(param)]}'.")
        if mapping.kind is not None and mapping.old is not None:
            _check_kind(mapping.kind, tuple(old[mapping.old].shape), tuple(param.shape), f"the state of param '{mapping.new}'")
        taken[id(param)] = mapping.new
        found[mapping.new] = mapping
    return found


def _build_like(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: defaultdict[Tensor, dict[str, Any]]
) -> torch.optim.Optimizer:
    """An optimizer as pickle would make it. Its class, called, might want other arguments, or make all state once more, as Adagrad does."""
    made: torch.optim.Optimizer = object.__new__(type(optimizer))
    # What others set there is bound to the old one: hooks, and `step`, which learning rate schedulers replace.
    left = {"state", "param_groups", "defaults", "step"}
    vars(made).update({key: value for key, value in vars(optimizer).items() if key not in left and not key.endswith("_hooks")})
    made.__setstate__({"defaults": dict(optimizer.defaults), "state": state, "param_groups": groups})
    return made
