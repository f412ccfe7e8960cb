"""Components whose names have characters that names of params can't hold."""

import numpy
import torch
from thinc.api import Linear, PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.state.files import read_folder, write_folder

from ...models import optimizer_for, params_of, same, toy_pipeline
from ...runs import config_for, digests, run
from ..state.test_by_name import copy_params, steps

NAMES = ("ä", "ö", "x y", "x_y", "plain")


def odd_pipeline(names=NAMES, *, seed=0):
    """All models of one kind have the same shapes: only names tell them apart."""
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    nlp = toy_pipeline([], shared=False)
    models = {}
    for name in names:
        pipe = nlp.add_pipe("tagger", name=name)
        module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
        pipe.model = (PyTorchWrapper(module) if name in "äö" else Linear(3, 5)).initialize()
        models[name] = pipe.model
    return nlp, [models[name] for name in sorted(names)]


def build():
    blocks = {"slow": {"params": ["ä/*", "x y/*"], "lr_scale": 0.5}}
    return TorchOptimizer(AdamW(), 0.01, use_averages=True, spike_factor=1e6, param_groups=blocks)


def test_odd_names_of_an_optimizer(tmp_path):
    """What is saved now may be loaded where components come in another order."""
    nlp, models = odd_pipeline()
    other_nlp, other_models = odd_pipeline(NAMES[::-1], seed=1)
    optimizer, other = build(), build()
    optimizer.initialize(nlp)
    steps(optimizer, models, 4)
    saved = optimizer.state_dict()
    assert any(key.startswith("+e4+") for key in saved["params"])
    write_folder(tmp_path / "state", saved)
    copy_params(models, other_models)
    for ours, theirs in zip(models[-2:], other_models[-2:]):  # the buffers, too
        theirs.shims[0]._model.load_state_dict(ours.shims[0]._model.state_dict())
    other.initialize(other_nlp)
    other.from_disk(tmp_path / "state")
    for model in (optimizer, other):
        steps(model, models if model is optimizer else other_models, 3, start=4)
    assert all(same(params_of(ours), params_of(theirs)) for ours, theirs in zip(models, other_models))
    ours, theirs = optimizer.state_dict(), other.state_dict()
    assert ours["guard"] == theirs["guard"] and ours["guard"]["averages"]
    assert ours["averages"]["tensors"].keys() == theirs["averages"]["tensors"].keys()
    assert any(key.startswith("buffer:+e4+") for key in ours["averages"]["tensors"])
    assert all(
        torch.equal(tensor, theirs["averages"]["tensors"][key]) for key, tensor in ours["averages"]["tensors"].items()
    )
    other.roll_back(read_folder(tmp_path / "state"))


def test_odd_names_of_a_run(corpus, tmp_path):
    """A run that was stopped ends as one that was not."""

    def config(folder):
        found = config_for(folder, corpus, steps=10)
        found["components"]["mein tägger"] = found["components"].pop("tagger")
        found["nlp"]["pipeline"] = ["tok2vec", "mein tägger"]
        return found

    whole = run(config(tmp_path / "whole"), tmp_path / "whole" / "output")
    run(config(tmp_path / "cut"), tmp_path / "cut" / "output", crash_at=7)
    [*_, newest] = sorted((tmp_path / "cut" / "state").glob("step-*"))
    assert "mein+20+t+e4+gger" in read_folder(newest)["model"]["attrs"]
    again = run(config(tmp_path / "cut"), tmp_path / "cut" / "output")
    assert again and again == {step: whole[step] for step in again}
    assert digests(tmp_path / "cut" / "output") == digests(tmp_path / "whole" / "output")


def test_odd_names_may_be_exchanged_by_users_as_they_call_components():
    nlp, models = odd_pipeline()
    optimizer = optimizer_for(nlp, AdamW(), 0.01)
    steps(optimizer, models, 2)
    saved = optimizer.state_dict()
    other_nlp, other_models = odd_pipeline()
    other_nlp.rename_pipe("x y", "ü")
    other = optimizer_for(other_nlp, AdamW(), 0.01)
    other.load_state_dict(saved, renamed={"x y": "ü"})
    copy_params(models, other_models)
    steps(optimizer, models, 2, start=2)
    steps(other, other_models, 2, start=2)
    assert all(same(params_of(ours), params_of(theirs)) for ours, theirs in zip(models, other_models))
