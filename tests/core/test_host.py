"""What is read behind the backs of the hosts is what their own functions say."""

import numpy
import pytest
import torch
from thinc.api import Linear, Model, PyTorchWrapper
from torch.optim.optimizer import register_optimizer_step_post_hook

from thinc_torchopt.core.host import (
    buffers_of,
    grads_of,
    is_hooked_after_step,
    is_hooked_before_step,
    run_last,
    swap_grads,
)


class Remote:
    """As the proxy with which thinc trains in several processes by Ray: it has the params."""

    def __init__(self):
        self.array = numpy.ones((3, 2), dtype="f")

    def get_param(self, id, name):
        return self.array


def node_with_grads():
    """One with all cases: param with and without gradient, unset, and a gradient of what is no param."""
    node = Model("odd", lambda model, X, is_train: (X, lambda dY: dY), params=dict.fromkeys("abcd"))
    for name in "abc":
        node.set_param(name, numpy.zeros((3, 2), dtype="f"))
    for name in ("c", "a", "stranger"):
        node.set_grad(name, numpy.ones((3, 2), dtype="f"))
    return node


@pytest.mark.parametrize("is_copy", [False, True])
def test_host_grads_are_those_that_thinc_tells(is_copy):
    """The oracle is what thinc's own `Model.finish_update` goes by, in its order."""
    node = node_with_grads()
    if is_copy:
        node = node.copy()
    wanted = [
        ((node.id, name), node.get_param(name), node.get_grad(name)) for name in node.param_names if node.has_grad(name)
    ]
    found = list(grads_of(node))
    assert [key for key, _, _ in found] == [key for key, _, _ in wanted]
    assert len(found) == 2
    assert all(a is b for one, other in zip(found, wanted) for a, b in zip(one[1:], other[1:]))
    assert list(grads_of(Linear(2, 2))) == []


def test_host_grads_leave_params_that_are_elsewhere_to_get_param():
    node = node_with_grads()
    node._params.proxy = Remote()
    assert [(key, array) for key, array, _ in grads_of(node)] == [((node.id, "a"), None), ((node.id, "c"), None)]


def test_host_swaps_gradients():
    node = node_with_grads()
    grad = node.get_grad("a")
    before = swap_grads(node, {})
    assert not node.has_grad("a")
    assert swap_grads(node, before) == {} and node.get_grad("a") is grad


def test_host_buffers_are_a_modules_own():
    module = PyTorchWrapper(torch.nn.BatchNorm1d(3)).shims[0]._model
    assert buffers_of(module).keys() == dict(module.named_buffers()).keys()
    buffers_of(module)["running_mean"] = new = torch.ones(3)
    assert module.running_mean is new


def test_host_sees_hooks_and_their_order():
    optimizer, called = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), []
    assert not is_hooked_before_step(optimizer) and not is_hooked_after_step(optimizer)
    first = optimizer.register_step_pre_hook(lambda *_: called.append("first"))
    assert is_hooked_before_step(optimizer) and not is_hooked_after_step(optimizer)
    optimizer.register_step_pre_hook(lambda *_: called.append("second"))
    run_last(optimizer, first)
    handle = register_optimizer_step_post_hook(lambda *_: called.append("of all"))
    assert is_hooked_after_step(optimizer)
    try:
        optimizer.step()
    finally:
        handle.remove()
    assert called == ["second", "first", "of all"] and not is_hooked_after_step(optimizer)
