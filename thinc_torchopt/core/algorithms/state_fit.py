"""Fit the state of a param to a new shape of the param.

The *kind* of change decides how a state tensor is fitted:

identity: same shape. The same tensor is kept.
expand: dimensions grew. Old cells keep index and value, new ones are filled.
contract: dimensions shrank. The leading cells keep index and value.
reshape: the cells have no index in common. If their number is the same they keep their order (as in `torch.reshape`);
    otherwise they are interpolated linearly, along each dimension, or along all cells in order if the number of
    dimensions changes.

A *fill* goes dimension by dimension: new rows are the mean of the old rows, then new columns the mean of the old
columns, over old and new rows alike. So the new cells of a corner get the mean of all old cells. Neither a mean nor an
interpolation of second moments is negative. facts.py says which state gets less than a mean, or something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor

from ..errors import ConfigError, StateError
from ..inserted import Order
from .facts import PER_CELL, ROLES, Role, Roles, role_of, roles_of

Kind = Literal["identity", "expand", "contract", "reshape"]
Fill = Literal["mean", "zero"]
Shape = tuple[int, ...]

# The dimension of the param along which a state with this role was summed up.
_SUMMED = {"rows": -1, "columns": -2}
_SUM_SCALE = 0.1
# The value before a param's first step, if not 0: a number, or the option that holds it.
_FIRST_VALUES: dict[str, float | str] = {
    "mu_product": 1.0,
    "mu": 1.0,
    "eta": "lr",
    "step_size": "lr",
    "sum": "initial_accumulator_value",
}


def fit_param_state(
    optimizer_class: type[torch.optim.Optimizer],
    state: Mapping[str, Any],
    old_shape: Sequence[int],
    new_param: Tensor,
    *,
    on_growth: Fill = "mean",
    kind: Kind | None = None,
    name: str = "?",
    row_size: int = 1,
    order: Order | None = None,
    old_dtype: torch.dtype | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fit the whole state of one param to the param's new shape.

    State of the param's shape is fitted, factored state along its dimensions, numbers are kept. Unchanged state is not
    copied.

    optimizer_class (type): The class of the optimizer.
    state (Mapping[str, Any]): As the optimizer keeps it.
    old_shape (Sequence[int]): The param's shape before.
    new_param (Tensor): The new param. The state gets its device and strides.
    on_growth (Fill): How to fill new cells.
    kind (Kind | None): None: found from the shapes.
    name (str): Name of the param, for errors.
    row_size (int): Cells in a row, if the param is flat with rows one after the other. It then grows by rows.
    order (Order | None): Where the cells of the new param are, if it got some in its middle.
    old_dtype (torch.dtype | None): Dtype of the old param. State of this dtype gets the new param's. None: all keep
        theirs.
    options (Mapping[str, Any]): The new param's group: `fused` and `capturable` say whether `step` is on the param's
        device.
    RETURNS (dict[str, Any]): The same keys.
    RAISES (StateError): The kind does not fit the shapes, or state has an unknown shape.
    """
    check_on_growth(on_growth)
    roles = roles_of(optimizer_class)
    if order is not None:  # cells in its middle are fitted as if they were at its end, and then put in place
        param, new_param, row_size = new_param, order.old_first(new_param.detach()), 1
    old, new = tuple(old_shape), tuple(new_param.shape)
    in_rows = row_size > 1 and len(old) == len(new) == 1 and old != new and not any(n % row_size for n in old + new)
    if in_rows:
        state = {key: value.view(-1, row_size) if _has_shape(value, old) else value for key, value in state.items()}
        new_param = new_param.view(-1, row_size)
        old, new = (old[0] // row_size, row_size), tuple(new_param.shape)
    check_kind(kind, old, new, f"the state of param '{name}'")
    # Factored state follows its param: its own shapes may look like another kind.
    is_reshape = kind == "reshape" or (kind is None and _is_reshape(old, new))
    fitted = dict(state)
    for key, value in state.items():
        role = role_of(roles, key)
        shape = _new_shape(key, role, value, old, new, name)
        if shape is not None:
            dtype = new_param.dtype if value.dtype == old_dtype else value.dtype
            scale = _SUM_SCALE if role == "sum" else 1.0
            value = _fit(value.to(new_param.device, dtype), shape, is_reshape, on_growth, scale)
            fitted[key] = value = _with_strides_of(new_param, value)
            if role == "copy" and old != new and not is_reshape:
                kept = _leading(value, old).clone()
                _leading(value.copy_(new_param.detach()), old).copy_(kept)
        elif isinstance(value, Tensor) and value.device != new_param.device:
            on_device = bool(options and (options.get("fused") or options.get("capturable")))
            if key.rpartition("/")[2] != "step" or value.device.type != "cpu" or on_device:
                fitted[key] = value.to(new_param.device)
    for key in fitted if math.prod(old) != math.prod(new) else ():  # otherwise there are no new cells
        average = key.removesuffix("square_avg") + "grad_avg"
        if key.endswith("square_avg") and average in fitted:
            _keep_variance(fitted[key], fitted[average], None if is_reshape else state[key])
    if order is not None:
        return _in_place(fitted, order, param, roles)
    if not in_rows:
        return fitted
    return {key: value.flatten() if _has_shape(value, new) else value for key, value in fitted.items()}


def _in_place(state: Mapping[str, Any], order: Order, param: Tensor, roles: Roles) -> dict[str, Any]:
    """The state of a param with its new cells at the end, in the order of the param."""
    found = dict(state)
    for key, value in state.items():
        axis, role = order.axis, role_of(roles, key)
        if role in _SUMMED and value.ndim < param.ndim:  # factored, without one of the dimensions
            missing = param.ndim + _SUMMED[role]
            axis = -1 if axis == missing else axis - (axis > missing)
        if isinstance(value, Tensor) and 0 <= axis < value.ndim and value.shape[axis] == param.shape[order.axis]:
            found[key] = _with_strides_of(param, order.in_place(value, axis))
    return found


def fresh_state(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], param: Tensor) -> dict[str, Any] | None:
    """The state that a class makes before a param's first step, from the example of another param of the group.

    RETURNS (dict | None): None: no usable example. The class makes the state at the first step.
    """
    for other in group["params"]:
        example = optimizer.state.get(other)
        if example and all(isinstance(value, Tensor) for value in example.values()):
            break
    else:
        return None
    roles = [ROLES.get(key) for key in example]
    if not set(roles) <= {"moment", "magnitude", "count"} or "variance" in example:
        return None
    fresh = {}
    for key, value in example.items():
        first = _FIRST_VALUES.get(key, 0.0)
        number = float(group[first] if isinstance(first, str) else first)
        if ROLES[key] in PER_CELL:
            dtype = param.dtype if value.dtype == other.dtype else value.dtype
            fresh[key] = torch.full_like(param, number, dtype=dtype, requires_grad=False)
        else:
            fresh[key] = torch.full_like(value, number)
    return fit_param_state(type(optimizer), fresh, param.shape, param, options=group)


def check_kind(kind: Kind | None, old: Shape, new: Shape, what: str) -> None:
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
        expected = {
            "identity": "the same shape",
            "expand": "dimensions that stay or grow",
            "contract": "dimensions that stay or shrink",
        }[kind]
        raise StateError(
            f"Can't fit {what} by '{kind}': expected {expected}, found {old} before and {new} now. Leave the kind out."
        )


def check_on_growth(on_growth: str) -> None:
    if on_growth not in get_args(Fill):
        raise ConfigError(
            f"Can't grow optimizer state: expected on_growth to be one of {list(get_args(Fill))}, found {on_growth!r}."
        )


# ---------------------------------------------------------------------- one tensor


def _fit(value: Tensor, shape: Shape, is_reshape: bool, fill: Fill, scale: float) -> Tensor:
    if value.shape == shape:
        return value
    if not (value.is_floating_point() or value.is_complex()):
        return _fit(value.double(), shape, is_reshape, fill, scale).round_().to(value.dtype)
    return _interpolate(value, shape) if is_reshape else _expand(_contract(value, shape), shape, fill, scale)


def _contract(value: Tensor, shape: Shape) -> Tensor:
    leading = _leading(value, shape)
    # A view would keep all of the old cells in memory.
    return value if leading is value else leading.clone(memory_format=torch.contiguous_format)


def _expand(value: Tensor, shape: Shape, fill: Fill, scale: float) -> Tensor:
    grown = value
    for dim, (old, size) in enumerate(zip(value.shape, shape)):
        if old < size:
            sizes = list(grown.shape)
            sizes[dim] = size - old
            is_zero = fill == "zero" or not grown.numel()
            cells = grown.new_zeros(()) if is_zero else grown.mean(dim, keepdim=True)
            grown = torch.cat((grown, cells.expand(sizes)), dim)
    if grown is not value:
        _leading(grown.mul_(scale), value.shape).copy_(value)
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
    """Interpolate linearly along one dimension, as `torch.nn.functional.interpolate` does along the last one of
    floats.
    """
    old_size = value.shape[dim]
    positions = torch.arange(size, dtype=torch.float64, device=value.device).add_(0.5).mul_(old_size / size).sub_(0.5)
    positions.clamp_(min=0)
    lower = positions.long()
    weight = (positions - lower).to(value.dtype).view(-1, *[1] * (value.ndim - dim - 1))
    upper_cells = value.index_select(dim, (lower + 1).clamp_(max=old_size - 1))
    return value.index_select(dim, lower).lerp_(upper_cells, weight)


def _leading(value: Tensor, shape: Sequence[int]) -> Tensor:
    """View of the cells whose index is also in a shape."""
    for dim, size in enumerate(shape):
        if size < value.shape[dim]:
            value = value.narrow(dim, 0, size)
    return value


def _with_strides_of(param: Tensor, value: Tensor) -> Tensor:
    """State in the memory format of its param: torch's fused steps go through both in the order of their memory."""
    if value.shape != param.shape or value.stride() == param.stride():
        return value
    return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)


def _keep_variance(square_avg: Tensor, grad_avg: Tensor, old_square_avg: Tensor | None) -> None:
    """Keep `square_avg - grad_avg**2` from rounding below zero in new cells: centered RMSprop takes its root.

    old_square_avg (Tensor | None): Its cells stay as they are. None: no old cells are left.
    """
    if not square_avg.is_floating_point():
        return
    least = grad_avg.square().mul_(1 + 4 * torch.finfo(square_avg.dtype).eps)
    torch.maximum(square_avg, least, out=square_avg)
    if old_square_avg is not None:
        shape = [min(sizes) for sizes in zip(square_avg.shape, old_square_avg.shape)]
        _leading(square_avg, shape).copy_(_leading(old_square_avg, shape))


# ---------------------------------------------------------------------- one param


def _new_shape(key: str, role: Role | None, value: Any, old: Shape, new: Shape, name: str) -> Shape | None:
    """The new shape of a state. None: it does not depend on the param's."""
    if not isinstance(value, Tensor):
        if old != new and not (value is None or isinstance(value, (bool, int, float, str))):
            _refuse_state(name, key, f"a {type(value).__name__}", old)
        return None
    if role == "count":
        return None
    found = tuple(value.shape)
    if role in _SUMMED:
        if _factored(old, _SUMMED[role], len(found)) == found and len(old) == len(new):
            return _factored(new, _SUMMED[role], len(found))
    elif found == old:
        return new
    elif value.numel() == 1:
        return None
    if old == new:
        return found
    _refuse_state(name, key, f"shape {found}", old)


def _has_shape(value: Any, shape: Sequence[int]) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == tuple(shape)


def _factored(shape: Shape, dim: int, ndim: int) -> Shape:
    """Shape of a factored state."""
    summed = len(shape) + dim
    return (*shape[:summed], *([1] if ndim == len(shape) else []), *shape[summed + 1 :])


def _refuse_state(name: str, key: str, found: str, old: Shape) -> NoReturn:
    raise StateError(
        f"Can't fit the state of param '{name}' to its new shape: expected '{key}' to have the param's shape, {old}, "
        f"or to be a number, found {found}."
    )


def _is_reshape(old: Shape, new: Shape) -> bool:
    """Whether the cells of two shapes have no index in common."""
    return old != new and (len(old) != len(new) or math.prod(old) == math.prod(new))
