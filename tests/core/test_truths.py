"""Oracle: spaCy's own Example, made anew each time."""

import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc, Span
from spacy.training import Example

from thinc_torchopt.core.truths import KeptExample, KeptExamples

from ..models import toy_examples

TEXTS = ("TAG", "POS", "MORPH", "LEMMA", "DEP", "ENT_KB_ID")
NUMBERS = ("SENT_START", "HEAD", "ENT_IOB")
NLP = spacy.blank("xx")


def answers(example):
    """All that spaCy's components read, in a form that can be compared. spaCy refuses some trees."""
    whole, rest = example.x[:], example.x[1:]
    questions = {
        **{field: lambda field=field: example.get_aligned(field, as_string=True) for field in TEXTS},
        **{("number", field): lambda field=field: example.get_aligned(field) for field in (*TEXTS, *NUMBERS)},
        "tree": lambda: example.get_aligned_parse(projectivize=True),
        "tree as it is": lambda: example.get_aligned_parse(projectivize=False),
        "entities": lambda: places(example.get_aligned_ents_and_ner()[0]),
        "tags": lambda: example.get_aligned_ents_and_ner()[1],
        "ner": example.get_aligned_ner,
        "whole": lambda: places(example.get_aligned_spans_x2y([whole])),
        "overlapping": lambda: places(example.get_aligned_spans_x2y([whole], True)),
        "rest": lambda: places(example.get_aligned_spans_x2y([rest])),
    }
    return {name: answer(question) for name, question in questions.items()}


def answer(question):
    try:
        return question()
    except Exception as error:
        return type(error), str(error)


def places(spans):
    return [(span.start, span.end, span.label_) for span in spans]


words = st.lists(st.sampled_from(["a", "bc", "new", "york", ".", " "]), min_size=2, max_size=7)


@st.composite
def examples(draw):
    """Two tokenizations of a text, with trees that may cross, entities and missing values."""
    gold = draw(words)
    size = len(gold)
    reference = Doc(
        NLP.vocab,
        words=gold,
        spaces=[False] * size,
        tags=draw(st.lists(st.sampled_from(["", "X", "Y"]), min_size=size, max_size=size)),
        heads=draw(st.lists(st.integers(0, size - 1), min_size=size, max_size=size)) if draw(st.booleans()) else None,
        deps=["dep"] * size,
        ents=draw(st.lists(st.sampled_from(["O", "B-P", "B-Q", ""]), min_size=size, max_size=size)),
    )
    cuts = sorted(draw(st.sets(st.integers(1, len(reference.text) - 1))) if len(reference.text) > 1 else ())
    ends = [*cuts, len(reference.text)]
    other = [reference.text[i:j] for i, j in zip([0, *cuts], ends)]
    return Example(Doc(NLP.vocab, words=other, spaces=[False] * len(other)), reference)


@given(examples(), st.sampled_from(["tag", "entity", "lemma", "dep", "none"]))
def test_kept_examples_answer_as_spacys(example, change):
    """Again and again, and anew in an update after the annotation was changed in place."""
    kept = KeptExample(example.x, example.y)
    for _ in range(3):
        assert answers(kept) == answers(Example(example.x, example.y))
    token, doc = example.y[0], example.y
    if change == "tag":
        token.tag_ = "NEW"
    elif change == "lemma":
        token.lemma_ = "new"
    elif change == "dep":
        token.dep_ = "other"
    elif change == "entity":
        doc.set_ents([Span(doc, 0, 1, label="NEW")], default="outside")
    kept.begin_update()
    assert answers(kept) == answers(Example(example.x, example.y))


def test_answers_are_kept_and_new_lists():
    [example] = toy_examples(NLP, 1)
    kept = KeptExample(example.x, example.y)
    calls = []
    compute = lambda: calls.append(1) or ["a"]  # noqa: E731
    assert kept.answer(compute) == kept.answer(compute) == ["a"] and calls == [1]
    before = kept.get_aligned("TAG", as_string=True)
    before.append("changed")
    assert kept.get_aligned("TAG", as_string=True) == example.get_aligned("TAG", as_string=True)
    kept.get_aligned_ner().clear()
    assert kept.get_aligned_ner() == example.get_aligned_ner()


def test_kept_examples_see_other_tokens_of_the_text():
    """Components that annotate may merge entities."""
    [example] = toy_examples(NLP, 1)
    kept = KeptExample(example.x, example.y)
    before = answers(kept)
    with example.x.retokenize() as retokenizer:
        retokenizer.merge(example.x[2:4])
    kept.begin_update()
    after = answers(kept)
    assert after == answers(Example(example.x, example.y)) and len(after["tags"]) == len(before["tags"]) - 1


def test_examples_are_kept_up_to_a_number_of_words():
    examples = toy_examples(NLP, 4)
    kept = KeptExamples(at_most=18)  # two texts, each twice
    first, second = kept.of(examples), kept.of(examples)
    assert [one is other for one, other in zip(first, second)] == [True, True, False, False]
    assert all(one.x is example.x and one.y is example.y for one, example in zip(second, examples))
    examples[0].predicted = examples[0].predicted.copy()  # a hook gave it another text
    assert kept.of(examples)[0].x is examples[0].x
