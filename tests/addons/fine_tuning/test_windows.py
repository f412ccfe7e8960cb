"""Windows in wordpieces: nothing is lost, nothing but memory is saved, and the saved pipeline is an ordinary one."""

import itertools
import logging
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache

import numpy
import pytest
import spacy
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train
from spacy.util import registry

from thinc_torchopt.addons.fine_tuning.batches import run_at_once, run_in_parts, runs_in_parts, split_by_length
from thinc_torchopt.addons.fine_tuning.transformers import transformers_of
from thinc_torchopt.addons.fine_tuning.windows import PieceWindows, count_lost, strided_spans, windows_of_words
from thinc_torchopt.addons.preview import explain
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.host import forward_of

from ...runs import Crash, config_for, run_with_stops
from ...spacy_cli import spacy_process
from .small_transformers import config_with, kind, needs, write_bert  # noqa: F401
from .test_modules import ALL

ALPHABET = "abcdefgh .,-'\n\tÀéßяя字😀"


@cache
def tokenizer_of(name):
    """A tokenizer made on the spot. RoBERTa's splits a word otherwise if a space is before it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from tempfile import mkdtemp

    folder = mkdtemp()
    if name == "bert":
        vocab = f"{folder}/vocab.txt"
        with open(vocab, "w", encoding="utf8") as file:
            pieces = [*"abcdefghijkl.,-'", "ab", "cde", "##ab", "##cd", *(f"##{letter}" for letter in "abcdefghijkl")]
            file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]))
        return transformers.BertTokenizerFast(vocab)
    from tokenizers import ByteLevelBPETokenizer

    made = ByteLevelBPETokenizer()
    texts = ["ab cd abcd ab. cde, abc-de f g h fgh", " ab ab cde\n\n cd"] * 5
    made.train_from_iterator(texts, vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    made.save_model(folder)
    return transformers.RobertaTokenizerFast(f"{folder}/vocab.json", f"{folder}/merges.txt")


NLP = spacy.blank("en")
TEXTS = st.lists(st.text(ALPHABET, max_size=120) | st.sampled_from(["", " \n ", "a" * 70, "ab " * 90]), max_size=5)


@given(texts=TEXTS, window=st.integers(8, 40), part=st.floats(0.5, 1.0), name=st.sampled_from(["bert", "roberta"]))
@example(texts=["a-aaaaaa"], window=8, part=0.5, name="bert")  # no room behind an overlap
def test_windows_lose_nothing(texts, window, part, name):
    tokenizer, stride = tokenizer_of(name), max((window + 1) // 2, int(part * window))
    docs = [NLP(text) for text in texts]
    found = PieceWindows(tokenizer, window, stride)(docs)
    assert len(found) == len(docs)
    for doc, spans in zip(docs, found):
        bounds = [(span.start, span.end) for span in spans]
        assert all(span.doc is doc for span in spans) and bool(bounds) == bool(len(doc))
        if bounds:
            assert bounds[0][0] == 0 and bounds[-1][1] == len(doc)
        for (start, end), (after, last) in itertools.pairwise(bounds):
            assert start < after <= end < last  # no gap, and none inside another
        for span in spans:
            # The oracle: what the model will read.
            assert len(tokenizer(span.text)["input_ids"]) <= window or len(span) == 1


@given(texts=TEXTS, window=st.integers(10, 40), name=st.sampled_from(["bert", "roberta"]))
def test_windows_are_as_long_as_they_can_be(texts, window, name):
    """A window has no room for the next token, but for estimates: one that ends earlier lost it to the tokenizer."""
    tokenizer = tokenizer_of(name)
    for doc, spans in zip(docs := [NLP(text) for text in texts], PieceWindows(tokenizer, window, window)(docs)):
        for span in spans[:-1]:
            alone = sum(len(tokenizer(f" {one.text}", add_special_tokens=False)["input_ids"]) for one in span)
            more = doc[span.start : span.end + 1].text
            # The estimate has a piece for each space that RoBERTa leaves out at the beginning, or joins.
            assert len(tokenizer(more)["input_ids"]) > window - 2 or alone > window - 4


@given(lengths=st.lists(st.integers(1, 60), max_size=40), at_most=st.integers(1, 200))
@example(lengths=[4, 4, 4], at_most=8)
def test_parts_have_windows_of_similar_length(lengths, at_most):
    parts = split_by_length(lengths, at_most)
    assert sorted(i for part in parts for i in part) == [*range(len(lengths))]
    for part in parts:
        padded = len(part) * max(lengths[i] for i in part)
        assert len(part) == 1 or (padded <= at_most and sum(lengths[i] for i in part) >= 0.75 * padded)
    assert [i for part in parts for i in part] == sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for part, (first, *_) in itertools.pairwise(parts):  # which has no room for one more
        padded = (len(part) + 1) * lengths[part[0]]
        assert padded > at_most or sum(lengths[i] for i in [*part, first]) < 0.75 * padded


# ---------------------------------------------------------------------- in a pipeline


@cache
def pipeline(name):
    """A pipeline of each kind, without dropout, kept for all examples of a property."""
    from pathlib import Path
    from tempfile import mkdtemp

    from spacy.tokens import DocBin

    needs(name)
    folder = Path(mkdtemp())
    docs = [Doc(NLP.vocab, words=["ab", "cd"], tags=["A", "B"])]
    for part in ("train", "dev"):
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    corpus = {part: folder / f"{part}.spacy" for part in ("train", "dev")}
    config = config_with(name, folder / "x", corpus, dropout=0.0, names=("tagger",)).interpolate()
    nlp = init_nlp(config)
    for node in nlp.get_pipe("tagger").model.walk():
        if "W" in node.param_names and not node.get_param("W").any():  # spaCy's begin with zeros: no gradient below
            node.set_param("W", numpy.random.default_rng(0).normal(size=node.get_param("W").shape).astype("f"))
    return nlp, transformers_of(nlp)[0]


def scores(nlp, texts):
    docs = list(nlp.pipe(Doc(nlp.vocab, words=words) for words in texts))
    return nlp.get_pipe("tagger").model.predict(docs)


def gradients(nlp, found, examples):
    for param in found.module.parameters():
        param.grad = None
    nlp.update(examples, sgd=False, drop=0.0)
    return {key: param.grad.clone() for key, param in found.module.named_parameters() if param.grad is not None}


WORDS = st.text("abcdefgh", min_size=1, max_size=9)


@pytest.mark.parametrize("name", ["spacy", "curated"])
@settings(max_examples=15)
@given(texts=st.lists(st.lists(WORDS, max_size=20), min_size=1, max_size=6), at_most=st.integers(1, 80))
def test_parts_have_the_gradients_of_one_pass(name, texts, at_most):
    nlp, found = pipeline(name)
    docs = [Doc(nlp.vocab, words=words, tags=["AB"[len(word) % 2] for word in words]) for words in texts]
    if not any(map(len, docs)):
        return

    def examples():
        return [Example(Doc(nlp.vocab, words=[token.text for token in doc]), doc) for doc in docs]

    expected = gradients(nlp, found, examples())
    before = scores(nlp, texts)
    run_in_parts(found.module, at_most)
    try:
        grads = gradients(nlp, found, examples())
        after = scores(nlp, texts)
    finally:
        run_at_once(found.module)
    assert "forward" not in vars(found.module) and grads.keys() == expected.keys() and grads
    # float32, summed in another order: relative to the largest of all.
    largest = max(float(grad.abs().max()) for grad in expected.values())
    assume(largest > 1e-3)  # not of a text that is learned already
    for key, grad in grads.items():
        assert float((grad - expected[key]).abs().max()) <= 1e-5 * largest, key
    assert all(numpy.allclose(*pair, atol=1e-5) for pair in zip(before, after))


def test_padding_on_the_left_and_other_outputs(tmp_path):
    """All that Hugging Face's models may return, in the order of the inputs."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    write_bert(tmp_path / "bert", tmp_path / "vocab.txt")
    asked = {"output_hidden_states": True, "output_attentions": True, "attn_implementation": "eager"}
    module = transformers.AutoModel.from_pretrained(tmp_path / "bert", **asked).eval()
    for side in ("left", "right"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert", padding_side=side)
        inputs = tokenizer(["ab cd", "abcdefgh " * 9, "a", "abc " * 5], padding="longest", return_tensors="pt")
        mask = inputs["attention_mask"].bool()
        with torch.no_grad():
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
            expected = module(**inputs)
            run_in_parts(module, 30)
            found = module(**inputs)
            run_at_once(module)
        assert found.keys() == expected.keys() and {"pooler_output", "hidden_states", "attentions"} <= found.keys()
        assert torch.allclose(found.pooler_output, expected.pooler_output, atol=1e-5) or side == "left"
        for left, right in zip(found.hidden_states, expected.hidden_states):
            assert torch.allclose(left[mask], right[mask], atol=1e-5)
        for left, right in zip(found.attentions, expected.attentions):
            rows = mask[:, None, :, None] & mask[:, None, None, :]
            assert torch.allclose(left * rows, right * rows, atol=1e-5)


def test_a_copy_of_a_module_reads_with_its_own_params(tmp_path):
    from copy import deepcopy

    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    write_bert(tmp_path / "bert", tmp_path / "vocab.txt")
    module = transformers.AutoModel.from_pretrained(tmp_path / "bert").eval()
    run_in_parts(module, 4)
    copied = deepcopy(module)
    with torch.no_grad():
        for param in module.parameters():
            param.zero_()
        ids = torch.tensor([[2, 8, 3], [2, 3, 0]])
        assert copied(input_ids=ids, attention_mask=ids.gt(0)).last_hidden_state.abs().sum() > 1.0


# ---------------------------------------------------------------------- the saved windows


@given(texts=TEXTS, at_most=st.integers(2, 30))
def test_saved_windows_are_the_largest_that_lose_nothing(texts, at_most):
    needs("spacy")
    tokenizer, longest = tokenizer_of("bert"), 40

    class OfForty:
        longest_input = longest

    OfForty.tokenizer = tokenizer
    docs = [NLP(text) for text in texts]
    words, stride = windows_of_words(OfForty, docs, at_most=at_most, overlap=0.25)
    room = longest - 2
    sizes = [[len(tokenizer(token.text)["input_ids"]) - 2 for token in doc] for doc in docs]
    assert 1 <= stride <= words <= at_most
    whole = [doc for doc, found in zip(docs, sizes) if max(found, default=0) <= room]
    for spans in strided_spans(words, stride)(whole):
        assert all(len(tokenizer(span.text)["input_ids"]) <= longest for span in spans)
    if words < at_most:
        # BERT's pieces of a text are those of its tokens, or fewer.
        sizes = [[one if one <= room else 0 for one in found] for found in sizes]
        longer = [sum(found[i : i + words + 1]) for found in sizes for i in range(max(0, len(found) - words))]
        assert max(longer) > room


def test_lost_wordpieces_are_counted(tmp_path, corpus):
    needs("spacy")
    config = config_with("spacy", tmp_path, corpus).interpolate()
    nlp = init_nlp(config)
    [found] = transformers_of(nlp)
    found.tokenizer.model_max_length = 20
    docs = [Doc(nlp.vocab, words=["abcde"] * n) for n in (0, 3, 8)]
    lost = count_lost(found, strided_spans(8, 8), docs)
    assert (lost.windows, lost.cut, lost.pieces, lost.lost) == (2, 1, 17 + 42, 22)
    assert str(lost) == "1 of 2 windows lose wordpieces: 37.3% of the text"
    # As spacy-transformers reads it.
    long = found.node.predict(docs[2:])
    assert long.wordpieces.input_ids.shape == (2, 20) or long.wordpieces.input_ids.shape[1] == 20


# ---------------------------------------------------------------------- a run


def texts_of(folder, kind="spacy", *, extra=()):  # noqa: F811
    """A corpus with long texts, empty ones, ones of whitespace, and a token that is longer than any window. Of curated
    transformers, batches of whitespace alone are an error: see test_curated.py.
    """
    folder.mkdir(parents=True, exist_ok=True)
    nlp = spacy.blank("xx")
    blank = [" ", "\n"] if kind == "spacy" else [" ", "\n", "f"]
    words = [["ab", "cde", "f", ".", "ghab"] * n for n in (1, 2, 12, 3)] + [[], blank, ["a" * 80, "bc"], *extra]
    docs = [
        Doc(
            nlp.vocab,
            words=one,
            tags=["AB"[len(word) % 2] for word in one],
            sent_starts=[True] + [False] * (len(one) - 1),
        )
        if one
        else Doc(nlp.vocab)
        for one in words
    ]
    for doc in docs:
        doc.ents = [doc.char_span(token.idx, token.idx + len(token), "X") for token in doc if token.text == "cde"]
    for part in ("train", "dev"):
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    return {part: folder / f"{part}.spacy" for part in ("train", "dev")}


BLOCK = {"window_pieces": 24, "max_batch_pieces": 60}


def train(nlp, folder):
    with open(os.devnull, "w") as out:
        return spacy_train(nlp, folder, stdout=out)[0]


def trained(config, folder):
    return train(init_nlp(config.interpolate()), folder)


WITHOUT_US = """
import sys
sys.modules["thinc_torchopt"] = None
import spacy
from spacy.training.loop import create_evaluation_callback
from spacy.util import resolve_dot_names
nlp = spacy.load(sys.argv[1])
config = nlp.config.interpolate()
[dev] = resolve_dot_names(config, [config["training"]["dev_corpus"]])
print(create_evaluation_callback(nlp, dev, config["training"]["score_weights"])()[0])
"""


def test_saved_pipeline_loads_and_scores_without_us(tmp_path, kind, caplog):  # noqa: F811
    config = config_with(kind, tmp_path / "state", texts_of(tmp_path, kind), block=BLOCK, steps=10, window=32)
    with caplog.at_level(logging.INFO, "spacy.torchopt"):
        nlp = trained(config, tmp_path / "out")
    told = [record.getMessage() for record in caplog.records]
    model = nlp.get_pipe_config("transformer")["model"]
    if kind == "spacy":
        spans = model["get_spans"]
        assert spans == {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 24, "stride": 18}
        assert sum("more wordpieces than a window" in one for one in told) == 1
    else:
        assert (model["with_spans"]["window"], model["with_spans"]["stride"]) == (24, 18)
    command = [sys.executable, "-c", WITHOUT_US, str(tmp_path / "out" / "model-best")]
    score = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    [line] = [one for one in told if one.startswith("model-best, loaded without this package")]
    assert score > 0.3 and f"score {score:.4f}." in line
    if kind == "curated":  # the same windows
        assert line.endswith(f": {score:.4f}.")
    [found] = transformers_of(nlp)
    assert not runs_in_parts(found.module) and forward_of(found.node).__module__.startswith("spacy_")


@pytest.mark.parametrize(
    "block", [BLOCK, BLOCK | ALL, {"gradient_checkpointing": 2, "freeze_layers": 1, "attention": "sdpa"}]
)
def test_resume_is_exact(tmp_path, kind, block):  # noqa: F811
    corpus = texts_of(tmp_path, kind)
    ends = []
    for name, stops in (("whole", []), ("broken", [5])):
        config = config_with(kind, tmp_path, corpus, block=block, state=name, settings={"use_averages": True})
        config["training"]["accumulate_gradient"] = 2
        ends.append(run_with_stops(config, tmp_path / f"{name}-out", *stops))
    assert ends[0] == ends[1] and len(ends[0][0]) > 10


def test_several_ranks(tmp_path, kind):  # noqa: F811
    """With the whole block: params are equal after each step, to the last bit, and frozen ones stay."""
    settings = {"distributed": {"@misc": "thinc-torchopt.Distributed.v1", "check_every": 1}}
    block = {**BLOCK, "gradient_checkpointing": True, "freeze_layers": 2, "attention": "sdpa"}
    config = config_with(kind, tmp_path, texts_of(tmp_path, kind), block=block, steps=3, settings=settings)
    config["training"]["batcher"]["size"] = 20
    config.to_disk(tmp_path / "config.cfg")
    command = ("torchopt", "train", tmp_path / "config.cfg", "--output", tmp_path / "out", "--nproc-per-node", 2)
    assert "Training in 2 processes" in spacy_process(*command).stderr  # the log
    [one], [other] = (
        transformers_of(init_nlp(config.interpolate())),
        transformers_of(spacy.load(tmp_path / "out/model-last")),
    )
    before = dict(one.module.named_parameters())
    moved = {name for name, param in other.module.named_parameters() if not torch.equal(param, before[name])}
    assert moved and not [name for name in moved if "embeddings" in name or any(f".{i}." in name for i in (0, 1))]


def test_an_error_leaves_the_transformer_as_it_was(tmp_path, kind):  # noqa: F811
    config = config_with(kind, tmp_path, texts_of(tmp_path, kind), block=BLOCK | ALL)
    nlp = init_nlp(config.interpolate())
    [found] = transformers_of(nlp)
    forward = forward_of(found.node)

    @registry.callbacks("test-windows.Crash.v1")
    def crash():
        def raise_at(nlp, info):
            if info["step"] == 2:
                assert runs_in_parts(found.module)
                raise Crash

        return raise_at

    nlp.config["training"]["before_update"] = {"@callbacks": "test-windows.Crash.v1"}
    with suppress(Crash):
        train(nlp, None)
    assert not runs_in_parts(found.module) and forward_of(found.node) is forward
    assert not getattr(found.module, "is_gradient_checkpointing", False)
    assert not any("forward" in vars(one) for one in found.module.modules())
    assert all(param.requires_grad for param in found.module.parameters())


@pytest.mark.parametrize("case", ["replaced", "annotating", "alone"])
def test_windows_meet_other_ways_to_listen(case, tmp_path):
    """A transformer inside of a component; one that annotates; one to which nobody listens."""
    needs("spacy")
    corpus = texts_of(tmp_path)
    config = config_with("spacy", tmp_path, corpus, block=BLOCK, steps=3, settings={"use_averages": False})
    if case == "annotating":
        config["training"]["annotating_components"] = ["transformer", "tagger"]
    if case == "replaced":
        nlp = init_nlp(config.interpolate())
        nlp.replace_listeners("transformer", "tagger", ["model.tok2vec"])
        nlp.replace_listeners("transformer", "ner", ["model.tok2vec"])
        nlp.remove_pipe("transformer")
        assert [one.component for one in transformers_of(nlp)] == ["tagger", "ner"]
        train(nlp, tmp_path / "out")
    else:
        nlp = trained(config, tmp_path / "out")
    spans = nlp.config["components"]
    found = str(spans.get("transformer", spans["tagger"]))
    assert "'window': 24, 'stride': 18" in found
    text = "ab cde f . ghab " * 12
    loaded = spacy.load(tmp_path / "out" / "model-last")
    assert [token.tag_ for token in loaded(text)] == [token.tag_ for token in nlp(text)]


def test_parts_leave_out_what_is_not_of_windows():
    """The caches of GPT-2 and XLNet, which spacy-transformers does not take either."""

    class Caching(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            hidden = input_ids[:, :, None].float()
            cached = hidden[:, None]
            return {"last_hidden_state": hidden, "mems": (hidden.transpose(0, 1),), "keys": ((cached, cached),)}

    module, mask = Caching(), torch.arange(9) < torch.tensor([[9], [3], [4], [8], [2]])
    inputs = {"input_ids": torch.arange(1, 46).reshape(5, 9) * mask, "attention_mask": mask.long()}
    expected = module(**inputs)["last_hidden_state"]
    run_in_parts(module, 18)
    found = module(**inputs)
    assert found.keys() == {"last_hidden_state"} and torch.equal(found["last_hidden_state"], expected)


def test_windows_of_a_frozen_transformer_stay(tmp_path):
    """As `init --from` writes it: the NER has a copy of its own. The tagger and what it listens to stay as before."""
    needs("spacy")
    corpus = texts_of(tmp_path)
    before = init_nlp(config_with("spacy", tmp_path, corpus).interpolate())
    before.to_disk(tmp_path / "before")
    config = config_with("spacy", tmp_path, corpus, block=BLOCK, steps=3, settings={"use_averages": False})
    source = {"source": str(tmp_path / "before")}
    config["components"] = {
        "transformer": source,
        "tagger": source,
        "ner": source | {"replace_listeners": ["model.tok2vec"]},
    }
    config["training"]["frozen_components"] = ["transformer", "tagger"]
    config["initialize"]["components"] = {}
    config["training"]["annotating_components"] = ["transformer", "tagger"]
    trained(config, tmp_path / "out")
    after = spacy.load(tmp_path / "out" / "model-last")
    configs = [nlp.config["components"] for nlp in (before, after)]
    assert configs[0]["transformer"] == configs[1]["transformer"] and "'window': 24" in str(configs[1]["ner"])
    docs = [nlp.get_pipe("transformer")(nlp.make_doc("ab cde f . ghab " * 12)) for nlp in (before, after)]
    scores = [nlp.get_pipe("tagger").model.predict([doc])[0] for nlp, doc in zip((before, after), docs)]
    assert numpy.array_equal(*scores)


# ---------------------------------------------------------------------- bad input


def test_a_window_longer_than_the_model_can_read(tmp_path, corpus):
    needs("spacy")
    config = config_with("spacy", tmp_path, corpus, block={"window_pieces": 600})
    with pytest.raises(ConfigError, match="expected at most 512, as 'transformer' can read no more at once, found 600"):
        trained(config, tmp_path / "out")


# ---------------------------------------------------------------------- what is told before


def test_explain_tells_what_is_lost(tmp_path):
    """On texts with a long one: without the block, with it, and on the block without a transformer."""
    needs("spacy")
    corpus = texts_of(tmp_path, extra=[["abcdefgh"] * 90])
    config = config_with("spacy", tmp_path, corpus)
    config["components"]["transformer"]["model"]["get_spans"] |= {"window": 128, "stride": 128}
    config["training"]["batcher"]["size"] = 400
    told = explain(config)
    # 720 wordpieces and two around them, of which 512 are read. All windows have 198 + 82 + 720, and 2 each.
    [note] = [note for note in told.notes if "wordpieces" in note]
    assert note.startswith("1 of 7 windows lose wordpieces: 20.7% of the text. 'transformer' reads at most 512 at once")
    config["training"]["optimizer"]["fine_tuning"] = {"@misc": "thinc-torchopt.FineTuning.v1"}
    told_with = explain(config)
    assert not [note for note in told_with.notes if "wordpieces" in note]
    [line] = [text for label, text in told_with.lines if label == "Windows"]
    assert line.startswith("'transformer' reads windows of 128 wordpieces, 96 apart, 2,048 wordpieces at once")


def test_explain_of_the_block_without_a_transformer(corpus, tmp_path):
    config = config_for(tmp_path, corpus, training__optimizer__fine_tuning={"@misc": "thinc-torchopt.FineTuning.v1"})
    told = explain(config)
    [line] = told.stops
    assert line == (
        "Can't use [training.optimizer.fine_tuning]: expected a component with a transformer, of spacy-transformers or "
        "spacy-curated-transformers, found tok2vec, tagger. Remove the block."
    )
    with pytest.raises(ConfigError, match="expected a component with a transformer"):
        trained(config, tmp_path / "out")
