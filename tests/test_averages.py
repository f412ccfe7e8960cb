"""Oracles: thinc's averages for thinc's params, a loop of its formula for torch's."""

import numpy
import pytest
import thinc.api
import torch
from thinc.api import PyTorchWrapper, chain

from thinc_torchopt import SGD, TorchOptimizer
from thinc_torchopt.averages import decay_at
from thinc_torchopt.torch_optimizers import AdamW

from .models import backprop, mixed_model, params_of, same, thinc_model, toy_examples, toy_pipeline


def train(model, optimizer, steps=10):
    rng = numpy.random.default_rng(0)
    for _ in range(steps):
        backprop(model, rng)
        model.finish_update(optimizer)
        yield


def test_averages_equal_thincs():
    ours, theirs = thinc_model(), thinc_model()
    theirs.from_bytes(ours.to_bytes())
    optimizer, reference = SGD(0.01), thinc.api.SGD(0.01)
    for _ in zip(train(ours, optimizer), train(theirs, reference)):
        pass
    averages = [optimizer.averages[node.id, name] for node in ours.walk() for name in node.param_names]
    expected = [reference.averages[node.id, name] for node in theirs.walk() for name in node.param_names]
    for a, b in zip(averages, expected):
        # float32: two ways to write one linear interpolation, rounded ten times.
        numpy.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_averages_of_torch_params_follow_the_formula():
    model, optimizer = mixed_model(), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    module = model.layers[1].shims[0]._model
    expected = [torch.zeros_like(param, dtype=torch.float64) for param in module.parameters()]
    for t, _ in enumerate(train(model, optimizer, 20), start=1):
        decay = min((1 + t) / (10 + t), 0.9999)
        expected = [decay * average + (1 - decay) * param.detach().double() for average, param in zip(expected, module.parameters())]
    with model.use_params(optimizer.averages):
        for param, average in zip(module.parameters(), expected):
            # The formula in float64, the average in float32.
            torch.testing.assert_close(param.detach(), average.float(), rtol=1e-6, atol=1e-7)


def test_averages_decay_is_thincs():
    ema, ops = numpy.zeros(1, dtype="f8"), thinc.api.NumpyOps()
    for t in (1, 2, 100, 10**5, 10**6):
        ema[:] = 0
        ops.update_averages(ema, numpy.ones(1), t)
        assert 1 - ema[0] == pytest.approx(decay_at(t), abs=1e-12)  # float64


class WithBuffers(torch.nn.Module):
    """Buffers, a frozen param and tied ones: all of which a shim wants to see in a state dict."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(5)
        self.first, self.second = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, X):
        return self.second(self.first(self.norm(X) * self.frozen))[:, :3]


def test_averages_change_and_restore_torch_models_with_buffers():
    module = WithBuffers()
    model, optimizer = PyTorchWrapper(module), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    for _ in train(model, optimizer):
        pass
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with model.use_params(optimizer.averages):
        inside = {name: value.clone() for name, value in module.state_dict().items()}
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
        trained = name.startswith(("first", "second")) or name in ("norm.weight", "norm.bias")
        assert torch.equal(inside[name], before[name]) != trained, name


def test_averages_of_two_shims_do_not_mix():
    model = chain(PyTorchWrapper(torch.nn.Linear(5, 5)), PyTorchWrapper(torch.nn.Linear(5, 3)))
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    for _ in train(model, optimizer):
        pass
    before = params_of(model)
    with model.use_params(optimizer.averages):
        assert not any(torch.equal(a, b) for a, b in zip(before, params_of(model)))
    assert same(before, params_of(model))


def test_averages_are_what_is_evaluated_and_saved():
    nlp = toy_pipeline()
    examples, optimizer = toy_examples(nlp), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    nlp.initialize(lambda: examples, sgd=optimizer)
    assert optimizer.averages == {}
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    raw = [params_of(proc.model) for _, proc in nlp.pipeline]
    with nlp.use_params(optimizer.averages):
        averaged = [params_of(proc.model) for _, proc in nlp.pipeline]
        data = nlp.to_bytes()
    assert all(same(before, params_of(proc.model)) for before, (_, proc) in zip(raw, nlp.pipeline))
    assert not any(same(a, b) for a, b in zip(raw, averaged))
    nlp.from_bytes(data)
    assert all(same(expected, params_of(proc.model)) for expected, (_, proc) in zip(averaged, nlp.pipeline))


def test_averages_off_is_empty_not_none():
    """`spacy pretrain` hands them to Model.use_params without a look."""
    model, optimizer = thinc_model(), TorchOptimizer(AdamW(), 0.01)
    for _ in train(model, optimizer, 1):
        pass
    before = params_of(model)
    with model.use_params(optimizer.averages):
        assert same(before, params_of(model))
