"""What is read behind the backs of the hosts is what their own functions say."""

import sys
from types import SimpleNamespace

import numpy
import pytest
import torch
from thinc.api import Linear, Model, PyTorchGradScaler, PyTorchShim
from torch.optim.optimizer import register_optimizer_step_post_hook

from thinc_torchopt.core import host
from thinc_torchopt.core.host import (
    back_off,
    cpu_has_bf16_lstm,
    grads_of,
    is_hooked_after_step,
    is_hooked_before_step,
    module_of,
    run_last,
    scale_of,
    swap,
    swap_module,
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


def test_host_backs_off_as_thinc_does_after_an_overflow():
    """Also from a scale that was saved, whatever came since."""
    ours, theirs = (PyTorchGradScaler(enabled=True, init_scale=1024.0, growth_interval=3) for _ in range(2))
    for scaler in (ours, theirs):
        scaler.unscale([torch.ones(1)])
        scaler.update()
    before = scale_of(ours)
    assert before[0] == 1024.0 and before[1] == 1
    for _ in range(2):
        ours.unscale([torch.ones(1)])
        ours.update()
    back_off(ours, before)
    theirs.unscale([torch.full((1,), torch.inf)])
    theirs.update()
    assert scale_of(ours) == scale_of(theirs) and scale_of(ours)[0] == 512.0 and not ours.found_inf


def test_host_asks_torch_for_its_lstm(monkeypatch):
    lstm, asked = torch.lstm, []

    def lstm_of_float32(*args):
        asked.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_grad_enabled()))
        with torch.autocast("cpu", enabled=False):
            return lstm(*args)

    monkeypatch.setattr(torch, "lstm", lstm_of_float32)
    ask = cpu_has_bf16_lstm.__wrapped__  # the answer is kept
    assert ask() is True and asked == [(True, torch.bfloat16, False)]

    def refused(*args):
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(torch, "lstm", refused)
    assert ask() is False


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


@pytest.mark.parametrize("algorithm", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_host_optimizers_do_not_import_the_compiler(algorithm, monkeypatch):
    """Which takes a second, and only torch.compile needs. A step is torch's, with its hooks and without gradients."""

    def trained(step, calls):
        param = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        optimizer = algorithm([param], lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append(torch.is_grad_enabled()))
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        for _ in range(3):
            param.grad = torch.ones(2, 3)
            step(optimizer)
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
        return param.detach()

    by_torch, ours = [], []
    expected = trained(lambda optimizer: optimizer.step(), by_torch)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # importing it is an error
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        function = getattr(torch.optim.Optimizer, name).__wrapped__
        monkeypatch.delattr(function, "__dynamo_disable", raising=False)
    host.call_without_compiler()
    assert torch.equal(trained(host.step, ours), expected) and ours == by_torch
    with pytest.raises(ImportError):
        trained(lambda optimizer: optimizer.step(), [])


def test_host_optimizers_tell_the_compiler_once_it_is_there(monkeypatch):
    import torch._dynamo

    function = torch.optim.Optimizer.zero_grad.__wrapped__
    monkeypatch.delattr(function, "__dynamo_disable", raising=False)
    host.call_without_compiler()
    ours = function.__dynamo_disable
    torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1).zero_grad()
    assert function.__dynamo_disable is not ours


def test_host_swap_puts_back_what_is_still_ours():
    """Of an attribute of the object, of its class, and of a slot; not over what other code has set meanwhile."""

    class Slotted:
        __slots__ = ("forward",)

    node, module, slotted = Linear(2, 2), torch.nn.Linear(2, 2), Slotted()
    slotted.forward, ours, theirs = len, object(), object()
    own = torch.nn.Linear(2, 2)
    own.forward = max
    for owner, name in ((node, "_func"), (module, "forward"), (slotted, "forward"), (own, "forward"), (node, "ops")):
        before, had = getattr(owner, name), set(getattr(owner, "__dict__", ()))
        put_back = swap(owner, name, ours)
        assert getattr(owner, name) is ours
        put_back()
        assert getattr(owner, name) == before and set(getattr(owner, "__dict__", ())) == had
        put_back = swap(owner, name, ours)
        setattr(owner, name, theirs)
        put_back()
        assert getattr(owner, name) is theirs


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_host_has_no_name_for_the_code_of_blis_where_it_is_not_exported(monkeypatch, error):
    def load(path):
        raise error

    monkeypatch.setattr(host.ctypes, "CDLL", load)
    assert host.code_of_blis() is None


def test_host_swapped_module_of_hugging_face():
    """Their shim keeps it in two places; a state that is loaded brings another one."""
    shim, first, second, loaded = PyTorchShim(torch.nn.Linear(1, 1)), *(torch.nn.Linear(1, 1) for _ in range(3))
    shim._model, shim._hfmodel = first, SimpleNamespace(transformer=first)
    put_back = swap_module(shim, second)
    assert module_of(shim) is shim._hfmodel.transformer is second
    put_back()
    assert module_of(shim) is shim._hfmodel.transformer is first
    put_back = swap_module(shim, second)
    shim._model, shim._hfmodel = loaded, SimpleNamespace(transformer=loaded)
    put_back()
    assert module_of(shim) is shim._hfmodel.transformer is loaded


def test_edit_trees_are_those_of_a_lemmatizer():
    """Words that change alike have one number; the lemmatizer makes lemmas by it."""
    trees = host.new_edit_trees()
    assert trees.add("walked", "walk") == trees.add("talked", "talk") != trees.add("went", "go")
    assert trees.apply(trees.add("walked", "walk"), "asked") == "ask"
