"""What docs/memory-and-precision.md says: bytes per number, measured; and gradient checkpointing."""

import re

import numpy
import pytest
import spacy
import torch
from thinc.api import PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.algorithms.torchao import AdamW4bit, AdamW8bit
from thinc_torchopt.core.compat import has_torchao

from .addons.fine_tuning.small_transformers import write_bert
from .conftest import ROOT
from .models import toy_examples, toy_pipeline
from .peek import averages_in, params_in

PAGE = (ROOT / "docs" / "memory-and-precision.md").read_text()
ROWS = {
    "float32, `torch.AdamW.v1`": (AdamW, {}, torch.float32),
    "the same with `use_averages = true`": (AdamW, {"use_averages": True}, torch.float32),
    'the same with `precision = "bf16"`': (AdamW, {"use_averages": True, "precision": "bf16"}, torch.float32),
    "float32, `torch.SGD.v1` without momentum": (SGD, {}, torch.float32),
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


def test_gradient_checkpointing(tmp_path):
    """The same gradients, with the layers computed twice."""
    pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
    [block] = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    exec(block, {})
    write_bert(tmp_path / "bert", tmp_path / "vocab.txt")
    found, calls = {}, {}
    for precision in ("float32", "bf16"):
        for is_on in (False, True):
            torch.manual_seed(0)
            numpy.random.seed(0)
            nlp = spacy.blank("en")
            nlp.add_pipe(
                "transformer",
                config={
                    "model": {
                        "@architectures": "spacy-transformers.TransformerModel.v3",
                        "name": str(tmp_path / "bert"),
                        "transformer_config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
                    }
                },
            )
            listener = {"@architectures": "spacy-transformers.TransformerListener.v1", "grad_factor": 1.0}
            listener["pooling"] = {"@layers": "reduce_mean.v1"}
            nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": listener}})
            if is_on:
                nlp.config["initialize"]["after_init"] = {"@callbacks": "gradient-checkpointing.v1"}
            examples = toy_examples(nlp)
            optimizer = TorchOptimizer(SGD(), 0.1, precision=precision)
            nlp.initialize(lambda examples=examples: examples, sgd=optimizer)
            module = nlp.get_pipe("transformer").model.transformer
            counted = []
            module.encoder.layer[0].attention.register_forward_hook(lambda *_, counted=counted: counted.append(1))
            with optimizer.training():
                nlp.update(examples, sgd=False, drop=0.0)
            calls[precision, is_on] = len(counted)
            found[precision, is_on] = [param.grad for param in module.parameters() if param.grad is not None]
        assert len(found[precision, True]) == len(found[precision, False]) > 30
        # The same operations on the same numbers.
        assert all(map(torch.equal, found[precision, True], found[precision, False]))
    assert calls["bf16", True] == calls["float32", True] == 2 * calls["float32", False] == 2 * calls["bf16", False]
