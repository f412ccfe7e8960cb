"""The params of an optimizer: every param that it has seen, with its name, and what to do when its array is replaced.

Arrays are replaced behind our back, by `from_bytes`, `use_params`, `to_ops`, `resize_output`. A param is known by its key; at each step its
array is compared with the one that was viewed, by identity. The state in torch stays with the param.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from spacy.language import Language
from thinc.api import Model, PyTorchShim, Shim

from ..errors import GrowthWarning, ParamError, PipelineError, ShapeError, StateError
from ..kernels import may_overlap
from ..types import Key, OnGrowth
from .names import NamedParam, shim_paths, torch_params, walk
from .param import Param, is_viewable, own_copy, view_of
from .paths import Form, form_of
from .pipeline import components_with_model, trainable_components
from .spelling import clean
from .succession import Keeper, Released


class Groups(Keeper, Protocol):
    """The param groups, as far as this table knows them: see groups/."""

    def add(self, params: Iterable[Param], *, names_are_lasting: bool) -> None: ...
    def changing(self) -> AbstractContextManager[None]: ...
    def drop(self, params: Iterable[Param]) -> None: ...
    def replace(self, param: Param, new: torch.Tensor) -> None: ...
    def rename(self, params: Iterable[Param]) -> None: ...
    def see_names(self, names: Sequence[str], embeddings: Collection[str] = ()) -> None: ...


class Found(NamedTuple):
    """What a model holds under a key: an array or a tensor."""

    key: Key
    source: Any


class ParamTable:
    """All params of an optimizer by key.

    groups (Groups): Told of every param that comes, goes, or moves to another device. Keeps torch's state.
    averages (Averages | None): Keeps an average for each param.
    on_growth ("mean" | "zero" | "reset"): What new cells of a param's state get when the param has grown.
    """

    def __init__(self, groups: Groups, averages: Keeper | None, on_growth: OnGrowth = "mean"):
        self.by_key: dict[Key, Param] = {}
        self.names: dict[Key, tuple[str, ...]] = {}
        self._biases_and_norms: set[Key] = set()
        self.shims: weakref.WeakValueDictionary[int, Shim] = weakref.WeakValueDictionary()
        self._groups = groups
        self.averages = averages
        self._nlp: Callable[[], Language | None] = lambda: None
        self._was_bound = False
        self._forms: dict[str, Form] = {}
        # Whose the names under an `id` are: that of a param that is gone may be another's.
        self._torch_params: dict[int, Callable[[], torch.nn.Parameter | None]] = {}
        self._of_pipeline: set[Key] = set()
        self._exclude: Collection[str] = ()
        self._on_growth = on_growth
        # By name: after how many updates a param joined, if in mid-training; what was released to it; and which names there ever were.
        self._joined: dict[str, int | None] = {}
        self._released: dict[str, Released] = {}
        self._known: set[str] = set()

    @property
    def is_bound(self) -> bool:
        """Whether it was told a pipeline."""
        return self._nlp() is not None

    def may_be_of(self, nlp: Language) -> bool:
        """Whether what it has may be a pipeline's: not if it was told another one before."""
        return not self._was_bound or self._nlp() is nlp

    def is_bound_to(self, nlp: Language) -> bool:
        """Whether this is the pipeline that it was told."""
        return self._nlp() is nlp

    def bound_to(self) -> tuple[Language, Collection[str]]:
        """The pipeline that it was told, and which components of it are not trained.

        RAISES (PipelineError): It was told none.
        """
        nlp = self._nlp()
        if nlp is None:
            raise PipelineError(
                "Can't save or load the state of the optimizer: expected an optimizer that knows its pipeline, found one without a "
                "pipeline, so params have no lasting names. Call optimizer.initialize(nlp) first."
            )
        return nlp, self._exclude

    def shim_paths(self) -> Iterator[tuple[str, Shim]]:
        """Every shim of the pipeline with its lasting path."""
        nlp = self._nlp()
        for name, model in components_with_model(nlp) if nlp is not None else []:
            yield from shim_paths(model, name)

    def bind(
        self,
        nlp: Language,
        exclude: Collection[str],
        *,
        saved: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        joins_now: bool = False,
    ) -> None:
        """Take in all params of a pipeline that are to be trained, and forget those of its own that are no longer among them.

        saved (Mapping): For a run that goes on: its params by name, see `state.collect_params`. They are taken in too, if they are in a
            component that is not excluded: torch params that take no gradients here and now, for example, or those of shims.
        joins_now (bool): The others in the pipeline are new to it, and join in the middle of the run.
        RAISES (PipelineError): Nothing to train, or a component that was not initialized.
        """
        self._nlp, self._was_bound = weakref.ref(nlp), True
        self._exclude = tuple(exclude)
        self._joined |= {name: found.get("joined_at") for name, found in saved.items()}
        self._name_pipeline(nlp)
        if joins_now:
            updates = max((found.get("updates", 0) for found in saved.values()), default=0)
            self._joined |= dict.fromkeys(self._known - saved.keys(), updates or None)
        components = trainable_components(nlp, exclude)
        if not components:
            raise PipelineError(
                f"Can't train the pipeline {nlp.pipe_names}: expected at least one trainable component, found none that is not "
                f"excluded ({list(exclude)}). Add one to [nlp] pipeline, or take it out of [training] frozen_components."
            )
        for name, model in components:
            declared = [node.has_param(param) for node in model.walk() for param in node.param_names]
            if declared and not any(declared) and not any(node.shims for node in model.walk()):
                raise PipelineError(
                    f"Can't train component '{name}': expected an initialized model, found {len(declared)} params, none with a value. "
                    "Call nlp.initialize() before the optimizer is used."
                )
        trained = {found.key for name, model in components for found in walk(model, name)}
        for name, proc in nlp.components:
            if name in exclude and isinstance(getattr(proc, "model", None), Model):
                self._forget(found.key for found in walk(proc.model, name) if found.key not in trained)  # type: ignore[attr-defined]
        found = [of_model for _, model in components for of_model in self._find_trained(model)]
        if saved:
            of_trained = {id(model) for _, model in components}
            excluded = {id(getattr(proc, "model", None)) for name, proc in nlp.components if name in exclude}
            for _, model in components_with_model(nlp):
                if id(model) in of_trained or id(model) not in excluded:
                    found += self._find_named(model, saved.keys())
            found += self._find_of_shims(saved, excluded)
        self._take_in(found)
        self._released.clear()

    # ------------------------------------------------------------------ what a model holds

    def _find_trained(self, model: Model) -> Iterator[Found]:
        """The params of a model that are trained. Others are taken in when they have a gradient: frozen ones, or those made later."""
        return self._find(model, lambda shim, param: param.requires_grad, lambda node, name: True)

    def _find_named(self, model: Model, names: Set[str]) -> Iterator[Found]:
        """The params of a model that have these names, also if they take no gradients."""
        return self._find(
            model,
            lambda shim, param: not names.isdisjoint(self.names.get(id(param), ())),
            lambda node, name: not names.isdisjoint(self.names.get((node.id, name), ())),
        )

    def _find_with_grad(self, model: Model) -> Iterator[Found]:
        """The params of a model that have a gradient which they will be given as it is."""
        plain = {
            shim.id
            for node in model.walk()
            for shim in node.shims
            if _hands_over(shim) and not shim._grad_scaler.found_inf  # type: ignore[attr-defined]
        }
        return self._find(model, lambda shim, param: shim.id in plain and param.grad is not None, Model.has_grad)

    def _find(
        self,
        model: Model,
        is_due: Callable[[Shim, torch.nn.Parameter], bool],
        is_due_in_node: Callable[[Model, str], bool],
    ) -> Iterator[Found]:
        for node in model.walk():
            for shim in node.shims:
                for _, param in torch_params(shim):
                    if is_due(shim, param) and not torch.nn.parameter.is_lazy(param):
                        yield self._found_in_shim(param, shim, model)
            for name in node.param_names:
                if node.has_param(name) and is_due_in_node(node, name):
                    yield self._found_in_node(node, name, model)

    def _found_in_node(self, node: Model, name: str, model: Model) -> Found:
        """An array. One that is read-only or not in C order is replaced by a plain copy."""
        key, array = (node.id, name), node.get_param(name)
        if key not in self.names:
            self._name_below(model)
        known = self.by_key.get(key)
        if (known is None or known.source is not array) and hasattr(array, "flags") and not is_viewable(array):
            array = own_copy(array)
            node.set_param(name, array)
        return Found(key, array)

    def _found_in_shim(self, param: torch.nn.Parameter, shim: Shim, model: Model) -> Found:
        if self._torch_params.get(id(param), _nobody)() is not param:
            self._forget([id(param)], keep_names=False)
            self._name_below(model)
            self._torch_params[id(param)] = weakref.ref(param)
        if self.shims.get(shim.id, shim) is not shim:
            # A copied layer: thinc copies the id as well, and averages go by it.
            with Shim.global_id_lock:
                Shim.global_id += 1
                shim.id = Shim.global_id
        self.shims[shim.id] = shim
        return Found(id(param), param)

    def _find_of_shims(self, saved: Mapping[str, Mapping[str, Any]], excluded: Collection[int]) -> Iterator[Found]:
        """What shims keep elsewhere, as it was when it was saved. Its values come with the first gradient."""
        nlp, _ = self.bound_to()
        paths = {
            path: shim for name, model in components_with_model(nlp) if id(model) not in excluded for path, shim in shim_paths(model, name)
        }
        for name, found in saved.items():
            if "shim" in found:
                shim = paths.get(name.removesuffix(f"/{clean(found['shim'])}"))
                if shim is not None and (key := ("shim", shim.id, found["shim"])) not in self.by_key:
                    self.names[key] = (name,)
                    yield Found(key, torch.zeros(found["shape"], dtype=getattr(torch, found["dtype"].removeprefix("torch."))))

    def follow(self) -> None:
        """Go over to what took the place of params in the pipeline since the last update, as a copied model's do; forget what is gone."""
        nlp = self._nlp()
        if nlp is not None:
            self._name_pipeline(nlp)
            if self._released:
                found = (self._find_named(model, self._released.keys()) for _, model in components_with_model(nlp))
                self._take_in(chain.from_iterable(found))

    def check_names_last(self) -> None:
        """RAISES (StateError): There are params that are not in the pipeline, and so have no lasting names."""
        paths = {path for path, _ in self.shim_paths()}
        outside = [
            param.name
            for key, param in self.by_key.items()
            if key not in self._of_pipeline and not (_is_of_shim(key) and param.name.removesuffix(f"/{clean(key[2])}") in paths)  # type: ignore[index]
        ]
        if outside:
            raise StateError(
                f"Can't save the state of param '{outside[0]}': expected params of the models of components, found {len(outside)} of a "
                "model outside the pipeline, or of a second model of a component. Their state could not be matched when it is loaded. "
                "Make the model part of a component's model, or train it with an optimizer of its own."
            )

    # ------------------------------------------------------------------ looked up at each step

    def array_of_node(self, node: Model, name: str, model: Model) -> Any:
        """A node's param, which is known then. If it is new or another one than before, all such with a gradient are taken in together.

        node (Model): The node. name (str): The param's name there. model (Model): The root below which it was found.
        RETURNS (Any): The array that the node holds.
        """
        array = node.get_param(name)
        known = self.by_key.get((node.id, name))
        if (known is None or known.source is not array) and (known is not None or array.size):
            found = self._found_in_node(node, name, model)
            self._take_in([*self._find_with_grad(model), found])
            array = found.source
        return array

    def meet_torch_param(self, param: torch.nn.Parameter, shim: Shim, model: Model) -> None:
        """Look at a torch param. If it is new or another one than before, all such with a gradient are taken in together.

        shim (Shim): Whose it is. model (Model): The root below which it was found.
        """
        known = self.by_key.get(id(param))
        is_as_before = known is not None and known.is_on(param) and self.shims.get(shim.id) is shim
        if not is_as_before and (known is not None or param.numel()):
            found = self._found_in_shim(param, shim, model)
            self._take_in([*(self._find_with_grad(model) if _hands_over(shim) else ()), found])

    def name_shim_param(self, shim: Shim, name: str, model: Model) -> Key:
        """Name a param that a shim keeps elsewhere.

        RETURNS (Key): Its key.
        """
        key = ("shim", shim.id, name)
        if key not in self.names:
            path = next((path for path, found in shim_paths(model, self._prefix_of(model)) if found is shim), clean(model.name))
            self.names[key] = (f"{path}/{clean(name)}",)
        return key

    def see(self, key: Key, source: Any, callback: Callable[[Any], None] | None = None) -> Param | None:
        """Look a param up by itself; take it in if it is new; notice it if its array is another one than before.

        key (Key): Its key. source (Any): Array or tensor. callback (Callable): If given, `source` is copied to a buffer of ours.
        RETURNS (Param): The param, or None if it is empty.
        RAISES (ParamError): It is not of floats. (ShapeError): It has another shape than before.
        """
        known = self.by_key.get(key)
        if known is not None and callback is None and known.is_on(source):
            return known
        view = self._view(key, source, is_copied=callback is not None)
        if known is None:
            self._add([(Found(key, source), view if callback is None else view.detach().clone())])
        elif known.shape != view.shape:
            raise ShapeError(
                f"Can't update param '{known.name}': expected shape {tuple(known.shape)}, found {tuple(view.shape)} under the same key. If "
                "the param has grown, take its gradient by finish_update(model), or give it another key."
            )
        elif callback is not None:
            known.tensor.copy_(view)
            known.hold(source)
        else:
            self._replace(known, source, view)
        return self.by_key.get(key)

    # ------------------------------------------------------------------ params come and go

    def _take_in(self, found: Iterable[Found]) -> None:
        """Take in what is new, and go over to what took the place of something. If one is refused, nothing is taken in.

        RAISES (ParamError): One is not of floats. (ConfigError): The settings don't go with it.
        """
        due: dict[Key, tuple[Found, torch.Tensor]] = {}
        for one in found:
            known = self.by_key.get(one.key)
            if one.key not in due and (known is None or not known.is_on(one.source)):
                due[one.key] = one, self._view(one.key, one.source)
        if not due:
            return
        with self._groups.changing():
            known_before = {key: param for key in due if (param := self.by_key.get(key)) is not None}
            for key, param in known_before.items():
                one, view = due[key]
                if param.shape == view.shape:
                    self._replace(param, one.source, view)
                else:
                    self._release(param)
            self._add([pair for key, pair in due.items() if key not in self.by_key])

    def _add(self, found: Sequence[tuple[Found, torch.Tensor]]) -> None:
        """Take in what is new, with what a param of the same name has left. Empty ones are left out. found (Sequence): With views."""
        new: list[Param] = []
        for (key, source), view in found:
            if view.numel():
                name, *aliases = self.names.get(key, (f"unnamed/{len(self.by_key) + len(new)}",))
                param = Param(name, key, source, view, is_bias_or_norm=key in self._biases_and_norms)
                param.aliases = tuple(aliases)
                old = self._released.get(name)
                param.joined_at = self._joined.get(name) if old is None else old.joined_at
                new.append(param)
        self._groups.add(new, names_are_lasting=self.is_bound)
        self.by_key |= {param.key: param for param in new}
        for param in new:
            if (old := self._released.pop(param.name, None)) is not None:
                try:
                    self._inherit(param, old)
                except StateError as error:
                    warnings.warn(GrowthWarning(f"{error} It starts anew."), stacklevel=2)

    def _replace(self, param: Param, source: Any, view: torch.Tensor) -> None:
        """Go over to another array or tensor of the same shape. The state goes on."""
        if view is param.tensor or (view.device, view.dtype, view.stride()) != (param.device, param.dtype, param.strides):
            self._groups.replace(param, view)
        else:
            param.tensor.data = view.detach()
        param.hold(source)

    def _view(self, key: Key, source: Any, *, is_copied: bool = False) -> torch.Tensor:
        """What torch is to optimize of an array or tensor. is_copied (bool): It will be copied anyway.

        RAISES (ParamError): It can't be optimized in place.
        """
        known = self.by_key.get(key)
        name = known.name if known is not None else self.names.get(key, (f"unnamed/{len(self.by_key)}",))[0]
        if isinstance(source, torch.Tensor):
            view = source
        else:
            view = view_of(own_copy(source) if is_copied and not is_viewable(source) else source, f"optimize param '{name}'")
        if view.layout != torch.strided:
            raise ParamError(
                f"Can't optimize param '{name}': expected a dense tensor, found one of layout {view.layout}. Make it dense: "
                "param.to_dense()."
            )
        if not view.is_floating_point():
            raise ParamError(f"Can't optimize param '{name}': expected a tensor of floats, found {view.dtype}.")
        if not is_copied and may_overlap(view):
            raise ParamError(
                f"Can't optimize param '{name}': expected a tensor without overlapping memory, found shape {tuple(view.shape)} with "
                f"strides {view.stride()}, where several elements share one place. It was made by expand() or as_strided(): clone it "
                "before it becomes a param."
            )
        return view

    def _forget(self, keys: Iterable[Key], *, keep_names: bool = True) -> None:
        """Drop params, their states and their averages."""
        gone = []
        for key in keys:
            if not keep_names:
                self.names.pop(key, None)
            if (param := self.by_key.pop(key, None)) is not None:
                gone.append(param)
                if self.averages is not None:
                    self.averages.release(param)
        if gone:
            self._groups.drop(gone)

    def _release(self, param: Param) -> None:
        """Forget a param, and keep what is known of it for the next one of its name."""
        if self._on_growth != "reset":
            average = None if self.averages is None else self.averages.release(param)
            state = self._groups.release(param)
            self._released[param.name] = Released(tuple(param.shape), param.dtype, param.steps, param.joined_at, state, average)
        self._forget([param.key])

    def _inherit(self, param: Param, old: Released) -> None:
        """RAISES (StateError): Something does not fit; that begins anew."""
        if old.state is not None:
            self._groups.inherit(param, old.state, old, self._on_growth)
        param.steps = old.steps
        if self.averages is not None and old.average is not None:
            self.averages.inherit(param, old.average, old, self._on_growth)

    # ------------------------------------------------------------------ names

    def _name_below(self, model: Model) -> None:
        """Name the params of a model in which new ones turned up."""
        nlp = self._nlp()
        if nlp is not None and any(found is model for _, found in components_with_model(nlp)):
            self._name_pipeline(nlp)
        else:
            for key, names in self._note(walk(model, self._prefix_of(model))).items():
                self.names.setdefault(key, names)

    def _name_pipeline(self, nlp: Language) -> None:
        """Name all params of a pipeline, disabled components' too; forget those that are no longer in it."""
        components = components_with_model(nlp)
        self._forms = {name: form_of(model, name, self._forms.get(name)) for name, model in components}
        walked = [found for name, model in components for found in walk(model, name)]
        names = self._note(walked)
        self._groups.see_names([found.name for found in walked], {found.name for found in walked if found.is_embedding})
        in_use, gone = {name for name, *_ in names.values()}, []
        with self._groups.changing():
            for key, (name, *_) in self.names.items():
                if key not in names and (key in self._of_pipeline or name in in_use):
                    if key in self._of_pipeline and name in in_use and key in self.by_key:
                        self._release(self.by_key[key])
                    gone.append(key)
            self._forget(gone, keep_names=False)
        renamed = [self.by_key[key] for key, found in names.items() if key in self.by_key and self.by_key[key].names != found]
        for param in renamed:
            param.name, *aliases = names[param.key]
            param.aliases = tuple(aliases)
        self._groups.rename(renamed)
        self.names.update(names)
        self._of_pipeline = set(names)
        updates = max((param.steps for param in self.by_key.values()), default=0)
        if updates and self._known:
            self._joined |= dict.fromkeys(in_use - self._known, updates)
        self._known |= in_use

    def _note(self, walked: Iterable[NamedParam]) -> dict[Key, tuple[str, ...]]:
        """Note what a walk found. RETURNS (dict): The names of each param by its key, its first one first."""
        names: dict[Key, tuple[str, ...]] = {}
        for found in walked:
            names[found.key] = *names.get(found.key, ()), found.name
            (self._biases_and_norms.add if found.is_bias_or_norm else self._biases_and_norms.discard)(found.key)
            if found.param is not None:
                self._torch_params[id(found.param)] = weakref.ref(found.param)
        return names

    def _prefix_of(self, model: Model) -> str:
        """What the names of a model's params begin with: its component's name, or the name of its root layer."""
        nlp = self._nlp()
        for name, found in components_with_model(nlp) if nlp is not None else []:
            if found is model:
                return name
        prefix = clean(model.name)
        own = {found.key for found in walk(model, prefix)}
        taken = any(name.startswith(f"{prefix}/") and key not in own for key, (name, *_) in self.names.items())
        return f"{prefix}-{model.id}" if taken else prefix


def _hands_over(shim: Shim) -> bool:
    """Whether a shim gives its optimizer each gradient as it is."""
    return type(shim).finish_update is PyTorchShim.finish_update


def _nobody() -> None:
    return None


def _is_of_shim(key: Key) -> bool:
    """Whether a param is one that a shim keeps elsewhere."""
    return isinstance(key, tuple) and len(key) == 3 and key[0] == "shim"
