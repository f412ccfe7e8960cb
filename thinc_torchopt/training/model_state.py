"""The model of a training run: all that components learn, and what layers keep beside params, by lasting names.

A run that goes on builds its pipeline from the config, and then takes all this. So it must have the same layers, params
and shapes as the pipeline with which the run began: what a callback changes in mid-training can't be built again, and
is refused when it is to be saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from spacy.language import Language
from thinc.api import Model, PyTorchShim, Shim
from torch.nn.parameter import is_lazy

from ..checks import own_errors
from ..errors import StateError
from ..host import module_of
from ..params import NamedParam, components_with_model, own_copy, saved_tensor, shim_paths, torch_params, walk
from ..schema import Limit
from .layer_attrs import is_plain, like, on_cpu

Bytes = Annotated[torch.Tensor, Limit("bytes", lambda value: value.dtype == torch.uint8 and value.ndim == 1)]


@dataclass
class ModelState:
    """All that components learn, by lasting names.

    params (dict): thinc's. modules (dict): The states of torch modules. shims (dict): Those of others, by their own
        code.
    attrs (dict): Of each component: what its layers keep beside params.
    requires_grad (dict): Of each torch module: the params that learn.
    components (dict): Those whose model is not thinc's, by their own code.
    disabled (list): Components that are.
    """

    params: dict[str, torch.Tensor] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    shims: dict[str, Bytes] = field(default_factory=dict)
    attrs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    requires_grad: dict[str, list[str]] = field(default_factory=dict)
    components: dict[str, Bytes] = field(default_factory=dict)
    disabled: list[str] = field(default_factory=list)


def collect_model(nlp: Language, stopped: Collection[int] = ()) -> ModelState:
    """All that components learn: thinc's params and torch modules, by lasting names, and what layers keep in their
    attrs.

    stopped (Collection[int]): Ids of torch params whose `requires_grad` is False only as long as the training lasts.
    """
    state = ModelState(disabled=list(nlp.disabled))
    for name, model in components_with_model(nlp):
        for found in walk(model, name):
            if (param := _thinc_param(found)) is not None and found.owner.has_param(param):
                state.params[found.name] = saved_tensor(found.owner.get_param(param), found.name)
        for path, shim in shim_paths(model, name):
            if _is_torch(shim):
                state.modules[path] = {
                    key: value for key, value in module_of(shim).state_dict().items() if not is_lazy(value)
                }
                state.requires_grad[path] = [
                    key for key, param in torch_params(shim) if param.requires_grad or id(param) in stopped
                ]
            else:
                state.shims[path] = _from_bytes(shim.to_bytes())
        # The parser notes there which classes it has met, for example.
        state.attrs[name] = [
            {key: on_cpu(value) for key, value in node.attrs.items() if is_plain(value)} for node in model.walk()
        ]
    state.components = {name: _from_bytes(_to_bytes(name, proc)) for name, proc in _other_components(nlp)}
    return state


# ---------------------------------------------------------------------- checks


def layout_of(nlp: Language) -> dict[str, Any]:
    """Which params, modules, and nodes with attrs there are, with their shapes; None where the first pass will tell."""
    params: dict[str, Any] = {}
    modules: dict[str, Any] = {}
    attrs: dict[str, Any] = {}
    for name, model in components_with_model(nlp):
        for found in walk(model, name):
            if (param := _thinc_param(found)) is not None:
                params[found.name] = tuple(found.owner.get_param(param).shape) if found.owner.has_param(param) else None
        for path, shim in shim_paths(model, name):
            for key, value in module_of(shim).state_dict().items() if _is_torch(shim) else ():
                modules[f"{path}/{key}"] = None if is_lazy(value) else _shape(value)
            modules[path] = "a torch module" if _is_torch(shim) else "another one"
        attrs[name] = sum(1 for _ in model.walk())
    return {
        "params": params,
        "modules": modules,
        "attrs": attrs,
        "components": {name: "a component" for name, _ in _other_components(nlp)},
        "pipeline": {f"component '{name}'": nlp.get_pipe_meta(name).factory for name in nlp.component_names},
    }


def check_can_be_saved(nlp: Language, at_start: Mapping[str, Any], *, allow_foreign_shims: bool) -> None:
    """Check that a run that goes on could take up the model as it is now.

    at_start (Mapping): `layout_of` the pipeline when the run began.
    RAISES (StateError): It is not the model with which the run began; or there are parts that may not be loaded, or
        can't be saved.
    """
    different = _differences(at_start, layout_of(nlp))
    if different:
        raise StateError(
            "Can't save a checkpoint: expected the pipeline as it was when training began, found other components, "
            f"params or shapes: {_some(different)}. A resumed run builds its pipeline from the config, and could not "
            "load this one. Code that changes the pipeline during training (add_pipe, add_label, replace_listeners), "
            "often in before_update, belongs in [initialize]. A layer that creates its own params must do so before "
            "its first update."
        )
    foreign = [f"the {type(shim).__name__} '{path}'" for path, shim in _foreign_shims(nlp)]
    foreign += [f"the component '{name}'" for name, _ in _other_components(nlp)]
    if foreign and not allow_foreign_shims:
        raise StateError(
            f"Can't save a checkpoint: expected thinc's params and torch modules, found {_some(foreign)}, which only "
            "their own code (from_bytes) can load. If nobody else can write to the checkpoint folder, set "
            "allow_foreign_shims = true in [training.optimizer.checkpoint]. Otherwise remove that block."
        )


def check_model(nlp: Language, saved: ModelState, *, allow_foreign_shims: bool = True) -> None:
    """RAISES (StateError): A saved model has other params than this pipeline, or other shapes; or parts that may not be
    loaded.
    """
    different = _differences(layout_of(nlp), _layout_of_saved(nlp, saved))
    if different:
        raise StateError(
            "Can't resume: expected the params of this pipeline in the saved model, found others, or other shapes, "
            f"for {_some(different)}. The labels in the training data, or the pipeline, have changed. Restore them, or "
            "start from the beginning."
        )
    if not allow_foreign_shims and (saved.components or any(True for _ in _foreign_shims(nlp))):
        check_can_be_saved(nlp, layout_of(nlp), allow_foreign_shims=False)


def _layout_of_saved(nlp: Language, saved: ModelState) -> dict[str, Any]:
    """As `layout_of`."""
    modules: dict[str, Any] = dict.fromkeys(saved.shims, "another one")
    for path, module in saved.modules.items():
        modules |= {path: "a torch module"} | {f"{path}/{key}": _shape(value) for key, value in module.items()}
    return {
        "params": {name: tuple(value.shape) for name, value in saved.params.items()},
        "modules": modules,
        "attrs": {name: len(nodes) for name, nodes in saved.attrs.items()},
        "components": dict.fromkeys(saved.components, "a component"),
        "pipeline": layout_of(nlp)["pipeline"],  # the config tells, which is compared by itself
    }


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Names of what is in one and not in the other, or has another shape there."""
    names = []
    for kind, here in expected.items():
        there = found[kind]
        for name in here.keys() | there.keys():
            # What has no shape yet may come, or not.
            if (
                here.get(name) != there.get(name)
                and not (name in here and here[name] is None)
                and not (name in there and there[name] is None)
            ):
                names.append(str(name))
    return sorted(names)


def is_finite(nlp: Language, saved: ModelState) -> bool:
    """Whether no param of a saved model has a NaN or an infinite value. Buffers of torch modules may: masks are full of
    -inf.
    """
    params = list(saved.params.values())
    for name, model in components_with_model(nlp):
        for path, shim in shim_paths(model, name):
            if _is_torch(shim):
                module = saved.modules.get(path, {})
                params += [module[own] for own, _ in module_of(shim).named_parameters() if own in module]
    return all(bool(param.isfinite().all()) for param in params)


# ---------------------------------------------------------------------- going on


def restore_setup(nlp: Language, saved: ModelState) -> None:
    """Disable components, and let torch params learn, as in the run that goes on: a callback may have changed that."""
    disabled = set(saved.disabled)
    for name in nlp.component_names:
        if name in disabled and name in nlp.pipe_names:
            nlp.disable_pipe(name)
        elif name not in disabled and name not in nlp.pipe_names:
            nlp.enable_pipe(name)
    for name, model in components_with_model(nlp):
        for path, shim in shim_paths(model, name):
            if path in saved.requires_grad:
                learns = set(saved.requires_grad[path])
                for key, param in torch_params(shim):
                    if not is_lazy(param):
                        param.requires_grad_(key in learns)


def restore_model(nlp: Language, saved: ModelState) -> None:
    """Write saved values where the model has its own. `check_model` comes before.

    RAISES (StateError): A value is of another kind than the model's. The model is half of the saved one then.
    """
    with own_errors("the model"):
        for name, model in components_with_model(nlp):
            for found in walk(model, name):
                if (param := _thinc_param(found)) is not None and found.name in saved.params:
                    _restore_param(found.owner, param, _array(saved.params[found.name]))
            for path, shim in shim_paths(model, name):
                if _is_torch(shim):
                    # Params that are not made yet were not saved; all others were looked for by name.
                    module_of(shim).load_state_dict(saved.modules[path], strict=False)
                else:
                    shim.from_bytes(_array(saved.shims[path]).tobytes())
            for node, attrs in zip(model.walk(), saved.attrs[name]):
                node.attrs.update({key: like(node, key, value) for key, value in attrs.items()})
        components = saved.components
        for name, proc in _other_components(nlp):
            if name in components:
                _load_bytes(proc, _array(components[name]).tobytes())


def _restore_param(node: Any, param: str, value: Any) -> None:
    if not node.has_param(param):
        node.set_param(param, node.ops.asarray(value.copy()))
        return
    array: Any = node.get_param(param)
    if not _is_writable(array):
        array = own_copy(array)
        node.set_param(param, array)
    array[...] = node.ops.asarray(value)


# ---------------------------------------------------------------------- gradients


def collect_grads(nlp: Language) -> dict[str, torch.Tensor | None]:
    """Gradients that wait for an update, by lasting names. None: of zeros, in the main memory.

    After a step of spaCy's training loop all are zero. After `nlp.update(..., sgd=optimizer)` there may be: it updates
    a shared tok2vec before the components that listen to it come to their backward passes, so their gradients wait in
    it for the next batch.
    """
    grads: dict[str, torch.Tensor | None] = {}
    for name, model in components_with_model(nlp):
        for found in walk(model, name):
            if (param := _thinc_param(found)) is None:
                if found.param is not None and found.param.grad is not None:
                    grads[found.name] = found.param.grad
            elif found.owner.has_grad(param):
                grad = found.owner.get_grad(param)
                # For one on a GPU the host would have to wait: it is saved whatever it is.
                is_there = hasattr(grad, "__cuda_array_interface__") or grad.any()
                grads[found.name] = saved_tensor(grad, found.name) if is_there else None
    return grads


def restore_grads(nlp: Language, saved: Mapping[str, torch.Tensor | None] | None, updated: Collection[Any]) -> None:
    """Give params the gradients that they had. Others are dropped.

    thinc's params keep their gradient for good, if only zeros: so each update of their model moves them on by momentum
    and weight decay, also where a batch has nothing for them.
    saved (Mapping): From `collect_grads`. None: as after a step of spaCy's training loop.
    updated (Collection[Key]): Keys of the params that had updates: after such a step, those that have a gradient.
    RAISES (StateError): One has not its param's shape.
    """
    with own_errors("the gradients"):
        for name, model in components_with_model(nlp):
            for found in walk(model, name):
                grad = None if saved is None else saved.get(found.name)
                if (param := _thinc_param(found)) is None:
                    if found.param is not None:
                        found.param.grad = None if grad is None else grad.to(found.param.device, copy=True)
                    continue
                node, had_one = found.owner, found.key in updated if saved is None else found.name in saved
                if had_one and not node.has_grad(param):
                    node.set_grad(param, node.ops.xp.zeros_like(node.get_param(param)))
                if node.has_grad(param):
                    node.get_grad(param)[...] = 0 if grad is None else node.ops.asarray(_array(grad))


# ---------------------------------------------------------------------- the parts of a model


def _thinc_param(found: NamedParam) -> str | None:
    """The name of a param in its thinc node. None if it is torch's."""
    return found.key[1] if isinstance(found.owner, Model) and isinstance(found.key, tuple) else None


def _is_torch(shim: Shim) -> bool:
    return isinstance(shim, PyTorchShim) and module_of(shim) is not None


def _foreign_shims(nlp: Language) -> Iterator[tuple[str, Shim]]:
    for name, model in components_with_model(nlp):
        yield from ((path, shim) for path, shim in shim_paths(model, name) if not _is_torch(shim))


def _other_components(nlp: Language) -> Iterator[tuple[str, Any]]:
    """Trainable components whose model is not a thinc `Model`."""
    for name, proc in nlp.components:
        model = getattr(proc, "model", None)
        if (
            getattr(proc, "is_trainable", False)
            and not isinstance(model, Model)
            and not isinstance(model, bool)
            and model is not None
        ):
            yield name, proc


def _to_bytes(name: str, proc: Any) -> bytes:
    for method in ("to_bytes", "from_bytes"):
        if not hasattr(proc, method):
            raise StateError(
                f"Can't save a checkpoint: expected component '{name}', whose model is a {type(proc.model).__name__}, "
                f"to have to_bytes and from_bytes, found no {method}. Add it, or remove "
                "[training.optimizer.checkpoint]."
            )
    try:
        return proc.to_bytes(exclude=["vocab"])
    except TypeError:  # it excludes nothing
        return proc.to_bytes()


def _load_bytes(proc: Any, content: bytes) -> None:
    try:
        proc.from_bytes(content, exclude=["vocab"])
    except TypeError:
        proc.from_bytes(content)


def _from_bytes(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)


def _array(tensor: torch.Tensor) -> Any:
    """The values of a tensor, wherever it is, where NumPy can have them."""
    return tensor.cpu().numpy()


def _is_writable(array: Any) -> bool:
    return getattr(array.flags, "writeable", True)


def _shape(value: Any) -> Any:
    """Of a tensor; of what else a module may keep, only that it is no tensor."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else "no tensor"


def _some(names: list[str]) -> str:
    return f"{len(names)} names: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
