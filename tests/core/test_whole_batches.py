"""Oracle: spaCy's and spacy-transformers' own functions, in the same updates."""

import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import fix_random_seed

from thinc_torchopt.core import whole_batches
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


def example_of(nlp, n):
    """Of n words, in sentences of four."""
    words = [("Anna", "likes", "blue" * (n % 3), "London")[i % 4] or "a" for i in range(n)]
    sents = [i - i % 4 for i in range(n)]
    gold = {
        "tags": [("NNP", "VBZ", "", "NNP")[i % 4] for i in range(n)],
        "morphs": [("Number=Sing", "Tense=Pres", "", "Number=Sing")[i % 4] for i in range(n)],
        "pos": [("PROPN", "VERB", "ADJ", "PROPN")[i % 4] for i in range(n)],
        "lemmas": [word.lower() for word in words],
        "heads": [min(first + 1, n - 1) for first in sents],
        "deps": ["ROOT" if i == min(first + 1, n - 1) else "dep" for i, first in enumerate(sents)],
        "entities": ["-" if i % 8 == 6 else ("U-PERSON", "O", "O", "U-CITY")[i % 4] for i in range(n)],
        "spans": {"sc": [(0, 4, "X")]},
        "cats": {"LONG": float(n > 5), "SHORT": float(n <= 5)},
    }
    return Example.from_dict(Doc(nlp.vocab, words=words), gold)


def both_ways(monkeypatch, make, *, times=3):
    """Update a pipeline as spaCy does, and faster. RETURNS: Losses and saved pipelines of both."""
    found = []
    for switch in ("0", "1"):
        monkeypatch.setenv(faster.SWITCH, switch)
        nlp, examples = make()
        before = [forward_of(node) for _, pipe in nlp.pipeline for node in pipe.model.walk()]
        losses = update(nlp, examples, times=times)
        assert [forward_of(node) for _, pipe in nlp.pipeline for node in pipe.model.walk()] == before
        assert not any("update" in vars(pipe) for _, pipe in nlp.pipeline if hasattr(pipe, "__dict__"))
        found.append((losses, nlp.to_bytes()))
    return found


def count_calls(monkeypatch):
    """RETURNS (list): Grows by one with each gradient that a head gives to its transformer as a whole."""
    calls, call = [], whole_batches._Head.__call__

    def counting(self, *given, **more):
        calls.append(self.batch is not None)
        return call(self, *given, **more)

    monkeypatch.setattr(whole_batches._Head, "__call__", counting)
    return calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["reduce_mean.v1", "reduce_last.v1"])
def test_updates_are_theirs(tmp_path, monkeypatch, kind, pooling):
    """Losses and weights to the last bit, in windows that overlap."""
    calls = count_calls(monkeypatch)
    theirs, ours = both_ways(monkeypatch, lambda: pipeline(tmp_path, KINDS[kind], pooling=pooling))
    assert theirs == ours and theirs[0]["transformer"] > 0
    assert calls == [True] * 3 * len(KINDS[kind])
