"""Corpora that are read once. The oracle: trainings that read them as often as spaCy does, to the last bit."""

import os
from collections import Counter

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Corpus
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_evaluation_callback, create_train_batches
from spacy.util import registry
from srsly.msgpack import msgpack_decoders

from thinc_torchopt.core import read_once
from thinc_torchopt.core.read_once import (
    ReadOnce,
    batches_of_kept,
    can_be_kept,
    evaluation_of_kept,
    read_once_in_initialize,
)

from ..addons.fine_tuning.small_transformers import config_with, kind  # noqa: F401
from ..models import toy_examples
from ..runs import config_for, contents, digests, run


@pytest.fixture
def reads(monkeypatch):
    """How often each file was read."""
    found = Counter()
    read = Corpus.__call__

    def counted(self, nlp):
        found[self.path.stem] += 1
        yield from read(self, nlp)

    monkeypatch.setattr(Corpus, "__call__", counted)
    return found


@Language.component("read-once-mark")
def mark(doc):
    doc.user_data["seen"] = doc.user_data.get("seen", 0) + 1
    return doc


EVALUATED = {"training__eval_frequency": 3}
ANNOTATING = EVALUATED | {
    "nlp__pipeline": ["tok2vec", "mark", "tagger", "parser"],
    "components__mark__factory": "read-once-mark",
    "training__annotating_components": ["mark", "tagger"],
    "corpora__train__max_length": 9,
    "corpora__dev__gold_preproc": True,
}


@pytest.mark.parametrize(("max_epochs", "changes"), [(0, EVALUATED), (2, EVALUATED), (-1, EVALUATED), (0, ANNOTATING)])
def test_read_once_training_is_the_same(tmp_path, corpus, reads, monkeypatch, max_epochs, changes):
    """Weights, scores, losses, order of the batches, and all other files of the model."""
    infos, models, counts = [], [], []
    for name in ("once", "often"):
        if name == "often":
            monkeypatch.setattr(read_once, "can_be_kept", lambda reader: False)
        output = tmp_path / name
        infos.append(
            run(config_for(output, corpus, steps=7, parser=True, training__max_epochs=max_epochs, **changes), output)
        )
        files = {path.relative_to(output): text for path, (text, _) in contents(output / "model-last").items()}
        # Those two tell times, and where the checkpoints are.
        others = {path: text for path, text in files.items() if path.name not in ("meta.json", "config.cfg")}
        models.append((digests(output), others))
        counts.append(dict(reads))
        reads.clear()
    assert infos[0] == infos[1] and models[0] == models[1]
    assert counts[0]["dev"] == 1 and counts[1]["dev"] >= 3
    if max_epochs == -1:  # a stream is read anew
        assert counts[0]["train"] == counts[1]["train"]
    else:
        assert counts[0]["train"] == 1 and counts[1]["train"] >= 6


def test_read_once_with_a_transformer(tmp_path, corpus, reads, kind):  # noqa: F811
    run(config_with(kind, tmp_path, corpus), tmp_path / "output")
    assert reads == {"train": 1, "dev": 1}


def nlp_and_reader(corpus, **settings):
    nlp = spacy.blank("xx")
    return nlp, Corpus(corpus["train"], **settings)


def texts(examples):
    return [[token.text for token in example.predicted] for example in examples]


def test_read_once_again_if_files_changed(tmp_path, reads):
    nlp = spacy.blank("xx")
    docs = [example.reference for example in toy_examples(nlp, 6)]
    path = tmp_path / "train.spacy"
    DocBin(docs=docs[:4]).to_disk(path)
    kept = ReadOnce(Corpus(path))
    assert len(kept(nlp)) == len(kept(nlp)) == 4 and reads["train"] == 1
    assert all(one is other for one, other in zip(kept(nlp), kept(nlp)))
    DocBin(docs=docs).to_disk(path)
    os.utime(path, ns=(1, 1))
    assert len(kept(nlp)) == 6 and reads["train"] == 2
    path.unlink()
    with pytest.raises(FileNotFoundError):
        kept(nlp)


def test_read_once_again_if_tokenizer_changed(corpus, reads):
    nlp, reader = nlp_and_reader(corpus)
    kept = ReadOnce(reader)
    first = texts(kept(nlp))
    word = max(first[0], key=len)
    nlp.tokenizer.add_special_case(word, [{"ORTH": word[:1]}, {"ORTH": word[1:]}])
    assert texts(kept(nlp)) == texts(reader(nlp)) != first
    nlp.tokenizer.infix_finditer = spacy.util.compile_infix_regex(["e"]).finditer
    assert texts(kept(nlp)) == texts(reader(nlp))
    before = reads["train"]
    kept(nlp)
    assert reads["train"] == before
    other = spacy.blank("xx")
    assert kept(other)[0].predicted.vocab is other.vocab

    class Other:
        def __init__(self, tokenizer):
            self.tokenizer, self.vocab = tokenizer, nlp.vocab

        def __call__(self, text):
            return self.tokenizer(text)

    tokenizer = nlp.tokenizer
    nlp.tokenizer = Other(tokenizer)
    before = reads["train"]
    kept(nlp), kept(nlp)
    assert reads["train"] == before + 2
    nlp.tokenizer, nlp.make_doc = tokenizer, lambda text: tokenizer(text.lower())
    kept(nlp), kept(nlp)
    assert reads["train"] == before + 4


class Mine(Corpus):
    pass


@pytest.mark.parametrize(
    "reader",
    [
        Corpus("train.spacy", shuffle=True),
        Corpus("train.spacy", augmenter=lambda nlp, example: [example]),
        Mine("train.spacy"),
        lambda nlp: [],
        None,
    ],
)
def test_read_once_other_readers_are_left_alone(reader):
    assert not can_be_kept(reader)
    evaluate = create_evaluation_callback(spacy.blank("xx"), reader, {})
    assert evaluation_of_kept(spacy.blank("xx"), evaluate) is evaluate


def initialized(config, monkeypatch):
    """A pipeline from `init_nlp`, and what was passed to `Language.initialize`, before and after."""
    passed = []
    original = read_once_in_initialize

    def seen(nlp, get_examples):
        passed.append((get_examples, original(nlp, get_examples)))
        return passed[-1][1]

    monkeypatch.setattr("thinc_torchopt.core.hooks.read_once_in_initialize", seen)
    nlp = init_nlp(config.interpolate())
    return nlp, passed[-1]


def batches(nlp, reader, max_epochs=1):
    return create_train_batches(nlp, reader, lambda examples: [examples], max_epochs)


def test_read_once_what_initialization_does_to_texts_stays_there(tmp_path, corpus, monkeypatch):
    nlp, (_, get_examples) = initialized(config_for(tmp_path, corpus), monkeypatch)
    for example in get_examples():
        example.predicted.user_data["seen"] = True
        example.predicted[0].tag_ = "X"
    [(_, batch)] = batches_of_kept(batches(nlp, Corpus(corpus["train"])))
    assert len(batch) == 72
    assert not any(example.predicted.user_data or example.predicted[0].tag_ for example in batch)


def test_read_once_by_a_training_with_the_same_corpus_only(tmp_path, corpus, monkeypatch, reads):
    config = config_for(tmp_path, corpus)
    for other in (
        lambda nlp: batches(nlp, Corpus(corpus["train"], limit=3)),
        lambda nlp: batches(nlp, Corpus(corpus["dev"])),
        lambda nlp: batches(nlp, Corpus(corpus["train"]), -1),
        lambda nlp: iter([(0, [])]),
    ):
        nlp, _ = initialized(config, monkeypatch)
        theirs = other(nlp)
        assert batches_of_kept(theirs) is theirs
    nlp, _ = initialized(config, monkeypatch)
    begun = batches(nlp, Corpus(corpus["train"]))
    next(begun)
    assert batches_of_kept(begun) is begun
    # It is handed over once: whoever trains again, reads again.
    first, second = (batches(nlp, Corpus(corpus["train"])) for _ in range(2))
    reads.clear()
    assert batches_of_kept(first) is not first and batches_of_kept(second) is second


def test_read_once_functions_of_other_versions_are_left_alone(tmp_path, corpus, monkeypatch):
    """With arguments of other names."""

    def other_batches(pipeline, corpus, batcher, max_epochs):
        yield 0, []

    def create_evaluation_callback(nlp, dev_corpus, score_weights):
        def evaluate():
            return nlp, dev_corpus, score_weights

        return evaluate

    nlp, _ = initialized(config_for(tmp_path, corpus), monkeypatch)
    monkeypatch.setattr(read_once, "create_train_batches", other_batches)
    theirs = other_batches(nlp, Corpus(corpus["train"]), None, 0)
    assert batches_of_kept(theirs) is theirs
    evaluate = create_evaluation_callback(nlp, Corpus(corpus["dev"]), {})
    evaluate.__qualname__ = "create_evaluation_callback.<locals>.evaluate"
    assert evaluation_of_kept(nlp, evaluate) is evaluate


@Language.factory("read-once-users")
class Users:
    def __init__(self, nlp, name):
        pass

    def __call__(self, doc):
        return doc

    def initialize(self, get_examples, nlp=None):
        pass


@registry.callbacks("read-once-after")
def after():
    return lambda nlp: nlp.tokenizer.add_special_case("x", [{"ORTH": "x"}])


@pytest.mark.parametrize(
    "changes",
    [
        {"initialize__after_init": {"@callbacks": "read-once-after"}},
        {"nlp__pipeline": ["tok2vec", "users", "tagger"], "components__users__factory": "read-once-users"},
        {"corpora__train__augmenter": {"@augmenters": "spacy.lower_case.v1", "level": 0.3}},
        {"training__optimizer": {"@optimizers": "Adam.v1"}},
    ],
    ids=["after_init", "component", "augmenter", "thinc's optimizer"],
)
def test_read_once_not_where_others_may_change_texts(tmp_path, corpus, reads, changes):
    nlp = init_nlp(config_for(tmp_path, corpus, **changes).interpolate())
    assert reads["train"] > 3
    theirs = batches(nlp, Corpus(corpus["train"]))
    assert batches_of_kept(theirs) is theirs


def test_read_once_evaluations_with_scorers_of_the_user_are_left_alone(corpus):
    nlp = spacy.blank("xx")
    tagger = nlp.add_pipe("tagger")
    evaluate = create_evaluation_callback(nlp, Corpus(corpus["dev"]), {"tag_acc": 1.0, "none": None})
    kept = evaluation_of_kept(nlp, evaluate)
    assert kept is not evaluate and isinstance(read_once.dev_reader_of(kept), ReadOnce)
    tagger.scorer = lambda examples, **settings: {}
    assert evaluation_of_kept(nlp, evaluate) is evaluate


def test_read_once_decoding_is_as_before(tmp_path):
    """Also after an error: a damaged file."""
    (tmp_path / "train.spacy").write_bytes(b"no texts")
    nlp = spacy.blank("xx")
    get_all = msgpack_decoders.get_all
    with pytest.raises(ValueError, match="E1014"):
        ReadOnce(Corpus(tmp_path / "train.spacy"))(nlp)
    assert msgpack_decoders.get_all == get_all
