"""Answers are read again where, and only where, a text is not as it was."""

import numpy
import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example

from thinc_torchopt.core.truths import KeptExample, KeptExamples

from ..models import toy_examples

NLP = spacy.blank("xx")


def kept_example():
    [example] = toy_examples(NLP, 1)
    calls = []
    kept = KeptExample(example.x, example.y)
    return kept, lambda key="key": kept.answer(key, lambda: calls.append(1) or len(calls))


def test_answers_are_kept_by_key():
    _, read = kept_example()
    assert [read(), read(), read("other"), read(), read("other")] == [1, 1, 2, 1, 2]


def set_token(name, value):
    return lambda doc: setattr(doc[1], name, value)


def merge(doc):
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[2:4])


CHANGES = {
    "tag": set_token("tag_", "NEW"),
    "part of speech": set_token("pos_", "SYM"),
    "morph": lambda doc: doc[1].set_morph("Number=Dual"),
    "lemma": set_token("lemma_", "new"),
    "label of an arc": set_token("dep_", "other"),
    "head": lambda doc: setattr(doc[1], "head", doc[2 if doc[1].head.i != 2 else 3]),
    "sentence": lambda doc: doc.from_array("SENT_START", numpy.array([1, 1, 0, 0][: len(doc)], dtype="uint64")),
    "entity": lambda doc: doc.set_ents([Span(doc, 0, 1, label="NEW")], default="outside"),
    "missing entity": lambda doc: doc.set_ents([], missing=[doc[0:1]], default="outside"),
    "id of an entity": lambda doc: setattr(doc[1], "ent_kb_id_", "Q1"),
    "tokens": merge,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("which", ["x", "y"])
def test_changed_texts_are_read_again(change, which):
    """By a teacher or a hook: in place, any of the attributes that components learn from."""
    kept, read = kept_example()
    assert read() == read() == 1
    CHANGES[change](getattr(kept, which))
    assert read() == read() == 2


def test_texts_that_differ_are_spacys_error():
    example = Example(Doc(NLP.vocab, words=["a"]), Doc(NLP.vocab, words=["b"]))
    with pytest.raises(ValueError) as spacys:
        _ = example.alignment
    with pytest.raises(ValueError) as ours:
        KeptExample(example.x, example.y).answer("key", list)
    assert str(ours.value) == str(spacys.value)


def test_examples_are_kept_up_to_a_number_of_words():
    examples = toy_examples(NLP, 4)
    kept = KeptExamples(at_most=18)  # two texts, each twice
    first, second = kept.of(examples), kept.of(examples)
    assert [one is other for one, other in zip(first, second)] == [True, True, False, False]
    assert all(one.x is example.x and one.y is example.y for one, example in zip(second, examples))
    examples[0].predicted = examples[0].predicted.copy()  # a hook gave it another text
    assert kept.of(examples)[0].x is examples[0].x
