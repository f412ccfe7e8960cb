"""What of thinc, spaCy and torch begins with an underscore, and is needed all the same. No other file knows of it.

Two sets have files of their own: torch's ops over lists of tensors and its fused kernels (kernels.py), and the
functions of thinc and spaCy that are replaced (hooks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from thinc.api import Model, PyTorchShim, Shim
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example

# ---------------------------------------------------------------------- thinc


def module_of(shim: Shim) -> Any:
    """The torch module that a shim wraps, or None: it wraps something else.

    SOURCE: thinc/shims/shim.py, `Shim._model`.
    """
    return shim._model if isinstance(shim._model, torch.nn.Module) else None


def scaler_of(shim: Shim) -> Any:
    """The gradient scaler of thinc's shim for torch, for mixed precision. None: it is another kind of shim.

    SOURCE: thinc/shims/pytorch.py, `PyTorchShim._grad_scaler`.
    """
    return shim._grad_scaler if isinstance(shim, PyTorchShim) else None


def is_scaling(shim: Shim) -> bool:
    """Whether a shim scales its gradients. Most have a scaler that is off.

    SOURCE: thinc/shims/pytorch_grad_scaler.py, `PyTorchGradScaler._enabled`.
    """
    return isinstance(shim, PyTorchShim) and shim._grad_scaler._enabled


def let_scale_be_float(scaler: Any) -> None:
    """Turn the scale into a float if it was given as a whole number, which torch can't update.

    SOURCE: thinc/shims/pytorch_grad_scaler.py, `PyTorchGradScaler._scale`.
    """
    if not scaler._scale.is_floating_point():
        scaler._scale = scaler._scale.float()


def scale_of(scaler: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale, and after how many updates without overflow: copies.

    SOURCE: thinc/shims/pytorch_grad_scaler.py, `PyTorchGradScaler._scale` and `_growth_tracker`.
    """
    return scaler._scale.clone(), scaler._growth_tracker.clone()


def back_off(scaler: Any, scale: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Do as if a scaler had found an overflow at a scale of before, from `scale_of`.

    SOURCE: thinc/shims/pytorch_grad_scaler.py, `PyTorchGradScaler.unscale` and `update`.
    """
    scaler._scale, scaler._growth_tracker = scale
    scaler._found_inf = True
    scaler.update()


def grads_of(node: Model) -> Iterator[tuple[tuple[int, str], Any, Any]]:
    """The params of a node that have a gradient: thinc's key, the array (None: `get_param` knows it), the gradient.

    What `has_grad`, `get_param` and `get_grad` find, without so many calls: this runs for each node at each step.
    SOURCE: thinc/model.py, `Model._params` and `_has_params`; thinc/backends/_param_server.py, `ParamServer`.
    """
    server = node._params
    grads = server._grads
    if grads:
        arrays: Any = server._params if server.proxy is None else {}
        for name in node._has_params:
            key = (node.id, name)
            if key in grads:
                yield key, arrays.get(key), grads[key]


def swap_grads(node: Model, grads: dict[tuple[int, str], Any]) -> dict[tuple[int, str], Any]:
    """Give a node other gradients. RETURNS (dict): Those that it had, by key.

    SOURCE: thinc/model.py, `Model._params`; thinc/backends/_param_server.py, `ParamServer._grads`.
    """
    before, node._params._grads = node._params._grads, grads
    return before


def lend_refs(node: Model, refs: dict[str, int]) -> None:
    """Note names of refs with the ids of the nodes to which they lead, beside thinc's own. They live as long as the
    node, and go along when it is deep-copied. A Model takes no attributes, and no weak references.

    SOURCE: thinc/model.py, `Model._params`; thinc/backends/_param_server.py, `ParamServer`.
    """
    vars(node._params)["lent_refs"] = refs


def lent_refs_of(node: Model) -> dict[str, int]:
    """What `lend_refs` noted."""
    found: dict[str, int] = vars(node._params).get("lent_refs", {})
    return found


# ---------------------------------------------------------------------- spaCy


def first_optimizer(nlp: Language) -> Any:
    """What `Language.initialize` or `resume_training` gave to a pipeline, which may not be what trains it. Or None.

    SOURCE: spacy/language.py, `Language._optimizer`.
    """
    return nlp._optimizer


def link_components(nlp: Language) -> None:
    """Let listeners know their tok2vec, as `Language.initialize` and `select_pipes` expect.

    SOURCE: spacy/language.py, `Language._link_components`.
    """
    nlp._link_components()


def cli_util() -> ModuleType:
    """What spaCy's commands share: `import_code`, `setup_gpu`, and so on. All commands are imported with it.

    SOURCE: spacy/cli/_util.py.
    """
    from spacy.cli import _util

    return _util


def compile_gold(examples: Sequence[Example], nlp: Language) -> dict[str, Any]:
    """What `spacy debug data` counts in examples: labels by kind of component ("tags", "ner", "spancat" ...), words
    that don't align, and mistakes of annotation.

    SOURCE: spacy/cli/debug_data.py, `_compile_gold`.
    """
    from spacy.cli.debug_data import _compile_gold

    factories = [nlp.get_pipe_meta(name).factory for name in nlp.pipe_names]
    return _compile_gold(examples, factories, nlp, make_proj=True)


# ---------------------------------------------------------------------- torch

# Layers with running statistics; those that take them over a batch; and those with a rate `p`.
Normalization = _NormBase
BatchNorm = _BatchNorm
Dropout = _DropoutNd


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """The buffers of a module's own, by name. What is put in here takes the place of a buffer, whatever it is.

    SOURCE: torch/nn/modules/module.py, `Module._buffers`.
    """
    return module._buffers


def put_buffer_back(module: torch.nn.Module, name: str, buffer: torch.Tensor, values: torch.Tensor) -> None:
    """Let a module have a buffer again, with values of before: a forward pass may have written to it, or put another in
    its place.
    """
    buffer.data.copy_(values)
    buffers_of(module)[name] = buffer


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written to, as far as torch counts.

    SOURCE: `torch.Tensor._version`, which autograd checks.
    """
    return tensor._version


def is_hooked_before_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether something is called before the steps of an optimizer.

    SOURCE: torch/optim/optimizer.py, `Optimizer._optimizer_step_pre_hooks` and `_global_optimizer_pre_hooks`.
    """
    return bool(optimizer._optimizer_step_pre_hooks or _global_optimizer_pre_hooks)


def is_hooked_after_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether something is called after the steps of an optimizer.

    SOURCE: torch/optim/optimizer.py, `Optimizer._optimizer_step_post_hooks` and `_global_optimizer_post_hooks`.
    """
    return bool(optimizer._optimizer_step_post_hooks or _global_optimizer_post_hooks)


def run_last(optimizer: torch.optim.Optimizer, hook: RemovableHandle) -> None:
    """Let a hook of an optimizer run after its others. hook (RemovableHandle): From `register_step_pre_hook`.

    SOURCE: torch/optim/optimizer.py, `Optimizer._optimizer_step_pre_hooks`.
    """
    hooks: Any = optimizer._optimizer_step_pre_hooks  # an OrderedDict
    hooks.move_to_end(hook.id)


def default_store() -> Any:
    """The store of the process group that there is.

    SOURCE: torch/distributed/distributed_c10d.py, `_get_default_store`.
    """
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def gloo_of_world() -> Any:
    """gloo's own object behind the process group that there is.

    SOURCE: torch/distributed/distributed_c10d.py, `ProcessGroup._get_backend`.
    """
    import torch.distributed as dist

    return dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
