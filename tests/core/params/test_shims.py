"""Shims with a store of their own: each runs once in an update, and has the values of a plain torch loop."""

import copy
import types
import warnings

import numpy
import pytest
import thinc.shims.mxnet
import torch
from thinc.api import SGD as ThincSGD
from thinc.api import Linear, Model, Shim, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import NonFiniteGradError, NonFiniteGradWarning, ParamError

from ...models import params_of, pipeline_of, same_tree


def plain(algorithm=None, learn_rate=0.01, **settings):
    """Nothing but the algorithm."""
    return TorchOptimizer(algorithm or AdamW(), learn_rate, **{"grad_clip": 0.0, **settings})


class StoreShim(Shim):
    """Keeps its params in Python lists, as thinc's TensorFlow shim keeps them in variables: one call with flat
    arrays.
    """

    def __init__(self, values):
        super().__init__(None)
        self.values = [numpy.array(value, dtype="f") for value in values]
        self.gradients = None
        self.finished = 0

    def finish_update(self, optimizer):
        if self.gradients is None:
            raise ValueError("There are no gradients")
        flat = numpy.concatenate([value.ravel() for value in self.values])
        grad = numpy.concatenate([value.ravel() for value in self.gradients])
        flat, _ = optimizer((self.id, "store-shim"), flat, grad)
        start = 0
        for i, value in enumerate(self.values):
            self.values[i] = flat[start : start + value.size].reshape(value.shape).copy()
            start += value.size
        self.gradients = None
        self.finished += 1


class PerParamShim(StoreShim):
    """Calls the optimizer once for each param."""

    def finish_update(self, optimizer):
        for i, (value, grad) in enumerate(zip(self.values, self.gradients)):
            self.values[i] = optimizer((self.id, f"v{i}"), value, grad)[0].copy()
        self.gradients = None


class ZeroingShim(StoreShim):
    """Calls once for each param, and is done with each gradient at once: in place, or by letting it go."""

    def __init__(self, values, *, in_place):
        super().__init__(values)
        self.in_place = in_place

    def finish_update(self, optimizer):
        for i, grad in enumerate(self.gradients):
            if grad is not None:
                self.values[i][...] = optimizer((self.id, f"v{i}"), self.values[i], grad)[0]
                if self.in_place:
                    grad.fill(0.0)
                else:
                    self.gradients[i] = None
        self.finished += 1


def around(shim):
    return Model("store", lambda model, X, is_train: (X, lambda dY: dY), shims=[shim])


def shim_model(shim):
    return chain(Linear(3, 3), around(shim)).initialize()


@pytest.mark.parametrize("kind, clip", [(StoreShim, 0.0), (StoreShim, 0.5), (PerParamShim, 0.0)])
@pytest.mark.device
def test_shims_write_back_to_shims_with_a_store_of_their_own(kind, clip):
    shim = kind([numpy.ones((2, 3)), numpy.arange(4.0)])
    model = shim_model(shim)
    optimizer = plain(grad_clip=clip)
    values = [*params_of(model), *(torch.from_numpy(value.copy()) for value in shim.values)]
    params = [torch.nn.Parameter(value) for value in values]
    bare = torch.optim.AdamW(params, lr=0.01, fused=True)
    rng = numpy.random.default_rng(0)
    for _ in range(10):
        grads = [rng.normal(size=tuple(param.shape)).astype("f") for param in params]
        model.layers[0].set_grad("W", grads[0].copy())
        model.layers[0].set_grad("b", grads[1].copy())
        shim.gradients = [grad.copy() for grad in grads[2:]]
        for param, grad in zip(params, grads):
            param.grad = torch.from_numpy(grad.copy())
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        bare.step()
        model.finish_update(optimizer)
    found = [*params_of(model), *map(torch.from_numpy, shim.values)]
    for ours, theirs in zip(found, params):
        # One flat tensor and four: torch's kernel takes the last elements of a tensor in another way, to the last bit.
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-7)
    if kind is StoreShim:
        assert shim.finished == 10
        assert sum(name.endswith("/store-shim") for name in optimizer.params) == 1


PER_PARAM_SHIMS = [PerParamShim, lambda v: ZeroingShim(v, in_place=True), lambda v: ZeroingShim(v, in_place=False)]


@pytest.mark.parametrize("make", PER_PARAM_SHIMS)
def test_shims_first_call_joins_and_the_others_are_updated_by_themselves(make):
    """A second call comes after the answer to the first: one norm for the layer below and the first param, one for each
    other param; one step of the controller.
    """
    shim = make([numpy.ones((2, 3)), numpy.arange(4.0), numpy.ones(2)])
    model = shim_model(shim)
    optimizer = plain(AdamW(), grad_clip=0.5)
    params = [
        torch.nn.Parameter(torch.from_numpy(value.copy()))
        for value in [*map(numpy.asarray, params_of(model)), *shim.values]
    ]
    bare = torch.optim.AdamW(params, lr=0.01, fused=True)
    rng = numpy.random.default_rng(0)
    for step in range(6):
        grads = [rng.normal(size=tuple(param.shape)).astype("f") for param in params]
        if step == 3:
            grads[4][:] = numpy.nan  # in the shim's last param, which alone is not updated
        model.layers[0].set_grad("W", grads[0].copy())
        model.layers[0].set_grad("b", grads[1].copy())
        shim.gradients = [grad.copy() for grad in grads[2:]]
        for param, grad in zip(params, grads):
            param.grad = torch.from_numpy(grad.copy())
        norm = torch.nn.utils.clip_grad_norm_(params[:3], 0.5)
        torch.nn.utils.clip_grad_norm_(params[3], 0.5)
        torch.nn.utils.clip_grad_norm_(params[4], 0.5)
        if step == 3:
            params[4].grad = None
            with pytest.warns(NonFiniteGradWarning, match="v2' is not finite"):
                model.finish_update(optimizer)
        else:
            model.finish_update(optimizer)
        bare.step()
        assert optimizer.grad_norm == pytest.approx(norm.item(), rel=1e-6)
    found = [*params_of(model), *map(torch.from_numpy, shim.values)]
    for ours, theirs in zip(found, params):
        # The factor of clipping rides along in the kernel, where torch's own loop rounds the scaled gradients once
        # more.
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-7)
    assert optimizer.rates.step_count == 6 and optimizer.skipped_updates == 1
    assert sorted(optimizer.nr_update.values()) == [5, 6, 6, 6, 6]


def test_shims_call_for_a_param_first_or_later():
    """Its param is the same one, with the same moments: its values are the shim's, not those of an earlier call."""
    shim = ZeroingShim([numpy.ones(2), numpy.ones(2)], in_place=False)
    model, optimizer = shim_model(shim), plain(SGD(momentum=0.9), 0.1)
    theirs = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    bare = torch.optim.SGD(theirs, lr=0.1, momentum=0.9)
    for first, second in [(1.0, None), (1.0, 1.0), (None, 2.0), (3.0, None), (1.0, -1.0)]:
        shim.gradients = [None if value is None else numpy.full(2, value, "f") for value in (first, second)]
        for param, value in zip(theirs, (first, second)):
            param.grad = None if value is None else torch.full((2,), value)
        model.finish_update(optimizer)
        bare.step()
    for ours, param in zip(shim.values, theirs):
        # float32, two sums of products.
        numpy.testing.assert_allclose(ours, param.detach().numpy(), rtol=1e-6)


class Stored:
    """A param of MXNet: gradients add up in place, and are zeroed in place."""

    def __init__(self, value):
        self.value = numpy.array(value, dtype="f")
        self.gradient = numpy.zeros_like(self.value)

    def data(self, ctx):
        return self.value

    def grad(self, ctx):
        return self.gradient

    def set_data(self, value):
        self.value[...] = value

    def zero_grad(self):
        self.gradient[...] = 0


@pytest.fixture
def mxnet(monkeypatch):
    """thinc's own shim for MXNet, which nobody installs any more, on objects with MXNet's interface."""
    theirs = thinc.shims.mxnet
    monkeypatch.setattr(theirs, "mx", types.SimpleNamespace(current_context=lambda: None))
    monkeypatch.setattr(theirs, "mxnet2xp", lambda array: array)
    monkeypatch.setattr(theirs, "xp2mxnet", lambda array: array)

    def make(value=1.0):
        stored = {"w": Stored(numpy.full((2, 2), value)), "b": Stored(numpy.full(3, value))}
        return theirs.MXNetShim(types.SimpleNamespace(collect_params=lambda: stored)), stored

    return make


class NestedShim(Shim):
    """Keeps all in dicts of dicts, and lets go of a gradient before it calls."""

    def __init__(self):
        super().__init__(None)
        self.store = {
            "layer": {name: {"value": numpy.ones(3, "f"), "grad": numpy.zeros(3, "f")} for name in ("w", "b")}
        }

    def finish_update(self, optimizer):
        for name, param in self.store["layer"].items():
            grad = param["grad"].copy()
            param["grad"][...] = 0
            param["value"] = optimizer((self.id, name), param["value"].copy(), grad)[0]


def with_gradients(kind, mxnet):
    """A shim, a function that gives it gradients, and one that returns its values."""
    if kind == "mxnet":
        shim, stored = mxnet()
        arrays = [param.gradient for param in stored.values()]
        return shim, arrays, lambda: [param.value.copy() for param in stored.values()]
    shim = NestedShim()
    params = shim.store["layer"].values()
    return shim, [param["grad"] for param in params], lambda: [param["value"].copy() for param in params]


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("kind", ["mxnet", "nested"])
def test_shims_values_are_those_of_thincs_own_optimizer_from_the_first_update_on(mxnet, kind, joint):
    found = []
    for optimizer in ThincSGD(0.1, grad_clip=0.0), plain(SGD(), 0.1):
        shim, grads, values = with_gradients(kind, mxnet)
        model, history = around(shim), []
        for step in range(4):
            for i, grad in enumerate(grads):
                grad += i + 1.0 + step
            if joint and isinstance(optimizer, TorchOptimizer):
                with optimizer.joint_step():
                    model.finish_update(optimizer)
            else:
                model.finish_update(optimizer)
            optimizer.step_schedules()
            history.append(values())
        found.append(history)
    theirs, ours = found
    assert (theirs[0][0] != 1.0).all()
    for expected, step in zip(theirs, ours):
        # float32: thinc multiplies the gradient by the rate, torch adds with a factor.
        for left, right in zip(expected, step):
            numpy.testing.assert_allclose(right, left, rtol=1e-6)


def test_shims_of_several_components_are_in_one_joint_step(mxnet):
    """One norm over a thinc layer and two stores, known to whoever looks before the update."""
    optimizer, seen = plain(SGD(), 1.0, grad_clip=1.0), []
    pairs = [mxnet(), mxnet(2.0)]
    models = [Linear(2, 2).initialize(), *(around(shim) for shim, _ in pairs)]
    models[0].set_grad("b", numpy.full(2, 3.0, "f"))
    for _, stored in pairs:
        for param in stored.values():
            param.gradient[...] = 3.0
    before = models[0].get_param("b").copy()
    with optimizer.joint_step(before_update=lambda: seen.append(len(optimizer.params_to_update))):
        for model in models:
            model.finish_update(optimizer)
        models[1].finish_update(optimizer)  # a model of two components: its shim runs once all the same
        assert (pairs[0][1]["w"].value == 1.0).all()
    assert seen == [3]
    norm = numpy.sqrt(16 * 9.0)  # 2 + 7 + 7 cells
    assert optimizer.grad_norm == pytest.approx(norm)
    # float32: the factor for clipping has torch's 1e-6 in its divisor.
    numpy.testing.assert_allclose(models[0].get_param("b"), before - 3.0 / norm, atol=1e-5)
    for (_, stored), value in zip(pairs, (1.0, 2.0)):
        for param in stored.values():
            numpy.testing.assert_allclose(param.value, value - 3.0 / norm, atol=1e-5)
            assert not param.gradient.any()


def test_shims_with_one_id_are_refused(mxnet):
    """A copied layer has a shim of the same id, as its optimizer sees it."""
    optimizer, (first, _), (second, stored) = plain(SGD(), 1.0), mxnet(), mxnet()
    second.id = first.id
    with pytest.raises(ParamError, match="with the same id"), optimizer.joint_step():
        around(first).finish_update(optimizer)
        around(second).finish_update(optimizer)
    assert (stored["w"].value == 1.0).all()


def test_shims_are_finished_when_the_update_raises_an_error(mxnet):
    """They keep their values, and let go of gradients that are not finite: a rollback goes on with them."""
    optimizer = plain(SGD(), 1.0, max_nonfinite=1)
    pairs = [mxnet(), mxnet()]
    for _, stored in pairs:
        stored["b"].gradient[...] = numpy.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteGradWarning)
        with pytest.raises(NonFiniteGradError), optimizer.joint_step():
            for shim, _ in pairs:
                around(shim).finish_update(optimizer)
    for _, stored in pairs:
        assert all((param.value == 1.0).all() and not param.gradient.any() for param in stored.values())


def test_shims_scale_their_own_learning_rate(mxnet):
    class Scaled(StoreShim):
        def finish_update(self, optimizer):
            self.values[0], _ = optimizer((self.id, "v"), self.values[0], self.gradients[0], lr_scale=0.5)

    shim = Scaled([numpy.ones(2)])
    shim.gradients = [numpy.ones(2, "f")]
    shim_model(shim).finish_update(plain(SGD(), 0.5))
    assert shim.values[0].tolist() == [0.75] * 2


def test_shims_may_pass_arrays_that_are_read_only():
    """As TensorFlow's `numpy()` returns them."""

    class ReadOnly(StoreShim):
        def finish_update(self, optimizer):
            for array in (self.values[0], self.gradients[0]):
                array.flags.writeable = False
            self.values[0] = optimizer((self.id, "v"), self.values[0], self.gradients[0])[0].copy()

    shim = ReadOnly([numpy.ones(2)])
    model, optimizer = shim_model(shim), plain(SGD(), 0.5)
    for _ in range(2):
        shim.gradients = [numpy.ones(2, "f")]
        model.finish_update(optimizer)
    assert shim.values[0].tolist() == [0.0] * 2


@pytest.mark.parametrize("kind", ["mxnet", "nested"])
def test_shims_resume_to_the_bit_with_groups_and_averages(mxnet, kind):
    """The second half of a run from a saved state, against the run in one piece."""

    def build():
        shim, grads, values = with_gradients(kind, mxnet)
        nlp = pipeline_of(tagger=shim_model(shim))
        group = {"params": ["tagger/*"], "learn_rate": 0.02}
        optimizer = plain(AdamW(), grad_clip=0.5, use_averages=True, param_groups={"store": group})
        optimizer.initialize(nlp)
        return nlp, optimizer, grads, values

    def train(nlp, optimizer, grads, steps):
        for step in steps:
            rng = numpy.random.default_rng(step)
            for grad in grads:
                grad += rng.normal(size=grad.shape)
            with optimizer.joint_step():
                nlp.get_pipe("tagger").model.finish_update(optimizer)
            optimizer.step_schedules()

    whole = build()
    train(*whole[:3], range(6))
    first = build()
    train(*first[:3], range(3))
    state = copy.deepcopy(first[1].state_dict())
    resumed = build()
    [shim] = resumed[0].get_pipe("tagger").model.layers[1].shims
    if kind == "mxnet":
        for param, value in zip(shim._model.collect_params().values(), first[3]()):
            param.set_data(value)
    else:
        for param, value in zip(shim.store["layer"].values(), first[3]()):
            param["value"] = value
    resumed[1].load_state_dict(state)
    train(*resumed[:3], range(3, 6))
    for left, right in zip(whole[3](), resumed[3]()):
        assert numpy.array_equal(left, right)
    assert whole[1].learn_rates == resumed[1].learn_rates == {"store": 0.02}
    assert same_tree(*({key: run[1].state_dict()[key] for key in ("params", "averages")} for run in (whole, resumed)))


@pytest.mark.parametrize("freeze", [True, False])
def test_shims_a_shim_may_be_frozen_or_have_empty_params(freeze):
    shim = PerParamShim([numpy.ones(2), numpy.ones((0, 3)), numpy.ones(3)])
    nlp = pipeline_of(tagger=shim_model(shim))
    optimizer = plain(SGD(), 0.5, param_groups={"still": {"params": ["tagger/*"], "freeze": freeze}})
    optimizer.initialize(nlp)
    for _ in range(2):
        shim.gradients = [numpy.ones_like(value) for value in shim.values]
        nlp.get_pipe("tagger").model.finish_update(optimizer)
        assert shim.gradients is None
    assert all((value == (1.0 if freeze else 0.0)).all() for value in shim.values)


def test_shims_finish_a_shim_after_a_skipped_update():
    """Such a shim lets go of its gradients when it has its answer: a NaN must not stay with it."""

    class Accumulating(StoreShim):
        def add(self, value):
            grad = numpy.full(3, value, dtype="f")
            self.gradients = [grad] if self.gradients is None else [self.gradients[0] + grad]

    shim = Accumulating([numpy.ones(3)])
    model, optimizer = shim_model(shim), plain(SGD(), 0.5)
    for value in (numpy.nan, 1.0, 1.0):
        shim.add(value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteGradWarning)
            model.finish_update(optimizer)
    assert optimizer.skipped_updates == 1 and (shim.values[0] == 0.0).all() and shim.finished == 3


def test_shims_reuse_one_buffer_for_a_shim():
    shim = StoreShim([numpy.ones(5)])
    model, optimizer = shim_model(shim), plain()
    seen = set()
    for _ in range(3):
        shim.gradients = [numpy.ones(5, dtype="f")]
        model.finish_update(optimizer)
        seen.add(next(tensor.data_ptr() for name, tensor in optimizer.params.items() if name.endswith("store-shim")))
    assert len(seen) == 1


def test_shims_let_a_shims_error_through():
    with pytest.raises(ValueError, match="There are no gradients"):
        shim_model(StoreShim([numpy.ones(2)])).finish_update(plain())
