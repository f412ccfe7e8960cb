"""The form of an optimizer's saved state: see core/schema.py. Params have lasting names.

A state is fitted to a pipeline whose components were added, removed, renamed or frozen since. Changes between two
processes have the same effect as within one: state of removed params is dropped, new params start without,
and renamed params keep their state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Optional

import torch

from ..algorithms import StateBeside
from ..errors import ConfigError
from ..params import Param, ParamRow, clean, escape
from ..rates import WriterState
from ..schema import Count, Limit, NotNegative
from ..settings import FreezeChange, RateChange

VERSION = 3
WHAT = "the state of the optimizer"

OneNumber = Annotated[torch.Tensor, Limit("a tensor of one number", lambda tensor: tensor.numel() == 1)]


@dataclass
class SavedGroup:
    """One param group.

    algorithm, path (str): Its algorithm, and the config path of that.
    params (list[str]): Their names.
    options (dict): Its options that no schedule moves, without switches that depend on the machine.
    state (dict): The algorithm's own values in it.
    rate, applied_rate (float): The last ones, without and with the scale of the run.
    """

    algorithm: str
    path: str
    params: list[str]
    options: dict[str, Any]
    state: dict[str, Any]
    rate: NotNegative
    applied_rate: NotNegative


@dataclass
class SavedScaler:
    """The scaler of the gradients of a torch model in thinc's mixed precision: its scale, and the number of updates
    since that last changed.
    """

    scale: OneNumber
    growth_tracker: OneNumber


@dataclass
class SavedSettings:
    """The values that were set by hand. None: as in the config."""

    learn_rate: Optional[NotNegative]
    grad_clip: Optional[NotNegative]


@dataclass
class SavedState:
    """The whole state.

    step (int): Of the schedules.
    params, groups: By name, and by label. Params are in the order in which they were added.
    grads: The gradients of params that have one, by name. None: zeros, see by_name.py.
    algorithms: Their state beside params and groups, by config path. averages, grad_scalers (by the path of the shim),
    guard, schedules: In the forms of their owners.
    """

    version: int
    step: Count
    settings: SavedSettings
    schedules: dict[str, Any]
    guard: dict[str, Any]
    learn_rates: WriterState
    params: dict[str, ParamRow]
    groups: dict[str, SavedGroup]
    grads: dict[str, Optional[torch.Tensor]]
    algorithms: dict[str, StateBeside]
    averages: Optional[dict[str, Any]]
    grad_scalers: dict[str, SavedScaler]
    freeze_changes: list[FreezeChange]
    rate_changes: list[RateChange]


# ---------------------------------------------------------------------- for a changed pipeline


def as_paths(renamed: Mapping[str, str]) -> dict[str, str]:
    """New names by old ones, escaped as in names of params. Parts may be given unescaped."""
    return {_as_path(old): _as_path(new) for old, new in renamed.items()}


def rename(saved: SavedState, paths: Mapping[str, str]) -> SavedState:
    """Rename params in a state.

    saved (SavedState): It is not changed.
    paths (Mapping[str, str]): From `as_paths`: new names by old ones, of components, or of any prefix of names up to a
        whole name.
    RAISES (ConfigError): An unknown name, or two names would become one.
    """
    new = {name: _renamed(name, paths) for name in saved.params}
    for old in paths:
        if not any(_is_below(name, old) for name in new):
            raise ConfigError(
                f"Can't rename '{old}' in the state of the optimizer: there is no component or param of that name. The "
                f"components are: {', '.join(_components(new))}."
            )
    if len(set(new.values())) != len(new):
        twice = [name for name, count in Counter(new.values()).items() if count > 1]
        raise ConfigError(
            f"Can't rename params in the state of the optimizer: expected different names, found '{twice[0]}' for two "
            "of them. Rename the other one too."
        )

    def by_name(part: Mapping[str, Any]) -> dict[str, Any]:
        return {_renamed(name, paths): value for name, value in part.items()}

    averages = saved.averages
    return replace(
        saved,
        params=by_name(saved.params),
        groups={
            group_id: replace(part, params=[_renamed(name, paths) for name in part.params])
            for group_id, part in saved.groups.items()
        },
        averages=averages
        and {
            name: by_name(part) if isinstance(part, Mapping) and name != "settings" else part
            for name, part in averages.items()
        },
        grads=by_name(saved.grads),
        grad_scalers=by_name(saved.grad_scalers),
    )


def fit(saved: SavedState, params: Collection[Param], paths: Collection[str]) -> tuple[SavedState, str]:
    """Select the part of a state that belongs to these params.

    saved (SavedState): It is not changed.
    params (Collection[Param]): All params of the pipeline.
    paths (Collection[str]): The paths of its shims.
    RETURNS (tuple[SavedState, str]): The state of params in both, and a description of dropped and new params; empty if
        there are none.
    """
    trained = {param.name for param in params if param.group is not None}
    kept = {param.name for param in params} & saved.params.keys()
    # Params that are frozen now have no state.
    dropped = [
        name for name, found in saved.params.items() if name not in kept or (name not in trained and found.state)
    ]
    new = [name for name in trained if name not in kept]

    kept_and_trained = kept & trained

    def of_kept(part: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in part.items() if name in kept_and_trained or _is_buffer_of(name, paths)}

    groups = {}
    for group_id, part in saved.groups.items():
        if members := [name for name in part.params if name in kept_and_trained]:
            groups[group_id] = replace(part, params=members)
    averages = saved.averages
    if averages is not None:
        averages = {
            name: of_kept(part) if name in ("tensors", "taken", "ages") else part for name, part in averages.items()
        }
        averages["module_steps"] = {path: steps for path, steps in averages["module_steps"].items() if path in paths}
    fitted = replace(
        saved,
        params={name: found for name, found in saved.params.items() if name in kept},
        groups=groups,
        grads={
            param.name: saved.grads[param.name]
            for param in params
            # One that has grown has a new array.
            if param.name in kept & saved.grads.keys() and saved.params[param.name].shape == list(param.shape)
        },
        averages=averages,
    )
    return fitted, "; ".join(
        f"{what}: {_describe(names, all_names)}"
        for what, names, all_names in (
            ("dropped", dropped, saved.params),
            ("start without state", new, [param.name for param in params]),
        )
        if names
    )


def _describe(names: Collection[str], all_names: Iterable[str]) -> str:
    """Names, or whole components with the number of their params."""
    in_component, there = Counter(map(_component, names)), Counter(map(_component, all_names))
    whole = {component for component, count in in_component.items() if count == there[component]}
    found = [f"all {in_component[component]} params of {component}" for component in sorted(whole)]
    return ", ".join(found + sorted(name for name in names if _component(name) not in whole))


def _component(name: str) -> str:
    return name.partition("/")[0]


def _components(names: Iterable[str]) -> list[str]:
    return sorted(set(map(_component, names)))


def _as_path(text: str) -> str:
    return "/".join(part if part == clean(part) else escape(part) for part in text.split("/"))


def _is_below(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}/")


def _is_buffer_of(name: str, paths: Collection[str]) -> bool:
    return name.startswith("buffer:") and any(_is_below(name.removeprefix("buffer:"), path) for path in paths)


def _renamed(name: str, paths: Mapping[str, str]) -> str:
    """A name, or a buffer's, with the longest renamed prefix replaced."""
    mark = "buffer:" if name.startswith("buffer:") else ""
    own = name.removeprefix(mark)
    for old in sorted(paths, key=len, reverse=True):
        if _is_below(own, old):
            return mark + paths[old] + own[len(old) :]
    return name
