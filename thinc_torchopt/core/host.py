"""Private names of thinc, spaCy and torch that we need. No other file uses any, with two exceptions:

kernels.py has torch's ops over lists of tensors and its fused kernels, hooks.py the functions of thinc and spaCy that
are replaced.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from thinc.api import Model, PyTorchShim, Shim
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    _use_grad_for_differentiable,
)
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

    from .inserted import Insertion

# ---------------------------------------------------------------------- thinc


def module_of(shim: Shim) -> Any:
    """The torch module that a shim wraps. None: it wraps something else.

    SOURCE: thinc/shims/shim.py, `Shim._model`.
    """
    return shim._model if isinstance(shim._model, torch.nn.Module) else None


def swap(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute for the time of a run: a layer's function or ops, a shim's module, a module's `forward`.

    RETURNS (Callable): Puts back what was there, unless other code has set something else meanwhile.
    """
    before, was_in = getattr(owner, name), name in getattr(owner, "__dict__", {})
    setattr(owner, name, value)

    def put_back() -> None:
        if getattr(owner, name, None) is not value:
            return
        if not was_in and name in getattr(owner, "__dict__", {}):
            delattr(owner, name)  # the class has it
        else:
            setattr(owner, name, before)

    return put_back


def swap_module(shim: Shim, module: Any) -> Callable[[], None]:
    """Let a shim wrap another torch module. Hugging Face's shim keeps it in two places. RETURNS: As `swap`.

    SOURCE: thinc/shims/shim.py, `Shim._model`; spacy_transformers/layers/hf_shim.py (1.4.0), `HFShim._hfmodel`.
    """
    back = ExitStack()
    back.callback(swap(shim, "_model", module))
    if hasattr(shim, "_hfmodel"):
        back.callback(swap(shim._hfmodel, "transformer", module))
    return back.close


def attention_of(module: torch.nn.Module) -> str | None:
    """The attention of a model of Hugging Face, as "sdpa". None: it is none of theirs.

    SOURCE: transformers/configuration_utils.py (4.56), `PretrainedConfig._attn_implementation`.
    """
    found: str | None = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return found


def scaler_of(shim: Shim) -> Any:
    """The gradient scaler of thinc's shim for torch, for mixed precision. None: another kind of shim.

    SOURCE: thinc/shims/pytorch.py, `PyTorchShim._grad_scaler`.
    """
    return shim._grad_scaler if isinstance(shim, PyTorchShim) else None


def is_scaling(shim: Shim) -> bool:
    """Whether a shim scales its gradients. Most have a scaler that is switched off.

    SOURCE: thinc/shims/pytorch_grad_scaler.py, `PyTorchGradScaler._enabled`.
    """
    return isinstance(shim, PyTorchShim) and shim._grad_scaler._enabled


def is_in_mixed_precision(shim: Shim) -> bool:
    """Whether a shim for torch computes in float16.

    SOURCE: thinc/shims/pytorch.py, `PyTorchShim._mixed_precision`.
    """
    return isinstance(shim, PyTorchShim) and bool(shim._mixed_precision)


def let_scale_be_float(scaler: Any) -> None:
    """Make the scale a float: torch can't update an integer scale.

    SOURCE: thinc/shims/pytorch_grad_scaler.py, `PyTorchGradScaler._scale`.
    """
    if not scaler._scale.is_floating_point():
        scaler._scale = scaler._scale.float()


def scale_of(scaler: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the scale, and of the number of updates since it last changed.

    SOURCE: thinc/shims/pytorch_grad_scaler.py, `PyTorchGradScaler._scale` and `_growth_tracker`.
    """
    return scaler._scale.clone(), scaler._growth_tracker.clone()


def set_scale(scaler: Any, scale: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Undo `scale_of`.

    SOURCE: as there.
    """
    scaler._scale = scale[0].to(scaler._scale.device, torch.float32, copy=True)
    scaler._growth_tracker = scale[1].to(scaler._growth_tracker, copy=True)


def back_off(scaler: Any, scale: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Back off from a saved scale of `scale_of`, as after an overflow.

    SOURCE: thinc/shims/pytorch_grad_scaler.py, `PyTorchGradScaler.unscale` and `update`.
    """
    set_scale(scaler, scale)
    scaler._found_inf = True
    scaler.update()


def grads_of(node: Model[Any, Any]) -> Sequence[tuple[tuple[int, str], Any, Any]]:
    """The params of a node that have a gradient: thinc's key, the array (None: `get_param` knows it), the gradient.

    The same as `has_grad`, `get_param` and `get_grad`, with fewer calls: this runs for each node at each step.
    SOURCE: thinc/model.py, `Model._params` and `_has_params`; thinc/backends/_param_server.py, `ParamServer`.
    """
    server = node._params
    grads = server._grads
    if not grads:
        return ()
    arrays: Any = server._params if server.proxy is None else {}
    found = []  # in a loop: before Python 3.12 a comprehension is a call, which takes longer than one param
    for name in node._has_params:
        key = (node.id, name)
        if key in grads:
            found.append((key, arrays.get(key), grads[key]))
    return found


def swap_grads(node: Model[Any, Any], grads: dict[tuple[int, str], Any]) -> dict[tuple[int, str], Any]:
    """Set the gradients of a node. RETURNS (dict): The gradients before, by key.

    SOURCE: thinc/model.py, `Model._params`; thinc/backends/_param_server.py, `ParamServer._grads`.
    """
    before, node._params._grads = node._params._grads, grads
    return before


def drop_grad(node: Model[Any, Any], name: str) -> None:
    """Drop the gradient of a node's param, if it has one. SOURCE: as `swap_grads`."""
    node._params._grads.pop((node.id, name), None)


def forward_of(node: Model[Any, Any]) -> Callable[..., Any]:
    """The forward function of a layer. SOURCE: thinc/model.py, `Model._func`."""
    return node._func


def forward_of_parsers_lower_layer() -> Callable[..., Any]:
    """The forward function of a parser's layer that is computed for all words at once.

    SOURCE: spacy/ml/_precomputable_affine.py, `forward`.
    """
    from spacy.ml import _precomputable_affine  # later, as it imports much

    return _precomputable_affine.forward


def swap_forward(node: Model[Any, Any], forward: Callable[..., Any]) -> Callable[[], None]:
    """Set the forward function of a layer. RETURNS: As `swap`. SOURCE: thinc/model.py, `Model._func`."""
    return swap(node, "_func", forward)


def set_original_refs(node: Model[Any, Any], refs: dict[str, int]) -> None:
    """Store the refs of the node that this one is a copy of, with the ids of their nodes here, beside thinc's own. They
    live as long as the node, and are deep-copied with it. A Model allows no attributes, and no weak references.

    SOURCE: thinc/model.py, `Model._params`; thinc/backends/_param_server.py, `ParamServer`.
    """
    vars(node._params)["original_refs"] = refs


def original_refs(nodes: Iterable[Model[Any, Any]]) -> dict[int, dict[str, int]]:
    """The refs from `set_original_refs`, by the `id` of each node that has some."""
    return {id(node): refs for node in nodes if (refs := vars(node._params).get("original_refs"))}


def set_insertions(node: Model[Any, Any], insertions: Sequence[Insertion]) -> None:
    """Store the cells that were inserted into the params of a node, beside thinc's own, as in `set_original_refs`."""
    vars(node._params)["insertions"] = tuple(insertions)


def insertions_into(node: Model[Any, Any]) -> tuple[Insertion, ...]:
    """The insertions from `set_insertions`."""
    insertions: tuple[Insertion, ...] = vars(node._params).get("insertions", ())
    return insertions


def code_of_blis() -> str | None:
    """The code that thinc's BLIS has chosen for this processor, such as "haswell". "generic": plain C, the slow one.
    None: it doesn't say, as on Windows, where its names are not exported.

    SOURCE: flame-blis/frame/base/bli_arch.c in cython-blis, `bli_arch_query_id` and `bli_arch_string`.
    """
    import blis.cy

    try:
        library = ctypes.CDLL(blis.cy.__file__)
        library.bli_arch_string.restype = ctypes.c_char_p
        name = library.bli_arch_string(library.bli_arch_query_id())
    except (OSError, AttributeError):
        return None
    return name.decode() if name else None


# ---------------------------------------------------------------------- spaCy


def first_optimizer(nlp: Language) -> Any:
    """The optimizer from `Language.initialize` or `resume_training`, or None. Another one may train the pipeline.

    SOURCE: spacy/language.py, `Language._optimizer`.
    """
    return nlp._optimizer


def rehearsal_model_of(pipe: Any) -> Model[Any, Any] | None:
    """The copy of a component's model from when it was resumed, for `nlp.rehearse`. None: there is none.

    SOURCE: spacy/language.py, `Language.resume_training`.
    """
    model = getattr(pipe, "_rehearsal_model", None)
    return model if isinstance(model, Model) else None


def has_multitasks(parser: Any) -> bool:
    """Whether a parser or NER has other objectives beside its own.

    SOURCE: spacy/pipeline/transition_parser.pyx, `Parser._multitasks`.
    """
    return bool(parser._multitasks)


def add_labels_of(parser: Any, docs: Sequence[Doc]) -> None:
    """Add the labels of texts to NER, as its updates do; a parser gets none.

    SOURCE: spacy/pipeline/transition_parser.pyx, `Parser._ensure_labels_are_added`.
    """
    parser._ensure_labels_are_added(docs)


def components_of(nlp: Language) -> list[tuple[str, Any]]:
    """The components of a pipeline, by name, disabled ones too: its own list, which may be changed for a while."""
    found: list[tuple[str, Any]] = nlp._components
    return found


def link_components(nlp: Language) -> None:
    """Connect listeners to their tok2vec, as `Language.initialize` and `select_pipes` expect.

    SOURCE: spacy/language.py, `Language._link_components`.
    """
    nlp._link_components()


def cli_util() -> ModuleType:
    """The module that spaCy's commands share: `import_code`, `setup_gpu`, and so on. Imports all commands.

    SOURCE: spacy/cli/_util.py.
    """
    from spacy.cli import _util

    return _util


def new_edit_trees() -> Any:
    """The changes from words to lemmas that a trainable lemmatizer learns; none yet."""
    from spacy.pipeline._edit_tree_internals.edit_trees import EditTrees
    from spacy.strings import StringStore

    return EditTrees(StringStore())


# ---------------------------------------------------------------------- torch

# Layers with running statistics; layers with statistics over a batch; layers with a rate `p`.
Normalization = _NormBase
BatchNorm = _BatchNorm
Dropout = _DropoutNd


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """The buffers of a module itself, by name. Changes to the dict change the module.

    SOURCE: torch/nn/modules/module.py, `Module._buffers`.
    """
    return module._buffers


def put_buffer_back(module: torch.nn.Module, name: str, buffer: torch.Tensor, values: torch.Tensor) -> None:
    """Restore a buffer with its earlier values: a forward pass may have written to it, or replaced it."""
    buffer.data.copy_(values)
    buffers_of(module)[name] = buffer


def version_of(tensor: torch.Tensor) -> int:
    """The number of writes to a tensor, as far as torch counts them.

    SOURCE: `torch.Tensor._version`, which autograd checks.
    """
    return tensor._version


@contextmanager
def uncounted_writes(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Inside, torch does not count writes to tensors: a backward pass that has begun before accepts the new values.

    SOURCE: torch/autograd/grad_mode.py, `_unsafe_preserve_version_counter`.
    """
    with ExitStack() as stack:
        for tensor in tensors:
            stack.enter_context(_unsafe_preserve_version_counter(tensor))
        yield


def cpu_computes_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16. Without them torch emulates it.

    SOURCE: torch/cpu/__init__.py, `_is_avx512_bf16_supported` and `_is_amx_tile_supported`; for ARM,
    aten/src/ATen/native/mkldnn/Utils.h, `mkldnn_bf16_device_check`.
    """
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def cpu_has_bf16_lstm() -> bool:
    """Whether oneDNN has an LSTM in bfloat16 for this CPU. torch emulates all other modules, and not this one."""
    x, weights = torch.zeros(1, 1, 1), [torch.zeros(4, 1), torch.zeros(4, 1), torch.zeros(4), torch.zeros(4)]
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.lstm(x, (x, x), weights, True, 1, 0.0, False, False, False)
    except RuntimeError:
        return False
    return True


def is_hooked_before_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether hooks run before the steps of an optimizer.

    SOURCE: torch/optim/optimizer.py, `Optimizer._optimizer_step_pre_hooks` and `_global_optimizer_pre_hooks`.
    """
    return bool(optimizer._optimizer_step_pre_hooks or _global_optimizer_pre_hooks)


def is_hooked_after_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether hooks run after the steps of an optimizer.

    SOURCE: torch/optim/optimizer.py, `Optimizer._optimizer_step_post_hooks` and `_global_optimizer_post_hooks`.
    """
    return bool(optimizer._optimizer_step_post_hooks or _global_optimizer_post_hooks)


def run_last(optimizer: torch.optim.Optimizer, hook: RemovableHandle) -> None:
    """Move a hook of an optimizer behind its other hooks. hook (RemovableHandle): From `register_step_pre_hook`.

    SOURCE: torch/optim/optimizer.py, `Optimizer._optimizer_step_pre_hooks`.
    """
    hooks: Any = optimizer._optimizer_step_pre_hooks  # an OrderedDict
    hooks.move_to_end(hook.id)


def call_without_compiler() -> None:
    """Let methods of torch's optimizers run as they are while nobody has imported torch's compiler.

    Each of them begins by importing it (torch._dynamo, with sympy and much else, for a second) to tell it that it
    should not compile them. Once somebody else has imported it, they tell it as torch wants it.
    SOURCE: torch/_compile.py, `_disable_dynamo`, whose wrappers keep the function to call in `__dynamo_disable`.
    """
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        wrapper = getattr(torch.optim.Optimizer, name)
        function = getattr(wrapper, "__wrapped__", None)
        if function is not None and not hasattr(function, _TO_CALL):
            setattr(function, _TO_CALL, _until_imported(wrapper, function))


_TO_CALL = "__dynamo_disable"


def _until_imported(wrapper: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _has_compiler():
            return function(*args, **kwargs)
        if getattr(function, _TO_CALL, None) is call:
            delattr(function, _TO_CALL)
        return wrapper(*args, **kwargs)

    return call


def step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()`, without importing torch's compiler. See `call_without_compiler`.

    SOURCE: torch/optim/optimizer.py, `_use_grad_for_differentiable`, around the steps of torch's own optimizers.
    """
    around = getattr(type(optimizer).step, "__wrapped__", None)
    plain = getattr(around, "__wrapped__", None)
    is_torchs = getattr(around, "__code__", None) is _AROUND_STEPS
    if plain is None or not is_torchs or _has_compiler() or "step" in vars(optimizer):
        optimizer.step()
        return

    def with_grad(one: torch.optim.Optimizer) -> Any:
        with torch.set_grad_enabled(one.defaults["differentiable"]):
            return plain(one)

    torch.optim.Optimizer.profile_hook_step(with_grad)(optimizer)


_AROUND_STEPS = _use_grad_for_differentiable(lambda: None).__code__


def _has_compiler() -> bool:
    return sys.modules.get("torch._dynamo") is not None


def gloo_of(group: Any) -> Any:
    """gloo's own object behind a process group. group (Any): None: that of all processes.

    SOURCE: torch/distributed/distributed_c10d.py, `ProcessGroup._get_backend`.
    """
    import torch.distributed as dist

    found: Any = group or dist.group.WORLD
    return found._get_backend(torch.device("cpu"))
