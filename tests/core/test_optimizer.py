"""TorchOptimizer: gradients in, one torch step, zero gradients out."""

import copy
import gc
import inspect
import itertools
import pickle
import pydoc
import re
import sys
import weakref
from contextlib import nullcontext
from unittest.mock import Mock

import numpy
import pytest
import torch
from thinc.api import (
    Linear,
    Model,
    Optimizer,
    PyTorchShim,
    PyTorchWrapper,
    chain,
    constant,
    warmup_linear,
    with_array,
)

import thinc_torchopt
from thinc_torchopt import Adam, Attachment, RAdam, TorchOptimizer
from thinc_torchopt.core.algorithms.algorithm import Algorithm
from thinc_torchopt.core.algorithms.torch_classes import SGD, Adagrad, AdamW
from thinc_torchopt.core.errors import (
    CheckpointWarning,
    ConfigError,
    ConfigWarning,
    NonFiniteGradError,
    NonFiniteGradWarning,
    ParamError,
    PipelineError,
    ScheduleError,
    ScheduleWarning,
    ShapeError,
    StateError,
)
from thinc_torchopt.core.labels import add_labels
from thinc_torchopt.core.param_table import ParamTable
from thinc_torchopt.core.schedules.curves import warmup_cosine, warmup_stable_decay
from thinc_torchopt.core.schedules.curves import warmup_linear as our_warmup_linear
from thinc_torchopt.core.schedules.plateau import plateau
from thinc_torchopt.core.schedules.schedules import IDLE_UPDATES

from ..models import (
    WIDTH,
    backprop,
    grads_of,
    mixed_model,
    optimizer_for,
    params_of,
    pipeline_of,
    pipeline_params,
    ready_pipeline,
    same,
    slots,
    snapshot,
    thinc_model,
    torch_model,
    toy_examples,
    toy_pipeline,
)
from ..peek import averages_in, decay_of
from .params.test_shims import plain


def trained_pipeline(optimizer, **settings):
    nlp, examples = ready_pipeline(**settings, sgd=optimizer)
    return nlp, examples


# ---------------------------------------------------------------- views: nothing is copied


def test_optimizers_step_in_place_without_copies():
    model, optimizer = mixed_model(), plain()
    rng = numpy.random.default_rng(0)
    backprop(model, rng)
    model.finish_update(optimizer)
    before = [(param, grad) for param, grad in slots(model)]
    tensors = dict(optimizer.params)
    for _ in range(3):
        backprop(model, rng)
        model.finish_update(optimizer)
    for (param, grad), (old_param, old_grad) in zip(slots(model), before):
        assert param is old_param and grad is old_grad
    for name, tensor in optimizer.params.items():
        assert tensor is tensors[name]
    addresses = {tensor.data_ptr() for tensor in optimizer.params.values()}
    grad_addresses = {tensor.grad.data_ptr() for tensor in optimizer.params.values() if tensor.grad is not None}
    for param, grad in slots(model):
        array = param.detach().numpy() if isinstance(param, torch.Tensor) else param
        assert array.ctypes.data in addresses
        assert grad is None if isinstance(param, torch.Tensor) else grad.ctypes.data in grad_addresses


def test_optimizers_step_allocates_less_than_one_param():
    """A step of fused SGD without momentum has nothing to allocate but lists and numbers."""
    from torch.profiler import ProfilerActivity, profile

    model = Linear(512, 512)
    model.initialize()
    optimizer = plain(SGD(), max_nonfinite=0)
    for _ in range(2):
        model.inc_grad("W", numpy.ones((512, 512), dtype="f"))
        model.finish_update(optimizer)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        model.finish_update(optimizer)
    assert sum(max(event.self_cpu_memory_usage, 0) for event in run.key_averages()) < 512 * 512 * 4


@pytest.mark.device
def test_optimizers_let_go_of_gradients_as_thinc_and_torch_do():
    model, optimizer = mixed_model(), plain()
    backprop(model, numpy.random.default_rng(0))
    before = [(param, grad) for param, grad in slots(model)]
    assert all(grad.any() for _, grad in before)
    model.finish_update(optimizer)
    for (param, grad), (_, now) in zip(before, slots(model)):
        if isinstance(param, torch.Tensor):
            assert now is None
        else:
            assert now is grad and not now.any()


@pytest.mark.parametrize("algorithm", [SGD(momentum=0.9, weight_decay=0.1), AdamW(weight_decay=0.1)])
def test_optimizers_leave_a_torch_param_without_gradient_alone(algorithm):
    """As torch's own loop does, whose gradients become None: neither momentum nor decay moves what had no part in the
    loss.
    """
    torch.manual_seed(0)
    module = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    twin = copy.deepcopy(module)
    model = Model("parts", lambda model, X, is_train: (X, lambda dY: dY), shims=[PyTorchShim(module)])
    optimizer = plain(algorithm, use_averages=True)
    bare = algorithm.build(twin.parameters(), lr=0.01, **{**algorithm.options, "fused": True})
    for step in range(6):
        for part, other in zip(module, twin) if step < 2 else [(module[0], twin[0])]:
            part(torch.ones(2, 3)).square().sum().backward()
            other(torch.ones(2, 3)).square().sum().backward()
        model.finish_update(optimizer)
        bare.step()
        bare.zero_grad()
    assert same([p.detach() for p in module.parameters()], [p.detach() for p in twin.parameters()])
    assert sorted(optimizer.nr_update.values()) == [2, 2, 6, 6]


@pytest.mark.parametrize("replace", ["from_bytes", "use_params", "set_param"])
@pytest.mark.device
def test_optimizers_notice_replaced_arrays(request, replace):
    """After an array was replaced, the next update is made to the new one, and the state stays with the param."""
    ours, theirs = thinc_model(), thinc_model()
    theirs.from_bytes(ours.to_bytes())
    optimizer = plain(SGD(momentum=0.9))
    params = [torch.nn.Parameter(value) for value in params_of(theirs)]
    bare = torch.optim.SGD(params, lr=0.01, momentum=0.9, fused=True)
    rng = numpy.random.default_rng(0)
    for step in range(6):
        if step == 3:
            old = [param for param, _ in slots(ours)]
            new = {(node.id, name): node.get_param(name) * 2 for node in ours.walk() for name in node.param_names}
            if replace == "from_bytes":
                with ours.use_params(new):
                    data = ours.to_bytes()
                ours.from_bytes(data)
            elif replace == "use_params":
                next(ours.use_params(new).gen)  # entered and never left
            else:
                for node in ours.walk():
                    for name in node.param_names:
                        node.set_param(name, new[node.id, name])
            assert not any(a is b for a, (b, _) in zip(old, slots(ours)))
            with torch.no_grad():
                for param in params:
                    param *= 2
        backprop(ours, rng)
        for param, grad in zip(params, grads_of(ours)):
            param.grad = grad
        bare.step()
        ours.finish_update(optimizer)
    expected = [param.detach() for param in params]
    if request.config.getoption("--device", "cpu") == "cuda":
        torch.testing.assert_close(params_of(ours), expected)  # its kernel rounds in another order
    else:
        assert same(params_of(ours), expected)


@pytest.mark.parametrize(
    "make", [numpy.asfortranarray, lambda a: a[::-1].copy()[::-1], lambda a: a.view(), lambda a: a.astype("f8")]
)
def test_optimizers_take_any_memory_layout(make):
    """Arrays that torch's kernels can't work on in place end as in torch all the same."""
    start = numpy.random.default_rng(0).normal(size=(4, 3)).astype("f")
    model = Model("layer", lambda model, X, is_train: (X, lambda dY: dY), params={"W": make(start.copy())})
    readonly = model.get_param("W")
    if readonly.flags.owndata is False and readonly.flags.c_contiguous:
        readonly.flags.writeable = False
    param = torch.nn.Parameter(torch.from_numpy(start.astype(readonly.dtype)))
    bare = torch.optim.AdamW([param], lr=0.01, fused=True)
    optimizer = plain()
    for step in range(5):
        grad = numpy.random.default_rng(step).normal(size=(4, 3)).astype("f")
        param.grad = torch.from_numpy(grad.astype(readonly.dtype))
        bare.step()
        source = make(grad.copy())
        model.set_grad("W", source)
        model.finish_update(optimizer)
        assert not source.any()
    assert numpy.array_equal(model.get_param("W"), param.detach().numpy())


# ---------------------------------------------------------------- when the update happens


@pytest.mark.device
def test_optimizers_joint_step_is_one_step_for_all():
    nlp, examples = trained_pipeline(optimizer := plain(SGD(), 0.1, grad_clip=1.0))
    before = pipeline_params(nlp)
    nlp.update(examples, sgd=False)
    grads = {name: grads_of(nlp.get_pipe(name).model) for name in before}
    norm = torch.nn.utils.get_total_norm([grad for found in grads.values() for grad in found])
    assert norm > 1
    with optimizer.joint_step():
        for name in before:
            nlp.get_pipe(name).finish_update(optimizer)
            assert same(before[name], params_of(nlp.get_pipe(name).model))
    assert optimizer.grad_norm == pytest.approx(norm.item(), rel=1e-5)  # float32, summed in another order
    for name, params in before.items():
        expected = [param - 0.1 * grad / norm for param, grad in zip(params, grads[name])]
        # float32: the clipped gradient is rounded once more in torch's kernel; values are below 1.
        torch.testing.assert_close(params_of(nlp.get_pipe(name).model), expected, rtol=1e-5, atol=1e-6)


def test_optimizers_joint_step_forgets_gradients_when_it_fails():
    nlp, examples = trained_pipeline(optimizer := plain())
    before = pipeline_params(nlp)
    nlp.update(examples, sgd=False)
    with pytest.raises(RuntimeError, match="broken"), optimizer.joint_step():
        nlp.get_pipe("ner").finish_update(optimizer)
        raise RuntimeError("broken")
    optimizer.step()
    assert all(same(before[name], params) for name, params in pipeline_params(nlp).items())


@pytest.mark.device
def test_optimizers_one_component_leaves_the_others_alone():
    """No decay, no momentum, no averages for components that were not updated."""
    nlp, examples = trained_pipeline(optimizer := plain(AdamW(weight_decay=0.5), use_averages=True), shared=False)
    nlp.update(examples, sgd=optimizer)
    before, averages = pipeline_params(nlp), {key: value.copy() for key, value in optimizer.averages.items()}
    nlp.get_pipe("ner").update(examples, sgd=optimizer)
    with nlp.select_pipes(enable=["ner"]):
        nlp.update(examples, sgd=optimizer)
    after = pipeline_params(nlp)
    assert same(before["tagger"], after["tagger"])
    assert not any(torch.equal(a, b) for a, b in zip(before["ner"], after["ner"]) if a.any())
    of_tagger = {node.id for node in nlp.get_pipe("tagger").model.walk()}
    for key, value in optimizer.averages.items():
        assert numpy.array_equal(value, averages[key]) == (key[0] in of_tagger)


@pytest.mark.device
def test_optimizers_rehearse():
    """nlp.rehearse calls the optimizer tensor by tensor, by thinc's own interface."""
    optimizer = plain(learn_rate=[0.1, 0.2])
    nlp, examples = trained_pipeline(optimizer, components=["textcat"], shared=False)
    nlp.resume_training(sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    before = pipeline_params(nlp)
    steps = optimizer.rates.step_count
    for _ in range(IDLE_UPDATES // len(optimizer.params) + 1):  # after so many updates a schedule would stand still
        nlp.rehearse(examples, sgd=optimizer)
    assert not same(before["textcat"], pipeline_params(nlp)["textcat"])
    assert len(optimizer.rates.history) == optimizer.rates.step_count == steps


@pytest.mark.parametrize("freeze", [False, True])
def test_optimizers_rehearse_a_torch_layer(freeze):
    """spaCy hands its params over as arrays, with zeros as gradients: they are the same params, decayed or frozen."""
    nlp, examples = ready_pipeline(["tagger"], shared=False)
    model, module = nlp.get_pipe("tagger").model, torch.nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():  # another order in memory
        module.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH).t())
    model.layers[0] = chain(model.layers[0], with_array(PyTorchWrapper(module)))
    groups = {"torch": {"params": ["*/weight"], "freeze": freeze}}
    optimizer = TorchOptimizer(AdamW(weight_decay=0.1), 0.01, param_groups=groups)
    optimizer.initialize(nlp)
    nlp.resume_training(sgd=optimizer)
    names, before = set(optimizer.params), module.weight.detach().clone()
    assert len(names) == len(params_of(model)) - freeze
    nlp.rehearse(examples, sgd=optimizer)
    assert set(optimizer.params) == names and len(optimizer.state_dict()["params"]) == len(params_of(model))
    torch.testing.assert_close(module.weight.detach(), before if freeze else before * (1 - 0.01 * 0.1))


def test_optimizers_given_arrays_of_torch_params():
    """thinc's interface, as a shim calls it: the update is torch's, and the gradient is zero afterwards."""
    nlp = toy_pipeline(["tagger"], shared=False)
    module = torch.nn.Linear(5, 3)
    model = nlp.get_pipe("tagger").model = PyTorchWrapper(module)
    optimizer = TorchOptimizer(AdamW(), 0.01, grad_clip=0.0)
    optimizer.initialize(nlp)
    theirs = copy.deepcopy(module)
    other = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.01, fused=True)
    for step in range(3):
        for (name, param), twin in zip(module.named_parameters(), theirs.parameters(), strict=True):
            twin.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(step))
            grad = twin.grad.numpy().copy()
            optimizer((model.shims[0].id, name), param.detach().numpy(), grad)
            assert not grad.any()
        other.step()
    assert same(list(module.parameters()), list(theirs.parameters()))


# ---------------------------------------------------------------- shims


def test_optimizers_custom_torch_shim_is_run_once_and_joins_the_step():
    class Scaled(PyTorchShim):
        """Prepares its gradients, then does as thinc's."""

        def finish_update(self, optimizer):
            for param in self._model.parameters():
                param.grad *= 10
            super().finish_update(optimizer)

    module = torch.nn.Linear(2, 2)
    model = Model("scaled", lambda model, X, is_train: (X, lambda dY: dY), shims=[Scaled(module)])
    optimizer = plain(SGD(), 0.01, use_averages=True)
    for step in range(3):
        for param in module.parameters():
            param.data.fill_(1.0) if step == 0 else None
            param.grad = torch.ones_like(param)
        with optimizer.joint_step():
            model.finish_update(optimizer)
            before = [param.detach().clone() for param in module.parameters()]
        expected = torch.tensor(1.0 - 0.1 * (step + 1))
        for param, value in zip(module.parameters(), before):
            # float32: 0.9, 0.8, 0.7 by repeated subtraction.
            torch.testing.assert_close(param.detach(), expected.expand_as(param), rtol=1e-6, atol=1e-7)
            assert not torch.equal(param, value)
    with model.use_params(optimizer.averages):
        assert all((param > 0.7).all() for param in module.parameters())


def test_optimizers_copied_torch_layers_have_averages_of_their_own():
    """Model.copy, and with it nlp.replace_listeners, copies a shim with its id."""
    first = torch_model()
    second = first.copy()
    assert first.shims[0].id == second.shims[0].id
    optimizer = plain(use_averages=True)
    rng = numpy.random.default_rng(0)
    for _ in range(5):
        for model in (first, second):
            backprop(model, rng, scale=1.0 if model is first else 3.0)
            model.finish_update(optimizer)
    for model in (first, second):
        with model.use_params(optimizer.averages):
            found = params_of(model)
        expected = [averages_in(optimizer).tensor_of(id(param)) for param in model.shims[0]._model.parameters()]
        assert same(found, expected)


def test_optimizers_refuse_to_write_to_a_read_only_array():
    value = numpy.ones(2, dtype="f")
    value.flags.writeable = False
    with pytest.raises(ParamError, match="expected a writable one in C order"):
        plain().set_grad(value, numpy.ones(2, dtype="f"))


def test_optimizers_inner_joint_step_ends_with_the_outer_one():
    models, optimizer, seen = [thinc_model(), thinc_model()], plain(), []
    before = [params_of(model) for model in models]
    with optimizer.joint_step():
        pass  # no gradients, and no step
    with optimizer.joint_step():
        for model in models:
            backprop(model, numpy.random.default_rng(0))
            with optimizer.joint_step(before_update=lambda model=model: seen.append(model)):
                model.finish_update(optimizer)
            assert same(before[models.index(model)], params_of(model))
    assert set(optimizer.nr_update.values()) == {1} and optimizer.rates.step_count == 1 and seen == models


def test_optimizers_leave_frozen_and_quantized_torch_params_alone():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.codes = torch.nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
            self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
            self.lazy = torch.nn.LazyLinear(2)

        def forward(self, X):
            return self.lazy(X)

    nlp = toy_pipeline([], shared=False)
    pipe = nlp.add_pipe("tagger")
    nlp.initialize(lambda: toy_examples(nlp))
    wrapper = PyTorchWrapper(Module())
    pipe.model.layers.append(wrapper)
    optimizer = plain()
    optimizer.initialize(nlp)
    assert not any("codes" in name or "frozen" in name or "lazy" in name for name in optimizer.params)
    Y, back = wrapper.begin_update(numpy.ones((4, 5), dtype="f"))
    back(Y)
    pipe.finish_update(optimizer)
    assert {name.rsplit("/", 2)[-2] for name in optimizer.params if "lazy" in name} == {"lazy"}


@pytest.mark.parametrize("call", ["update", "rehearse"])
def test_optimizers_leave_excluded_components_alone(call):
    """Until `resume_training`; also after they grew, or got another name. The state of such a run can be loaded."""
    nlp, examples = ready_pipeline(["tagger", "morphologizer"], shared=False)
    model = nlp.get_pipe("tagger").model
    model.layers[0] = chain(model.layers[0], with_array(PyTorchWrapper(torch.nn.Linear(WIDTH, WIDTH))))
    nlp.resume_training(sgd=(optimizer := plain(AdamW(weight_decay=0.1))))
    optimizer.initialize(nlp, exclude=["tagger"])
    names = set(optimizer.params)
    assert {name.partition("/")[0] for name in names} == {"morphologizer"}
    add_labels(nlp, "tagger", ["XX"])
    before = pipeline_params(nlp)
    for _ in range(2):
        getattr(nlp, call)(examples, sgd=optimizer)
        nlp.rename_pipe("tagger", "tags") if "tagger" in nlp.pipe_names else None
    after = pipeline_params(nlp)
    assert same(before["tagger"], after["tags"]) and not same(before["morphologizer"], after["morphologizer"])
    assert set(optimizer.params) == names and not any(map(torch.any, grads_of(model)))
    optimizer.load_state_dict(optimizer.state_dict())
    nlp.resume_training(sgd=optimizer)
    getattr(nlp, call)(examples, sgd=optimizer)
    assert not same(before["tagger"], pipeline_params(nlp)["tags"])


def test_optimizers_keep_the_state_of_a_disabled_component():
    nlp, examples = trained_pipeline(optimizer := plain(), components=["tagger", "ner"], shared=False)
    nlp.update(examples, sgd=optimizer)
    with nlp.select_pipes(disable=["ner"]):
        nlp.add_pipe("textcat").initialize(lambda: examples, nlp=nlp)
        nlp.update(examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    updates = {info.name.split("/")[0]: info.updates for info in optimizer.describe()}
    assert updates == {"tagger": 3, "ner": 2, "textcat": 2}


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.PrecisionWarning")
def test_optimizers_tensors_of_several_dtypes_in_one_group():
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).double(), torch.nn.Linear(4, 4).bfloat16()
    )
    model, optimizer = PyTorchWrapper(module), plain(use_averages=True, grad_clip=1.0)
    twin = [torch.nn.Parameter(param.detach().clone()) for param in module.parameters()]
    bare = torch.optim.AdamW(twin, lr=0.01, fused=True)
    for _ in range(5):
        for param, other in zip(module.parameters(), twin):
            param.grad = torch.full_like(param, 0.01)
            other.grad = torch.full_like(param, 0.01)
        bare.step()
        model.finish_update(optimizer)
    assert optimizer.grad_norm < 1
    assert all(torch.equal(param, other) for param, other in zip(module.parameters(), twin))
    assert len(optimizer.torch_optimizers["algorithm"].param_groups) == 1
    with model.use_params(optimizer.averages):
        assert not any(torch.equal(param, other) for param, other in zip(module.parameters(), twin))


# ---------------------------------------------------------------- params that come late, and go


@pytest.mark.parametrize("algorithm", [AdamW(), Adagrad(), SGD(momentum=0.9)])
def test_optimizers_take_in_params_that_appear_later(algorithm):
    first, second = thinc_model(), thinc_model()
    optimizer = plain(algorithm)
    cls = algorithm.build
    rng = numpy.random.default_rng(0)
    params = [[torch.nn.Parameter(value) for value in params_of(model)] for model in (first, second)]
    bare = [cls(group, lr=0.01, **{**algorithm.options, "fused": True}) for group in params]
    for step in range(10):
        with optimizer.joint_step():
            for i, model in enumerate((first, second)):
                if i == 0 or step >= 3:
                    backprop(model, rng)
                    for param, grad in zip(params[i], grads_of(model)):
                        param.grad = grad
                    bare[i].step()
                    model.finish_update(optimizer)
    for i, model in enumerate((first, second)):
        assert same(params_of(model), [param.detach() for param in params[i]])


def test_optimizers_do_not_keep_a_pipeline_alive():
    nlp, _ = trained_pipeline(optimizer := plain())
    alive = weakref.ref(nlp)
    del nlp
    gc.collect()
    assert alive() is None and optimizer.params


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_optimizers_are_copied_with_their_schedules(make_copy):
    """Generators can't be copied, and thinc's schedules are such: an error names them."""
    settings = {"grad_clip": [1.0, 2.0, 3.0], "param_groups": {"a": {"params": ["*"], "lr_scale": 0.5}}}
    optimizer = TorchOptimizer(AdamW(), schedule := plateau(0.1, patience=0, factor=0.5), **settings)
    for score in (0.5, 0.4):
        optimizer.observe(score)
        optimizer.step_schedules()
    other = make_copy(optimizer)
    assert (other.learn_rate, other.grad_clip) == (optimizer.learn_rate, optimizer.grad_clip) == (0.05, 3.0)
    other.observe(0.3)
    assert (other.learn_rate, optimizer.learn_rate, schedule.value) == (0.025, 0.05, 0.05)
    with pytest.raises(ScheduleError, match=r"Can't copy or pickle the schedule of 'learn_rate' .* found a generator"):
        make_copy(TorchOptimizer(AdamW(), warmup_linear(0.1, 3, 10)))
    with pytest.raises(ScheduleError, match=r"schedule of 'algorithm.weight_decay' .* found a generator"):
        make_copy(TorchOptimizer(AdamW(weight_decay=warmup_linear(0.1, 3, 10))))


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_optimizers_copies_have_the_settings_and_start_anew(make_copy):
    """A pipeline with its optimizer is pickled by `nlp.pipe(n_process=2)` on some systems. The copy's arrays are other
    ones.
    """
    nlp, examples = trained_pipeline(
        optimizer := plain(AdamW(weight_decay=0.3), 0.02, use_averages=True), components=["tagger"], shared=False
    )
    nlp.update(examples, sgd=optimizer)
    before = params_of(nlp.get_pipe("tagger").model)
    other_nlp, other = make_copy((nlp, optimizer))
    assert (other.learn_rate, decay_of(other), other.grad_clip) == (0.02, 0.3, 0.0) and other.params == {}
    with pytest.warns(CheckpointWarning, match="starts without moments, averages and counts"):
        assert other.averages == {}
    other_nlp.update(examples, sgd=other)  # it was told
    assert other.averages and not same(before, params_of(other_nlp.get_pipe("tagger").model))
    assert same(before, params_of(nlp.get_pipe("tagger").model))
    nlp.update(examples, sgd=optimizer)
    assert max(optimizer.nr_update.values()) == 2


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_optimizers_copies_tell_what_they_lack(make_copy):
    """At their first update; not if they got the state, or have new weights, or there was none."""
    nlp, examples = trained_pipeline(optimizer := plain(), components=["tagger"], shared=False)
    make_copy(plain()).initialize(nlp)
    nlp.update(examples, sgd=optimizer)
    other_nlp, other = make_copy((nlp, optimizer))
    third = make_copy(other)
    with pytest.warns(CheckpointWarning, match=r"load_state_dict\(original.state_dict\(\)\)") as warned:
        other_nlp.update(examples, sgd=other)
        other_nlp.update(examples, sgd=other)
    assert len(warned) == 1
    other_nlp, loaded = make_copy((nlp, optimizer))
    loaded.initialize(other_nlp)
    loaded.load_state_dict(optimizer.state_dict())
    other_nlp.update(examples, sgd=loaded)
    nlp.update(examples, sgd=optimizer)
    # As the original goes on.
    assert same(*(params_of(pipeline.get_pipe("tagger").model) for pipeline in (nlp, other_nlp)))
    other_nlp.initialize(lambda: examples, sgd=third)
    other_nlp.update(examples, sgd=third)


def test_optimizers_check_each_part_of_a_state():
    nlp, examples = trained_pipeline(optimizer := plain(use_averages=True), components=["tagger"], shared=False)
    good = optimizer.state_dict()
    nlp.update(examples, sgd=optimizer)
    optimizer.load_state_dict(good)
    assert not optimizer.rates.history
    for part, bad in (("version", 99), ("guard", {}), ("schedules", {"x": {}})):
        for load in (optimizer.load_state_dict, optimizer.check_state_dict):
            with pytest.raises(StateError):
                load({**good, part: bad})
            with pytest.raises(StateError, match="version"):
                load({"version": 99})  # of whatever form
    optimizer.averages = None
    optimizer.check_state_dict(good)  # of that difference only loading warns


def test_optimizers_averages_can_be_given_up():
    model, optimizer = thinc_model(), plain(use_averages=True)
    backprop(model, numpy.random.default_rng(0))
    model.finish_update(optimizer)
    with pytest.raises(ConfigError, match=r"'averages'.*expected None, found dict"):
        optimizer.averages = {}
    optimizer.averages = None
    model.finish_update(optimizer)
    assert optimizer.averages == {} == copy.deepcopy(optimizer).averages


def test_optimizers_follow_a_component_that_was_renamed():
    nlp = pipeline_of(tagger=torch_model())
    optimizer = optimizer_for(nlp, AdamW())
    for old, new, step in (("tagger", "a", nullcontext), ("a", "b", optimizer.joint_step)):
        nlp.rename_pipe(old, new)
        backprop(nlp.get_pipe(new).model, numpy.random.default_rng(0))
        with step():
            nlp.get_pipe(new).finish_update(optimizer)
        assert {name.partition("/")[0] for name in optimizer.params} == {new}


# ---------------------------------------------------------------- gradients that are not finite


@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.device
def test_optimizers_skip_an_update_that_is_not_finite(bad, clip):
    model, optimizer = mixed_model(), plain(grad_clip=clip, use_averages=True)
    rng = numpy.random.default_rng(0)
    backprop(model, rng)
    model.finish_update(optimizer)
    before, averages = params_of(model), snapshot(optimizer.averages.values())
    steps = dict(optimizer.nr_update)
    backprop(model, rng)
    model.layers[0].get_grad("W")[0, 0] = bad
    with pytest.warns(NonFiniteGradWarning, match="linear/W' is not finite"):
        model.finish_update(optimizer)
    assert same(before, params_of(model)) and optimizer.skipped_updates == 1 and optimizer.nr_update == steps
    assert same(snapshot(optimizer.averages.values()), averages)
    assert not any(grad.any() for grad in grads_of(model))
    backprop(model, rng)
    model.finish_update(optimizer)
    assert not same(before, params_of(model)) and all(param.isfinite().all() for param in params_of(model))


def test_optimizers_stop_when_one_of_several_models_stays_bad():
    good, bad, optimizer = thinc_model(), thinc_model(), plain(max_nonfinite=3)

    def update():
        bad.layers[0].set_grad("W", numpy.full_like(bad.layers[0].get_param("W"), numpy.nan))
        backprop(good, numpy.random.default_rng(0))
        good.finish_update(optimizer)
        bad.finish_update(optimizer)

    with pytest.warns(NonFiniteGradWarning):
        update()
        update()
    with pytest.raises(NonFiniteGradError, match="3 updates in a row"):
        update()


def test_optimizers_clip_nothing_when_a_gradient_is_infinite_and_nobody_looks():
    weights, grad = numpy.ones(2, dtype="f"), numpy.array([numpy.inf, 1.0], dtype="f")
    plain(SGD(), 0.5, grad_clip=1.0, max_nonfinite=0)((0, "W"), weights, grad)
    assert weights.tolist() == [-numpy.inf, 0.5]


def test_optimizers_say_when_a_schedule_does_not_move_param_by_param():
    """As `nlp.rehearse` calls them. Not the params are counted, but how often each comes."""
    optimizer = plain(learn_rate=warmup_linear(0.1, 10, 100))

    def update(n):
        for _, i in itertools.product(range(n), range(20)):
            optimizer((i, "W"), numpy.ones(2, "f"), numpy.ones(2, "f"))

    update(50)
    with pytest.warns(ScheduleWarning, match=r"stayed at 0 for 50 updates in a row"):
        update(1)


def updates_without_schedules(optimizer, n, *, moves_after=()):
    model = thinc_model()
    for i in range(n):
        backprop(model, numpy.random.default_rng(0))
        model.finish_update(optimizer)
        if i in moves_after:
            optimizer.step_schedules()


@pytest.mark.parametrize(
    ("settings", "place", "value"),
    [
        ({"learn_rate": warmup_linear(0.1, 10, 100), "grad_clip": warmup_linear(1.0, 2, 9)}, "learn_rate", "0"),
        ({"learn_rate": warmup_cosine(0.001, 80, 600)}, "learn_rate", "0"),
        ({"learn_rate": warmup_stable_decay(0.001, 80, 20, 600)}, "learn_rate", "0"),
        ({"learn_rate": our_warmup_linear(0.001, 80, 600)}, "learn_rate", "1.25e-05"),
        ({"learn_rate": [0.1, 0.2]}, "learn_rate", "0.1"),
        ({"grad_clip": warmup_linear(1.0, 2, 9)}, "grad_clip", "0"),
        ({"algorithm": AdamW(weight_decay=iter([0.1, 0.2]))}, "algorithm.weight_decay", "0.1"),
    ],
)
def test_optimizers_say_once_when_nobody_moves_the_schedules(settings, place, value):
    optimizer = plain(**settings)
    with pytest.warns(ScheduleWarning) as warned:
        updates_without_schedules(optimizer, 60)
        optimizer.step_schedules()
        updates_without_schedules(optimizer, 60)
    [said] = [str(warning.message) for warning in warned]
    assert said.startswith(f"The schedule of '{place}' in [training.optimizer] stayed at {value} for 50 updates")
    assert "optimizer.step_schedules()" in said and ("nothing is learned" in said) == (
        (place, value) == ("learn_rate", "0")
    )


@pytest.mark.parametrize("rate", [0.1, constant(0.1), plateau(0.1), [0.1, 0.2]])
def test_optimizers_are_silent_where_no_schedule_stands_still(rate):
    """Numbers, constants, rates that only scores move; and a schedule that moves in every 49th update."""
    is_moving = isinstance(rate, list)
    optimizer = plain(learn_rate=[0.1] * 5 if is_moving else rate)
    updates_without_schedules(optimizer, 120, moves_after=range(48, 120, 49) if is_moving else ())


# ---------------------------------------------------------------- settings


def test_optimizers_keep_what_a_run_reads():
    optimizer = plain(ops="fastest", ops_threads=2, allow_untrainable=True, max_rollbacks=5, clip_by="value")
    assert (optimizer.ops, optimizer.ops_threads, optimizer.allow_untrainable) == ("fastest", 2, True)
    assert (optimizer.max_rollbacks, optimizer.clip_by, plain(ops="fastest").ops_threads) == (5, "value", 1)


class Averages(torch.optim.SGD):
    """As an algorithm that averages by itself."""

    def eval(self):
        pass

    train = eval


def attachment(**methods):
    found = Attachment()
    vars(found).update(methods)
    return found


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ops_threads": 2}, "thinc's have one thread"),
        ({"rollback_after": 1}, "expected checkpoints to go back to"),
        ({"attachments": {"own": attachment(check=Mock(side_effect=ConfigError("Not with these")))}}, "Not with these"),
        ({"algorithm": Algorithm("own", Averages, {})}, "Can't keep averages"),
    ],
)
def test_optimizers_refuse_settings_that_do_not_fit(settings, message):
    with pytest.raises(ConfigError, match=message):
        plain(**settings, use_averages=True)


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.NonFiniteGradWarning")
def test_optimizers_begin_anew_with_another_pipeline_alone():
    """One that does not fit is refused before anything changes."""
    first, second, third = (pipeline_of(**{name: torch_model()}) for name in ("tagger", "tagger", "other"))
    groups, told = {"tags": {"params": ["tagger/*"], "lr_scale": 0.5}}, attachment(named=Mock())
    optimizer = plain(param_groups=groups, attachments={"own": told})
    for nlp in (first, second):
        optimizer.initialize(nlp)
        assert optimizer.bad_updates_in_a_row == 0
        for scale in (1.0, numpy.nan):
            backprop(nlp.get_pipe("tagger").model, numpy.random.default_rng(0), scale=scale)
            nlp.get_pipe("tagger").model.finish_update(optimizer)
        optimizer.initialize(nlp)
        assert (set(optimizer.nr_update.values()), optimizer.bad_updates_in_a_row) == ({1}, 1)
        assert set(optimizer.learn_rates) == {"tags"}
    with pytest.raises(ConfigError, match="'tagger/"):
        optimizer.initialize(third)
    assert optimizer.knows(second)
    assert [called.args[1] for called in told.named.call_args_list] == [first, first, second, second]
    assert optimizer.skipped_updates == 2  # these are of the optimizer
    other = plain(param_groups=groups)
    other.introduce(third)
    backprop(third.get_pipe("other").model, numpy.random.default_rng(0))
    with pytest.raises(ConfigError, match="'tagger/"):
        third.get_pipe("other").model.finish_update(other)


def test_optimizers_look_at_a_pipeline_before_and_after_they_add_its_params(monkeypatch):
    nlp, optimizer, called = pipeline_of(tagger=torch_model()), plain(master_weights=True), []
    module = sys.modules[TorchOptimizer.__module__]
    for owner, name in (
        (module, "check_versions"),
        (module, "restore_trees"),
        (module.hooks, "check_not_put_back"),
        (ParamTable, "lift_labels"),
        (module, "check_precision"),
    ):
        monkeypatch.setattr(owner, name, lambda *_, name=name: called.append((name, len(optimizer.params))))
    optimizer.introduce(nlp)
    assert called == [("restore_trees", 0), ("check_not_put_back", 0)]
    called.clear()
    with pytest.warns(ConfigWarning, match="no effect: expected params of bfloat16 or float16, found 6 of float32"):
        optimizer.initialize(nlp)
    again = [("check_versions", 6), ("restore_trees", 6), ("check_not_put_back", 6), ("lift_labels", 6)]
    assert called == [*again, ("check_precision", 6)]
    optimizer.initialize(nlp)
    assert called[5:] == again


def test_optimizers_schedule_that_turns_bad_is_named():
    optimizer = TorchOptimizer(AdamW(), [0.1, -0.1])
    with pytest.raises(ConfigError, match=r"'learn_rate'.*-0\.1"):
        optimizer.step_schedules()
    with pytest.raises(ScheduleError, match="total_steps"):
        plain(learn_rate=our_warmup_linear(0.1, 3))((0, "W"), numpy.ones(2, "f"), numpy.ones(2, "f"))


def test_optimizers_train_frozen_params_from_their_step_on():
    groups = {"late": {"params": ["tagger/*"], "unfreeze_at": 1}}
    optimizer = optimizer_for(pipeline_of(tagger=torch_model()), AdamW(), param_groups=groups)
    assert not optimizer.trained_params
    optimizer.step_schedules()
    assert len(optimizer.trained_params) == 6


def test_optimizers_refuse_an_empty_pipeline():
    from spacy.lang.en import English

    nlp = English()
    nlp.add_pipe("sentencizer")
    nlp.initialize(sgd=(optimizer := plain()))  # spaCy allows it: there is nothing to train yet
    with pytest.raises(PipelineError, match=r"\['sentencizer'\].*at least one trainable component"):
        optimizer.initialize(nlp)
    nlp.add_pipe("ner")
    with pytest.raises(PipelineError, match=r"none that is not frozen, \['ner'\]"):
        optimizer.initialize(nlp, exclude=["ner"])


def test_optimizers_refuse_a_component_that_was_not_initialized():
    nlp = toy_pipeline(["ner"], shared=False)
    with pytest.raises(PipelineError, match=r"component 'ner'.*nlp\.initialize\(\)"):
        plain().initialize(nlp)


@pytest.mark.parametrize(
    "array", [numpy.ones(3, dtype="i4"), numpy.ones(3, dtype=bool), [1.0, 2.0], torch.ones(3, dtype=torch.int32)]
)
def test_optimizers_refuse_what_is_no_array_of_floats(array):
    with pytest.raises(ParamError, match=r"expected an? (array|tensor) of floats"):
        plain().set_grad(array, array)


def test_optimizers_name_a_gradient_of_another_shape():
    params = {name: numpy.ones(3, dtype="f") for name in ("V", "W")}
    model, optimizer = Model("layer", lambda model, X, is_train: (X, lambda dY: dY), params=params), plain()
    model.set_grad("V", numpy.ones(3, dtype="f"))
    model.set_grad("W", numpy.ones(4, dtype="f"))
    with pytest.raises(ShapeError, match=r"gradient of param 'layer/W': expected shape \(3,\), found \(4,\)"):
        model.finish_update(optimizer)
    optimizer.step()
    assert model.get_param("V").tolist() == [1.0] * 3


def test_optimizers_are_thincs_for_spacys_schema():
    optimizer = plain(AdamW(betas=[0.8, 0.9]), 0.2)
    assert isinstance(optimizer, Optimizer)
    assert (optimizer.learn_rate, optimizer.b1, optimizer.b2) == (0.2, 0.8, 0.9)
    assert (plain(SGD()).b1, plain(SGD()).b2) == (0.0, 0.0)
    assert optimizer.averages == {} and optimizer.nr_update == {} and optimizer.schedules == {}


def test_optimizers_help_is_ours():
    """Nothing public has a docstring or an argument of thinc's, which has others of the same names."""
    thincs = {inspect.getdoc(found) for found in vars(Optimizer).values() if inspect.isfunction(found)}
    public = ["__init__", "__call__", *(name for name in dir(TorchOptimizer) if not name.startswith("_"))]
    texts = {name: inspect.getdoc(getattr(TorchOptimizer, name)) for name in public}
    assert [name for name, text in texts.items() if not text or text in thincs - {None}] == []
    shown = pydoc.render_doc(TorchOptimizer.__init__, renderer=pydoc.plaintext)
    assert all(f"{name} (" in shown and f"{name}: " in shown for name in ("algorithm", "spike_factor", "attachments"))
    assert "privacy: " in shown
    assert "use_radam" not in shown
    assert list(inspect.signature(TorchOptimizer).parameters)[:3] == ["algorithm", "learn_rate", "grad_clip"]


def test_optimizers_complete_no_names_of_thincs_that_mean_nothing():
    optimizer = plain()
    names = dir(optimizer)
    gone = [name for name in Optimizer.__slots__ if name not in names]
    assert {"learn_rate", "grad_clip", "averages", "schedules", "nr_update"} <= set(names)
    assert set(gone) >= {"L2", "L2_is_weight_decay", "eps", "last_seen", "mom1", "mom2", "use_radam"}
    for name in names:
        assert hasattr(optimizer, name), name
    for name in gone:
        for use in (lambda name: getattr(optimizer, name), lambda name: setattr(optimizer, name, {})):
            with pytest.raises(AttributeError, match=f"'{name}' of TorchOptimizer.*optimizer\\.") as raised:
                use(name)
        for said in re.findall(r"optimizer\.(\w+)", str(raised.value)):
            assert hasattr(optimizer, said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lr", "no such attribute. Did you mean 'learn_rate'?"),
        ("learn_rat", "no such attribute. Did you mean 'learn_rate'"),
        ("param_groups", "is read when the optimizer is built. Build a new one: TorchOptimizer(..., param_groups=...)"),
    ],
)
def test_optimizers_refuse_attributes_that_would_be_ignored(name, said):
    optimizer = plain()
    for one in (optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        for kind in (AttributeError, ConfigError):
            with pytest.raises(kind, match=re.escape(said)):
                setattr(one, name, 0.1)

    class Own(TorchOptimizer):
        def __init__(self):
            super().__init__(AdamW())
            self.mine = 3

    own = Own()
    own.learn_rat = 4
    assert (own.mine, own.learn_rat) == (3, 4)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: TorchOptimizer(AdamW(), lr=0.1), "TorchOptimizer: it has no setting 'lr'. Did you mean 'learn_rate'?"),
        (lambda: TorchOptimizer(AdamW(), grad_clp=1.0), "no setting 'grad_clp'. Did you mean 'grad_clip'?"),
        (lambda: TorchOptimizer(AdamW(), beta1=0.9), "Did you mean 'betas' in [training.optimizer.algorithm]"),
        (lambda: Adam(0.1, lr=0.1), "Can't build Adam: it has no setting 'lr'. Did you mean 'learn_rate'?"),
        (
            lambda: RAdam(use_avrages=True),
            "Can't build RAdam: it has no setting 'use_avrages'. Did you mean 'use_averages'",
        ),
        (lambda: thinc_torchopt.SGD(0.1, nothing_like_it=1), "There are: L2, L2_is_weight_decay, grad_clip"),
    ],
)
def test_optimizers_suggest_names_for_unknown_arguments_as_for_a_config(build, said):
    for kind in (ConfigError, TypeError):
        with pytest.raises(kind, match=re.escape(said)):
            build()


def test_optimizers_describe_params_as_data_and_as_a_table():
    optimizer = TorchOptimizer(
        AdamW(),
        0.01,
        param_groups={"slow": {"params": ["tagger/*"], "lr_scale": 0.5}, "still": {"params": ["*/E"], "freeze": True}},
    )
    assert str(optimizer.describe()) == "[]"
    trained_pipeline(optimizer, components=["tagger"], shared=False)
    found = optimizer.describe()
    assert found == list(found) and found[0].name == "tagger/output_layer/W"
    lines = str(found).splitlines()
    assert lines == repr(found).splitlines() == f"{found}".splitlines()
    head, _, *rows = [line for line in lines if not line.startswith("All: ")]
    assert head.split() == ["name", "shape", "group", "learn_rate", "frozen"]
    assert [row.split()[0] for row in rows] == [info.name for info in found]
    starts = [head.index(name) for name in head.split()]
    for row, info in zip(rows, found):
        cells = [row[i:j].strip() for i, j in zip(starts, [*starts[1:], None])]
        frozen = info.group == "slow+still"
        shape = " x ".join(map(str, info.shape))
        assert cells == [info.name, shape, info.group, "0" if frozen else "0.005", "always" if frozen else ""]
    assert lines[-1] == "All: updates 0, algorithm torch.AdamW.v1, kind thinc, dtype float32, device cpu"
    assert max(map(len, lines)) < 120
    one = optimizer.describe([found[-1].name])
    assert len(one) == 1 and "0.005" in str(one) and "All:" not in str(one)


def test_optimizers_empty_arrays_pass_through():
    optimizer = plain()
    _, gradient = optimizer((0, "x"), numpy.zeros((1, 2), dtype="f"), numpy.zeros(0, dtype="f"))
    assert gradient.shape == (0,) and not optimizer.params
    optimizer((0, "y"), single := numpy.ones(1, dtype="f"), numpy.ones(1, dtype="f"))
    assert single != 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_optimizers_follow_a_model_to_another_device():
    """The state goes along: the steps are those of a model that stayed."""
    start = thinc_model()
    found = []
    for moves in (False, True):
        model, optimizer = start.copy(), plain(use_averages=True)
        for step in range(6):
            if moves and step == 3:
                model.to_gpu(0)
            for node in model.walk():
                for name in node.param_names:
                    grad = numpy.full(node.get_param(name).shape, 0.1 * (step + 1), dtype="f")
                    node.set_grad(name, node.ops.asarray(grad))
            model.finish_update(optimizer)
        found.append([tensor.cpu().clone() for tensor in optimizer.params.values()])
    for ours, theirs in zip(*found):
        # float32: CUDA's kernel rounds in another order.
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
