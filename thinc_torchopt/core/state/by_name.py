"""The state of an optimizer by lasting names, to resume exactly in another process.

A state is a tree of dicts, lists, numbers, texts and tensors; files.py writes it. Loading checks everything first.

A thinc param keeps its gradient once it had one, if only zeros: each update of its model applies momentum and weight
decay to it, even if the batch gives it no gradient. So which params have one belongs to the state of their optimizer.
After a step of spaCy's training loop all are zero. After `nlp.update(..., sgd=optimizer)` some wait for the next batch:
it updates a shared tok2vec before the backward passes of its listeners.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from thinc.api import Shim

from .. import kernels
from ..algorithms import StateBeside, example_state, library_of, restore_beside
from ..errors import CheckpointWarning, GrowthWarning, StateError
from ..host import drop_grad, is_scaling, scale_of, scaler_of, set_scale
from ..params import NamedModel, NamedParam, Param, ParamRow, saved_tensor
from ..schedules import current
from ..schema import refuse, write
from ..update import OF_GROUP, Group, GroupPlan
from .saved_state import WHAT, SavedGroup, SavedScaler, SavedState

OnGrowth = Literal["mean", "zero"]

# Options that change how torch computes, but not the result.
_SWITCHES = ("fused", "foreach", "capturable", "differentiable")
_OURS = __name__.partition(".")[0]


def collect(plan: GroupPlan, params: Sequence[Param], shims: Iterable[tuple[str, Shim]]) -> dict[str, Any]:
    """Collect the state of params, param groups, algorithms and gradient scalers. Tensors are shared.

    shims (Iterable[tuple[str, Shim]]): All shims of the pipeline, with their paths.
    """
    return {
        "params": {param.name: _saved(param.row()) for param in params},
        "groups": _collect_groups(plan),
        "algorithms": {algorithm.name: write(algorithm.state_beside()) for algorithm in plan.algorithms},
        "grad_scalers": _collect_scalers(shims),
    }


def restore(plan: GroupPlan, params: Sequence[Param], saved: SavedState, on_growth: OnGrowth | None) -> None:
    """Restore the state of params, param groups and algorithms.

    params (Sequence[Param]): The params with saved state.
    on_growth ("mean" | "zero" | None): For a pipeline that has changed since: how to fill new cells of params that have
        grown. None: nothing has changed.
    RAISES (StateError): The state is of other params, or damaged. Nothing is restored then.
    """
    may_grow = on_growth is not None
    check_params(params, saved.params, may_grow=may_grow)
    origins = _origins_of(plan, saved.groups)
    _check_settings(params, saved.params, saved.groups, may_grow=may_grow)
    _check_groups(origins, saved.groups)
    _check_param_states(params, saved.params)
    plan.restore_labels(origins)
    if not may_grow:
        _warn_of_options(origins, saved.groups)
    _restore_params(params, saved.params, on_growth or "mean")
    _restore_groups(origins, saved.groups)
    _restore_algorithms(plan, saved.algorithms, origins, saved.groups)


def roll_back(plan: GroupPlan, params: Iterable[Param], saved: SavedState, on_growth: OnGrowth) -> None:
    """As `restore`, for this run: without learning rates. Call `check_params` first.

    params (Iterable[Param]): Params that were trained then, and are now.
    """
    _restore_params(params, saved.params, on_growth)
    origins = _origins_of(plan, saved.groups)
    _restore_groups(origins, saved.groups, with_rates=False)
    _restore_algorithms(plan, saved.algorithms, origins, saved.groups)


def _saved(row: ParamRow) -> dict[str, Any]:
    return vars(row) | {"rate_scale": dict(vars(row.rate_scale))}


def _restore_params(params: Iterable[Param], saved: Mapping[str, ParamRow], on_growth: OnGrowth = "mean") -> None:
    """Restore the states of params in torch, and their masters. If the state of a param that has grown can't grow, it
    starts without state.
    """
    for param in params:
        found = saved[param.name]
        try:
            param.take_state(found, on_growth)
        except StateError as error:
            if found.shape == list(param.shape):
                raise
            warnings.warn(GrowthWarning(f"{error} It starts without state."), stacklevel=5)
            param.steps = 0


def _collect_groups(groups: GroupPlan) -> dict[str, dict[str, Any]]:
    """By the group's label: see `SavedGroup`."""
    return {
        group.label: {
            "algorithm": group.owner.algorithm.label,
            "path": group.owner.name,
            "params": sorted(param.name for param in group.params),
            "options": _options_of(group),
            "state": group.state,
            "rate": group.record.rate,
            "applied_rate": group.record.applied_rate,
        }
        for group in groups.groups
    }


def _options_of(group: Group) -> dict[str, Any]:
    """The saved options: numbers, texts, and tuples of these, as lists."""
    options = {
        name: list(value) if isinstance(value := group.entry[name], tuple) else value
        for name in group.settings.options
        if name in group.entry and name not in group.moving and name not in _SWITCHES
    }
    plain = (bool, int, float, str, type(None), list)
    return {name: value for name, value in options.items() if isinstance(value, plain)}


def _warn_of_options(origins: Mapping[Group, str], saved: Mapping[str, SavedGroup]) -> None:
    """Warn of groups whose options have changed since the state was saved."""
    for group, group_id in origins.items():
        here, there = _options_of(group), saved[group_id].options
        changed = [f"{name} is {here[name]!r}, was {there[name]!r}" for name in here if here[name] != there.get(name)]
        if changed:
            warnings.warn(
                CheckpointWarning(
                    f"Param group '{group.label}' has other options than when its state was saved: {'; '.join(changed)}"
                    ". The options in the config are used."
                ),
                stacklevel=5,
            )


def _origins_of(groups: GroupPlan, saved: Mapping[str, SavedGroup]) -> dict[Group, str]:
    """The id of the saved group that had most params of each group, if any."""
    by_name = {name: group_id for group_id, part in saved.items() for name in part.params}
    origins: dict[Group, str] = {}
    for group in groups.groups:
        if found := Counter(by_name[param.name] for param in group.params if param.name in by_name):
            origins[group] = max(found, key=found.__getitem__)
    return origins


def _restore_groups(origins: Mapping[Group, str], saved: Mapping[str, SavedGroup], *, with_rates: bool = True) -> None:
    """Restore the state of param groups from their saved groups."""
    for group, group_id in origins.items():
        part = saved[group_id]
        if with_rates:
            group.record.rate, group.record.applied_rate = part.rate, part.applied_rate
        # torch's own classes keep only switches there, which are those of this torch.
        is_kept = not type(group.owner.optimizer).__module__.startswith("torch.optim")
        for name, value in part.state.items() if is_kept else ():
            group.entry[name] = value.clone() if isinstance(value, torch.Tensor) else value


def _restore_algorithms(
    groups: GroupPlan,
    saved: Mapping[str, StateBeside],
    origins: Mapping[Group, str],
    saved_groups: Mapping[str, SavedGroup],
) -> None:
    """Restore the state of algorithms beside params and groups. State of removed algorithms is ignored."""
    # The block of an algorithm may have been renamed.
    paths = {group.owner.name: saved_groups[group_id].path for group, group_id in origins.items()}
    for algorithm in groups.algorithms:
        path = paths.get(algorithm.name, algorithm.name)
        if path in saved:
            restore_beside(algorithm.optimizer, saved[path])


def _collect_scalers(shims: Iterable[tuple[str, Shim]]) -> dict[str, dict[str, torch.Tensor]]:
    """The gradient scalers of torch models in mixed precision, by the path of their shims."""
    return {path: vars(SavedScaler(*scale_of(scaler_of(shim)))) for path, shim in shims if is_scaling(shim)}


def restore_scalers(shims: Iterable[tuple[str, Shim]], saved: Mapping[str, SavedScaler]) -> None:
    """Restore gradient scalers. States of models without a scaler are ignored."""
    for path, shim in shims:
        if path in saved and is_scaling(shim):
            set_scale(scaler_of(shim), (saved[path].scale, saved[path].growth_tracker))


# ---------------------------------------------------------------------- gradients


def collect_grads(walked: Iterable[NamedModel]) -> dict[str, torch.Tensor | None]:
    """Collect the gradients of all params, by their first names. Tensors are shared. None: zeros of a thinc param.

    walked (Iterable[NamedModel]): See `walk_pipeline`.
    """
    grads: dict[str, torch.Tensor | None] = {}
    on_gpu: list[str] = []
    for found in _each(walked):
        if (grad := _grad_of(found)) is None:
            continue
        if found.param is not None:
            grads[found.name] = grad
        elif hasattr(grad, "__cuda_array_interface__"):
            grads[found.name] = saved_tensor(grad, found.name)
            on_gpu.append(found.name)
        else:
            grads[found.name] = saved_tensor(grad, found.name) if grad.any() else None
    if on_gpu:  # the host waits once for all of them; in float64, as the squares of small numbers are 0
        norms = kernels.norms([grad for name in on_gpu if (grad := grads[name]) is not None], torch.float64)
        grads.update({name: None for name, norm in zip(on_gpu, torch.stack(norms).tolist()) if norm == 0.0})
    return grads


def check_grads(walked: Iterable[NamedModel], saved: Mapping[str, torch.Tensor | None]) -> None:
    """RAISES (StateError): A gradient has not its param's shape."""
    for found in _each(walked):
        if (grad := saved.get(found.name)) is None:
            continue
        values = found.values
        if values is None or grad.shape != tuple(values.shape):
            expected = "None" if values is None else f"a tensor of shape {tuple(values.shape)}"
            refuse(WHAT, f"grads/{found.name}", expected, f"one of shape {tuple(grad.shape)}")


def restore_grads(walked: Iterable[NamedModel], saved: Mapping[str, torch.Tensor | None]) -> None:
    """Restore gradients, and drop all others. Call `check_grads` first."""
    for found in _each(walked):
        grad = saved.get(found.name)
        if found.param is not None:
            found.param.grad = None if grad is None else grad.to(found.param.device, copy=True)
            continue
        node, name = found.owner, found.key[1]  # type: ignore[index]
        if found.name not in saved or not node.has_param(name):
            drop_grad(node, name)
        else:
            if not node.has_grad(name):
                node.set_grad(name, node.ops.xp.zeros_like(node.get_param(name)))
            node.get_grad(name)[...] = 0 if grad is None else node.ops.asarray(grad.cpu().numpy())


def _each(walked: Iterable[NamedModel]) -> list[NamedParam]:
    """Each param once, by its first name."""
    found: dict[Any, NamedParam] = {}
    for model in walked:
        for param in model.params:
            found.setdefault(param.key, param)
    return list(found.values())


def _grad_of(found: NamedParam) -> Any:
    if found.param is not None:
        return found.param.grad
    name = found.key[1]  # type: ignore[index]
    return found.owner.get_grad(name) if found.owner.has_grad(name) else None


# ---------------------------------------------------------------------- checks


def check_params(params: Collection[Param], saved: Mapping[str, ParamRow], *, may_grow: bool) -> None:
    """Check that a saved state is of these params. may_grow (bool): Their shapes may differ.

    RAISES (StateError): Params are missing, unexpected, or of another shape. The error names all of them.
    """
    by_name = {param.name: param for param in params}
    missing, unexpected = sorted(by_name.keys() - saved.keys()), sorted(saved.keys() - by_name.keys())
    reshaped = [
        f"{name} is {_shape(param.shape)}, was {_shape(saved[name].shape)}"
        for name, param in by_name.items()
        if not may_grow and name in saved and saved[name].shape != list(param.shape)
    ]
    problems = [
        f"{len(found)} {what} ({', '.join(found[:5])}{', ...' if len(found) > 5 else ''})"
        for what, found in (("missing", missing), ("unexpected", unexpected), ("of another shape", reshaped))
        if found
    ]
    if problems:
        raise StateError(
            f"Can't load the state of the optimizer: expected the {len(by_name)} params of this pipeline, found "
            f"{'; '.join(problems)}. The state is of another pipeline"
            + (
                ', or labels were added since: then load it with on_growth = "mean", to keep the old rows.'
                if reshaped
                else "."
            )
        )


def _check_settings(
    params: Iterable[Param],
    saved: Mapping[str, ParamRow],
    saved_groups: Mapping[str, SavedGroup],
    *,
    may_grow: bool,
) -> None:
    """Check that the same algorithms optimize the params, in the same groups unless blocks may have changed."""
    there = {name: part.algorithm for part in saved_groups.values() for name in part.params}
    here = {param.name: param.group.owner.algorithm.label for param in params if param.group is not None}
    changed = [name for name in here if there.get(name, here[name]) != here[name]]
    if changed:
        of_here, of_there = (", ".join(sorted({str(found[name]) for name in changed})) for found in (here, there))
        raise StateError(
            f"Can't load the state of the optimizer: expected the state of {of_here}, found the state of {of_there}. "
            f"[training.optimizer.algorithm] has changed since it was saved, or that of a param group (for "
            f"'{changed[0]}'). Change it back, or start with a new optimizer."
        )
    if may_grow:
        return
    labels = {param.name: param.settings.label for param in params}
    # Blocks may be renamed, if the same params are together.
    new_labels = {saved[name].label: label for name, label in sorted(labels.items(), reverse=True)}
    old_labels = {label: saved[name].label for name, label in sorted(labels.items(), reverse=True)}
    moved = sorted(
        name
        for name in here.keys() | there.keys()
        if (name in here) != (name in there)
        or new_labels[saved[name].label] != labels[name]
        or old_labels[labels[name]] != saved[name].label
    )
    if moved:
        first = moved[0]
        expected = f"in the param group '{labels[first]}'" if first in here else "in none"
        found = f"in '{saved[first].label}'" if first in there and first in saved else "in none"
        more = f", and {len(moved) - 1} more in others" if len(moved) > 1 else ""
        raise StateError(
            f"Can't load the state of the optimizer: expected param '{first}' {expected}, found it {found}{more}. "
            "[training.optimizer] has other patterns than when the state was saved. Change them back, or start with a "
            "new optimizer."
        )


def _check_groups(origins: Mapping[Group, str], saved: Mapping[str, SavedGroup]) -> None:
    """Check that saved param groups have the algorithms' own values."""
    for group, group_id in origins.items():
        _check_own_values(f"param group '{group_id}'", group, group.state, saved[group_id].state)


def _check_own_values(which: str, group: Group, expected: Mapping[str, Any], found: Any) -> None:
    """RAISES (StateError): Not the values that the algorithm of a group keeps there."""
    if isinstance(found, Mapping):
        wrong = [f"no {name}" for name in expected if name not in found]
        wrong += [
            f"{name} = {value!r}"
            for name, value in found.items()
            if (name not in expected and name in group.entry) or not _is_like(value, expected.get(name))
        ]
    else:
        wrong = [repr(found)]
    if wrong:
        raise StateError(
            f"Can't load the state of {which}: expected the values of {group.owner.algorithm.label}, found "
            f"{', '.join(wrong)}. It is damaged, or of another version of the algorithm."
        )


def _check_param_states(params: Iterable[Param], saved: Mapping[str, ParamRow]) -> None:
    """Check that each param has the state that its algorithm needs with its current options: otherwise the next step
    would fail.
    """
    examples: dict[tuple[int, int], tuple[dict[str, Any], bool]] = {}
    for param in params:
        found = saved[param.name]
        if param.group is None or (not found.state and not found.updates):
            continue
        if OF_GROUP in found.state:
            _check_own_values(f"param '{param.name}'", param.group, param.group.first_values, found.state[OF_GROUP])
        n_dimensions = len(found.shape)
        key = id(param.group), n_dimensions
        if key not in examples:
            # The form of other libraries' state may depend on sizes: a projection to a low rank, for example.
            is_known = library_of(type(param.group.owner.optimizer)) in ("torch", _OURS)
            options = {name: current(value) for name, value in param.settings.options.items()}
            try:
                example = example_state(param.group.owner.algorithm, options, (2,) * n_dimensions)
            except Exception:  # it can't be found out on a small param
                example = {}
            examples[key] = example, is_known
        (example, is_known), label = examples[key], param.group.owner.algorithm.label
        if "momentum" in param.group.moving and isinstance(param.group.owner.optimizer, torch.optim.SGD):
            # torch makes the buffer in the first step with momentum.
            example = {name: value for name, value in example.items() if name in found.state}
        missing = sorted(example.keys() - found.state.keys())
        if missing:
            raise StateError(
                f"Can't load the state of param '{param.name}': expected {missing}, which {label} keeps with its "
                f"current options, found {sorted(found.state)}. The options have changed since it was saved. Change "
                "them back, or start with a new optimizer."
            )
        name = _other_form(found, example) if is_known else None
        if name is not None:
            raise StateError(
                f"Can't load the state of param '{param.name}': expected '{name}' in the form of {label} for a "
                f"param of shape {_shape(found.shape)}, found {_describe(found.state[name])}. It is damaged, or of "
                f"another version of {label}."
            )


def _other_form(found: ParamRow, example: Mapping[str, Any]) -> str | None:
    """The name of the first value that can't be the state of a saved param. example (Mapping): A valid state, of a
    param of size 2 in all dimensions.
    """
    for name, expected in example.items():
        value = found.state[name]
        if not isinstance(expected, torch.Tensor):
            fits = type(value) is type(expected) and value >= 0  # a number of steps, or a flag
        elif not isinstance(value, torch.Tensor):
            fits = False
        elif expected.numel() == 1:
            fits = value.numel() == 1
        else:
            fits = list(value.shape) == found.shape or tuple(expected.shape) != (2,) * len(found.shape)
        if not fits:
            return name
    return None


def _describe(value: Any) -> str:
    return f"a tensor of shape {_shape(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _is_like(value: Any, expected: Any) -> bool:
    """Whether a value is like another: a tensor of the same shape and dtype, a number, or of the same type. None:
    anything is.
    """
    if expected is None:
        return True
    if isinstance(expected, torch.Tensor):
        return isinstance(value, torch.Tensor) and value.shape == expected.shape and value.dtype == expected.dtype
    if isinstance(expected, bool) or not isinstance(expected, (int, float)):
        return type(value) is type(expected)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shape(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})" if isinstance(shape, Iterable) else repr(shape)
