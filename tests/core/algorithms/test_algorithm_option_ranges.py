"""Values of schedules that an algorithm does not take. Oracle: what the class says when it is built with the value."""

import itertools
import math
import warnings

import numpy
import pytest
import torch

import thinc_torchopt
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms import algorithm
from thinc_torchopt.core.algorithms.algorithm import OptionRanges
from thinc_torchopt.core.algorithms.torch_classes import SGD, Adafactor, AdamW, Muon, RMSprop, Rprop, create
from thinc_torchopt.core.errors import ConfigError, ScheduleError
from thinc_torchopt.core.schedules.schedules import Schedules

from ...conftest import needs_muon
from ...models import backprop, mixed_model, params_of, ready_pipeline, same


def lion(decay):
    return create("lion", {"weight_decay": decay})


ALGORITHMS = {
    "weight_decay nan": (lambda s: AdamW(weight_decay=s), "algorithm.weight_decay", [0.01, 0.01, math.nan]),
    "weight_decay inf": (lambda s: AdamW(weight_decay=s), "algorithm.weight_decay", [0.01, 0.01, math.inf]),
    "weight_decay negative": (lambda s: AdamW(weight_decay=s), "algorithm.weight_decay", [0.01, 0.01, -1e-9]),
    "beta1": (lambda s: AdamW(betas={"beta1": s, "beta2": 0.9}), "algorithm.betas.0", [0.9, 0.9, 1.5]),
    "beta2": (lambda s: AdamW(betas={"beta1": 0.9, "beta2": s}), "algorithm.betas.1", [0.9, 0.95, 1.0]),
    "eps": (lambda s: AdamW(eps=s), "algorithm.eps", [1e-8, 1e-8, -1e-8]),
    "momentum": (lambda s: SGD(momentum=s), "algorithm.momentum", [0.9, 0.9, -0.9]),
    "alpha": (lambda s: RMSprop(alpha=s), "algorithm.alpha", [0.9, 0.9, math.nan]),
    "a fallback's": (lambda s: Muon(fallback=AdamW(eps=s)), "algorithm.fallback.eps", [1e-8, 1e-8, -1.0]),
    "library": (lambda s: lion(iter(s)), "algorithm.weight_decay", [0.01, 0.01, -0.1]),
    "library nan": (lambda s: lion(iter(s)), "algorithm.weight_decay", [0.01, 0.01, math.nan]),
}
DROP_INS = {
    "beta1": ("Adam", "beta1", [0.9, 0.9, 1.0]),
    "beta2": ("Adam", "beta2", [0.9, 0.9, 1.0]),
    "eps": ("Adam", "eps", [1e-8, 1e-8, math.nan]),
    "L2": ("Adam", "L2", [0.0, 0.1, -0.1]),
    "L2 of SGD": ("SGD", "L2", [0.0, 0.1, math.inf]),
    "L2 of RAdam": ("RAdam", "L2", [0.0, 0.1, math.nan]),
}


def train(optimizer, steps=3):
    """Train until a step is refused. What it says; the params are as they were before it, and no gradient is left."""
    model, rng = mixed_model(), numpy.random.default_rng(0)
    for _ in range(steps - 1):
        backprop(model, rng)
        model.finish_update(optimizer)
        optimizer.step_schedules()
    before = params_of(model)
    for _ in range(2):  # a second try is refused, too
        backprop(model, rng)
        with pytest.raises(ScheduleError) as caught:
            model.finish_update(optimizer)
        assert same(params_of(model), before)
    return str(caught.value)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_muon) if name == "a fallback's" else name for name in ALGORITHMS]
)
@pytest.mark.parametrize("in_a_list", [True, False])
def test_option_ranges_refuse_the_value_of_a_schedule_before_it_is_used(name, in_a_list):
    build, path, values = ALGORITHMS[name]
    said = train(TorchOptimizer(build(values if in_a_list else iter(values)), 0.01))
    assert f"Can't use the schedule of '{path}' at step 2" in said and f"found {values[-1]}" in said


@pytest.mark.parametrize("name", DROP_INS)
def test_option_ranges_of_drop_ins(name):
    drop_in, option, values = DROP_INS[name]
    said = train(getattr(thinc_torchopt, drop_in)(0.01, **{option: iter(values)}))
    assert "at step 2" in said and f"found {values[-1]}" in said


def test_option_ranges_of_a_param_group():
    optimizer = TorchOptimizer(
        AdamW(), 0.01, param_groups={"biases": {"params": ["*/b"], "weight_decay": [0.0, 0.1, -0.1]}}
    )
    nlp, examples = ready_pipeline(["tagger"], sgd=optimizer)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
        optimizer.step_schedules()
    before = {name: param.clone() for name, param in optimizer.params.items()}
    with pytest.raises(ScheduleError, match=r"'param_groups\.biases\.weight_decay' at step 2.*found -0\.1"):
        nlp.update(examples, sgd=optimizer)
    assert same(list(before.values()), list(optimizer.params.values()))


def test_option_ranges_hold_for_the_first_value_too():
    said = train(TorchOptimizer(AdamW(weight_decay=iter([-1.0])), 0.01), steps=1)
    assert "'algorithm.weight_decay' at step 0" in said and "Invalid weight_decay value: -1.0" in said


@pytest.mark.parametrize("build", [AdamW, SGD, RMSprop, Rprop, Adafactor])
def test_option_ranges_are_those_of_the_class(build):
    """Every number of each, over values on both sides of all borders, in any order."""
    fixed = build().options
    values = [-2.0, -1e-9, 0.0, 1e-300, 0.3, 1 - 1e-12, 1.0, 1 + 1e-12, 1.3, 7.0, 1e9]
    for name, default in fixed.items():
        if isinstance(default, bool) or not isinstance(default, float):
            continue
        for order in (values, values[::-1]):
            ranges = OptionRanges(build())
            for value in order:
                schedule = Schedules().track(f"algorithm.{name}", [value])
                try:
                    algorithm.try_out(build().build, "", {**fixed, name: value})
                except ConfigError:
                    with pytest.raises(ScheduleError):
                        ranges.check(name, {**fixed, name: schedule})
                else:
                    ranges.check(name, {**fixed, name: schedule})


def test_option_ranges_are_found_once(monkeypatch):
    falling, rising = (0.1 / (1 + i) for i in itertools.count()), (1.0 - 0.1 / (1 + i) for i in itertools.count())
    optimizer = TorchOptimizer(AdamW(weight_decay=falling, betas=(rising, 0.99)), 0.01)
    model, rng, built = mixed_model(), numpy.random.default_rng(0), []
    init = torch.optim.AdamW.__init__

    def counted(self, *args, **kwargs):
        built.append(kwargs)
        init(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "__init__", counted)
    counts = []
    for _ in range(4):
        backprop(model, rng)
        model.finish_update(optimizer)
        optimizer.step_schedules()
        counts.append(len(built))
    assert counts[0] < 40 and counts[1:] == counts[:1] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "build",
    [
        lambda bad: AdamW(weight_decay=bad),
        lambda bad: AdamW(eps=bad),
        lion,
        lambda bad: AdamW(betas=(0.9, bad)),
        lambda bad: TorchOptimizer(AdamW(), param_groups={"a": {"params": ["*"], "eps": bad}}),
    ],
)
def test_option_ranges_numbers_are_finite(build, bad):
    with pytest.raises(ConfigError, match=f"expected a finite number, found {bad}"):
        build(bad)


def test_option_ranges_infinite_defaults_are_what_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert create("prodigy").options["growth_rate"] == math.inf
