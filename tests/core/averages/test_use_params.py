"""Averages in place of the weights, for a while."""

import copy

import numpy
import pytest
import spacy
import torch
from thinc.api import PyTorchWrapper, chain, with_array
from torch.utils._python_dispatch import TorchDispatchMode

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW, create
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.errors import ParamError

from ...models import (
    WIDTH,
    backprop,
    mixed_model,
    params_of,
    same,
    thinc_model,
    torch_model,
    toy_examples,
    toy_pipeline,
)
from .test_own_store import OwnStore, around

MODELS = {"thinc": thinc_model, "torch": torch_model, "mixed": mixed_model}


@pytest.mark.parametrize("is_of_torch", [False, True])
def test_use_params_refuses_rehearsals(is_of_torch):
    """They call the optimizer tensor by tensor."""
    nlp = toy_pipeline(["tagger"], shared=False)
    examples = toy_examples(nlp, 20)
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    nlp.initialize(lambda: examples)
    model = nlp.get_pipe("tagger").model
    if is_of_torch:
        model.layers[0] = chain(model.layers[0], with_array(PyTorchWrapper(torch.nn.Linear(WIDTH, WIDTH))))
    nlp.resume_training(sgd=optimizer)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    if is_of_torch:  # the others have no averages then
        optimizer.freeze([name for name in optimizer.params if not name.endswith(("weight", "bias"))])
    before = params_of(model)
    averages = {key: value.clone() for key, value in optimizer.state_dict()["averages"]["tensors"].items()}
    with (
        pytest.raises(ParamError, match=r"Can't update param 'tagger/.*found averages in their place"),
        nlp.use_params(optimizer.averages),
    ):
        nlp.rehearse(examples, sgd=optimizer)
    assert same(before, params_of(model))
    found = optimizer.state_dict()["averages"]["tensors"]
    assert all((found[key] == value).all() for key, value in averages.items())
    nlp.rehearse(examples, sgd=optimizer)  # the block has ended
    with nlp.use_params(optimizer.averages):
        optimizer((model.id, "of another"), other := numpy.ones(2, "f"), numpy.ones(2, "f"))
    assert (other != 1).all()


@pytest.mark.parametrize("copied_before", [True, False])
@pytest.mark.parametrize("kind", ["averages", "evaluation form", "own store"])
def test_use_params_leaves_a_frozen_layer_of_which_a_copy_is_trained(kind, copied_before):
    """nlp.replace_listeners copies a layer's shim with its id."""
    frozen = around(OwnStore()) if kind == "own store" else torch_model()
    nlp = spacy.blank("xx")
    nlp.add_pipe("tagger").model = frozen
    nlp.add_pipe("ner").model = trained = frozen.copy() if copied_before else torch_model()
    algorithm = create("schedulefreeadamw", {}) if kind == "evaluation form" else AdamW()
    optimizer = TorchOptimizer(algorithm, 0.1, use_averages=kind != "evaluation form")
    optimizer.initialize(nlp, exclude=["tagger"])
    if not copied_before:
        nlp.get_pipe("ner").model = trained = frozen.copy()

    def values_of(model):
        [shim] = model.shims
        return [torch.tensor(shim.values["W"])] if kind == "own store" else params_of(model)

    for _ in range(3):
        if kind != "own store":
            backprop(trained, numpy.random.default_rng(0))
        trained.finish_update(optimizer)
    before, at_start = values_of(trained), values_of(frozen)
    with nlp.use_params(optimizer.averages):
        assert same(values_of(frozen), at_start)
        assert not any(torch.equal(*both) for both in zip(values_of(trained), before))


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


def test_use_params_of_a_copy_forbids_nothing():
    """A deep copy has the ids of the original."""
    model, optimizer = thinc_model(), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    backprop(model, numpy.random.default_rng(0))
    model.finish_update(optimizer)
    other = copy.deepcopy(model)
    before, kept = params_of(model), params_of(other)
    with other.use_params(optimizer.averages):
        backprop(model, numpy.random.default_rng(1))
        model.finish_update(optimizer)
    assert not same(before, params_of(model)) and same(kept, params_of(other))


def test_use_params_refuses_to_load_a_torch_module():
    """Its params are on the memory of their averages."""
    model, optimizer = torch_model(), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    for step in range(2):
        backprop(model, numpy.random.default_rng(step))
        model.finish_update(optimizer)
    saved, before = model.to_bytes(), params_of(model)
    averages = {key: value.clone() for key, value in optimizer.averages.items()}
    with model.use_params(optimizer.averages):
        with pytest.raises(ParamError, match=r"Can't load values into the torch module .*averages in their place"):
            model.from_bytes(saved)
        inside = copy.deepcopy(model)
    assert same(before, params_of(model))
    assert all(torch.equal(value, averages[key]) for key, value in optimizer.averages.items())
    model.from_bytes(saved)
    inside.from_bytes(saved)
    assert same(before, params_of(inside))


def test_use_params_of_nothing_forbids_nothing():
    model, optimizer = thinc_model(), TorchOptimizer(AdamW(), 0.01)
    backprop(model, numpy.random.default_rng(0))
    before = params_of(model)
    with model.use_params(optimizer.averages):
        model.finish_update(optimizer)
    assert not same(before, params_of(model))


# ---------------------------------------------------------------------- without copies


class Written(TorchDispatchMode):
    """Counts the cells that torch's operations write."""

    cells = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if not func.is_view and func is not torch.ops.aten.detach.default and isinstance(found, torch.Tensor):
            self.cells += found.numel()
        elif found is None and args and isinstance(args[0], list):
            self.cells += sum(tensor.numel() for tensor in args[0])
        return found


def shared_model():
    """A torch param in two places of one module, and in a module of another shim."""
    module = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
    module[1].weight = module[0].weight
    other = torch.nn.Sequential(torch.nn.Linear(5, 3))
    other[0].bias = torch.nn.Parameter(torch.zeros(3))
    return chain(PyTorchWrapper(module), PyTorchWrapper(module[2]), PyTorchWrapper(other))


class PartOfAWhole(torch.nn.Module):
    """Weights that are parts of one memory, as cuDNN's, and one with gaps."""

    def __init__(self):
        super().__init__()
        self.whole = torch.randn(5 * 8)
        self.first = torch.nn.Parameter(self.whole[:15].view(5, 3))
        self.second = torch.nn.Parameter(self.whole[15:].view(5, 5)[:, :3])

    def forward(self, x):
        return x @ self.first + x @ self.second


class Mixed(torch.nn.Module):
    """A weight of half precision, a transposed one, and statistics."""

    def __init__(self):
        super().__init__()
        self.narrow = torch.nn.Parameter(torch.randn(5, 5, dtype=torch.bfloat16))
        self.turned = torch.nn.Parameter(torch.randn(3, 5).T)
        self.norm = torch.nn.BatchNorm1d(5)

    def forward(self, x):
        return self.norm(x @ self.narrow.float()) @ self.turned


NOT_COPIED = {"torch": torch_model, "mixed": mixed_model, "shared": shared_model}
COPIED = {"parts": lambda: PyTorchWrapper(PartOfAWhole()), "odd": lambda: PyTorchWrapper(Mixed())}


@pytest.mark.filterwarnings("ignore:.*trained in bfloat16")
@pytest.mark.parametrize("settings", [{}, {"master_weights": True}, {"averages": EMA(dtype="float64")}], ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(kind, marks=pytest.mark.device) for kind in (*NOT_COPIED, "parts")),
        "odd",  # autograd brings the gradient of another dtype to the place where C++ takes the double's tensors to be
    ],
)
def test_use_params_restores_every_bit(kind, settings):
    """Also after an error, and in blocks in blocks. Oracle: the averages that the state has."""
    model = (NOT_COPIED | COPIED)[kind]()
    optimizer = TorchOptimizer(AdamW(), 0.01, **{"use_averages": "averages" not in settings} | settings)
    rng = numpy.random.default_rng(0)
    for _ in range(3):
        backprop(model, rng)
        model.finish_update(optimizer)
    torch_params = {
        param: (param.data_ptr(), param.stride())
        for node in model.walk()
        for shim in node.shims
        for param in shim._model.parameters()
    }
    before, averages = params_of(model), optimizer.averages
    expected = [param.clone() for param in torch_params]
    for param, own in zip(torch_params, expected):
        own.data.copy_(optimizer._trained.averages.tensor_of(id(param)))

    def is_averaged():
        return all(torch.equal(param, own) for param, own in zip(torch_params, expected))

    with pytest.raises(ZeroDivisionError), model.use_params(averages):
        assert is_averaged()
        with model.use_params(optimizer.averages):
            assert is_averaged()
        assert is_averaged()
        model.predict(model.ops.asarray(rng.normal(size=(2, 5)).astype("f")))
        raise ZeroDivisionError
    assert same(before, params_of(model))
    assert all((param.data_ptr(), param.stride()) == place for param, place in torch_params.items())
    backprop(model, rng)
    model.finish_update(optimizer)
    assert not same(before, params_of(model))
    assert not is_averaged()


@pytest.mark.parametrize("kind", NOT_COPIED)
def test_use_params_copies_nothing(kind):
    """There may be no room for the params a third time. Nor of params that have no average, as they are frozen."""
    model, optimizer = NOT_COPIED[kind](), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    for shim in (shim for node in model.walk() for shim in node.shims):
        next(shim._model.parameters()).requires_grad_(False)
    backprop(model, numpy.random.default_rng(0))
    model.finish_update(optimizer)
    before = params_of(model)
    with Written() as written:
        with model.use_params(optimizer.averages):
            assert not same(before, params_of(model))
            inside = sum(map(torch.Tensor.numel, before))  # by `params_of` above
        assert written.cells <= inside
    assert same(before, params_of(model))
