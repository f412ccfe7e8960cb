"""Buffers of torch modules: an update that is skipped leaves no trace in them."""

import copy

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thinc.api import Linear, PyTorchShim, PyTorchWrapper, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import NonFiniteGradWarning
from thinc_torchopt.core.host import module_of
from thinc_torchopt.core.update.buffers import KeptBuffers

from ...models import WIDTH, backprop, ready_pipeline, torch_model, toy_pipeline
from ...runs import loop_over

GOOD = torch.linspace(-1.0, 1.0, 20).reshape(4, 5)


def normalizing_module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))


def forward_and_backward(module, x):
    (module.train()(x) ** 2).sum().backward()


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.NonFiniteGradWarning")
@settings(max_examples=25)
@given(batches=st.lists(st.sampled_from(["good", "nan", "inf"]), min_size=1, max_size=8), averages=st.booleans())
def test_buffers_are_as_if_skipped_batches_had_not_been(batches, averages):
    """The oracle: a plain torch loop over the good batches alone."""
    factors = {"good": 1.0, "nan": torch.nan, "inf": torch.inf}
    model = PyTorchWrapper(module := normalizing_module())
    nlp = toy_pipeline(["tagger"], shared=False)
    nlp.get_pipe("tagger").model = model
    optimizer = TorchOptimizer(AdamW(), 0.01, grad_clip=0.0, use_averages=averages)
    optimizer.initialize(nlp)
    twin = normalizing_module()
    bare = torch.optim.AdamW(twin.parameters(), lr=0.01, fused=True)
    for i, kind in enumerate(batches):
        x = GOOD * (1.0 + i)
        forward_and_backward(module, x * factors[kind])
        model.finish_update(optimizer)
        if kind == "good":
            forward_and_backward(twin, x)
            bare.step()
            bare.zero_grad()
    assert optimizer.skipped_updates == len(batches) - batches.count("good")
    for (name, found), expected in zip(module.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(found, expected), name
    with model.use_params(optimizer.averages):
        assert module.eval()(GOOD).isfinite().all()


def test_buffers_of_all_components_are_put_back_in_a_joint_step():
    """The NaN is in another component than BatchNorm; both saw the batch."""
    module = normalizing_module()
    models = [PyTorchWrapper(module), Linear(3, 3).initialize()]
    optimizer = TorchOptimizer(AdamW(), 0.01)
    for bad in (False, True):
        forward_and_backward(module, GOOD)
        models[1].set_grad("W", models[1].ops.xp.full((3, 3), torch.nan if bad else 1.0, dtype="f"))
        before = copy.deepcopy(module.state_dict())
        optimizer.keep_buffers()
        module(GOOD * 7)
        with optimizer.joint_step():
            if bad:
                with pytest.warns(NonFiniteGradWarning):
                    for model in models:
                        model.finish_update(optimizer)
                    optimizer.step()
            else:
                for model in models:
                    model.finish_update(optimizer)
    assert torch.equal(module[1].running_mean, before["1.running_mean"])


def test_buffers_are_put_back_where_spacy_raises_before_the_gradients():
    """E940: the tagger's scores are NaN; the component before it has seen the batch."""
    nlp, examples = ready_pipeline(["tagger"], shared=False)
    tagger = nlp.get_pipe("tagger")
    module = torch.nn.BatchNorm1d(WIDTH)
    tok2vec, softmax = tagger.model.layers[0], tagger.model.layers[1]
    norm = chain(tok2vec, _on_ragged(module))
    norm._dims.update(tok2vec._dims)
    tagger.model._layers[0] = norm
    tagger.model.set_ref("tok2vec", norm)
    optimizer, seen = TorchOptimizer(AdamW(), 0.01), []

    def before_update(nlp, args):
        seen.append(module.running_mean.clone())
        softmax.layers[0].get_param("b")[...] = torch.nan if args["step"] == 2 else 0.0

    found = loop_over(nlp, optimizer, [examples] * 4, dropout=0.1, before_update=before_update)
    with pytest.warns(NonFiniteGradWarning, match="E940"):
        skipped = [info["skipped_updates"] for _, info, _ in found]
    assert skipped == [0, 0, 1, 1]
    assert not torch.equal(seen[1], seen[2]) and torch.equal(seen[2], seen[3])


def _on_ragged(module):
    """A torch module over the rows of lists of arrays."""
    from thinc.api import with_array

    return with_array(PyTorchWrapper(module))


def test_buffers_that_were_loaded_are_not_undone():
    """What somebody else wrote between two updates stays: the next update that is skipped goes back to that."""
    model, optimizer = PyTorchWrapper(module := normalizing_module()), TorchOptimizer(AdamW(), 0.01)
    forward_and_backward(module, GOOD)
    model.finish_update(optimizer)
    loaded = {name: value + 1 for name, value in module.state_dict().items()}
    module.load_state_dict(loaded)
    optimizer.keep_buffers()
    forward_and_backward(module, GOOD * torch.nan)
    with pytest.warns(NonFiniteGradWarning):
        model.finish_update(optimizer)
    assert all(torch.equal(value, loaded[name]) for name, value in module.state_dict().items())


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.NonFiniteGradWarning")
@pytest.mark.parametrize("skipped_before", [False, True])
def test_buffers_that_were_loaded_are_not_undone_in_a_loop_of_thinc(skipped_before):
    """The first forward pass saves them. One that is inside of `use_params` does not, unless it is another model's."""
    model = PyTorchWrapper(normalizing_module())
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)

    def update(*factors):
        for factor in factors:  # of the parts of a batch
            Y, get_dX = model.begin_update(GOOD.numpy() * factor)
            get_dX(Y)
        model.finish_update(optimizer)

    update(1.0)
    if skipped_before:
        update(numpy.nan)
    other = PyTorchWrapper(normalizing_module())
    for buffer in module_of(other.shims[0]).buffers():
        buffer += 7
    loaded = copy.deepcopy(module_of(other.shims[0]).state_dict())
    with model.use_params(optimizer.averages):
        model.begin_update(GOOD.numpy())
    model.from_bytes(other.to_bytes())
    teacher = torch_model()
    backprop(teacher, numpy.random.default_rng(0))
    teacher.finish_update(averaged := TorchOptimizer(AdamW(), 0.01, use_averages=True))
    with teacher.use_params(averaged.averages):
        update(1.0, numpy.nan)
    assert optimizer.skipped_updates == 1 + skipped_before
    assert all(torch.equal(value, loaded[name]) for name, value in module_of(model.shims[0]).state_dict().items())


def test_buffers_of_all_kinds_are_put_back():
    """Those that a forward pass replaces, too; and what is none stays none."""
    module = torch.nn.BatchNorm1d(3)
    module.register_buffer("mask", torch.ones(4, dtype=torch.bool))
    module.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)
    module.register_buffer("none", None)
    shim, kept = PyTorchShim(module), KeptBuffers()
    kept.keep([shim])
    before, mask = {name: value.clone() for name, value in module.named_buffers()}, module.mask
    for _ in range(2):
        module(torch.randn(4, 3))
        module.mask = torch.zeros(4, dtype=torch.bool)
        module.count += 1
        kept.put_back([shim])
        assert all(torch.equal(value, before[name]) for name, value in module.named_buffers())
        assert (
            module.mask is mask and module.none is None and set(before) == {name for name, _ in module.named_buffers()}
        )
    module.mask = None
    kept.keep([shim])
    kept.put_back([shim])
    assert module.mask is None


def test_buffers_of_a_module_that_nobody_saw_before_begin_anew():
    """A NaN in the very first batch, of an optimizer that was never told the pipeline: what the statistics were is not
    known.
    """
    model, optimizer = PyTorchWrapper(module := normalizing_module()), TorchOptimizer(AdamW(), 0.01)
    forward_and_backward(module, GOOD * torch.nan)
    with pytest.warns(NonFiniteGradWarning):
        model.finish_update(optimizer)
    assert torch.equal(module[1].running_mean, torch.zeros(6)) and torch.equal(module[1].running_var, torch.ones(6))
