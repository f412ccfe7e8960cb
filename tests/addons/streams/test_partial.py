"""Texts of a stream that annotate some components: the others don't learn from them."""

import pytest
import spacy
import torch
from spacy.training import Example
from thinc.api import fix_random_seed

from ...models import pipeline_params, same, toy_examples, toy_pipeline
from .streams import OPTIMIZER, learn, write_stream

FACTORIES = ("textcat", "spancat", "span_finder")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Entities, and what learns of texts without annotations that there is nothing in them. All share a tok2vec."""
    fix_random_seed(0)
    nlp = toy_pipeline(("ner",))
    width = {"@architectures": "spacy.Tok2VecListener.v1", "width": nlp.get_pipe("tok2vec").model.get_dim("nO")}
    nlp.add_pipe("spancat", config={"model": {"@architectures": "spacy.SpanCategorizer.v1", "tok2vec": width}})
    nlp.add_pipe("span_finder", config={"model": {"@architectures": "spacy.SpanFinder.v1", "tok2vec": width}})
    textcat = {"@architectures": "spacy.TextCatCNN.v2", "exclusive_classes": True, "tok2vec": width}
    nlp.add_pipe("textcat", config={"model": textcat})
    nlp.config["training"]["dropout"] = 0.0
    nlp.config["training"]["optimizer"] = OPTIMIZER
    nlp.initialize(lambda: [annotated(example, i) for i, example in enumerate(toy_examples(nlp, 30))])
    folder = tmp_path_factory.mktemp("model") / "model"
    nlp.to_disk(folder)
    return folder


def annotated(example: Example, i: int) -> Example:
    example.reference.cats = {"A": float(i % 2), "B": float(1 - i % 2)}
    example.reference.spans["sc"] = list(example.reference.ents)
    return example


def with_all(i, record):
    spans = {"sc": record["entities"]}
    return {**record, "cats": {"A": float(i % 2), "B": float(1 - i % 2)}, "spans": spans}


def changed(model, output):
    """The components whose weights have changed."""
    before, after = (pipeline_params(spacy.load(folder)) for folder in (model, output / "model-last"))
    return {name for name in before if not same(before[name], after[name])}


def test_text_without_annotations_teaches_nothing(model, tmp_path):
    """Not even that there is nothing; what all listen to learns from the component that learns."""
    entities = write_stream(tmp_path / "entities.jsonl", 6)
    found, _ = learn(model, entities, tmp_path / "one", replay=1)
    assert changed(model, tmp_path / "one") == {"tok2vec", "ner"}
    assert not [name for name in found[0].scores if name.startswith(("cats", "spans"))]
    # The score is that of the entities alone. spaCy's weights for three components add up to 0.99.
    assert found[0].score == pytest.approx(0.99 * found[0].scores["ents_f"])
    nothing = write_stream(
        tmp_path / "nothing.jsonl", 6, changed=lambda i, record: {"words": record["words"]} if i < 5 else record
    )
    found, _ = learn(model, nothing, tmp_path / "two", save_every=20)
    assert found[0].score is None and found[1].losses["ner"] > 0
    only = tmp_path / "only.jsonl"
    only.write_text(nothing.read_text().splitlines()[5] + "\n")
    learn(model, only, tmp_path / "three")
    assert changed(model, tmp_path / "two") == changed(model, tmp_path / "three") == {"tok2vec", "ner"}


def test_text_that_says_there_is_nothing_teaches_that(model, tmp_path):
    stream = write_stream(
        tmp_path / "stream.jsonl", 6, changed=lambda i, record: {"words": record["words"], "spans": {"sc": []}}
    )
    learn(model, stream, tmp_path / "out")
    assert changed(model, tmp_path / "out") == {"tok2vec", "spancat", "span_finder"}


def test_texts_in_one_batch_teach_what_they_annotate(model, tmp_path):
    """The same as if the others were not there: weights and scores. Without dropout, whose draws would differ."""
    stream = write_stream(
        tmp_path / "stream.jsonl", 4, changed=lambda i, record: with_all(i, record) if i % 2 else record
    )
    found, _ = learn(model, stream, tmp_path / "out", batch_size=4)
    only = tmp_path / "only.jsonl"
    only.write_text("".join(stream.read_text().splitlines(keepends=True)[1::2]))
    alone, _ = learn(model, only, tmp_path / "alone", batch_size=4)
    for name, value in alone[0].scores.items():
        if name.startswith(("cats", "spans")):
            assert found[0].scores[name] == value, name
    one, other = (pipeline_params(spacy.load(tmp_path / name / "model-last")) for name in ("out", "alone"))
    for name in FACTORIES:  # sums of floats in another order, divided by their size: a fiftieth of the rate of 0.005
        for a, b in zip(one[name], other[name]):
            torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=1e-4)
    assert found[0].losses["textcat"] > 0
