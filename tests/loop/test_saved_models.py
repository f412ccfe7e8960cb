"""spaCy's models on a disk that is full for a while: a training goes on, and no model is half written."""

import errno
import json
import math
import os
import shutil
from unittest.mock import Mock

import pytest
import spacy
from spacy.language import Language
from spacy.pipeline import Tagger
from spacy.util import registry

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import CheckpointWarning, ConfigError, StateError
from thinc_torchopt.core.text_files import check_encoding, decode
from thinc_torchopt.loop.progress import Progress
from thinc_torchopt.loop.saved_models import SavedModels

from ..runs import config_for, contents, train


@pytest.fixture
def full_at(monkeypatch):
    """Let saves fail, by their number."""
    saved, codes = [], {}
    original = Language.to_disk

    def to_disk(self, path, **kwargs):
        saved.append(path)
        original(self, path, **kwargs)
        if code := codes.get(len(saved)):
            raise OSError(code, os.strerror(code), str(path))

    def fill(*numbers, code=errno.ENOSPC):
        codes.update(dict.fromkeys(numbers, code))
        return saved

    monkeypatch.setattr(Language, "to_disk", to_disk)
    return fill


def steps_of(corpus, tmp_path):
    return config_for(tmp_path, corpus, steps=15, training__optimizer__checkpoint=None)


@pytest.mark.parametrize("what", ["loss", "score"])
def test_a_number_that_is_nan_does_not_end_a_training(what, corpus, tmp_path, monkeypatch):
    """Where spaCy would write it into a model: at step 10, at the end, and after a run is resumed from there. A model
    with such a score is not the best.
    """
    evaluate, get_loss, seen = Language.evaluate, Tagger.get_loss, []

    def evaluate_to_nan(self, *args, **more):
        return evaluate(self, *args, **more) | ({"tag_acc": math.nan} if len(seen) == 11 else {})

    def loss_of_nan(self, *args):
        loss, d_scores = get_loss(self, *args)
        seen.append(loss)
        return (math.nan if what == "loss" and 5 < len(seen) - 1 <= 10 else loss), d_scores

    monkeypatch.setattr(Tagger, "get_loss", loss_of_nan)
    if what == "score":
        monkeypatch.setattr(Language, "evaluate", evaluate_to_nan)

    def meta_of(name):
        return json.loads((tmp_path / "out" / name / "meta.json").read_text())["performance"]

    config, name = config_for(tmp_path, corpus, steps=10), {"loss": "tagger_loss", "score": "tag_acc"}[what]
    train(config, tmp_path / "out")
    assert meta_of("model-last")[name] is None
    assert (meta_of("model-best")[name] is None) == (what == "loss")
    train(config, tmp_path / "out")  # nothing is left to do
    assert meta_of("model-last")[name] is None
    config["training"]["max_steps"] = 15
    train(config, tmp_path / "out")
    assert meta_of("model-last")[name] is not None


def test_a_full_disk_in_mid_run_does_not_end_it(corpus, tmp_path, full_at):
    saved = full_at(2)
    with (
        pytest.warns(CheckpointWarning, match=r"to '.*model-last': No space left.*tries again. Make room"),
        pytest.warns(CheckpointWarning, match=r"The best model so far is not in '.*model-best'"),
    ):
        train(steps_of(corpus, tmp_path), tmp_path / "out")
    assert len(saved) == 5  # at steps 0, 5, 10, 15 and at the end
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model-best", "model-last"]
    for name in ("model-best", "model-last"):
        spacy.load(tmp_path / "out" / name)
    meta = json.loads((tmp_path / "out" / "model-last" / "meta.json").read_text())
    assert meta["performance"]


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOENT, errno.EACCES, errno.ENOTDIR])
def test_a_training_whose_models_can_never_be_saved_ends_at_the_first(code, corpus, tmp_path, full_at):
    saved = full_at(*range(1, 9), code=code)
    with (
        pytest.warns(CheckpointWarning, match=f"{os.strerror(code)}. No model is saved.$"),  # spaCy's, after an error
        pytest.raises(StateError, match=r"Can't save the model to '.*model-last': .*: '.*'\. It is the first"),
    ):
        train(steps_of(corpus, tmp_path), tmp_path / "out")
    assert len(saved) == 2


def test_a_training_goes_on_while_a_disk_is_away(corpus, tmp_path, full_at):
    """At the first save an error that may pass, and then one that is not known to pass, as there is a model."""
    full_at(1, code=errno.ESTALE)
    full_at(3, code=errno.EACCES)
    with pytest.warns(CheckpointWarning) as told:
        train(steps_of(corpus, tmp_path), tmp_path / "out")
    assert not any("Make room" in str(warning.message) for warning in told)
    for name in ("model-best", "model-last"):
        spacy.load(tmp_path / "out" / name)


def test_a_training_goes_on_after_a_full_disk_that_shutil_tells_of(corpus, tmp_path):
    """In words, without a code. At each save: then the last model is lost, and there is none."""
    models = SavedModels(spacy.blank("xx"), TorchOptimizer(AdamW(), 0.01), Progress())
    models.open(tmp_path)

    full = shutil.Error([("a", "b", f"[Errno 28] {os.strerror(errno.ENOSPC)}: 'b'")])
    saved = Mock(meta={}, to_disk=Mock(side_effect=full))
    with pytest.warns(CheckpointWarning, match=r"tries again\. Make room on the disk\.$"):
        models.to_disk(saved, tmp_path / "model-last")
    models.is_over = True
    with pytest.raises(StateError, match=r"its last model is lost\. No model is saved\. Make room on the disk\.$"):
        models.to_disk(saved, tmp_path / "model-last")


def test_a_last_model_that_is_lost_is_an_error(corpus, tmp_path, full_at):
    """Also while another one is handled."""
    full_at(5)
    try:
        raise KeyError("of the program around")
    except KeyError:
        with pytest.raises(StateError, match="The training is over, and its last model is lost"):
            train(steps_of(corpus, tmp_path), tmp_path / "out")
    spacy.load(tmp_path / "out" / "model-last")  # that of step 15, whole


@registry.loggers("test-models.Failing.v1")
def failing():
    return lambda nlp, stdout, stderr: (Mock(side_effect=RuntimeError("no network")), lambda: None)


def test_a_failed_training_does_not_say_that_it_continues(corpus, tmp_path, full_at):
    full_at(2)
    config = steps_of(corpus, tmp_path)
    config["training"]["logger"] = {"@loggers": "test-models.Failing.v1"}
    with (
        pytest.warns(CheckpointWarning, match="No space left on device. The model that was saved before is unchanged"),
        pytest.raises(RuntimeError, match="no network"),
    ):
        train(config, tmp_path / "out")
    # The best model is there before the logger hears of it, as spaCy's is.
    spacy.load(tmp_path / "out" / "model-best")


def test_leftovers_of_a_killed_training_are_removed(corpus, tmp_path):
    for name in (".unfinished-new-model-last-1", ".unfinished-new-model-best-1", ".unfinished-new-other-1"):
        (tmp_path / "out" / name).mkdir(parents=True)
    train(steps_of(corpus, tmp_path), tmp_path / "out")
    told = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert told == [".unfinished-new-other-1", "model-best", "model-last"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_encodings_are_read_or_told(encoding, tmp_path):
    (tmp_path / "a.txt").write_text("Grüße", encoding=encoding)
    assert decode((tmp_path / "a.txt").read_bytes()) == "Grüße"
    with pytest.raises(ConfigError, match="Can't read it: expected a text in UTF-8, found UTF"):
        check_encoding(tmp_path / "a.txt", "it")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        # As users run a config again: other settings, and the same file by another path.
        ({"training__dropout": 0.3, "training__optimizer__learn_rate": 0.01}, None),
        ({"training__dev_corpus": "corpora.train"}, None),
        ({"paths__train": "./{train}"}, None),
        ({"paths__train": "{copy}"}, r"corpora.train.path: .*train.spacy there, .*copy.spacy now"),
        ({"nlp__pipeline": ["tok2vec", "tagger"], "parser": False}, r"nlp.pipeline: .*'parser'\] there"),
        ({"nlp__lang": "en"}, r"nlp.lang: 'xx' there, 'en' now"),
    ],
)
def test_a_training_does_not_replace_the_model_of_another(changes, said, corpus, tmp_path):
    """Neither by removing it, nor by what it writes; it says so before its first step."""
    copy = tmp_path / "copy.spacy"
    shutil.copy(corpus["train"], copy)
    names = {"train": os.path.relpath(corpus["train"]), "copy": copy}
    first = config_for(tmp_path, corpus, steps=5, parser=True, training__optimizer__checkpoint=None)
    train(first, tmp_path / "out")
    before = contents(tmp_path / "out")
    changes = {key: value.format(**names) if key.startswith("paths") else value for key, value in changes.items()}
    config = config_for(
        tmp_path, corpus, **{"steps": 5, "parser": True, "training__optimizer__checkpoint": None, **changes}
    )
    if said is None:
        train(config, tmp_path / "out")
        assert contents(tmp_path / "out") != before
        return
    with pytest.raises(ConfigError, match=rf"(?s)spaCy would remove '.*model-best'.*{said}.*Give another --output"):
        train(config, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    shutil.rmtree(tmp_path / "out" / "model-best")
    shutil.rmtree(tmp_path / "out" / "model-last")
    train(config, tmp_path / "out")


def test_a_resumed_training_may_have_moved_texts(corpus, tmp_path):
    """Paths may change then, and the models are its own: also before one was the best."""
    config = config_for(tmp_path, corpus, steps=5)
    train(config, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "model-best")
    config["paths"]["train"] = str(tmp_path / "copy.spacy")
    shutil.copy(corpus["train"], tmp_path / "copy.spacy")
    config["training"]["max_steps"] = 10
    with pytest.warns(CheckpointWarning, match="The best model so far"):
        train(config, tmp_path / "out")
    assert spacy.load(tmp_path / "out" / "model-last").config["paths"]["train"].endswith("copy.spacy")
