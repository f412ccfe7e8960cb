"""Averages of every param, thinc's and torch's, and of the float buffers of torch modules. settings.py has the
formulas.

Averages of buffers never begin at zero, but at the first value: their module needs them to work, a variance for
example. Neither do those of rows for a new label; the old rows continue as if nothing had been added (kept.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from thinc.api import Shim

from .. import kernels
from ..errors import StateError
from ..host import module_of
from ..schema import Positive, check_names, read, refuse, write
from ..types import Key, OnGrowth
from .kept import Average, BufferAverages, Region, check_regions, regions_of_grown
from .settings import THINC, AverageSettings

if TYPE_CHECKING:  # spaCy loads EMA and SWA when it lists their registry, and params/ is not needed for that
    from ..params import Param, Released

# Averages and values, by the weight of the values, and whether these have the device and dtype of their average.
Moves = dict[tuple[float, bool], tuple[list[torch.Tensor], list[torch.Tensor]]]


BUFFER = "buffer:"


class Averages:
    """One average for each updated param, and for each float buffer of the torch modules with such params.

    settings (AverageSettings): The formula. Default: thinc's.
    """

    def __init__(self, settings: AverageSettings = THINC):
        self.settings = self._as_configured = settings
        self._has_begun = False  # by `begin`
        self._of: dict[Key, Average] = {}
        self._of_buffers: WeakKeyDictionary[Shim, BufferAverages] = WeakKeyDictionary()

    @classmethod
    def holding(cls, values: Iterable[tuple[Param, torch.Tensor]]) -> Averages:
        """Averages that were computed elsewhere: params with their values."""
        made = cls()
        for param, value in values:
            average = made._of[param.key] = Average(param, value)
            average.taken = 1
        return made

    def begin(self, *, anew: bool = False) -> None:
        """Begin averages at the next update, without waiting for `start_step`. anew (bool): Drop the current ones."""
        self._has_begun = True
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
        """Move averages towards the values.

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
            if average.regions is not None:
                self._note_regions(average, param.tensor, moves)
                continue
            weight = weights.get(average.taken)
            if weight is None:
                weight = weights[average.taken] = self.settings.weight(average.taken)
            self._note(average, param.tensor, weight, moves)
        updated: set[Key] = set()
        for shim in shims if self.settings.buffers == "average" else ():
            buffers = self._buffers_of(shim)
            if buffers.slots:
                updated = updated or {param.key for param in params}
                if buffers.belong_to_any(updated):
                    self._follow_buffers(buffers, moves)
        for (weight, are_alike), (averages, values) in moves.items():
            kernels.lerp_(averages, values if are_alike else kernels.alike(values, averages), weight)

    def release(self, param: Param) -> Average | None:
        """Forget a param, and return its average."""
        return self._of.pop(param.key, None)

    @torch.no_grad()
    def inherit(self, param: Param, released: Average, old: Released, on_growth: OnGrowth) -> None:
        """Give a param the average of its predecessor, which may have another shape.

        Old cells keep their average. New cells have the param's values until their first value, and warm up by
        themselves.

        param (Param): With as many dimensions as the old one, otherwise its average begins anew.
        """
        if released.taken and released.tensor.ndim == param.tensor.ndim:
            self._of[param.key] = self._grown(param, released.tensor, released.taken, released.regions)

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
            `pytorch_{shim.id}_{name}`: averages, and current values where there are none.
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
            averaged |= {
                name: average.tensor for name, average in self._buffers_of(shim).averages.items() if average is not None
            }
            if averaged:
                for name, value in module_of(shim).state_dict().items():
                    found[f"pytorch_{shim.id}_{name}"] = averaged.get(name, value)
        return found

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self, shim_paths: Iterable[tuple[str, Shim]]) -> dict[str, Any]:
        """The whole state, to resume in another process.

        shim_paths (Iterable[tuple[str, Shim]]): The shims with their lasting paths, see `names.shim_paths`.
        RETURNS (dict): `tensors` by name, which share memory with the averages: the lasting name of a param, or
            "buffer:{path of the shim}/{name of the buffer}". The rest is plain data: `taken`, the number of values in
            each; `regions`, where cells have different numbers; `module_steps`, the updates of modules with buffers, by
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
        regions = {name: average.regions for name, average in used.items() if average.regions is not None}
        taken = {name: average.taken for name, average in used.items()}
        tensors = {name: average.tensor for name, average in used.items()}
        return write(AveragesState(self.settings.as_saved(), self._has_begun, taken, regions, steps, tensors))

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
        tensors, taken, regions, module_steps = saved.tensors, saved.taken, saved.regions, saved.module_steps
        check_names(taken, tensors, "the averages", "taken")
        for name, parts in regions.items():
            if name not in tensors:
                refuse("the averages", "regions", "regions of averages", f"regions of '{name}'")
            check_regions(name, parts, tensors[name].shape, taken[name])
        if self.settings.buffers == "copy":
            tensors, module_steps = (
                {name: tensor for name, tensor in tensors.items() if not name.startswith(BUFFER)},
                {},
            )
        unknown = set(tensors)

        def restore(name: str, value: torch.Tensor, param: Param | None = None) -> Average | None:
            if name not in tensors:
                return None
            unknown.discard(name)
            if tensors[name].shape != value.shape:
                if may_grow and param is not None:
                    same_dimensions = tensors[name].ndim == value.ndim
                    return (
                        self._grown(param, tensors[name], taken[name], regions.get(name)) if same_dimensions else None
                    )
                raise StateError(
                    f"Can't load the average of '{name}': expected shape {tuple(value.shape)}, found "
                    f"{tuple(tensors[name].shape)}. The state is of another pipeline, or labels were added since."
                )
            average = self._begin(value, param)
            average.tensor.copy_(tensors[name])
            average.taken, average.regions = taken[name], regions.get(name)
            return average

        found = {
            param.key: average for param in params if (average := restore(param.name, param.tensor, param)) is not None
        }
        modules: WeakKeyDictionary[Shim, BufferAverages] = WeakKeyDictionary()
        for path, shim in shim_paths:
            if path in module_steps:
                buffers = modules[shim] = BufferAverages(module_of(shim))
                buffers.steps = module_steps[path]
                for slot in buffers.slots:
                    average = None if (value := slot.value) is None else restore(_buffer_name(path, slot.path), value)
                    # A buffer that is missing after the start was left out for good.
                    if average is not None or buffers.steps > self.settings.start_step:
                        buffers.averages[slot.path] = average
        if unknown:
            names = sorted(unknown)
            raise StateError(
                f"Can't load the averages: expected averages of this pipeline's params, found {len(names)} others "
                f"({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}). The state is of another pipeline."
            )
        self._of, self._of_buffers = found, modules
        self._has_begun, self.settings = False, self._as_configured
        if saved.has_begun:
            self.begin()

    # ------------------------------------------------------------------ one average

    def _begin(self, value: torch.Tensor, param: Param | None) -> Average:
        # In half precision a weight of 1e-4 would be rounded away.
        dtype = (
            getattr(torch, self.settings.dtype)
            if self.settings.dtype
            else torch.promote_types(value.dtype, torch.float32)
        )
        device = self.settings.device or value.device
        if self.settings.begins_as_param:
            return Average(param, value.detach().to(device, dtype, copy=True))
        return Average(param, torch.zeros_like(value, dtype=dtype, device=device, requires_grad=False))

    def _grown(self, param: Param, old: torch.Tensor, taken: int, regions: list[Region] | None) -> Average:
        """An average in a param's shape with the cells of an old one. New cells begin as the param's. Both have as many
        dimensions.
        """
        average = self._begin(param.tensor, param)
        average.tensor.copy_(param.tensor)
        common = tuple(slice(min(sizes)) for sizes in zip(old.shape, param.shape))
        average.tensor[common] = old[common].to(average.tensor)
        found = regions_of_grown(regions or [Region.whole(old.shape, taken)], old.shape, param.shape)
        average.taken, average.regions = taken, found if len(found) > 1 else None
        return average

    def _note(self, average: Average, value: torch.Tensor, weight: float, moves: Moves) -> None:
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

    def _note_regions(self, average: Average, value: torch.Tensor, moves: Moves) -> None:
        """As `_note`, region by region, until all have the same weight: then they are merged."""
        assert average.regions is not None
        weights = []
        for region in average.regions:
            region.taken += 1
            weights.append(self.settings.weight(region.taken, from_zero=self.settings.begins_as_param))
        if len(set(weights)) == 1 and not self.settings.moves:
            average.regions = None
            self._note(average, value, weights[0], moves)
            return
        whole: Moves = {}
        self._note(average, value, 0.0, whole)
        [((tensor,), (value,))] = whole.values()
        for region, weight in zip(average.regions, weights):
            averages, values = moves.setdefault((weight, False), ([], []))
            averages.append(region.of(tensor))
            values.append(region.of(value))

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
    regions: dict[str, list[Region]]
    module_steps: dict[str, Positive]
    tensors: dict[str, torch.Tensor]


class AveragedParams(dict[Any, Any]):
    """The averages from `Averages.as_thinc`. After `use_params` with these everything is restored, even after an
    exception: see hooks.py.
    """


def _buffer_name(path: str, buffer: str) -> str:
    """A name that no param can have."""
    return f"{BUFFER}{path}/{buffer}"
