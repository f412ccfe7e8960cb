"""The pipeline of an optimizer: its components, one walk over their models, and the names of their params."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from spacy.language import Language
from thinc.api import Model, Shim

from ..errors import PipelineError
from ..types import Key
from .names import NamedParam, clean, escape, params_at, paths_of, shim_paths, shims_at, unescape, walk
from .param import is_key_of_shim


class NamedModel(NamedTuple):
    """A component's model with all that a walk finds below it. Walk again where layers or params may have been added.

    component (str): The component's name, escaped, as in names of params.
    model (Model): The root.
    params (list[NamedParam]): See `names.walk`. shims (list): See `names.shim_paths`.
    """

    component: str
    model: Model[Any, Any]
    params: list[NamedParam]
    shims: list[tuple[str, Shim]]


def walk_pipeline(nlp: Language) -> list[NamedModel]:
    """Walk over the models of all components, including disabled ones."""
    found = []
    for component, model in components_with_model(nlp):
        places = paths_of(model, component)
        found.append(NamedModel(component, model, params_at(places), shims_at(places)))
    return found


class KnownPipeline:
    """The pipeline of an optimizer, if it has one. It is not kept alive.

    Public: `was_known` (whether there ever was one), `exclude` (its components that are not trained).
    """

    def __init__(self) -> None:
        self.was_known = False
        self._nlp: Callable[[], Language | None] = lambda: None
        self.exclude: tuple[str, ...] = ()

    def set(self, nlp: Language, exclude: Collection[str]) -> None:
        """Set the pipeline. exclude (Collection[str]): Components that are not trained."""
        self._nlp, self.was_known = weakref.ref(nlp), True
        self.exclude = tuple(exclude)

    def rename(self, components: Mapping[str, str]) -> None:
        """Rename excluded components. components (Mapping[str, str]): New names by old ones, escaped."""
        self.exclude = tuple(unescape(components.get(found, found)) for found in map(escape, self.exclude))

    def excludes(self, names: Collection[str]) -> bool:
        """Whether a param belongs to excluded components only. names (Collection[str]): All its names."""
        if not self.exclude:
            return False
        excluded = set(map(escape, self.exclude))
        return bool(names) and all(name.partition("/")[0] in excluded for name in names)

    @property
    def is_there(self) -> bool:
        """Whether there is a pipeline."""
        return self._nlp() is not None

    def is_(self, nlp: Language) -> bool:
        """Whether this is the pipeline."""
        return self._nlp() is nlp

    def get(self) -> tuple[Language, Collection[str]]:
        """The pipeline, and its excluded components.

        RAISES (PipelineError): There is none.
        """
        nlp = self._nlp()
        if nlp is None:
            raise PipelineError(
                "Can't save or load the state of the optimizer: expected an optimizer that knows its pipeline, found "
                "one without a pipeline, so params have no lasting names. Call optimizer.initialize(nlp) first."
            )
        return nlp, self.exclude

    @property
    def components(self) -> list[tuple[str, Model[Any, Any]]]:
        """See `components_with_model`. Empty without a pipeline."""
        nlp = self._nlp()
        return [] if nlp is None else components_with_model(nlp)

    @property
    def shims(self) -> list[Shim]:
        """Every shim of the pipeline."""
        return [shim for _, model in self.components for node in model.walk() for shim in node.shims]

    def walk(self) -> list[NamedModel]:
        """See `walk_pipeline`. Empty without a pipeline."""
        nlp = self._nlp()
        return [] if nlp is None else walk_pipeline(nlp)

    def shim_paths(self) -> list[tuple[str, Shim]]:
        """Every shim of the pipeline with its lasting path."""
        return [found for name, model in self.components for found in shim_paths(model, name)]


class KnownNames:
    """Names by key.

    pipeline (KnownPipeline): The pipeline whose params have lasting names.

    Public: `by_key` (all names of each param by its key, the first one first), `in_use` (the first names of all params
        of the pipeline), `of_pipeline` (the keys of all params that were in the pipeline when `update` was called
        last), `biases_and_norms` (the keys of biases and of params of normalization layers).
    """

    def __init__(self, pipeline: KnownPipeline):
        self.by_key: dict[Key, tuple[str, ...]] = {}
        self.in_use: set[str] = set()
        self._pipeline = pipeline
        self.biases_and_norms: set[Key] = set()
        # The owners of the names under an `id`: after a param is gone, another may get its `id`.
        self._torch_params: dict[int, Callable[[], torch.nn.Parameter | None]] = {}
        self.of_pipeline: set[Key] = set()

    def update(self, names: Mapping[Key, tuple[str, ...]]) -> None:
        """Set the names of all params of the pipeline. Names of removed params are dropped, except those of shims."""
        self.by_key.update(names)
        self.of_pipeline = {*names, *(key for key in self.of_pipeline if is_key_of_shim(key) and key in self.by_key)}
        self.in_use = {first for first, *_ in names.values()}

    def rename(self, components: Mapping[str, str]) -> dict[Key, tuple[str, ...]]:
        """Rename components. components (Mapping[str, str]): New names by old ones. RETURNS (dict): All names of each
        param of the pipeline by its key.
        """
        names = {
            key: tuple(with_component(name, components) for name in found)
            for key, found in self.by_key.items()
            if key in self.of_pipeline
        }
        self.by_key.update(names)
        self.in_use = {with_component(name, components) for name in self.in_use}
        return names

    def add(self, key: Key, name: str, *, is_of_pipeline: bool) -> None:
        """Add the name of a param that a shim keeps elsewhere."""
        self.by_key[key] = (name,)
        if is_of_pipeline:
            self.of_pipeline.add(key)

    def lasts(self, key: Key, name: str, paths: Collection[str]) -> bool:
        """Whether a param of the pipeline has this name. paths (Collection[str]): Of the pipeline's shims."""
        return key in self.of_pipeline or (is_key_of_shim(key) and name.removesuffix(f"/{escape(key[2])}") in paths)  # type: ignore[index]

    def outdated(self, now: Collection[Key], names_now: Collection[str]) -> list[tuple[Key, bool]]:
        """Keys that are no longer in the pipeline, and whether another param has the name now.

        now (Collection[Key]): The current keys. names_now (Collection[str]): The first name of each.
        """
        if any(is_key_of_shim(key) for key in self.of_pipeline):
            shims = {shim.id for shim in self._pipeline.shims}
            now = {*now, *(key for key in self.of_pipeline if is_key_of_shim(key) and key[1] in shims)}  # type: ignore[index]
        return [
            (key, key in self.of_pipeline and name in names_now)
            for key, (name, *_) in self.by_key.items()
            if key not in now and (key in self.of_pipeline or name in names_now)
        ]

    def note(self, walked: Iterable[NamedParam]) -> dict[Key, tuple[str, ...]]:
        """Add the params of a walk. RETURNS (dict): The names of each param by its key, the first one first."""
        names: dict[Key, tuple[str, ...]] = {}
        for found in walked:
            names[found.key] = *names.get(found.key, ()), found.name
            (self.biases_and_norms.add if found.is_bias_or_norm else self.biases_and_norms.discard)(found.key)
            if found.param is not None:
                self.note_torch_param(found.param)
        return names

    def note_torch_param(self, param: torch.nn.Parameter) -> None:
        self._torch_params[id(param)] = weakref.ref(param)

    def has_noted(self, param: torch.nn.Parameter) -> bool:
        """Whether the names under the `id` of a param belong to it."""
        noted = self._torch_params.get(id(param))
        return noted is not None and noted() is param

    def prefix_of(self, model: Model[Any, Any]) -> str:
        """The common prefix of the names of a model's params: its component's name, or the name of its root layer."""
        for name, found in self._pipeline.components:
            if found is model:
                return name
        prefix = clean(model.name)
        own = {found.key for found in walk(model, prefix)}
        shims = {shim.id for node in model.walk() for shim in node.shims}
        taken = any(
            name.startswith(f"{prefix}/") and key not in own and not (is_key_of_shim(key) and key[1] in shims)  # type: ignore[index]
            for key, (name, *_) in self.by_key.items()
        )
        return f"{prefix}-{model.id}" if taken else prefix


def with_component(name: str, components: Mapping[str, str]) -> str:
    """The name of a param whose component may have been renamed. components (Mapping[str, str]): New names by old
    ones.
    """
    component, slash, rest = name.partition("/")
    return components.get(component, component) + slash + rest


def all_names(nlp: Language) -> list[str]:
    """The names of all params of a pipeline, including disabled and frozen components."""
    return [found.name for name, model in components_with_model(nlp) for found in walk(model, name)]


def trainable_components(nlp: Language, exclude: Collection[str] = ()) -> list[tuple[str, Model[Any, Any]]]:
    """Name and model of each component that is trained: not excluded, not disabled, trainable, with a thinc model."""
    trained = {
        id(proc.model)  # type: ignore[attr-defined]
        for name, proc in nlp.pipeline
        if name not in exclude
        and getattr(proc, "is_trainable", False)
        and isinstance(getattr(proc, "model", None), Model)
    }
    return [(name, model) for name, model in components_with_model(nlp) if id(model) in trained]


def components_to_train(nlp: Language, exclude: Collection[str]) -> list[tuple[str, Model[Any, Any]]]:
    """As `trainable_components`.

    RAISES (PipelineError): None is left, or one was not initialized.
    """
    components = trainable_components(nlp, exclude)
    if not components:
        raise PipelineError(
            f"Can't train the pipeline {nlp.pipe_names}: expected at least one trainable component, found none that "
            f"is not frozen, {list(exclude)}. Add one to [nlp] pipeline, or take one out of [training] "
            "frozen_components."
        )
    for name, model in components:
        declared = [node.has_param(param) for node in model.walk() for param in node.param_names]
        if declared and not any(declared) and not any(node.shims for node in model.walk()):
            raise PipelineError(
                f"Can't train component '{unescape(name)}': expected an initialized model, found {len(declared)} "
                "params, none with a value. Call nlp.initialize() before the optimizer is used."
            )
    return components


def components_with_model(nlp: Language) -> list[tuple[str, Model[Any, Any]]]:
    """Each component with a thinc model, including disabled ones, by its escaped name, as in names of params."""
    named = [(escape(name), getattr(proc, "model", None)) for name, proc in nlp.components]
    return [(name, model) for name, model in named if isinstance(model, Model)]
