"""Oracle: spaCy's and spacy-transformers' own functions, in the same updates."""

import numpy
import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import fix_random_seed

from thinc_torchopt.core import whole_batches, word_losses
from thinc_torchopt.core.host import forward_of
from thinc_torchopt.loop import faster

from ..addons.fine_tuning.small_transformers import write_bert
from ..loop.test_faster import update

pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
KINDS = {
    "tagger": ["tagger"],
    "ner": ["ner"],
    "textcat": ["textcat"],
    "spancat": ["spancat"],
    "words": ["morphologizer", "senter", "trainable_lemmatizer"],
    "three heads": ["tagger", "parser", "ner"],
}
CLASSIFIER = {
    "@architectures": "spacy.TextCatReduce.v1",
    "exclusive_classes": True,
    "use_reduce_first": True,
    "use_reduce_last": False,
    "use_reduce_max": True,
    "use_reduce_mean": True,
}


def pipeline(folder, names, *, window=8, stride=6, pooling="reduce_mean.v1", grad_factor=0.5, settings={}):
    if not (folder / "bert").exists():
        write_bert(folder / "bert", folder / "vocab.txt")
    fix_random_seed(0)
    nlp = spacy.blank("en")
    spans = {"@span_getters": "spacy-transformers.strided_spans.v1", "window": window, "stride": stride}
    model = {
        "@architectures": "spacy-transformers.TransformerModel.v3",
        "name": str(folder / "bert"),
        "get_spans": spans,
    }
    nlp.add_pipe("transformer", config={"model": model})
    for name in names:
        listener = {"@architectures": "spacy-transformers.TransformerListener.v1", "pooling": {"@layers": pooling}}
        model = {"tok2vec": listener | {"grad_factor": grad_factor}} | (CLASSIFIER if name == "textcat" else {})
        more = settings | ({"min_action_freq": 1} if name == "parser" else {})
        nlp.add_pipe(name, config={"model": model} | more)
    examples = [example_of(nlp, n) for n in (3, 11, 1, 25, 7)]
    nlp.initialize(lambda: examples)
    return nlp, examples


def example_of(nlp, n, word=None):
    """Of n words, in sentences of four."""
    words = [word or ("Anna", "likes", "blue" * (n % 3), "London")[i % 4] or "a" for i in range(n)]
    sents = [i - i % 4 for i in range(n)]
    gold = {
        "tags": [("NNP", "VBZ", "", "NNP")[i % 4] for i in range(n)],
        "morphs": [("Number=Sing", "Tense=Pres", "", "Number=Sing")[i % 4] for i in range(n)],
        "pos": [("PROPN", "VERB", "ADJ", "PROPN")[i % 4] for i in range(n)],
        "lemmas": [word.lower() for word in words],
        "heads": [min(first + 1, n - 1) for first in sents],
        "deps": ["ROOT" if i == min(first + 1, n - 1) else "dep" for i, first in enumerate(sents)],
        "entities": ["-" if i % 8 == 6 else ("U-PERSON", "O", "O", "U-CITY")[i % 4] for i in range(n)],
        "spans": {"sc": [(0, len(words[0]), "X")] if words else []},
        "cats": {"LONG": float(n > 5), "SHORT": float(n <= 5)},
    }
    return Example.from_dict(Doc(nlp.vocab, words=words), gold)


def both_ways(monkeypatch, make, *, times=3, **arguments):
    """Update a pipeline as spaCy does, and faster. RETURNS: Losses and saved pipelines of both."""
    found = []
    for switch in ("0", "1"):
        monkeypatch.setenv(faster.SWITCH, switch)
        nlp, examples = make()
        before = functions(nlp)
        losses = update(nlp, examples, times=times, **arguments)
        assert functions(nlp) == before
        found.append((losses, nlp.to_bytes()))
    return found


def functions(nlp):
    """All that may be replaced for an update."""
    forwards = [forward_of(node) for _, pipe in nlp.pipeline for node in pipe.model.walk()]
    return forwards, [name for name, pipe in nlp.pipeline if "update" in getattr(pipe, "__dict__", ())]


@pytest.fixture
def whole(monkeypatch):
    """RETURNS (list): Grows with each call of a head: whether it read the batch as a whole."""
    calls, call = [], whole_batches._Head.__call__
    monkeypatch.setattr(
        whole_batches._Head,
        "__call__",
        lambda self, *given, **more: calls.append(self.batch is not None) or call(self, *given, **more),
    )
    return calls


@pytest.fixture
def differences(monkeypatch):
    """RETURNS (list): Grows with each gradient of a tagger: by its number of words."""
    calls, compute = [], word_losses._differences
    monkeypatch.setattr(
        word_losses, "_differences", lambda pipe, scores, ids: calls.append(len(ids)) or compute(pipe, scores, ids)
    )
    return calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["reduce_mean.v1", "reduce_last.v1"])
def test_updates_are_theirs(tmp_path, monkeypatch, whole, differences, kind, pooling):
    """Losses and weights to the last bit, in windows that overlap."""
    theirs, ours = both_ways(monkeypatch, lambda: pipeline(tmp_path, KINDS[kind], pooling=pooling))
    assert theirs == ours and theirs[0]["transformer"] > 0
    assert whole == [True] * 3 * len(KINDS[kind])
    n_taggers = len({"tagger", "morphologizer", "senter", "trainable_lemmatizer"} & {*KINDS[kind]})
    assert sorted(differences) == sorted([*(3, 11, 1, 25, 7) * n_taggers, *[47] * 3 * n_taggers])


def without_first(docs):
    return [[doc[1:]] if len(doc) > 1 else [doc[:]] for doc in docs]


# What is done to the pipeline and its texts; how it is updated; whether heads read batches as a whole; the number of
# batches for which the tagger computes one loss.
CASES = {
    "label smoothing": (lambda nlp, examples: nlp.get_pipe("tagger").cfg.update(label_smoothing=0.2), {}, True, 3),
    "negative label": (lambda nlp, examples: setattr(examples[1].y[1], "tag_", "!NNP"), {}, True, 0),
    "empty text": (lambda nlp, examples: examples.insert(1, example_of(nlp, 0)), {}, False, 0),
    "text without wordpieces": (lambda nlp, examples: examples.insert(1, example_of(nlp, 1, "\n")), {}, False, 3),
    "token outside of spans": (
        lambda nlp, examples: nlp.get_pipe("transformer").model.attrs.update(get_spans=without_first),
        {},
        False,
        0,
    ),
    "last head frozen": (lambda nlp, examples: None, {"exclude": ["ner"]}, True, 3),
    "first head frozen": (lambda nlp, examples: None, {"exclude": ["tagger"]}, True, 0),
    "listener replaced": (
        lambda nlp, examples: nlp.replace_listeners("transformer", "tagger", ["model.tok2vec"]),
        {},
        True,
        3,
    ),
    "transformer annotates": (lambda nlp, examples: None, {"annotates": ["transformer"]}, None, 0),
    "transformer frozen": (
        lambda nlp, examples: None,
        {"annotates": ["transformer"], "exclude": ["transformer"]},
        None,
        0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_updates_are_theirs_in_special_cases(tmp_path, monkeypatch, whole, differences, case):
    change, arguments, is_whole, n_losses = CASES[case]

    def make():
        nlp, examples = pipeline(tmp_path, ["textcat"] if case == "token outside of spans" else ["tagger", "ner"])
        change(nlp, examples)
        return nlp, examples

    theirs, ours = both_ways(monkeypatch, make, **arguments)
    assert theirs == ours
    assert {*whole} == ({is_whole} - {None}) and len([n for n in differences if n > 25]) == n_losses


def test_all_is_put_back_after_an_error(tmp_path, monkeypatch):
    """Scores that are no numbers are spaCy's error, after which the update is skipped."""
    monkeypatch.setenv(faster.SWITCH, "1")
    nlp, examples = pipeline(tmp_path, ["tagger", "ner"])
    softmax, before = nlp.get_pipe("tagger").model.get_ref("softmax"), functions(nlp)
    softmax.set_param("W", softmax.get_param("W") * numpy.nan)
    with pytest.raises(ValueError, match="E940"):
        update(nlp, examples, times=1)
    assert functions(nlp) == before
