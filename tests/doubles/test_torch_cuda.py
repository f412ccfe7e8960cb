"""The double of a tensor on a GPU computes as torch does on the CPU, and lets nothing pass that CUDA would not."""

import copy

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from . import cupy
from .torch_cuda import CUDA, CudaTensor, to_cuda
from .waits import waits

HOST = torch.arange(1.0, 7.0).reshape(2, 3)


@pytest.fixture
def there():
    return to_cuda(HOST)


def test_is_on_a_gpu(there):
    assert (there.device, there.is_cuda, there.is_cpu) == (CUDA, True, False)
    assert there.host.data_ptr() != HOST.data_ptr()
    assert hasattr(there, "__cuda_array_interface__")


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x * 2 + torch.tensor(1.0),  # numbers of the CPU go with any tensor
        lambda x: x @ x.T,
        lambda x: x.view(-1)[1::2],
        lambda x: x[torch.tensor([1, 0])],  # and so do indices
        lambda x: torch.cat([x, torch.zeros_like(x)]),
        lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
        lambda x: torch.stack(torch._foreach_norm([x, x[0]])),
        lambda x: torch.var_mean(x.double())[0],
        lambda x: x.new_full((2, 2), 3.0),
    ],
)
def test_numbers_are_torchs(there, compute):
    found = compute(there)
    assert isinstance(found, CudaTensor)
    assert torch.equal(found.cpu(), compute(HOST))


def test_memory_is_shared_by_views(there):
    there[0].zero_()
    there.view(-1)[5:].add_(1)
    assert there.tolist() == [[0, 0, 0], [4, 5, 7]]
    assert there.add_(there) is there
    assert there[1].untyped_storage().data_ptr() == there.untyped_storage().data_ptr()
    other = torch.nn.Parameter(there)
    assert isinstance(other, torch.nn.Parameter)
    other.data = to_cuda(HOST)
    assert torch.equal(other.cpu(), HOST)


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from(["SGD", "AdamW", "Adagrad", "NAdam"]), st.booleans())
def test_training_is_torchs(rows, columns, name, foreach):
    """Forward, backward and steps: the very numbers of the CPU, as it is the CPU that computes them."""
    start, inputs = torch.rand(rows, columns), torch.rand(7, columns)

    def trained(place):
        weights = torch.nn.Parameter(place(start))
        optimizer = getattr(torch.optim, name)([weights], lr=0.1, foreach=foreach)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.gelu(place(inputs) @ weights.T).square().sum().backward()
            optimizer.step()
        return weights.detach().cpu(), weights.grad.cpu()

    for found, expected in zip(trained(to_cuda), trained(torch.clone)):
        assert torch.equal(found, expected)


def mixed(there):
    yield lambda: there + HOST
    yield lambda: HOST + there
    yield lambda: HOST.add_(there.sum())
    yield lambda: there.mul_(HOST)
    yield lambda: torch.cat([there, HOST])
    yield lambda: torch.stack([there.sum(), torch.tensor(1.0)])
    yield lambda: torch.where(there > 1, there, HOST)
    yield lambda: torch._foreach_add_([HOST.clone(), there], [HOST, HOST])  # the second row
    yield lambda: torch._foreach_lerp_([there], [HOST], 0.5)
    yield lambda: there.numpy()
    yield lambda: numpy.asarray(there)


def test_mixing_raises(there):
    for number, mix in enumerate(mixed(there)):
        with pytest.raises((RuntimeError, TypeError, AssertionError)):
            pytest.fail(f"number {number}: {mix()}")


def test_rows_of_lists_are_anywhere(there):
    rows = [HOST.clone(), there.clone()]
    torch._foreach_add_(rows, [HOST, there])
    assert [type(row) for row in rows] == [torch.Tensor, CudaTensor]
    assert all(torch.equal(row.cpu(), 2 * HOST) for row in rows)
    assert [type(norm) for norm in torch._foreach_norm(rows)] == [torch.Tensor, CudaTensor]


def test_a_fused_kernel_wants_all_in_one_place(there):
    def step(scale, params):
        state = [[torch.zeros_like(param) for param in params] for _ in range(2)]
        steps = [torch.zeros_like(param.sum()) for param in params]
        options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8}
        torch._fused_adam_(
            params, params, *state, [], steps, **options, amsgrad=False, maximize=False, grad_scale=scale
        )

    step(to_cuda(torch.tensor(2.0)), [there])
    step(torch.tensor(2.0), [HOST.clone()])
    for scale, params in ((torch.tensor(2.0), [there]), (None, [there, HOST])):
        with pytest.raises(RuntimeError, match="same device"):
            step(scale, params)


def test_waits_are_counted(there):
    with waits() as found:
        there.sum().item()
        float(there.sum())
        bool(there.any())
        there.tolist()
        there.cpu()
        there.to("cpu", torch.float64)
        torch.empty(2, 3).copy_(there)
        torch._foreach_copy_([torch.empty(2, 3), there.clone()], [there, there])
        there[there > 1]
        there[there > 1] = 0
        there.copy_(HOST)
        torch._foreach_norm([there * there, torch.zeros_like(there)])
    assert found == {"item": 3, "tolist": 1, "to the host": 2, "copy to the host": 2, "mask": 1}


def test_a_copy_that_nobody_waits_for_is_refused(there):
    with pytest.raises(AssertionError, match="nobody waits"):
        there.to("cpu", non_blocking=True)


def test_gradients_go_between_places():
    start = HOST.clone().requires_grad_()
    (to_cuda(start) * 2).to("cpu").sum().backward()
    assert start.grad.tolist() == [[2.0] * 3] * 2


def test_copies(there):
    param = torch.nn.Parameter(there)
    made = copy.deepcopy(param)
    assert isinstance(made, torch.nn.Parameter)
    assert made.requires_grad
    made.data.zero_()
    assert torch.equal(param.cpu(), HOST)


def test_arrays_and_tensors_on_the_same_memory(there):
    array = cupy.from_dlpack(there)
    array += 1
    assert torch.equal(there.cpu(), HOST + 1)
