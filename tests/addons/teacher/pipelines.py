"""A small pipeline, and texts for it."""

import spacy
from spacy.tokens import Doc, Span

from ...models import TOK2VEC


def small_pipeline(components=("tagger", "ner")):
    """Not initialized. Each component has a tok2vec of its own."""
    nlp = spacy.blank("xx")
    for name in components:
        model = {"model": {"tok2vec": TOK2VEC}} if name in ("ner", "tagger") else {}
        nlp.add_pipe(name, config=model)
    return nlp


def without(doc):
    """A text of `toy_examples` with only its colors as entities, and without the tags of verbs."""
    found = Doc(
        doc.vocab,
        words=[token.text for token in doc],
        tags=["" if token.tag_ == "VBZ" else token.tag_ for token in doc],
    )
    found.set_ents([Span(found, i, i + 1, "COLOR") for i, word in enumerate(doc) if word.text in ("red", "blue")])
    return found
