"""Rules that save models in a training without checkpoints. The oracle: what spaCy saves after the same step."""

import hashlib
import json
import math
import os
import shutil

import numpy
import pytest
import spacy
from spacy.util import registry

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import CheckpointWarning, ConfigWarning
from thinc_torchopt.loop.progress import Progress
from thinc_torchopt.loop.saved_models import SavedModels

from ...models import ready_pipeline
from .kit import config_for, definition, firings, rule, run

SAVE = "control.should_save"


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("meta.json", "config.cfg", "kept-as-best.json")  # speed; steps; the run
    }


@registry.callbacks("test-saved-models.Mark.v1")
def mark():
    def before_to_disk(nlp):
        nlp.meta["description"] = nlp.meta.get("description", "") + "x"
        return nlp

    return before_to_disk


def prepared(folder, corpus, rules, **more):
    config = config_for(folder, corpus, rules, use_averages=True, **more)
    config["training"]["before_to_disk"] = {"@callbacks": "test-saved-models.Mark.v1"}
    return config


@pytest.mark.parametrize("event", ["on_step_end", "on_log", "on_substep_end"])
def test_saved_model_is_spacys(event, corpus, tmp_path):
    """The same files as `model-last` of a training that ends there: averages, changed by the callback. What there is of
    before is replaced, if it is of the same step; models of other steps stay.
    """
    rules = definition(rule("save", event, 'state["step"] == 5', SAVE))
    for step in (5, 7):
        (tmp_path / "out" / f"model-step-{step}").mkdir(parents=True)
        (tmp_path / "out" / f"model-step-{step}" / "old").write_text("")
    _, infos, _ = run(prepared(tmp_path, corpus, rules, steps=9), tmp_path / "out")
    assert firings(infos) == [(5, "save", "should_save")]
    run(prepared(tmp_path, corpus, None, steps=5), tmp_path / "plain")
    assert digests(tmp_path / "out" / "model-step-5") == digests(tmp_path / "plain" / "model-last")
    assert digests(tmp_path / "out" / "model-step-5") != digests(tmp_path / "out" / "model-last")
    nlp = spacy.load(tmp_path / "out" / "model-step-5")
    assert nlp.meta["description"] == "xxx"  # after steps 0 and 4, by spaCy, and now
    assert nlp("Anna likes red London .")[0].tag_
    assert sorted(os.listdir(tmp_path / "out")) == ["model-best", "model-last", "model-step-5", "model-step-7"]
    assert os.listdir(tmp_path / "out" / "model-step-7") == ["old"]


def test_saved_model_changes_nothing_in_a_training(corpus, tmp_path):
    rules = definition(rule("save", "on_step_end", 'state["step"] % 2 == 1', SAVE))
    run(prepared(tmp_path, corpus, rules, steps=6), tmp_path / "out")
    run(prepared(tmp_path, corpus, None, steps=6), tmp_path / "plain")
    for step in (1, 3, 5):
        shutil.rmtree(tmp_path / "out" / f"model-step-{step}")
    assert digests(tmp_path / "out") == digests(tmp_path / "plain")


def test_saved_model_at_the_end(corpus, tmp_path):
    run(prepared(tmp_path, corpus, definition(rule("x", "on_train_end", 'state["step"] > 0', SAVE)), steps=4), tmp_path)
    assert digests(tmp_path / "model-step-4") == digests(tmp_path / "model-last")


def test_saved_model_needs_a_folder(corpus, tmp_path):
    rules = definition(rule("save", "on_step_end", 'state["step"] > 2', SAVE))
    with pytest.warns(ConfigWarning, match="after step 3, .*has no folder for models") as found:
        run(prepared(tmp_path, corpus, rules))
    assert len([warning for warning in found if warning.category is ConfigWarning]) == 1


def test_saved_model_that_can_not_be_written(corpus, tmp_path, monkeypatch):
    """It is not there, and nothing half of it; the model of before is."""
    rules = definition(rule("save", "on_step_end", 'state["step"] == 3', SAVE))
    config = prepared(tmp_path, corpus, rules, steps=5)
    run(config, tmp_path / "out")
    before = digests(tmp_path / "out" / "model-step-3")
    from spacy.language import Language

    to_disk = Language.to_disk

    def full(self, path, **kwargs):
        to_disk(self, path, **kwargs)
        if "model-step-3" in str(path):
            raise OSError("No space left on device")

    monkeypatch.setattr(Language, "to_disk", full)
    with pytest.warns(CheckpointWarning, match="No space left"):
        run(config, tmp_path / "out")
    assert digests(tmp_path / "out" / "model-step-3") == before
    assert sorted(os.listdir(tmp_path / "out")) == ["model-best", "model-last", "model-step-3"]


def test_saved_model_with_checkpoints_is_a_checkpoint(corpus, tmp_path):
    rules = definition(rule("save", "on_step_end", 'state["step"] == 3', SAVE))
    run(prepared(tmp_path, corpus, rules, steps=5, checkpoint=True), tmp_path / "out")
    assert (tmp_path / "state" / "step-00000003").is_dir()
    assert sorted(os.listdir(tmp_path / "out")) == ["model-best", "model-last"]


@pytest.fixture
def models(tmp_path):
    nlp, _ = ready_pipeline()
    models = SavedModels(nlp, TorchOptimizer(AdamW(), 0.01), Progress())
    models.open(tmp_path)
    return models


@pytest.mark.parametrize("mode", ["min", "max"])
def test_saved_models_have_the_best_finite_score(mode, models, tmp_path):
    """Nothing would ever be better than an infinite one. Of equal ones, the oldest stays."""
    for step, score in enumerate([math.nan, math.inf, -math.inf, 0.5, 0.4, 0.6, 0.6, 0.4]):
        models.keep("top", score, step=step, mode=mode)
        models.keep_asked()
    assert os.listdir(tmp_path) == ["model-best-top"]
    mark = json.loads((tmp_path / "model-best-top" / "kept-as-best.json").read_text())
    assert (mark["step"], mark["score"]) == ((4, 0.4) if mode == "min" else (5, 0.6))


def test_saved_models_with_scores_that_are_not_finite(models, tmp_path):
    per_type = {"X": {"f": -math.inf}}
    models._nlp.meta["performance"] = {"tag_acc": math.nan, "ents_per_type": per_type, "ents_f": numpy.float32(0.5)}
    models.keep("top", 0.5, step=3, mode="max")
    models.keep_asked()
    meta = json.loads((tmp_path / "model-best-top" / "meta.json").read_text())
    assert meta["performance"] == {"tag_acc": None, "ents_per_type": {"X": {"f": None}}, "ents_f": 0.5}


def test_saved_models_of_names_in_any_script(models, tmp_path):
    for name in ("лучшие", "Größe: die besten", "最好"):
        models.keep(name, 0.5, step=3, mode="max")
    models.keep_asked()
    assert {*os.listdir(tmp_path)} == {f"model-best-{name}" for name in ("лучшие", "Größe-die-besten", "最好")}
