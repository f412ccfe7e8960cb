"""A trained pipeline trained again, by the config of `init --from`: it begins where the pipeline ended."""

import shutil

import numpy
import pytest
import spacy
from confection import Config
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from thinc.api import fix_random_seed

from ..addons.fine_tuning.small_transformers import config_with, needs
from ..models import toy_examples
from ..runs import LARGE, config_for, run
from ..spacy_cli import spacy_cli

SCORES = ("tag_acc", "dep_las", "ents_f")


def write(folder, nlp, n=90):
    """Texts for training and evaluation, in which words are swapped at random, so nothing scores 1."""
    rng = numpy.random.default_rng(0)
    docs = [example.reference for example in toy_examples(nlp, n)]
    for doc in docs:
        for token in doc:
            if rng.random() < 0.1:
                token.tag_ = "XX"
    for name, part in (("train", docs[: 2 * n // 3]), ("dev", docs[2 * n // 3 :])):
        DocBin(docs=part, store_user_data=True).to_disk(folder / f"{name}.spacy")


def scores(nlp, folder):
    docs = DocBin().from_disk(folder / "dev.spacy").get_docs(nlp.vocab)
    found = nlp.evaluate([Example(nlp.make_doc(doc.text), doc) for doc in docs])
    return {key: found[key] for key in SCORES if key in found}


def config_of(kind, folder):
    """A training of 30 steps of a tagger, a parser and NER on one encoder."""
    paths = {name: folder / f"{name}.spacy" for name in ("train", "dev")}
    if kind != "cnn":
        needs(kind)
        return config_with(kind, folder, paths, steps=30)
    config = config_for(folder, paths, steps=30, training__optimizer__checkpoint=None, **LARGE)
    parser = config["components"]["parser"]
    parser["min_action_freq"] = 1
    model = {**parser["model"], "state_type": "ner"}
    config["components"] |= {"ner": {"factory": "ner", "model": model}}
    config["nlp"]["pipeline"] = ["tok2vec", "tagger", "parser", "ner"]
    return config


@pytest.fixture(scope="module", params=["cnn", "spacy", "curated"])
def desk(request, tmp_path_factory):
    """A folder with a trained pipeline, `old`, and texts beside it."""
    folder = tmp_path_factory.mktemp("desk")
    write(folder, spacy.blank("xx"))
    config = config_of(request.param, folder)
    config.setdefault("initialize", {})["after_init"] = {"@callbacks": "test-again.Count.v1"}
    config["training"]["eval_frequency"] = 30
    fix_random_seed(0)
    run(config, folder / "trained")
    (folder / "trained" / "model-last").rename(folder / "old")
    return folder


@pytest.fixture
def old(desk, tmp_path, monkeypatch):
    """A copy of that folder."""
    monkeypatch.chdir(shutil.copytree(desk, tmp_path, dirs_exist_ok=True))
    return tmp_path


CALLS = []


@spacy.registry.callbacks("test-again.Count.v1")
def count():
    return lambda nlp: CALLS.append(nlp) or nlp


def test_a_pipeline_trained_again(old):
    """The score before the first step is that of the loaded pipeline, and after 20 steps it is not below it."""
    args = ("--from", "old", "--paths.train", "train.spacy", "--paths.dev", "dev.spacy", "--training.max_steps", 20)
    told = spacy_cli("torchopt", "init", "new.cfg", *args, "--training.eval_frequency", 10).stdout
    config = Config().from_disk("new.cfg", interpolate=False)
    assert config["initialize"]["after_init"] == {"@callbacks": "test-again.Count.v1"}
    before = spacy.load("old")
    encoder = before.pipe_names[0]
    frozen = config["training"]["frozen_components"]
    assert frozen == [], told
    CALLS.clear()
    nlp = init_nlp(config.interpolate())
    assert len(CALLS) == 1
    expected = scores(before, old)
    assert scores(nlp, old) == expected and 0.5 < expected["tag_acc"] < 1.0
    assert [*before.get_pipe("ner").labels] == [*nlp.get_pipe("ner").labels]
    assert before.tokenizer.to_bytes() == nlp.tokenizer.to_bytes()
    rates = config["training"]["optimizer"]
    peak = rates["learn_rate"]["initial_rate"]
    if encoder == "transformer":
        assert rates["param_groups"]["encoder"]["params"] == ["transformer/*"] and "transformer" in told
        assert peak * rates["param_groups"]["encoder"]["lr_scale"] < 1e-4
    assert peak <= 0.0007  # a third of that for a new network
    infos = run(config, old / "again")
    assert len(infos) == 21
    after = scores(spacy.load("again/model-best"), old)
    assert all(after[key] >= expected[key] for key in expected), (expected, after)
