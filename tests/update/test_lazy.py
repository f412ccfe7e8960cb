"""`sparse = "lazy"`: against a loop of torch's own optimizers on the touched cells, torch.optim.SparseAdam, and an
optimizer in which nothing waits.
"""

import numpy
import pytest
import spacy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thinc.api import Model, PyTorchWrapper, Shim

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.errors import CheckpointWarning, ConfigError, NonFiniteGradWarning
from thinc_torchopt.torch_optimizers import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from thinc_torchopt.update import direct

from ..models import toy_examples, toy_pipeline

SHAPE = (4, 6000)
# The registered function, torch's class, options.
ALGORITHMS = {
    "Adam": (Adam, torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    "AdamW": (AdamW, torch.optim.AdamW, {"weight_decay": 0.1}),
    "AdamW by torch's loop": (AdamW, torch.optim.AdamW, {"fused": False, "maximize": True}),
    "Adagrad": (Adagrad, torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    "SGD": (SGD, torch.optim.SGD, {"weight_decay": 0.1}),
    "SGD with momentum": (SGD, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3}),
    "Adadelta": (Adadelta, torch.optim.Adadelta, {}),
    "Adamax": (Adamax, torch.optim.Adamax, {}),
    "NAdam": (NAdam, torch.optim.NAdam, {}),
    "RAdam": (RAdam, torch.optim.RAdam, {}),
    "RMSprop": (RMSprop, torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
}


def pipeline(*shapes, dtype="float32"):
    """One component 'wide' with thinc's arrays W0, W1 ... of these shapes."""
    rng = numpy.random.default_rng(0)
    nlp = toy_pipeline(["tagger"], shared=False)
    params = {f"W{i}": rng.normal(size=shape).astype(dtype) for i, shape in enumerate(shapes)}
    nlp.get_pipe("tagger").model = Model("wide", lambda *_: None, params=params)
    nlp.rename_pipe("tagger", "wide")
    return nlp, nlp.get_pipe("wide").model


def lazy(algorithm, learn_rate=0.01, *, sparse="lazy", **settings):
    return TorchOptimizer(algorithm, learn_rate, param_groups={"wide": {"params": ["*"], "sparse": sparse}}, **settings)


def sparse_grads(shape, steps, *, share=0.01, seed=1):
    rng = numpy.random.default_rng(seed)
    for _ in range(steps):
        grad = numpy.zeros(shape, "float32")
        grad.reshape(-1)[rng.random(grad.size) < share] = 1.0
        yield grad * rng.normal(size=shape).astype("float32")


def update(optimizer, model, *grads):
    for i, grad in enumerate(grads):
        model.set_grad(f"W{i}", grad.copy())
    model.finish_update(optimizer)
    optimizer.step_schedules()
    assert not any(model.get_grad(f"W{i}").any() for i in range(len(grads)))


class TouchedCells:
    """The plain form: each step is one of an optimizer of torch's that has nothing but the touched cells."""

    def __init__(self, values, cls, options):
        self.values = torch.tensor(values)
        self.cls, self.options, self.state = cls, options, {}

    def step(self, grad):
        index = torch.from_numpy(numpy.flatnonzero(grad))
        cells = self.values.view(-1)[index]
        cells.grad = torch.from_numpy(grad).view(-1)[index]
        optimizer = self.cls([cells], lr=0.01, **self.options)
        for name, value in self.state.items():
            optimizer.state[cells][name] = value.view(-1)[index] if value.dim() else value
        optimizer.step()
        self.values.view(-1)[index] = cells
        for name, value in optimizer.state[cells].items():
            if value is None:
                continue
            if value.dim():
                initial = self.options.get("initial_accumulator_value", 0.0) if name == "sum" else 0.0
                self.state.setdefault(name, torch.full_like(self.values, initial)).view(-1)[index] = value
            else:
                self.state[name] = value


@pytest.fixture
def made(monkeypatch):
    """Whether each step was made by a kernel on lists of this step."""
    found = []
    make = direct.DirectStep.make_once
    monkeypatch.setattr(
        direct.DirectStep, "make_once", lambda self, *args: found.append(make(self, *args)) or found[-1]
    )
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_lazy_equals_torch_on_touched_cells(name, made):
    build, cls, options = ALGORITHMS[name]
    nlp, model = pipeline(SHAPE)
    optimizer = lazy(build(**options), grad_clip=0.0)
    optimizer.initialize(nlp)
    has_kernel = name.split()[0] in ("Adam", "AdamW", "Adagrad", "SGD") and options.get("fused", True)
    bare = TouchedCells(model.get_param("W0"), cls, options | ({"fused": True} if has_kernel else {}))
    for grad in sparse_grads(SHAPE, 10):
        update(optimizer, model, grad)
        bare.step(grad)
    # To the last bit: it is the same code on the same numbers.
    assert torch.equal(bare.values, torch.from_numpy(model.get_param("W0")))
    assert set(optimizer.nr_update.values()) == {10}
    # torch makes the first step of most, and with it their state.
    assert sum(made) == (10 if name in ("Adagrad", "SGD") else 9 if has_kernel else 0)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(list(ALGORITHMS)),
    touched=st.lists(st.sets(st.integers(0, 29), max_size=30), min_size=1, max_size=8),
    seed=st.integers(0, 100),
)
def test_lazy_of_any_sequence_of_cells(name, touched, seed):
    build, cls, options = ALGORITHMS[name]
    nlp, model = pipeline((5, 6))
    optimizer = lazy(build(**options), grad_clip=0.0)
    optimizer.initialize(nlp)
    bare = TouchedCells(model.get_param("W0"), cls, options)
    values = numpy.random.default_rng(seed).normal(size=(len(touched), 30)).astype("float32")
    for cells, value in zip(touched, values):
        grad = numpy.zeros(30, "float32")
        grad[list(cells)] = value[list(cells)]
        update(optimizer, model, grad.reshape(5, 6))
        bare.step(grad.reshape(5, 6))
    # Kernels round in another order than torch's loops, by 1e-7 of each step.
    torch.testing.assert_close(torch.from_numpy(model.get_param("W0")), bare.values, rtol=1e-5, atol=1e-6)


def test_lazy_equals_sparse_adam():
    nlp, model = pipeline(SHAPE)
    # SparseAdam adds eps before the bias correction: with the smallest one there is no difference.
    optimizer = lazy(Adam(eps=1e-30), grad_clip=0.0)
    optimizer.initialize(nlp)
    theirs = torch.tensor(model.get_param("W0"), requires_grad=True)
    bare = torch.optim.SparseAdam([theirs], lr=0.01, eps=1e-30)
    for grad in sparse_grads(SHAPE, 10):
        update(optimizer, model, grad)
        theirs.grad = torch.from_numpy(grad).to_sparse()
        bare.step()
    # It rounds the same sums in another order.
    torch.testing.assert_close(torch.from_numpy(model.get_param("W0")), theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip_by", ["global", "component", "param", "value", "adaptive"])
@pytest.mark.parametrize("build", [AdamW, Adagrad, SGD], ids=lambda build: build.__name__)
def test_lazy_is_dense_where_all_is_touched(build, clip_by):
    found = []
    for sparse in ("lazy", "dense"):
        nlp, model = pipeline((3, 50), (7,))
        optimizer = lazy(build(), sparse=sparse, grad_clip=0.1, clip_by=clip_by, use_averages=True)
        optimizer.initialize(nlp)
        for one, other in zip(sparse_grads((3, 50), 8, share=1.0), sparse_grads((7,), 8, share=1.0)):
            update(optimizer, model, one, other)
        with nlp.use_params(optimizer.averages):
            averages = model.get_param("W0").copy()
        found.append((model.get_param("W0"), model.get_param("W1"), averages, optimizer.grad_norm))
    assert all(numpy.array_equal(one, other) for one, other in zip(*found))


@pytest.mark.parametrize("clip_by", ["global", "component", "param", "value", "adaptive"])
def test_lazy_clips_as_dense(clip_by):
    found = []
    for sparse in ("lazy", "dense"):
        nlp, model = pipeline(SHAPE, (5,))
        # Plain SGD does nothing to cells without a gradient: nothing waits that would not stand still.
        optimizer = lazy(SGD(), 1.0, sparse=sparse, grad_clip=0.05, clip_by=clip_by, use_averages=True)
        optimizer.initialize(nlp)
        for one, other in zip(sparse_grads(SHAPE, 5), sparse_grads((5,), 5, share=0.5)):
            update(optimizer, model, one, other)
        with nlp.use_params(optimizer.averages):
            averages = model.get_param("W0").copy()
        found.append((model.get_param("W0"), model.get_param("W1"), averages, optimizer.grad_norm))
    for one, other in zip(*found):
        # Norms are summed in another order.
        numpy.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_lazy_leaves_untouched_cells_alone():
    nlp, model = pipeline(SHAPE)
    before = model.get_param("W0").copy()
    optimizer = lazy(AdamW(weight_decay=0.5))
    optimizer.initialize(nlp)
    grad = numpy.zeros(SHAPE, "float32")
    grad[1, 7:9] = 1.0
    update(optimizer, model, grad)
    update(optimizer, model, grad * 0.0)  # a step in which no cell is touched
    changed = numpy.argwhere(model.get_param("W0") != before).tolist()
    assert changed == [[1, 7], [1, 8]]
    [state] = optimizer.torch_optimizers["algorithm"].state.values()
    assert state["exp_avg"].shape == SHAPE
    assert state["exp_avg"].nonzero().tolist() == changed
    assert state["step"] == 2


def test_lazy_skips_what_is_not_finite():
    nlp, model = pipeline(SHAPE)
    before = model.get_param("W0").copy()
    optimizer = lazy(AdamW())
    optimizer.initialize(nlp)
    grad = numpy.zeros(SHAPE, "float32")
    grad[2, 5] = numpy.nan
    with pytest.warns(NonFiniteGradWarning, match="wide/W0"):
        update(optimizer, model, grad)  # which looks that the gradient is gone, too
    assert numpy.array_equal(model.get_param("W0"), before)
    assert optimizer.skipped_updates == 1
    update(optimizer, model, numpy.nan_to_num(grad, nan=1.0))
    assert (model.get_param("W0") != before).sum() == 1


def test_lazy_accumulates():
    found = []
    for parts in (1, 2):
        nlp, model = pipeline(SHAPE)
        optimizer = lazy(AdamW())
        optimizer.initialize(nlp)
        grads = list(sparse_grads(SHAPE, 8))
        for one, other in zip(grads[::2], grads[1::2]):
            if parts == 1:
                model.inc_grad("W0", one + other)
            else:
                model.inc_grad("W0", one.copy())
                model.inc_grad("W0", other.copy())
            model.finish_update(optimizer)
        found.append(model.get_param("W0"))
    assert numpy.array_equal(*found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.float32])
def test_lazy_torch_module(dtype):
    torch.manual_seed(0)
    nlp, _ = pipeline((1,))
    table = torch.nn.Embedding(400, 60, dtype=dtype)
    theirs = torch.nn.Embedding(400, 60, dtype=dtype)
    theirs.load_state_dict(table.state_dict())
    model = nlp.get_pipe("wide").model = PyTorchWrapper(table)
    optimizer = lazy(AdamW(weight_decay=0.1), grad_clip=0.0)
    optimizer.initialize(nlp)
    state = {key: torch.zeros_like(theirs.weight) for key in ("exp_avg", "exp_avg_sq")}
    for seed in range(4):
        ids = torch.from_numpy(numpy.random.default_rng(seed).integers(0, 400, 30))
        table(ids).square().sum().backward()
        rows = table.weight.grad.abs().sum(1).nonzero().view(-1)
        cells = theirs.weight.detach()[rows]
        cells.grad = table.weight.grad[rows].clone()
        bare = torch.optim.AdamW([cells], lr=0.01, weight_decay=0.1, fused=True)
        if seed:
            bare.state[cells] = {key: value[rows] if value.dim() else value for key, value in state.items()}
        bare.step()
        for key, value in bare.state[cells].items():
            if value.dim():
                state[key][rows] = value
            else:
                state[key] = value
        with torch.no_grad():
            theirs.weight[rows] = cells
        model.finish_update(optimizer)
        assert table.weight.grad is None
    # An embedding is a normal number, so that no cell of a touched row has a gradient of 0.
    assert torch.equal(table.weight, theirs.weight)


def test_lazy_shim_that_keeps_its_params():
    class Elsewhere(Shim):
        """Keeps an array of its own, and has an optimizer called with copies."""

        values = numpy.ones((3, 6000), "float32")
        grad = None

        def finish_update(self, optimizer):
            self.values, _ = optimizer((self.id, "values"), self.values.copy(), self.grad)

    nlp, model = pipeline((3, 6000))
    shim = Elsewhere(None)
    model.shims.append(shim)
    optimizer = lazy(SGD(), 1.0, grad_clip=0.0)
    optimizer.initialize(nlp)
    for grad in sparse_grads((3, 6000), 3):
        expected = shim.values - grad
        shim.grad = grad.copy()
        update(optimizer, model, grad * 0)
        assert numpy.array_equal(shim.values, expected)


def test_lazy_is_a_matter_of_the_last_block():
    nlp, _ = pipeline(SHAPE, (5,))
    blocks = {"all": {"params": ["*"], "sparse": "lazy"}, "bias": {"params": ["*/W1"], "sparse": "dense"}}
    optimizer = TorchOptimizer(AdamW(), param_groups=blocks)
    optimizer.initialize(nlp)
    assert {info.name: info.sparse for info in optimizer.describe()} == {"wide/W0": "lazy", "wide/W1": "dense"}
    assert len(optimizer.torch_optimizers["algorithm"].param_groups) == 2


@pytest.mark.parametrize("build", [Rprop, ASGD, Adafactor], ids=lambda build: build.__name__)
def test_lazy_is_refused_where_cells_are_not_by_themselves(build):
    nlp, _ = pipeline(SHAPE)
    optimizer = lazy(build())
    with pytest.raises(ConfigError, match=rf"param_groups\.wide\] for param 'wide/W0'.*found 'torch\.{build.__name__}"):
        optimizer.initialize(nlp)


def test_lazy_takes_the_algorithm_of_a_block():
    nlp, model = pipeline(SHAPE)
    block = {"params": ["*"], "sparse": "lazy", "algorithm": SGD()}
    optimizer = TorchOptimizer(Rprop(), 1.0, grad_clip=0.0, param_groups={"wide": block})
    optimizer.initialize(nlp)
    [grad] = sparse_grads(SHAPE, 1)
    expected = model.get_param("W0") - grad
    update(optimizer, model, grad)
    assert numpy.array_equal(model.get_param("W0"), expected)


def test_lazy_refuses_other_memory_orders():
    nlp, _ = pipeline((1,))
    layer = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    nlp.get_pipe("wide").model = PyTorchWrapper(layer)
    with pytest.raises(ConfigError, match=r"'wide/weight'.*with strides"):
        lazy(AdamW()).initialize(nlp)


@pytest.mark.parametrize("value", ["Lazy", True, 1])
def test_lazy_names_what_there_is(value):
    with pytest.raises(ConfigError, match=r"'sparse' in \[training\.optimizer\.param_groups\.wide\].*'lazy'"):
        lazy(AdamW(), sparse=value)


def bag_of_words(labels=("RED", "BLUE")):
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy.TextCatBOW.v3", "exclusive_classes": False, "ngram_size": 1, "length": 8192}
    model["no_output_layer"] = False
    pipe = nlp.add_pipe("textcat_multilabel", config={"model": model})
    for label in labels:
        pipe.add_label(label)
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples)
    return nlp, examples


def go_on(nlp, optimizer, examples, steps):
    for i in range(steps):
        nlp.update(examples[i % 6 :: 6], sgd=optimizer)
        optimizer.step_schedules()


def weights(nlp):
    return nlp.get_pipe("textcat_multilabel").model.get_ref("output_layer").get_param("W")


@pytest.mark.parametrize("build", [AdamW, Adagrad, lambda: SGD(momentum=0.9)], ids=["AdamW", "Adagrad", "SGD"])
def test_lazy_goes_on_from_a_state(build, tmp_path):
    nlp, examples = bag_of_words()
    optimizer = lazy(build(), use_averages=True)
    optimizer.initialize(nlp)
    go_on(nlp, optimizer, examples, 5)
    optimizer.to_disk(tmp_path / "state")
    nlp.to_disk(tmp_path / "nlp")
    before = weights(nlp).copy()
    saved = {**optimizer.state_dict()}
    go_on(nlp, optimizer, examples, 4)
    again, resumed = spacy.load(tmp_path / "nlp"), lazy(build(), use_averages=True)
    resumed.initialize(again)
    resumed.from_disk(tmp_path / "state")
    go_on(again, resumed, examples, 4)
    assert numpy.array_equal(weights(nlp), weights(again))
    assert not numpy.array_equal(weights(nlp), before)
    ours, theirs = optimizer.averages, resumed.averages
    assert all(numpy.array_equal(one, other) for one, other in zip(ours.values(), theirs.values()))
    assert saved["groups"]["wide"]["options"]["sparse"] == "lazy"


def test_lazy_tells_of_a_state_that_was_dense():
    nlp, examples = bag_of_words()
    dense = lazy(AdamW(), sparse="dense")
    dense.initialize(nlp)
    go_on(nlp, dense, examples, 2)
    optimizer = lazy(AdamW())
    optimizer.initialize(nlp)
    with pytest.warns(CheckpointWarning, match="sparse is 'lazy', was 'dense'"):
        optimizer.load_state_dict(dense.state_dict())
    go_on(nlp, optimizer, examples, 2)


def test_lazy_goes_back():
    nlp, examples = bag_of_words()
    optimizer = lazy(AdamW(), use_averages=True)
    optimizer.initialize(nlp)
    go_on(nlp, optimizer, examples, 3)
    optimizer_saved = torch.utils._pytree.tree_map(
        lambda value: value.clone() if isinstance(value, torch.Tensor) else value, optimizer.state_dict()
    )
    params = {name: tensor.clone() for name, tensor in optimizer.params.items()}
    found = []
    for _ in range(2):
        go_on(nlp, optimizer, examples, 4)
        found.append(weights(nlp).copy())
        optimizer.roll_back(optimizer_saved)
        for name, tensor in optimizer.params.items():
            tensor.copy_(params[name])
    assert numpy.array_equal(*found)


def test_lazy_grows_with_labels():
    nlp, examples = bag_of_words()
    optimizer = lazy(AdamW())
    optimizer.initialize(nlp)
    go_on(nlp, optimizer, examples, 3)
    [known] = (
        found["exp_avg"]
        for tensor, found in optimizer.torch_optimizers["algorithm"].state.items()
        if tensor.numel() > 100
    )
    before, moments = weights(nlp).copy(), known.clone()
    nlp.get_pipe("textcat_multilabel").add_label("GREEN")
    optimizer.initialize(nlp)
    [grown] = (
        found["exp_avg"]
        for tensor, found in optimizer.torch_optimizers["algorithm"].state.items()
        if tensor.numel() > 100
    )
    assert torch.equal(grown[: len(moments)], moments)
    assert numpy.array_equal(weights(nlp)[: len(before)], before)
    go_on(nlp, optimizer, examples, 1)
    changed = weights(nlp)[: len(before)] != before
    assert 0 < changed.sum() < 0.1 * len(before)


def test_lazy_freezes_and_thaws():
    nlp, examples = bag_of_words()
    optimizer = lazy(AdamW())
    optimizer.initialize(nlp)
    go_on(nlp, optimizer, examples, 2)
    before = weights(nlp).copy()
    optimizer.freeze(["*"])
    go_on(nlp, optimizer, examples, 2)
    assert numpy.array_equal(weights(nlp), before)
    optimizer.unfreeze(["*"])
    go_on(nlp, optimizer, examples, 2)
    assert 0 < (weights(nlp) != before).sum() < 0.1 * before.size
    assert set(optimizer.nr_update.values()) == {2}


def test_lazy_steps_with_hooks_of_others():
    nlp, model = pipeline(SHAPE)
    optimizer = lazy(SGD(), 1.0, grad_clip=0.0)
    optimizer.initialize(nlp)
    seen = []
    [inner] = optimizer.torch_optimizers.values()
    inner.register_step_post_hook(lambda *_: seen.append(len(inner.param_groups[0]["params"][0])))
    for grad in sparse_grads(SHAPE, 3):
        expected = model.get_param("W0") - grad
        update(optimizer, model, grad)
        assert numpy.array_equal(model.get_param("W0"), expected)
        assert seen[-1] == numpy.count_nonzero(grad)
    [tensor] = inner.param_groups[0]["params"]
    assert tensor is optimizer.params["wide/W0"]
