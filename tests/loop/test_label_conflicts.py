"""Labels that texts teach a pipeline to forget: told where they are missing, and nowhere else."""

import random
from collections import Counter
from fractions import Fraction
from math import comb

import numpy
import pytest
import spacy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from thinc.api import fix_random_seed

from thinc_torchopt.loop import label_conflicts
from thinc_torchopt.loop.data_check import Corpus
from thinc_torchopt.loop.label_conflicts import MOST_TEXTS, Comparison, compare, doubts_of_labels

from ..conftest import SHARED
from ..models import LISTENER, TOK2VEC, pipeline_params, same

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
    nlp = spacy.blank("xx")
    kind = "spans" if component == "spancat" else "entities"
    model = {"tok2vec": LISTENER if shared else TOK2VEC}
    if shared:
        nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    if component == "textcat_multilabel":
        model["linear_model"] = {"length": 4096}
    nlp.add_pipe(component, config={"model": model})
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
    assert "finds 40: they will teach it that there is none" in told and "init --from" in told
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
    few = corpus(ner, ["CITY"], n=4)  # may be chance
    assert not doubts(ner, few)


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
        assert not doubts(ner, train)


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
    examples = corpus(ner, n=25).examples * 20
    found = compare(ner, ["ner"], examples)
    assert 100 < found.predicted <= MOST_TEXTS and found.texts == 500
    assert found.there["ner"] == Counter(PERSON=500, CITY=500)
    monkeypatch.setattr(label_conflicts, "MOST_SECONDS", 0.0)
    found = compare(ner, ["ner"], examples)
    assert found.predicted == 20 and found.texts == 500 and found.there["ner"] == Counter(PERSON=500, CITY=500)


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


# ---------------------------------------------------------------------- parts of one corpus


def blank(component="ner"):
    nlp = spacy.blank("xx")
    nlp.add_pipe(component)
    return nlp


@pytest.mark.parametrize("kind", ["entities", "spans"])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_label_conflicts_tells_of_parts_of_a_corpus(kind, is_shuffled):
    nlp = blank("ner" if kind == "entities" else "spancat")
    one, other = (corpus(nlp, [label], n=60, kind=kind).examples for label in ("PERSON", "CITY"))
    examples = one + other
    if is_shuffled:
        random.Random(0).shuffle(examples)
    [told] = doubts(nlp, Corpus("corpora.train", examples), sourced=[])
    assert "parts of [corpora.train] seem to be annotated for different labels" in told
    assert "60 texts have " in told and "and 60 others" in told and "init --from" in told
    assert not doubts(nlp, Corpus("corpora.train", corpus(nlp, n=120, kind=kind).examples), sourced=[])
    assert not doubts(nlp, Corpus("corpora.train", examples), sourced=[], frozen=nlp.pipe_names)
    assert not doubts(nlp, Corpus("corpora.train", examples), sourced=[], complete=["PERSON", "CITY"])


def test_label_conflicts_topics_are_no_parts():
    """Labels that are never together, as their words are not."""
    nlp = blank()
    docs = []
    for i in range(200):
        words, label = ((["play", NAMES[i % 5]], "ARTIST"), (["weather", "in", CITIES[i % 5]], "PLACE"))[i % 2]
        doc = Doc(nlp.vocab, words)
        doc.set_ents([Span(doc, len(words) - 1, len(words), label=label)], default="outside")
        docs.append(doc)
    train = Corpus("corpora.train", [Example(nlp.make_doc(doc.text), doc) for doc in docs])
    assert not doubts(nlp, train, sourced=[])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 300),
    rates=st.lists(st.floats(0.02, 0.9), min_size=2, max_size=6),
    recall=st.floats(0.6, 1.0),
)
def test_label_conflicts_is_silent_for_random_corpora(seed, n, rates, recall):
    """Labels drawn for each text by themselves, with words of their own, some of them overlooked."""
    rng, nlp = random.Random(seed), blank()
    examples = []
    for _ in range(n):
        words, marked = [], []
        for label, rate in enumerate(rates):
            if rng.random() < rate:
                words.append(f"{label}-{rng.randrange(8)}")
                marked.append(f"L{label}" if rng.random() < recall else None)
        words.append(".")
        doc = Doc(nlp.vocab, words)
        doc.set_ents([Span(doc, i, i + 1, label=label) for i, label in enumerate(marked) if label], default="outside")
        examples.append(Example(doc, doc))
    assert not doubts(nlp, Corpus("corpora.train", examples), sourced=[])


@given(n=st.integers(1, 40), data=st.data())
def test_label_conflicts_chance_is_that_of_the_hypergeometric_distribution(n, data):
    """Against exact fractions, to the rounding of lgamma."""
    a, b = (data.draw(st.integers(0, n)) for _ in range(2))
    both = data.draw(st.integers(0, min(a, b)))
    exact = sum(
        Fraction(comb(a, k) * comb(n - a, b - k), comb(n, b)) for k in range(both + 1) if b - k <= n - a
    )  # fmt: skip
    assert label_conflicts._at_most(both, a, b, n) == pytest.approx(float(exact), rel=1e-9, abs=1e-12)


# ---------------------------------------------------------------------- corpora

DATA = SHARED / "data"


def of_corpus(nlp, name, most=400):
    docs = DocBin().from_disk(DATA / f"{name}.spacy").get_docs(nlp.vocab)
    return [doc for _, doc in zip(range(most), docs)]


def by_tags(nlp, docs, labels):
    """Pieces of three sentences, with some tags as entities."""
    found = []
    for doc in docs:
        sentences = [*doc.sents]
        for i in range(0, len(sentences), 3):
            part = sentences[i : i + 3]
            tokens = [*doc[part[0].start : part[-1].end]]
            piece = Doc(nlp.vocab, [token.text for token in tokens])
            spans = [Span(piece, i, i + 1, label=token.tag_) for i, token in enumerate(tokens) if token.tag_ in labels]
            piece.set_ents(spans, default="outside")
            found.append(Example(piece, piece))
    return found


@pytest.mark.skipif(not DATA.exists(), reason="no shared corpora")
def test_label_conflicts_gives_no_false_alarm_on_real_corpora():
    for component, name in (
        ("ner", "food-train"),
        ("ner", "fashion-brands-train"),
        ("textcat_multilabel", "cooking-train"),
    ):
        nlp = blank(component)
        examples = [Example(doc, doc) for doc in of_corpus(nlp, name)]
        assert not doubts(nlp, Corpus("corpora.train", examples), sourced=[]), name
    nlp = blank()
    docs = of_corpus(nlp, "ud-english-ewt-train")[::4]
    tags = {token.tag_ for doc in docs for token in doc}
    assert not doubts(nlp, Corpus("corpora.train", by_tags(nlp, docs, tags)), sourced=[])
    parts = by_tags(nlp, docs[:50], {"NNP", "CD"}) + by_tags(nlp, docs[50:], {"JJ"})
    random.Random(0).shuffle(parts)
    [told] = doubts(nlp, Corpus("corpora.train", parts), sourced=[])
    assert "have JJ" in told and "CD or NNP" in told
