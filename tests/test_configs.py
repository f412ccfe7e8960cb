"""Every config in configs/ is resolved, filled, saved, parsed again, and trained for a few steps."""

import pytest
import spacy
from confection import Config
from spacy import util
from spacy.schemas import ConfigSchemaTraining
from spacy.training.initialize import init_nlp

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.compat import has_pytorch_optimizer, has_tensorboard

from .conftest import CONFIGS
from .spacy_cli import spacy_cli, toy_corpus, train

TRANSFORMERS = ("fine_tuning.cfg", "transformer.cfg")
NAMES = sorted(path.name for path in CONFIGS.glob("*.cfg"))


def skip_without(name):
    if name == "pytorch_optimizer.cfg" and not has_pytorch_optimizer:
        pytest.skip("pytorch-optimizer is not installed")
    if name == "loggers.cfg" and not has_tensorboard:
        pytest.skip("tensorboard is not installed")
    if name in TRANSFORMERS:
        pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")


@pytest.mark.parametrize("name", NAMES)
def test_configs_resolve_fill_and_come_back_the_same(name, tmp_path):
    skip_without(name)
    corpus = toy_corpus(tmp_path)
    paths = Config().from_disk(CONFIGS / name)["paths"]
    config = Config().from_disk(CONFIGS / name, overrides={f"paths.{key}": str(corpus[key]) for key in corpus if key in paths})
    nlp = util.load_model_from_config(config, auto_fill=True) if name not in TRANSFORMERS else None
    filled = nlp.config if nlp is not None else spacy.registry.fill(config, validate=False)
    again = Config().from_str(filled.to_str())
    assert again["training"]["optimizer"] == filled.interpolate()["training"]["optimizer"]
    resolved = spacy.registry.resolve({"optimizer": again["training"]["optimizer"]})["optimizer"]
    assert isinstance(resolved, TorchOptimizer)
    if nlp is not None:
        assert spacy.registry.resolve(again["training"], schema=ConfigSchemaTraining)["optimizer"].learn_rate == resolved.learn_rate


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*TRANSFORMERS, "pretrain.cfg", "demo.cfg")])
def test_configs_train(name, tmp_path, monkeypatch):
    """For 20 steps. Transformers and pretraining have tests of their own, in training/test_end_to_end.py; the demo is in test_docs.py."""
    skip_without(name)
    monkeypatch.chdir(tmp_path)
    train(name, tmp_path / "out", toy_corpus(tmp_path), training__max_steps=20, training__eval_frequency=10)
    assert (tmp_path / "out" / "model-best").is_dir()


def test_configs_survive_spacys_commands(tmp_path):
    corpus = toy_corpus(tmp_path)
    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", str(corpus[name]))]
    filled = tmp_path / "filled.cfg"
    spacy_cli("init", "fill-config", CONFIGS / "schedules.cfg", filled)
    assert Config().from_disk(filled)["training"]["optimizer"]["algorithm"]["eps"] == 1e-8
    spacy_cli("debug", "config", filled, *paths)
    spacy_cli("debug", "config", filled, *paths, "--training.optimizer.algorithm.eps", "0.001")
    run = spacy_cli("debug", "config", filled, *paths, "--training.optimizer.algorithm.eps", "-1.0", check=False)
    assert run.returncode != 0


def test_configs_from_python(tmp_path):
    """What `spacy train` does, without its command line: nothing of ours is imported by the user."""
    corpus = toy_corpus(tmp_path)
    config = Config().from_disk(CONFIGS / "cnn.cfg", overrides={f"paths.{name}": str(corpus[name]) for name in ("train", "dev")})
    nlp = init_nlp(config)
    assert isinstance(nlp._optimizer, TorchOptimizer)
