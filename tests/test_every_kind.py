"""Every kind of component there is: it finds in texts what spaCy learns from, and a teacher fills in just that."""

import json
import math
from collections import Counter

import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.util import registry
from spacy.vocab import Vocab

from thinc_torchopt.core.kinds import KINDS, Annotations, Kind, Rule, Tally, kind_in, kind_of, survey
from thinc_torchopt.loop.filling import Filled, fill, fits, predicted_in

WORDS = ["Ada", "went", "home", "."]
# By the keys of Example.from_dict, for a text with two sentences.
ANNOTATIONS = {
    "tags": ["NNP", "VBD", "RB", "."],
    "pos": ["PROPN", "VERB", "ADV", "PUNCT"],
    "morphs": ["", "Tense=Past", "", ""],
    "lemmas": ["Ada", "go", "home", "."],
    "heads": [1, 1, 2, 2],
    "deps": ["nsubj", "ROOT", "ROOT", "punct"],
    "sent_starts": [1, -1, 1, -1],
    "entities": [(0, 3, "PERSON")],
    "links": {(0, 3): {"Q7259": 1.0}},
    "cats": {"A": 1.0, "B": 0.0},
    "spans": {"sc": [(0, 3, "X"), (0, 8, "Y")]},
}
FACTORIES = [factory for kind in KINDS for factory in kind.factories]
FILLED = [factory for factory in FACTORIES if kind_of(factory).is_filled]


def text(*keys):
    """A text with annotations under some keys."""
    nlp = spacy.blank("xx")
    needed = {"links": "entities"}
    keys = {*keys, *(needed[key] for key in keys if key in needed)}
    return Example.from_dict(Doc(nlp.vocab, WORDS), {key: ANNOTATIONS[key] for key in keys}).reference


def rule_of(factory, **more):
    return Rule(factory, kind_of(factory), factory, kind_of(factory), **more)


def stored(*docs):
    """Texts as they come out of a file."""
    return [*DocBin(docs=docs).get_docs(Vocab())]


def test_every_trainable_factory_of_spacy_is_of_a_kind():
    nlp = spacy.blank("en")
    for name, function in registry.factories.get_all().items():
        # Of all languages. Others need settings.
        if "." not in name and function.__module__.startswith("spacy.") and name not in ("nn_labeller", "lemmatizer"):
            is_trainable = callable(getattr(nlp.create_pipe(name), "get_loss", None))
            assert (name in FACTORIES) is (is_trainable and name != "tok2vec"), name


def test_every_kind_has_its_traits():
    of_words, trees = ["senter", "tagger", "morphologizer", "trainable_lemmatizer"], ["parser", "beam_parser"]
    forgetting = ["ner", "beam_ner", "spancat", "spancat_singlelabel", "textcat_multilabel"]
    traits = {
        "is_filled": [*of_words, *trees, *forgetting, "span_finder", "textcat"],
        "has_labels": ["tagger", "morphologizer", *trees, *forgetting, "textcat"],
        "fills_labels": ["tagger", "morphologizer", *forgetting, "textcat"],
        "is_of_each_word": [*of_words, *trees],
        "is_nothing_without": ["spancat", "spancat_singlelabel", "span_finder", "textcat"],
        "can_forget": forgetting,
    }
    for trait, factories in traits.items():
        assert {name for name in FACTORIES if getattr(kind_of(name), trait)} == set(factories), trait


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_kind_has_what_is_under_its_keys(factory):
    kind = kind_of(factory)
    others = [key for key in ANNOTATIONS if key not in kind.keys]
    if kind.name in ("sentences", "links", "entities"):  # trees have sentences, links have entities
        others = [key for key in others if key not in ("heads", "deps", "links")]
    has, lacks = stored(text(*kind.keys), text(*others))
    assert kind.has(has) and not kind.has(lacks) and not kind.has(Doc(Vocab(), WORDS))
    found = survey([has, lacks, Doc(has.vocab, WORDS)])
    assert (found.of(kind).texts, found.of(kind).words, found.texts, found.words) == (1, 4, 3, 12)
    assert kind.has_some(found.of(kind)) and not kind.has_some(survey([lacks]).of(kind))
    assert survey([Example(lacks, has)]) == survey([has])


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_kind_says_that_it_has_nothing_to_learn(factory):
    """Neither the tokenizer nor the file annotates anything."""
    docs = stored(spacy.blank("en")("Ada went home."), text())
    kind, found = kind_of(factory), survey(docs)
    assert found == Annotations(texts=2, words=8)
    assert found.fault(kind) == f"none of the 2 texts has {kind.in_words}" and kind.in_words
    assert kind.needs("x") and not any(kind.labels_in(docs) or ())


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_kind_of_annotation_tells_a_text_that_stands_there_again(factory):
    keys = kind_of(factory).keys
    docs = stored(text(*keys), text(*keys), text(*["entities"] * ("links" in keys)))  # entities without links
    found = survey([docs[0], *docs])
    assert found.repeated.counts == {Annotations.TWICE: 2, Annotations.DIFFERENT: 1}
    assert found.repeated.examples[Annotations.TWICE] == [repr(docs[0].text)] * 2
    assert survey(docs[1:]).repeated.counts == {Annotations.DIFFERENT: 1} and not survey(docs[:1]).repeated.counts
    assert not survey([Doc(Vocab(), [" "])] * 2).repeated.counts


@pytest.mark.parametrize("factory", [factory for factory in FACTORIES if kind_of(factory).has_labels])
def test_every_kind_counts_its_labels_in_words(factory):
    """Annotations, and texts that have them. Of 7 or more labels, those of words are cut after five."""
    kind, docs = kind_of(factory), stored(*(text(*kind_of(factory).keys) for _ in range(3)))
    found = survey([*docs, text()])
    labels = Counter(label for doc in docs for label in kind.in_text(doc) if label)
    assert found.of(kind).labels == labels and set(found.of(kind).in_texts.values()) <= {0, 3}
    [line] = [line for line in found.lines() if line.startswith(f"{kind.in_words[0].upper()}{kind.in_words[1:]}: ")]
    assert all(f"{label} {n}" in line for label, n in labels.most_common(5))


@pytest.mark.parametrize("factory", [factory for factory in FACTORIES if kind_of(factory).has_labels])
def test_every_kind_finds_the_labels_that_spacy_does(factory):
    """As spaCy initializes a component with them."""
    nlp = spacy.blank("xx")
    config = {"min_action_freq": 1} if "parser" in factory else {}
    pipe = nlp.add_pipe(factory, config=config)
    example = Example.from_dict(nlp.make_doc("Ada went home ."), {key: ANNOTATIONS[key] for key in ANNOTATIONS})
    nlp.initialize(lambda: [example] * 40)
    found = kind_in(nlp, factory).labels_in([example.reference])
    extra = {"dep", "_"} if factory in ("parser", "beam_parser", "morphologizer") else set()
    assert set(pipe.labels) - extra == set(found)


@pytest.mark.parametrize("factory", FILLED)
def test_every_kind_is_filled_in_where_it_is_open(factory):
    """By a teacher that knows all, in a text without annotations; not in one with all, nor in an empty one."""
    kind, counted = kind_of(factory), Filled()
    said, bare = text(*kind.keys), text()
    assert kind.has_open(bare, ["A"]) or kind.can_forget or not kind.has_labels
    doc = fill(bare, said, [rule_of(factory, own=frozenset("AB"), taught=frozenset("AB"))], counted)
    assert kind.read(doc) == kind.read(said) and not kind.has(bare)
    assert counted.labels[factory].total() == len(kind.in_text(said))
    assert not kind.has_open(doc, ["A", "B"])
    again = Filled()
    assert kind.read(fill(doc, said, [rule_of(factory)], again)) == kind.read(said)
    assert not again.labels[factory].total() and not again.conflicts[factory].total()
    assert (again.texts, again.complete) == (1, kind.name not in ("entities", "spans"))  # there may be others
    empty = Doc(said.vocab, [])
    assert fill(empty, empty, [rule_of(factory)]) is empty


@pytest.mark.parametrize("factory", FILLED)
def test_every_kind_has_predictions_of_one_form(factory):
    """What a pipeline predicts fits; not for a text with fewer tokens, nor with a value of another form in it."""
    kind, rules = kind_of(factory), [rule_of(factory)]
    doc = text(*kind.keys)
    if kind.name in ("entities", "spans"):
        doc.set_ents([Span(doc, 0, 4, "A")])
        doc.spans["sc"] = [Span(doc, 0, 4, "A")]
    said = json.loads(json.dumps(predicted_in(doc, rules)))
    assert fits(said, 4, rules) and fits(predicted_in(doc, rules), 4, rules)
    assert not any(fits(bad, 4, rules) for bad in ({}, {kind.place: 3}, {kind.place: None}))
    if kind.name == "categories":
        assert not any(fits({kind.place: {"A": bad}}, 4, rules) for bad in (math.nan, "x"))
        return
    assert not fits(said, 3, rules)
    for bad in (None, "x", [], 9, [1, 1, "A"], [-1, 1, "A"], [-1, "A"], ["A", 3]):
        if bad != "x" or kind.name not in ("tags", "lemmas"):
            assert not fits({kind.place: [*said[kind.place][:-1], bad]}, 4, rules), bad


def test_nothing_is_known_of_other_factories():
    kind, found = kind_of("of_others"), survey([text(*ANNOTATIONS)])
    assert type(kind) is Kind and not kind.is_known and kind.in_words == found.fault(kind) == ""
    assert kind.labels_in([text(*ANNOTATIONS)]) is None and not found.of(kind).texts and not kind.is_filled
    assert kind.needs("x").startswith("Its factory is 'of_others'")


def test_kinds_have_the_settings_of_their_components():
    nlp = spacy.blank("xx")
    for factory in ("spancat", "span_finder"):
        nlp.add_pipe(factory, config={"spans_key": "own"})
        assert (kind_in(nlp, factory).place, kind_of(factory).place) == ("spans/own", "spans/sc")
    for threshold, expected in ((0.0, 0.0), (None, 0.5), (0.7, 0.7)):
        assert kind_of("textcat_multilabel", {"threshold": threshold}).threshold == expected


def test_survey_counts_labels():
    [doc] = stored(text(*ANNOTATIONS))
    doc.spans["other"] = []
    found = survey([doc])
    assert {place: dict(of.labels) for place, of in found.places.items()} == {
        "tags": {"NNP": 1, "VBD": 1, "RB": 1, ".": 1},
        "morphology": {"POS=PROPN": 1, "POS=VERB|Tense=Past": 1, "POS=ADV": 1, "POS=PUNCT": 1},
        "lemmas": {"=": 3, "went>go": 1},
        "trees": {"nsubj": 1, "ROOT": 2, "punct": 1},
        "sentences": {"start": 1},
        "entities": {"PERSON": 1},
        "links": {"Q7259": 1},
        "categories": {"A": 1},
        "spans/sc": {"X": 1, "Y": 1},
        "spans/other": {},
    }
    assert [kind.key for kind in found.spans] == ["sc", "other"] and len(found.kinds) == 10
    assert found.places["spans/sc"].lengths == Counter({1: 1, 2: 1})


def test_survey_counts_how_categories_go_together():
    cats = [{"A": 1.0, "B": 0.0, "C": 0.0}, {"A": 0.0}, {"A": 1.0, "B": 1.0}, {"A": 1.0, "B": 0.5}]
    docs = [Example.from_dict(Doc(Vocab(), WORDS), {"cats": one}).reference for one in cats]
    found = survey(docs).places["categories"]
    assert (found.none, found.several, found.between, found.denied) == (1, 1, 1, {"A", "B", "C"})
    assert found.in_texts == {"A": 3, "B": 1, "C": 0} and found.names == {"A", "B", "C"}
    assert [survey([doc]).places["categories"].are_exclusive for doc in docs] == [True, False, False, False]
    docs[0].cats[""] = 1.0
    assert kind_of("textcat").labels_in(docs).items() == {"A": 3, "B": 2, "C": 0}.items()


def test_survey_lists_five_labels_of_words():
    doc = Example.from_dict(Doc(Vocab(), list("abcdef")), {"tags": list("UVWXYZ")}).reference
    assert [*survey([doc]).lines()] == ["Tags: U 1, V 1, W 1, X 1, Y 1 and 1 more."]


def test_tally_shows_three_examples():
    tally = Tally()
    for example in ("a" * 60, "b" * 61, "", "c", "d"):
        tally.note("Things", example)
    tally.note("More", "")
    assert [*tally.lines()] == [f"Things: 5 ('{'a' * 60}', '{'b' * 57}...' and 'c').", "More: 1."]


@pytest.mark.parametrize(
    ("factory", "docs", "fault"),
    [
        ("ner", [{"entities": []}], "annotated as having no entities"),
        ("tagger", [{"tags": ["X"] * 4}], "all tags are alike, 'X'"),
        ("trainable_lemmatizer", [{"lemmas": ["Ada", "go", "", ""]}], "no change from word to lemma occurs 3 times"),
        ("senter", [{"sent_starts": [1, -1, -1, -1]}], "annotated as having no sentence boundaries"),
        ("parser", [{}], "there are 1 words before their head and 1 after it, and spaCy's parser needs 29 of each"),
        ("textcat", [{"cats": {"A": 1.0}}, {"cats": {"A": 0.0}}], "there is one category"),
        ("textcat", [{"cats": {"A": 1.0, "B": 0.0}}] * 2, "no two texts have different categories"),
        ("textcat", [{"cats": {"A": 1.0, "B": 1.0}}], "1 of 1 texts have several categories"),
        ("textcat", [{"cats": {"A": 0.5}}], "1 of 1 texts have categories with values between 0 and 1"),
        ("textcat_multilabel", [{"cats": {"A": 1.0}}, {"cats": {"B": 1.0}}], "give these the value 0"),
        ("textcat_multilabel", [{"cats": {"A": 0.0}}], "no text has any of the categories"),
        ("spancat", [{"spans": {"mine": [(0, 3, "X")]}}], "none of the 1 texts has spans under the key 'sc'"),
        ("spancat", [{"spans": {"sc": [(0, 3)]}}], "no span has a label"),
        ("span_finder", [{"spans": {"sc": []}}], "there is no span"),
        ("span_finder", [{"spans": {"sc": [(0, 3)]}}], ""),
        ("ner", [{}], ""),
        ("textcat", [{"cats": {"A": 1.0}}, {"cats": {"B": 1.0}}], ""),
        ("textcat_multilabel", [{"cats": {"A": 1.0, "B": 0.0}}, {"cats": {}}], ""),
        ("senter", [{}], ""),
        ("senter", [{"sent_starts": [1, 1, -1, -1]}], ""),
        ("trainable_lemmatizer", [{}], ""),
        ("parser", [{}] * 28, "there are 28 words before their head and 28 after it"),
        ("parser", [{}] * 29, ""),
    ],
)
def test_survey_says_what_can_not_be_learned(factory, docs, fault):
    kind = kind_of(factory)
    made = []
    for changed in docs:
        annotations = {key: ANNOTATIONS[key] for key in kind.keys} | changed
        made.append(Example.from_dict(Doc(Vocab(), WORDS), annotations).reference)
    found = survey(stored(*made)).fault(kind)
    assert fault in found and bool(fault) == bool(found)
