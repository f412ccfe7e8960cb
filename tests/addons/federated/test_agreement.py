"""What server and clients must have in common."""

import json

import pytest
from spacy.util import registry

from thinc_torchopt.addons.federated.agreement import differences
from thinc_torchopt.addons.federated.pipeline import FederatedPipeline, read_config
from thinc_torchopt.addons.federated.server_step import ServerStep
from thinc_torchopt.addons.federated.settings import Federated
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import ConfigError, ConfigWarning, PipelineError

from ...models import ready_pipeline
from .pipelines import paths, pipeline, small_config


def test_agreement_of_clients_with_other_texts(texts):
    north, south = pipeline(texts, "north").describe(), pipeline(texts, "south").describe()
    assert north == json.loads(json.dumps(south)) and differences(north, south) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"components__ner__model__hidden_width": 9}, "params: ner/lower/W: float32 ("),
        ({"components__ner__model__tok2vec__encode__window_size": 2}, "settings: components.ner.model.tok2vec.encode"),
        ({"nlp__lang": "de"}, "settings: nlp.lang: 'en' at the server, 'de' at the client"),
        ({"training__frozen_components": ["ner"]}, None),
        ({"nlp__batch_size": 3, "system__seed": 1, "training__dropout": 0.5}, ""),
    ],
)
def test_agreement_says_what_differs(texts, overrides, expected):
    if expected is None:
        with pytest.raises(PipelineError, match="at least one trainable component"):
            pipeline(texts, config=small_config(**overrides))
        return
    found = differences(pipeline(texts).describe(), pipeline(texts, config=small_config(**overrides)).describe())
    assert any(line.startswith(expected) for line in found) if expected else found == []


def test_agreement_on_labels(texts, tmp_path):
    other = json.loads((texts / "labels.json").read_text())
    for labels in other.values():
        if "CITY" in labels:
            labels["TOWN"] = labels.pop("CITY")
    (tmp_path / "labels.json").write_text(json.dumps(other))
    config = small_config()
    config["paths"] = {**config["paths"], "labels": str(tmp_path / "labels.json")}
    found = differences(pipeline(texts).describe(), FederatedPipeline(config).describe())
    assert found[0].startswith("labels of 'ner': 9 at the server, 9 at the client; only at the server 'B-CITY'")


def test_agreement_on_the_order_of_labels():
    found = differences({"labels": {"tagger": ["A", "B"]}}, {"labels": {"tagger": ["B", "A"]}})
    counts = "labels of 'tagger': 2 at the server, 2 at the client"
    assert found == [f"{counts}, the same in another order: number 0 is 'A' and 'B'"]


def test_agreement_of_a_client_of_another_version():
    """Which sends other parts, or parts in another form."""
    server = {"labels": {"ner": ["A"]}, "params": {"ner/W": "float32 (1)"}, "vectors": "none"}
    for client in ({}, {"labels": 1, "params": [], "vectors": {}}):
        assert len(differences(server, client)) == 3
    for n, last in ((5, "params: 4: x at the server, not there at the client"), (6, "params: 1 more")):
        found = differences({"params": {str(i): "x" for i in range(n)}}, {"params": {}})
        assert (len(found), found[-1]) == (n, last)


def test_agreement_wants_labels(texts):
    with pytest.raises(PipelineError, match=r"initialize\.components\.ner\.labels"):
        FederatedPipeline(small_config())


def test_agreement_wants_no_averages(texts):
    with pytest.warns(ConfigWarning, match=r"'use_averages' in .training.optimizer. has no effect"):
        pipeline(texts, config=small_config({"training": {"optimizer": {"use_averages": True}}}))


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
@pytest.mark.parametrize("section", ["training.optimizer", "federated"])
def test_agreement_wants_no_algorithm_with_averages_of_its_own(texts, section):
    """The server would send back, save and evaluate the values that it trains."""
    block = {"algorithm": {"@torch_optimizers": "pytorch-optimizer.create.v1", "name": "schedulefreeadamw"}}
    with pytest.raises(ConfigError, match=rf"ScheduleFreeAdamW in \[{section}\.algorithm\].*evaluates averages"):
        if section == "federated":
            ServerStep(pipeline(texts), Federated(local_steps=1, algorithm=registry.resolve(block)["algorithm"]))
        else:
            pipeline(texts, config=small_config({"training": {"optimizer": block}}))


RULE = {"triggers": ["on_step_end"], "rule": "True", "operations": ["hfcontrols.should_log"], "max_firings": 1}


@pytest.mark.parametrize(
    ("name", "block", "why"),
    [
        ("checkpoint", {"@misc": "thinc-torchopt.Checkpoint.v1", "path": "state"}, "keeps the state of clients"),
        (
            "controller",
            {"@misc": "thinc-torchopt.TrainerController.v1", "rules": {"once": RULE}},
            "again in each round",
        ),
        ("budget", {"@misc": "thinc-torchopt.Budget.v1", "limit": "1h"}, "round would be a run with this budget"),
        (
            "privacy",
            {"@misc": "thinc-torchopt.Privacy.v1", "clip": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
            "epsilon of one round, not of all",
        ),
    ],
)
def test_agreement_wants_no_blocks_that_need_more_than_a_round(texts, name, block, why):
    rate = {"@schedules": "thinc-torchopt.warmup_stable_decay.v1", "initial_rate": 0.01, "warmup_steps": 2}
    rate |= {"decay_steps": 3, "decay_begins": "when told"}
    expected = rf"'{name}' in \[training\.optimizer\]: expected null in federated training.*{why}.*Remove"
    with pytest.raises(ConfigError, match=expected):
        pipeline(texts, config=small_config({"training": {"optimizer": {"learn_rate": rate, name: block}}}))


def test_agreement_config_must_be_there(texts):
    with pytest.raises(ConfigError, match="expected a file, found none"):
        read_config("nowhere.cfg", paths(texts, "north"))


def test_agreement_on_frozen_components(texts, tmp_path):
    """Each client has its own copy, perhaps elsewhere. What counts is what is in it."""
    nlp, _ = ready_pipeline(["tagger"], shared=False)
    for name in ("here", "there"):
        nlp.to_disk(tmp_path / name)
    nlp.get_pipe("tagger").model.get_ref("output_layer").get_param("b")[0] += 1.0
    nlp.to_disk(tmp_path / "other")

    def describe(name):
        nlp_settings = {"nlp__lang": nlp.lang, "nlp__pipeline": ["ner", "tagger"]}
        config = small_config(training__frozen_components=["tagger"], **nlp_settings)
        config["components"]["tagger"] = {"source": str(tmp_path / name)}
        return pipeline(texts, config=config).describe()

    here = describe("here")
    assert differences(here, describe("there")) == [] and not any(name.startswith("tagger") for name in here["params"])
    [line] = differences(here, describe("other"))
    assert line.startswith("frozen params: tagger: ")
