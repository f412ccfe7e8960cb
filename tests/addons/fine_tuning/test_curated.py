"""Pipelines of spacy-curated-transformers: names, groups, layers, recipes, and what fails in the package by itself."""

import pytest
import spacy
import torch
from confection import Config
from spacy.training.initialize import init_nlp
from spacy.util import registry

from thinc_torchopt.addons.fine_tuning.transformers import transformers_of
from thinc_torchopt.core import host_errors
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.loop.faster import SWITCH

from ...models import toy_examples
from ...runs import run, run_with_stops
from ...spacy_cli import spacy_cli
from .small_transformers import LAYERS, config_with, needs

pytestmark = pytest.mark.usefixtures("curated")


@pytest.fixture
def curated():
    needs("curated")


def optimizer_of(config):
    return registry.resolve(config.interpolate()["training"], validate=False)["optimizer"]


def test_groups_and_layers_of_a_curated_transformer(tmp_path, corpus):
    """Its layers are numbered from the embeddings, as in the model; the mixing of layers is the component's own."""
    settings = {
        "layer_decay": {"transformer/*": 0.5},
        "skip_decay": "bias_and_norm",
        "param_groups": {"encoder": {"params": ["transformer/*"], "lr_scale": 0.1}},
    }
    config = config_with("curated", tmp_path, corpus, settings=settings, weighting=True)
    nlp, optimizer = init_nlp(config.interpolate()), optimizer_of(config)
    optimizer.initialize(nlp)
    infos = {info.name: info for info in optimizer.describe()}
    rate = infos["ner/output/W"].learn_rate if "ner/output/W" in infos else max(i.learn_rate for i in infos.values())
    [transformer] = transformers_of(nlp)
    assert transformer.tokenizer is transformer.node.get_ref("piece_encoder")
    assert transformer.layer is transformer.node.get_ref("transformer")
    module, found = transformer.module, {}
    for name in dict(module.named_parameters()):
        [info] = [one for path, one in infos.items() if path.endswith("/" + name.replace(".", "/"))]
        layer = 0 if name.startswith("embeddings") else int(name.split(".")[1])
        # As with Hugging Face's names: embeddings share the number of the lowest layer.
        assert info.learn_rate == pytest.approx(rate * 0.1 * 0.5 ** (LAYERS - layer), rel=1e-6), name
        found[layer] = found.get(layer, 0) + 1
        is_plain = name.endswith("bias") or "norm" in name.lower()
        assert info.options["weight_decay"] == (0.0 if is_plain else 0.01), name
    assert sorted(found) == [*range(LAYERS)] and min(found.values()) >= 5
    mixing = [name for name in infos if "scalar" in name or "layer_weights" in name]
    assert mixing and all(not name.startswith("transformer/") for name in mixing)
    assert all(infos[name].learn_rate == pytest.approx(rate) for name in mixing)


@pytest.mark.parametrize("weighting", [False, True])
def test_training_of_a_curated_transformer(tmp_path, corpus, weighting, monkeypatch):
    """With averages: what is saved is what was scored; resumed to the bit, and in spaCy's own way."""
    ends = []
    for name, stops, faster in (("whole", [], "1"), ("broken", [4, 8], "1"), ("slow", [], "0")):
        monkeypatch.setenv(SWITCH, faster)
        config = config_with("curated", tmp_path, corpus, state=name, weighting=weighting)
        ends.append(run_with_stops(config, tmp_path / f"{name}-output", *stops))
    assert ends[0] == ends[1] == ends[2]
    nlp = spacy.load(tmp_path / "whole-output" / "model-last")
    assert nlp("Anna likes London.").has_annotation("TAG")


def test_training_learns_with_frozen_layers(tmp_path, corpus):
    """A replaced listener has the transformer inside: its layers are frozen there."""
    config = config_with("curated", tmp_path, corpus, block={"freeze_layers": 1}, steps=3, names=("ner",))
    run(config, tmp_path / "first")
    source = str(tmp_path / "first" / "model-last")
    config = config_with("curated", tmp_path, corpus, state="2", block={"freeze_layers": 1}, steps=3, names=("ner",))
    config["nlp"]["pipeline"] = ["ner"]
    config["components"] = {"ner": {"source": source, "replace_listeners": ["model.tok2vec"]}}
    config["initialize"] = {}
    run(config, tmp_path / "second")
    before, after = (spacy.load(tmp_path / name / "model-last") for name in ("first", "second"))
    [[one], [other]] = (transformers_of(nlp) for nlp in (before, after))
    assert (one.component, other.component) == ("transformer", "ner")
    same = {
        name: torch.equal(param, dict(other.module.named_parameters())[name])
        for name, param in one.module.named_parameters()
    }
    assert {name for name, is_same in same.items() if is_same} == {
        name for name in same if name.startswith(("embeddings", "layers.0."))
    }


@pytest.mark.parametrize("recipe", ["fine-tune", "best"])
def test_recipes_know_a_curated_transformer(tmp_path, corpus, recipe):
    config = config_with("curated", tmp_path, corpus)
    config["training"]["optimizer"] = {"@optimizers": "Adam.v1", "learn_rate": 0.00005}
    config.to_disk(tmp_path / "config.cfg")
    told = spacy_cli("torchopt", "init", tmp_path / "config.cfg", tmp_path / "new.cfg", "--recipe", recipe).stdout
    block = Config().from_disk(tmp_path / "new.cfg", interpolate=False)["training"]["optimizer"]
    assert block["param_groups"]["encoder"]["params"] == ["transformer/*"] and "transformer" in told
    if recipe == "fine-tune":
        assert block["layer_decay"] == {"transformer/*": 0.9}
    told = spacy_cli("torchopt", "explain", tmp_path / "new.cfg").stdout
    assert "encoder" in told and "can't" not in told.lower()


def test_names_the_versions_that_fail(tmp_path, corpus, monkeypatch):
    """With NumPy 2.4, whose `float` takes no array."""
    config = config_with("curated", tmp_path, corpus)
    nlp, optimizer = init_nlp(config.interpolate()), optimizer_of(config)
    monkeypatch.setattr(host_errors, "_takes_arrays_of_one", lambda: False)
    with pytest.raises(ConfigError) as error:
        optimizer.initialize(nlp)
    told = str(error.value)
    assert told.startswith("Can't train 'transformer': spacy-curated-transformers ")
    assert "pip install 'numpy<2.4'" in told
    optimizer.initialize(nlp, exclude=["transformer"])
    monkeypatch.undo()
    optimizer.initialize(nlp)
    nlp.update(toy_examples(nlp), sgd=optimizer)


def test_the_longest_window_is_that_of_the_positions(tmp_path, corpus):
    """RoBERTa's positions begin behind that of padding. A longer window would be an IndexError of torch."""
    nlp = init_nlp(config_with("curated", tmp_path, corpus).interpolate())
    [found] = transformers_of(nlp)
    longest = found.longest_input
    ids = torch.full((1, longest), 5, dtype=torch.int32)
    with torch.no_grad():
        found.module.embeddings(ids)
        with pytest.raises(IndexError):
            found.module.embeddings(torch.cat([ids, ids[:, :1]], 1))
    config = config_with("curated", tmp_path, corpus, block={"window_pieces": longest + 1})
    with pytest.raises(ConfigError, match=f"expected at most {longest}, as 'transformer' can read no more at once"):
        optimizer_of(config).initialize(nlp)
