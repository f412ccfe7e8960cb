"""Oracle: spaCy's own `update`, on copies of the same texts."""

import random

import numpy
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.training import Example

from thinc_torchopt.core import parser_updates
from thinc_torchopt.core.parser_updates import update_of_parser
from thinc_torchopt.core.truths import KeptExample

from ..models import TOK2VEC

WORDS = ["a", "bc", "new", "york", ".", " "]


def pipeline():
    """Of components whose scores differ, and so do their transitions."""
    nlp, generator = spacy.blank("xx"), numpy.random.default_rng(0)
    nlp.add_pipe("parser", config={"model": {"tok2vec": TOK2VEC}, "min_action_freq": 1})
    nlp.add_pipe("ner", config={"model": {"tok2vec": TOK2VEC}})
    gold = {"heads": [1, 1, 1], "deps": ["x", "ROOT", "y"], "entities": ["B-P", "L-P", "U-Q"]}
    nlp.initialize(lambda: [Example.from_dict(Doc(nlp.vocab, words=["a", "bc", "."]), gold)])
    for name in nlp.pipe_names:
        output = nlp.get_pipe(name).model.get_ref("upper")
        output.set_param("W", generator.normal(size=output.get_param("W").shape).astype("float32"))
    return nlp


NLP = pipeline()


@st.composite
def examples(draw):
    """Two tokenizations of a text, with trees that may cross, sentences, entities and missing values."""
    gold = draw(st.lists(st.sampled_from(WORDS), max_size=9))
    size = len(gold)

    def for_each(values):
        return draw(st.lists(st.sampled_from(values), min_size=size, max_size=size))

    has_tree, is_mirrored = draw(st.booleans()), draw(st.booleans())
    heads = [draw(st.integers(0, i)) for i in range(size)]  # a tree: spaCy may loop forever in others
    reference = Doc(
        NLP.vocab,
        words=gold,
        spaces=[False] * size,
        heads=([size - 1 - head for head in reversed(heads)] if is_mirrored else heads) if has_tree else None,
        deps=for_each(["x", "y", "ROOT", "rare"]) if has_tree else None,
        sent_starts=None if has_tree else for_each([True, False, None]),
        ents=for_each(["O", "B-P", "B-Q", ""]),
    )
    cuts = sorted(draw(st.sets(st.integers(1, len(reference.text) - 1))) if len(reference.text) > 1 else ())
    other = [reference.text[i:j] for i, j in zip([0, *cuts], [*cuts, len(reference.text)])] if size else []
    return Example(Doc(NLP.vocab, words=other, spaces=[False] * len(other)), reference)


def results(pipe, update, seed, times):
    """Of updates: the losses and gradients, or the error; and the state of `random`."""
    random.seed(seed)
    numpy.random.seed(seed)
    losses = {}
    try:
        for _ in range(times):
            update(drop=0.1, sgd=None, losses=losses)
        grads = [node.get_grad(name).tobytes() for node in pipe.model.walk() for name in node.grad_names]
        return losses, grads, random.getstate()
    except Exception as error:
        return type(error), str(error)
    finally:
        for node in pipe.model.walk():
            for name in node.grad_names:
                node.set_grad(name, 0 * node.get_grad(name))


@given(
    name=st.sampled_from(["parser", "ner"]),
    texts=st.lists(examples(), min_size=1, max_size=5),
    size=st.sampled_from([2, 4, 100]),
    seed=st.integers(0, 99),
)
def test_updates_are_spacys(name, texts, size, seed):
    """Losses, gradients and draws to the bit, with golds that are read once and cuts anew each time."""
    pipe = NLP.get_pipe(name)
    pipe.cfg["update_with_oracle_cut_size"] = size
    kept = [KeptExample(one.x, one.y) for one in texts]
    ours = results(pipe, lambda **more: update_of_parser(pipe)(kept, **more), seed, times=3)
    assert ours == results(pipe, lambda **more: pipe.update([one.copy() for one in texts], **more), seed, times=3)


def test_golds_and_oracles_are_kept(monkeypatch):
    """The first update adds a label, so the next one reads the text again."""
    calls, read = [], parser_updates._read
    monkeypatch.setattr(parser_updates, "_read", lambda *given: calls.append(1) or read(*given))
    pipe, doc = pipeline().get_pipe("ner"), Doc(NLP.vocab, words=WORDS, ents=["O", "B-NEW", "I-NEW", "O", "O", "O"])
    pipe.cfg["update_with_oracle_cut_size"] = 2
    kept = KeptExample(doc.copy(), doc)
    for _ in range(3):
        update_of_parser(pipe)([kept], drop=0.0, sgd=None, losses={})
    [_, (_, truth)] = kept._answers.values()
    assert calls == [1, 1] and [pipe.moves.get_class_name(one) for one in truth._transitions] == [
        *("O", "B-NEW", "L-NEW", "O", "O", "O")
    ]


@pytest.mark.parametrize("factory", ["ner", "cuts nothing", "beam_ner", "incorrect spans", "tagger", "two objectives"])
def test_other_ways_to_learn_are_spacys(factory):
    configs = {
        "cuts nothing": {"update_with_oracle_cut_size": 0},
        "beam_ner": {"beam_width": 2},
        "incorrect spans": {"incorrect_spans_key": "wrong"},
    }
    name = factory if factory in ("tagger", "beam_ner") else "ner"
    pipe = spacy.blank("xx").add_pipe(name, config=configs.get(factory, {}))
    if factory == "two objectives":
        pipe.add_multitask_objective(NLP.get_pipe("parser"))
    assert (update_of_parser(pipe) is not None) == (factory == "ner")
