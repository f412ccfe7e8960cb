"""Checks of configs that spaCy would fail at late, or pass over."""

import shutil
import warnings
from io import FileIO

import pytest
import spacy
from confection import Config
from spacy.tokens import DocBin

from thinc_torchopt.core.config_checks import (
    check_corpora,
    check_gpu,
    check_labels,
    check_output,
    check_training_section,
    mentions_ours,
    names_ours,
    sections_of,
)
from thinc_torchopt.core.errors import ConfigError, ConfigKeyError

from ..conftest import CONFIGS


@pytest.fixture
def config():
    return Config().from_disk(CONFIGS / "cnn.cfg", interpolate=False)


def test_every_config_of_ours_is_one_of_ours_by_text_and_by_content():
    for path in CONFIGS.glob("*.cfg"):
        assert mentions_ours(path.read_text()) and names_ours(Config().from_disk(path, interpolate=False)), path
    default = spacy.blank("en").config
    assert not names_ours(default) and not mentions_ours(default.to_str())
    assert names_ours({"a": {"@torch_optimizers": "mine.v1"}})


def test_sections_come_before_their_subsections():
    assert [section.path for section in sections_of({"a": {"b": {}, "x": 1}, "c": {}})] == ["a", "a.b", "c"]


def test_gpus_that_can_not_be_used(monkeypatch):
    asked = []

    def require_gpu(number):
        asked.append(number)
        raise [ValueError("Cannot use GPU, none here."), RuntimeError][number]

    monkeypatch.setattr("thinc_torchopt.core.config_checks.require_gpu", require_gpu)
    check_gpu(-1)
    for number, said in enumerate(("none here", "RuntimeError")):
        with pytest.raises(ConfigError, match=f"Can't use --gpu-id {number}: {said}. spaCy needs CuPy"):
            check_gpu(number)
    assert asked == [0, 1]


def test_corpora_are_looked_for_as_far_as_spacy_reads_them(config, tmp_path):
    train, dev = tmp_path / "train.spacy", tmp_path / "dev"
    with pytest.raises(ConfigError, match=r"\[corpora.train\]: its path is not set.*--paths.train train.spacy"):
        check_corpora(config)
    DocBin(docs=[spacy.blank("en")("A text")]).to_disk(train)
    dev.mkdir()
    shutil.copy(train, dev)
    config["paths"] = {"train": str(train), "dev": str(dev)}
    check_corpora(config)
    config["paths"]["dev"] = str(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"\[corpora.dev\]: there is no file or folder '.*gone'"):
        check_corpora(config)
    check_corpora(config, ["train_corpus"])
    check_corpora(config, files=False)
    config["paths"]["dev"] = None
    with pytest.raises(ConfigError, match=r"\[corpora.dev\]: its path is not set"):
        check_corpora(config, files=False)
    config["corpora"]["dev"] = {"@readers": "mine.Corpus.v1", "path": "s3://somewhere"}
    check_corpora(config)


@pytest.mark.parametrize(
    ("reader", "ending"), [("Corpus", ".spacy"), ("JsonlCorpus", ".jsonl"), ("PlainTextCorpus", ".txt")]
)
def test_folders_and_files_that_a_reader_passes_over(config, tmp_path, reader, ending):
    """spaCy warns, and stops far below with an assertion about the model of a component."""
    config["corpora"]["train"]["@readers"] = f"spacy.{reader}.v1"
    other = tmp_path / "text.bin"
    other.write_bytes(b"x")
    for path, told in ((tmp_path, "there is no such file in"), (other, "text.bin' does not")):
        config["paths"]["train"] = str(path)
        with warnings.catch_warnings(), pytest.raises(ConfigError, match=rf"\[corpora.train\].*{told}"):
            warnings.simplefilter("error")
            check_corpora(config, ["train_corpus"])
    file = tmp_path / f"text{ending}"
    for path in (file, tmp_path):
        file.touch()
        config["paths"]["train"] = str(path)
        with pytest.raises(ConfigError, match="is empty"):
            check_corpora(config, ["train_corpus"])
    file.write_bytes(b"\x78")
    check_corpora(config, ["train_corpus"])


def test_corpora_that_are_no_section(config):
    config["training"]["train_corpus"] = "corpora.trian"
    with pytest.raises(ConfigError, match=r"'train_corpus' in \[training\]: .* Did you mean 'corpora.train'"):
        check_corpora(config, ["train_corpus"])
    config["training"]["train_corpus"] = ["corpora.train", "corpora.dev"]
    with pytest.raises(ConfigError, match="expected the name of a section, found"):
        check_corpora(config, ["train_corpus"])
    config["training"]["train_corpus"] = "corpora.first"
    config["corpora"] = {"@readers": "mine.Several.v1"}
    check_corpora(config, ["train_corpus"])


@pytest.mark.parametrize(
    ("section", "slip", "advice"),
    [
        ("training", "zzz", "There are: accumulate_gradient"),
        ("nlp", "batchsize", "Did you mean 'batch_size'"),
        ("initialize", "vector", "Did you mean 'vectors'"),
    ],
)
def test_sections_are_checked_against_spacys_schemas(config, section, slip, advice):
    check_training_section(config)
    config.setdefault(section, {})[slip] = 1
    with pytest.raises(ConfigKeyError, match=rf"\[{section}\]: there is no setting '{slip}'.*{advice}"):
        check_training_section(config)


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        *(("max_steps", 0, None), ("max_epochs", -1, None), ("patience", 0, None), ("eval_frequency", 1, None)),
        *(("accumulate_gradient", 1, None), ("dropout", 0, 1)),
    ],
)
def test_numbers_have_bounds(config, setting, least, most):
    for value in (least, least + 0.5) if most is None else (least, most):
        config["training"][setting] = value
        check_training_section(config)
    expected = f"at least {least}" if most is None else f"a number from {least} to {most}"
    for value in [least - 0.01] if most is None else (least - 0.01, most + 0.01):
        config["training"][setting] = value
        with pytest.raises(ConfigError, match=rf"'{setting}' in \[training\]: expected {expected}, found {value}"):
            check_training_section(config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score_weights": {"a": True}}, r"'a' in \[training.score_weights\]: expected a number, .* found True"),
        ({"score_weights": {"a": "1"}}, r"'a' in \[training.score_weights\]: expected a number, .* found '1'"),
        ({"score_weights": {"a": None, "b": 0.5, "c": "${vars.c}"}}, None),
        ({"frozen_components": ["taggr"]}, "'frozen_components' in .* no component 'taggr' .* Did you mean 'tagger'"),
        ({"annotating_components": ["tagger", "x"]}, "'annotating_components' in .* no component 'x' .* There are: "),
        ({"frozen_components": ["${vars.frozen}", "tok2vec"], "annotating_components": None}, None),
    ],
)
def test_weights_and_components_of_a_training_are_checked(config, changes, said):
    config["training"] |= changes
    if said is None:
        return check_training_section(config)
    with pytest.raises(ConfigError, match=said):
        check_training_section(config)


def test_labels_of_a_parser_are_transitions(config, tmp_path):
    (tmp_path / "labels.json").write_text('["nsubj"]')
    config["components"]["parser"] = {"factory": "parser"}
    for labels in (["nsubj"], {"@readers": "spacy.read_labels.v1", "path": str(tmp_path / "labels.json")}):
        config["initialize"] = {"components": {"parser": {"labels": labels}}}
        with pytest.raises(ConfigError, match=r"\[initialize.components.parser.*expected the transitions of a parser"):
            check_labels(config)
    config["components"]["parser"]["factory"] = "tagger"
    check_labels(config)
    block = {"@readers": "spacy.read_labels.v1", "path": str(tmp_path / "none.json")}
    config["initialize"]["components"]["parser"] = {"labels": block, "more": {"@readers": "mine.v1", "path": "x"}}
    check_labels(config)
    block["require"] = True
    with pytest.raises(ConfigError, match=r"there is no file '.*none.json'"):
        check_labels(config)
    (tmp_path / "none.json").write_text("[]", "utf-16")
    with pytest.raises(ConfigError, match="expected a text in UTF-8, found UTF-16"):
        check_labels(config)


def test_files_that_are_not_in_spacys_binary_format(config, tmp_path):
    config["paths"]["train"] = str(tmp_path / "a.spacy")
    for content, said in ((b"version https://git-lfs", "a pointer of Git LFS"), (b"text", "is not in spaCy")):
        (tmp_path / "a.spacy").write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            check_corpora(config, ["train_corpus"])


def test_texts_that_a_reader_can_not_decode(config, tmp_path):
    (tmp_path / "text.jsonl").write_text("{}", "utf-16")
    config["corpora"]["train"] = {"@readers": "spacy.JsonlCorpus.v1", "path": str(tmp_path / "text.jsonl")}
    with pytest.raises(ConfigError, match=r"\[corpora.train\], '.*': expected a text in UTF-8, found UTF-16"):
        check_corpora(config, ["train_corpus"])


def test_output_needs_room(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: FileIO("/dev/full", "w"))
    with pytest.raises(ConfigError, match="can't be written to"):
        check_output(tmp_path)


def test_output_may_be_a_link_to_a_folder_only(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with pytest.raises(ConfigError, match=r"'.*link': it is a link to '.*folder', which does not exist"):
        check_output(tmp_path / "link")
    (tmp_path / "folder").mkdir()
    check_output(tmp_path / "link")
