"""Averages in place of a pipeline's params, for a while: `nlp.use_params` and `Model.use_params`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from spacy.language import Language
from thinc.api import Model, PyTorchShim, Shim

from .. import kernels
from ..errors import ParamError
from ..host import buffers_of, module_of, put_buffer_back
from ..types import Key
from .averages import AveragedParams

# The nodes whose weights, or whose shims' weights, are replaced by averages. A deep copy has the same ids.
_in_place: set[Model[Any, Any]] = set()
# Ids of torch params that are on averages.
_on_averages: set[int] = set()


def is_in_place(tensor: torch.Tensor) -> bool:
    """Whether averages have replaced the values of a torch param."""
    return id(tensor) in _on_averages


def is_in_use(module: torch.nn.Module) -> bool:
    """Whether averages have replaced the values of any param of a module."""
    return bool(_on_averages) and any(map(is_in_place, module.parameters()))


def check_not_in_use(model: Model[Any, Any], names: Mapping[Key, Sequence[str]]) -> None:
    """Check that a model has its own weights now. names (Mapping): Of params, by their keys.

    RAISES (ParamError): Averages have replaced them.
    """
    for node in model.walk() if _in_place else ():
        if node in _in_place:
            known = [name for param in node.param_names for name in names.get((node.id, param), ())]
            _refuse_update([*known, node.name][0])


def check_param_not_in_use(
    key: Key, weights: Any, tensor: torch.Tensor | None, names: Mapping[Key, Sequence[str]]
) -> None:
    """Check one param. key, weights: Its key and values, as thinc calls an optimizer. tensor (Tensor | None): If it is
    one of torch.

    RAISES (ParamError): An average has replaced it.
    """
    if tensor is not None:
        is_in_use = is_in_place(tensor)
    else:
        arrays = [node.get_param(name) for node in _in_place for name in node.param_names if (node.id, name) == key]
        is_in_use = key in names and any(array is weights for array in arrays)
    if is_in_use:
        _refuse_update([*names.get(key if tensor is None else id(tensor), ()), str(key)][0])


def _refuse_update(name: str) -> NoReturn:
    raise ParamError(
        f"Can't update param '{name}': expected its trained weights, found averages in their place. This is inside a "
        "block of use_params(optimizer.averages), which restores the trained weights at its end: the update would be "
        "lost. Call it outside of the block."
    )


def _note(where: set[Any], which: Any, restore: ExitStack) -> None:
    """Note it until the end of the outermost block."""
    if which not in where:
        where.add(which)
        restore.callback(where.discard, which)


@contextmanager
def use_in_pipeline(nlp: Language, averages: AveragedParams) -> Iterator[None]:
    """Inside, each component has its averages; afterwards its earlier values, even after an exception."""
    with ExitStack() as restore:
        for _, pipe in nlp.pipeline:
            if hasattr(pipe, "use_params") and hasattr(pipe, "model"):
                # spaCy needs generators here: one `next` to begin, one to end.
                used = pipe.use_params(averages)
                next(used, None)
                restore.callback(next, used, None)
        yield


@contextmanager
def use_in_model(model: Model[Any, Any], averages: AveragedParams) -> Iterator[None]:
    """Afterwards nodes have the same arrays as before, and torch modules the same values in the same tensors."""
    with ExitStack() as restore:
        for node in list(model.walk()):
            for name in node.param_names:
                if (node.id, name) in averages and node.has_param(name):
                    _note(_in_place, node, restore)
                    restore.callback(node.set_param, name, node.get_param(name))
                    node.set_param(name, averages[node.id, name])
            for shim in node.shims:
                if any(_is_of(key, shim) for key in averages):
                    _note(_in_place, node, restore)
                if type(shim).use_params is PyTorchShim.use_params:
                    _use_in_module(module_of(shim), f"pytorch_{shim.id}_", averages, restore)
                else:
                    # It looks for its averages under (id, name), which may belong to a node as well.
                    own = {key[1:]: values for key, values in averages.items() if key[:2] == ("shim", shim.id)}
                    used = shim.use_params(averages | own)
                    used.__enter__()
                    # Continue without the exception: such a shim restores only at the normal end of its block.
                    restore.callback(used.__exit__, None, None, None)
        yield


def _is_of(key: Any, shim: Shim) -> bool:
    """Whether an average belongs to a param in a shim: see `Averages.as_thinc`."""
    return key.startswith(f"pytorch_{shim.id}_") if isinstance(key, str) else key[:2] == ("shim", shim.id)


def _use_in_module(module: Any, prefix: str, averages: AveragedParams, restore: ExitStack) -> None:
    if not averages or not isinstance(module, torch.nn.Module):
        return
    # Values without an average stay as they are.
    swaps = [
        (tensor, tensor.data, averages[prefix + name])
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if prefix + name in averages and averages[prefix + name].data_ptr() != tensor.data_ptr()
    ]
    if not swaps:
        return
    restore.callback(module.register_load_state_dict_pre_hook(_refuse_to_load).remove)
    for owner in module.modules():
        for name, buffer in buffers_of(owner).items():
            if buffer is not None:
                restore.callback(put_buffer_back, owner, name, buffer, buffer.clone())
    copied = []
    for tensor, old, new in swaps:
        _note(_on_averages, id(tensor), restore)
        if isinstance(tensor, torch.nn.Parameter) and _can_change_places(old, new):
            restore.callback(setattr, tensor, "data", old)
            tensor.data = new
        else:
            copied.append((old, new))
    live = [old for old, _ in copied]
    # Copies go to the device of the averages: if the params are elsewhere, there is no room for copies.
    restore.callback(kernels.copy_, live, [old.to(new.device, copy=True) for old, new in copied])
    kernels.copy_(live, [new for _, new in copied])


def _refuse_to_load(module: torch.nn.Module, *args: Any) -> None:
    """RAISES (ParamError): Averages have replaced the values of the module: loading would overwrite them."""
    if any(map(is_in_place, module.parameters())):  # not in a copy
        raise ParamError(
            f"Can't load values into the torch module {type(module).__name__}: expected its trained weights, found "
            "averages in their place. This is inside a block of use_params(optimizer.averages), which restores the "
            "trained weights at its end: the values would be lost. Load them outside of the block."
        )


def _can_change_places(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a param can be on the memory of its average for a while, so that neither is copied. A part of a larger
    memory can't: others may use that as a whole, as cuDNN does with the weights of an LSTM.
    """
    return (
        type(old) is type(new)
        and (old.dtype, old.device, old.shape, old.stride()) == (new.dtype, new.device, new.shape, new.stride())
        and old.untyped_storage().nbytes() == old.nbytes
    )
