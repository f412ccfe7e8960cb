"""The kinds of components that learn: one class for each, and nobody else asks for a factory's name.

A kind knows what its components learn from, such as entities, which labels that has, how a teacher fills it in, and the
words for messages. A text *has* it if somebody annotated it, even as having none: entities are missing in a text with
no word on them, and not in one whose tokens are all outside of entities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spacy.language import Language

from .categories import Categories, OneCategory
from .kind import Kind, Rule
from .spans import BareSpans, Entities, Links, OfSpans, Spans, SpansOfOneLabel
from .survey import Annotations, Tally, survey
from .words import LEAST_ACTIONS, LEAST_CHANGES, Lemmas, Morphology, Sentences, Tags, Trees

# A teacher fills in trees before sentence boundaries, which follow from them.
KINDS: Final[tuple[type[Kind], ...]] = (
    *(Trees, Sentences, Tags, Morphology, Lemmas),
    *(Entities, Links, Spans, SpansOfOneLabel, BareSpans),
    *(OneCategory, Categories),
)
_BY_FACTORY: Final = {factory: kind for kind in KINDS for factory in kind.factories}


def kind_of(factory: str, settings: Mapping[str, Any] | None = None) -> Kind:
    """The kind of component that a factory makes.

    settings (Mapping): Those of the component, as the config has them.
    """
    return _BY_FACTORY.get(factory, Kind)(factory, settings)


def kind_in(nlp: Language, name: str) -> Kind:
    """The kind of a component of a pipeline."""
    settings = nlp.get_pipe_config(name)
    if "${" in str(settings):  # it refers to other settings
        settings = nlp.config.interpolate()["components"][name]
    return kind_of(nlp.get_pipe_meta(name).factory, settings)
