"""The model of a training run: params, torch modules and attrs of layers, by lasting names.

A resumed run builds its pipeline from the config, then loads this state. So it needs the same layers, params and shapes
as at the start of the run. A pipeline that a callback has changed during training can't be rebuilt: saving it is an
error.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from spacy.language import Language
from thinc.api import Model, PyTorchShim, Shim
from torch.nn.parameter import is_lazy

from ..core.checks import own_errors
from ..core.errors import ConfigError, PipelineError, StateError
from ..core.host import module_of
from ..core.optimizer import TorchOptimizer
from ..core.params import (
    NamedModel,
    components_with_model,
    own_copy,
    saved_tensor,
    shim_paths,
    torch_params,
    walk_pipeline,
)
from ..core.schema import Count
from .config_check import Identity, compare_configs, compare_identities
from .random_state import RandomState


@dataclass
class ModelState:
    """The model of a pipeline, by lasting names.

    params (dict): thinc's params. modules (dict): State dicts of torch modules.
    attrs (dict): By component, the attrs of its layers.
    requires_grad (dict): By torch module, the params that are trained.
    disabled (list): Disabled components.
    """

    params: dict[str, torch.Tensor] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    attrs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    requires_grad: dict[str, list[str]] = field(default_factory=dict)
    disabled: list[str] = field(default_factory=list)


@dataclass
class SavedPipeline:
    """A pipeline in training, from which a run goes on as if it had never stopped.

    values (dict): The settings that affect training. identity (Identity): Vectors and labels at the start.
    """

    version: Count
    values: dict[str, str]
    identity: Identity
    model: ModelState
    optimizer: dict[str, Any]
    random: RandomState

    def differences(self, values: Mapping[str, str], identity: Identity) -> list[str]:
        """The differences to what is there now, one line each."""
        return compare_configs(self.values, values) + compare_identities(self.identity, identity)

    def load_optimizer(self, optimizer: TorchOptimizer, folder: Path) -> None:
        """RAISES (StateError): It is another optimizer. folder (Path): That of the state, for the error."""
        try:
            optimizer.load_state_dict(self.optimizer)
        except (ConfigError, PipelineError) as error:
            raise StateError(f"{error} The state is in '{folder}'.") from error


def collect_model(
    nlp: Language, stopped: Collection[int] = (), *, walked: Sequence[NamedModel] | None = None
) -> ModelState:
    """Collect the model of a pipeline. Tensors are not copied.

    stopped (Collection[int]): Ids of torch params whose `requires_grad` is False only during the training.
    walked (Sequence[NamedModel] | None): From `walk_pipeline`, if nothing has changed since.
    RAISES (StateError): See `check_parts`.
    """
    walked = walk_pipeline(nlp) if walked is None else walked
    check_parts(nlp, walked)
    state = ModelState(disabled=list(nlp.disabled))
    for component, model, params, shims in walked:
        for found in params:
            if found.param is None and (array := found.values) is not None:
                state.params[found.name] = saved_tensor(array, found.name)
        for path, shim in shims:
            state.modules[path] = {
                key: value for key, value in module_of(shim).state_dict().items() if not is_lazy(value)
            }
            state.requires_grad[path] = [
                key for key, param in torch_params(shim) if param.requires_grad or id(param) in stopped
            ]
        # The parser stores there which classes it has seen, for example.
        state.attrs[component] = [
            {key: on_cpu(value) for key, value in node.attrs.items() if is_plain(value)} for node in model.walk()
        ]
    return state


def checksum_of(model: ModelState) -> str:
    """A checksum of the weights."""
    found = 0
    for tensors in (model.params, *model.modules.values()):
        for tensor in tensors.values():
            if isinstance(tensor, torch.Tensor):
                data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
                found = zlib.crc32(data.numpy().data, found)
    return f"{found:08x}"


# ---------------------------------------------------------------------- checks


def layout_of(nlp: Language, walked: Sequence[NamedModel]) -> dict[str, Any]:
    """The params and modules with their shapes, and the number of nodes. None: a shape that is unknown before the first
    forward pass.

    walked (Sequence[NamedModel]): From `walk_pipeline`.
    """
    params: dict[str, Any] = {}
    modules: dict[str, Any] = {}
    attrs: dict[str, Any] = {}
    for component, model, found, shims in walked:
        for one in found:
            if one.param is None:
                params[one.name] = None if (array := one.values) is None else tuple(array.shape)
        for path, shim in shims:
            modules[path] = "a module"
            for key, value in module_of(shim).state_dict().items() if _is_torch(shim) else ():
                modules[f"{path}/{key}"] = None if is_lazy(value) else _shape(value)
        attrs[component] = sum(1 for _ in model.walk())
    return {
        "params": params,
        "modules": modules,
        "attrs": attrs,
        "pipeline": {f"component '{name}'": nlp.get_pipe_meta(name).factory for name in nlp.component_names},
    }


def check_parts(nlp: Language, walked: Sequence[NamedModel] | None = None) -> None:
    """walked (Sequence[NamedModel] | None): As for `collect_model`.

    RAISES (StateError): A part of the model can't be loaded without running code of its own: a shim that wraps no
    torch module, or a component without a thinc model.
    """
    foreign = [f"the component '{name}'" for name, proc in nlp.components if _has_other_model(proc)]
    for model in walk_pipeline(nlp) if walked is None else walked:
        foreign += [f"the {type(shim).__name__} '{path}'" for path, shim in model.shims if not _is_torch(shim)]
    if foreign:
        raise StateError(
            f"Can't save the state of this pipeline: expected params of thinc and torch modules, found "
            f"{_some(foreign)}. Only their own code can load these. They can be trained without "
            "[training.optimizer.checkpoint]."
        )


def check_layout(at_start: Mapping[str, Any], now: Mapping[str, Any], may_grow: Collection[str] = ()) -> None:
    """Check that a resumed run could load the current model.

    at_start, now (Mapping): `layout_of` the pipeline at the start of the run, and now.
    may_grow (Collection[str]): Params that a resumed run makes larger before it loads them: see late_labels.py.
    RAISES (StateError): The layout has changed since.
    """
    different = [name for name in _differences(at_start, now) if name not in may_grow]
    if different:
        raise StateError(
            "Can't save a checkpoint: expected the pipeline as it was when training began, found other components, "
            f"params or shapes: {_some(different)}. A resumed run builds its pipeline from the config, and could not "
            "load this one. Code that changes the pipeline during training (add_pipe, add_label, replace_listeners), "
            "often in before_update, belongs in [initialize]. A layer that creates its own params must do so before "
            "its first update."
        )


def check_model(nlp: Language, saved: ModelState, layout: Mapping[str, Any] | None = None) -> None:
    """layout (Mapping | None): `layout_of` the pipeline, if nothing has changed since.

    RAISES (StateError): A saved model has other params or shapes than this pipeline.
    """
    here = layout_of(nlp, walk_pipeline(nlp)) if layout is None else layout
    # The components are part of the config, which is compared separately.
    different = _differences(here, _layout_of_saved(saved) | {"pipeline": here["pipeline"]})
    if different:
        raise StateError(
            "Can't resume: expected the params of this pipeline in the saved model, found others, or other shapes, "
            f"for {_some(different)}. The labels in the training data, or the pipeline, have changed. Restore them, or "
            "start from the beginning."
        )


def _layout_of_saved(saved: ModelState) -> dict[str, Any]:
    """`layout_of` a saved model, without its components."""
    modules: dict[str, Any] = {}
    for path, module in saved.modules.items():
        modules |= {path: "a module"} | {f"{path}/{key}": _shape(value) for key, value in module.items()}
    return {
        "params": {name: tuple(value.shape) for name, value in saved.params.items()},
        "modules": modules,
        "attrs": {name: len(nodes) for name, nodes in saved.attrs.items()},
    }


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Names that only one of them has, or that have different shapes."""
    names = []
    for kind, here in expected.items():
        there = found[kind]
        for name in here.keys() | there.keys():
            # A part without a shape yet matches anything.
            if (
                here.get(name) != there.get(name)
                and not (name in here and here[name] is None)
                and not (name in there and there[name] is None)
            ):
                names.append(str(name))
    return sorted(names)


def is_finite(nlp: Language, saved: ModelState) -> bool:
    """Whether all params of a saved model are finite. Buffers of torch modules are not checked: masks have -inf."""
    params = list(saved.params.values())
    for name, model in components_with_model(nlp):
        for path, shim in shim_paths(model, name):
            if _is_torch(shim):
                module = saved.modules.get(path, {})
                params += [module[own] for own, _ in module_of(shim).named_parameters() if own in module]
    return all(bool(param.isfinite().all()) for param in params)


# ---------------------------------------------------------------------- resuming


def restore_setup(nlp: Language, saved: ModelState, walked: Sequence[NamedModel]) -> None:
    """Restore disabled components and `requires_grad` of torch params, which a callback may have changed.

    walked (Sequence[NamedModel]): From `walk_pipeline`.
    """
    disabled = set(saved.disabled)
    for name in nlp.component_names:
        if name in disabled and name in nlp.pipe_names:
            nlp.disable_pipe(name)
        elif name not in disabled and name not in nlp.pipe_names:
            nlp.enable_pipe(name)
    for model in walked:
        for path, shim in model.shims:
            if path in saved.requires_grad:
                learns = set(saved.requires_grad[path])
                for key, param in torch_params(shim):
                    if not is_lazy(param):
                        param.requires_grad_(key in learns)


def restore_model(nlp: Language, saved: ModelState, walked: Sequence[NamedModel] | None = None) -> None:
    """Load saved values into the model. Call `check_model` first.

    walked (Sequence[NamedModel] | None): As for `collect_model`.
    RAISES (StateError): A value has another kind than the model's. The model is then partly loaded.
    """
    with own_errors("the model"):
        for component, model, params, shims in walk_pipeline(nlp) if walked is None else walked:
            for found in params:
                if found.param is None and found.name in saved.params:
                    _restore_param(found.owner, found.key[1], saved.params[found.name])  # type: ignore[index]
            for path, shim in shims:
                # Lazy params were not saved; `check_model` has checked all others by name.
                module_of(shim).load_state_dict(saved.modules[path], strict=False)
            for node, attrs in zip(model.walk(), saved.attrs[component]):
                node.attrs.update({key: like(node, key, value) for key, value in attrs.items()})


def _restore_param(node: Any, name: str, saved: torch.Tensor) -> None:
    values = saved.cpu().numpy()
    if not node.has_param(name):
        node.set_param(name, node.ops.asarray(values.copy()))
        return
    array: Any = node.get_param(name)
    if not getattr(array.flags, "writeable", True):
        array = own_copy(array)
        node.set_param(name, array)
    array[...] = node.ops.asarray(values)


# ---------------------------------------------------------------------- parts of a model


def _is_torch(shim: Shim) -> bool:
    return isinstance(shim, PyTorchShim) and module_of(shim) is not None


def _has_other_model(proc: Any) -> bool:
    """Whether a trainable component has a model that is not a thinc `Model`."""
    model = getattr(proc, "model", None)
    return getattr(proc, "is_trainable", False) and model is not None and not isinstance(model, (Model, bool))


def _shape(value: Any) -> Any:
    """The tensor's shape; "no tensor" for anything else."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else "no tensor"


def _some(names: list[str]) -> str:
    return f"{len(names)} names: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


# ---------------------------------------------------------------------- attrs of layers


def is_plain(value: Any) -> bool:
    """Whether a value of a layer's attrs can be saved. Others, such as functions and models, are built by the
    config.
    """
    if isinstance(value, (set, frozenset, list, tuple)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, (numpy.ndarray, numpy.generic)) or hasattr(value, "__cuda_array_interface__"):
        return value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
    return value is None or type(value) in (bool, int, float, str, bytes)


def like(node: Any, key: str, value: Any) -> Any:
    """A saved attr as this layer keeps it: arrays on their device, and the same object if it has not changed."""
    here = node.attrs.get(key)
    if hasattr(here, "__cuda_array_interface__") and isinstance(value, numpy.ndarray):
        return node.ops.asarray(value)
    return here if same_values(here, value) else value


def same_values(one: Any, other: Any) -> bool:
    """Whether two values of layers' attrs are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_values, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    return bool(one == other)


def on_cpu(value: Any) -> Any:
    """A CuPy array as a NumPy array. Other values are returned as they are."""
    return value.get() if hasattr(value, "__cuda_array_interface__") and not isinstance(value, torch.Tensor) else value
