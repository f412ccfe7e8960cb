"""The pipeline of an optimizer, its components and their models."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator

from spacy.language import Language
from thinc.api import Model, Shim

from ..errors import PipelineError
from .names import NamedParam, shim_paths, walk
from .spelling import escape


class KnownPipeline:
    """The pipeline of an optimizer, if it has one. It is not kept alive.

    Public: `was_told` (whether there ever was one).
    """

    def __init__(self) -> None:
        self.was_told = False
        self._nlp: Callable[[], Language | None] = lambda: None
        self._exclude: Collection[str] = ()

    def tell(self, nlp: Language, exclude: Collection[str]) -> None:
        """Set the pipeline. exclude (Collection[str]): Components that are not trained."""
        self._nlp, self.was_told = weakref.ref(nlp), True
        self._exclude = tuple(exclude)

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
        return nlp, self._exclude

    @property
    def components(self) -> list[tuple[str, Model]]:
        """See `components_with_model`. Empty without a pipeline."""
        nlp = self._nlp()
        return [] if nlp is None else components_with_model(nlp)

    def shim_paths(self, exclude: Collection[str] = ()) -> Iterator[tuple[str, Shim]]:
        """Every shim of the pipeline with its lasting path. exclude (Collection[str]): Components to leave out."""
        left_out = {escape(name) for name in exclude}
        for name, model in self.components:
            if name not in left_out:
                yield from shim_paths(model, name)

    def walk(self) -> list[NamedParam]:
        """All params of the pipeline, including disabled components."""
        return [found for name, model in self.components for found in walk(model, name)]


def all_names(nlp: Language) -> list[str]:
    """The names of all params of a pipeline, including disabled and frozen components."""
    return [found.name for name, model in components_with_model(nlp) for found in walk(model, name)]


def trainable_components(nlp: Language, exclude: Collection[str] = ()) -> list[tuple[str, Model]]:
    """Name and model of each component that is trained: not excluded, not disabled, trainable, with a thinc model."""
    trained = {
        id(proc.model)  # type: ignore[attr-defined]
        for name, proc in nlp.pipeline
        if name not in exclude
        and getattr(proc, "is_trainable", False)
        and isinstance(getattr(proc, "model", None), Model)
    }
    return [(name, model) for name, model in components_with_model(nlp) if id(model) in trained]


def components_to_train(nlp: Language, exclude: Collection[str]) -> list[tuple[str, Model]]:
    """As `trainable_components`.

    RAISES (PipelineError): None is left, or one was not initialized.
    """
    components = trainable_components(nlp, exclude)
    if not components:
        raise PipelineError(
            f"Can't train the pipeline {nlp.pipe_names}: expected at least one trainable component, found none beside "
            f"the excluded ones, {list(exclude)}. Add one to [nlp] pipeline, or take it out of [training] "
            "frozen_components."
        )
    for name, model in components:
        declared = [node.has_param(param) for node in model.walk() for param in node.param_names]
        if declared and not any(declared) and not any(node.shims for node in model.walk()):
            raise PipelineError(
                f"Can't train component '{name}': expected an initialized model, found {len(declared)} params, none "
                "with a value. Call nlp.initialize() before the optimizer is used."
            )
    return components


def components_with_model(nlp: Language) -> list[tuple[str, Model]]:
    """Each component with a thinc model, including disabled ones, by its escaped name, as in names of params."""
    named = [(escape(name), getattr(proc, "model", None)) for name, proc in nlp.components]
    return [(name, model) for name, model in named if isinstance(model, Model)]
