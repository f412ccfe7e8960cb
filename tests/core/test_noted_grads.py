"""`finish_update` goes through `set_grad`, so that a subclass can look at, or change, every gradient."""

import numpy
import torch
from thinc.api import Linear, Model, PyTorchWrapper, Shim, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD


class Seeing(TorchOptimizer):
    """Notes what `set_grad` is given, and halves it."""

    def set_grad(self, param, grad, callback=None, *, key=None):
        self.seen = [*getattr(self, "seen", []), param]
        super().set_grad(param, 0.5 * grad, callback, key=key)


class OwnStore(Shim):
    """A shim that keeps its params by itself, and hands them to its optimizer in one call."""

    def __init__(self):
        super().__init__(None)
        self.values, self.grads = numpy.ones(3, dtype="f"), numpy.ones(3, dtype="f")

    def finish_update(self, optimizer):
        self.values, _ = optimizer((self.id, "all"), self.values, self.grads)


def test_set_grad_sees_arrays_torch_params_and_shims():
    """The oracle is SGD by hand: weights less half of the gradients, which are 1."""
    module = torch.nn.Linear(2, 2)
    store = OwnStore()
    holder = Model("holder", lambda model, X, is_train: (X, lambda dY: dY), shims=[store])
    model = chain(Linear(2, 2), PyTorchWrapper(module), holder)
    X = numpy.zeros((1, 2), dtype="f")
    model.initialize(X, X)
    linear = model.layers[0]
    before = {name: linear.get_param(name).copy() for name in linear.param_names}
    torch_before = [param.detach().clone() for param in module.parameters()]
    for name in linear.param_names:
        linear.set_grad(name, numpy.ones_like(linear.get_param(name)))
    for param in module.parameters():
        param.grad = torch.ones_like(param)
    optimizer = Seeing(SGD(), 1.0, grad_clip=0.0)
    model.finish_update(optimizer)
    assert len(optimizer.seen) == 2 + 2 + 1
    for name, values in before.items():
        numpy.testing.assert_array_equal(linear.get_param(name), values - 0.5)
    for param, values in zip(module.parameters(), torch_before):
        assert torch.equal(param.detach(), values - 0.5)
    numpy.testing.assert_array_equal(store.values, [0.5] * 3)
