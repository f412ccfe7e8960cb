"""Averages in place of the weights, for a while."""

import numpy
import pytest
from thinc.api import Model

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.errors import ParamError

from ..models import backprop, mixed_model, params_of, same, thinc_model, torch_model, toy_examples, toy_pipeline
from .test_own_store import OwnStore, around

MODELS = {"thinc": thinc_model, "torch": torch_model, "mixed": mixed_model}


@pytest.mark.device
def test_use_params_refuses_updates_of_a_pipeline():
    """They would be lost at the end of the block, as with thinc's."""
    nlp = toy_pipeline(["tagger", "ner"])
    examples = toy_examples(nlp, 20)
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    before = [params_of(nlp.get_pipe(name).model) for name in nlp.pipe_names]
    averages = {name: value.clone() for name, value in optimizer.state_dict()["averages"]["tensors"].items()}
    with (
        pytest.raises(ParamError, match=r"Can't update param 'tok2vec/.*found averages in their place.*would be lost"),
        nlp.use_params(optimizer.averages),
    ):
        nlp.update(examples, sgd=optimizer)
    assert all(same(old, params_of(nlp.get_pipe(name).model)) for old, name in zip(before, nlp.pipe_names))
    found = optimizer.state_dict()["averages"]["tensors"]
    assert all((found[name] == value).all() for name, value in averages.items())
    nlp.update(examples, sgd=optimizer)  # the block has ended


@pytest.mark.parametrize("kind", MODELS)
def test_use_params_refuses_updates_of_a_model(kind):
    model, optimizer = MODELS[kind](), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    other = MODELS[kind]()
    for one in (model, other):
        backprop(one, numpy.random.default_rng(0))
        one.finish_update(optimizer)
    with model.use_params(optimizer.averages):
        with model.use_params(optimizer.averages):
            pass
        backprop(model, numpy.random.default_rng(1))
        before = params_of(model)
        with pytest.raises(ParamError, match="found averages in their place"):
            model.finish_update(optimizer)
        assert same(before, params_of(model))
        with pytest.raises(ParamError, match="found averages in their place"), optimizer.joint_step():
            model.finish_update(optimizer)
        # One that has its own weights is updated as ever.
        backprop(other, numpy.random.default_rng(1))
        before = params_of(other)
        other.finish_update(optimizer)
        assert not same(before, params_of(other))
    before = params_of(model)
    model.finish_update(optimizer)
    assert not same(before, params_of(model))


def test_use_params_refuses_updates_of_a_shim_with_its_own_store():
    model, optimizer = around(OwnStore()), TorchOptimizer(SGD(), 0.1, use_averages=True)
    model.finish_update(optimizer)
    with pytest.raises(ParamError, match="averages in their place"), model.use_params(optimizer.averages):
        model.finish_update(optimizer)
    assert isinstance(model, Model)


def test_use_params_of_nothing_forbids_nothing():
    model, optimizer = thinc_model(), TorchOptimizer(AdamW(), 0.01)
    backprop(model, numpy.random.default_rng(0))
    before = params_of(model)
    with model.use_params(optimizer.averages):
        model.finish_update(optimizer)
    assert not same(before, params_of(model))
