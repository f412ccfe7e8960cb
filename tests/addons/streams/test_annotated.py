"""Texts without annotations for any component: an error, and nothing is saved. For some: it is said."""

import itertools
from contextlib import suppress

import pytest
import spacy

from thinc_torchopt.addons.streams.records import make_example
from thinc_torchopt.addons.streams.teaching import AnnotatedTexts, Teaches
from thinc_torchopt.core.errors import ConfigError, StreamError

from ...models import toy_pipeline
from .streams import files, learn, make_model, rows, stops, write_stream


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


def in_another_form(i, record):
    return {"text": " ".join(record["words"]), "marks": record["entities"], "id": i}


def bare(i, record):
    return {"words": record["words"]}


def without_tags(i, record):
    return {"words": record["words"], "entities": record["entities"]}


@pytest.mark.parametrize("settings", [{}, {"save_every": 10}, {"prequential": False, "skip_bad": True}, {"replay": 1}])
def test_stream_of_another_form_is_an_error(model, tmp_path, settings):
    """Nothing of it is saved: when it is repaired, the same command learns it."""
    stream = write_stream(tmp_path / "stream.jsonl", 20, changed=in_another_form)
    with pytest.raises(StreamError) as error:
        learn(model, stream, tmp_path / "out", **settings)
    said = str(error.value)
    assert "expected annotations for 'tagger' (tags) or 'ner' (entities), found none in " in said
    assert "'marks' in 20 texts" in said and "'tags' or 'entities'" in said
    write_stream(tmp_path / "stream.jsonl", 20)
    learn(model, stream, tmp_path / "out", **settings)
    learn(model, stream, tmp_path / "one", **settings)
    assert files(tmp_path / "out") == files(tmp_path / "one") and rows(tmp_path / "out") == rows(tmp_path / "one")


def test_stream_may_begin_without_annotations(model, tmp_path):
    """It is told at each save, until there are some; --follow has no end."""
    stream = write_stream(tmp_path / "stream.jsonl", 20, changed=lambda i, one: bare(i, one) if i < 12 else one)
    _, told = learn(model, stream, tmp_path / "out", save_every=5)
    assert [text.partition(" have")[0] for text in told] == ["5 of 5 texts", "10 of 10 texts", "12 of 20 texts"]


def test_stream_that_goes_on_in_another_form_is_an_error(model, tmp_path):
    """Also after texts that were learned, when these have ended; not in the midst of them."""
    stream = write_stream(tmp_path / "stream.jsonl", 5)
    learn(model, stream, tmp_path / "out")
    before, learned = files(tmp_path / "out"), stream.read_text()
    more = write_stream(tmp_path / "more.jsonl", 3, changed=bare).read_text()
    stream.write_text(learned + more)
    with pytest.raises(StreamError, match=r"found none in 3 texts\. Give them under the keys"):
        learn(model, stream, tmp_path / "out")
    assert files(tmp_path / "out") == before
    _, told = learn(model, stream, tmp_path / "one")
    assert told == ["3 of 8 texts have no annotations for any component: nothing was learned from them."]


def test_stream_with_bare_texts_goes_on_after_a_kill(model, tmp_path):
    """A run that was killed or stopped before the last, bare texts says the same as one that was not."""
    lines = [write_stream(tmp_path / name, 6, changed=change).read_text() for name, change in
             (("a", lambda i, record: record), ("b", bare))]  # fmt: skip
    stream = tmp_path / "stream.jsonl"
    stream.write_text("".join(lines))
    asked = itertools.count()
    _, expected = learn(model, stream, tmp_path / "one", save_every=5, is_stopped=lambda: next(asked) < 0)
    n_asked = next(asked)
    for ending in (KeyboardInterrupt, None):
        folder = tmp_path / str(ending)
        with suppress(KeyboardInterrupt):
            learn(model, stream, folder, save_every=5, is_stopped=stops(0.6 * n_asked, ending))
        assert 5 <= rows(folder)[-1]["texts"] < 12
        _, told = learn(model, stream, folder, save_every=5)
        assert told == expected and "6 of 12 texts" in told[0]
        assert files(folder) == files(tmp_path / "one")


def test_stream_that_is_stopped_before_it_taught_anything(model, tmp_path):
    """Says so, and saves nothing."""
    stream = write_stream(tmp_path / "stream.jsonl", 9, changed=in_another_form)
    _, told = learn(model, stream, tmp_path / "out", is_stopped=stops(6))
    assert told[0] == "'marks' of texts is not used."
    assert "have no annotations for any component" in told[-1] and "'marks' in" in told[-1]
    write_stream(tmp_path / "stream.jsonl", 9)
    learn(model, stream, tmp_path / "out")
    assert rows(tmp_path / "out")[-1]["texts"] == 9


def test_stream_for_some_components_only_is_told(model, tmp_path):
    stream = write_stream(tmp_path / "stream.jsonl", 6, changed=without_tags)
    _, told = learn(model, stream, tmp_path / "out")
    assert told == ["'tagger' has learned nothing: 6 texts without tags."]
    assert not learn(model, write_stream(tmp_path / "all.jsonl", 6), tmp_path / "all")[1]


def test_frozen_components_need_no_annotations(model, tmp_path):
    nlp = spacy.load(model)
    nlp.config["training"]["frozen_components"] = ["tagger"]
    nlp.to_disk(tmp_path / "model")
    stream = write_stream(tmp_path / "stream.jsonl", 6, changed=without_tags)
    assert not learn(tmp_path / "model", stream, tmp_path / "out")[1]
    only_tags = write_stream(tmp_path / "tags.jsonl", 6, changed=lambda i, one: {k: one[k] for k in ("words", "tags")})
    with pytest.raises(StreamError, match=r"annotations for 'ner' \(entities\), found none in 6 texts"):
        learn(tmp_path / "model", only_tags, tmp_path / "other")
    nlp.config["training"]["frozen_components"] = ["tok2vec"]
    nlp.to_disk(tmp_path / "model")
    with pytest.raises(ConfigError, match="'tagger': it listens"):
        learn(tmp_path / "model", only_tags, tmp_path / "third")
    nlp.config["training"]["frozen_components"] = ["ner"]  # the last one that listens
    nlp.to_disk(tmp_path / "model")
    assert "'tok2vec' learns nothing: spaCy sends it" in learn(tmp_path / "model", only_tags, tmp_path / "third")[1][0]


ANNOTATIONS = {
    "tagger": {"tags": ["A", "B"]},
    "morphologizer": {"morphs": ["A=b", ""]},
    "trainable_lemmatizer": {"lemmas": ["a", "b"]},
    "parser": {"heads": [0, 0], "deps": ["ROOT", "x"]},
    "senter": {"sent_starts": [True, False]},
    "ner": {"entities": []},
    "textcat": {"cats": {"A": 1.0}},
    "textcat_multilabel": {"cats": {"A": 0.0}},
    "spancat": {"spans": {"sc": []}},
    "span_finder": {"spans": {"sc": [[0, 1, "X"]]}},
}


@pytest.mark.parametrize("factory", ANNOTATIONS)
def test_each_kind_of_annotation_is_seen(factory):
    nlp = toy_pipeline([factory])
    teaches, words = Teaches(nlp, nlp.pipe_names), {"words": ["a", "b"]}
    assert teaches.components(make_example(nlp, {**words, **ANNOTATIONS[factory]}, "x")) == [factory]
    assert teaches.components(make_example(nlp, words, "x")) == []
    found = AnnotatedTexts()
    found.add([], ["labels", "x", "y", "z"])
    told = f"for '{factory}'.*Not used: 'labels' in 1 text, 'x' in 1 text, 'y' in 1 text\\. Give"
    with pytest.raises(StreamError, match=told):
        teaches.check(found)


def test_components_that_nobody_knows_may_learn_from_anything(model):
    nlp = spacy.load(model)
    custom = nlp.get_pipe("ner")
    spacy.Language.factory("annotated-test-custom", func=lambda nlp, name: custom)
    nlp.add_pipe("annotated-test-custom")
    teaches, found = Teaches(nlp, nlp.pipe_names), AnnotatedTexts()
    found.add([], [])
    assert not teaches.in_vain(found)
    teaches.check(found)
    assert list(teaches.doubts(found)) == [
        "1 of 1 text have no annotations for any component: nothing was learned from them."
    ]
