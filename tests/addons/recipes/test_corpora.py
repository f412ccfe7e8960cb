"""What is said of a corpus that can't be read, and where a training on one ends."""

import math
import warnings

import pytest
import spacy
from spacy.training.loop import create_train_batches
from spacy.util import registry

from thinc_torchopt.addons.recipes import read_corpus, words_of_batches
from thinc_torchopt.addons.recipes.corpora import EPOCHS, LEAST, find_end
from thinc_torchopt.core.errors import ConfigError

from ...cli.test_init import CORPUS, TEN, put_spans, texts_in

ERRORS = {
    "column": (
        ValueError("no column 'text'."),
        r"ValueError: no column 'text' at line \d+ of '.*test_corpora.py'\. Correct",
    ),
    "file": (
        FileNotFoundError(2, "No such file", "a.tsv"),
        r"No such file: 'a.tsv' at line \d+ of .*\. Correct the reader",
    ),
    "none": (None, r"none\. Check the path of the corpus, and whether its reader leaves texts out\."),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_corpora_say_where_a_reader_has_raised(kind):
    error, found = ERRORS[kind]

    @registry.readers("test-corpora.Reader.v1")
    def reader():
        def read(nlp):
            if error is not None:
                raise error
            warnings.warn("[W090] as spaCy's reader of no files, which the error tells", stacklevel=2)
            yield from ()

        return read

    @registry.readers("test-corpora.Both.v1")
    def both():
        return {"train": reader(), "dev": reader()}

    nlp, of_one = spacy.blank("xx"), {"@readers": "test-corpora.Reader.v1"}
    for nlp.config["corpora"] in ({"train": of_one, "dev": of_one}, {"@readers": "test-corpora.Both.v1"}):
        with pytest.raises(ConfigError, match=rf"^Can't try: expected texts in \[corpora\.train\], found:? {found}"):
            read_corpus(nlp, nlp.config.interpolate(), "train_corpus", purpose="try")


@pytest.mark.parametrize("size", [40, 300, {"@schedules": "compounding.v1", "start": 20, "stop": 200, "compound": 1.1}])
def test_end_counts_epochs_as_spacy_does(size, tmp_path):
    """spaCy's own batches of so many epochs. All texts are equally long: it shuffles from the second epoch on."""
    path, nlp = texts_in(tmp_path, words=TEN[:5], n=60)
    batcher = {"@batchers": "spacy.batch_by_words.v1", "size": size, "tolerance": 0.2, "discard_oversize": False}
    read, theirs, ours = (
        spacy.registry.resolve(
            {
                "corpus": {"@readers": "spacy.Corpus.v1", "path": path, **CORPUS},
                "batcher": {**batcher, "get_length": None},
            }
        )[key]
        for key in ("corpus", "batcher", "batcher")
    )
    batches = create_train_batches(nlp, read, theirs, max_epochs=EPOCHS)
    expected = [sum(len(example) for example in batch) for _, batch in batches]
    assert list(words_of_batches(ours, list(read(nlp)), EPOCHS)) == expected


@pytest.mark.parametrize(
    ("counts", "frozen", "spans"),
    [((300, 20), [], 20), ((300, 0), [], 300), ((300, 20), ["rare"], 300), ((0, 0), [], math.inf)],
)
def test_end_asks_the_categorizer_with_the_fewest_spans(counts, frozen, spans, tmp_path):
    """Of those that are trained, and have spans to learn from."""
    path, nlp = texts_in(tmp_path, lambda i, doc: [put_spans(i, doc, n, key) for key, n in zip(("sc", "rare"), counts)])
    nlp.add_pipe("spancat")
    nlp.add_pipe("spancat", "rare", config={"spans_key": "rare"})
    nlp.config["corpora"]["train"]["path"] = path
    nlp.config["training"]["frozen_components"] = frozen
    end = find_end(nlp, 20)
    assert end.spans == pytest.approx(spans / 50)
    assert ("spans are few" in end.reason) is math.isfinite(spans)


@pytest.mark.parametrize("factory", ["spancat", "span_finder"])
def test_end_counts_texts_without_spans(factory, tmp_path):
    """They tell that there are none: they are learned from."""
    path, nlp = texts_in(tmp_path, lambda i, doc: put_spans(i, doc, 10) if i < 10 else None)
    nlp.add_pipe(factory)
    nlp.config["paths"]["train"] = path
    assert find_end(nlp, 400).steps == LEAST
