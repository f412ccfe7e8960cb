"""What texts have is counted as it was written, and what can't be learned is said."""

from collections import Counter

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.vocab import Vocab

from thinc_torchopt.core.annotations import LEARNS_FROM, Annotations, annotations_of, survey

WORDS = ["Ada", "went", "home", "."]


def stored(*docs):
    """Texts as they come out of a file."""
    return [*DocBin(docs=docs).get_docs(Vocab())]


def text(**annotations):
    cats, spans = annotations.pop("cats", {}), annotations.pop("spans", {})
    doc = Doc(Vocab(), words=WORDS, **annotations)
    doc.cats = cats
    for key, places in spans.items():
        doc.spans[key] = [Span(doc, begin, end, label=label) for begin, end, label in places]
    return doc


def test_survey_of_plain_texts():
    """Neither the tokenizer nor the file annotates anything."""
    found = survey(stored(spacy.blank("en")("Ada went home."), text()))
    assert found == Annotations(texts=2, words=8)
    for factory in LEARNS_FROM:
        assert found.fault(factory).startswith(f"none of the 2 texts has {annotations_of(factory, 'sc')}")
    assert found.fault("of_others") == ""


def test_survey_counts_each_kind():
    doc = text(
        tags=["NNP", "VBD", "RB", "."],
        pos=["PROPN", "VERB", "ADV", "PUNCT"],
        morphs=["", "Tense=Past", "", ""],
        lemmas=["Ada", "go", "home", "."],
        heads=[1, 1, 1, 1],
        deps=["nsubj", "ROOT", "advmod", "punct"],
        ents=["B-PERSON", "O", "O", "O"],
        cats={"A": 1.0, "B": 0.0},
        spans={"sc": [(0, 1, "X"), (0, 3, "Y")], "other": []},
    )
    found = survey(stored(doc, text()))
    assert {kind: (found.kinds[kind].texts, dict(found.kinds[kind].labels)) for kind in found.kinds} == {
        "tags": (1, {"NNP": 1, "VBD": 1, "RB": 1, ".": 1}),
        "morphology": (1, {"PROPN _": 1, "VERB Tense=Past": 1, "ADV _": 1, "PUNCT _": 1}),
        "lemmas": (1, {"=": 3, "went>go": 1}),
        "trees": (1, {"nsubj": 1, "ROOT": 1, "advmod": 1, "punct": 1}),
        "sentences": (1, {}),
        "entities": (1, {"PERSON": 1}),
        "links": (0, {}),
        "categories": (1, {"A": 1}),
    }
    assert {key: dict(of_key.labels) for key, of_key in found.spans.items()} == {"sc": {"X": 1, "Y": 1}, "other": {}}
    assert found.span_lengths["sc"] == Counter({1: 1, 3: 1}) and found.categories.are_exclusive
    assert survey([Example(text(), doc)]) == survey([doc])


@pytest.mark.parametrize(
    ("factory", "docs", "fault"),
    [
        ("ner", [{"ents": ["O"] * 4}], "annotated as having no entities"),
        ("tagger", [{"tags": ["X"] * 4}], "all tags are alike, 'X'"),
        ("trainable_lemmatizer", [{"lemmas": ["Ada", "go", "", ""]}], "no change from word to lemma occurs 3 times"),
        ("senter", [{"sent_starts": [True, False, False, False]}], "annotated as having no sentence boundaries"),
        ("textcat", [{"cats": {"A": 1.0}}, {"cats": {"A": 0.0}}], "there is one category"),
        ("textcat", [{"cats": {"A": 1.0, "B": 0.0}}] * 2, "no two texts have different categories"),
        ("textcat", [{"cats": {"A": 1.0, "B": 1.0}}], "1 of 1 texts have several categories"),
        ("textcat_multilabel", [{"cats": {"A": 1.0}}, {"cats": {"B": 1.0}}], "give these the value 0"),
        ("textcat_multilabel", [{"cats": {"A": 0.0}}], "no text has any of the categories"),
        ("spancat", [{"spans": {"mine": [(0, 1, "X")]}}], "none of the 1 texts has spans under the key 'sc'"),
        ("ner", [{"ents": ["B-X", "O", "O", "O"]}, {}], ""),
        ("textcat", [{"cats": {"A": 1.0}}, {"cats": {"B": 1.0}}], ""),
        ("textcat_multilabel", [{"cats": {"A": 1.0, "B": 0.0}}, {}], ""),
        ("senter", [{"sent_starts": [True, False, True, False]}], ""),
    ],
)
def test_survey_says_what_can_not_be_learned(factory, docs, fault):
    found = survey(stored(*(text(**doc) for doc in docs))).fault(factory)
    assert fault in found and bool(fault) == bool(found)
