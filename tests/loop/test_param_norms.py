"""Norms of params, gradients and updates for rules. Oracle: NumPy, on copies of the model's own arrays in the same
training.
"""

import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy
import pytest
import torch
from spacy.util import registry

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.controller import trainer_controller
from thinc_torchopt.addons.controller.run_rules import Rules
from thinc_torchopt.core import kernels
from thinc_torchopt.loop import param_norms

from ..models import ready_pipeline
from ..runs import loop_over

GROUPS = {"biases": {"params": ["*/b"], "learn_rate": 0.1}}
METRICS = [
    {"name": "norms", "class": "GradNorm", "arguments": {"groups": True}},
    {"name": "params", "class": "ParamNorm"},
    {"name": "updates", "class": "UpdateRatio"},
]
RULE = {"name": "r", "triggers": ["on_step_end"], "operations": ["control.should_log"]}
TEXT = "updates['groups']['biases'] >= 0 and norms['groups']['default'] >= 0 and params['components']['tagger'] > 0"


def by_component_and_group(arrays):
    """The norms by NumPy. arrays (dict): By name."""
    found = {"total": [], "components": {}, "groups": {}}
    for name, array in arrays.items():
        square = float((array.astype("float64") ** 2).sum())
        group = "biases" if name.endswith("/b") else "default"
        found["total"].append(square)
        found["components"].setdefault(name.partition("/")[0], []).append(square)
        found["groups"].setdefault(group, []).append(square)
    return {
        "total": math.sqrt(sum(found["total"])),
        **{key: {name: math.sqrt(sum(part)) for name, part in found[key].items()} for key in ("components", "groups")},
    }


def train(rule, metrics, listener, steps=4, *, algorithm="torch.AdamW.v1", at=None, **settings):
    nlp, examples = ready_pipeline(("tagger", "morphologizer"), shared=False)
    rules = None
    if rule is not None:
        rules = trainer_controller({"controller_metrics": metrics, "controllers": [{**RULE, "rule": rule}]})
    optimizer = TorchOptimizer(
        registry.resolve({"a": {"@torch_optimizers": algorithm}})["a"],
        0.01,
        controller=rules,
        param_groups=GROUPS,
        **settings,
    )
    for _ in loop_over(nlp, optimizer, [examples[:8]] * steps, listeners=[listener]):
        pass
    return nlp, optimizer


class Watch:
    """Copies of params and gradients, and the values of the metrics after each step."""

    name = "watch"

    def __init__(self):
        self.found = []
        self.controller = None

    def on_train_begin(self, event, control):
        [rules] = [one for one in event.run._listeners._all if isinstance(one, Rules)]
        self.controller = rules._controller

    def _arrays(self, event):
        return {name: tensor.detach().numpy().copy() for name, tensor in event.run.optimizer.params.items()}

    def on_pre_optimizer_step(self, event, control):
        self.before = self._arrays(event)
        self.grads = {
            param.name: param.grad.detach().numpy().copy() for param in event.run.optimizer._noted.params.values()
        }

    def on_log(self, event, control):
        self.found.append((dict(self.controller.values), self.before, self.grads, self._arrays(event)))


def close(found, expected):
    for key in ("total", "components", "groups"):
        # float32, in another order.
        assert found[key] == pytest.approx(expected[key], rel=2e-5), key


@pytest.mark.parametrize("settings", [{}, {"grad_clip": 0.001, "use_averages": True}])
def test_param_norms_are_numpys(settings):
    watch = Watch()
    train(TEXT, METRICS, watch, **settings)
    assert len(watch.found) == 4
    for values, before, grads, after in watch.found:
        weights = by_component_and_group(after)
        close(values["params"], weights)
        moved = by_component_and_group({name: after[name] - before[name] for name in after})
        expected = {"total": moved["total"] / weights["total"]}
        for key in ("components", "groups"):
            expected[key] = {name: moved[key][name] / norm for name, norm in weights[key].items()}
        close(values["updates"], expected)
        gradients = by_component_and_group(grads)
        assert values["norms"]["groups"] == pytest.approx(gradients["groups"], rel=2e-5)
        assert values["norms"]["components"] == pytest.approx(gradients["components"], rel=2e-5)


def test_param_norms_of_frozen_params_are_none():
    """They are neither trained nor updated; groups keep the names of learning rates."""
    watch = Watch()
    frozen = {"off": {"params": ["morphologizer/*"], "freeze": True}}
    watch.on_train_begin = lambda event, control: (
        Watch.on_train_begin(watch, event, control),
        event.run.optimizer.freeze(list(frozen["off"]["params"])),
    )
    train("params['total'] > 0 and updates['total'] >= 0", METRICS, watch)
    values, *_ = watch.found[-1]
    assert set(values["params"]["components"]) == set(values["updates"]["components"]) == {"tagger"}


def test_param_norms_cost_nothing_unless_asked_for(monkeypatch):
    """No copy of a param, and no norm of one. Those of gradients are what GradNorm asks for."""

    for name in ("of_params", "keep", "of_update"):
        monkeypatch.setattr(param_norms.ParamNorms, name, Mock(side_effect=AssertionError("nobody asked")))
    watch = Watch()
    metrics = [{"name": "norms", "class": "GradNorm"}, {"name": "state", "class": "TrainingState"}]
    train("norms['total'] > 0 and state['step'] >= 0", metrics, watch)
    assert len(watch.found) == 4


@pytest.mark.parametrize("count", [3, 30])
def test_param_norms_take_as_many_ops_for_many_params(count, monkeypatch):
    """By foreach: one difference, one copy."""
    calls = []
    for name in ("differences", "copy_"):
        real = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *args, name=name, real=real: (calls.append(name), real(*args))[1])
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(count)]

    class Row:
        component = "c"

        class settings:
            label = "default"

        def __init__(self, tensor):
            self.tensor = tensor

    rows = list(map(Row, params))
    norms = param_norms.ParamNorms(SimpleNamespace(trained_params=rows, params_to_update=rows))
    norms.keep()
    with torch.no_grad():
        for param in params:
            param += 1.0
    assert norms.of_update()["total"] == pytest.approx(numpy.sqrt(3 * count))
    assert calls == ["copy_", "differences"]


def test_param_norms_keys_are_checked_before_the_training():
    with pytest.raises(ValueError, match=r"a key of updates\['groups'\], found 'bias'"):
        train("updates['groups']['bias'] > 0", METRICS, Watch())
    with pytest.raises(ValueError, match=r"a key of norms, found 'groups'"):
        train("norms['groups']['biases'] > 0", [{"name": "norms", "class": "GradNorm"}], Watch())
