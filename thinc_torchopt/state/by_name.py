"""The state of an optimizer by lasting names: what another process needs to go on exactly where this one stood.

A state is a tree of dicts, lists, numbers, texts and tensors; files.py writes it. Loading checks everything first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from thinc.api import PyTorchShim, Shim

from ..algorithms import BESIDE, fit_param_state, library_of, restore_beside
from ..checks import check_count, check_parts
from ..errors import StateError
from ..groups import ParamGroups
from ..host import scaler_of
from ..params import Param

VERSION = 1
_OURS = __name__.partition(".")[0]
PARTS = (
    "version",
    "step",
    "settings",
    "schedules",
    "guard",
    "learn_rates",
    "params",
    "groups",
    "algorithms",
    "averages",
    "grad_scalers",
    "freeze_changes",
)


def collect_params(params: Iterable[Param]) -> dict[str, dict[str, Any]]:
    """The state of each param, by name: its shape and dtype, how many updates it had, and what torch keeps."""
    return {
        param.name: {
            "shape": list(param.shape),
            "dtype": str(param.dtype),
            # The name under which a shim with a store of its own calls its optimizer.
            **({"shim": param.key[2]} if param.is_of_shim else {}),  # type: ignore[index]
            "updates": param.steps,
            "joined_at": param.joined_at,
            "state": {} if param.group is None else param.group.owner.states.get(param),
        }
        for param in params
    }


def restore_params(
    params: Iterable[Param], saved: Mapping[str, Mapping[str, Any]], *, on_growth: Literal["mean", "zero"] = "mean"
) -> None:
    """Give params their states. `check_params` comes before. on_growth ("mean" | "zero"): What new cells get where a
    param has grown.

    RAISES (StateError): A param has grown, and its state can't.
    """
    for param in params:
        found = saved[param.name]
        param.steps = found["updates"]
        if param.group is not None:
            owner, options = param.group.owner, param.group.entry
            fitted = found["state"]
            if has_grown(param, found):
                fitted = fit_param_state(
                    type(owner.optimizer),
                    fitted,
                    found["shape"],
                    param.tensor,
                    on_growth=on_growth,
                    name=param.name,
                    row_size=param.row_size,
                    options=options,
                )
            owner.states.set(param, fitted, _saved_dtype(found))


def collect_groups(groups: ParamGroups) -> dict[str, dict[str, Any]]:
    """What algorithms keep in their param groups, by the group's id, with the names of its params."""
    return {
        group.id: {
            "algorithm": group.owner.algorithm.label,
            "path": group.owner.name,
            "params": sorted(param.name for param, _ in group.params.values()),
            "state": group.state,
        }
        for group in groups.groups
    }


def group_ids(saved: Any) -> dict[frozenset[str], str]:
    """The id of each group in a saved state, by the names of its params.

    RAISES (StateError): It is no such state.
    """
    check_parts("the param groups", saved)
    for group_id, part in saved.items():
        check_parts(f"param group '{group_id}'", part, ("algorithm", "path", "params", "state"))
        check_parts(f"param group '{group_id}' in torch", part["state"])
        if not isinstance(part["params"], list):
            raise StateError(
                f"Can't load the state of param group '{group_id}': expected a list of params, found "
                f"{part['params']!r}."
            )
    return {frozenset(map(str, part["params"])): group_id for group_id, part in saved.items()}


def restore_groups(groups: ParamGroups, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Give param groups what algorithms kept there. `check_groups` comes before. Groups that are not among the saved
    ones stay.
    """
    for group in groups.groups:
        # torch's own classes keep nothing there but switches of theirs, which are those of this torch.
        is_kept = group.id in saved and not type(group.owner.optimizer).__module__.startswith("torch.optim")
        for name, value in saved[group.id]["state"].items() if is_kept else ():
            group.entry[name] = value.clone() if isinstance(value, torch.Tensor) else value


def collect_algorithms(groups: ParamGroups) -> dict[str, dict[str, Any]]:
    """What algorithms keep beside params and groups, by their config path."""
    found = {algorithm.name: algorithm.state_beside() for algorithm in groups.algorithms}
    return {name: part for name, part in found.items() if part}


def restore_algorithms(groups: ParamGroups, saved: Any, saved_groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Give algorithms what they kept beside params and groups. Those of params that are gone are passed over.

    saved_groups (Mapping): From `collect_groups`: the block of an algorithm may have had another name then.
    RAISES (StateError): It is of others, or damaged.
    """
    check_parts("the algorithms", saved)
    paths = {group.owner.name: saved_groups[group.id]["path"] for group in groups.groups if group.id in saved_groups}
    for algorithm in groups.algorithms:
        path = paths.get(algorithm.name, algorithm.name)
        if path in saved:
            check_parts(f"the algorithm '{algorithm.name}'", saved[path], (), optional=BESIDE)
            restore_beside(algorithm.optimizer, saved[path])


def collect_scalers(shims: Iterable[tuple[str, Shim]]) -> dict[str, dict[str, Any]]:
    """The gradient scalers of torch models in mixed precision, by the path of their shims."""
    return {
        path: {name: value for name, value in vars(scaler_of(shim)).items() if _is_plain(value)}
        for path, shim in shims
        if isinstance(shim, PyTorchShim) and scaler_of(shim)._enabled
    }


def check_scalers(shims: Iterable[tuple[str, Shim]], saved: Any) -> None:
    """RAISES (StateError): Saved states are not such as gradient scalers have."""
    check_parts("the gradient scalers", saved)
    here = collect_scalers(shims)
    for path, found in saved.items():
        check_parts(f"the gradient scaler of '{path}'", found, here.get(path))
        for name, value in here.get(path, {}).items():
            if not _is_like(found[name], value):
                raise StateError(
                    f"Can't load the state of the gradient scaler of '{path}': expected '{name}' to be like {value!r}, "
                    f"found {found[name]!r}."
                )


def restore_scalers(shims: Iterable[tuple[str, Shim]], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Give gradient scalers their states. `check_scalers` comes before. Those of models that have none are passed
    over.
    """
    shims = list(shims)
    here = collect_scalers(shims)
    for path, shim in shims:
        for name, old in here.get(path, {}).items() if path in saved else ():
            value, scaler = saved[path][name], scaler_of(shim)
            setattr(scaler, name, value.to(old.device).clone() if isinstance(old, torch.Tensor) else value)


def check_params_are_dicts(saved: Any) -> None:
    """RAISES (StateError): The saved params are not dicts by name."""
    if not isinstance(saved, Mapping) or not all(isinstance(found, Mapping) for found in saved.values()):
        raise StateError(
            f"Can't load the state of the optimizer: expected the params by name, found {type(saved).__name__}."
        )


def check_params(params: Collection[Param], saved: Any, *, may_grow: bool = False) -> None:
    """Check that a saved state is one of these params. may_grow (bool): Their shapes may be others.

    RAISES (StateError): Params are missing or unexpected, or have another shape. All of them are named.
    """
    by_name = {param.name: param for param in params}
    missing, unexpected = sorted(by_name.keys() - saved.keys()), sorted(saved.keys() - by_name.keys())
    reshaped = [
        f"{name} is {_shape(param.shape)}, was {_shape(saved[name].get('shape'))}"
        for name, param in by_name.items()
        if not may_grow and name in saved and has_grown(param, saved[name])
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
    for name, param in by_name.items():
        _check_param(param, saved[name])


def has_grown(param: Param, saved: Mapping[str, Any]) -> bool:
    """Whether a param has another shape than in a saved state."""
    return saved.get("shape") != list(param.shape)


def check_groups(groups: ParamGroups, saved: Any, *, may_grow: bool = False) -> None:
    """Check that a saved state is one of these groups.

    may_grow (bool): There may be other groups, and other params in them.
    RAISES (StateError): There are other groups, or other params in one; or it is the state of another algorithm.
    """
    both = [group for group in groups.groups if not may_grow or group.id in saved]
    there = {name: part["algorithm"] for part in saved.values() for name in part["params"]}
    here = {param.name: group.owner.algorithm.label for group in groups.groups for param, _ in group.params.values()}
    changed = [name for name in here if there.get(name, here[name]) != here[name]]
    if changed:
        of_here, of_there = (", ".join(sorted({str(found[name]) for name in changed})) for found in (here, there))
        raise StateError(
            f"Can't load the state of the optimizer: expected that of {of_here}, found that of {of_there}. "
            f"[training.optimizer.algorithm] has changed since it was saved, or that of a param group (for "
            f"'{changed[0]}'). Change it back, or start with a new optimizer."
        )
    expected = {name: found["params"] for name, found in collect_groups(groups).items()}
    found = {name: part.get("params") for name, part in saved.items()} if isinstance(saved, Mapping) else saved
    if found != expected and not may_grow:
        different = sorted(
            name for name in expected.keys() | set(found or ()) if not found or expected.get(name) != found.get(name)
        )
        raise StateError(
            f"Can't load the state of the optimizer: expected the param groups {sorted(expected)}, found others, or "
            f"other params in {different}. [training.optimizer] has other patterns than when the state was saved."
        )
    for group in both:
        kept, of_group = group.state, saved[group.id]["state"]
        wrong = [
            name
            for name in of_group
            if (name not in kept and name in group.entry) or not _is_like(of_group[name], kept.get(name))
        ]
        if wrong:
            raise StateError(
                f"Can't load the state of param group '{group.id}': expected what {group.owner.algorithm.label} keeps "
                f"there, found {', '.join(f'{name} = {of_group[name]!r}' for name in wrong)}. It is damaged, or of "
                "another version of the algorithm."
            )


def check_param_states(params: Iterable[Param], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that a saved state has what the algorithm keeps of each param, with the options that it has now, in the
    right form.

    RAISES (StateError): Something is missing, or of another kind, so the next step would fail.
    """
    examples: dict[tuple[int, int], dict[str, Any]] = {}
    for param in params:
        found = saved[param.name]
        if param.group is None or (not found["state"] and not found["updates"]):
            continue
        n_dimensions = len(found["shape"])
        key = id(param.group), n_dimensions
        if key not in examples:
            examples[key] = param.group.owner.builder.example_state(param.group.settings, param.device, n_dimensions)
        example, label = examples[key], param.group.owner.algorithm.label
        if "momentum" in param.group.moving and isinstance(param.group.owner.optimizer, torch.optim.SGD):
            # torch makes the buffer in the first step with momentum, which may be yet to come.
            example = {name: value for name, value in example.items() if name in found["state"]}
        missing = sorted(example.keys() - found["state"].keys())
        if missing:
            raise StateError(
                f"Can't load the state of param '{param.name}': expected {missing}, which {label} keeps with the "
                f"options that it has now, found {sorted(found['state'])}. The options have changed since it was "
                "saved. Change them back, or start with a new optimizer."
            )
        # What other libraries keep may have a form that depends on the sizes: a projection to a low rank, for example.
        is_known = library_of(type(param.group.owner.optimizer)) in ("torch", _OURS)
        for name, expected in example.items() if is_known else ():
            if not _has_form_of(found["state"][name], expected, found["shape"]):
                raise StateError(
                    f"Can't load the state of param '{param.name}': expected '{name}' as {label} keeps it of a param "
                    f"of shape {_shape(found['shape'])}, found {_describe(found['state'][name])}. It is damaged, or of "
                    f"another version of {label}."
                )


def _check_param(param: Param, found: Mapping[str, Any]) -> None:
    check_parts(
        f"param '{param.name}'",
        found,
        ("shape", "dtype", "updates", "joined_at", "state"),
        optional=("shim",),
    )
    if not isinstance(found["shape"], list):
        raise StateError(
            f"Can't load the state of param '{param.name}': expected its shape as a list, found {found['shape']!r}."
        )
    for size in found["shape"]:
        check_count(f"{param.name} shape", size)
    check_count(f"{param.name} updates", found["updates"])
    if not isinstance(_saved_dtype(found), torch.dtype):
        raise StateError(f"Can't load the state of param '{param.name}': expected its dtype, found {found['dtype']!r}.")
    if found["joined_at"] is not None:
        check_count(f"{param.name} joined_at", found["joined_at"])
    check_parts(f"param '{param.name}' in torch", found["state"])


def _saved_dtype(found: Mapping[str, Any]) -> Any:
    """The dtype that a param had when it was saved, or None."""
    return getattr(torch, str(found["dtype"]).removeprefix("torch."), None)


def _has_form_of(value: Any, example: Any, shape: Sequence[int]) -> bool:
    """Whether a value can be the state of a param of a shape as the example is that of one whose dimensions are all of
    size 2.
    """
    if isinstance(example, int):
        return type(value) is type(example) and value >= 0  # a number of steps, or a flag
    if not isinstance(example, torch.Tensor):
        return isinstance(value, (int, float)) or not isinstance(example, float)
    if not isinstance(value, torch.Tensor):
        return False
    if example.numel() == 1:
        return value.numel() == 1
    return tuple(value.shape) == tuple(shape) or tuple(example.shape) != (2,) * len(shape)


def _describe(value: Any) -> str:
    return f"a tensor of shape {_shape(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _is_like(value: Any, expected: Any) -> bool:
    """Whether a value is of the kind of another: a tensor of the same shape and dtype, a number, or the same type.
    None: any may come.
    """
    if expected is None:
        return True
    if isinstance(expected, torch.Tensor):
        return isinstance(value, torch.Tensor) and value.shape == expected.shape and value.dtype == expected.dtype
    if isinstance(expected, bool) or not isinstance(expected, (int, float)):
        return type(value) is type(expected)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, torch.Tensor))


def _shape(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})" if isinstance(shape, Iterable) else repr(shape)
