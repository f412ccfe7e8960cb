"""Which components get the output that they listen to, against spaCy's own update."""

import numpy
import pytest
import spacy
from spacy.language import Language

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.loop.components import check_listeners

from ..models import LISTENER, TOK2VEC, WIDTH, toy_examples
from ..runs import loop_over

FROZEN = "it listens to 'tok2vec', which is frozen and does not annotate. Add 'tok2vec' to annotating_components"
AFTER = "it listens to 'tok2vec', which comes after it"
NONE = "it listens to a tok2vec or transformer, and 'pipeline' in [nlp] has none"
APART = "it listens to 'tok2vec', and spaCy does not connect a new component with one that has a 'source'"


@Language.component("test_sets_tensor")
def sets_tensor(doc):
    """A component of the user's, which does what a tok2vec does."""
    doc.tensor = numpy.ones((len(doc), WIDTH), dtype="f")
    return doc


def pipeline(order, model=LISTENER):
    """A tok2vec, and components that listen, in any order; initialized."""
    nlp = spacy.blank("xx")
    for name in order:
        own = {"tok2vec": {"model": TOK2VEC}, "test_sets_tensor": {}}
        nlp.add_pipe(name, config=own.get(name, {"model": {"tok2vec": model}}))
    nlp.initialize(lambda: toy_examples(nlp))
    return nlp


@pytest.mark.parametrize(
    ("order", "frozen", "annotating", "said"),
    [
        ("tok2vec tagger ner", "", "", None),
        ("tok2vec tagger ner", "tok2vec", "", f"'tagger': {FROZEN}"),
        ("tok2vec tagger ner", "tok2vec tagger", "", f"'ner': {FROZEN}"),
        ("tok2vec tagger ner", "tok2vec", "tok2vec", None),
        ("tok2vec tagger ner", "tok2vec", "tagger", f"'tagger': {FROZEN}"),
        ("tok2vec tagger ner", "tok2vec tagger ner", "", None),
        ("test_sets_tensor tok2vec tagger", "tok2vec", "test_sets_tensor", None),
        ("tagger tok2vec ner", "", "", f"'tagger': {AFTER}"),
        ("tagger tok2vec ner", "", "tok2vec", f"'tagger': {AFTER}"),
        ("tagger tok2vec ner", "tagger", "", None),
        ("tagger ner", "", "", f"'tagger': {NONE}"),
    ],
)
def test_components_that_listen(order, frozen, annotating, said):
    nlp, frozen, annotating = pipeline(order.split()), frozen.split(), annotating.split()
    agree(nlp, frozen, annotating, said)


def test_components_that_listen_to_one_by_name():
    agree(pipeline(["tok2vec", "tagger"], {**LISTENER, "upstream": "other"}), [], [], "'tagger': it listens to 'other'")


def test_components_that_spacy_does_not_connect():
    """A new tok2vec and a sourced tagger: spaCy initializes them apart."""
    nlp = pipeline(["tok2vec", "tagger"])
    with nlp.select_pipes(disable=["tagger"]):
        nlp.initialize(lambda: toy_examples(nlp))
    agree(nlp, [], [], f"'tagger': {APART}")


def agree(nlp, frozen, annotating, said):
    """What is refused, and no more, stops spaCy."""
    examples = toy_examples(nlp)
    if said is None:
        check_listeners(nlp, frozen, annotating)
        nlp.update(examples, sgd=False, exclude=frozen, annotates=annotating)
        return
    with pytest.raises(ConfigError) as caught:
        check_listeners(nlp, frozen, annotating)
    assert str(caught.value).startswith(f"Can't train {said}")
    with pytest.raises(ValueError, match="E203"):
        nlp.update(examples, sgd=False, exclude=frozen, annotates=annotating)


@pytest.mark.parametrize("order", ["tok2vec tagger", "tagger tok2vec"])
@pytest.mark.parametrize("set_by_reader", [True, False])
def test_components_that_get_the_tensors_of_a_corpus(order, set_by_reader):
    """A reader of the user's may set doc.tensor: what it does not set is refused at the first step."""
    nlp = pipeline(order.split())
    nlp.config["corpora"] = {"train": {"@readers": "mine.v1"}, "dev": {"@readers": "spacy.Corpus.v1"}}
    examples = toy_examples(nlp)
    for example in examples if set_by_reader else ():
        sets_tensor(example.predicted)
    steps = loop_over(nlp, TorchOptimizer(AdamW(), 0.01), [examples] * 2, exclude=["tok2vec"])
    if set_by_reader:
        assert len(list(steps)) == 2
        nlp.update(examples, sgd=False, exclude=["tok2vec"])
        return
    with pytest.raises(ConfigError, match="'tagger': it listens to 'tok2vec'"):
        next(steps)
    agree(nlp, ["tok2vec"], [], "'tagger': it listens")


def test_components_that_a_hook_separates():
    """Before the first step, as the loop refuses it there; after the hook, if there is one."""
    nlp = pipeline(["tok2vec", "tagger"])
    steps = [toy_examples(nlp)] * 2
    with pytest.raises(ConfigError, match="'tagger': it listens"):
        loop_over(nlp, TorchOptimizer(AdamW(), 0.01), steps, exclude=["tok2vec"])

    def separate(nlp, args):
        if args["step"] == 0:
            nlp.replace_listeners("tok2vec", "tagger", ["model.tok2vec"])

    optimizer = TorchOptimizer(AdamW(), 0.01)
    done = loop_over(nlp, optimizer, steps, exclude=["tok2vec"], before_update=separate)
    assert len(list(done)) == 2
    nothing = loop_over(
        pipeline(["tok2vec", "tagger"]), optimizer, steps, exclude=["tok2vec"], before_update=lambda nlp, args: None
    )
    with pytest.raises(ConfigError, match="'tagger': it listens"):
        next(nothing)
