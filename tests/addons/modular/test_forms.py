"""The forms in which declearn's users write things: configs, classes of their own, gradients, batches, JSON, and
auxiliary variables.
"""

import json

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinc_torchopt.addons.modular.module import Block, Module
from thinc_torchopt.addons.modular.moments import Adam
from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.modular.regularizers import Ridge
from thinc_torchopt.addons.modular.scaffold import ScaffoldAuxVar
from thinc_torchopt.core.errors import AuxVarError, ConfigError, ConfigKeyError, ConfigTypeError, StateError


def linear(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2).to(dtype)


def a_step(model, optimizer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
    optimizer.step()


def values(model):
    return [param.detach().clone() for param in model.parameters()]


def test_forms_shortest_config_is_declearns():
    """declearn's rate does not scale the decay, also where the config does not name it."""
    optimizer = Modular.from_config(linear().named_parameters(), {"lrate": 0.1})
    assert optimizer.lr == 0.1 and optimizer.decay == "declearn" and optimizer.modules == () and not optimizer.w_decay
    assert Modular.from_config(linear().named_parameters(), {"lr": 0.1}).decay == "adamw"
    with pytest.raises(ConfigKeyError, match=r"expected lr, and any of .*missing: lr"):
        Modular.from_config(linear().named_parameters(), {"modules": []})


def test_forms_classes_of_ones_own_are_found_by_name():
    class Double(Module):
        name = "double"

        def run(self, block: Block) -> None:
            block.scale(2.0)

    ends = []
    for modules in (["double"], [Double()]):
        model = linear()
        optimizer = Modular(model.named_parameters(), lr=0.1, modules=modules)
        again = Modular.from_config(model.named_parameters(), json.loads(json.dumps(optimizer.get_config())))
        assert type(again.modules[0]) is Double
        a_step(model, again)
        ends.append(values(model))
    plain = linear()
    a_step(plain, torch.optim.SGD(plain.parameters(), lr=0.2))
    for found in ends:
        torch.testing.assert_close(found, values(plain), rtol=1e-6, atol=1e-7)


def test_forms_class_without_a_name_of_its_own_has_no_config():
    class Mine(Adam):
        pass

    class Taken(Ridge):
        name = "ridge"

    for parts, told in (
        ({"modules": [Mine()]}, "Mine, which has that of Adam"),
        ({"regularizers": [Taken()]}, "Taken"),
    ):
        optimizer = Modular(linear().named_parameters(), lr=0.1, **parts)
        with pytest.raises(ConfigError, match=told):
            optimizer.get_config()


def test_forms_json_is_a_state_and_damaged_json_changes_nothing():
    model = linear()
    named = [*model.named_parameters(), ("empty", torch.nn.Parameter(torch.zeros(0, 3)))]
    optimizer = Modular(named, lr=0.1, regularizers=["fedprox"], modules=["momentum"])
    a_step(model, optimizer)
    optimizer.start_round()
    good = json.dumps(optimizer.get_state(as_json=True))
    for part, damage in (
        ('"shape": [2, 3]', '"shape": [2, 4]'),
        ("float32", "float31"),
        ('"base64": "', '"base64": "*'),
    ):
        assert part in good
        with pytest.raises(StateError, match="a tensor is damaged"):
            optimizer.set_state(json.loads(good.replace(part, damage)))
    optimizer.set_state(json.loads(good))
    assert json.dumps(optimizer.get_state(as_json=True)) == good


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda model: (3,), "expected a dict by the names"),
        (lambda model: ({"weight": "x", "bias": torch.ones(2)},), "'weight': expected a tensor or a NumPy array"),
        (lambda model: ([numpy.ones((2, 3), "int64"), torch.ones(2)],), "found an array of int64"),
    ],
)
def test_forms_other_gradients_are_refused(make, told):
    model = linear()
    optimizer = Modular(model.named_parameters(), lr=0.1)
    before = values(model)
    for apply in (optimizer.apply_gradients, optimizer.compute_updates_from_gradients):
        with pytest.raises(ConfigTypeError, match=told):
            apply(*make(model))
    assert all(torch.equal(one, other) for one, other in zip(before, values(model)))


@pytest.mark.parametrize("sclip", [None, 0.5])
def test_forms_batches_of_declearn(sclip):
    x, y = torch.randn(4, 3), torch.randint(2, (4,))
    ends = []
    for batch in ((x, y), (x, y, None)):
        model = linear()
        optimizer = Modular(model.named_parameters(), lr=0.1)
        optimizer.run_train_step(model, batch, sclip, loss=torch.nn.functional.cross_entropy)
        ends.append(values(model))
    assert all(torch.equal(one, other) for one, other in zip(*ends))
    for batch, told in (
        ((x, y, torch.ones(4)), "the batch has 2 inputs before the targets"),
        ((x, None, y), "expected a batch of tensors, found Tensor, NoneType, Tensor"),
        ((x.numpy(), y.numpy()), "torch.as_tensor"),
        ((), "an empty one"),
    ):
        with pytest.raises(ConfigTypeError, match=told):
            optimizer.run_train_step(model, batch, sclip, loss=torch.nn.functional.cross_entropy)


@settings(max_examples=30)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=6))
def test_forms_auxiliary_variables_can_be_added(numbers):
    found = [ScaffoldAuxVar(delta={"w": torch.full((2,), x)}, clients=(str(i),)) for i, x in enumerate(numbers)]
    total = sum(found)
    assert total.clients == tuple(sorted(map(str, range(len(numbers)))))
    assert torch.equal(total.delta["w"], ScaffoldAuxVar.aggregate(found).delta["w"])
    mean = ScaffoldAuxVar.aggregate(found, "mean").delta["w"]
    torch.testing.assert_close(mean, total.delta["w"] / len(numbers))
    again = ScaffoldAuxVar.from_dict(total.to_dict())
    assert torch.equal(again.delta["w"], total.delta["w"]) and again.clients == total.clients


def test_forms_auxiliary_variables_of_several_kinds_cannot():
    aux = ScaffoldAuxVar(delta=0.0)
    for other in (1, "x", None):
        with pytest.raises(TypeError):
            aux + other
        with pytest.raises(TypeError):
            other + aux
    with pytest.raises(AuxVarError, match="found rounds"):
        ScaffoldAuxVar.from_dict({"delta": 0.0, "rounds": 3})
