"""All params of an optimizer, with their names. Notices when the array of a param is replaced.

`from_bytes`, `use_params`, `to_ops` and `resize_output` replace arrays without notice. A param has a key; each step
compares its array with the viewed one, by identity. torch's state stays with the param.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from spacy.language import Language
from thinc.api import Model, PyTorchShim, Shim

from .averages import Averages
from .errors import GrowthWarning, ParamError, PrecisionWarning, ShapeError, StateError
from .host import insertions_into, scaler_of
from .labels import lift_labels
from .params import (
    HALF,
    Half,
    KnownNames,
    KnownPipeline,
    NamedModel,
    NamedParam,
    Param,
    ParamRow,
    Places,
    Released,
    clean,
    components_to_train,
    escape,
    going_on,
    is_key_of_shim,
    is_viewable,
    master_of,
    own_copy,
    places_in,
    shim_paths,
    shims_of,
    torch_params,
    view_of_param,
    walk,
    with_component,
)
from .types import Key, OnGrowth
from .update import GroupPlan

# Options of algorithms that keep small updates of half precision, by rounding at random or by a compensation.
_KEEPS_SMALL = frozenset({"bf16_stochastic_round", "kahan_sum"})


class ParamSource(NamedTuple):
    """The array or tensor of a model under a key."""

    key: Key
    source: Any
    holder: Model[Any, Any] | Shim | None = None


class ParamTable:
    """All params of an optimizer by key.

    by_key (dict[Key, Param]): The params.
    plan (GroupPlan): Synced after each change. Keeps torch's state.
    averages (Averages | None): Keeps an average for each param.
    on_growth ("mean" | "zero" | "reset"): How to fill new cells of the state of a param that grows.
    master_weights (bool): Optimize params of half precision by float32 masters. Warns of those without one, once.

    Public: `pipeline`, `by_key`, `shims` (with params in this table, by id), `names` (all names of each param by its
        key, the first one first).
    """

    def __init__(
        self,
        by_key: dict[Key, Param],
        plan: GroupPlan,
        averages: Averages | None,
        on_growth: OnGrowth = "mean",
        *,
        master_weights: bool = False,
    ):
        self.pipeline = KnownPipeline()
        self.by_key = by_key
        self.shims: weakref.WeakValueDictionary[int, Shim] = weakref.WeakValueDictionary()
        self.averages = averages
        self._names = KnownNames(self.pipeline)
        self.names = self._names.by_key
        self._component_of: dict[int, str] = {}  # by the id of its model, the first one of a shared model
        self._layouts: dict[int, list[Any]] = {}  # by the id of a component's model
        self._plan = plan
        self.on_growth = on_growth
        self._master_weights = master_weights
        self._has_warned_of_half = False
        # Changes for the next sync of the plan: params with possibly new settings, and whether params were removed.
        self._changed: list[Param] = []
        self._is_synced = True
        # By name: the updates before a param was added, if in mid-training; and values released to it.
        self._joined: dict[str, int | None] = {}
        self._saved: Mapping[str, ParamRow] = {}  # saved rows by name, while they are loaded
        self._released: dict[str, Released] = {}

    def add_all(
        self,
        nlp: Language,
        exclude: Collection[str],
        *,
        walked: list[NamedModel] | None = None,
        saved: Mapping[str, ParamRow] = MappingProxyType({}),
        joins_now: bool = False,
    ) -> list[NamedModel]:
        """Add all params of a pipeline that are trained, and forget those of the pipeline that no longer are.

        walked (list[NamedModel] | None): From `walk_pipeline`, if nothing has changed since.
        saved (Mapping): When a run resumes: its saved params by name, in the order in which they were added. They are
            added too if their component is not excluded, even if torch params have no gradients here, or shims keep
            them.
        joins_now (bool): All other params are new, and are added in mid-training.
        RETURNS (list[NamedModel]): From `walk_pipeline`.
        RAISES (PipelineError): Nothing to train, or a component that was not initialized.
        """
        self._rename_components()
        self.pipeline.set(nlp, exclude)
        self._saved = saved
        walked = self._name_pipeline(walked)
        if joins_now:
            updates = max((found.updates for found in saved.values()), default=0)
            self._joined |= dict.fromkeys(self._names.in_use - saved.keys(), updates or None)
        trained = {id(model) for _, model in components_to_train(nlp, exclude)}
        left_out = {id(getattr(proc, "model", None)) for name, proc in nlp.components if name in exclude} - trained
        if left_out:
            self._forget(_keys_in(walked, left_out) - _keys_in(walked, trained))
        going_on = [model for model in walked if id(model.model) not in left_out]
        found = list(self._find_of_shims(saved, going_on))
        for model in going_on:
            found += self._find(model, saved.keys(), trained=id(model.model) in trained)
        places = {name: place for place, name in enumerate(saved)}
        self._see_all(sorted(found, key=lambda one: places.get(self.names[one.key][0], len(places))))
        self._released = {}
        self._saved = {}
        return walked

    # ------------------------------------------------------------------ arrays and tensors of models

    def _find(self, model: NamedModel, names: Set[str], *, trained: bool = False) -> Iterator[ParamSource]:
        """The params of a component with these names, even if they have no gradients.

        trained (bool): Also its other params. Those that need no gradient are added when they have one.
        """
        for _, key, owner, _, _, param in model.params:
            is_wanted = trained and (param is None or param.requires_grad)
            if not is_wanted and names.isdisjoint(self.names[key]):
                continue
            if param is None:
                if owner.has_param(name := key[1]):  # type: ignore[index]
                    yield self._found_in_node(owner, name, model.model)
            elif not torch.nn.parameter.is_lazy(param):
                yield self._found_in_shim(param, owner, model.model)

    def _find_with_grad(self, model: Model[Any, Any]) -> Iterator[ParamSource]:
        """The params of a model whose gradients are passed on unchanged."""
        for node in model.walk():
            for shim in node.shims:
                for _, param in torch_params(shim) if _hands_over(shim) else ():
                    if param.grad is not None:
                        yield self._found_in_shim(param, shim, model)
            for name in node.param_names:
                if node.has_param(name) and node.has_grad(name):
                    yield self._found_in_node(node, name, model)

    def _found_in_node(self, node: Model[Any, Any], name: str, model: Model[Any, Any]) -> ParamSource:
        """An array. A read-only one, or one that is not in C order, is replaced by a plain copy."""
        key, array = (node.id, name), node.get_param(name)
        if key not in self.names:
            self._name_below(model)
        known = self.by_key.get(key)
        if (known is None or known.source is not array) and hasattr(array, "flags") and not is_viewable(array):
            array = own_copy(array)
            node.set_param(name, array)
        return ParamSource(key, array, node)

    def _found_in_shim(self, param: torch.nn.Parameter, shim: Shim, model: Model[Any, Any]) -> ParamSource:
        if not self._names.has_noted(param):
            self._forget([id(param)], keep_names=False)
            self._name_below(model)
            self._names.note_torch_param(param)
        self._add_shim(shim)
        if (known := self.by_key.get(id(param))) is not None and known.key in self._names.of_pipeline:
            self._set_holder(known, shim)
        return ParamSource(id(param), param, shim)

    def _find_of_shims(self, saved: Mapping[str, ParamRow], models: Iterable[NamedModel]) -> Iterator[ParamSource]:
        """Params that shims keep elsewhere, in their saved form. Their values come with the first gradient."""
        paths = {path: shim for model in models for path, shim in model.shims}
        for name, found in saved.items():
            if found.shim is not None:
                shim = paths.get(name.removesuffix(f"/{escape(found.shim)}"))
                if shim is not None and (key := ("shim", shim.id, found.shim)) not in self.by_key:
                    self._names.add(key, name, is_of_pipeline=True)
                    yield ParamSource(key, torch.zeros(found.shape, dtype=found.torch_dtype))

    def follow(self) -> list[NamedModel]:
        """Follow replacements of params in the pipeline since the last update, such as those of a copied model; forget
        removed params.

        RETURNS (list[NamedModel]): From `walk_pipeline`.
        """
        walked: list[NamedModel] = []
        if self.pipeline.is_there:
            walked = self._name_pipeline()
            has_released = bool(self._released)
            if has_released:
                self._see_all([found for model in walked for found in self._find(model, self._released.keys())])
            self._sync()
            if has_released:
                self.lift_labels()
        return walked

    def lift_labels(self) -> None:
        """Let components learn labels that spaCy added: see core/labels/add_labels.py."""
        nlp, _ = self.pipeline.get()
        lift_labels(nlp, {key for key, param in self.by_key.items() if param.group is not None})

    # ------------------------------------------------------------------ called at each step

    def follow_renamed(self) -> None:
        """Follow, if components have other names now, which no new param would show."""
        if self._renamed_components():
            self.follow()

    def follow_moved(self, model: Model[Any, Any], places: Places) -> None:
        """Follow, if layers of a component were removed or moved since it was named.

        places (Places): From `names.places_in`.
        """
        if (known := self._layouts.get(model.id)) is not None and known != _layout(places):
            self.follow()

    def array_of_node(self, node: Model[Any, Any], name: str, model: Model[Any, Any]) -> Any:
        """A node's param, which is in the table afterwards, unless its component is excluded. If it is new or replaced,
        all such params with a gradient are added together.

        node (Model): The node. name (str): The param's name there. model (Model): The root of its model.
        RETURNS (Any): The array that the node holds.
        """
        array = node.get_param(name)
        known = self.by_key.get((node.id, name))
        if (known.source is array) if known is not None else not array.size:
            return array
        found = self._found_in_node(node, name, model)
        if self._is_excluded(found.key):
            return found.source
        self._see_all([*self._find_with_grad(model), found])
        return found.source

    def add_torch_param(self, param: torch.nn.Parameter, shim: Shim, model: Model[Any, Any]) -> Param | None:
        """Look up a torch param. If it is new or replaced, all such params with a gradient are added together.

        shim (Shim): Its shim. model (Model): The root of its model.
        RETURNS (Param | None): Its row, unless it is new or replaced, or its component is excluded.
        """
        known = self.by_key.get(id(param))
        is_as_before = known is not None and known.is_on(param) and self.shims.get(shim.id) is shim
        if is_as_before:
            return known
        if known is not None or param.numel():
            found = self._found_in_shim(param, shim, model)
            if self._is_excluded(found.key):
                return None
            self._see_all([*(self._find_with_grad(model) if _hands_over(shim) else ()), found])
        return None

    def torch_param_of(self, key: Key, weights: Any) -> torch.nn.Parameter | None:
        """The torch param that a shim hands over as an array, as in `nlp.rehearse`. None: none of a known shim.

        key (Key): thinc's `(shim.id, name)`. Nodes have ids of their own, which may be the same numbers.
        weights (Any): Array or tensor, on the memory of the param.
        """
        if isinstance(key, tuple) and key not in self.by_key:
            shims = {shim.id: shim for shim in self.pipeline.shims} | dict(self.shims)
            param = dict(torch_params(shims[key[0]])).get(key[1]) if key[0] in shims else None
            if param is not None and param.data_ptr() == view_of_param(weights, f"{key}").data_ptr():
                return param
        return None

    def see(self, key: Key, source: Any, callback: Callable[[Any], None] | None = None) -> Param | None:
        """Look up a param by itself. Adds it if it is new, follows if its array was replaced.

        key (Key): Its key. source (Any): Array or tensor. callback (Callable): If given, `source` is copied to a
            buffer.
        RETURNS (Param): The param, or None if it is empty, or its component is excluded.
        RAISES (ParamError): It is not of floats, or an array that can't be updated in place. (ShapeError): Its shape
            has changed.
        """
        known = self.by_key.get(key)
        if callback is None and hasattr(source, "flags") and not is_viewable(source):
            raise ParamError(
                "Can't update an array in place: expected a writable one in C order, found one that is read-only or in "
                "another order. Copy it first, or give a callback that receives the new values."
            )
        if known is not None and callback is None and known.is_on(source):
            return known
        if known is None and self._is_excluded(key):
            return None
        view = self._view(key, source, is_copied=callback is not None)
        if known is None:
            is_copied = callback is not None
            self._add([(ParamSource(key, source), view.detach().clone() if is_copied else view)], are_copied=is_copied)
        elif known.shape != view.shape:
            raise ShapeError(
                f"Can't update param '{known.name}': expected shape {tuple(known.shape)}, found {tuple(view.shape)} "
                "under the same key. If the param has grown, pass its gradient by finish_update(model), or give it "
                "another key."
            )
        elif callback is not None:
            known.tensor.copy_(view)
            known.set_source(source)
        else:
            self._replace(known, source, view)
            self._sync()
        return self.by_key.get(key)

    def name_shim_param(self, shim: Shim, name: str, model: Model[Any, Any]) -> Key:
        """Name a param that a shim keeps elsewhere.

        RETURNS (Key): Its key.
        """
        key = ("shim", shim.id, name)
        if key not in self.names:
            self._name_below(model)  # another shim may have been in its place, or have its id
            key = ("shim", shim.id, name)
            paths = (path for path, found in shim_paths(model, self._names.prefix_of(model)) if found is shim)
            is_of_pipeline = any(found is model for _, found in self.pipeline.components)
            path = next(paths, clean(model.name))
            self._names.add(key, f"{path}/{escape(name)}", is_of_pipeline=is_of_pipeline)
        return key

    # ------------------------------------------------------------------ adding and removing params

    def check_names_last(self, walked: Iterable[NamedModel]) -> None:
        """RAISES (StateError): A param is not in the pipeline, and so has no lasting name."""
        paths = {path for model in walked for path, _ in model.shims}
        outside = [param.name for key, param in self.by_key.items() if not self._names.lasts(key, param.name, paths)]
        if outside:
            raise StateError(
                f"Can't save the state of param '{outside[0]}': expected params of the models of components, found "
                f"{len(outside)} of a model outside the pipeline, or of a second model of a component. Their state "
                "could not be matched when it is loaded. Make the model part of a component's model, or train it with "
                "an optimizer of its own."
            )

    def _see_all(self, found: Iterable[ParamSource]) -> None:
        """Add new params, and follow replaced ones. If one is refused, nothing is added.

        RAISES (ParamError): One is not of floats. (ConfigError): The settings don't fit it.
        """
        due: dict[Key, tuple[ParamSource, torch.Tensor]] = {}
        for one in found:
            known = self.by_key.get(one.key)
            is_due = not self._is_excluded(one.key) if known is None else not known.is_on(one.source)
            if one.key not in due and is_due:
                due[one.key] = one, self._view(one.key, one.source)
        for param in [param for key in due if (param := self.by_key.get(key)) is not None]:
            one, view = due[param.key]
            if param.shape == view.shape:
                self._replace(param, one.source, view)
                if one.holder is not None and param.key in self._names.of_pipeline:
                    self._set_holder(param, one.holder)  # a deep copy has the same ids
            else:
                self._leave(param, goes_on=self.on_growth != "reset")
        self._add([pair for key, pair in due.items() if key not in self.by_key])

    def _add(self, found: Sequence[tuple[ParamSource, torch.Tensor]], *, are_copied: bool = False) -> None:
        """Add new params, with the values released under their names. Empty ones are left out.

        found (Sequence): With views. are_copied (bool): With copies instead, of arrays that a callback gets back.
        """
        known: list[Param] = []
        new: list[Param] = []
        for (key, source, holder), view in found:
            if view.numel():
                name, *aliases = self.names.get(key, (f"unnamed/{len(self.by_key) + len(known) + len(new)}",))
                may_have_master = (
                    self._master_weights and view.dtype in HALF and not are_copied and not is_key_of_shim(key)
                )
                param = Param(name, key, source, view, is_bias_or_norm=key in self._names.biases_and_norms)
                param.half = Half.of(view) if may_have_master else None
                param.aliases = tuple(aliases)
                param.row_size = _row_size(holder, param) if isinstance(holder, Model) and param.tensor.ndim == 1 else 1
                param.insertions = insertions_into(holder) if isinstance(holder, Model) else ()
                if key in self._names.of_pipeline:  # otherwise nobody would notice that the holder is gone
                    param.set_holder(holder)
                saved, old = self._saved.get(name), self._released.get(name)
                if (before := saved or (old and old.row)) is not None:
                    param.take_settings(before)
                    known.append(param)
                else:
                    param.joined_at = self._joined.get(name)
                    new.append(param)
                if saved is not None:
                    param.steps = saved.updates
                if old is not None:
                    param.lineage = old.lineage
                self.by_key[key] = param
        try:
            self._sync(known, new)
        except BaseException:
            for param in (*known, *new):
                del self.by_key[param.key]
            raise
        for param in known:
            if (left := self._released.pop(param.name, None)) is not None:
                try:
                    self._inherit(param, left)
                except StateError as error:
                    warnings.warn(GrowthWarning(f"{error} It starts without state."), stacklevel=2)
        if not self._has_warned_of_half:
            self._warn_of_half([*known, *new])

    def _warn_of_half(self, params: Iterable[Param]) -> None:
        found = [
            param
            for param in params
            if param.dtype in HALF and param.group is not None and not _KEEPS_SMALL.intersection(_switched_on(param))
        ]
        if found:
            self._has_warned_of_half = True
            dtype = str(found[0].dtype).removeprefix("torch.")
            n_more = len(found) - 1
            more = f" and {n_more} other{'s' if n_more > 1 else ''} are" if n_more else " is"
            advice = (
                "Set master_weights = true in [training.optimizer] with thinc-torchopt.TorchOptimizer.v1, which "
                "updates float32 copies, or load the model in float32."
                if not self._master_weights
                else "master_weights does not reach params that are kept outside of layers and torch modules: load the "
                "model in float32."
            )
            warnings.warn(
                PrecisionWarning(
                    f"Param '{found[0].name}'{more} trained in {dtype}: an update of less than about a "
                    f"{512 if dtype == 'bfloat16' else 4096}th of a weight is rounded away. {advice}"
                ),
                stacklevel=4,
            )

    def _sync(self, known: Sequence[Param] = (), new: Sequence[Param] = ()) -> None:
        """Sync the plan, if necessary.

        known (Sequence[Param]): Replaced params. new (Sequence[Param]): Added params.
        RAISES (ConfigError): A param can't be optimized, or the settings don't fit it.
        """
        changed = [*known, *(param for param in self._changed if param.key in self.by_key)]
        if changed or new or not self._is_synced:
            outside = [param for param in (*changed, *new) if param.key not in self._names.of_pipeline]
            self._plan.sync(changed, new=new, outside=outside)
        self._changed = []
        self._is_synced = True

    def _replace(self, param: Param, source: Any, view: torch.Tensor) -> None:
        """Move to another array or tensor of the same shape. The state stays."""
        may_have_master = self._master_weights and view.dtype in HALF
        had_master, has_master = param.has_master, may_have_master and param.group is not None
        tensor = master_of(view) if has_master else view
        is_moved = (tensor.device, tensor.dtype, tensor.stride()) != (param.device, param.dtype, param.strides)
        if had_master and has_master:
            tensor.copy_(param.tensor)  # it follows the model's values before the next update
        if view is param.tensor or is_moved or had_master != has_master:
            self._plan.move(param, tensor)
            self._is_synced = False
        else:
            param.tensor.data = tensor.detach()
        param.half = Half.of(view if has_master else param.tensor) if may_have_master else None
        param.set_source(source)

    def _is_excluded(self, key: Key) -> bool:
        return self.pipeline.excludes(self.names.get(key, ()))

    def _view(self, key: Key, source: Any, *, is_copied: bool = False) -> torch.Tensor:
        known = self.by_key.get(key)
        name = self.names.get(key, (f"unnamed/{len(self.by_key)}",))[0] if known is None else known.name
        return view_of_param(source, name, is_copied=is_copied)

    def _forget(self, keys: Iterable[Key], *, keep_names: bool = True) -> None:
        """Drop params and their averages. `_sync` drops their states."""
        for key in keys:
            if not keep_names:
                self.names.pop(key, None)
            if (param := self.by_key.pop(key, None)) is not None:
                self._is_synced = False
                if self.averages is not None:
                    self.averages.release(param)

    def _leave(self, param: Param, *, goes_on: bool) -> None:
        """Forget a param, and keep its values for the next one of its name.

        goes_on (bool): Keep also its state, its average and its number of updates.
        """
        row, optimizer_class, average = param.row(), None, None
        if goes_on:
            optimizer_class = None if param.group is None else param.group.owner.states.optimizer_class
            average = None if self.averages is None else self.averages.release(param)
        else:
            row = replace(row, updates=0, state={}, master=None)
        self._released[param.name] = Released(param.lineage, row, optimizer_class, average)
        self._forget([param.key])

    def _set_holder(self, param: Param, holder: Model[Any, Any] | Shim) -> None:
        """Set the place of a param, perhaps another shim around its module."""
        old = param.holder
        param.set_holder(holder)
        if isinstance(holder, Shim):
            self._add_shim(holder)
            if isinstance(old, Shim) and old is not holder and self.averages is not None:
                self.averages.pass_on_buffers(old, holder, all_of_them=True)

    def _add_shim(self, shim: Shim) -> None:
        _note_id(shim, self.shims)

    def _inherit(self, param: Param, old: Released) -> None:
        """Give a param the values that another one released.

        RAISES (StateError): They don't fit. The param starts without state.
        """
        is_of_class = param.group is not None and param.group.owner.states.optimizer_class is old.optimizer_class
        if is_of_class and old.row.state:
            param.take_state(old.row, self.on_growth)
        elif old.row.master is not None:
            param.take_master(old.row.master)
        param.steps = old.row.updates
        if self.averages is not None and old.average is not None:
            self.averages.inherit(param, old.average)

    # ------------------------------------------------------------------ names

    def _name_below(self, model: Model[Any, Any]) -> None:
        """Name the params of a model with new ones."""
        if any(found is model for _, found in self.pipeline.components):
            self._name_pipeline()
        else:
            self._tell_apart(shim for node in model.walk() for shim in node.shims)
            for key, names in self._names.note(walk(model, self._names.prefix_of(model))).items():
                self.names.setdefault(key, names)

    def _name_pipeline(self, walked: list[NamedModel] | None = None) -> list[NamedModel]:
        """Name all params of the pipeline; forget those that are no longer in it. RETURNS: From `walk_pipeline`."""
        walked = self.pipeline.walk() if walked is None else walked
        self._tell_apart(shim for model in walked for _, shim in model.shims)
        params = [found for model in walked for found in model.params]
        self._rename_components()
        self._component_of = {model.model.id: model.component for model in reversed(walked)}
        self._layouts = {model.model.id: _layout(places_in(model.model)) for model in walked}
        names = self._names.note(params)
        embeddings = {found.name for found in params if found.is_embedding}
        modules = [path for model in walked for path, _ in model.shims]
        are_others = self._plan.see_names([found.name for found in params], embeddings, modules)
        updates = self._remove_outdated(params, names)
        renamed = self._rename(names)
        self._changed += self.by_key.values() if are_others else renamed
        for found in params:
            if (known := self.by_key.get(found.key)) is not None and known.holder is not found.owner:
                self._set_holder(known, found.owner)
        if self._names.in_use:
            self._note_new_names(names, updates)
        self._names.update(names)
        return walked

    def _tell_apart(self, shims: Iterable[Shim]) -> None:
        """Give shims different ids, also those without params in this table, such as frozen ones."""
        known = dict(self.shims)
        for shim in shims:
            _note_id(shim, known)

    def _remove_outdated(self, params: Iterable[NamedParam], names: Mapping[Key, tuple[str, ...]]) -> int:
        """Forget params that are no longer in the pipeline. Those whose names new params have now leave them their
        values, if they are the same thing, or else their learning rates.

        params (Iterable[NamedParam]): Of the pipeline. names (Mapping): All names of each by its key.
        RETURNS (int): The number of updates so far.
        """
        by_name = {names[found.key][0]: found for found in params}
        outdated = self._names.outdated(names.keys(), by_name.keys())
        pairs = [
            (self.by_key[key], by_name[self.names[key][0]])
            for key, has_successor in outdated
            if has_successor and key in self.by_key and by_name[self.names[key][0]].key not in self.names
        ]
        staying = going_on(pairs)
        if self.averages is not None:
            for old, new, is_whole in shims_of(pairs, staying):
                self.averages.pass_on_buffers(old, new, all_of_them=is_whole)
        heirs = {param.key for param, _ in pairs if param.name in staying}
        removed = {key for key, _ in outdated} - heirs
        updates = max((param.steps for key, param in self.by_key.items() if key not in removed), default=0)
        for param, found in pairs:
            if param.key in removed:
                param.joined_at = updates or None
                self._leave(param, goes_on=False)
            else:
                has_grown = param.shape != tuple(found.values.shape)
                self._leave(param, goes_on=not has_grown or self.on_growth != "reset")
        self._forget((key for key, _ in outdated), keep_names=False)
        return updates

    def _renamed_components(self) -> dict[str, str]:
        """New names of components by old ones."""
        now = {model.id: name for name, model in reversed(self.pipeline.components)}
        return {old: now[key] for key, old in self._component_of.items() if now.get(key, old) != old}

    def _rename_components(self) -> None:
        """Rename all params of components that have other names now, also those whose layers were replaced since:
        others have their names now.
        """
        if components := self._renamed_components():
            self.pipeline.rename(components)
            self._component_of = {key: components.get(name, name) for key, name in self._component_of.items()}
            self._changed += self._rename(self._names.rename(components))
            self._joined = {with_component(name, components): at for name, at in self._joined.items()}
            self._released = {with_component(name, components): left for name, left in self._released.items()}

    def _rename(self, names: Mapping[Key, tuple[str, ...]]) -> list[Param]:
        """RETURNS (list[Param]): Those with other names than before."""
        renamed = [
            self.by_key[key] for key, found in names.items() if key in self.by_key and self.by_key[key].names != found
        ]
        for param in renamed:
            param.name, *aliases = names[param.key]
            param.aliases = tuple(aliases)
        return renamed

    def _note_new_names(self, names: Mapping[Key, tuple[str, ...]], updates: int) -> None:
        """Record which params were added in mid-training. Renamed params are not new, even if they are not trained.

        names (Mapping): Of all params of the pipeline. updates (int): The number of updates so far.
        """
        moved = {
            self.names[key][0]: name for key, (name, *_) in names.items() if self.names.get(key, (name,))[0] != name
        }
        joined = {name: self._joined.get(old) for old, name in moved.items()}
        for key, (name, *_) in names.items():
            if updates and key not in self.names and (name in moved or name not in self._names.in_use):
                joined[name] = updates
        self._joined |= joined


def _keys_in(walked: Iterable[NamedModel], models: Collection[int]) -> set[Key]:
    """The keys of all params of models. models (Collection[int]): The `id` of each."""
    return {found.key for model in walked if id(model.model) in models for found in model.params}


def _layout(places: Places) -> list[Any]:
    """Equal as long as all params have their places."""
    layout: list[Any] = []
    for node, shims in places:
        layout.append(id(node))
        for shim, params in shims:
            layout.append(id(shim))
            for name, param in params:
                layout += (name, id(param))
    return layout


def _note_id(shim: Shim, by_id: MutableMapping[int, Shim]) -> None:
    """Note a shim by its id; by a new one, if another shim has it: thinc copies the id of a copied layer as well, and
    averages go by it.
    """
    if by_id.setdefault(shim.id, shim) is not shim:
        with Shim.global_id_lock:
            Shim.global_id += 1
            shim.id = Shim.global_id
        by_id[shim.id] = shim


def _switched_on(param: Param) -> Iterator[str]:
    """The options that are on for a param."""
    return (name for name, value in param.settings.options.items() if value is True)


def _row_size(node: Model[Any, Any], param: Param) -> int:
    """Cells in a row of a flat param, such as SparseLinear's weights of `nO` rows."""
    sizes = [node.get_dim(name) for name in node.dim_names if node.has_dim(name)]
    is_flat = node.has_dim("nO") and param.tensor.numel() == math.prod(sizes)
    return param.tensor.numel() // node.get_dim("nO") if is_flat else 1


def _hands_over(shim: Shim) -> bool:
    """Whether a shim passes each gradient to its optimizer unchanged."""
    is_plain = type(shim).finish_update is PyTorchShim.finish_update
    return is_plain and not scaler_of(shim).found_inf
