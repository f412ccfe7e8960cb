"""What docs/memory-and-precision.md says: bytes per number, measured."""

import pytest
import torch
from thinc.api import PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.algorithms.torchao import AdamW4bit, AdamW8bit
from thinc_torchopt.core.compat import has_torchao

from .conftest import ROOT
from .models import toy_pipeline
from .peek import averages_in, params_in

PAGE = (ROOT / "docs" / "memory-and-precision.md").read_text()
ROWS = {
    "float32, `torch.AdamW.v1`": (AdamW, {}, torch.float32),
    "the same with `use_averages = true`": (AdamW, {"use_averages": True}, torch.float32),
    "float32, `torchao.AdamW8bit.v1`": (AdamW8bit, {}, torch.float32),
    "float32, `torchao.AdamW4bit.v1`": (AdamW4bit, {}, torch.float32),
    "bfloat16 params, `torch.AdamW.v1`": (AdamW, {}, torch.bfloat16),
    "the same with `master_weights = true`": (AdamW, {"master_weights": True}, torch.bfloat16),
}
# Of one param, so large that tables of quantized values and counts do not matter.
SHAPE = (512, 512)


def in_table(row):
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {row} |")]
    return [float(cell or 0) for cell in (cell.strip() for cell in line.strip("|").split("|")[1:])]


def bytes_of(values):
    found = 0
    for value in values:
        if isinstance(value, dict):
            found += bytes_of(value.values())
        elif isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__"):
            found += bytes_of(getattr(value, name) for name in value.__tensor_flatten__()[0])
        elif isinstance(value, torch.Tensor):
            found += value.numel() * value.element_size()
    return found


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.PrecisionWarning")
@pytest.mark.parametrize("row", ROWS)
def test_bytes_per_number(row):
    factory, settings, dtype = ROWS[row]
    if factory in (AdamW8bit, AdamW4bit) and not has_torchao:
        pytest.skip("torchao is not installed")
    nlp = toy_pipeline((), shared=False)
    module = torch.nn.Linear(*SHAPE, bias=False).to(dtype)
    pipe = nlp.add_pipe("tagger")
    pipe.model = PyTorchWrapper(module)
    optimizer = TorchOptimizer(factory(), 0.001, **settings)
    optimizer.initialize(nlp)
    module.weight.grad = torch.ones_like(module.weight)
    sizes = [bytes_of([module.weight]), bytes_of([module.weight.grad])]
    pipe.model.finish_update(optimizer)
    [built] = optimizer.torch_optimizers.values()
    [param] = params_in(optimizer)
    masters = [] if param.tensor is module.weight else [param.tensor]
    averages = [averages_in(optimizer).tensor_of(param.key)] if settings.get("use_averages") else []
    sizes += [bytes_of(built.state[param.tensor].values()), bytes_of(masters), bytes_of(averages)]
    found = [size / module.weight.numel() for size in sizes]
    # Scales, tables and counts are below a tenth of a byte a number.
    assert [*found, sum(found)] == pytest.approx(in_table(row), abs=0.1)
