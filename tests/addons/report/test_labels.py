"""What a report knows of the trained pipeline: from its folder, and from the first line of the log."""

import json

import pytest
from confection import Config

from thinc_torchopt.addons.report.report import _beside, read_report
from thinc_torchopt.core.errors import ConfigError

from .kit import Page, needs_matplotlib, row, rows, write

CORPORA = {"train": {"path": "train.spacy"}, "dev": {"path": "dev.spacy"}}
OPTIMIZER = {
    "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
    "learn_rate": {"@schedules": "warmup_linear.v1", "initial_rate": 0.1},
    "checkpoint": {"@misc": "thinc-torchopt.Checkpoint.v1", "keep": 2},
}
TRAINING = {
    "train_corpus": "corpora.train",
    "dev_corpus": "corpora.dev",
    "seed": 0,
    "dropout": 0.1,
    "max_steps": 100,
    "frozen_components": [],
    "optimizer": OPTIMIZER,
}


def saved(folder, *, labels=("A", "B"), corpora=None, pipeline=("tok2vec", "ner"), **training):
    """The files of a trained pipeline that a report reads, and its log in the folder above. RETURNS: the folder."""
    config = {"nlp": {"pipeline": list(pipeline)}, "corpora": corpora or CORPORA, "training": {**TRAINING, **training}}
    folder.mkdir(parents=True)
    Config(config).to_disk(folder / "config.cfg")
    (folder / "meta.json").write_text(json.dumps({"labels": {"ner": list(labels)}}))
    components = [{"name": name, "labels": list(labels) if name == "ner" else []} for name in pipeline]
    lines = [{**row(0), "trained": {"components": components, "config": config}}, *rows(3)[1:]]
    write(folder.parent / "log.jsonl", lines)
    return folder


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, None),
        ({"max_steps": 999, "patience": 7}, None),  # as when a run is resumed
        ({"labels": ["A", "B", "C"]}, None),  # some come late
        ({"labels": ["A", "C"]}, r"labels of ner: \['A', 'B'\] in the log, \['A', 'C'\] in the pipeline"),
        ({"pipeline": ["tok2vec", "tagger"]}, "components: .*'ner'.* in the log, .*'tagger'.* in the pipeline"),
        ({"corpora": {**CORPORA, "train": {"path": "b"}}}, "corpora.train.path: 'train.spacy' in the log, 'b' in the"),
        ({"corpora": {**CORPORA, "dev": {"path": "b"}}}, "corpora.dev.path: 'dev.spacy' in the log, 'b' in the"),
        ({"dropout": 0.2}, "training.dropout: 0.1 in the log, 0.2 in the pipeline"),
        (
            {"optimizer": {**OPTIMIZER, "learn_rate": {"@schedules": "warmup_linear.v1", "initial_rate": 0.2}}},
            "training.optimizer.learn_rate.initial_rate: 0.1 in the log, 0.2 in the pipeline",
        ),
        ({"optimizer": {**OPTIMIZER, "checkpoint": {"@misc": "thinc-torchopt.Checkpoint.v1", "keep": 9}}}, None),
    ],
)
def test_labels_refuse_the_model_of_another_training(other, said, tmp_path):
    saved(tmp_path / "one" / "model-best")
    model = saved(tmp_path / "two" / "model-best", **other)
    assert read_report(tmp_path / "two").trained.components  # its own
    if said is None:
        assert read_report(tmp_path / "one" / "log.jsonl", model=model).trained.components
        return
    with pytest.raises(ConfigError, match=rf"Can't use .*model-best with .*log.jsonl: another training.*\n  {said}"):
        read_report(tmp_path / "one" / "log.jsonl", model=model)


@needs_matplotlib
def test_labels_of_logs_that_say_odd_things_about_their_training(tmp_path):
    odd = [
        {"components": 3, "config": []},
        {"components": [None, {"name": 3}, {"name": "<w>", "labels": ["<x>", 4], "n_labels": "many"}]},
        {"lang": [], "config": {"training": {"a": {"b.c": 1}, "train_corpus": 7}, "corpora": {"train": 3}}},
        {"config": {"training": {"frozen_components": 4}, "corpora": {"train": {"path": "/dev/null"}}}},
        {"components": [{"name": "<w>"}], "config": {"training": {"frozen_components": ["<y>"]}}},
    ]
    for found in odd:
        path = write(tmp_path / "log.jsonl", [{**row(0), "trained": found}, row(1)])
        assert _beside(read_report(path))["label_tables"] == []
    read_report(path).to_disk(tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert not page.all("w") and "Trained: <w>." in page.texts
