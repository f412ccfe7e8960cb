"""Where params are found: the components of a pipeline and their models."""

from __future__ import annotations

from collections.abc import Collection

from spacy.language import Language
from thinc.api import Model

from ..errors import PipelineError
from .names import walk
from .spelling import escape


def all_names(nlp: Language) -> list[str]:
    """The names of all params of a pipeline, also of what is disabled or not trained."""
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

    RAISES (PipelineError): There is none, or one was not initialized.
    """
    components = trainable_components(nlp, exclude)
    if not components:
        raise PipelineError(
            f"Can't train the pipeline {nlp.pipe_names}: expected at least one trainable component, found none that is "
            f"not excluded ({list(exclude)}). Add one to [nlp] pipeline, or take it out of [training] "
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
    """Each component that has a thinc model, disabled ones too, by its name as it stands in names of params:
    escaped.
    """
    named = [(escape(name), getattr(proc, "model", None)) for name, proc in nlp.components]
    return [(name, model) for name, model in named if isinstance(model, Model)]
