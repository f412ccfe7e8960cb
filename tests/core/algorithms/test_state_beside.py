"""State that belongs to no param. Oracle: the library's own optimizers."""

import numpy
import pytest
import torch
from thinc.api import Linear, chain

from thinc_torchopt import Algorithm
from thinc_torchopt.core.algorithms.state_beside import (
    StateBeside,
    check_plain,
    collect_beside,
    map_tensors,
    restore_beside,
)
from thinc_torchopt.core.algorithms.torch_classes import create
from thinc_torchopt.core.errors import ConfigError, StateError
from thinc_torchopt.loop.checkpoint_settings import Checkpoint

from ...models import backprop, optimizer_for, params_of, same, toy_pipeline

library = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")


def pipeline(algorithm, **settings):
    nlp = toy_pipeline(["tagger"], shared=False)
    model = nlp.get_pipe("tagger").model = chain(Linear(6, 5), Linear(3, 6)).initialize()
    optimizer = optimizer_for(nlp, algorithm, 0.01, **settings)
    return nlp, model, optimizer


def steps(optimizer, model, n, *, start=0):
    for step in range(start, start + n):
        backprop(model, numpy.random.default_rng(step))
        model.finish_update(optimizer)


def test_state_beside_is_copied_with_its_tensors():
    value = {"by beta": {0.9: torch.ones(2)}, "list": [torch.ones(2), (torch.ones(2), 1)]}
    copied = map_tensors(torch.Tensor.clone, value)
    assert copied["by beta"].keys() == {0.9} and type(copied["list"][1]) is tuple
    for tensor in (copied["by beta"][0.9], copied["list"][0], copied["list"][1][0]):
        tensor.zero_()
    assert all(tensor.tolist() == [1.0, 1.0] for tensor in (value["by beta"][0.9], *value["list"][:1]))


@pytest.mark.parametrize("value", [lambda: 0, object(), {torch.ones(1): 2}, [torch.Generator()]])
def test_state_beside_refuses_what_no_file_takes(value):
    with pytest.raises(StateError, match=r"Can't save it\['x'\].*found \w+"):
        check_plain({"x": value}, "it")


@pytest.mark.parametrize(
    "saved",
    [
        StateBeside({"step": 1}, {}, {}),
        StateBeside({"param_groups": []}, {}, {}),
        StateBeside({"_state": {}}, {}, {}),
        StateBeside({}, {"total_step": {}}, {}),
    ],
)
def test_state_beside_params_writes_to_nothing_else(saved):
    optimizer = library.StableSPAM([torch.ones(2, 2, requires_grad=True)])
    with pytest.raises(StateError, match="Can't load the state of StableSPAM: it does not have all the attributes"):
        restore_beside(optimizer, saved)


def test_state_beside_params_and_nothing_more():
    """Counters, and the state of parts; not settings, not what is derived."""
    params = [torch.ones(2, 2, requires_grad=True)]
    assert collect_beside(
        library.StableSPAM(params), {"maximize", "gamma1", "gamma2", "theta", "t_max", "update_proj_gap"}
    ) == StateBeside({"total_step": 0, "warmup": None}, {}, {})
    beside = collect_beside(library.SPAM(params), {})
    assert beside.state == {"total_step": 0, "current_step": 51} and beside.parts.keys() == {"warmup"}
    assert collect_beside(torch.optim.Adam(params, fused=True), {}) == StateBeside({}, {}, {})


@pytest.mark.parametrize("name", ["madgrad", "stablespam", "spam"])
def test_state_beside_of_all_params_stays_when_params_come(name):
    """The library makes its counters when it is built, and ours builds for each param that comes."""
    nlp, model, optimizer = pipeline(create(name))
    steps(optimizer, model, 3)
    inner = optimizer.torch_optimizers["algorithm"]
    before = repr(collect_beside(inner, {}))
    nlp.get_pipe("tagger").model = larger = chain(model, Linear(3, 3)).initialize()
    optimizer.initialize(nlp)
    assert repr(collect_beside(inner, {})) == before
    steps(optimizer, larger, 1)
    assert repr(collect_beside(inner, {})) != before


@pytest.mark.parametrize("name", ["madgrad", "stablespam", "aggmo"])
def test_state_beside_goes_back(name):
    """What a checkpoint holds is not changed by the steps after it, and going back to it gives the same steps once
    more.
    """
    _nlp, model, optimizer = pipeline(create(name), rollback_after=3, checkpoint=Checkpoint(path="unused"))
    steps(optimizer, model, 2)
    saved = map_tensors(torch.Tensor.clone, optimizer.state_dict())
    weights, found = params_of(model), []
    for _ in range(2):
        steps(optimizer, model, 3, start=2)
        found.append(params_of(model))
        optimizer.roll_back(saved)
        optimizer.rates.scale = 1.0
        for tensor, value in zip(optimizer.params.values(), weights):
            tensor.copy_(value)
    assert same(*found) and not same(found[0], weights)


class Hoarder(torch.optim.SGD):
    """Keeps a function for each param."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["f"] = lambda: 0


class ByAddress(torch.optim.SGD):
    """Keeps a number for each param, by the address of the param."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.steps = {id(param): 0 for group in self.param_groups for param in group["params"]}


@pytest.mark.parametrize("cls, said", [(Hoarder, r"'f'.*found function"), (ByAddress, "'steps' of ByAddress.*address")])
def test_state_beside_that_cannot_be_saved_is_refused_by_the_config(cls, said):
    with pytest.raises(ConfigError, match=rf"'mine' in \[training\.optimizer\.algorithm\].*{said}"):
        Algorithm("mine", cls)
