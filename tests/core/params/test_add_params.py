"""Params are taken in together: each torch optimizer is built once, and the learn rate controller looks once."""

import numpy
import pytest
import torch
from thinc.api import Linear, PyTorchWrapper, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.algorithm import Algorithm
from thinc_torchopt.core.algorithms.torch_classes import Adagrad, AdamW, Muon
from thinc_torchopt.core.errors import ConfigError, ParamError
from thinc_torchopt.core.rates.writer import RateWriter

from ...conftest import needs_muon
from ...models import backprop, optimizer_for, pipeline_of
from ...peek import groups_in, params_in

N = 12


class Counts:
    """How often something was built, and how often the controller took the params of an optimizer anew."""

    def __init__(self):
        self.builds, self.refreshes = [], 0

    def algorithm(self, build=torch.optim.AdamW, **settings):
        def counted(params, **options):
            params = list(params)
            self.builds.append(len(params))
            return build(params, **options)

        return Algorithm("counted", counted, {"weight_decay": 0.01, "eps": 1e-8}, **settings)

    def pop(self):
        """What was counted since the last call."""
        found = sum(self.builds), len(self.builds), self.refreshes
        self.builds, self.refreshes = [], 0
        return found


@pytest.fixture
def counts(monkeypatch):
    found, set_groups = Counts(), RateWriter.set_groups

    def counted(self, *args):
        found.refreshes += 1
        set_groups(self, *args)

    monkeypatch.setattr(RateWriter, "set_groups", counted)
    return found


def make_model(kind):
    if kind == "torch":
        return PyTorchWrapper(torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(N // 2))))
    return chain(*(Linear(5, 5) for _ in range(N // 2))).initialize()


def optimizer_of(counts, **settings):
    made = TorchOptimizer(counts.algorithm(), 0.1, **settings)
    counts.pop()  # the trials
    return made


@pytest.mark.parametrize("kind", ["torch", "thinc"])
def test_add_params_builds_once_for_each_group(counts, kind):
    model = make_model(kind)
    nlp, optimizer = pipeline_of(tagger=model), optimizer_of(counts, skip_decay="bias_and_norm")
    optimizer.initialize(nlp)
    assert counts.pop() == (N, 2, 1)
    assert [len(group["params"]) for group in optimizer.torch_optimizers["algorithm"].param_groups] == [N // 2, N // 2]
    backprop(model, numpy.random.default_rng(0))
    model.finish_update(optimizer)
    assert counts.pop() == (0, 0, 0)


@pytest.mark.parametrize("kind", ["torch", "thinc"])
def test_add_params_at_the_first_update_without_a_pipeline(counts, kind):
    model, optimizer = make_model(kind), optimizer_of(counts)
    backprop(model, numpy.random.default_rng(0))
    model.finish_update(optimizer)
    assert counts.pop() == (N, 1, 1)
    assert list(optimizer.params) == [info.name for info in optimizer.describe()] and len(optimizer.params) == N


def test_add_params_when_all_move_grow_are_renamed_thawed_or_go(counts):
    model = make_model("torch")
    nlp, module = pipeline_of(tagger=model), model.shims[0]._model
    optimizer = optimizer_of(counts, param_groups={"late": {"params": ["*/weight"], "unfreeze_at": 1}})
    optimizer.initialize(nlp)
    assert counts.pop()[2] == 1

    def update():
        for param in module.parameters():
            param.grad = torch.zeros_like(param)
        model.finish_update(optimizer)

    update()
    counts.pop()
    optimizer.step_schedules()
    assert counts.pop() == (N // 2, 1, 1)
    update()
    module.double()
    update()
    assert counts.pop() == (0, 0, 1)
    ids = [group.label for group in groups_in(optimizer).groups]
    nlp.rename_pipe("tagger", "renamed")
    optimizer.introduce(nlp)
    assert counts.pop() == (0, 0, 1) and all(name.startswith("renamed/") for name in optimizer.params)
    assert ids == [group.label for group in groups_in(optimizer).groups]
    for layer in module:
        layer.weight = torch.nn.Parameter(torch.zeros(6, 5))
        layer.bias = torch.nn.Parameter(torch.zeros(6))
    optimizer.introduce(nlp)
    assert counts.pop() == (N, 1, 1)
    nlp.add_pipe("morphologizer").model = make_model("thinc")
    nlp.remove_pipe("renamed")
    optimizer.introduce(nlp)
    assert counts.pop() == (N, 1, 1)
    assert len(optimizer.params) == N and all(name.startswith("morphologizer/") for name in optimizer.params)


def test_add_params_loads_all_at_once(counts):
    model = make_model("torch")
    nlp, optimizer = pipeline_of(tagger=model), optimizer_of(counts)
    optimizer.initialize(nlp)
    saved = optimizer.state_dict()
    counts.pop()
    optimizer.load_state_dict(saved)
    assert counts.pop()[2] == 1


def test_add_params_keeps_the_order_of_the_model():
    """In groups, too, where another order would be another order of sums in a norm, and another file."""
    model = chain(Linear(5, 5), PyTorchWrapper(torch.nn.Linear(5, 5)), Linear(5, 5)).initialize()
    backprop(model, numpy.random.default_rng(0))
    optimizer = TorchOptimizer(AdamW(), 0.1)
    model.finish_update(optimizer)
    alone = TorchOptimizer(AdamW(), 0.1)
    other = chain(Linear(5, 5), PyTorchWrapper(torch.nn.Linear(5, 5)), Linear(5, 5)).initialize()
    with alone.joint_step():
        for node in other.walk():
            for shim in node.shims:
                for param in shim._model.parameters():
                    alone.set_grad(param, torch.zeros_like(param), key=id(param))
            for name in node.param_names:
                alone.set_grad(node.get_param(name), numpy.zeros_like(node.get_param(name)), key=(node.id, name))
    shapes, one_by_one = (
        [tuple(t.shape) for t in o.torch_optimizers["algorithm"].param_groups[0]["params"]] for o in (optimizer, alone)
    )
    names = [name.rpartition("/")[2] for name in optimizer.params]
    assert shapes == one_by_one and names == ["W", "b", "weight", "bias", "W", "b"]
    group = groups_in(optimizer).groups[0]
    assert [id(param) for param in group.params] == [id(param) for param in params_in(optimizer)]


def test_add_params_keeps_state_that_a_class_makes_when_it_is_built():
    model = make_model("torch")
    nlp = pipeline_of(tagger=model)
    optimizer = optimizer_for(
        nlp,
        Adagrad(initial_accumulator_value=0.5),
        0.1,
        param_groups={"one": {"params": ["*/0/*"], "weight_decay": 0.1}},
    )
    saved = optimizer.state_dict()
    for _ in range(2):
        state = optimizer.torch_optimizers["algorithm"].state
        assert len(state) == N and all((found["sum"] == 0.5).all() for found in state.values())
        backprop(model, numpy.random.default_rng(0))
        model.finish_update(optimizer)
        optimizer.roll_back(saved)  # by `begin_anew`: none had an update then


# ---------------------------------------------------------------------- one is refused


def refuse_in(model, n):
    """Make a param of a torch module one that can't be optimized."""
    model.shims[0]._model[n].weight = torch.nn.Parameter(torch.ones(5, 1).expand(5, 5))


def test_add_params_is_all_or_nothing_when_a_tensor_is_refused():
    model = make_model("torch")
    nlp, optimizer = pipeline_of(tagger=model), TorchOptimizer(AdamW(), 0.1)
    refuse_in(model, 3)
    with pytest.raises(ParamError, match=r"'tagger/3/weight': expected a tensor without overlapping memory"):
        optimizer.initialize(nlp)
    assert optimizer.params == {} and optimizer.torch_optimizers == {}
    model.shims[0]._model[3].weight = torch.nn.Parameter(torch.ones(5, 5))
    optimizer.initialize(nlp)
    assert len(optimizer.params) == N


def test_add_params_is_all_or_nothing_when_the_algorithm_refuses_a_param(counts):
    """The error names the param, though all are built together; and what was there before is as it was."""
    bad = []

    def picky(params, **options):
        if any(id(param) in bad for param in params):
            raise ValueError("too odd")
        return torch.optim.AdamW(params, **options)

    model = make_model("torch")
    nlp, optimizer = pipeline_of(tagger=model), TorchOptimizer(counts.algorithm(picky), 0.1, skip_decay="bias_and_norm")
    bad.append(id(model.shims[0]._model[3].bias))
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"Can't train param 'tagger/3/bias' with the options of 'skip_decay'.*too odd"
        ):
            optimizer.initialize(nlp)
        assert optimizer.params == {} and optimizer.describe() == [] and optimizer.rates.learn_rates == {}
    bad.clear()
    optimizer.initialize(nlp)
    assert len(optimizer.params) == N


@needs_muon
def test_add_params_is_all_or_nothing_when_no_algorithm_takes_a_param():
    model = chain(Linear(5, 5), Linear(5, 5)).initialize()
    muon = Muon()
    object.__setattr__(muon, "fallback", None)
    optimizer = TorchOptimizer(muon, 0.1)
    with pytest.raises(ConfigError, match=r"'tagger/linear-0/b'"):
        optimizer.initialize(pipeline_of(tagger=model))
    assert optimizer.params == {}
