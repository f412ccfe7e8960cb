"""Shims that keep their params by themselves: averages reach them, in the form in which they call their optimizer."""

from contextlib import contextmanager

import numpy
import pytest
import spacy
import thinc.api
import torch
from thinc.api import Linear, Model, Shim, chain

import thinc_torchopt
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD


class OwnStore(Shim):
    """As thinc's shims are written: it calls its optimizer under (id, name), and finds averages there."""

    def __init__(self, names=("W",), make=numpy.ones):
        super().__init__(None)
        self.values = {name: make(3, dtype=torch.float32 if make is torch.ones else "f") for name in names}
        self.seen = []

    def finish_update(self, optimizer):
        for name, values in self.values.items():
            self.values[name], _ = optimizer((self.id, name), values, values * 0 + 1)
            self.seen.append(type(self.values[name]))

    @contextmanager
    def use_params(self, params):
        backup = dict(self.values)
        self.values.update({name: params[self.id, name] for name in self.values if (self.id, name) in params})
        yield
        self.values = backup


def around(store, name="holder"):
    return Model(name, lambda model, X, is_train: (X, lambda dY: dY), shims=[store])


def update(model, optimizer, n=3):
    for _ in range(n):
        model.finish_update(optimizer)
        optimizer.step_schedules()


@pytest.mark.parametrize("make", [numpy.ones, torch.ones])
@pytest.mark.parametrize("names", [("W",), ("W", "b")])
def test_own_store_uses_its_averages(names, make):
    """The oracle: thinc's formula over the values, by hand; and thinc's own SGD, where it can: with arrays."""
    optimizers = [thinc_torchopt.SGD(0.1), TorchOptimizer(SGD(), 0.1, clip_by="param", use_averages=True)]
    if make is numpy.ones:
        optimizers.append(thinc.api.SGD(0.1))
    found = []
    for optimizer in optimizers:
        store = OwnStore(names, make)
        model = around(store)
        expected = average = numpy.zeros(3)
        values = []
        for t in range(1, 4):
            update(model, optimizer, 1)
            values.append(numpy.asarray(store.values["W"]).copy())
            decay = min((1 + t) / (10 + t), 0.9999)
            expected = average = decay * average + (1 - decay) * values[-1]
        assert not numpy.allclose(expected, values[-1])
        before = dict(store.values)
        with model.use_params(optimizer.averages):
            for name in names:
                # float32, three sums of two products.
                numpy.testing.assert_allclose(numpy.asarray(store.values[name]), expected, rtol=1e-6)
                assert isinstance(store.values[name], type(before[name]))
            found.append(numpy.asarray(store.values["W"]).copy())
        assert all(store.values[name] is before[name] for name in names)
    for other in found[1:]:
        numpy.testing.assert_allclose(found[0], other, rtol=1e-6)


def test_own_store_is_not_taken_for_a_node_of_the_same_id():
    """Shims and nodes count their ids apart."""
    store, optimizer = OwnStore(), TorchOptimizer(SGD(), 0.1, use_averages=True)
    linear = Linear(3, 3).initialize()
    model = chain(linear, around(store))
    store.id = linear.id
    linear.set_grad("W", numpy.ones((3, 3), dtype="f"))
    update(model, optimizer, 1)
    averages = optimizer.averages
    assert averages[linear.id, "W"].shape == (3, 3)
    W, values = linear.get_param("W").copy(), numpy.asarray(store.values["W"]).copy()
    with model.use_params(averages):
        # The first value has 9 of 11 parts in the average.
        numpy.testing.assert_allclose(linear.get_param("W"), W * 9 / 11, rtol=1e-6)
        numpy.testing.assert_allclose(store.values["W"], values * 9 / 11, rtol=1e-6)


@pytest.mark.parametrize("names", [("W",), ("W", "b")])
def test_own_store_that_calls_with_tensors_gets_tensors(names):
    store, optimizer = OwnStore(names, torch.ones), TorchOptimizer(SGD(), 0.1, grad_clip=0.0)
    update(around(store), optimizer)
    assert set(store.seen) == {torch.Tensor}
    assert all(torch.allclose(values, torch.full((3,), 1 - 0.3)) for values in store.values.values())


def test_own_store_frozen_gets_tensors_too():
    store = OwnStore(("W",), torch.ones)
    nlp = spacy.blank("xx")
    nlp.add_pipe("tagger").model = model = chain(Linear(3, 3).initialize(), around(store))
    optimizer = TorchOptimizer(SGD(), 0.1, param_groups={"still": {"params": ["tagger/*"], "freeze": True}})
    optimizer.initialize(nlp)
    update(model, optimizer)
    assert set(store.seen) == {torch.Tensor} and store.values["W"].tolist() == [1.0] * 3


def test_own_store_outside_a_pipeline_has_one_prefix():
    optimizer = TorchOptimizer(SGD(), 0.1, grad_clip=0.0)
    model = chain(around(OwnStore(("W", "b"))), around(OwnStore(("W",)), "other"))
    update(model, optimizer, 1)
    names = [info.name for info in optimizer.describe()]
    assert len(names) == 3 and len({name.partition("/")[0] for name in names}) == 1
    # Another model of that name has another one.
    update(chain(around(OwnStore(("W", "b"))), around(OwnStore(("W",)), "other")), optimizer, 1)
    names = [info.name for info in optimizer.describe()]
    assert len(set(names)) == 6 and len({name.partition("/")[0] for name in names}) == 2


def test_own_store_a_fresh_one_begins_anew_under_the_old_name():
    nlp = spacy.blank("xx")
    nlp.add_pipe("tagger").model = around(OwnStore())
    optimizer = TorchOptimizer(SGD(momentum=0.9), 0.1, use_averages=True)
    optimizer.introduce(nlp)
    update(nlp.get_pipe("tagger").model, optimizer)
    assert [info.updates for info in optimizer.describe()] == [3]
    nlp.get_pipe("tagger").model = around(OwnStore())
    update(nlp.get_pipe("tagger").model, optimizer, 1)
    assert [(info.name, info.updates) for info in optimizer.describe()] == [("tagger/W", 1)]
    assert list(optimizer.state_dict()["averages"]["taken"].values()) == [1]
