"""Steps by the kernel alone against torch's own step on the same tensors, to the last bit: the kernel is the same."""

import copy
import weakref

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import Linear, Model, chain

from tests.models import toy_examples, toy_pipeline
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core import drop_ins, kernels
from thinc_torchopt.core.algorithms.algorithm import Algorithm
from thinc_torchopt.core.update.built_algorithm import BuiltAlgorithm
from thinc_torchopt.torch_optimizers import SGD, Adagrad, Adam, AdamW

# Every option that torch's kernels take.
DECAY = {"weight_decay": st.sampled_from([0.0, 0.1])}
OF_ADAM = {"amsgrad": st.booleans(), "maximize": st.booleans(), **DECAY}
CLASSES = {
    "Adam": (Adam, torch.optim.Adam, OF_ADAM),
    "AdamW": (AdamW, torch.optim.AdamW, OF_ADAM),
    "Adagrad": (Adagrad, torch.optim.Adagrad, {"lr_decay": st.sampled_from([0.0, 0.1]), **DECAY}),
    "SGD": (SGD, torch.optim.SGD, {"momentum": st.sampled_from([0.0, 0.9]), **DECAY}),
}
# Without masters, half precision loses small updates, as torch's own step does.
pytestmark = pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.PrecisionWarning")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """How many params each step that torch did not make had."""
    found = []
    make = BuiltAlgorithm._step_by_kernel

    def noting(self, group, params, scale):
        is_made = make(self, group, params, scale)
        found.append(len(params) if is_made else 0)
        return is_made

    monkeypatch.setattr(BuiltAlgorithm, "_step_by_kernel", noting)
    return found


def bare(params, cls, options):
    """What torch does with the same params, in one group, with the fused kernel."""
    copies = [torch.nn.Parameter(param.detach().clone()) for param in params]
    return copies, cls(copies, lr=0.1, fused=True, **options)


@given(st.data(), st.sampled_from(sorted(CLASSES)), st.sampled_from(DTYPES), st.integers(0, 2**16))
def test_fused_is_torchs_step(data, name, dtype, seed):
    """Any sets of params, one after the other; the state that is left is torch's as well."""
    factory, cls, choices = CLASSES[name]
    if cls is torch.optim.SGD and dtype.itemsize < 4:
        dtype = torch.float32  # torch's kernel is wrong there, and not used
    options = {option: data.draw(choice) for option, choice in choices.items()}
    generator = torch.Generator().manual_seed(seed)
    params = [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((3, 5), (7,), (2, 2, 2))
    ]
    expected, theirs = bare(params, cls, options)
    optimizer = TorchOptimizer(factory(**options), 0.1, grad_clip=0.0)
    every, some = (0, 1, 2), (0, 2)
    for chosen in data.draw(st.lists(st.sampled_from([every, some]), min_size=3, max_size=8)):
        for i in chosen:
            grad = torch.randn(params[i].shape, generator=generator).to(dtype)
            expected[i].grad, params[i].grad = grad.clone(), grad
            optimizer.set_grad(params[i], grad)
        optimizer.step()
        if cls is torch.optim.SGD and options["momentum"]:
            # torch's fused SGD can't take params with and without momentum together.
            fresh = [i for i in chosen if not theirs.state.get(expected[i])]
            for part in (fresh, [i for i in chosen if i not in fresh]):
                grads = {i: expected[i].grad for i in chosen}
                for i in chosen:
                    expected[i].grad = grads[i] if i in part else None
                theirs.step()
                for i in chosen:
                    expected[i].grad = grads[i]
        else:
            theirs.step()
        theirs.zero_grad()
        for a, b in zip(params, expected):
            assert torch.equal(a, b)
    state = optimizer.torch_optimizers["algorithm"].state
    for ours, bares in zip(params, expected):
        # torch's Adagrad has state also of what was never updated.
        for key, value in theirs.state.get(bares, {}).items() if ours in state else ():
            assert torch.equal(state[ours][key], value), key


@pytest.mark.parametrize(
    "make", [lambda: TorchOptimizer(AdamW(), 0.1), lambda: drop_ins.SGD(0.1)], ids=["torch", "thinc"]
)
def test_fused_makes_all_steps_but_the_first_two(make, made, monkeypatch):
    monkeypatch.setattr("thinc_torchopt.core.algorithms.thinc.sgd", None)  # slower, with the same results
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = make()
    for _ in range(5):
        for param in params:
            optimizer.set_grad(param, torch.ones(3))
        optimizer.step()
    assert made == [0, 4, 4, 4, 4]


def trained(n_steps, **changes):
    """A toy pipeline of thinc's layers, trained in joint steps. changes: by step, what happens before it."""
    nlp = toy_pipeline(["tagger", "ner"])
    examples = toy_examples(nlp)
    optimizer = TorchOptimizer(AdamW(), 0.01, grad_clip=0.5, use_averages=True)
    numpy.random.seed(0)
    nlp.initialize(lambda: examples, sgd=optimizer)
    optimizer.initialize(nlp)
    rng = numpy.random.default_rng(0)
    for step in range(n_steps):
        if f"at_{step}" in changes:
            changes[f"at_{step}"](optimizer)
        for _, proc in nlp.pipeline:
            for node in proc.model.walk():
                for name in node.param_names:
                    node.inc_grad(name, rng.normal(size=node.get_param(name).shape).astype("f"))
        with optimizer.joint_step():
            for _, proc in nlp.pipeline:
                proc.model.finish_update(optimizer)
        optimizer.step_schedules()
    return as_bytes(optimizer)


def as_bytes(optimizer):
    tensors = []

    def walk(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value.double())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                walk(value[key])

    state = optimizer.state_dict()
    walk({"params": {name: tensor.detach() for name, tensor in optimizer.params.items()}, "state": state["params"]})
    walk(state["averages"])
    return [tensor.numpy().tobytes() for tensor in tensors]


def roll_back(optimizer):
    optimizer.roll_back(copy.deepcopy(optimizer.state_dict()))


def load_into_torchs(optimizer):
    """By hand, as a user may do it."""
    inner(optimizer).load_state_dict(copy.deepcopy(inner(optimizer).state_dict()))


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
        load_into_torchs,
        lambda optimizer: replace_moments(inner(optimizer)),
        roll_back,
    ],
    ids=["load", "load in torch", "other tensors", "roll back"],
)
def test_fused_follows_whatever_happens_to_the_state(change, made, monkeypatch):
    """As a run whose steps are all torch's: state that is loaded, or exchanged by others, counts from then on."""
    found = trained(7, at_4=change)
    assert sum(map(bool, made)) >= 4
    monkeypatch.setattr(BuiltAlgorithm, "_is_observed", True)
    assert found == trained(7, at_4=change)


def inner(optimizer):
    return optimizer.torch_optimizers["algorithm"]


def replace_moments(optimizer):
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].clone() * 0.5
        state["step"] = state["step"] + 3.0


@pytest.mark.parametrize("replace", [roll_back, load_into_torchs])
def test_fused_holds_on_to_no_state_that_was_replaced(replace):
    """Else it would take memory twice until the next step, in the forward pass of all times."""
    nlp = toy_pipeline(["tagger"], shared=False)
    tagger = nlp.get_pipe("tagger").model = chain(Linear(4, 3), Linear(2, 4)).initialize()
    optimizer = TorchOptimizer(AdamW(), 0.01)
    optimizer.initialize(nlp)
    for _ in range(4):
        for node in tagger.walk():
            for name in node.param_names:
                node.inc_grad(name, numpy.ones_like(node.get_param(name)))
        tagger.finish_update(optimizer)
    before = [weakref.ref(state["exp_avg"]) for state in inner(optimizer).state.values()]
    assert before
    replace(optimizer)
    assert not any(moment() is not None for moment in before)


@pytest.mark.parametrize(
    "odd", [torch.ones(3), torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float64)]
)
def test_fused_looks_once_whether_params_go_together(odd, made, monkeypatch):
    """Else each step would look at all params; until their group changes."""
    looked, accepts = [], kernels.FusedKernel.accepts
    params = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(odd)]
    optimizer = TorchOptimizer(AdamW(), 0.1)
    monkeypatch.setattr(kernels.FusedKernel, "accepts", lambda *args: looked.append(args) or accepts(*args))

    def count_after_three_steps():
        for _ in range(3):
            for param in params:
                optimizer.set_grad(param, torch.ones_like(param))
            optimizer.step()
        return len(looked)

    assert count_after_three_steps() == count_after_three_steps() and any(made) == (odd.dtype is torch.float32)
    params[1].data = torch.ones(3)
    assert count_after_three_steps() == count_after_three_steps() and made[-5:] == [2] * 5


@pytest.mark.parametrize(
    "observe",
    [
        lambda inside: inside.register_step_post_hook(lambda *_: None),
        # It replaces `step`, to count how often it is called.
        lambda inside: torch.optim.lr_scheduler.ConstantLR(inside, factor=1.0),
    ],
    ids=["hook", "scheduler"],
)
def test_fused_leaves_steps_that_others_observe_to_torch(observe, made):
    param, optimizer = torch.nn.Parameter(torch.ones(3)), TorchOptimizer(SGD(), 0.1, on_outside_write="adopt")
    for step in range(6):
        if step == 3:
            observe(inner(optimizer))
        optimizer.set_grad(param, torch.ones(3))
        optimizer.step()
    assert made == [0, 1, 1]


@pytest.mark.parametrize(
    "key, value",
    [
        ("exp_avg", torch.zeros(8)),  # more than torch's own step needs
        ("exp_avg", torch.zeros(8)[::2]),
        ("step", torch.tensor([3.0])),
        ("step", torch.tensor(3.0, dtype=torch.float64)),
    ],
)
def test_fused_keeps_away_from_a_param_that_no_longer_fits_its_state(key, value, made):
    """Its kernel walks through memory from the first cell on, whatever the shape of the state is."""
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = TorchOptimizer(AdamW(), 0.1)
    for _ in range(3):
        optimizer.set_grad(param, torch.ones(4))
        optimizer.step()
    inner(optimizer).state[param][key] = value
    optimizer.set_grad(param, torch.ones(4))
    optimizer.step()
    assert made == [0, 1, 1, 0]


def test_fused_takes_the_drop_ins(made):
    """thinc's Adam counts steps with plain numbers."""
    model: Model = chain(Linear(4, 3), Linear(2, 4))
    model.initialize()
    from thinc_torchopt import Adam as DropIn

    optimizer = DropIn(0.1)
    for _ in range(4):
        for node in model.walk():
            for name in node.param_names:
                node.inc_grad(name, numpy.ones_like(node.get_param(name)))
        model.finish_update(optimizer)
    assert made == [0, 4, 4, 4]
    assert {state["step"] for state in inner(optimizer).state.values()} == {4}


def test_fused_takes_drop_ins_whose_params_count_alike(made, monkeypatch):
    """Oracle: a run whose steps are all torch's."""

    def run():
        params, optimizer = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)], drop_ins.Adam(0.1)
        for chosen in (1, 1, 1, 2, 2, 2):
            for param in params[:chosen]:
                optimizer.set_grad(param, torch.ones(3))
            optimizer.step()
        return [*map(torch.Tensor.tolist, params), *(state["step"] for state in inner(optimizer).state.values())]

    found = run()
    assert made == [0, 1, 1, 0, 0, 0] and found[2:] == [6, 3]
    monkeypatch.setattr(BuiltAlgorithm, "_is_observed", True)
    assert run() == found


def test_fused_is_for_classes_and_not_their_children(made):
    class Child(torch.optim.SGD):
        pass

    param = torch.nn.Parameter(torch.ones(3))
    optimizer = TorchOptimizer(Algorithm("child", Child, {}), 0.1)
    for _ in range(3):
        optimizer.set_grad(param, torch.ones(3))
        optimizer.step()
    assert made == []
