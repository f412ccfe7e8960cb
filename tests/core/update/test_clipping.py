"""Oracles: torch.nn.utils.clip_grad_norm_ and clip_grad_value_, thinc's clip_gradient, and adaptive clipping as a loop
over units.
"""

import math
from typing import get_args

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import NumpyOps, constant, constant_then

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import NonFiniteGradWarning
from thinc_torchopt.core.params.param import Param
from thinc_torchopt.core.types import ClipBy
from thinc_torchopt.core.update.clipping import (
    clip_factors,
    clip_grads,
    clip_units,
    clip_values,
    grad_norms,
    scale_grads,
    total_norm,
)
from thinc_torchopt.core.update.guard import GradGuard

from ...conftest import needs_gpu
from ...models import ready_pipeline

SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=8)


def random_grads(shapes, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in shapes]


def test_clipping_norms_near_the_largest_float():
    """Norms that are finite, but whose squares are not, or not together."""
    assert total_norm([1.2e154, 1.2e154]) == pytest.approx(1.2e154 * 2**0.5, rel=1e-15)  # hypot rounds once
    assert total_norm([1e300, 0.0]) == 1e300
    assert total_norm([math.inf, 1e200]) == math.inf and not total_norm([math.nan, 1e200]) < math.inf
    assert [clip_factors([math.inf], "c", 1.0, by) for by in ("global", "component", "param")] == [1.0, [1.0], [1.0]]
    optimizer = TorchOptimizer(SGD(), 0.1)
    for key in "ab":
        optimizer.set_grad(numpy.ones(4), numpy.full(4, 6e153), key=key)
    optimizer.step()
    assert optimizer.skipped_updates == 0 and optimizer.grad_norm == pytest.approx(12e153 * 2**0.5)
    for param in optimizer.params.values():
        torch.testing.assert_close(param, torch.full_like(param, 1.0 - 0.1 / 8**0.5))


@pytest.mark.parametrize("clip_by", get_args(ClipBy))
def test_clipping_skips_gradients_too_large_for_a_norm(clip_by):
    """Of 1e200, whose square no float64 holds; as torch.nn.utils.clip_grad_norm_, which finds an infinite norm."""
    optimizer = TorchOptimizer(SGD(), 0.1, clip_by=clip_by)
    optimizer.set_grad(numpy.ones(4), numpy.full(4, 1e200), key="W")
    with pytest.warns(NonFiniteGradWarning, match="is not finite, or too large for a norm"):
        optimizer.step()
    assert optimizer.skipped_updates == 1 and all((param == 1.0).all() for param in optimizer.params.values())


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


@given(shapes=SHAPES, seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), max_norm=st.floats(1e-2, 1e2))
def test_clipping_by_param_equals_thinc(shapes, seed, scale, max_norm):
    ours, theirs = random_grads(shapes, seed, scale), random_grads(shapes, seed, scale)
    expected = [NumpyOps().clip_gradient(grad.numpy(), max_norm) for grad in theirs]
    scale_grads(ours, clip_factors(grad_norms(ours), ["c"] * len(ours), max_norm, "param"))
    for a, b in zip(ours, expected):
        torch.testing.assert_close(a, torch.from_numpy(b), rtol=1e-5, atol=0)


@pytest.mark.parametrize("clip_by", ["global", "component", "param"])
def test_clipping_is_as_precise_as_the_params(clip_by):
    """The factor rides along in fused kernels, in float32. Clipping each tensor by its norm equals clipping all, for
    one tensor.
    """
    ours, theirs = (torch.nn.Parameter(torch.ones(5, 4, dtype=torch.float64)) for _ in range(2))
    optimizer, plain = TorchOptimizer(SGD(), 0.1, grad_clip=0.3, clip_by=clip_by), torch.optim.SGD([theirs], lr=0.1)
    grad = random_grads([(5, 4)], 0, 1.0)[0].double() / 3
    optimizer.set_grad(ours, grad.clone())
    optimizer.step()
    # torch adds 1e-6 to the norm, thinc, whose way "param" is, nothing.
    theirs.grad = grad * (0.3 / (grad.norm() + (0.0 if clip_by == "param" else 1e-6)))
    plain.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)  # float64


# Of thinc's params: a bias, Maxout's bias, W of Linear, of Maxout and of spaCy's PrecomputableAffine. Any may be an
# embedding.
ANY_SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple), min_size=1, max_size=6)


@given(shapes=ANY_SHAPES, seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), limit=st.floats(1e-2, 1e2))
def test_clipping_by_value_equals_torch(shapes, seed, scale, limit):
    ours, theirs = random_grads(shapes, seed, scale), random_grads(shapes, seed, scale)
    params = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in theirs]
    for param, grad in zip(params, theirs):
        param.grad = grad
    torch.nn.utils.clip_grad_value_(params, limit)
    clip_values(ours, limit)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


def naive_adaptive(param, grad, ratio):
    """Equation 3 of the paper, unit by unit, in double precision."""
    clipped = grad.astype("float64")
    for unit in range(len(grad)) if grad.ndim > 1 else [...]:
        limit = ratio * max(numpy.linalg.norm(param[unit].astype("float64")), 1e-3)
        norm = numpy.linalg.norm(grad[unit].astype("float64"))
        if norm > limit:
            clipped[unit] = grad[unit] * (limit / norm)
    return clipped


@given(
    shapes=ANY_SHAPES,
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-4, 1e-2, 1.0, 1e3]),
    weights=st.sampled_from([0.0, 1e-4, 0.1, 10.0]),
    ratio=st.floats(1e-3, 2.0),
)
def test_clipping_adaptive_equals_a_loop_over_units(shapes, seed, scale, weights, ratio):
    grads, params = random_grads(shapes, seed, scale), random_grads(shapes, seed + 1, weights)
    grads[0].reshape(-1)[0] = 0.0  # rows of embeddings that a batch does not have, in the smallest shapes
    expected = [naive_adaptive(param.numpy(), grad.numpy(), ratio) for param, grad in zip(params, grads)]
    before = [grad.clone() for grad in grads]
    clip_units([torch.nn.Parameter(param) for param in params], grads, ratio)
    assert not any(grad.requires_grad for grad in grads)
    for grad, wanted, old in zip(grads, expected, before):
        torch.testing.assert_close(grad, torch.from_numpy(wanted).float(), rtol=1e-5, atol=0)  # norms in float32
        if (wanted == old.numpy()).all():
            torch.testing.assert_close(grad, old, rtol=0, atol=0)


def test_clipping_adaptive_in_half_precision():
    param, grad = torch.full((2, 400), 300.0, dtype=torch.float16), torch.full((2, 400), 6000.0, dtype=torch.float16)
    clip_units([param], [grad], 0.5)  # norms of 6,000 and 120,000, above what float16 can hold
    assert grad.dtype == torch.float16
    torch.testing.assert_close(grad, torch.full_like(grad, 150.0), rtol=1e-3, atol=0)


@pytest.mark.parametrize("clip_by", ["global", "component", "param", "value", "adaptive"])
def test_clipping_after_scaling(clip_by):
    """Of a spike that is scaled down: as if the gradients had been smaller from the start."""
    shapes, names = [(3, 4), (5,), (2, 2, 2)], ["a/W", "a/b", "b/W"]
    found = []
    for scale in (1.0, 0.25):
        params = [Param(name, name, None, tensor) for name, tensor in zip(names, random_grads(shapes, 1, 1.0))]
        for param, grad in zip(params, random_grads(shapes, 2, 8.0)):
            param.tensor.grad = grad if scale != 1.0 else 0.25 * grad
        factor = clip_grads(params, grad_norms([param.grad for param in params]), 1.5, clip_by, scale=scale)
        found.append([factor * param.grad for param in params])
        assert factor == 1.0 or clip_by == "global"
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)


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


@pytest.mark.parametrize("algorithm", [SGD(fused=True), SGD(fused=False), SGD(foreach=True)])
@pytest.mark.parametrize("clip_by", ["global", "component", "param", "value", "adaptive"])
def test_clipping_reaches_the_update(algorithm, clip_by):
    """Whether it rides along in a fused kernel or not: the update has the norm it should have."""
    optimizer = TorchOptimizer(algorithm, 1.0, grad_clip=0.01, clip_by=clip_by)
    nlp, examples = ready_pipeline(["tagger", "ner"], shared=False, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    before = {name: tensor.clone() for name, tensor in optimizer.params.items()}
    for _ in range(2):  # the norm is twice that of the update before
        nlp.update(examples, sgd=False)
    with optimizer.joint_step():
        for _, proc in nlp.pipeline:
            proc.finish_update(optimizer)
    changes = {name: (tensor - before[name]).double() for name, tensor in optimizer.params.items()}
    moved = {name: change.norm().item() for name, change in changes.items()}
    assert optimizer.grad_norm > 1  # before clipping
    assert not hasattr(optimizer.torch_optimizers["algorithm"], "grad_scale")  # of this step alone
    # A float32 update of size 0.01 to weights of size 0.1 is rounded at 1e-8, thousands of times: 1% of the norm at
    # most.
    if clip_by == "param":
        assert max(moved.values()) == pytest.approx(0.01, rel=0.01)
        assert sum(value > 0.009 for value in moved.values()) > 10
    elif clip_by == "value":
        largest = [change.abs().max().item() for change in changes.values()]
        assert max(largest) == pytest.approx(0.01, rel=0.01) and sum(value > 0.009 for value in largest) > 10
    elif clip_by == "adaptive":
        ratios = []
        for name, change in changes.items():
            units = [(change, before[name])] if change.ndim < 2 else zip(change, before[name])
            ratios += [(unit.norm() / max(old.double().norm(), 1e-3)).item() for unit, old in units]
        assert max(ratios) == pytest.approx(0.01, rel=0.01) and sum(ratio > 0.009 for ratio in ratios) > 10
    else:
        groups = (
            {"": list(moved)}
            if clip_by == "global"
            else {c: [n for n in moved if n.startswith(c)] for c in ("tagger", "ner")}
        )
        for names in groups.values():
            assert numpy.linalg.norm([moved[name] for name in names]) == pytest.approx(0.01, rel=0.01)


def test_clipping_leaves_small_gradients_to_the_last_bit():
    weights = torch.ones(5), torch.ones(5)
    grad = torch.full((5,), 1e-3)
    for value, clip in zip(weights, (0.0, 1.0)):
        TorchOptimizer(AdamW(), 0.1, grad_clip=clip)((0, "W"), value, grad.clone())
    assert torch.equal(*weights)


@pytest.mark.parametrize("clip_by", ["value", "adaptive"])
def test_clipping_without_norms_needs_no_look_at_them(clip_by):
    for max_nonfinite in (0, 20):
        optimizer = TorchOptimizer(SGD(), 1.0, grad_clip=0.5, clip_by=clip_by, max_nonfinite=max_nonfinite)
        weights = torch.ones(4)
        optimizer((0, "W"), weights, torch.full((4,), 3.0))
        assert weights.tolist() == pytest.approx([0.5] * 4 if clip_by == "value" else [1 - 0.5] * 4)
        assert optimizer.grad_norm == (6.0 if max_nonfinite else None)


def test_norm_is_that_of_the_last_update_or_none():
    """A schedule of `grad_clip` that ends at 0: without clipping and guard, nothing measures a norm."""
    optimizer = TorchOptimizer(SGD(), 1.0, grad_clip=constant_then(1.0, 1, constant(0.0)), max_nonfinite=0)
    norms, weights = [], torch.ones(4)
    for _ in range(2):
        optimizer((0, "W"), weights, torch.full((4,), 3.0))
        norms.append(optimizer.grad_norm)
        optimizer.step_schedules()
    assert norms == [6.0, None]


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("clip_by", ["global", "component", "param", "value", "adaptive"])
def test_clipping_waits_for_the_device_once(clip_by):
    """However many tensors, and of whatever dtypes."""
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    params = [
        Param(f"{'ab'[i % 2]}/{i}", i, None, torch.ones(3, 4, device="cuda", dtype=dtypes[i % 4])) for i in range(20)
    ]
    guard = GradGuard(20, spike_factor=3.0)
    for _ in range(2):  # the first step looks at what can't change
        for param in params:
            param.tensor.grad = torch.full_like(param.tensor, 5.0)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with pytest.warns(UserWarning, match="synchroniz") as warned:
                norms = grad_norms([param.grad for param in params])
                verdict = guard.judge(params, norms, total_norm(norms))
                clip_grads(params, norms, 1.0, clip_by, scale=verdict.factor)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([one for one in warned if "synchroniz" in str(one.message)]) == 1
    assert norms == pytest.approx([5.0 * 12**0.5] * 20, rel=1e-3)
