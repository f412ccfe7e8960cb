"""Sum the gradients of all ranks: the implementation of `core/step.py`, `Reduce`.

All values that ranks exchange at a step are in one flat tensor, which is summed over the ranks at once. Each rank takes
part at each step, also after an error:


    gradients | buffers | took part | notes of each rank | losses

*gradients*: of each param that may have one; zeros for those that have none on this rank.
*buffers*: statistics of normalization layers: rank 0's values; zeros on other ranks.
*took part*: one number per param: 1 if it has a gradient. A param is updated if it has one on any rank, as in one
process that accumulates gradients; but not if its module's gradient scaler found an overflow on any rank.
*notes*: see `NOTES`. *losses*: by component, with other keys that components add.

The sum is computed in float32, or in float64 if a param has that dtype.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import torch
from spacy.language import Language
from thinc.api import PyTorchShim, Shim

from ...core import kernels
from ...core.errors import DistributedError
from ...core.host import Normalization, back_off, buffers_of, is_scaling, module_of, scale_of, scaler_of
from ...core.params import Param, components_with_model, torch_params
from .group import RankGroup
from .shard import Shards

# The notes of each rank: whether it has new params or losses; whether it has examples; whether a component found a
# value that is not finite; the number of the signal that it got; whether it was told to lower learning rates; whether
# a set in a layer has changed; a checksum of all batches with their annotations, in two parts of 16 bits, as float32
# has exact integers of 24 bits.
NOTES: Final = ("new_params", "has_examples", "spoiled", "signal", "decay", "new_sets", "data", "more_data")
# The value of "took part" for a param whose gradient scaler found an overflow. It is above any number of ranks.
_OVERFLOW = 1 << 16


class FlatReduce:
    """Sums gradients over ranks. See the module's docstring.

    group (RankGroup): The ranks.
    mode ("sum" | "mean"): "mean" divides the sum by the number of ranks that have examples.
    lr_scale (float): Multiplies the learning rates.
    shards (Shards | None): The params that each rank updates. None: each rank updates all.

    Public: `notes` (settable: this rank's notes for the next step), `losses` (the same; after the step, the sums of all
    ranks), `found` (notes of all ranks at the last step: a list for each name).
    """

    def __init__(
        self,
        group: RankGroup,
        mode: Literal["sum", "mean"] = "sum",
        lr_scale: float = 1.0,
        shards: Shards | None = None,
    ):
        self.lr_scale = lr_scale
        self.shards = shards
        self.notes: dict[str, float] = {}
        self.losses: dict[str, float] = {}
        self.found: dict[str, list[int]] = {name: [] for name in NOTES}
        self._group = group
        self._mode = mode
        self._loss_names: list[str] = []
        self._layout: _Layout | None = None
        self._norms: list[tuple[torch.nn.Module, str]] = []
        self._scalers: list[_Scaler] = []

    def follow(self, shims: Iterable[Shim], components: Sequence[str]) -> None:
        """Find buffers and gradient scalers, at the start and after the pipeline has changed.

        shims (Iterable[Shim]): All shims of the pipeline. components (Sequence[str]): The components with losses.
        """
        of_torch = [shim for shim in shims if isinstance(shim, PyTorchShim)]
        self._loss_names = list(components)
        self._scalers = [_Scaler(shim) for shim in of_torch if is_scaling(shim)]
        self._norms = [
            (module, name)
            for shim in of_torch
            if module_of(shim) is not None
            for module in module_of(shim).modules()
            if isinstance(module, Normalization)
            for name, buffer in buffers_of(module).items()
            if buffer is not None
        ]
        self._layout = None

    def look_at_scalers(self) -> None:
        """Record which gradient scalers found an overflow. Call it before `finish_update`, which resets them."""
        for scaler in self._scalers:
            scaler.look()

    def __call__(
        self, params: Sequence[Param], known: Sequence[Param], spoiled_by: Exception | None
    ) -> tuple[list[Param], Exception | None]:
        """See `core/step.py`, `Reduce`. RAISES (DistributedError): A rank is gone, or has other params or data."""
        trained = sorted((param for param in known if param.group is not None), key=lambda param: param.name)
        self.notes["spoiled"] = float(spoiled_by is not None)
        layout = self._layout
        if layout is None or layout.params != trained or not self.losses.keys() <= set(self._loss_names):
            if layout is not None:
                # Other ranks may not know yet, and have begun the sum.
                self.notes["new_params"] = 1.0
                self._sum(layout, ())
            layout = self._agree_on(trained)
        self.notes["new_params"] = 0.0
        self._sum(layout, params)
        while any(self.found["new_params"]):
            layout = self._agree_on(trained)
            self._sum(layout, params)
        self._check_batches()
        updated = self._write_back(layout, params)
        elsewhere = [rank for rank, is_spoiled in enumerate(self.found["spoiled"]) if is_spoiled]
        if spoiled_by is None and elsewhere:
            spoiled_by = DistributedError(f"A component on rank {elsewhere[0]} found a value that is not finite")
        return updated, spoiled_by

    # ------------------------------------------------------------------ input and output

    def _sum(self, layout: _Layout, params: Sequence[Param]) -> None:
        """Write this rank's values, sum, and read the notes."""
        layout.write_grads(params, {key for scaler in self._scalers if scaler.overflows for key in scaler.params})
        for slot, (module, name) in zip(layout.buffers, self._norms):
            buffer = buffers_of(module)[name]
            assert buffer is not None
            slot.zero_() if self._group.rank else slot.copy_(buffer.reshape(-1))
        notes = torch.zeros(self._group.size, len(NOTES))
        notes[self._group.rank] = torch.tensor([self.notes.get(name, 0.0) for name in NOTES])
        layout.notes.copy_(notes)
        layout.losses.copy_(torch.tensor([float(self.losses.get(name, 0.0)) for name in self._loss_names]))
        self._group.sum_(layout.flat)
        *columns, losses = layout.read()
        self.found = {name: [round(value) for value in column] for name, column in zip(NOTES, columns)}
        if not any(self.found["new_params"]):
            self.losses = dict(zip(self._loss_names, losses))

    @torch.no_grad()
    def _write_back(self, layout: _Layout, params: Sequence[Param]) -> list[Param]:
        """Copy the summed gradients to params. RETURNS (list[Param]): The params to update."""
        if self._mode == "mean":
            layout.grads.div_(max(1, sum(self.found["has_examples"])))
        has_grad = {id(param) for param in params}
        updated, slots = [], []
        overflows = set()
        for param, slot, took_part in zip(layout.params, layout.slots, layout.took_part):
            if took_part >= _OVERFLOW:
                overflows.add(param.key)
                param.drop_grad()
            elif took_part:
                if id(param) not in has_grad:
                    self._give_grad(param)
                updated.append(param)
                slots.append(slot.view(param.shape))
        kernels.copy_([param.grad for param in updated], slots)
        for slot, (module, name) in zip(layout.buffers, self._norms):
            buffer = buffers_of(module)[name]
            assert buffer is not None
            buffer.copy_(slot.view(buffer.shape))
        for scaler in self._scalers:
            if not scaler.overflows and not overflows.isdisjoint(scaler.params):
                scaler.back_off()
        return updated

    def _give_grad(self, param: Param) -> None:
        """Give a param a gradient that had none on this rank."""
        if param.callback is not None or param.is_of_shim:
            raise DistributedError(
                f"Can't update param '{param.name}' on rank {self._group.rank}: expected a gradient on all ranks, "
                "found none here: it had no examples in this step. Its shim keeps its own params, and can't update "
                "them without a gradient of its own. Use larger batches or fewer ranks."
            )
        param.drop_grad()
        param.tensor.grad = torch.empty_like(param.tensor)

    # ------------------------------------------------------------------ agreement

    def _agree_on(self, params: list[Param]) -> _Layout:
        """Agree on params and losses. All ranks call it in the same step. RAISES (DistributedError): Params differ."""
        mine = {param.name: (tuple(param.shape), str(param.dtype)) for param in params}
        found = self._group.gather((mine, list(self.losses)))
        for rank, (others, _) in enumerate(found):
            different = sorted(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name))
            if different:
                raise DistributedError(
                    f"Can't sum gradients: expected the same params on all ranks, but {different[0]!r} is "
                    f"{mine.get(different[0], 'not there')} on rank {self._group.rank} and "
                    f"{others.get(different[0], 'not there')} on rank {rank} ({len(different)} differ). Code that "
                    "changes the pipeline must do so on all ranks at the same step; a layer that creates its own "
                    "params needs examples on each rank in the first step."
                )
        known = dict.fromkeys(self._loss_names)
        self._loss_names = list(known | dict.fromkeys(name for _, names in found for name in names))
        self._layout = _Layout(
            params,
            [buffers_of(module)[name] for module, name in self._norms],
            self._group.size,
            len(self._loss_names),
        )
        return self._layout

    def _check_batches(self) -> None:
        found = list(zip(self.found["data"], self.found["more_data"]))
        for rank, data in enumerate(found):
            if data != found[0]:
                raise DistributedError(
                    f"Can't train on different data: rank {rank} reads other batches or annotations than rank 0. The "
                    "training data must be the same on all machines, in the same order, and its reader must only use "
                    "Python's and NumPy's global random generators."
                )


class _Layout:
    """The flat tensor and its parts.

    params (list[Param]): Params with a slot for their gradient.
    buffers (Sequence[Tensor]): Buffers with a slot of their size.

    Public: `took_part` (the number of ranks on which each param had a gradient, as read last).
    """

    def __init__(self, params: list[Param], buffers: Sequence[Any], ranks: int, losses: int):
        self.params = params
        self._index = {id(param): i for i, param in enumerate(params)}
        of_params = [param.tensor.numel() for param in params]
        sizes = [*of_params, *(buffer.numel() for buffer in buffers), len(params), ranks * len(NOTES), losses]
        device = next((param.device for param in params if param.device.type != "cpu"), torch.device("cpu"))
        is_wide = any(param.dtype == torch.float64 for param in params)
        self.flat = torch.zeros(sum(sizes), dtype=torch.float64 if is_wide else torch.float32, device=device)
        parts = list(self.flat.split(sizes))
        self.slots = parts[: len(params)]
        self.buffers = parts[len(params) : -3]
        self._took_part, notes, self.losses = parts[-3:]
        self.took_part: list[float] = []
        self.notes = notes.view(ranks, len(NOTES))
        self.grads = self.flat[: sum(of_params)]
        self._end = self.flat[len(self.flat) - sum(sizes[-3:]) :]

    @torch.no_grad()
    def write_grads(self, params: Sequence[Param], overflows: set[Any]) -> None:
        """Write the gradients of these params, and zeros for all others. overflows (set[Key]): Params with an
        overflow.
        """
        took_part = [float(_OVERFLOW) if param.key in overflows else 0.0 for param in self.params]
        places, grads = [], []
        for param in params:
            i = self._index[id(param)]
            took_part[i] = 1.0
            places.append(self.slots[i].view(param.shape))
            grads.append(param.grad)
        if len(grads) < len(self.params):
            kernels.zero_([slot for slot, part in zip(self.slots, took_part) if part != 1.0])
        kernels.copy_(places, grads)
        self._took_part.copy_(torch.tensor(took_part))

    def read(self) -> list[list[float]]:
        """Read the notes after the sum. Here the host waits for the device.

        RETURNS (list): For each name the notes of all ranks; and the losses.
        """
        values = self._end.tolist()
        self.took_part, values = values[: len(self.params)], values[len(self.params) :]
        n = self.notes.numel()
        return [*(values[i : n : len(NOTES)] for i in range(len(NOTES))), values[n:]]


class _Scaler:
    """The gradient scaler of a torch module in mixed precision. If it finds an overflow on one rank, all ranks lower
    their scale.

    Public: `overflows` (whether this rank's scaler found one in this step).
    """

    def __init__(self, shim: PyTorchShim):
        self._shim = shim
        self.look()

    def look(self) -> None:
        scaler = scaler_of(self._shim)
        self.overflows = bool(scaler.found_inf)
        self._before = scale_of(scaler)

    @property
    def params(self) -> set[int]:
        """The keys of its module's params."""
        return {id(param) for _, param in torch_params(self._shim)}

    def back_off(self) -> None:
        """Lower the scale as if this rank had found the overflow."""
        back_off(scaler_of(self._shim), self._before)


_INT_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def seed_of(base: int, step: int, rank: int | None = None) -> int:
    """The seed of a step, 32 bits: for one rank, or for all (None)."""
    return int.from_bytes(hashlib.blake2b(f"{base}/{step}/{rank}".encode(), digest_size=4).digest(), "big")


# ---------------------------------------------------------------------- params


@torch.no_grad()
def checksums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A checksum of the bits of each tensor, computed on its device. Shape: (n,), int64, on the CPU."""
    sums = [tensor.detach().view(_INT_OF_SIZE[tensor.dtype.itemsize]).sum(dtype=torch.int64) for tensor in tensors]
    found = torch.zeros(len(sums), dtype=torch.int64)
    for device in {one.device for one in sums}:  # one copy for each
        chosen = [i for i, one in enumerate(sums) if one.device == device]
        found[chosen] = torch.stack([sums[i] for i in chosen]).cpu()
    return found


def check_same_params(
    group: RankGroup, tensors: Mapping[str, torch.Tensor], rates: Mapping[str, float], step: int
) -> None:
    """Check that params and learning rates are bit-identical on all ranks.

    tensors (Mapping[str, torch.Tensor]): By name. rates (Mapping[str, float]): By param group.
    RAISES (DistributedError): They differ.
    """
    names = [*sorted(tensors), *(f"the learning rate of '{name}'" for name in sorted(rates))]
    bits = torch.tensor([rates[name] for name in sorted(rates)], dtype=torch.float64).view(torch.int64)
    found = torch.cat([checksums([tensors[name] for name in sorted(tensors)]), bits])
    wrong = [name for name, differs in zip(names, group.differs(found).tolist()) if differs]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DistributedError(
            f"Can't continue after step {step}: expected the same params on all {group.size} ranks, but they "
            f"differ in {', '.join(wrong[:3])}{more}. Code that changes params must do so on all ranks alike. "
            "Different kinds of processors may round differently: to allow that, set check_every = 0 in "
            "[training.optimizer.distributed]."
        )


# ---------------------------------------------------------------------- attrs of layers


class SharedSets:
    """The sets in the attrs of layers, such as the classes that the parser has not seen. Changes of one rank are
    applied on all ranks.

    nlp (Language): The pipeline, whose sets are equal on all ranks at this point.
    """

    def __init__(self, nlp: Language):
        self._sets = dict(_sets_of(nlp))
        self._before = {key: frozenset(found) for key, found in self._sets.items()}

    @property
    def has_changed(self) -> bool:
        """Whether a set has changed on this rank."""
        return any(
            len(found) != len(self._before[key]) or found != self._before[key] for key, found in self._sets.items()
        )

    def merge(self, group: RankGroup) -> None:
        """Apply the changes of all ranks. All ranks must call this."""
        changes = {
            key: (found - before, before - found)
            for key, found in self._sets.items()
            if found != (before := self._before[key])
        }
        for of_rank in group.gather(changes):
            for key, (added, removed) in of_rank.items():
                self._sets[key].difference_update(removed)
                self._sets[key].update(added)
        self._before = {key: frozenset(found) for key, found in self._sets.items()}


def _sets_of(nlp: Language) -> Iterator[tuple[tuple[str, int, str], set[Any]]]:
    for name, model in components_with_model(nlp):
        for i, node in enumerate(model.walk()):
            yield from (((name, i, key), value) for key, value in node.attrs.items() if isinstance(value, set))
