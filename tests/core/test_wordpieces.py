"""Oracle: spacy-transformers' own functions, over the whole batch at once. Where it is missing, a double of what it
does, character by character.
"""

import copy
import pickle
import re
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from thinc.api import fix_random_seed

from thinc_torchopt.core.host import forward_of
from thinc_torchopt.core.wordpieces import KeptWordpieces, keep_wordpieces

from ..addons.fine_tuning.small_transformers import config_with, write_bert
from ..addons.fine_tuning.test_windows import tokenizer_of
from ..loop.test_faster import update
from ..models import toy_examples
from ..runs import digests, run

needs = pytest.mark.skipif(find_spec("spacy_transformers") is None, reason="spacy-transformers is not installed")
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


@needs
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


class Letters:
    """A double of a fast tokenizer: pieces of up to two letters, with the space before them, between two that have no
    characters. It is its own backend. "#" looks like padding.
    """

    is_fast, pad_token, pad_token_id, pad_token_type_id, model_max_length = True, "#", 7, 3, 99

    def __init__(self, side="right", inputs=()):
        self.padding_side, self.model_input_names, self.backend_tokenizer = side, inputs, self
        self.ids, self.calls, self.padding = {}, [], None

    def __call__(self, texts):
        """As a call sets the padding that the tokenizer is saved with."""
        self.calls.append("call")
        self.padding = {"length": 5}

    def no_padding(self):
        self.padding = None

    def enable_padding(self, **padding):
        self.padding = padding

    def pieces(self, text):
        return [("<", 0, 0), *((one[0], *one.span()) for one in re.finditer(r" ?(\w\w?|\S)", text)), (">", 0, 0)]

    def encode_batch(self, texts):
        assert self.padding is None
        self.calls += texts
        rows = [list(zip(*self.pieces(text))) for text in texts]
        ids = [[self.ids.setdefault(piece, 100 + len(self.ids)) for piece in row] for row, *_ in rows]
        types = [[one % 2 for one in row] for row in ids]
        return [
            SimpleNamespace(ids=i, type_ids=t, offsets=list(zip(*places)))
            for i, t, (_, *places) in zip(ids, types, rows)
        ]

    def convert_ids_to_tokens(self, ids):
        return [{number: piece for piece, number in self.ids.items()}[one] for one in ids]


@pytest.fixture
def double(monkeypatch):
    """Of spacy-transformers, in its place: its forward function. Chances to flush are noted there."""

    def forward(model, docs, is_train):
        return "theirs", None

    forward.chances = []
    functions = {
        "layers.transformer_model": {
            "forward": forward,
            "huggingface_tokenize": lambda tokenizer, texts: tokenizer(texts),
        },
        "data_classes": {"WordpieceBatch": SimpleNamespace, "FullTransformerBatch": SimpleNamespace},
        "truncate": {"truncate_oversize_splits": lambda pieces, align, n: (pieces, align)},
        "util": {"maybe_flush_pytorch_cache": lambda chance: forward.chances.append(chance)},
    }
    for name, there in functions.items():
        monkeypatch.setitem(sys.modules, f"spacy_transformers.{name}", SimpleNamespace(**there))
    return forward


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("inputs", [["token_type_ids"], []])
def test_wordpieces_are_those_of_a_double(double, is_left, inputs):
    """A token has the wordpieces with one of its characters, or the space behind it."""
    kept, tokenizer = KeptWordpieces(), Letters("left" if is_left else "right", inputs)
    short, long = NLP.make_doc("ab c\n"), NLP.make_doc("# abcd  ef, gh")
    glued = Doc(NLP.vocab, words=["ab", "c\n"], spaces=[False, False])
    for docs in ([[short[:]]], [[long[:3], long[2:]], [short[:]], []], [[glued[:]], [short[:1]], [long[:2], long[1:]]]):
        batch, align = kept.read(tokenizer, docs)
        spans = [span for of_doc in docs for span in of_doc]
        rows = [tokenizer.pieces(span.text) for span in spans]
        width = max(map(len, rows))

        def padded(rows, padding, width=width):
            return [
                [padding] * (width - len(row)) + row if is_left else row + [padding] * (width - len(row))
                for row in rows
            ]

        strings = [[piece for piece, *_ in row] for row in rows]
        ids = [[tokenizer.ids[piece] for piece in row] for row in strings]
        assert batch.strings == padded(strings, "#") and batch.input_ids.tolist() == padded(ids, 7)
        assert batch.attention_mask.tolist() == padded([[1.0] * len(row) for row in rows], 0.0)
        assert batch.lengths == [len(row) - row.count("#") for row in strings]
        types = padded([[one % 2 for one in row] for row in ids], 3)
        assert batch.token_type_ids is None if not inputs else batch.token_type_ids.tolist() == types
        places = padded([[(begin, end) for _, begin, end in row] for row in rows], (0, 0))
        flat = [(span, *(span.start_char + one for one in place)) for span, row in zip(spans, places) for place in row]
        found = [
            [
                i
                for i, (span, begin, end) in enumerate(flat)
                if token.doc is span.doc and span.start <= token.i < span.end
                if max(begin, token.idx) < min(end, token.idx + len(token.text_with_ws))
            ]
            for of_doc in docs
            for token in (of_doc[0].doc if of_doc else ())
        ]
        assert align.dataXd.tolist() == [i for one in found for i in one] and align.lengths.tolist() == list(
            map(len, found)
        )


def test_wordpieces_of_known_texts_are_not_read_again(double):
    kept, tokenizer = KeptWordpieces(at_most=8), Letters()
    docs = [NLP(text) for text in ("ab cde", "ab cde", "cde ab cde")]

    def texts_read(*spans, tokenizer=tokenizer):
        tokenizer.calls.clear()
        kept.read(tokenizer, [[span] for span in spans])
        assert tokenizer.calls[0] == "call" and tokenizer.padding == {"length": 5}
        return tokenizer.calls[1:]

    assert texts_read(*(doc[:] for doc in docs)) == ["ab cde", "cde ab cde"]  # of 5 and 7 pieces
    assert texts_read(docs[0][:], docs[1][:]) == texts_read(docs[0].copy()[:]) == []
    part = docs[0][:1]  # another span of a known text: its 3 pieces fill the room
    assert texts_read(part) == ["ab"] and texts_read(part) == []
    assert texts_read(docs[0][1:]) == texts_read(docs[0][1:]) == ["cde"]
    assert texts_read(docs[0][:], tokenizer=Letters()) == ["ab cde"]  # from a state that was loaded


def test_forward_function_reads_as_a_double_of_theirs(double):
    """It draws as many random numbers, and leaves to it what it can't read."""
    docs, trained, kept = [NLP("ab c")], [], KeptWordpieces()
    attrs = {"get_spans": lambda docs: [[doc[:]] for doc in docs if len(doc)]}
    layer = lambda batch, is_train: ((batch, is_train), trained.append)  # noqa: E731
    model = SimpleNamespace(attrs=attrs, tokenizer=Letters(), layers=[layer])
    found, backprop = kept(model, docs, True)
    assert found.model_output == (found.wordpieces, True) and found.align.lengths.tolist() == [2, 1]
    assert backprop(SimpleNamespace(model_output="gradient")) is docs and trained == ["gradient"]
    assert double.chances == [0] and copy.deepcopy(kept) is double and kept.__name__ == "forward"
    assert kept(model, [NLP("")], True) == ("theirs", None)
    kept.end()
    assert kept(model, docs, True) == ("theirs", None)


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


@needs
def test_forward_function_is_theirs_outside(tmp_path):
    """After the run, in copies and in pickles; and for texts without tokens."""
    nlp, _ = pipeline(tmp_path)
    node = nlp.get_pipe("transformer").model
    before = forward_of(node)
    put_back = keep_wordpieces(nlp)
    ours = forward_of(node)
    assert isinstance(ours, KeptWordpieces) and pickle.loads(pickle.dumps(ours)) is before
    assert nlp("").text == "" and nlp("Anna likes")[0].tag_
    for call in put_back:
        call()
    assert forward_of(node) is before


@needs
def test_a_batch_with_one_text_twice_is_copied(tmp_path, monkeypatch):
    """A reader that gives more weight to a text may yield it twice. To the transformer it would be one text."""
    results = []
    for switch in ("0", "1"):
        monkeypatch.setenv("THINC_TORCHOPT_FASTER", switch)
        nlp, examples = pipeline(tmp_path)
        results.append(update(nlp, [*examples[:2], examples[0]], times=2))
    assert results[0] == results[1]


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
@needs
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
