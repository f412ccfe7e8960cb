"""Trainings on a GPU: scores, mixed precision, checkpoints, and memory."""

import copy
import gc
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from thinc.api import PyTorchGradScaler, PyTorchWrapper, PyTorchWrapper_v2, require_cpu, require_gpu

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW

from ..conftest import CONFIGS, ROOT
from ..models import params_of
from ..runs import EXACT_ON_GPU, config_for, digests
from ..spacy_cli import flags_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture
def device(request):
    """Where trainings run: "cuda" or "cpu"."""
    found = request.config.getoption("--device", "cpu")
    if found == "cuda":
        require_gpu()
    yield found
    require_cpu()


def train(config, output, device, *, code=None, expected=0, **settings):
    """`spacy train`, in a process of its own."""
    command = [sys.executable, "-m", "spacy", "train", config, "--output", output]
    command += ["--gpu-id", 0 if device == "cuda" else -1, *(["--code", code] if code else []), *flags_of(settings)]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env, cwd=ROOT)
    assert run.returncode == expected, run.stdout + run.stderr
    return run


def performance(output):
    return json.loads((output / "model-last" / "meta.json").read_text())["performance"]


def settings_for(corpus, steps):
    """Of the training of a config on the small corpus."""
    return {
        "paths.train": corpus["train"],
        "paths.dev": corpus["dev"],
        "training.max_steps": steps,
        "training.eval_frequency": steps,
        "training.batcher.size": 100,
        "training.optimizer.learn_rate.warmup_steps": 5,
        "training.optimizer.learn_rate.total_steps": 2 * steps,
    }


@pytest.mark.parametrize("allocator", [None, "pytorch"])
def test_spacy_train_of_a_cnn_scores_as_on_the_cpu(device, allocator, corpus, tmp_path):
    found = {}
    for place in dict.fromkeys(["cpu", device]):
        settings = settings_for(corpus, 40) | {"training.optimizer.use_averages": False}
        settings |= {"system.gpu_allocator": allocator} if place == "cuda" else {}
        train(CONFIGS / "cnn.cfg", tmp_path / place, place, **settings)
        found[place] = performance(tmp_path / place)
    # Dropout and some weights are random numbers of the device. The corpus is so simple that all learn it.
    for score in ("tag_acc", "dep_uas"):
        assert found["cpu"][score] >= 0.9 and found[device][score] >= 0.9, found


@pytest.fixture
def transformer(tmp_path):
    """A folder with a small BERT: random weights, and words of letters."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
    folder = tmp_path / "bert"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "anna", "likes", "red", "blue", "london", "."]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=160,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_spacy_train_of_a_transformer_scores_as_on_the_cpu(device, transformer, corpus, tmp_path):
    found = {}
    for place in dict.fromkeys(["cpu", device]):
        settings = settings_for(corpus, 60) | {"paths.transformer": transformer}
        settings |= {"training.optimizer.learn_rate.initial_rate": 0.005, "training.batcher.size": 200}
        settings |= {"system.gpu_allocator": "pytorch" if place == "cuda" else None}
        train(CONFIGS / "transformer.cfg", tmp_path / place, place, **settings)
        found[place] = performance(tmp_path / place)["ents_f"]
    assert min(found.values()) >= 0.9, found


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_mixed_precision_with_sub_batches(device, parts):
    """Against a plain loop in float32 on the CPU."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    plain, X, target = copy.deepcopy(module), torch.randn(16, 16), torch.randn(16, 4)
    start = [param.detach().clone() for param in plain.parameters()]
    sgd = torch.optim.SGD(plain.parameters(), 0.05)
    for _ in range(5):
        ((plain(X) - target) ** 2 / 32).sum().backward()
        sgd.step()
        sgd.zero_grad()
    scaler = PyTorchGradScaler(device == "cuda", init_scale=2.0**10)
    model = PyTorchWrapper_v2(module.to(device), mixed_precision=device == "cuda", grad_scaler=scaler)
    optimizer, rows = TorchOptimizer(SGD(), 0.05, grad_clip=0.0), 16 // parts
    for _ in range(5):
        with optimizer.training():  # as in spaCy's loop
            for at in range(0, 16, rows):
                Y, back = model.begin_update(model.ops.asarray(X[at : at + rows].numpy()))
                back((Y - model.ops.asarray(target[at : at + rows].numpy())) / 16)
        model.finish_update(optimizer)
    # Products are in float16 on a GPU, with 11 bits; the changes are sums of 16 of them in five steps.
    bound = 0.02 if device == "cuda" else 1e-5
    for one, other, first in zip(params_of(model), plain.parameters(), start):
        assert (one - other.detach()).norm() <= bound * (other.detach() - first).norm()


KILL = """
import os, signal
from spacy.util import registry

@registry.callbacks("test-gpu.Kill.v1")
def kill():
    def before_update(nlp, args):
        if args["step"] == int(os.environ.get("TEST_GPU_KILL_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
    return before_update
"""


def test_a_training_that_is_killed_goes_on_to_the_bit(device, corpus, tmp_path, monkeypatch):
    (tmp_path / "kill.py").write_text(KILL)
    found = {}
    for name, kills in (("whole", []), ("killed", [8])):
        changes = EXACT_ON_GPU | {"training__before_update": {"@callbacks": "test-gpu.Kill.v1"}}
        config = config_for(tmp_path / name, corpus, steps=12, **changes)
        config.to_disk(tmp_path / f"{name}.cfg")
        for step in kills:
            monkeypatch.setenv("TEST_GPU_KILL_AT", str(step))
            train(
                tmp_path / f"{name}.cfg", tmp_path / name, device, code=tmp_path / "kill.py", expected=-signal.SIGKILL
            )
        monkeypatch.delenv("TEST_GPU_KILL_AT", raising=False)
        run = train(tmp_path / f"{name}.cfg", tmp_path / name, device, code=tmp_path / "kill.py")
        found[name] = digests(tmp_path / name)
    assert "Resum" in run.stdout + run.stderr
    assert found["killed"] == found["whole"]


def test_a_step_keeps_no_memory(device):
    module = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).to(device)
    model, held = PyTorchWrapper(module), []
    size = sum(4 * param.numel() for param in module.parameters())
    optimizer = TorchOptimizer(AdamW(), 0.001)
    gc.collect()  # tests before may have left tensors
    for _ in range(6):
        for param in module.parameters():
            param.grad = torch.ones_like(param)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        model.finish_update(optimizer)
        if device == "cuda":
            held.append((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
    if device == "cuda":
        after, peaks = zip(*held[1:])
        assert len(set(after)) == 1
        # Params, two moments, and gradients, which are gone afterwards; norms take less than a tenth of a copy.
        assert max(peaks) - after[0] <= 1.1 * size
