"""Averages of every param, thinc's and torch's, and of the float buffers of torch modules. settings.py has the
formulas.

The number of values in an average decides how it begins and warms up. When labels are added, old rows have hundreds of
values and new ones none. So cells that were added together have a number of their own, see `Ages`: the old rows
continue as if nothing had been added.

Averages of buffers never begin at zero, but at the first value: their module needs them to work, a variance for
example. Neither do those of rows for a new label.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from thinc.api import Shim

from .. import kernels
from ..errors import StateError
from ..host import buffers_of, module_of
from ..schema import Count, Positive, check_names, read, refuse, write
from ..types import Key
from .settings import THINC, AverageSettings

if TYPE_CHECKING:  # spaCy loads EMA and SWA when it lists their registry, and params/ is not needed for that
    from ..params import Param

# Averages and values, by the weight of the values, and whether these have the device and dtype of their average.
Moves = dict[tuple[float, bool], tuple[list[torch.Tensor], list[torch.Tensor]]]
BUFFER = "buffer:"


class Averages:
    """One average for each updated param, and for each float buffer of the torch modules with such params.

    settings (AverageSettings): The formula. Default: thinc's.

    Public: `settings`, `has_begun` (by `begin`).
    """

    def __init__(self, settings: AverageSettings = THINC):
        self.settings = self._as_configured = settings
        self.has_begun = False
        self._of: dict[Key, TensorAverage] = {}
        self._of_buffers: WeakKeyDictionary[Shim, BufferAverages] = WeakKeyDictionary()

    @classmethod
    def holding(cls, values: Iterable[tuple[Param, torch.Tensor]]) -> Averages:
        """Averages that were computed elsewhere: params with their values."""
        made = cls()
        for param, value in values:
            average = made._of[param.key] = TensorAverage(param, value)
            average.taken = 1
        return made

    def begin(self, *, anew: bool = False) -> None:
        """Begin averages at the next update, without waiting for `start_step`. anew (bool): Drop the current ones."""
        self.has_begun = True
        self.settings = replace(self.settings, start_step=0)
        if anew:
            self._of, self._of_buffers = {}, WeakKeyDictionary()

    @torch.no_grad()
    def before_update(self, params: Iterable[Param]) -> None:
        """Begin averages at the values of params before their first update, if the formula says so.

        params (Iterable[Param]): The params to update.
        RAISES (ScheduleError): The decay of this step is invalid.
        """
        self.settings.check_decay()
        if self.settings.begins_as_param:
            for param in params:
                if param.steps >= self.settings.start_step and (
                    param.key not in self._of or not self._of[param.key].taken
                ):
                    self._of[param.key] = self._begin(param.tensor, param)

    @torch.no_grad()
    def update(self, params: Iterable[Param], shims: Iterable[Shim] = ()) -> None:
        """Move averages towards the values. Torch params that no longer take gradients, nor are updated, lose theirs;
        so do buffers of modules with these alone.

        params (Iterable[Param]): The updated params, with this update counted in `steps`.
        shims (Iterable[Shim]): Their shims. Buffers of those with an updated param are averaged too.
        """
        params = list(params)
        moves: Moves = {}
        weights: dict[int, float] = {}
        is_due, averages_of = self.settings.is_due, self._of
        for param in params:
            if not is_due(param.steps):
                continue
            average = averages_of.get(param.key)
            if average is None or average.param is not param:
                average = averages_of[param.key] = self._begin(param.tensor, param)
            average.taken += 1
            if average.ages is not None:
                self._follow_by_age(average, param.tensor, moves)
                continue
            weight = weights.get(average.taken)
            if weight is None:
                weight = weights[average.taken] = self.settings.weight(average.taken)
            self._note(average, param.tensor, weight, moves)
        updated = {param.key for param in params}
        stopped = {key for key, average in averages_of.items() if average.param.is_stopped} - updated
        if stopped:
            self.forget(stopped, averages_of.keys() | updated)
        for shim in shims if self.settings.buffers == "average" else ():
            buffers = self._buffers_of(shim)
            if buffers.slots and buffers.belong_to_any(updated):
                self._follow_buffers(buffers, moves)
        for (weight, are_alike), (averages, values) in moves.items():
            kernels.lerp_(averages, values if are_alike else kernels.alike(values, averages), weight)

    def release(self, param: Param) -> TensorAverage | None:
        """Forget a param, and return its average."""
        return self._of.pop(param.key, None)

    def forget(self, params: Set[Key], trained: Set[Key]) -> None:
        """Forget params whose training stops or begins, and the buffers of modules where no other param is trained.

        params (Set[Key]): Their keys. trained (Set[Key]): The keys of all params that are trained now.
        """
        for key in params:
            self._of.pop(key, None)
        others = trained - params
        for shim, buffers in list(self._of_buffers.items()):
            if buffers.belong_to_any(params) and not buffers.belong_to_any(others):
                del self._of_buffers[shim]

    @torch.no_grad()
    def inherit(self, param: Param, released: TensorAverage) -> None:
        """Give a param the average of its predecessor, which may have another shape.

        Old cells keep their average. New cells have the param's values until their first value, and warm up by
        themselves.

        param (Param): With as many dimensions as the old one, otherwise its average starts again.
        """
        if released.taken and released.tensor.ndim == param.tensor.ndim:
            self._of[param.key] = self._grown(param, released.tensor, released.taken, released.ages)

    def pass_on_buffers(self, old: Shim, new: Shim, *, all_of_them: bool) -> None:
        """Give the buffers of a shim's module the averages of another shim's, or of the module that it had before.

        all_of_them (bool): False: only those in parts that both modules share.
        """
        if (before := self._of_buffers.get(old)) is not None and module_of(new) is not None:
            self._of_buffers[new] = BufferAverages(module_of(new), before, all_of_them=all_of_them)

    def tensor_of(self, key: Key) -> torch.Tensor | None:
        """The average of a param, on its own device and in its own dtype."""
        average = self._of.get(key)
        return average.tensor if average is not None and average.is_in_use else None

    def as_thinc(self, shims: Iterable[Shim]) -> AveragedParams:
        """The averages in the form of `Model.use_params` and `nlp.use_params`.

        shims (Iterable[Shim]): The shims of torch params with averages.
        RETURNS (AveragedParams): Arrays under thinc's `(node.id, name)`, which share memory with the averages if these
            have the param's device and dtype. Under a key of its own for a shim that keeps its params elsewhere:
            `use_params` passes it thinc's key. For a torch module a whole state dict, as its shim requires, under
            `pytorch_{shim.id}_{name}`: averages, and current values where there are none. Buffers have theirs
            only beside averages of params: those of a frozen module stay as they are.
        """
        found = AveragedParams()
        for key, average in self._of.items():
            if isinstance(key, tuple) and average.is_in_use:
                param = average.param
                found[key] = param.in_form(average.tensor.to(param.device, param.in_model.dtype))
        for shim in shims:
            averaged: dict[str, torch.Tensor] = {}
            for name, param in module_of(shim).named_parameters(remove_duplicate=False):
                if (tensor := self.tensor_of(id(param))) is not None:
                    averaged[name] = tensor
            if averaged:
                buffers = self._buffers_of(shim).averages
                averaged |= {name: average.tensor for name, average in buffers.items() if average is not None}
                for name, value in module_of(shim).state_dict().items():
                    found[f"pytorch_{shim.id}_{name}"] = averaged.get(name, value)
        return found

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self, shim_paths: Iterable[tuple[str, Shim]]) -> dict[str, Any]:
        """The whole state, to resume in another process.

        shim_paths (Iterable[tuple[str, Shim]]): The shims with their lasting paths, see `names.shim_paths`.
        RETURNS (dict): `tensors` by name, which share memory with the averages: the lasting name of a param, or
            "buffer:{path of the shim}/{name of the buffer}". The rest is plain data: `taken`, the number of values in
            each; `ages`, where cells have different numbers; `module_steps`, the updates of modules with buffers, by
            path; `has_begun`, whether `begin` was called; `settings`, for information.
        """
        used = {average.param.name: average for average in self._of.values() if average.is_in_use}
        steps: dict[str, int] = {}
        for path, shim in shim_paths:
            buffers = self._of_buffers.get(shim)
            if buffers is not None and buffers.steps:
                steps[path] = buffers.steps
                used |= {
                    _buffer_name(path, name): average
                    for name, average in buffers.averages.items()
                    if average is not None
                }
        ages = {name: average.ages for name, average in used.items() if average.ages is not None}
        taken = {name: average.taken for name, average in used.items()}
        tensors = {name: average.tensor for name, average in used.items()}
        return write(AveragesState(self.settings.as_saved(), self.has_begun, taken, ages, steps, tensors))

    @torch.no_grad()
    def load_state_dict(
        self,
        state: Any,
        params: Iterable[Param],
        shim_paths: Iterable[tuple[str, Shim]],
        *,
        may_grow: bool = False,
    ) -> None:
        """Load a state. Its averages replace the current ones; a param without an average in the state has none then.

        state (Mapping): From `state_dict`. Tensors are copied.
        params (Iterable[Param]): All params, with lasting names.
        shim_paths (Iterable[tuple[str, Shim]]): As for `state_dict`.
        may_grow (bool): Params may have other shapes than in the state: then as `inherit`.
        RAISES (StateError): It is damaged, or of other params. Nothing changes then.
        """
        saved = read(AveragesState, state, "the averages")
        tensors, taken, ages, module_steps = saved.tensors, saved.taken, saved.ages, saved.module_steps
        check_names(taken, tensors, "the averages", "taken")
        for name, found_ages in ages.items():
            if name not in tensors or not found_ages.fit(tensors[name], taken[name]):
                refuse("the averages", f"ages/{name}", "the ages of the cells of an average", "others")
        if self.settings.buffers == "copy":
            tensors, module_steps = (
                {name: tensor for name, tensor in tensors.items() if not name.startswith(BUFFER)},
                {},
            )
        unknown = set(tensors)

        def restore(name: str, value: torch.Tensor, param: Param | None = None) -> TensorAverage | None:
            if name not in tensors:
                return None
            unknown.discard(name)
            if tensors[name].shape != value.shape:
                if may_grow and param is not None:
                    same_dimensions = tensors[name].ndim == value.ndim
                    return self._grown(param, tensors[name], taken[name], ages.get(name)) if same_dimensions else None
                raise StateError(
                    f"Can't load the average of '{name}': expected shape {tuple(value.shape)}, found "
                    f"{tuple(tensors[name].shape)}. The state is of another pipeline, or labels were added since."
                )
            average = self._begin(value, param)
            average.tensor.copy_(tensors[name])
            average.taken, average.ages = taken[name], ages.get(name)
            return average

        found = {
            param.key: average for param in params if (average := restore(param.name, param.tensor, param)) is not None
        }
        modules: WeakKeyDictionary[Shim, BufferAverages] = WeakKeyDictionary()
        for path, shim in shim_paths:
            if path in module_steps:
                buffers = modules[shim] = BufferAverages(module_of(shim))
                buffers.steps = module_steps[path]
                values = {slot.path: value for slot in buffers.slots if (value := slot.value) is not None}
                averages = {name: restore(_buffer_name(path, name), value) for name, value in values.items()}
                # All begin at once. One that is missing beside others was left out for good.
                if any(averages.values()):
                    buffers.averages = averages
        if unknown:
            names = sorted(unknown)
            raise StateError(
                f"Can't load the averages: expected averages of this pipeline's params, found {len(names)} others "
                f"({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}). The state is of another pipeline."
            )
        self._of, self._of_buffers = found, modules
        self.has_begun, self.settings = False, self._as_configured
        if saved.has_begun:
            self.begin()

    # ------------------------------------------------------------------ one average

    def _begin(self, value: torch.Tensor, param: Param | None) -> TensorAverage:
        # In half precision a weight of 1e-4 would be rounded away.
        dtype = (
            getattr(torch, self.settings.dtype)
            if self.settings.dtype
            else torch.promote_types(value.dtype, torch.float32)
        )
        device = self.settings.device or value.device
        if self.settings.begins_as_param:
            return TensorAverage(param, value.detach().to(device, dtype, copy=True))
        return TensorAverage(param, torch.zeros_like(value, dtype=dtype, device=device, requires_grad=False))

    def _grown(self, param: Param, old: torch.Tensor, taken: int, ages: Ages | None) -> TensorAverage:
        """An average in a param's shape with the cells of an old one. New cells begin as the param's. Both have as many
        dimensions.
        """
        average = self._begin(param.tensor, param)
        average.tensor.copy_(param.tensor)
        before = ages or Ages(torch.zeros(old.shape, dtype=torch.int32), [taken])
        ages_of = torch.full_like(average.tensor, len(before.taken), dtype=torch.int32)
        sizes = tuple(map(min, old.shape, param.shape))
        common, order = tuple(map(slice, sizes)), param.order_after(old.shape)
        for grown, known in ((average.tensor, old), (ages_of, before.of)):
            cells = grown if order is None else order.old_first(grown)
            cells[common] = known[common].to(cells)
            if order is not None:
                grown.copy_(order.in_place(cells))
        has_new = sizes != tuple(param.shape)
        average.taken = taken
        average.ages = Ages(ages_of, [*before.taken, *[0] * has_new]) if has_new or ages is not None else None
        return average

    def _note(self, average: TensorAverage, value: torch.Tensor, weight: float, moves: Moves) -> None:
        tensor = average.tensor
        if value.device != tensor.device and self.settings.device is None:
            tensor = average.tensor = tensor.to(value.device)
        if average.param is None:
            # A buffer. Where it is not finite the average does not change: decided on the device, without a sync.
            value = value.to(tensor.device, tensor.dtype)
            value = torch.where(value.isfinite(), value, tensor)
        is_alike = value.dtype == tensor.dtype and value.device == tensor.device
        averages, values = moves.setdefault((weight, is_alike), ([], []))
        averages.append(tensor)
        values.append(value)

    def _follow_by_age(self, average: TensorAverage, value: torch.Tensor, moves: Moves) -> None:
        """Move an average whose cells have different numbers of values, until all have the same weight: then it is as
        any other.
        """
        assert average.ages is not None
        average.ages.taken = [taken + 1 for taken in average.ages.taken]
        weights = [self.settings.weight(taken, from_zero=self.settings.begins_as_param) for taken in average.ages.taken]
        if len(set(weights)) == 1 and not self.settings.moves:
            average.ages = None
            self._note(average, value, weights[0], moves)
            return
        alone: Moves = {}
        self._note(average, value, 0.0, alone)
        [((tensor,), (value,))] = alone.values()
        ages_of = average.ages.of = average.ages.of.to(tensor.device)
        tensor.lerp_(value.to(tensor), torch.tensor(weights, dtype=tensor.dtype, device=tensor.device)[ages_of.long()])

    def _buffers_of(self, shim: Shim) -> BufferAverages:
        buffers = self._of_buffers.get(shim)
        if buffers is None or buffers.module is not module_of(shim):
            buffers = self._of_buffers[shim] = BufferAverages(module_of(shim))
        return buffers

    def _follow_buffers(self, buffers: BufferAverages, moves: Moves) -> None:
        buffers.steps += 1
        if not self.settings.is_due(buffers.steps):
            return
        for slot in buffers.slots:
            value = slot.value
            if value is None:
                continue
            average = buffers.averages.get(slot.path)
            if slot.path not in buffers.averages or (average is not None and average.tensor.shape != value.shape):
                if value.isnan().any():
                    continue  # It was damaged: try again at the next update.
                # Masks are full of -inf, which has no average.
                average = buffers.averages[slot.path] = self._begin(value, None) if value.isfinite().all() else None
            if average is not None:
                average.taken += 1
                self._note(average, value, self.settings.weight(average.taken, from_zero=False), moves)


@dataclass
class AveragesState:
    """The saved form of averages: see `Averages.state_dict`."""

    settings: dict[str, Any]
    has_begun: bool
    taken: dict[str, Positive]
    ages: dict[str, Ages]
    module_steps: dict[str, Positive]
    tensors: dict[str, torch.Tensor]


class AveragedParams(dict[Any, Any]):
    """The averages from `Averages.as_thinc`. After `use_params` with these everything is restored, even after an
    exception: see core/hooks.py.
    """


def _buffer_name(path: str, buffer: str) -> str:
    """A name that no param can have."""
    return f"{BUFFER}{path}/{buffer}"


# ---------------------------------------------------------------------- one average


@dataclass
class Ages:
    """The numbers of values in cells that were not all added together.

    of (Tensor): For each cell, the index of its number. Shape: as the average.
    taken (list[int]): The numbers, the largest one first.
    """

    of: torch.Tensor
    taken: list[Count]

    def fit(self, average: torch.Tensor, taken: int) -> bool:
        """Whether they are those of an average. taken (int): The number of values in its oldest cells."""
        are_indices = self.of.dtype is torch.int32 and set(self.of.unique().tolist()) <= set(range(len(self.taken)))
        return are_indices and self.of.shape == average.shape and self.taken[:1] == [taken]


class TensorAverage:
    """The average of a param or a buffer.

    param (Param): Its param. None: a buffer's average.
    tensor (Tensor): The average. Shape: as the param.
    taken (int): The number of values in it.
    ages (Ages | None): If cells have fewer.
    """

    __slots__ = ("ages", "param", "taken", "tensor")

    def __init__(self, param: Any, tensor: torch.Tensor):
        self.param = param
        self.tensor = tensor
        self.taken = 0
        self.ages: Ages | None = None

    def copy(self) -> TensorAverage:
        """An independent copy of a buffer's average."""
        made = TensorAverage(self.param, self.tensor.clone())
        made.taken = self.taken
        return made

    @property
    def is_in_use(self) -> bool:
        """Whether it replaces its param: not before its first value, and not if the param was frozen since."""
        return self.taken > 0 and self.param.group is not None


class BufferSlot(NamedTuple):
    """The place of a buffer in a module: its tensor may be replaced.

    path (str): Its name in the state dict, with dots.
    """

    path: str
    owner: torch.nn.Module
    name: str

    @property
    def value(self) -> torch.Tensor | None:
        """The buffer, if it still exists."""
        return buffers_of(self.owner).get(self.name)


class BufferAverages:
    """The averages of a torch module's buffers: of the floats that are saved with it.

    before (BufferAverages): Averages to start with, of an earlier module.
    all_of_them (bool): Copy all of them, or only those of buffers in parts that both modules share.

    Public: `averages` (by the buffer's name in the state dict; None: it can't be averaged), `steps` (the number of the
        module's updates).
    """

    def __init__(self, module: torch.nn.Module, before: BufferAverages | None = None, *, all_of_them: bool = True):
        self.module = module
        named = {
            path: buffer for path, buffer in module.named_buffers(remove_duplicate=False) if buffer.is_floating_point()
        }
        saved = module.state_dict().keys() if named else ()
        parts = {path: path.rpartition(".") for path in named if path in saved}
        self.slots = [BufferSlot(path, module.get_submodule(owner), name) for path, (owner, _, name) in parts.items()]
        self._params: set[Key] = set()
        self.averages: dict[str, TensorAverage | None] = {}
        self.steps = 0
        if before is not None:
            owners = {slot.path: slot.owner for slot in before.slots}
            paths = [slot.path for slot in self.slots if all_of_them or slot.owner is owners.get(slot.path)]
            # Copies: the other shim may still exist, around the same module.
            found = {path: before.averages[path] for path in paths if path in before.averages}
            self.averages = {path: None if average is None else average.copy() for path, average in found.items()}
            self.steps = before.steps

    def belong_to_any(self, params: Set[Key]) -> bool:
        """Whether any of these params belongs to the module."""
        if self._params.isdisjoint(params):
            self._params = {id(param) for param in self.module.parameters()}
        return not self._params.isdisjoint(params)
