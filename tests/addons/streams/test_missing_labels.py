"""A stream without labels that the pipeline finds: told once, in its first texts, and nothing else changes."""

import pytest
from thinc.api import fix_random_seed

from ...models import pipeline_params, same, toy_examples, toy_pipeline
from .streams import OPTIMIZER, learn, load, write_stream


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A pipeline that finds names and cities."""
    fix_random_seed(0)
    nlp = toy_pipeline(["ner"])
    # A high rate would make it forget within five texts.
    nlp.config["training"]["optimizer"] = OPTIMIZER | {"learn_rate": 0.0002}
    examples = toy_examples(nlp, 4)
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(120):
        nlp.update(examples, sgd=optimizer)
    path = tmp_path_factory.mktemp("model") / "model"
    nlp.to_disk(path)
    return path


def without_cities(i, record):
    return record | {"entities": [one for one in record["entities"] if one[2] != "CITY"]}


def without_tags(change=lambda i, record: record):
    return lambda i, record: {key: value for key, value in change(i, record).items() if key != "tags"}


@pytest.mark.parametrize("prequential", [True, False])
def test_learner_tells_of_missing_labels(model, tmp_path, prequential):
    stream = write_stream(tmp_path / "stream.jsonl", 15, changed=without_tags(without_cities))
    _, told = learn(model, stream, tmp_path / "out", prequential=prequential)
    [conflict] = [one for one in told if "CITY" in one]
    assert "'ner' (trained before): the first 10 texts have no CITY, where the pipeline finds" in conflict
    assert "--new-labels add" in conflict
    stream = write_stream(tmp_path / "whole.jsonl", 15, changed=without_tags())
    assert not learn(model, stream, tmp_path / "whole", prequential=prequential)[1]


def test_learner_tells_of_missing_labels_over_several_runs(model, tmp_path):
    """As with a few texts a day: once, when there are enough of them."""
    stream = write_stream(tmp_path / "stream.jsonl", 15, changed=without_tags(without_cities))
    lines, told = stream.read_text().splitlines(keepends=True), []
    for end in (4, 8, 12, 15):
        stream.write_text("".join(lines[:end]))
        told.append([one for one in learn(model, stream, tmp_path / "out")[1] if "CITY" in one])
    assert [len(one) for one in told] == [0, 0, 1, 0] and "the first 10 texts have no CITY" in told[2][0]


def test_learner_looks_without_a_change(model, tmp_path, monkeypatch):
    """Weights are those of a run that does not look, to the bit; and nothing is told if the teacher fills it in."""
    stream = write_stream(tmp_path / "stream.jsonl", 12, changed=without_tags(without_cities))
    learn(model, stream, tmp_path / "looked", prequential=False)
    with monkeypatch.context() as patch:
        patch.setattr("thinc_torchopt.addons.streams.learner.StreamLearner._look_for_missing", lambda *args: None)
        learn(model, stream, tmp_path / "not", prequential=False)
    looked, others = (pipeline_params(load(tmp_path / name / "model-last")[0]) for name in ("looked", "not"))
    assert all(same(looked[name], others[name]) for name in looked)
    _, told = learn(model, stream, tmp_path / "taught", new_labels="add")
    assert not [one for one in told if "they will teach" in one]
