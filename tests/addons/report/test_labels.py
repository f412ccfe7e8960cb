"""What a report knows of the trained pipeline: from its folder, and from the first line of the log."""

import json

import pytest
from confection import Config
from spacy.tokens import Doc, DocBin, Span
from spacy.vocab import Vocab

from thinc_torchopt.addons.report import labels
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


def test_labels_are_counted_in_the_first_texts_of_a_corpus(tmp_path, monkeypatch):
    doc = Doc(Vocab(), ["a", "b"], tags=["X", ""], deps=["ROOT", ""], heads=[0, 0], morphs=["Case=Nom|Number=Sing", ""])
    doc.cats, doc.spans["sc"] = {"half": 0.5, "more": 0.75}, [Span(doc, 0, 2, "Y")]
    DocBin(docs=[doc] * 3, store_user_data=True).to_disk(tmp_path / "a.spacy")
    monkeypatch.setattr(labels, "MOST_WORDS", 4)
    found = labels.count_texts(str(tmp_path / "a.spacy"))
    assert (found.n_texts, found.n_words, found.is_whole) == (3, 6, False)
    expected = {"spans_sc": {"Y": 2}, "cats": {"more": 2}, "tag": {"X": 2}, "dep": {"root": 2}}
    assert found.counts == {**expected, "morph": {"Case": 2, "Number": 2}}
    monkeypatch.setattr(labels, "MOST_WORDS", 5)
    assert labels.count_texts(str(tmp_path / "a.spacy")).is_whole
    assert labels.count_texts("") == labels.Texts("")


def test_labels_in_a_table_are_sorted_and_without_empty_columns():
    scores = {"ents_per_type": {"b" * 60: {"p": 0.25, "r": 1.0, "f": 0.4}, "c" * 61: {}, "a": {}}, "ents_f": 0.5}
    entities, areas = labels.tables_of(
        {**scores, "cats_auc_per_type": {"d": 0.75}, "cats_f_per_type": {}},
        {"ents": {"a": 1200, "b" * 60: 1200, "c" * 61: 3}},
        {"cats": {"d": 7}},
    )
    assert entities.headers == ["label", "precision", "recall", "F-score", "in training"]
    none = ["\u2013"] * 3
    assert entities.cells(3) == [
        ["a", *none, "1,200"],
        ["b" * 60, "0.250", "1.000", "0.400", "1,200"],
        ["c" * 59 + "\u2026", *none, "3"],
    ]
    assert (areas.headers, areas.cells(1)) == (["label", "AUC", "annotated"], [["d", "0.750", "7"]])
