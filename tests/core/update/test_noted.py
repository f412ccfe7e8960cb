"""Gradients are noted whatever others did to tensors since the last update."""

import numpy
import torch
from thinc.api import Linear

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.torch_optimizers import SGD, AdamW


def test_noted_zero_grad_of_torch_takes_no_param_out_of_the_training():
    """`zero_grad` takes gradients away from tensors; thinc's buffers, which they were, are still the same ones."""
    model = Linear(3, 4).initialize()
    optimizer = TorchOptimizer(SGD(), 1.0, grad_clip=0.0)
    for _ in range(4):
        before = model.get_param("W").copy()
        model.inc_grad("W", numpy.ones((3, 4), dtype="f"))
        model.finish_update(optimizer)
        numpy.testing.assert_array_equal(model.get_param("W"), before - 1.0)
        optimizer.torch_optimizers["algorithm"].zero_grad()


def test_noted_zero_grad_of_torch_hurts_no_frozen_param():
    model = Linear(3, 4).initialize()
    optimizer = TorchOptimizer(SGD(), 1.0, grad_clip=0.0)
    for step in range(4):
        if step == 2:
            optimizer.torch_optimizers["algorithm"].zero_grad()
            optimizer.freeze(["*/W"])
        before = model.get_param("W").copy()
        for name in ("W", "b"):
            model.inc_grad(name, numpy.ones_like(model.get_param(name)))
        model.finish_update(optimizer)
        assert (model.get_param("W") == before).all() == (step >= 2) and not model.get_grad("W").any()


def test_noted_tensors_that_are_no_torch_params_may_change_their_memory_order():
    """A fused kernel would walk through the memory of tensor and gradient in different orders."""
    values = torch.arange(12.0).reshape(3, 4)
    for algorithm, oracle_class, options in (
        (SGD(), torch.optim.SGD, {}),
        (SGD(momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
        (AdamW(), torch.optim.AdamW, {}),
    ):
        tensor, grad, expected = values.clone(), torch.zeros(3, 4), torch.nn.Parameter(values.clone())
        optimizer = TorchOptimizer(algorithm, 0.1, grad_clip=0.0)
        oracle = oracle_class([expected], lr=0.1, **options)
        for step in range(6):
            if step == 3:
                tensor.data = tensor.data.t().contiguous().t()
            grad.copy_(values + step)
            expected.grad = grad.clone()
            optimizer.set_grad(tensor, grad)
            optimizer.step()
            oracle.step()
            # The kernel is fused, the oracle not: a rounding or two a step.
            torch.testing.assert_close(tensor, expected.detach(), rtol=1e-5, atol=1e-6)
