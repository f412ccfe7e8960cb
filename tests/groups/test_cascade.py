"""Blocks of [training.optimizer.param_groups] with an algorithm of their own: against plain torch optimizers, each of
its own params.
"""

import copy
import json

import numpy
import pytest
import torch
from confection import Config
from thinc.api import PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.algorithms.algorithm import Algorithm
from thinc_torchopt.algorithms.torch_classes import SGD, AdamW, Muon, NAdam
from thinc_torchopt.compat import has_pytorch_optimizer
from thinc_torchopt.errors import ConfigError, GrowthWarning, StateError
from thinc_torchopt.modular import modules
from thinc_torchopt.registry import registry

from ..conftest import CONFIGS, HAS_MUON, needs_muon
from ..models import backprop, params_of, pipeline_params, same, slots, toy_examples, toy_pipeline
from ..peek import params_in

MATRICES = "torch.Muon.v1" if HAS_MUON else "torch.RMSprop.v1"
CONFIG = """
[optimizer]
@optimizers = "thinc-torchopt.TorchOptimizer.v1"
learn_rate = 0.01
grad_clip = 0.0
new_params_warmup = 0
on_growth = "zero"

[optimizer.algorithm]
@torch_optimizers = "torch.SGD.v1"
momentum = 0.9

[optimizer.param_groups]

[optimizer.param_groups.all_of_ner]
params = ["ner/*"]

[optimizer.param_groups.all_of_ner.algorithm]
@torch_optimizers = "torch.Muon.v1"
weight_decay = 0.01

[optimizer.param_groups.all_of_ner.algorithm.fallback]
@torch_optimizers = "torch.RMSprop.v1"

[optimizer.param_groups.embeddings_and_heads]
params = ["*/E", "*/output_layer/*"]
learn_rate = 0.001
weight_decay = 0.05

[optimizer.param_groups.embeddings_and_heads.algorithm]
@torch_optimizers = "torch.AdamW.v1"
weight_decay = 0.0

[optimizer.param_groups.heads]
params = ["*/output_layer/*"]

[optimizer.param_groups.heads.weight_decay]
@schedules = "decaying.v1"
base_rate = 0.1
decay = 1.0
"""


def resolved(text=CONFIG):
    return registry.resolve(Config().from_str(text))["optimizer"]


class Twin:
    """The same params in plain torch optimizers, which get the same gradients."""

    def __init__(self, nlp, optimizer):
        self.nlp = nlp
        self.params = {name: torch.nn.Parameter(value.clone()) for name, value in optimizer.params.items()}
        found = {"muon": [], "rmsprop": [], "embeddings": [], "heads": [], "sgd": []}
        for name, param in self.params.items():
            if "output_layer" in name:
                found["heads"].append(param)
            elif name.endswith("/E"):
                found["embeddings"].append(param)
            elif name.startswith("ner"):
                found["muon" if param.ndim == 2 and not name.endswith("/b") else "rmsprop"].append(param)
            else:
                found["sgd"].append(param)
        assert all(found.values())
        self.adamw = torch.optim.AdamW(
            [
                {"params": found["embeddings"], "weight_decay": 0.05},
                {"params": found["heads"], "weight_decay": 0.1},
            ],
            lr=0.001,
            fused=True,
        )
        self.optimizers = [
            torch.optim.Muon(found["muon"], lr=0.01, weight_decay=0.01),
            torch.optim.RMSprop(found["rmsprop"], lr=0.01),
            self.adamw,
            torch.optim.SGD(found["sgd"], lr=0.01, momentum=0.9, fused=True),
        ]

    def grads(self, component):
        """Its gradients by name, in the order of its params."""
        values = slots(self.nlp.get_pipe(component).model)
        names = [name for name in self.params if name.startswith(f"{component}/")]
        return dict(zip(names, (torch.from_numpy(grad.copy()) for _, grad in values), strict=True))

    def step(self, step, components):
        for param in self.params.values():
            param.grad = None
        for component in components:
            for name, grad in self.grads(component).items():
                self.params[name].grad = grad
        self.adamw.param_groups[1]["weight_decay"] = 0.1 / (1 + step)
        for optimizer in self.optimizers:
            optimizer.step()

    def forget(self, component):
        for name, param in self.params.items():
            for optimizer in self.optimizers if name.startswith(f"{component}/") else ():
                optimizer.state.pop(param, None)

    def grow(self, new):
        """Params with other rows: the state of the new ones is 0."""
        for name, value in new.items():
            old = self.params[name]
            if old.shape == value.shape:
                continue
            self.params[name] = param = torch.nn.Parameter(value.clone())
            group = self.adamw.param_groups[1]
            group["params"] = [param if found is old else found for found in group["params"]]
            state = self.adamw.state.pop(old)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.cat([state[key], torch.zeros(len(value) - len(old), *value.shape[1:])])
            self.adamw.state[param] = state


def train(nlp, examples, optimizer, twin, steps, components=("tagger", "ner")):
    for step in steps:
        nlp.update(examples, sgd=False)
        twin.step(step, components)
        with optimizer.joint_step():
            for component in components:
                nlp.get_pipe(component).finish_update(optimizer)
        optimizer.step_schedules()
    ours = optimizer.params
    assert all(torch.equal(value, twin.params[name]) for name, value in ours.items())
    assert set(ours) == {name for name in twin.params if name.split("/")[0] in components} or len(components) < 2


@needs_muon
def test_cascade_algorithms_of_blocks_are_plain_torch_optimizers(tmp_path):
    """To the last bit: also where only some params are updated, after loading, after thawing, and with a new label."""
    nlp = toy_pipeline(["tagger", "ner"], shared=False)
    examples = toy_examples(nlp)
    optimizer = resolved()
    nlp.initialize(lambda: examples, sgd=optimizer)
    optimizer.initialize(nlp)
    assert set(optimizer.torch_optimizers) == {
        "algorithm",
        "param_groups.all_of_ner.algorithm",
        "param_groups.all_of_ner.algorithm.fallback",
        "param_groups.embeddings_and_heads.algorithm",
    }
    assert set(optimizer.schedules) == {"param_groups.heads.weight_decay"}
    twin = Twin(nlp, optimizer)
    train(nlp, examples, optimizer, twin, range(4))
    train(nlp, examples, optimizer, twin, range(4, 6), ["tagger"])  # the gradients of ner add up
    optimizer.to_disk(tmp_path / "state")
    optimizer = resolved()
    optimizer.initialize(nlp)
    optimizer.from_disk(tmp_path / "state")
    train(nlp, examples, optimizer, twin, range(6, 9))
    optimizer.freeze(["ner/*"])
    for step in (9, 10):
        nlp.update(examples, sgd=False)
        twin.step(step, ["tagger"])
        with optimizer.joint_step():
            for component in ("tagger", "ner"):
                nlp.get_pipe(component).finish_update(optimizer)
        optimizer.step_schedules()
    optimizer.unfreeze(["ner/*"])
    twin.forget("ner")
    train(nlp, examples, optimizer, twin, range(11, 13))
    before = optimizer.torch_optimizers["param_groups.embeddings_and_heads.algorithm"]
    nlp.get_pipe("tagger").add_label("NEW")
    nlp.update(examples, sgd=False)
    optimizer.initialize(nlp)  # meets the param that has grown
    twin.grow(optimizer.params)
    train(nlp, examples, optimizer, twin, range(13, 16))
    assert optimizer.torch_optimizers["param_groups.embeddings_and_heads.algorithm"] is before
    labels = {info.name: info.algorithm for info in optimizer.describe()}
    assert labels["tagger/output_layer/W"] == labels["ner/tok2vec/embed/2/0/hashembed/E"] == "torch.AdamW.v1"
