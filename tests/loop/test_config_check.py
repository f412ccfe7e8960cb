"""What a run was started with: what of it may be another when it goes on, and what may not."""

import numpy
import pytest
import spacy
from confection import Config
from spacy.tokens import Doc
from spacy.training import Example

from thinc_torchopt.loop.config_check import (
    Identity,
    collect_identity,
    collect_values,
    collect_values_of_all,
    compare_configs,
    compare_identities,
    moved_labels,
)

from ..core.labels.test_add_labels import TAGGER
from ..models import toy_examples, toy_pipeline
from ..runs import change


def with_config(**changes):
    """A pipeline with this config: schedules by the limit of steps, and vectors by a path."""
    nlp = spacy.blank("en")
    text = """
    [paths]
    vectors = "a"
    train = "b"
    [training]
    max_steps = 20
    seed = 5
    [training.optimizer]
    total_steps = ${training.max_steps}
    twice = 40
    [initialize]
    vectors = ${paths.vectors}
    [corpora]
    [corpora.train]
    path = ${paths.train}
    """
    nlp._config = change(Config().from_str(text, interpolate=False), **changes)
    return nlp


def changes_of(**changes):
    return compare_configs(collect_values(with_config()), collect_values(with_config(**changes)))


def test_run_config_sees_through_variables():
    assert changes_of(training__max_steps=30) == ["training.optimizer.total_steps: 20 before, 30 now"]
    assert changes_of(training__optimizer__total_steps=20) == []
    assert changes_of(training__max_steps=30, training__optimizer__total_steps=20) == []
    assert changes_of(training__seed=6) == ["training.seed: 5 before, 6 now"]
    assert changes_of(paths__vectors="x", paths__train="y") == []
    assert changes_of(corpora__train__limit=9, corpora__train__path="x", training__path="z") == [
        "corpora.train.limit: not there before, 9 now",
        "training.path: not there before, 'z' now",
    ]
    # as in the config of a saved pipeline; which vectors they are is compared beside it
    assert changes_of(initialize__vectors="x") == []
    assert changes_of(initialize__vectors="${paths.train}") == [
        "initialize.vectors: '${paths.vectors}' before, '${paths.train}' now"
    ]


def test_run_config_notices_other_vectors():
    def with_vectors(data, words=("cat", "dog"), name="words"):
        nlp = spacy.blank("en")
        for word in words:
            nlp.vocab.strings.add(word)
        nlp.vocab.vectors = spacy.vectors.Vectors(
            strings=nlp.vocab.strings, data=numpy.array(data, "f"), keys=words, name=name
        )
        return collect_identity(nlp)

    rows = [[1, 2], [3, 4]]
    first = with_vectors(rows)
    assert compare_identities(first, with_vectors(rows)) == []
    for other in (with_vectors([[1, 2], [3, 5]]), with_vectors(rows, ("dog", "cat")), with_vectors(rows, name="other")):
        [line] = compare_identities(first, other)
        assert line.startswith("static vectors: 'words' of 2 x 2, checksum ")
    [line] = compare_identities(first, collect_identity(spacy.blank("en")))
    assert line.endswith("none now")


def test_run_config_notices_other_labels():
    def identity(rename=lambda tag: tag):
        nlp = toy_pipeline(["tagger", "ner"], shared=False)
        examples = toy_examples(nlp)
        for example in examples:
            for token in example.reference:
                token.tag_ = rename(token.tag_)
        nlp.initialize(lambda: examples)
        return collect_identity(nlp)

    assert compare_identities(identity(), identity()) == []
    found = compare_identities(identity(), identity(lambda tag: "ADJ" if tag == "JJ" else tag))
    assert found == ["labels of tagger: 4 before, 4 now; number 1: 'JJ' before, 'ADJ' now"]


def test_run_config_tells_lemmatizers_apart_by_their_trees():
    """Their labels are numbers, of trees in the order in which the texts had them first."""

    def lemmatizer(order):
        nlp = spacy.blank("xx")
        nlp.add_pipe("trainable_lemmatizer", config=TAGGER | {"min_tree_freq": 1})
        docs = [Doc(nlp.vocab, words=[word], lemmas=[lemma]) for word, lemma in [("a", "x"), ("b", "y")][::order]]
        nlp.initialize(lambda: [Example(nlp.make_doc(doc.text), doc) for doc in docs])
        return nlp

    nlp, other = lemmatizer(1), lemmatizer(-1)
    assert nlp.get_pipe("trainable_lemmatizer").labels == other.get_pipe("trainable_lemmatizer").labels
    assert moved_labels(collect_identity(nlp), collect_identity(other)) == ["trainable_lemmatizer"]


@pytest.mark.parametrize(
    "labels, is_moved",
    [
        ("AB", False),
        ("BA", True),
        ("AX", False),
        ("ABX", False),
        ("XAB", True),
        ("A", False),
        ("B", True),
    ],
)
def test_run_config_knows_labels_with_other_positions(labels, is_moved):
    """Not those that are gone, or have another name at the old position."""
    before, now = Identity("none", {"one": ["A", "B"], "other": ["A"]}), Identity("none", {"one": [*labels]})
    assert moved_labels(before, now) == ["one"] * is_moved


ORDERED = {
    "training.optimizer.param_groups": {
        "one": {"params": ["tok2vec/*"]},
        "two": {"params": ["*/W"], "weight_decay": 0.5},
    },
    "training.optimizer.per_param_lr": {"tok2vec/*": 0.002, "*/W": 0.001},
    "training.optimizer.layer_decay": {"tok2vec/*": 0.5, "*": 0.9},
    "training.optimizer.learn_rate.parts": {
        "up": {"steps": 3, "schedule": 0.001},
        "down": {"steps": 9, "schedule": {"@schedules": "warmup_linear.v1", "warmup_steps": 1, "total_steps": 9}},
    },
    "training.optimizer.controller.operations": {
        "stop": {"@controller_operations": "HFControls"},
        "log": {"@controller_operations": "HFLog"},
    },
}


@pytest.mark.parametrize("section", ORDERED)
def test_run_config_knows_where_the_order_counts(section):
    """Of blocks or patterns, one of which wins or comes first; not of a function's arguments."""

    def values(*order, arguments=("@optimizers", "@schedules", "initial_rate")):
        nlp = with_config()
        *path, key = section.split(".")
        block = nlp._config
        for name in path:
            block = block.setdefault(name, {})
            block |= dict.fromkeys(arguments, "x")
        block[key] = {name: ORDERED[section][name] for name in order}
        return collect_values(nlp)

    first, second = ORDERED[section]
    before = values(first, second)
    assert compare_configs(before, values(second, first)) == [
        f"{section}, order: {first}, {second} before, {second}, {first} now"
    ]
    assert compare_configs(before, values(first, second, arguments=("initial_rate", "@schedules", "@optimizers"))) == []


def test_run_config_knows_where_the_order_means_nothing():
    def values(*names):
        augmenter = {"@augmenters": "spacy.orth_variants.v1", "orth_variants": {name: [] for name in names}}
        return collect_values(with_config(corpora__train__augmenter=augmenter))

    assert compare_configs(values("single", "paired"), values("paired", "single")) == []


def test_run_config_of_several_processes():
    """Where files are may be another thing on each machine, and nothing else: also not what may change later."""

    def differences(**changes):
        one, other = (collect_values_of_all(with_config(**changed)) for changed in ({}, changes))
        return compare_configs(one, other, words=("here", "there"))

    assert differences(paths__vectors="c", paths__train="d", corpora__train__path="e") == []
    told = differences(training__max_steps=30)
    assert told == ["training.max_steps: 20 here, 30 there", "training.optimizer.total_steps: 20 here, 30 there"]
    assert differences(training__patience=3) == ["training.patience: not there here, 3 there"]
