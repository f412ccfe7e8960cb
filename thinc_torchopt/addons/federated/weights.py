"""The weights that server and clients exchange: trained params and the buffers of their torch modules, by lasting
names.

Frozen components and params, torch params without gradients and static vectors are not sent. They must be the same
everywhere: see agreement.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from zlib import crc32

import torch
from spacy.language import Language
from thinc.api import Model, PyTorchShim, Shim

from ...core.errors import PipelineError
from ...core.host import module_of
from ...core.optimizer import TorchOptimizer
from ...core.params import (
    NamedParam,
    clean,
    components_with_model,
    saved_tensor,
    shim_paths,
    trainable_components,
    walk,
)
from ...core.types import Key

Tensors = dict[str, torch.Tensor]


class Weights:
    """The weights of a pipeline.

    nlp (Language): The pipeline, initialized.
    exclude (Collection[str]): Components that are not trained.
    frozen (Collection[Key]): Keys of params that are never trained.
    RAISES (PipelineError): There is nothing to train, or a component has its own kind of model.

    Public: `params` (names of trained params), `fixed` (names of params that are not sent), `buffers` (names of buffers
        of torch modules, such as running means).
    """

    def __init__(self, nlp: Language, exclude: Collection[str] = (), frozen: Collection[Key] = ()):
        self._sources: dict[str, tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], None]]] = {}
        self._trained: dict[str, NamedParam] = {}
        self._fixed: dict[str, NamedParam] = {}
        seen: set[object] = set()
        trained = {id(model) for _, model in _components_to_train(nlp, exclude)}
        # Trained components first: a frozen one may share a layer with them.
        components = sorted(components_with_model(nlp), key=lambda pair: id(pair[1]) not in trained)
        for component, model in components:
            for found in walk(model, component):
                if found.key in seen or not _has_value(found):
                    continue
                seen.add(found.key)
                may_train = found.key not in frozen and (found.param is None or found.param.requires_grad)
                if id(model) in trained and may_train:
                    self._sources[found.name] = _in_torch(found.param) if found.param is not None else _in_node(found)
                    self._trained[found.name] = found
                else:
                    self._fixed[found.name] = found
        if not self._trained:
            raise PipelineError(
                f"Can't train the pipeline {nlp.pipe_names} federated: expected at least one param that is trained, "
                "found all of them frozen in [training.optimizer]. Take some out of the patterns with freeze = true."
            )
        self.params, self.fixed = list(self._trained), list(self._fixed)
        for component, model in components:
            for path, shim in shim_paths(model, component) if id(model) in trained else ():
                self._sources |= {name: _in_torch(value) for name, value in _buffers(shim, path)}
        self.buffers = [name for name in self._sources if name not in set(self.params)]

    def collect(self) -> Tensors:
        """Copies of all weights, on the CPU."""
        return {name: get().detach().cpu().clone() for name, (get, _) in self._sources.items()}

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Set the weights of the pipeline, in place. weights (Mapping): All of them, as from `collect`."""
        for name, (_, put) in self._sources.items():
            put(weights[name])

    def set_grads(self, optimizer: TorchOptimizer, grads: Mapping[str, torch.Tensor]) -> None:
        """Pass gradients of params, by name, to an optimizer that knows the pipeline, for its next step."""
        for name, grad in grads.items():
            found = self._trained[name]
            if (param := found.param) is not None:
                param.grad = grad.to(param)
                optimizer.set_grad(param, param.grad)
            else:
                optimizer.set_grad(_array(found), found.owner.ops.asarray(grad.numpy()), key=found.key)

    def checksums(self) -> dict[str, str]:
        """Checksums of the params that are not sent, by component."""
        sums: dict[str, int] = {}
        for name in sorted(self._fixed):
            component, found = name.partition("/")[0], self._fixed[name]
            value = found.param if found.param is not None else saved_tensor(_array(found), name)
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            sums[component] = crc32(data.tobytes(), crc32(name.encode("utf8"), sums.get(component, 0)))
        return {component: f"{checksum:08x}" for component, checksum in sums.items()}


def _components_to_train(nlp: Language, exclude: Collection[str]) -> list[tuple[str, Model]]:
    found = trainable_components(nlp, exclude)
    known = {id(model) for _, model in found}
    for name, proc in nlp.pipeline:
        if name in exclude or not getattr(proc, "is_trainable", False):
            continue
        model = getattr(proc, "model", None)
        shims = [shim for node in model.walk() for shim in node.shims] if isinstance(model, Model) else []
        foreign = [type(shim).__name__ for shim in shims if not isinstance(shim, PyTorchShim)]
        if (id(model) not in known and model not in (None, True, False)) or foreign:
            raise PipelineError(
                f"Can't train component '{name}' federated: expected params of thinc or torch, found "
                f"{foreign[0] if foreign else type(model).__name__}. Add it to [training] frozen_components."
            )
    if not found:
        raise PipelineError(
            f"Can't train the pipeline {nlp.pipe_names} federated: expected at least one trainable component, found "
            f"none that is not in [training] frozen_components ({list(exclude)})."
        )
    return found


def _has_value(found: NamedParam) -> bool:
    if found.param is not None:
        return not torch.nn.parameter.is_lazy(found.param)
    return bool(found.owner.has_param(found.key[1]))  # type: ignore[index]


def _array(found: NamedParam) -> object:
    return found.owner.get_param(found.key[1])  # type: ignore[index]


def _in_torch(tensor: torch.Tensor) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], None]]:
    def put(value: torch.Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(value)

    return (lambda: tensor), put


def _in_node(found: NamedParam) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], None]]:
    """The array is looked up each time, as nodes may get another one."""
    node, name = found.owner, found.key[1]  # type: ignore[index]

    def put(value: torch.Tensor) -> None:
        array, given = node.get_param(name), node.ops.asarray(value.numpy())
        if getattr(array.flags, "writeable", True):
            array[...] = given
        else:
            node.set_param(name, given.astype(array.dtype))

    return (lambda: saved_tensor(node.get_param(name), found.name)), put


def _buffers(shim: Shim, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The float buffers that a torch module saves. Others, such as `num_batches_tracked`, can't be averaged."""
    module = module_of(shim)
    if isinstance(module, torch.nn.Module):
        own = {name for name, _ in module.named_buffers()}
        for name, value in module.state_dict().items():
            if name in own and value.is_floating_point():
                yield "/".join([path, *map(clean, name.split("."))]), value
