"""Oracle: spacy-transformers' own functions, over the whole batch at once."""

import copy
import pickle
from types import SimpleNamespace

import numpy
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from thinc.api import fix_random_seed

from thinc_torchopt.core import wordpieces
from thinc_torchopt.core.host import forward_of
from thinc_torchopt.core.wordpieces import KeptWordpieces, keep_wordpieces

from ..addons.fine_tuning.small_transformers import config_with, write_bert
from ..addons.fine_tuning.test_windows import tokenizer_of
from ..loop.test_faster import update
from ..models import toy_examples
from ..runs import digests, run

transformers = pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
NLP = spacy.blank("en")
LETTERS = st.text("abcdefgh .,-'\n\tÀéßя字😀e\u0301\u200dאע", max_size=40)
TEXTS = st.lists(LETTERS | st.sampled_from(["", "ab ab", "[PAD] a", "  a [SEP]  [MASK]b"]), max_size=5)


def theirs(tokenizer, spans):
    from spacy_transformers.align import get_alignment_via_offset_mapping
    from spacy_transformers.data_classes import WordpieceBatch
    from spacy_transformers.layers.transformer_model import huggingface_tokenize

    flat = [span for of_doc in spans for span in of_doc]
    encoding = huggingface_tokenize(tokenizer, [span.text for span in flat])
    batch = WordpieceBatch.from_batch_encoding(encoding)
    return batch, get_alignment_via_offset_mapping(flat, encoding["offset_mapping"])


def assert_same(found, expected):
    (batch, align), (other, other_align) = found, expected
    assert batch.strings == other.strings and batch.lengths == other.lengths
    for one, two in [
        (batch.input_ids, other.input_ids),
        (batch.attention_mask, other.attention_mask),
        (batch.token_type_ids, other.token_type_ids),
        (align.data, other_align.data),
        (align.lengths, other_align.lengths),
    ]:
        assert (one is None) == (two is None)
        if one is not None:
            assert one.dtype == two.dtype
            numpy.testing.assert_array_equal(one, two)


@given(
    batches=st.lists(TEXTS, min_size=2, max_size=4),
    window=st.integers(1, 6),
    stride=st.integers(1, 6),
    name=st.sampled_from(["bert", "roberta"]),
    side=st.sampled_from(["left", "right"]),
    at_most=st.sampled_from([0, 30, 10_000]),
)
def test_wordpieces_are_theirs(batches, window, stride, name, side, at_most):
    """Batch after batch, with texts that came before in others, in windows that overlap, and with little room."""
    from spacy_transformers.span_getters import configure_strided_spans

    tokenizer = tokenizer_of(name)
    tokenizer.padding_side = side
    get_spans = configure_strided_spans(window, min(stride, window))
    kept = KeptWordpieces(at_most)
    for texts in [*batches, batches[0]]:
        spans = get_spans([NLP.make_doc(text) for text in texts])
        if any(spans):
            assert_same(kept.read(tokenizer, spans), theirs(tokenizer, spans))


def test_wordpieces_of_known_texts_are_not_read_again(monkeypatch):
    calls, encode, tokenize = [], wordpieces._encode, wordpieces._tokenize
    monkeypatch.setattr(wordpieces, "_encode", lambda *given: calls.append(given[1]) or encode(*given))
    # In a call, the tokenizer takes the padding that it is saved with.
    monkeypatch.setattr(wordpieces, "_tokenize", lambda *given: calls.append("call") or tokenize(*given))
    kept, tokenizer = KeptWordpieces(at_most=11), tokenizer_of("bert")
    docs = [NLP(text) for text in ("ab cde", "ab cde", "cde ab cde")]

    def texts_read(*spans, tokenizer=tokenizer):
        calls.clear()
        kept.read(tokenizer, [[span] for span in spans])
        assert calls.count("call") == 1 and tokenizer.backend_tokenizer.padding is not None
        return [text for call in calls if call != "call" for text in call]

    assert texts_read(*(doc[:] for doc in docs)) == ["ab cde", "cde ab cde"]
    assert texts_read(docs[0][:], docs[1][:]) == texts_read(docs[0].copy()[:]) == []
    part = docs[0][:1]  # another span of a known text, for which there is no room
    assert texts_read(part) == texts_read(part) == ["ab"]
    assert texts_read(docs[0][:], tokenizer=copy.deepcopy(tokenizer)) == ["ab cde"]  # from a state that was loaded


def pipeline(folder):
    if not (folder / "bert").exists():
        write_bert(folder / "bert", folder / "vocab.txt")
    fix_random_seed(0)
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy-transformers.TransformerModel.v3", "name": str(folder / "bert")}
    nlp.add_pipe("transformer", config={"model": model})
    listener = {"@architectures": "spacy-transformers.TransformerListener.v1", "pooling": {"@layers": "reduce_mean.v1"}}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": listener}})
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples)
    return nlp, examples


def test_forward_function_is_theirs_outside(tmp_path, monkeypatch):
    """After the run, in copies and in pickles; and for texts without tokens."""
    nlp, examples = pipeline(tmp_path)
    node = nlp.get_pipe("transformer").model
    before = forward_of(node)
    put_back = keep_wordpieces(nlp)
    ours = forward_of(node)
    assert isinstance(ours, KeptWordpieces) and keep_wordpieces(nlp) == []
    assert copy.deepcopy(ours) is before and pickle.loads(pickle.dumps(ours)) is before
    assert nlp("").text == "" and nlp("Anna likes")[0].tag_
    for call in put_back:
        call()
    assert forward_of(node) is before
    docs = [example.x.copy() for example in examples[:2]]
    calls = []
    ours.read = lambda *_: calls.append(1)
    assert ours(node, docs, False)[0].align.lengths.sum() and not calls  # of a reference that outlives the run
    ours.is_on = True
    monkeypatch.setattr(type(node), "tokenizer", SimpleNamespace(is_fast=False))
    monkeypatch.setattr(ours, "_theirs", lambda *given: calls.append(given))
    ours(node, docs, False)
    assert calls == [(node, docs, False)]  # without offsets


def test_a_batch_with_one_text_twice_is_copied(tmp_path, monkeypatch):
    """A reader that gives more weight to a text may yield it twice. To the transformer it would be one text."""
    results = []
    for switch in ("0", "1"):
        monkeypatch.setenv("THINC_TORCHOPT_FASTER", switch)
        nlp, examples = pipeline(tmp_path)
        results.append(update(nlp, [*examples[:2], examples[0]], times=2))
    assert results[0] == results[1]


def test_docs_with_the_same_words_and_other_spaces_differ():
    kept, tokenizer = KeptWordpieces(), tokenizer_of("bert")
    for spaces in ([True, False], [False, False]):
        spans = [[Doc(NLP.vocab, words=["ab", "ab"], spaces=spaces)[:]]]
        assert_same(kept.read(tokenizer, spans), theirs(tokenizer, spans))


# The settings of a training, of its optimizer, and of its fine-tuning.
TRAININGS = {
    "plain": ({}, {}, None),
    "windows": ({}, {}, {"window_pieces": 12, "max_batch_pieces": 60}),
    "accumulated": ({"accumulate_gradient": 3}, {}, None),
    # The rate ruins the params: after two more steps they are brought back.
    "rolled back": ({}, {"rollback_after": 2, "learn_rate": [1e39 if i == 7 else 0.01 for i in range(40)]}, None),
}


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.NonFiniteGradWarning")
@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.RollbackWarning")
@pytest.mark.parametrize("training", TRAININGS)
def test_trainings_are_theirs(tmp_path, corpus, monkeypatch, training):
    """Over epochs and evaluations, with an entity recognizer that draws where to cut; stopped between, and resumed."""
    changes, settings, block = TRAININGS[training]

    def config_of(state):
        config = config_with("spacy", tmp_path, corpus, block=block, settings=settings, state=state)
        config["training"] |= changes
        config["components"]["ner"]["update_with_oracle_cut_size"] = 4
        return config

    found = {}
    for switch in ("0", "1"):
        monkeypatch.setenv("THINC_TORCHOPT_FASTER", switch)
        found[switch] = run(config_of(switch), tmp_path / f"output-{switch}")
    config, output = config_of("stopped"), tmp_path / "output"
    found["stopped"] = run(config, output, crash_at=8) | run(config, output)
    assert found["0"] == found["1"] == found["stopped"] and len(found["0"]) == 13
    assert ("('rollbacks', 1)" in found["1"][12]) == (training == "rolled back")
    files = [digests(tmp_path / name) for name in ("output-0", "output-1", "output")]
    assert files[0] == files[1] == files[2]
