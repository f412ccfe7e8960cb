"""Oracles: torch.nn.utils.clip_grad_norm_ and thinc's clip_gradient."""

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thinc.api import NumpyOps

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.clipping import clip_factors, grad_norms, scale_grads, total_norm
from thinc_torchopt.torch_optimizers import SGD, AdamW, RMSprop

from .models import toy_examples, toy_pipeline

SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=8)


def random_grads(shapes, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


@settings(deadline=None, max_examples=60)
@given(shapes=SHAPES, seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), max_norm=st.floats(1e-2, 1e2))
def test_clipping_global_equals_torch(shapes, seed, scale, max_norm):
    ours, theirs = random_grads(shapes, seed, scale), random_grads(shapes, seed, scale)
    params = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in theirs]
    for param, grad in zip(params, theirs):
        param.grad = grad
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    norms = grad_norms(ours)
    factor = clip_factors(norms, ["c"] * len(ours), max_norm, "global")
    scale_grads(ours, [factor] * len(ours))
    assert total_norm(norms) == pytest.approx(norm.item(), rel=1e-5)  # float32 sums in another order
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=0)


@settings(deadline=None, max_examples=60)
@given(shapes=SHAPES, seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), max_norm=st.floats(1e-2, 1e2))
def test_clipping_by_param_equals_thinc(shapes, seed, scale, max_norm):
    ours, theirs = random_grads(shapes, seed, scale), random_grads(shapes, seed, scale)
    expected = [NumpyOps().clip_gradient(grad.numpy(), max_norm) for grad in theirs]
    scale_grads(ours, clip_factors(grad_norms(ours), ["c"] * len(ours), max_norm, "param"))
    for a, b in zip(ours, expected):
        torch.testing.assert_close(a, torch.from_numpy(b), rtol=1e-5, atol=0)


@settings(deadline=None, max_examples=60)
@given(shapes=SHAPES, seed=st.integers(0, 10**6), max_norm=st.floats(1e-2, 1e2), data=st.data())
def test_clipping_by_component_is_global_within_each(shapes, seed, max_norm, data):
    components = [data.draw(st.sampled_from("abc")) for _ in shapes]
    grads = random_grads(shapes, seed, 10.0)
    factors = clip_factors(grad_norms(grads), components, max_norm, "component")
    for name in set(components):
        of_component = [grad for grad, component in zip(grads, components) if component == name]
        expected = clip_factors(grad_norms(of_component), [name] * len(of_component), max_norm, "global")
        assert {factor for factor, component in zip(factors, components) if component == name} == {expected}


def test_clipping_norm_of_a_large_gradient():
    """An embedding's size, where torch's own float32 norm is off by a thousandth."""
    grad = 0.01 * torch.randn(6_000_000, generator=torch.Generator().manual_seed(0))
    # Chunks of a million are summed in float32, by 16 lanes or more: 1e-7 x the root of 65,536.
    assert grad_norms([grad])[0] == pytest.approx(grad.double().norm().item(), rel=2.5e-5)
    assert grad_norms([grad.view(2000, 3000).t()])[0] == pytest.approx(grad.double().norm().item(), rel=2.5e-5)


def test_clipping_norms_of_several_dtypes():
    grads = [torch.full((300, 300), 500.0, dtype=torch.float16), torch.ones(4, dtype=torch.float64), torch.ones(9)]
    # 500 x 300 = 150,000 is above what float16 can hold; 1e-3: its sum is made in float32.
    assert grad_norms(grads) == pytest.approx([150_000.0, 2.0, 3.0], rel=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_clipping_norms_show_what_is_not_finite(bad):
    norms = grad_norms([torch.ones(3), torch.tensor([1.0, bad])])
    assert norms[0] < float("inf") and not norms[1] < float("inf")
    assert not total_norm(norms) < float("inf")


@pytest.mark.parametrize("algorithm", [SGD(fused=True), SGD(fused=False), SGD(foreach=True)])
@pytest.mark.parametrize("clip_by", ["global", "component", "param"])
def test_clipping_reaches_the_update(algorithm, clip_by):
    """Whether it rides along in a fused kernel or not: the update has the norm it should have."""
    nlp = toy_pipeline(["tagger", "ner"], shared=False)
    examples, optimizer = toy_examples(nlp), TorchOptimizer(algorithm, 1.0, grad_clip=0.01, clip_by=clip_by)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    before = {name: tensor.clone() for name, tensor in optimizer.params.items()}
    nlp.update(examples, sgd=False)
    with optimizer.joint_step():
        for _, proc in nlp.pipeline:
            proc.finish_update(optimizer)
    moved = {name: (tensor - before[name]).double().norm().item() for name, tensor in optimizer.params.items()}
    assert optimizer.grad_norm > 1
    # A float32 update of size 0.01 to weights of size 0.1 is rounded at 1e-8, thousands of times: 1% of the norm at most.
    if clip_by == "param":
        assert max(moved.values()) == pytest.approx(0.01, rel=0.01)
        assert sum(value > 0.009 for value in moved.values()) > 10
    else:
        groups = {"": list(moved)} if clip_by == "global" else {c: [n for n in moved if n.startswith(c)] for c in ("tagger", "ner")}
        for names in groups.values():
            assert numpy.linalg.norm([moved[name] for name in names]) == pytest.approx(0.01, rel=0.01)


def test_clipping_leaves_small_gradients_to_the_last_bit():
    weights = torch.ones(5), torch.ones(5)
    grad = torch.full((5,), 1e-3)
    for value, clip in zip(weights, (0.0, 1.0)):
        TorchOptimizer(AdamW(), 0.1, grad_clip=clip)((0, "W"), value, grad.clone())
    assert torch.equal(*weights)


def test_clipping_works_for_algorithms_without_a_fused_step():
    weights, grad = torch.ones(4), torch.ones(4)
    expected = torch.nn.Parameter(torch.ones(4))
    bare = torch.optim.RMSprop([expected], lr=0.1)
    expected.grad = torch.full((4,), 0.25)
    bare.step()
    TorchOptimizer(RMSprop(), 0.1, grad_clip=0.5)((0, "W"), weights, grad)
    torch.testing.assert_close(weights, expected.detach(), rtol=1e-5, atol=0)  # clip_grad_norm_'s 1e-6 in the norm
