"""Labels that texts teach a pipeline to forget: told where they are missing, and nowhere else."""

import random
from collections import Counter

import numpy
import pytest
import spacy
import torch
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import fix_random_seed

from thinc_torchopt.loop import label_conflicts
from thinc_torchopt.loop.data_check import Corpus
from thinc_torchopt.loop.label_conflicts import Comparison, compare, doubts_of_labels

from ..models import pipeline_params, same, toy_pipeline

NAMES, CITIES = ["Anna", "Ben", "Cleo", "Dina", "Ed"], ["Oslo", "Rome", "Cairo", "Lima", "Paris"]


def text(vocab, i, labels=("PERSON", "CITY"), kind="entities"):
    """A sentence with a name and a city, annotated for some labels."""
    doc = Doc(vocab, words=[NAMES[i % 5], "saw", CITIES[i // 5 % 5], "again", "."])
    spans = [Span(doc, at, at + 1, label=label) for at, label in ((0, "PERSON"), (2, "CITY")) if label in labels]
    if kind == "entities":
        doc.set_ents(spans, default="outside")
    else:
        doc.spans["sc"] = spans
    doc.cats = {label: float(label in labels) for label in ("PERSON", "CITY")}
    return doc


def corpus(nlp, labels=("PERSON", "CITY"), n=40, change=lambda doc: None, kind="entities"):
    docs = [text(nlp.vocab, i, labels, kind) for i in range(n)]
    for doc in docs:
        change(doc)
    return Corpus("corpora.train", [Example(nlp.make_doc(doc.text), doc) for doc in docs])


def trained(component, shared=False):
    """A pipeline that finds both labels."""
    fix_random_seed(0)
    nlp = toy_pipeline([component], shared=shared)
    kind = "spans" if component == "spancat" else "entities"
    examples = corpus(nlp, n=25, kind=kind).examples[::6]  # each name and each city once
    if component == "textcat_multilabel":
        other = Doc(nlp.vocab, ["nobody", "here"])
        other.cats = {"PERSON": 0.0, "CITY": 0.0}
        examples.append(Example(other, other))
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(60):
        nlp.update(examples, sgd=optimizer)
    return nlp


@pytest.fixture(scope="module")
def ner():
    return trained("ner", shared=True)


def doubts(nlp, train, *, frozen=(), sourced=None, annotating=(), **reader):
    config = {
        "training": {"frozen_components": list(frozen), "annotating_components": list(annotating)},
        "corpora": {"train": reader},
    }
    return list(doubts_of_labels(nlp, config, train, nlp.pipe_names if sourced is None else sourced))


# ---------------------------------------------------------------------- what the pipeline finds


@pytest.mark.parametrize("component", ["ner", "spancat", "textcat_multilabel"])
def test_label_conflicts_tells_of_labels_that_are_missing(component):
    nlp = trained(component)
    kind = "spans" if component == "spancat" else "entities"
    [told] = doubts(nlp, corpus(nlp, ["CITY"], kind=kind))
    assert f"'{component}' (trained before): the 40 texts in [corpora.train] have no PERSON, where the pipeline" in told
    such = "'Anna'" if component != "textcat_multilabel" else "'Anna saw Oslo again . '"
    assert f"finds 40 PERSON, such as {such}: they will teach it that there is none" in told and "init --from" in told
    assert not doubts(nlp, corpus(nlp, kind=kind))


def test_label_conflicts_are_only_what_is_taught(ner):
    """Tokens without annotation, and other entities in the place, teach nothing of a label."""

    def cleared(doc):
        doc.set_ents([], missing=[doc[0:1]], default="outside")

    def renamed(doc):
        doc.set_ents([Span(doc, 0, 1, label="HUMAN"), Span(doc, 2, 3, label="CITY")], default="outside")

    bare = Corpus("corpora.train", [Example(ner.make_doc(doc.text), Doc(ner.vocab, [t.text for t in doc])) for doc in
                                    (text(ner.vocab, i) for i in range(20))])  # fmt: skip
    assert not doubts(ner, bare)
    assert not [one for one in doubts(ner, corpus(ner, change=cleared)) if "PERSON" in one]
    assert not doubts(ner, corpus(ner, change=renamed))


def test_label_conflicts_next_to_never_is_missing_too(ner):
    train = corpus(ner, ["CITY"], n=60)
    train.examples[7] = corpus(ner).examples[7]
    [told] = doubts(ner, train)
    assert "have next to no PERSON" in told
    # Four times may be chance.
    assert [bool(doubts(ner, corpus(ner, ["CITY"], n=n))) for n in (4, 5)] == [False, True]


@pytest.mark.parametrize(("found", "there", "is_missing"), [(19, 2, False), (20, 2, True), (5, 0, True), (4, 0, False)])
def test_label_conflicts_are_found_twenty_times_as_often(ner, found, there, is_missing):
    """As the texts that were looked at have it, which are half of all."""
    one = Comparison(ner, ["ner"], 10, 20, {"ner": Counter(PERSON=found)}, {"ner": Counter(PERSON=there)})
    assert one.missing == ({"ner": Counter(PERSON=found)} if is_missing else {})
    one.example["ner", "PERSON"] = "x" * 41
    assert f"finds {found} PERSON in 10 of them, such as {'x' * 40!r}: t" in one.tell("ner", one.found["ner"], "")


def test_label_conflicts_are_not_of_what_others_find():
    """An entity ruler writes to the same place, and forgets nothing."""
    nlp = trained("ner")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "VERB", "pattern": "saw"}])
    train = corpus(nlp, ["CITY"])
    found = compare(nlp, ["ner"], train.examples, needs=nlp.pipe_names)
    assert found.missing == {"ner": {"PERSON": 40}}


def test_label_conflicts_is_silent_of_what_is_not_trained_or_declared(ner):
    train = corpus(ner, ["CITY"])
    assert doubts(ner, train) and doubts(ner, train, frozen=["tok2vec"])
    assert not doubts(ner, train, frozen=["ner"])
    assert not doubts(ner, train, frozen=["ner"], annotating=["ner"])
    assert not doubts(ner, train, sourced=[])
    # What it listens to is new, so its predictions say nothing.
    assert not doubts(ner, train, sourced=["ner"])
    assert not doubts(ner, train, complete=["PERSON"])
    assert not doubts(ner, train, corpus={"complete": ["PERSON", "X"]})
    assert doubts(ner, train, complete=["X"])
    for complete in (True, ["PERSON"]):  # by each text itself
        for example in train.examples:
            example.reference.user_data["complete"] = complete
        assert not doubts(ner, train) and not compare(ner, ["ner"], train.examples).missing


def test_label_conflicts_changes_nothing(ner):
    """Neither texts, nor weights, nor what the next update makes of them."""
    train = corpus(ner, ["CITY"])
    before = pipeline_params(ner)
    docs = [(one.predicted.to_bytes(), one.reference.to_bytes()) for one in train.examples]
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    drawn = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert doubts(ner, train)
    assert (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == drawn
    after = pipeline_params(ner)
    assert all(same(before[name], after[name]) for name in before)
    assert [(one.predicted.to_bytes(), one.reference.to_bytes()) for one in train.examples] == docs


def test_label_conflicts_looks_at_some_texts_from_all_parts(ner, monkeypatch):
    """At most 200 texts, and no longer than the time allows; the annotations of all are counted."""
    examples = (corpus(ner, n=25).examples * 9)[:201]
    found = compare(ner, ["ner"], examples)
    assert found.predicted == 101 and found.texts == 201
    assert found.there["ner"] == Counter(PERSON=201, CITY=201)
    monkeypatch.setattr(label_conflicts, "MOST_SECONDS", 0.0)
    found = compare(ner, ["ner"], examples)
    assert found.predicted == 20 and found.texts == 201 and found.there["ner"] == Counter(PERSON=201, CITY=201)


def test_label_conflicts_of_other_tokens(ner):
    """The texts' tokens are not those of the pipeline."""
    docs = [Doc(ner.vocab, ["An", "na", "saw", "Oslo."], spaces=[False, True, True, False]) for _ in range(10)]
    for doc in docs:
        doc.set_ents([], default="outside")
    comparison = Comparison(ner, ["ner"])
    comparison.predict([Example(ner.make_doc(doc.text), doc) for doc in docs])
    assert comparison.found["ner"]["PERSON"] == 10


def test_label_conflicts_exclusive_categories_leave_nothing_open():
    fix_random_seed(0)
    nlp = spacy.blank("xx")
    nlp.add_pipe("textcat")

    def with_cats(doc):
        doc.cats = {"A": 1.0, "B": 0.0}

    examples = corpus(nlp, change=with_cats).examples
    nlp.initialize(lambda: examples)
    assert not doubts(nlp, corpus(nlp, change=with_cats))
