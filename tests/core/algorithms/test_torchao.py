"""torchao's optimizers with quantized state. Oracle: torchao's own classes, stepped by hand."""

import numpy
import pytest
import torch
from thinc.api import PyTorchWrapper

from thinc_torchopt.core import compat
from thinc_torchopt.core.algorithms.algorithm import StateSizes
from thinc_torchopt.core.algorithms.torchao import Adam4bit, Adam8bit, AdamFp8, AdamW4bit, AdamW8bit, AdamWFp8
from thinc_torchopt.core.compat import has_torchao
from thinc_torchopt.core.errors import ConfigError, MissingPackageError, StateError
from thinc_torchopt.core.state.files import read_folder, write_folder

from ...models import optimizer_for, toy_pipeline

ALL = [Adam8bit, Adam4bit, AdamFp8, AdamW8bit, AdamW4bit, AdamWFp8]
# 4,096 numbers or more are quantized; the bias is not.
WIDTH = 64
needs_torchao = pytest.mark.skipif(not has_torchao, reason="torchao is not installed")


@pytest.mark.parametrize("factory", ALL)
def test_without_the_library(factory, monkeypatch):
    monkeypatch.setattr(compat, "has_torchao", False)
    with pytest.raises(MissingPackageError, match="torchao is not installed"):
        factory()


def pipeline(rows=WIDTH, module=None):
    """A tagger with a torch layer in front of its output."""
    nlp = toy_pipeline((), shared=False)
    torch.manual_seed(0)
    layer = PyTorchWrapper(module or torch.nn.Linear(WIDTH, rows))
    pipe = nlp.add_pipe("tagger")
    pipe.model = layer
    return nlp, layer


def step(nlp, layer, optimizer, numbers):
    for seed in numbers:
        rng = numpy.random.default_rng(seed)
        for param in layer.shims[0]._model.parameters():
            param.grad = torch.from_numpy(rng.normal(size=tuple(param.shape)).astype("f"))
        layer.finish_update(optimizer)
        optimizer.step_schedules()


def weights(layer):
    return [param.detach().clone() for param in layer.shims[0]._model.parameters()]


@needs_torchao
@pytest.mark.parametrize("factory", ALL)
def test_steps_are_torchaos(factory):
    import torchao.optim

    rates = [0.01, 0.02, 0.005]
    nlp, layer = pipeline()
    optimizer = optimizer_for(nlp, factory(), 0.01, grad_clip=0.0)
    params = [torch.nn.Parameter(value) for value in weights(layer)]
    theirs = getattr(torchao.optim, factory.__name__)(params, lr=0.01)
    with torch.compiler.set_stance("force_eager"):
        for seed, rate in enumerate(rates):
            rng = numpy.random.default_rng(seed)
            for param in params:
                param.grad = torch.from_numpy(rng.normal(size=tuple(param.shape)).astype("f"))
            theirs.param_groups[0]["lr"].fill_(rate)
            theirs.step()
            optimizer.learn_rate = rate
            step(nlp, layer, optimizer, [seed])
    assert all(map(torch.equal, weights(layer), params))
    [built] = optimizer.torch_optimizers.values()
    assert type(built.param_groups[0]["lr"]) is float
    kinds = {type(built.state[param]["exp_avg"]).__name__ for param in optimizer.params.values()}
    assert len(kinds) == 2 and "Tensor" in kinds


@needs_torchao
@pytest.mark.parametrize("factory", ALL)
def test_resumed_to_the_bit(factory, tmp_path):
    whole, layer = pipeline()
    optimizer = optimizer_for(whole, factory(), 0.01)
    step(whole, layer, optimizer, range(6))
    first, part = pipeline()
    before = optimizer_for(first, factory(), 0.01)
    step(first, part, before, range(3))
    before.to_disk(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    # Far from the 8 bytes a number of Adam in float32, for 64 x 64: 32 KiB. The rest is JSON.
    assert size < 24_000
    after = optimizer_for(first, factory(), 0.01)
    after.from_disk(tmp_path)
    step(first, part, after, range(3, 6))
    assert all(map(torch.equal, weights(layer), weights(part)))


@needs_torchao
def test_rollback_restores_the_state(tmp_path):
    nlp, layer = pipeline()
    optimizer = optimizer_for(nlp, AdamW8bit(), 0.01)
    step(nlp, layer, optimizer, range(2))
    write_folder(tmp_path, optimizer.state_dict())
    saved, values = read_folder(tmp_path), weights(layer)
    found = []
    for _ in range(2):
        step(nlp, layer, optimizer, range(2, 5))
        found.append(weights(layer))
        optimizer.roll_back(saved)
        with torch.no_grad():
            for param, value in zip(layer.shims[0]._model.parameters(), values):
                param.copy_(value)
    assert all(map(torch.equal, *found))


@needs_torchao
@pytest.mark.parametrize("factory", [AdamW8bit, AdamW4bit, AdamWFp8])
def test_state_of_a_grown_param(factory):
    """Old rows keep their state, up to one rounding by the new blocks; new ones get the mean."""
    nlp, layer = pipeline()
    optimizer = optimizer_for(nlp, factory(), 0.01)
    step(nlp, layer, optimizer, range(3))
    [built] = optimizer.torch_optimizers.values()
    shim = layer.shims[0]
    old = built.state[shim._model.weight]["exp_avg"].dequantize()
    larger = torch.nn.Linear(WIDTH, 2 * WIDTH)
    with torch.no_grad():
        larger.weight[:WIDTH] = shim._model.weight
        larger.bias[:WIDTH] = shim._model.bias
    shim._model = larger
    optimizer.initialize(nlp)
    new = built.state[larger.weight]["exp_avg"]
    assert type(new).__name__.startswith("OptimState") and new.shape == (2 * WIDTH, WIDTH)
    # A block of 128 or 256 numbers is two or four rows, so the old rows have the same blocks: a rounding of half a
    # step of the coarsest code, 4 bits.
    assert torch.allclose(new.dequantize()[:WIDTH], old, atol=float(old.abs().max()) / 8)
    step(nlp, layer, optimizer, [3])


@needs_torchao
def test_state_of_other_blocks_is_refused(tmp_path):
    nlp, layer = pipeline()
    optimizer = optimizer_for(nlp, AdamW8bit(block_size=128), 0.01)
    step(nlp, layer, optimizer, range(2))
    optimizer.to_disk(tmp_path)
    other = optimizer_for(nlp, AdamW8bit(), 0.01)
    with pytest.raises(StateError, match="with the current block_size"):
        other.from_disk(tmp_path)


@needs_torchao
@pytest.mark.parametrize("shape", [(64, 64), (64,), (100, 50), (512, 256)])
@pytest.mark.parametrize("factory", [Adam8bit, Adam4bit, AdamFp8])
def test_size_of_the_state(factory, shape):
    algorithm = factory()
    param = torch.nn.Parameter(torch.ones(shape))
    param.grad = torch.ones(shape)
    built = algorithm.build([param], lr=0.01, **algorithm.options)
    built.step()
    parts = [part for value in built.to_plain(built.state[param]).values() for part in _tensors(value)]
    found = sum(part.numel() * part.element_size() for part in parts)
    assert StateSizes().bytes_of(algorithm, {}, shape) == found


def _tensors(value):
    return value.values() if isinstance(value, dict) else [value]


@needs_torchao
def test_options_that_cannot_work():
    with pytest.raises(ConfigError, match=r"weight_decay .* to a schedule: 'torchao.AdamW8bit.v1' is compiled again"):
        AdamW8bit(weight_decay=[0.1, 0.2])
    assert AdamW8bit(block_size=2).options["block_size"] == 2
    for odd in (0, 1, 3):
        with pytest.raises(ConfigError, match="'block_size'"):
            AdamW8bit(block_size=odd)
