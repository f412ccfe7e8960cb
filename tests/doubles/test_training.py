"""Trainings on a GPU, or its double: they have the losses of the CPU, and the host waits as rarely as can be.

Two things make the parser's losses others on a GPU, from the second step on, and both are spaCy's. Its
`precomputable_affine` is initialized by random numbers of the device: so models are initialized on the CPU here, for
both. And it has a dropout of 0.1 whatever `drop` is, by NumPy's numbers on either: so both begin with the same seed.
"""

import numpy
import pytest
import spacy
import torch
import torch.distributed as dist
from spacy.ml import tb_framework
from spacy.training import Example
from thinc.api import fix_random_seed, require_cpu, require_gpu

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.distributed.group import RankGroup
from thinc_torchopt.addons.distributed.reduce import FlatReduce, checksums
from thinc_torchopt.addons.distributed.settings import Distributed
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.host import forward_of
from thinc_torchopt.core.params.pipeline import walk_pipeline
from thinc_torchopt.core.state.by_name import collect_grads
from thinc_torchopt.loop.faster import SWITCH, Faster

from ..models import backprop, finish_step, mixed_model, ready_pipeline, toy_examples
from .waits import operations, waits

pytestmark = pytest.mark.device


@pytest.fixture(autouse=True)
def device(request):
    """Where the tests run: "double" or "cuda"."""
    found = request.config.getoption("--device", "cpu")
    if found == "cpu":
        pytest.skip("runs with --device")
    return found


@pytest.fixture
def double(device):
    if device != "double":
        pytest.skip("the double counts waits")


def pipelines(*components):
    """The same pipeline with the same weights, on the CPU and on the GPU."""
    require_cpu()
    on_cpu, _ = ready_pipeline(components, shared=False)
    saved = on_cpu.to_bytes()
    yield on_cpu
    require_gpu()
    on_gpu, _ = ready_pipeline(components, shared=False)
    yield on_gpu.from_bytes(saved)


def waits_of_steps(nlp, optimizer, n):
    """What the host waits for in each of n steps."""
    for _ in range(n):
        nlp.update(toy_examples(nlp), drop=0.0, sgd=False)
        with waits() as found:
            finish_step(nlp, optimizer)
        yield found


@pytest.mark.parametrize("component", ["tagger", "parser", "ner", "textcat", "spancat"])
def test_losses_are_those_of_the_cpu(component):
    found = []
    for nlp in pipelines(component):
        fix_random_seed(0)
        optimizer = TorchOptimizer(SGD(momentum=0.9), 0.01, grad_clip=1.0)
        found.append([])
        for _ in range(6):
            losses = {}
            nlp.update(toy_examples(nlp), drop=0.0, sgd=optimizer, losses=losses)
            found[-1].append(float(losses[component]))
    on_cpu, on_gpu = found
    assert len(set(on_cpu)) > 3
    # Matrices are multiplied by another library, which sums in another order: the last digits of float32.
    assert on_gpu == pytest.approx(on_cpu, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "at_most"),
    [
        ({"grad_clip": 0.0, "max_nonfinite": 0}, 0),
        ({}, 1),
        ({"clip_by": "component"}, 1),
        ({"clip_by": "param"}, 1),
        ({"clip_by": "value", "max_nonfinite": 0}, 0),
        ({"clip_by": "adaptive"}, 1),
        ({"spike_factor": 2.0, "on_spike": "clip"}, 1),
        ({"averages": EMA()}, 1),
        ({"param_groups": {"b": {"params": ["*/b"], "lr_scale": 0.5}, "E": {"params": ["*/E"], "freeze": True}}}, 1),
    ],
)
def test_a_step_waits_once(device, settings, at_most):
    _, nlp = pipelines("tagger")
    optimizer = TorchOptimizer(AdamW(), 0.01, **{"grad_clip": 0.1} | settings)
    optimizer.initialize(nlp)
    _, *found = waits_of_steps(nlp, optimizer, 5)  # at first, values are looked at that can't change
    assert max(sum(of_step.values()) for of_step in found) <= at_most, found


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "Rprop"])
def test_algorithms_do_not_wait(double, name):
    """The one wait is for the norms. (torch's own Adafactor and ASGD wait for each param.)"""
    model, rng = mixed_model(), numpy.random.default_rng(0)
    block = {"@torch_optimizers": f"torch.{name}.v1"}
    optimizer = TorchOptimizer(spacy.registry.resolve({"algorithm": block})["algorithm"], 0.01, averages=EMA())
    for _ in range(3):
        backprop(model, rng)
        with waits() as found:
            model.finish_update(optimizer)
        assert found == {"tolist": 1}


def test_a_parser_waits_once_though_a_layer_is_on_the_cpu(double):
    """AdamW's kernel takes a factor for the gradients: torch would bring it to the other place without waiting."""
    _, nlp = pipelines("parser")
    optimizer = TorchOptimizer(AdamW(), 0.01, grad_clip=0.1)
    optimizer.initialize(nlp)
    assert [*waits_of_steps(nlp, optimizer, 3)] == [{"tolist": 1}] * 3
    assert {param.device.type for param in optimizer.params.values()} == {"cpu", "cuda"}


@pytest.mark.parametrize("component", ["parser", "ner"])
def test_a_parsers_operations_do_not_grow_with_its_steps(double, component, monkeypatch):
    """With spaCy's backward pass, each step of a text brings some. It is put back."""
    _, nlp = pipelines(component)
    counts = []
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        faster = Faster(nlp, keeps=False)
        faster.before_run()
        for words in (10, 20):
            text = {"words": ["a"] * words, "entities": [(0, words, "A")], "heads": [0] * words, "deps": ["x"] * words}
            with operations() as ops, waits() as waited:
                nlp.update([Example.from_dict(nlp.make_doc("a " * words), text)], sgd=False)
            counts.append((sum(ops.values()), sum(waited.values())))
        faster.close()
    assert counts[0] < counts[1] and counts[2] == counts[3], counts
    assert forward_of(nlp.get_pipe(component).model) is tb_framework.forward


def test_a_step_of_several_processes_waits_twice(double, tmp_path):
    """Once for what ranks tell each other, and once for the norms. With a process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    group = RankGroup.open(Distributed(), on_gpu=True)
    try:
        _, nlp = pipelines("tagger")
        optimizer = TorchOptimizer(AdamW(), 0.01, grad_clip=0.1)
        optimizer.initialize(nlp)
        reduce = FlatReduce(group)
        reduce.follow((), ["tagger"])
        optimizer.reduce_by(reduce)
        _, *found = waits_of_steps(nlp, optimizer, 4)
        assert found == [{"tolist": 2}] * 3
    finally:
        group.close()
        dist.destroy_process_group()


def test_checksums_are_one_copy(double):
    tensors = [torch.rand(3, device=place) for place in ("cuda", "cpu", "cuda", "cuda")]
    with waits() as found:
        sums = checksums(tensors)
    assert found == {"to the host": 1}
    expected = [tensor.cpu().view(torch.int32).sum(dtype=torch.int64) for tensor in tensors]
    assert torch.equal(sums, torch.stack(expected))


def test_gradients_are_collected_with_one_wait(double):
    """For all of thinc's together, as those of zeros are not saved."""
    _, nlp = pipelines("tagger")
    nlp.update(toy_examples(nlp), drop=0.0, sgd=False)
    with waits() as found:
        grads = collect_grads(walk_pipeline(nlp))
    assert found == {"tolist": 1}
    assert all(grad is None or (grad.is_cuda and grad.any()) for grad in grads.values())
    assert grads["tagger/tok2vec/embed/2/0/hashembed/E"] is None is not grads["tagger/output_layer/W"]
