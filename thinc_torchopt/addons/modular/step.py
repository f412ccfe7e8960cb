"""One step: the modules of a chain in turn; and a whole training step of a torch model, optionally with clipping of
each sample's gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from ...core.checks import Section
from ...core.errors import ConfigTypeError, ParamError
from ...core.host import BatchNorm
from .module import Block, ModularPart, StateView

# Number of samples whose gradients are in memory at once.
CHUNK = 64


@dataclass
class ActivePart:
    """A part that works on a param."""

    part: ModularPart
    options: Mapping[str, Any]
    kept: StateView

    def begin(self, block: Block, tool: Any) -> ModularPart:
        """Give the part its options, state and tool for a param."""
        block.options, block.state, block.tool = self.options, self.kept, tool
        return self.part


@dataclass
class UpdatedParam:
    """A param that is updated in this step.

    rate (float): The learning rate. decay (float): The part of the weights to subtract.
    work (dict[int, ActivePart]): The parts that work on it, by their place in the chain.
    """

    param: Tensor
    grad: Tensor
    rate: float
    decay: float
    work: dict[int, ActivePart]

    def prepare(self) -> None:
        """Create missing state, and count the step."""
        for work in self.work.values():
            if not work.kept:
                work.kept.update(work.part.first_state(self.param))
            work.part.prepare(work.kept, self.param, work.options)

    def run(self, block: Block, places: Sequence[int], tools: Sequence[Any]) -> None:
        """Run the parts at some places."""
        for place in places:
            self.work[place].begin(block, tools[place]).run(block)

    def at(self, start: int, end: int) -> list[int]:
        """The places from `start` to before `end` with parts that change gradients."""
        return [
            place for place in range(start, end) if place in self.work and not self.work[place].part.changes_weights
        ]

    def update(self, block: Block, places: Sequence[int], tools: Sequence[Any], into: Tensor | None) -> None:
        """Run the parts at some places, and update the param. into (Tensor | None): Write the update there instead."""
        before = block.weights
        if into is not None:
            self.run(block, places, tools)
            into.copy_(block.own().mul_(-self.rate).add_(before, alpha=-self.decay))
            block.weights = before + into
        elif places:
            self.run(block, places[:-1], tools)
            self.work[places[-1]].begin(block, tools[places[-1]]).run_last(block, self.rate, self.decay)
        else:
            block.update(self.rate, self.decay)
        late = [place for place, work in self.work.items() if work.part.changes_weights]
        for place in late:
            self.work[place].begin(block, tools[place]).after_update(block)
        if into is not None:
            if late:
                into.copy_(block.weights - before)
        elif before is not self.param:
            self.param.copy_(block.weights)


def run_chain(
    parts: Sequence[ModularPart],
    members: Sequence[UpdatedParam],
    shared: Mapping[str, MutableMapping[str, Any]],
    *,
    factor: float,
    updates: Sequence[Tensor] | None,
) -> None:
    """Update params.

    parts (Sequence[ModularPart]): Regularizers, then modules.
    members (Sequence[UpdatedParam]): The params, prepared.
    shared (Mapping): State of parts that belongs to no param, by label.
    factor (float): Multiplies all gradients.
    updates (Sequence[Tensor] | None): Tensors for the updates: params are not changed then.
    """
    tools = [part.begin_step(shared[part.label]) for part in parts]
    inputs = [member.grad for member in members]
    start = 0
    for place, part in enumerate(parts):
        if part.measures and any(place in member.work for member in members):
            for i, member in enumerate(members):
                block = Block(member.param, inputs[i], factor)
                member.run(block, member.at(start, place), tools)
                if place in member.work:
                    member.work[place].begin(block, tools[place]).measure(block)
                inputs[i] = block.read()
            start, factor = place, 1.0
            tools[place] = part.after_measure(tools[place])
    for i, member in enumerate(members):
        block = Block(member.param, inputs[i], factor)
        member.update(block, member.at(start, len(parts)), tools, None if updates is None else updates[i])
    for part, tool in zip(parts, tools):
        part.end_step(tool, shared[part.label])


def train_step(
    optimizer: Any, model: torch.nn.Module, batch: Any, sclip: float | None, loss: Callable[..., Tensor] | None
) -> float:
    """See `Modular.run_train_step`. optimizer (Modular): The optimizer."""
    named = names_in_model(optimizer, model, "run a training step")
    batch = checked_batch(model, batch, loss)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param in params:
        param.grad = None
    if sclip is None:
        with torch.enable_grad():
            value = compute_loss(model, batch, loss)
            value.backward()
    else:
        Section("run_train_step", allows_texts=False).number("sclip", sclip, above=0.0)
        for name, layer in model.named_modules():  # a layer whose output for a sample depends on the others
            if isinstance(layer, BatchNorm) and layer.training:
                raise ParamError(
                    f"Can't clip the gradient of each sample: '{name}' ({type(layer).__name__}) mixes the samples of a "
                    "batch. Use GroupNorm or LayerNorm, or its eval()."
                )
        trained = {named[id(param)]: param.detach() for param in params if param.requires_grad}
        value, grads, n = clipped_grads(model, trained, batch, sclip, loss)
        if optimizer.normalize is None:
            for grad in grads.values():
                grad.div_(n)
        for param in params:
            param.grad = grads.get(named[id(param)])
    optimizer.step()
    for param in params:
        param.grad = None
    return float(value.detach())


def names_in_model(optimizer: Any, model: Any, what: str) -> dict[int, str]:
    """The names of all params of a model by their `id`.

    optimizer (Modular): The optimizer. what (str): For errors: "Can't {what}: ...".

    RAISES (ConfigTypeError): It is not a torch model. (ParamError): It is not the optimizer's.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigTypeError(
            f"Can't {what}: expected a torch.nn.Module, found {type(model).__name__}. For thinc "
            "models, use thinc_torchopt.privacy.clip_each_example."
        )
    names = {id(param): name for name, param in model.named_parameters()}
    others = [name for name, param in optimizer.named_params().items() if id(param) not in names]
    if others:
        raise ParamError(
            f"Can't {what}: expected the model with the params of the optimizer, found {type(model).__name__} without "
            f"{', '.join(others[:5])}. Pass the model whose params the optimizer got."
        )
    return names


def checked_batch(model: torch.nn.Module, batch: Any, loss: Callable[..., Tensor] | None) -> tuple[Tensor, ...]:
    """The tensors of a batch.

    RAISES (ConfigTypeError): They are no tensors, or not as many as the model takes.
    """
    found = (batch,) if isinstance(batch, Tensor) else tuple(batch)
    if found and found[-1] is None:
        found = found[:-1]
    kinds = [type(part).__name__ for part in found]
    if not found or not all(isinstance(part, Tensor) for part in found):
        raise ConfigTypeError(
            f"Can't run a training step: expected a batch of tensors, found {', '.join(kinds) or 'an empty one'}. Make "
            "tensors of arrays: torch.as_tensor(array)."
        )
    inputs = found if loss is None else found[:-1]
    try:
        inspect.signature(model.forward).bind(*inputs)
    except TypeError as error:
        targets = "" if loss is None else " before the targets"
        raise ConfigTypeError(
            f"Can't run a training step: the batch has {len(inputs)} inputs{targets}, and "
            f"{type(model).__name__}.forward takes others ({error}). For weights of samples, leave out 'loss', and let "
            "the model compute it from the whole batch."
        ) from error
    return found


def clipped_grads(
    model: torch.nn.Module,
    trained: dict[str, Tensor],
    batch: Sequence[Tensor],
    sclip: float,
    loss: Callable[..., Tensor] | None,
) -> tuple[Tensor, dict[str, Tensor], int]:
    """The mean loss, the sum of the gradients of all samples, each clipped to a norm over all params, and the number of
    samples, at least 1.

    SOURCE: per-sample gradients of torch.func; clipping as in Abadi et al. 2016.
    """
    rest = {
        name: value.detach()
        for name, value in [*model.named_parameters(), *model.named_buffers()]
        if name not in trained
    }

    def loss_of(params: dict[str, Tensor], *sample: Tensor) -> Tensor:
        return compute_loss(
            lambda *args: functional_call(model, {**rest, **params}, args), [part.unsqueeze(0) for part in sample], loss
        )

    def clipped(*sample: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        grads, value = grad_and_value(loss_of)(trained, *sample)
        norm = torch.sqrt(sum(grad.float().square().sum() for grad in grads.values()))
        # A norm of 0 gives an infinite factor, which becomes 1.
        factor = (sclip / norm).clamp(max=1.0)
        return {name: grad * factor.to(grad.dtype) for name, grad in grads.items()}, value

    first, *_ = batch
    n = max(1, len(first))
    total: dict[str, Tensor] = {name: torch.zeros_like(param) for name, param in trained.items()}
    value = torch.zeros((), device=first.device)
    for start in range(0, len(first), CHUNK):
        grads, values = _for_each(clipped, [part[start : start + CHUNK] for part in batch])
        value = value + values.sum().detach()
        for name, grad in grads.items():
            total[name] += grad.sum(0)
    return value / n, total, n


def _for_each(
    function: Callable[..., tuple[dict[str, Tensor], Tensor]], parts: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """The results of a function for all samples, stacked. For what torch can't compute together, such as nn.GRU, nn.RNN
    or branches on values, it is called for one sample after another.
    """
    with suppress(RuntimeError):  # of this kind; an error of the model itself comes again below
        together: tuple[dict[str, Tensor], Tensor] = vmap(function, randomness="different")(*parts)
        return together
    found, values = zip(*(function(*sample) for sample in zip(*parts)))
    return {name: torch.stack([of[name] for of in found]) for name in found[0]}, torch.stack(values)


def compute_loss(call: Callable[..., Any], batch: Sequence[Tensor], loss: Callable[..., Tensor] | None) -> Tensor:
    if loss is None:
        value: Tensor = call(*batch)
    else:
        *inputs, targets = batch
        value = loss(call(*inputs), targets)
    return value
