"""States that were saved when all characters that a name can't hold were `_`: they are loaded as if names had always
been those of now.
"""

import re

import numpy
import pytest
import torch
from thinc.api import Linear, PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.algorithms.torch_classes import AdamW
from thinc_torchopt.errors import StateError
from thinc_torchopt.state.files import read_folder, write_folder

from ..models import params_of, same, toy_pipeline
from ..runs import config_for, digests, run
from ..state.test_by_name import copy_params, steps

# Components, and by their names now what they were called in a pipeline of this order.
NAMES = ("ä", "ö", "x y", "x_y", "plain")
OLD = {"+e4+": "_", "+f6+": "_-2", "x+20+y": "x_y", "x_y": "x_y-2", "plain": "plain"}


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


def as_of_old(tree, old=OLD):
    """A state with the old names, wherever there are names."""
    if isinstance(tree, dict):
        return {as_of_old(key, old): as_of_old(value, old) for key, value in tree.items()}
    if isinstance(tree, list):
        return [as_of_old(item, old) for item in tree]
    return re.sub("|".join(map(re.escape, old)), lambda found: old[found[0]], tree) if isinstance(tree, str) else tree


def build():
    blocks = {"slow": {"params": ["ä/*", "x y/*"], "lr_scale": 0.5}}
    return TorchOptimizer(AdamW(), 0.01, use_averages=True, spike_factor=1e6, param_groups=blocks)


@pytest.mark.parametrize("is_old", [False, True])
def test_old_names_of_an_optimizer(is_old, tmp_path):
    """What is saved now may be loaded where components come in another order."""
    nlp, models = odd_pipeline()
    other_nlp, other_models = odd_pipeline(NAMES if is_old else NAMES[::-1], seed=1)
    optimizer, other = build(), build()
    optimizer.initialize(nlp)
    steps(optimizer, models, 4)
    saved = optimizer.state_dict()
    assert any(key.startswith("+e4+") for key in saved["params"])
    write_folder(tmp_path / "state", as_of_old(saved) if is_old else saved)
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


def test_old_names_of_another_pipeline_are_refused():
    nlp, _ = odd_pipeline()
    optimizer = build()
    optimizer.initialize(nlp)
    saved = as_of_old(optimizer.state_dict())
    saved["params"]["_/9/weight"] = saved["params"].pop("_/0/weight")
    with pytest.raises(StateError, match=r"1 unexpected \(\+e4\+/9/weight\)"):
        optimizer.load_state_dict(saved)


def test_old_names_of_a_run(corpus, tmp_path):
    """A run that was stopped before names were escaped ends as one that was not."""

    def config(folder):
        found = config_for(folder, corpus, steps=10)
        found["components"]["mein tägger"] = found["components"].pop("tagger")
        found["nlp"]["pipeline"] = ["tok2vec", "mein tägger", "parser"]
        return found

    whole = run(config(tmp_path / "whole"), tmp_path / "whole" / "output")
    run(config(tmp_path / "cut"), tmp_path / "cut" / "output", crash_at=7)
    for path in (tmp_path / "cut" / "state").glob("step-*"):
        saved = read_folder(path)
        assert "mein+20+t+e4+gger" in saved["model"]["attrs"]
        for part in ("model", "optimizer"):
            saved[part] = as_of_old(saved[part], {"mein+20+t+e4+gger": "mein_t_gger"})
        assert "mein_t_gger" in saved["model"]["attrs"]
        write_folder(path, saved)
    again = run(config(tmp_path / "cut"), tmp_path / "cut" / "output")
    assert again and again == {step: whole[step] for step in again}
    assert digests(tmp_path / "cut" / "output") == digests(tmp_path / "whole" / "output")


def test_old_names_may_be_exchanged_by_users_as_they_call_components():
    nlp, models = odd_pipeline()
    optimizer = TorchOptimizer(AdamW(), 0.01)
    optimizer.initialize(nlp)
    steps(optimizer, models, 2)
    saved = optimizer.state_dict()
    other_nlp, other_models = odd_pipeline()
    other_nlp.rename_pipe("x y", "ü")
    other = TorchOptimizer(AdamW(), 0.01)
    other.initialize(other_nlp)
    other.load_state_dict(saved, renamed={"x y": "ü"})
    copy_params(models, other_models)
    steps(optimizer, models, 2, start=2)
    steps(other, other_models, 2, start=2)
    assert all(same(params_of(ours), params_of(theirs)) for ours, theirs in zip(models, other_models))
