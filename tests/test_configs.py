"""Every config in configs/ is resolved, filled, saved, parsed again, and trained for a few steps."""

import json

import pytest
import spacy
from confection import Config
from spacy import util
from spacy.schemas import ConfigSchemaTraining
from spacy.training.initialize import init_nlp

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.host import cpu_has_bf16_lstm

from .configs import NAMES, TRANSFORMERS, skip_without
from .conftest import CONFIGS
from .spacy_cli import spacy_cli


@pytest.mark.parametrize("name", NAMES)
def test_configs_resolve_fill_and_come_back_the_same(name, corpus, trained):
    skip_without(name)
    paths = Config().from_disk(CONFIGS / name).get("paths", {})
    files = {key: corpus[key] for key in corpus if key in paths}
    if "source" in paths:  # its components are there
        files["source"] = trained(name)[0] / "training" / "old" / "model-best"
    config = Config().from_disk(CONFIGS / name, overrides={f"paths.{key}": str(path) for key, path in files.items()})
    nlp = util.load_model_from_config(config, auto_fill=True) if name not in TRANSFORMERS else None
    filled = nlp.config if nlp is not None else spacy.registry.fill(config, validate=False)
    again = Config().from_str(filled.to_str())
    assert again["training"]["optimizer"] == filled.interpolate()["training"]["optimizer"]
    resolved = spacy.registry.resolve({"optimizer": again["training"]["optimizer"]})["optimizer"]
    assert isinstance(resolved, TorchOptimizer)
    if nlp is not None:
        told = spacy.registry.resolve(again["training"], schema=ConfigSchemaTraining)["optimizer"].learn_rate
        assert told == resolved.learn_rate


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TRANSFORMERS])
def test_configs_train(name, trained):
    """By the command in its head. Transformers have a test of their own, in loop/test_end_to_end.py."""
    if name == "precision.cfg" and not cpu_has_bf16_lstm():
        pytest.skip("this CPU has no LSTM in bfloat16")
    folder, _ = trained(name)
    assert list((folder / "training").rglob("model-best/meta.json"))


def test_configs_pretrain(trained):
    """Pretraining learns, and what it learned is where training looks for it."""
    folder, _ = trained("pretrain.cfg")
    log = [json.loads(line) for line in (folder / "training" / "pretrain" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["epoch"] == 3 and log[2]["epoch_loss"] < log[0]["epoch_loss"]


def test_configs_survive_spacys_commands(tmp_path, corpus):
    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", str(corpus[name]))]
    filled = tmp_path / "filled.cfg"
    spacy_cli("init", "fill-config", CONFIGS / "schedules.cfg", filled)
    assert Config().from_disk(filled)["training"]["optimizer"]["algorithm"]["eps"] == 1e-8
    spacy_cli("debug", "config", filled, *paths)
    spacy_cli("debug", "config", filled, *paths, "--training.optimizer.algorithm.eps", "0.001")
    run = spacy_cli("debug", "config", filled, *paths, "--training.optimizer.algorithm.eps", "-1.0", check=False)
    assert run.returncode != 0


def test_configs_from_python(corpus):
    """What `spacy train` does, without its command line: nothing of ours is imported by the user."""
    config = Config().from_disk(
        CONFIGS / "cnn.cfg", overrides={f"paths.{name}": str(corpus[name]) for name in ("train", "dev")}
    )
    nlp = init_nlp(config)
    assert isinstance(nlp._optimizer, TorchOptimizer)
