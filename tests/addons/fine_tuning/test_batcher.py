"""Batches by wordpieces: spaCy's, if a word is a wordpiece; each text once, none too large; resumed to the text."""

import gc
import itertools
import random
from collections import Counter

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.batchers import minibatch_by_padded_size
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.util import registry

from thinc_torchopt.addons.fine_tuning.batcher import PaddedPieces, RowCounter, Rows, batch_by_padded_pieces
from thinc_torchopt.addons.fine_tuning.transformers import transformers_of
from thinc_torchopt.addons.fine_tuning.windows import PieceWindows
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.loop.data_stream import Batches, DataStream, batcher_of

from ...runs import run_with_stops
from .small_transformers import config_with, needs, write_bert
from .test_windows import NLP, TEXTS, texts_of, tokenizer_of

NAME = "thinc-torchopt.batch_by_padded_pieces.v1"


def example_of(words):
    doc = Doc(NLP.vocab, words=words)
    return Example(doc, doc.copy())


def words_as_pieces(docs):
    return [Rows(1, len(doc)) for doc in docs]


def batcher_with(count, size, buffer=1024, discard_oversize=False):
    return PaddedPieces(size=size, buffer=buffer, discard_oversize=discard_oversize, component=None, count=count)


def ids_of(batches):
    return sorted([id(one) for one in batch] for batch in batches)


LENGTHS = st.lists(st.integers(0, 12), max_size=40)


@given(lengths=LENGTHS, size=st.integers(1, 60), buffer=st.integers(1, 50))
def test_batches_are_spacys_if_a_word_is_a_piece(lengths, size, buffer):
    examples = [example_of(["a"] * length) for length in lengths]
    found = batcher_with(words_as_pieces, size, buffer)(iter(examples))
    assert ids_of(found) == ids_of(minibatch_by_padded_size(examples, size, buffer))


def test_text_that_just_fits_into_a_batch_is_kept():
    examples = [example_of(["a"] * length) for length in (12, 13)]
    assert list(batcher_with(words_as_pieces, 12, discard_oversize=True)(examples)) == [examples[:1]]


def test_batches_of_a_buffer_come_in_random_order():
    examples = [example_of(["a"] * length) for length in range(1, 40)]
    batcher = batcher_with(words_as_pieces, 40, 20)
    orders = []
    for seed in range(5):
        random.seed(seed)
        lengths = [len(batch[0]) for batch in batcher(examples)]
        first = next(i for i, length in enumerate(lengths) if length > 20)
        assert max(lengths[:first]) <= 20 < min(lengths[first:])  # buffer after buffer
        orders.append(lengths)
    assert len(set(map(tuple, orders))) == 5
    assert not any(order == sorted(order) or order == sorted(order, reverse=True) for order in orders)


@given(
    texts=TEXTS,
    size=st.integers(10, 200),
    buffer=st.integers(1, 8),
    discard=st.booleans(),
    window=st.integers(8, 30),
    name=st.sampled_from(["bert", "roberta"]),
)
def test_each_text_is_in_one_batch_and_none_is_too_large(texts, size, buffer, discard, window, name):
    tokenizer = tokenizer_of(name)
    windows = PieceWindows(tokenizer, window, window, tells=False)
    examples = [Example(NLP(text), NLP(text)) for text in texts]
    batches = list(batcher_with(RowCounter(tokenizer, windows, window), size, buffer, discard)(examples))

    def padded(batch):
        """By the oracle: what the model will read."""
        spans = [span for of_doc in windows([one.predicted for one in batch]) for span in of_doc]
        return len(spans) * max((min(window, len(tokenizer(span.text)["input_ids"])) for span in spans), default=0)

    too_large = {id(one) for one in examples if padded([one]) > size}
    expected = Counter(id(one) for one in examples if not (discard and id(one) in too_large))
    assert Counter(id(one) for batch in batches for one in batch) == expected
    position = {id(one): i for i, one in enumerate(examples)}
    for batch in batches:
        assert padded(batch) <= size or len(batch) == 1
        assert [position[id(one)] for one in batch] == sorted(position[id(one)] for one in batch)


@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=30), buffer=st.integers(1, 20), data=st.data())
def test_resumed_batches_are_those_of_the_whole_run(lengths, buffer, data):
    """Also in the middle of a buffer."""
    examples = [example_of(["a"] * length) for length in lengths]

    def batches():
        random.seed(0)
        made = create_train_batches(NLP, lambda nlp: iter(examples), batcher_with(words_as_pieces, 20, buffer), 3)
        return DataStream((epoch, batch) for epoch, batch in made)

    whole = [(epoch, list(map(id, batch))) for epoch, batch in batches()]
    drawn = data.draw(st.integers(0, len(whole)))
    first = batches()
    for _ in range(drawn):
        next(first)
    random.seed(1)  # as training draws from it
    saved, second = first.snapshot(), batches()
    random.random()
    assert second.go_on_from(saved)
    assert [(epoch, list(map(id, batch))) for epoch, batch in second] == whole[drawn:]


def test_stream_without_end_stays_bounded():
    """One buffer is read ahead, and nothing is kept of texts that are gone."""
    tokenizer = tokenizer_of("bert")
    count, read = RowCounter(tokenizer, lambda docs: [[doc[:]] for doc in docs], 40), []
    stream = (example_of(["ab"] * (read.append(i) or 1 + i % 7)) for i in itertools.count())
    batches = batcher_with(count, 30, 16)(stream)
    next(batches)
    assert len(read) == 16
    for _ in range(40):
        next(batches)
    gc.collect()
    assert len(read) > 60 and len(count._known) <= 16


def test_each_text_is_tokenized_once(monkeypatch):
    tokenizer, calls = tokenizer_of("bert"), []
    count = RowCounter(tokenizer, lambda docs: [[doc[:2], doc[1:]] if len(doc) else [] for doc in docs], 6)
    theirs = count._count
    monkeypatch.setattr(count, "_count", lambda spans: calls.append([span.text for span in spans]) or theirs(spans))
    docs = [NLP("ab cde"), NLP(""), NLP("abcdefghab ab")]
    # [CLS] ab c ##d ##e ... are cut at 6.
    assert count(docs)[1:] == [Rows(0, 0), Rows(2, 6)]
    before = count(docs)
    assert before[0].number == 2 and calls == [["ab cde", "cde", "abcdefghab ab", "ab"], []]


def test_slow_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    fast = tokenizer_of("bert")
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(fast.vocab, key=fast.vocab.get)))
    slow = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    docs = [NLP(text) for text in ("ab cde", "", "abcd, fgh.")]
    whole = [RowCounter(one, lambda docs: [[doc[:]] for doc in docs], 40)(docs) for one in (slow, fast)]
    assert not slow.is_fast and whole[0] == whole[1]


# ---------------------------------------------------------------------- in a pipeline


def config_of(tmp_path, corpus, *, block=None):
    config = config_with("spacy", tmp_path, corpus, block=block)
    config["training"]["batcher"] = {"@batchers": NAME, "size": 60, "buffer": 5}
    return config.interpolate()


def counted(nlp, docs):
    return batcher_of(nlp, nlp.config.interpolate()["training"]).count(docs)


@pytest.mark.parametrize("frozen", [(), ("transformer",)])
@pytest.mark.parametrize("window", [None, 12])
def test_rows_are_those_that_the_model_reads(tmp_path, window, frozen):
    """Windows of words or of wordpieces, cut where the model can read no more; frozen transformers keep theirs."""
    needs("spacy")
    block = {"window_pieces": window, "stride_pieces": window, "max_batch_pieces": 60}
    nlp = init_nlp(config_of(tmp_path / "x", texts_of(tmp_path), block=block))
    nlp.config["training"]["frozen_components"] = [*frozen]
    [transformer] = transformers_of(nlp)
    transformer.tokenizer.model_max_length = 20
    words = (["ab", "cde", "fghabcd", "."] * 3, [], ["a"], ["ab"] * 9)
    docs = [Doc(nlp.vocab, words=one) for one in words]
    rows = counted(nlp, docs)
    if window is not None and not frozen:
        transformer.node.attrs["get_spans"] = PieceWindows(transformer.tokenizer, window, window)
    for doc, found in zip(docs, rows):
        shape = transformer.node.predict([doc]).wordpieces.input_ids.shape if len(doc) else (0, 0)
        assert tuple(found) == shape
    assert max(found.longest for found in rows) == (20 if window is None or frozen else 12)
    assert counted(nlp, docs) == rows and nlp.config["training"]["batcher"]["size"] == 60


def test_checks_and_run_tokenize_once(tmp_path):
    """Checks before a training draw batches too."""
    needs("spacy")
    nlp = init_nlp(config_of(tmp_path / "x", texts_of(tmp_path)))
    training = nlp.config.interpolate()["training"]
    first, second = batcher_of(nlp, training), batcher_of(nlp, training)
    assert first is not second and first.count is second.count


@pytest.mark.parametrize("block", [None, {"window_pieces": 24, "max_batch_pieces": 60}])
def test_training_is_resumed_to_the_bit(tmp_path, block):
    needs("spacy")
    corpus, ends = texts_of(tmp_path), []
    for name, stops in (("whole", []), ("broken", [4, 9])):
        config = config_with("spacy", tmp_path / "x", corpus, block=block, state=name)
        config["training"]["batcher"] = {"@batchers": NAME, "size": 60, "buffer": 5}
        ends.append(run_with_stops(config, tmp_path / name, *stops))
    assert ends[0] == ends[1] and len(ends[0][0]) == 13


def test_component_of_two_transformers(tmp_path):
    needs("spacy")
    config = config_of(tmp_path / "x", texts_of(tmp_path))
    config["components"]["small"] = config["components"]["transformer"]
    config["nlp"]["pipeline"] = ["small", *config["nlp"]["pipeline"]]
    nlp = init_nlp(config)
    training = nlp.config.interpolate()["training"]
    for component in (None, "ner"):
        training["batcher"]["component"] = component
        with pytest.raises(ConfigError, match=r"'component' in \[training\.batcher\]: expected 'small' or 'transfor"):
            batcher_of(nlp, training)
    nlp.get_pipe("small").model.attrs["get_spans"] = lambda docs: [[doc[:]] for doc in docs]
    doc, found = Doc(nlp.vocab, words=["ab"] * 30), {}
    for training["batcher"]["component"] in ("small", "transformer"):
        found[training["batcher"]["component"]] = batcher_of(nlp, training).count([doc])
    assert found["small"] == [Rows(1, 62)] and found["transformer"][0].number > 1


def test_sentences_as_windows_are_an_error(tmp_path):
    needs("spacy")
    config = config_of(tmp_path / "x", texts_of(tmp_path))
    spans = {"@span_getters": "spacy-transformers.sent_spans.v1"}
    nlp = init_nlp(config)
    [transformer] = transformers_of(nlp)
    transformer.node.attrs["get_spans"] = registry.resolve({"spans": spans})["spans"]
    with pytest.raises(ConfigError, match=r"expected get_spans .* found: \[E030\].*strided_spans"):
        counted(nlp, [Doc(nlp.vocab, words=["ab", "."])])


def test_pipeline_without_a_transformer_is_an_error():
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    batches = create_train_batches(nlp, lambda nlp: [], batch_by_padded_pieces(100), 1)
    with pytest.raises(ConfigError, match=r"in \[training\.batcher\]: expected a component .* found sentencizer\. Use"):
        Batches(batches)
    with pytest.raises(ConfigError, match=r"thinc-torchopt\.TorchOptimizer\.v1 finds in \[training\]"):
        batch_by_padded_pieces(100)([])


def test_estimate_without_the_models_files(tmp_path):
    """A plan of a training, before the model is on this machine."""
    needs("spacy")
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy-transformers.TransformerModel.v3", "name": str(tmp_path / "bert")}
    nlp.add_pipe("transformer", config={"model": model})
    training = {"batcher": {"@batchers": NAME, "size": 100}}
    assert batcher_of(nlp, training).count([Doc(nlp.vocab, words=["ab"] * 10)]) == [Rows(1, 15)]
    write_bert(tmp_path / "bert", tmp_path / "vocab.txt")
    assert batcher_of(nlp, training).count([Doc(nlp.vocab, words=["ab"] * 10)]) == [Rows(1, 22)]
