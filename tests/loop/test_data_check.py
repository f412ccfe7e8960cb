"""Whether corpora fit a pipeline, against what spaCy does with them: its updates, evaluations and initialization."""

import re
from collections import Counter
from typing import NamedTuple

import numpy
import pytest
import spacy
from hypothesis import example as case
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Corpus as SpacyCorpus
from spacy.training import Example
from spacy.training.loop import create_evaluation_callback
from spacy.util import registry
from spacy.vectors import Vectors

from thinc_torchopt.core.kinds import Annotations, Entities
from thinc_torchopt.loop.data_check import Corpus, Facts, spans_not_proposed, texts_in_no_batch, texts_left_out
from thinc_torchopt.loop.training_check import OF_TEXTS
from thinc_torchopt.loop.training_check import check as look

from ..models import grads_of, ready_pipeline

WORDS = ["Anna", "likes", "red", "London", "."]
GOLD = {
    "tags": list("ABCDE"),
    "morphs": ["Number=Sing", "Tense=Pres", "", "Number=Sing", ""],
    "entities": ["U-PERSON", "O", "O", "U-CITY", "O"],
    "spans": {"sc": [(0, 4, "X")]},
    "cats": {"RED": 1.0, "BLUE": 0.0},
    "heads": [1, 1, 3, 1, 1],
    "deps": ["nsubj", "ROOT", "amod", "dobj", "punct"],
    "pos": ["PROPN", "VERB", "ADJ", "PROPN", "PUNCT"],
    "lemmas": ["Anna", "like", "red", "London", "."],
    "sent_starts": [1, 0, 0, 0, 0],
}
# The same with a label that is not in it, for each kind of component.
NEW = GOLD | {
    "tags": list("ABCDX"),
    "morphs": ["Number=Plur", "Tense=Pres", "", "Number=Sing", ""],
    "entities": ["U-NEW", "O", "O", "U-CITY", "O"],
    "spans": {"sc": [(0, 4, "NEW")]},
    "cats": {"RED": 1.0, "BLUE": 0.0, "NEW": 0.0},
}
COMPONENTS = ["tagger", "morphologizer", "ner", "textcat", "textcat_multilabel", "spancat", "spancat_singlelabel"]
LEARNERS = [*COMPONENTS, "parser", "senter", "trainable_lemmatizer"]


def corpus(nlp, gold, name="train", n=20):
    """Texts that differ; in every second one the categories are the other way round."""
    turned = gold | {"cats": {label: 1.0 - value for label, value in gold.get("cats", {}).items()}}
    turned["cats"].pop("NEW", None)
    examples = [
        Example.from_dict(Doc(nlp.vocab, words=[*WORDS[:4], f"{name}{i}"]), turned if i % 2 else gold) for i in range(n)
    ]
    return Corpus(f"corpora.{name}", examples)


def pipeline(component, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe(component, config=config)
    return nlp


def check(nlp, train, dev=None, *, frozen=(), sourced=(), is_initialized=True, weights=None, **blocks):
    training = {"frozen_components": list(frozen), "score_weights": weights or {}, "annotating_components": []}
    training |= {name: f"corpora.{name.partition('_')[0]}" for name in ("train_corpus", "dev_corpus")}
    training["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 4, "get_length": None}
    config = {"training": training, "initialize": {"vectors": None}, "components": {}} | blocks
    found = look(Facts(nlp, config, train, dev, sourced, is_initialized), OF_TEXTS)
    return Found([one.text for one in found if one.kind != "doubt"], [one.text for one in found if one.kind == "doubt"])


class Found(NamedTuple):
    stops: list
    notes: list


@pytest.mark.parametrize("component", LEARNERS)
@pytest.mark.parametrize("is_annotated", [True, False])
def test_data_check_annotations_of_a_new_component(component, is_annotated):
    """spaCy refuses to initialize most of them; NER, parser and senter it trains on nothing."""
    nlp = pipeline(component)
    train = corpus(nlp, GOLD if is_annotated else {})
    try:
        nlp.initialize(lambda: train.examples)
        is_initialized = True
    except ValueError:
        is_initialized = False
    assert is_initialized or not is_annotated
    stops = check(nlp, train, is_initialized=is_initialized).stops
    if is_annotated:
        assert not stops
    else:
        [stop] = stops
        assert stop.startswith(f"'{component}' has nothing to learn: none of the 20 texts in [corpora.train] has")


@pytest.mark.parametrize("component", COMPONENTS)
def test_data_check_labels_that_a_sourced_component_does_not_know(component):
    """All stop but NER, which learns them; those that would stop in spaCy's update are told so. A parser learns rare
    labels as "dep".
    """
    nlp = pipeline(component)
    nlp.initialize(lambda: corpus(nlp, GOLD).examples)
    train = corpus(nlp, NEW)
    found = check(nlp, train, sourced=[component])
    [stop] = [told for told in found.notes + found.stops if "does not know" in told]
    assert bool(found.stops) is (component not in Entities.factories) is ("in the middle of the training" not in stop)
    assert f"'{component}' (sourced) does not know" in stop and "[corpora.train] has" in stop
    assert "To add it before" in stop and "add_labels.v1" in stop and f"{component} = [" in stop
    assert not check(nlp, train, sourced=[component], frozen=[component]).stops
    try:
        nlp.update(train.examples, sgd=nlp.resume_training())
        raises = False
    except KeyError:
        raises = True
    assert ("KeyError" in stop) == raises


@pytest.mark.parametrize("component", LEARNERS)
def test_data_check_scores_of_dev(component):
    """Where spaCy's evaluation can only give 0, that is said; and where it need not, nothing is."""
    nlp = pipeline(component)
    nlp.initialize(lambda: corpus(nlp, GOLD).examples)
    weights = nlp.config["training"]["score_weights"] or nlp.get_pipe_meta(component).default_score_weights
    empty, full = corpus(nlp, {}, "dev"), corpus(nlp, GOLD, "dev")
    score, _ = create_evaluation_callback(nlp, lambda nlp: iter(empty.examples), dict(weights))()
    found = check(nlp, corpus(nlp, GOLD), empty, weights=weights)
    assert score == 0.0 and sum("The score is 0 at each evaluation" in note for note in found.notes) == 1
    assert any(note.startswith(f"'{component}' can't be scored") for note in found.notes)
    assert not check(nlp, corpus(nlp, GOLD), full, weights=weights).notes
    assert not check(pipeline(component), None, full, weights=weights, is_initialized=False).notes


@pytest.mark.parametrize("component", ["textcat", "textcat_multilabel"])
def test_data_check_tells_of_texts_that_are_learned_as_having_no_category(component):
    nlp = pipeline(component)
    train = corpus(nlp, GOLD)
    nlp.initialize(lambda: train.examples)
    assert not any("no category" in note for note in check(nlp, train).notes)
    train.examples[1].reference.cats = {}
    notes = [note for note in check(nlp, train).notes if "no category holds in 1 of the" in note]
    assert len(notes) == (component == "textcat")


def test_data_check_names_components_that_dev_says_nothing_of():
    nlp = pipeline("tagger")
    nlp.add_pipe("ner")
    nlp.add_pipe("textcat")
    nlp.add_pipe("merge_entities")  # a function, which has no score
    nlp.initialize(lambda: corpus(nlp, GOLD).examples)
    weights = {"tag_acc": 0.4, "ents_f": 0.3, "cats_score": 0.3}
    for gold, names in ({}, nlp.pipe_names[:3]), ({"tags": GOLD["tags"], "spans": GOLD["spans"]}, ["ner", "textcat"]):
        notes = check(nlp, corpus(nlp, GOLD), corpus(nlp, gold, "dev"), weights=weights).notes
        assert [note.split(":")[0] for note in notes[: len(names)]] == [f"'{name}' can't be scored" for name in names]
        assert all(note.endswith("says nothing about the training.") for note in notes[: len(names)])
        assert ["The score is 0" in note for note in notes[len(names) :]] == [True] * (not gold)


def test_data_check_span_keys():
    """The key of a component, of its score, and of the corpus."""
    nlp = pipeline("spancat", spans_key="mine")
    train = corpus(nlp, GOLD)
    [stop] = check(nlp, train, is_initialized=False).stops
    assert "spans under the key 'mine'. The corpus has spans under 'sc': set spans_key in [components.spancat]" in stop
    other = GOLD | {"spans": {"mine": GOLD["spans"]["sc"]}}
    train, dev = corpus(nlp, other), corpus(nlp, other, "dev")
    nlp.initialize(lambda: train.examples)
    first, second = check(nlp, train, dev, weights=dict.fromkeys(["spans_sc_f", *"abcdef"], 1.0)).notes
    assert "counts spans_sc_f, a, b, c, d and 2 more, which no component computes" in first and "spans_mine_f" in first
    assert "The score is 0 at each evaluation" in second
    [only] = check(nlp, train, dev, weights=dict.fromkeys([*"abcde", "token_acc"], 1.0)).notes
    assert "counts a, b, c, d, e, which no component computes" in only


def test_data_check_frozen_components_that_were_never_trained():
    nlp = spacy.blank("en")
    nlp.add_pipe("tagger")
    nlp.add_pipe("ner")
    train = corpus(nlp, GOLD)
    with nlp.select_pipes(disable=["ner"]):
        nlp.initialize(lambda: train.examples)
    with pytest.raises(KeyError):
        nlp.evaluate(train.examples)
    [stop] = check(nlp, train, frozen=["ner"]).stops
    assert stop.startswith("'ner' is frozen and was never trained")
    nlp.initialize(lambda: train.examples)
    assert nlp.evaluate(train.examples) and not check(nlp, train, frozen=["ner"]).stops


@pytest.mark.parametrize("frozen", [["ner"], ["tagger"], ["tagger", "ner"], []])
def test_data_check_gradients_that_stop_at_a_frozen_component(frozen):
    """The oracle: whether the tok2vec has gradients after spaCy's update."""
    nlp, examples = ready_pipeline(["tagger", "ner"])
    nlp.update(examples, sgd=False, exclude=frozen)
    found = named(
        check(nlp, None, sourced=["tok2vec"], frozen=frozen).stops, "last component that listens to it, 'ner'"
    )
    assert len(found) == (not grads_of(nlp.get_pipe("tok2vec").model))
    assert not check(nlp, None, frozen=frozen).stops


def test_data_check_looks_further_than_the_first_texts():
    """One text with tags, after many without, or before them."""
    nlp = pipeline("tagger")
    nlp.initialize(lambda: corpus(nlp, GOLD).examples)
    bare, tagged = corpus(nlp, {}, n=300).examples, corpus(nlp, GOLD, n=1).examples
    for examples in bare + tagged, tagged + bare:
        assert check(nlp, Corpus("corpora.train", examples), weights={"tag_acc": 1.0}) == ([], [])
        assert check(nlp, None, Corpus("corpora.dev", examples), weights={"tag_acc": 1.0}) == ([], [])


# ---------------------------------------------------------------------- annotations that can't be learned


def named(found, words):
    return [text for text in found if words in text]


@pytest.mark.parametrize(("sizes", "proposed"), [([1, 2, 3], 0), ([1, 2, 4], 450), ([5], 50), ([4, 5], 500)])
def test_data_check_asks_the_suggester_for_the_spans(sizes, proposed):
    """Every tenth text has two spans of 5 tokens, the others of 4, up to 500 spans: counted by hand."""
    nlp = pipeline("spancat", suggester={"@misc": "spacy.ngram_suggester.v1", "sizes": sizes})
    examples = corpus(nlp, GOLD, n=252).examples
    for i, example in enumerate(examples):
        ends = [(0, 5), (0, 5)] if i % 10 == 9 else [(0, 4), (1, 5)]
        example.reference.spans["sc"] = [Span(example.reference, *one, "X") for one in ends]
    nlp.initialize(lambda: corpus(nlp, GOLD).examples)
    train = Corpus("corpora.train", examples)
    stops, notes = check(nlp, train)
    assert not named(notes, "proposes") or proposed == 50
    assert len(named(stops, "proposes none of 500 spans, so 'spancat' has nothing to learn")) == (not proposed)
    assert len(named(notes, "proposes 50 of 500 spans: 'spancat' can find no others")) == (proposed == 50)
    assert len(named(stops + notes, "spans have 4 to 5 tokens")) == (proposed < 450)


def test_data_check_leaves_a_suggester_that_needs_other_annotations():
    """The predictions of the component before it are not there yet."""
    nlp = spacy.blank("en")
    nlp.add_pipe("span_finder")
    nlp.add_pipe("spancat", config={"suggester": {"@misc": "spacy.preset_spans_suggester.v1", "spans_key": "sc"}})
    train = corpus(nlp, GOLD)
    nlp.initialize(lambda: train.examples)
    assert named(check(nlp, train).stops, "suggester] raises KeyError: 'sc' on the first texts")
    facts = Facts(nlp, {"training": {"frozen_components": [], "annotating_components": ["span_finder"]}}, train)
    assert not [*spans_not_proposed(facts)]


@pytest.mark.parametrize(("start", "end", "n"), [(0, 1, 0), (0, 2, 1), (1, 3, 1)])
def test_data_check_entities_with_white_space_at_their_ends(start, end, n):
    nlp = pipeline("ner")
    doc = Doc(nlp.vocab, words=["Anna", " ", "Rome"])
    doc.ents = [Span(doc, start, end, "X")]
    nlp.initialize(lambda: [Example(doc, doc)])
    train = Corpus("corpora.train", [Example(doc, doc)])
    assert len(named(check(nlp, train).notes, "Entities that begin or end with white space")) == n
    assert not named(check(nlp, train, frozen=["ner"]).notes, "white space")


@pytest.mark.parametrize(
    ("others", "same", "told"),
    [(0, 40, ""), (2, 47, ""), (40, 0, "40 of 120 tokens"), (6667, 0, "3,334 of 10,002 tokens looked at")],
)
def test_data_check_tokens_of_another_tokenizer(others, same, told):
    """ "An na" is one token here, whose annotations are lost. Of more than 20,000 words, every second text is read."""
    nlp, examples = pipeline("tagger"), []
    for n, words, spaces in (others, ["An", "na", "ran"], [False, True, False]), (same, ["Anna", "ran"], None):
        doc = Doc(nlp.vocab, words=words, spaces=spaces, tags=list("ABC")[: len(words)])
        examples += [Example(nlp.make_doc(doc.text), doc)] * n
    nlp.initialize(lambda: examples[:9])
    notes = named(check(nlp, Corpus("corpora.train", examples)).notes, "do not line up with the tokenizer")
    assert [note.split(" in [")[0] for note in notes] == [told] * bool(told)


@pytest.mark.parametrize(("least", "like", "n"), [(10, "like", 0), (11, "likes", 0), (11, "like", 40)])
def test_data_check_lemmas_that_are_too_rare(least, like, n):
    """ "Anna" > "anna" and "likes" > "like" each occur 10 times. A quarter that is too rare is not told."""
    nlp = pipeline("trainable_lemmatizer", min_tree_freq=least)
    words, lemmas = ["Anna", "likes", "red", "x"], ["anna", like, "red", "x"]
    doc = Doc(nlp.vocab, words=words, lemmas=lemmas)
    train = Corpus("corpora.train", [Example(doc, doc)] * 10)
    nlp.initialize(lambda: train.examples)
    notes = named(check(nlp, train).notes, "does not learn 20 of 40 lemmas in [corpora.train]: their change from")
    assert len(notes) == bool(n) and all(f"min_tree_freq = {least} in [components." in note for note in notes)


@pytest.mark.parametrize(("component", "is_right"), [("textcat", True), ("textcat_multilabel", False)])
def test_data_check_models_for_another_kind_of_categories(component, is_right):
    model = {"@architectures": "spacy.TextCatBOW.v3", "exclusive_classes": True, "length": 512, "ngram_size": 1}
    model |= {"no_output_layer": False, "nO": None}
    nlp = pipeline(component, model=model)
    train = corpus(nlp, GOLD)
    nlp.initialize(lambda: train.examples)
    blocks = nlp.config.interpolate()["components"]
    notes = named(check(nlp, train, components=blocks).notes, "exclusive_classes")
    assert len(notes) == (not is_right)
    if notes:
        assert f"exclusive_classes = true in [components.{component}.model]. Set it to false" in notes[0]


@pytest.mark.parametrize("width", [0, 8, 6])
def test_data_check_vectors_that_a_sourced_component_needs(width):
    """Without them spaCy stops in the first step: with an IndexError, with an old NumPy E896."""
    nlp = pipeline("tagger", model={"@architectures": "spacy.Tagger.v2", "tok2vec": EMBEDDED})
    give_vectors(nlp, 8)
    train = corpus(nlp, GOLD)
    nlp.initialize(lambda: train.examples)
    give_vectors(nlp, width)
    stops = check(nlp, train, sourced=["tagger"]).stops
    assert len(named(stops, "reads word vectors of 8 numbers, and this pipeline has")) == (width != 8)
    if width == 0:
        assert "has none: set vectors in [initialize]" in stops[0] and "Now it is null" in stops[0]
        with pytest.raises((IndexError, RuntimeError)):
            nlp.update(train.examples[:2], sgd=False)
    assert not named(check(nlp, train).stops, "vectors")


EMBEDDED = {
    "@architectures": "spacy.Tok2Vec.v2",
    "embed": {
        "@architectures": "spacy.MultiHashEmbed.v2", "width": 8, "attrs": ["NORM"], "rows": [50],
        "include_static_vectors": True,
    },
    "encode": {
        "@architectures": "spacy.MaxoutWindowEncoder.v2", "width": 8, "depth": 1, "window_size": 1, "maxout_pieces": 2
    },
}  # fmt: skip


def give_vectors(nlp, width):
    nlp.vocab.vectors = Vectors(strings=nlp.vocab.strings)
    if width:
        nlp.vocab.vectors = Vectors(strings=nlp.vocab.strings, data=numpy.ones((5, width), "f"), keys=WORDS)


@pytest.mark.parametrize("length", [None, 1, 4])
@pytest.mark.parametrize("most", [0, 4, 9])
def test_data_check_counts_the_texts_that_max_length_leaves_out(tmp_path, most, length):
    """As many as spaCy's reader does not read. length: Of sentences."""
    nlp = spacy.blank("en")
    starts = [None if length is None else [i % length == 0 for i in range(n)] for n in (3, 4, 4, 8)]
    docs = [Doc(nlp.vocab, words=["a"] * n, sent_starts=sents) for n, sents in zip((3, 4, 4, 8), starts)]
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    reader = {"@readers": "spacy.Corpus.v1", "path": str(tmp_path), "max_length": most, "gold_preproc": False}
    reader |= {"limit": 0, "augmenter": None}
    config = {"training": {"train_corpus": "corpora.train", "dev_corpus": "corpora.dev"}, "corpora": {"train": reader}}
    found = [*texts_left_out(Facts(nlp, config))]
    read = {example.text.strip() for example in SpacyCorpus(tmp_path, max_length=most)(nlp)}
    parts = [[part.text.strip() for part in (doc, *(doc.sents if length else ()))] for doc in docs]
    left = sum(map(read.isdisjoint, parts))
    told = [f"{left} of the 4 texts of [corpora.train]"] * bool(left)
    assert [text.split(" are left out")[0] for text in found] == told
    assert all(f"max_length = {most} in [corpora.train]" in text for text in found)


BY_WORDS = {"@batchers": "spacy.batch_by_words.v1", "tolerance": 0.0, "get_length": None}


@pytest.mark.parametrize(("size", "leaves_out", "stops", "left"), [(4, True, 1, 0), (4, False, 0, 0), (7, True, 0, 24)])
def test_data_check_counts_what_is_in_no_batch(size, leaves_out, stops, left):
    """20 texts of 5 words, and 3 of 8."""
    nlp = pipeline("tagger")
    doc = Doc(nlp.vocab, words=["a"] * 8)
    train = Corpus("corpora.train", corpus(nlp, GOLD).examples + [Example(doc, doc)] * 3)
    training = {"batcher": {**BY_WORDS, "size": size, "discard_oversize": leaves_out}}
    found = look(Facts(nlp, {"training": training}, train), [texts_in_no_batch])
    assert [one.kind for one in found] == ["stops"] * stops + ["doubt"] * bool(left)
    assert not left or found[0].text.startswith(f"{left} of the 124 words in [corpora.train] are in no batch")
    drawn = registry.resolve(training)["batcher"](train.examples)
    assert sum(len(example) for batch in drawn for example in batch) == (0 if stops else 124 - left)


@registry.batchers("test-check.nothing.v1")
def batch_nothing():
    return lambda items: iter(())


def test_data_check_names_a_batcher_of_the_user_that_makes_nothing():
    nlp = pipeline("tagger")
    training = {"batcher": {"@batchers": "test-check.nothing.v1"}}
    [found] = texts_in_no_batch(Facts(nlp, {"training": training}, corpus(nlp, GOLD)))
    assert found == ("stops", "There would be no batch: [training.batcher] makes none of the texts in [corpora.train].")


# ---------------------------------------------------------------------- counts


COUNTED = {
    "ner": lambda doc, label: doc.set_ents([Span(doc, 0, 1, label)]),
    "spancat": lambda doc, label: doc.spans.update({"sc": [Span(doc, 0, 2, label), Span(doc, 1, 2, label)]}),
    "textcat": lambda doc, label: doc.cats.update({one: float(one == label) for one in MANY}),
    "textcat_multilabel": lambda doc, label: doc.cats.update({one: float(one == label) for one in MANY}),
}
MANY = ("DRUG", "drug", "side effect", "side-effect", "OTHER")


def labelled(numbers, words, again, turned, both, n_dev):
    """Pairs of a text and a label, of which some stand there again, and the pairs of another corpus.

    numbers: Of texts with each label. words: How many there are in each text, after the first. again: Texts that stand
    there twice; turned: those of them with another label. both: Texts of the other corpus that are in this one.
    """
    pairs = [
        (" ".join([f"{label.replace(' ', '')}{i}", *["x"] * words]), label)
        for label, n in zip(MANY, numbers)
        for i in range(n)
    ]
    twice = [(text, "OTHER" if i < turned else label) for i, (text, label) in enumerate(pairs[:again])]
    return pairs + twice, [*pairs[:both], *((f"dev {i} x x x x", "drug") for i in range(n_dev))]


NUMBERS = st.sampled_from((0, 1, 8, 9, 10, 11, 40, 400))
CORPORA = st.builds(
    labelled,
    numbers=st.tuples(*[NUMBERS] * len(MANY)),
    words=st.sampled_from((3, 4, 5, 9)),
    again=st.sampled_from((0, 1, 2, 12, 60)),
    turned=st.sampled_from((0, 1, 2, 8)),
    both=st.sampled_from((0, 1, 2, 30)),
    n_dev=st.sampled_from((1, 99, 140)),
)


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(component=st.sampled_from([*COUNTED]), corpora=CORPORA)
@case(component="ner", corpora=labelled([40] * 5, words=3, again=0, turned=0, both=30, n_dev=140))
@case(component="textcat", corpora=labelled([0, 0, 0, 40, 340], words=40, again=0, turned=0, both=30, n_dev=70))
@case(component="textcat", corpora=labelled([0, 9, 10, 0, 79], words=4, again=2, turned=2, both=2, n_dev=98))
@case(component="textcat", corpora=labelled([10, 0, 0, 0, 89], words=4, again=1, turned=1, both=1, n_dev=99))
def test_data_check_counts_labels_and_texts(component, corpora):
    """Each number that is told is counted once more in the pairs that the texts were made from."""
    nlp, read = pipeline(component), []
    for name, pairs in zip(("train", "dev"), corpora):
        docs = [nlp.make_doc(text) for text, _ in pairs]
        for doc, (_, label) in zip(docs, pairs):
            COUNTED[component](doc, label)
        read.append(Corpus(f"corpora.{name}", [Example(nlp.make_doc(doc.text), doc) for doc in docs]))
    train, dev = corpora
    n, labels = len(train), Counter(label for _, label in train)
    told = check(nlp, *read, is_initialized=False).notes

    def only(start):
        found = [re.sub(r"(?<=\d),(?=\d)", "", one) for one in told if re.search(start, one)]
        return found[0] if found else None

    names = MANY if "textcat" in component else [*labels]
    rare = {label: labels[label] for label in names if labels[label] < 10} if n >= 100 else {}
    said = only("^Labels of")
    assert (said is None) is (not rare)
    assert all(f"{label} {number}" in said for label, number in rare.items())
    assert said is None or sum(f"{one} {labels[one]}" in said for one in MANY) == len(rare)
    spans = 2 if component == "spancat" else 1
    both = Counter({one: spans * number for one, number in (labels + Counter(label for _, label in dev)).items()})
    for same in (("DRUG", "drug"), ("side effect", "side-effect")):
        said = only(f"different labels: ({'|'.join(same)}) ")
        assert (said is not None) is all(both[one] for one in same)
        assert said is None or all(f"{one} {both[one]}" in said for one in same)
        assert said is None or "in [corpora.train] and [corpora.dev]." in said
    label, most = labels.most_common(1)[0] if train else ("", 0)
    expected = f"{most} of {n} texts in [corpora.train] are {label}; a model that always says {label} has"
    said = only("always says")
    assert (said is not None) is (component == "textcat" and n >= 100 and most > 0.9 * n)
    assert said is None or (said.startswith(expected) and f"accuracy of {most / n:.3g}" in said)
    first, twice = {}, Counter()
    for text, label in train:
        twice[first.setdefault(text, label) == label] += 1
    twice[True] -= len(first)
    said = only("other ways: ")
    assert (said is not None) is (n >= 100 and twice[False] > 0.01 * n)
    assert said is None or f"other ways: {twice[False]} of the {n} texts" in said
    shown = read[0].annotations.repeated.counts
    assert (shown[Annotations.TWICE], shown[Annotations.DIFFERENT]) == (twice[True], twice[False])
    there = [text for text, _ in dev if text in first and len(text.split()) >= 5]
    said = only("stand in")
    assert (said is not None) is (len(dev) >= 100 and len(there) > 0.01 * len(dev))
    told = f"{len(there)} of the {len(dev)} texts in [corpora.dev] stand in [corpora.train], too, such as "
    assert said is None or said.startswith(f"{told}{there[0][:60]!r}: the score")


@pytest.mark.parametrize("component", ["textcat", "ner"])
def test_data_check_counts_nothing_in_a_part_of_a_stream(component):
    """A stream may be sorted, and repeat its texts."""
    nlp = pipeline(component)
    examples = corpus(nlp, GOLD, n=1).examples * 200 + corpus(nlp, NEW, n=1).examples
    part = Corpus("corpora.train", examples, is_whole=False)
    assert not check(nlp, part, is_initialized=False).notes
    assert check(nlp, Corpus("corpora.train", examples), is_initialized=False).notes
