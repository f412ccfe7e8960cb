"""An update on a GPU is a number of operations that does not grow with the number of params, and gives the numbers of
the CPU, where most of them are made param by param.
"""

import pytest
import torch
from safetensors.torch import save_file
from thinc.api import PyTorchWrapper, require_cpu, require_gpu

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.state.trees import copies_in_main_memory

from ..models import params_of
from .waits import operations, waits

pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore:.*trained in bfloat16")]

SHAPES = [(4, 3), (3,), (2, 3, 2), (1,), (7, 1), ()]
DTYPES = {"float32": [torch.float32], "bfloat16": [torch.bfloat16], "mixed": [torch.float32, torch.bfloat16]}
GUARD = {"max_nonfinite": 3}
CLIPS = {
    "no": {"grad_clip": 0.0},
    **{by: {"grad_clip": 0.3, "clip_by": by} for by in ("global", "component", "param", "value", "adaptive")},
}
AVERAGES = {
    "thinc": {"use_averages": True},
    "double": {"averages": EMA(0.9, warmup="torch", dtype="float64")},
}


@pytest.fixture(autouse=True)
def double(request):
    if request.config.getoption("--device", "cpu") != "double":
        pytest.skip("the double counts operations")


class Many(torch.nn.Module):
    """Params of several shapes. odd: Some have another order in memory, or are parts of a larger memory."""

    def __init__(self, n, dtypes, odd):
        super().__init__()
        generator, tensors = torch.Generator().manual_seed(0), []
        for i in range(n):
            shape = SHAPES[i % len(SHAPES)]
            tensor = torch.randn(shape, generator=generator).to(dtypes[i // 2 % len(dtypes)])
            if odd and tensor.ndim > 1:
                tensor = tensor.transpose(0, 1).contiguous().transpose(0, 1)
            elif odd and tensor.ndim == 1:
                tensor = tensor.repeat_interleave(2)[::2]
            tensors.append(torch.nn.Parameter(tensor))
        self.all = torch.nn.ParameterList(tensors)


def trained(n, dtypes, settings, *, on_gpu, odd=False, change=lambda module: None):
    """RETURNS: Params, averages, and operations and waits of the last update."""
    (require_gpu if on_gpu else require_cpu)()
    try:
        model = PyTorchWrapper(module := Many(n, dtypes, odd))
        optimizer = TorchOptimizer(AdamW(), 0.01, **settings)
        generator = torch.Generator().manual_seed(1)
        for step in range(4):
            for param in module.parameters():
                grad = torch.randn(param.shape, generator=generator).to(param.dtype)
                param.grad = torch.empty_like(param).copy_(grad)
            change(module) if step == 2 else None
            with operations() as ops, waits() as waited:
                model.finish_update(optimizer)
        averages = [value.cpu() for value in optimizer.averages.values()]
        return params_of(model), averages, ops, waited
    finally:
        require_gpu()


@pytest.mark.parametrize(
    ("clip", "averages"), [*((clip, "thinc") for clip in CLIPS if clip != "adaptive"), ("global", "double")]
)
@pytest.mark.parametrize(
    ("dtypes", "masters"),
    [("float32", False), ("bfloat16", True), pytest.param("bfloat16", False, marks=pytest.mark.slow)],
)
def test_operations_do_not_grow_with_the_number_of_params(dtypes, masters, clip, averages):
    settings = {**GUARD, **CLIPS[clip], **AVERAGES[averages], "master_weights": masters}
    counts = []
    for n in (12, 24):
        params, averaged, ops, waited = trained(n, DTYPES[dtypes], settings, on_gpu=True)
        assert sum(waited.values()) == 1, waited
        counts.append(ops)
    assert counts[0] == counts[1] and sum(ops.values()) <= 40
    on_cpu, expected, _, _ = trained(24, DTYPES[dtypes], settings, on_gpu=False)
    # The norms are summed in another order, which changes factors by the last bits of float32.
    tolerance = {"rtol": 0, "atol": 0} if clip in ("no", "value") else {"rtol": 2e-6, "atol": 2e-6}
    if dtypes == "bfloat16" and tolerance["rtol"]:
        tolerance = {"rtol": 2**-8, "atol": 1e-4}
    for found, own in zip(params + averaged, on_cpu + expected, strict=True):
        torch.testing.assert_close(found, own.to(found.dtype), **tolerance)


def test_operations_of_averages_on_the_cpu():
    """They come in one copy, for which the host waits once."""
    settings = {"max_nonfinite": 0, "grad_clip": 0.0, "averages": EMA(0.9, device="cpu")}
    params, averages, _, waited = trained(60, DTYPES["float32"], settings, on_gpu=True)
    assert sum(waited.values()) == 1
    on_cpu, expected, _, _ = trained(60, DTYPES["float32"], settings, on_gpu=False)
    assert all(map(torch.equal, params + averages, on_cpu + expected))


@pytest.mark.parametrize("clip", ["value", "adaptive"])
@pytest.mark.parametrize("block", [pytest.param(1, marks=pytest.mark.slow), 20, 1 << 24])
def test_operations_on_blocks_of_any_size(block, clip, monkeypatch):
    """Also where other code has changed the model; of several dtypes, and in any order in memory."""
    monkeypatch.setattr("thinc_torchopt.core.kernels.BLOCK", block)

    def change(module):
        with torch.no_grad():
            for i, param in enumerate(module.parameters()):
                param.data[...] = [0.5, float("inf"), -0.0][i % 3] if i % 4 == 0 else param.data

    settings = {**GUARD, **CLIPS[clip], "master_weights": True, "use_averages": True}
    found = trained(30, DTYPES["mixed"], settings, on_gpu=True, odd=True, change=change)
    expected = trained(30, DTYPES["mixed"], settings, on_gpu=False, odd=True, change=change)
    for one, other in zip(found[0] + found[1], expected[0] + expected[1], strict=True):
        # As above.
        rtol = 0 if clip == "value" else 2**-8 if one.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, equal_nan=True)


def test_operations_that_copy_a_checkpoint(monkeypatch, tmp_path):
    """Many tensors at once; a large one in parts."""
    monkeypatch.setattr("thinc_torchopt.core.kernels.BLOCK", 500)
    require_gpu()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{i}": torch.randn(SHAPES[i % len(SHAPES)], generator=generator).to([torch.float32, torch.bfloat16][i % 2])
        for i in range(60)
    }
    tensors |= {"large": torch.randn(30, 60), "turned": torch.randn(3, 4).T, "none": torch.empty(0, 3)}
    tensors |= {"count": torch.tensor(3), "mask": torch.tensor([True, False])}
    on_gpu = {name: tensor.to("cuda") for name, tensor in tensors.items()}
    tensors["here"] = torch.ones(3)
    on_gpu["here"] = torch.ones(3)
    with waits() as waited:
        copies = copies_in_main_memory(on_gpu)
    assert sum(waited.values()) <= 10
    for tensor in on_gpu.values():
        tensor.zero_()
    assert list(copies) == list(on_gpu)
    assert all(torch.equal(copies[name], tensors[name]) and not copies[name].is_cuda for name in on_gpu)
    assert all(copies[name].dtype == tensors[name].dtype for name in on_gpu)
    save_file({name: tensor.contiguous() for name, tensor in copies.items()}, tmp_path / "tensors")  # none share memory
