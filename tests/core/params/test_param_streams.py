"""Steps while torch and CuPy work on different streams of a GPU."""

import numpy
import pytest
import torch

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW

from ...models import mixed_model, params_of, thinc_model


def steps(model, optimizer, *, slow=lambda: None):
    """Three steps with gradients that CuPy makes. slow: Keeps the GPU busy before."""
    rng = numpy.random.default_rng(0)
    for _ in range(3):
        X = model.ops.asarray(rng.normal(size=(7, 5)).astype("f"))
        Y, back = model.begin_update(X)
        slow()
        back(Y)
        model.finish_update(optimizer)


@pytest.mark.device
def test_steps_wait_for_cupy_and_cupy_for_steps(request):
    if request.config.getoption("--device", "cpu") != "double":
        pytest.skip("the double writes down what waits")
    import cupy

    waited = cupy.cuda.Stream.waited
    optimizer, model, found = TorchOptimizer(AdamW(), 0.01), mixed_model(), []
    steps(model, optimizer)
    assert waited == []  # both are on the default stream
    [torch_optimizer] = optimizer.torch_optimizers.values()
    torch_optimizer.register_step_post_hook(lambda *_: found.append(list(waited)))
    with torch.cuda.stream(torch.cuda.Stream()):
        steps(model, optimizer)
    assert found[0] == [(7, 0)] and waited == [(7, 0), (0, 7)] * 3
    waited.clear()
    with cupy.cuda.Stream(9):
        steps(model, optimizer)
    assert waited == [(0, 9), (9, 0)] * 3


@pytest.mark.device
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_steps_on_a_side_stream_are_those_of_the_default_stream(request, library):
    if request.config.getoption("--device", "cpu") != "cuda":
        pytest.skip("runs with --device cuda")
    import cupy

    busy = cupy.ones((4096, 4096), dtype="f")

    def slow():  # some milliseconds: longer than the host takes for a step
        for _ in range(10):
            busy @ busy

    # Not with a torch module: thinc's own views of its input and output do not wait.
    expected = thinc_model(5)
    found = expected.copy()
    steps(expected, TorchOptimizer(AdamW(), 0.01))
    torch.cuda.synchronize()
    stream = torch.cuda.stream(torch.cuda.Stream()) if library == "torch" else cupy.cuda.Stream(non_blocking=True)
    with stream:
        steps(found, TorchOptimizer(AdamW(), 0.01), slow=slow)
    torch.cuda.synchronize()
    # The same kernels on the same values, so the same sums but for the order of threads.
    for one, other in zip(params_of(found), params_of(expected)):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
