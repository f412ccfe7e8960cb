"""Every argument from Python, checked as confection checks it in a config: what can't be is refused, by its config
path.
"""

import inspect
import math
from pathlib import Path

import numpy
import pytest
import torch

from thinc_torchopt import SGD, Adam, RAdam, TorchOptimizer
from thinc_torchopt.addons.budget import Budget
from thinc_torchopt.addons.distributed.settings import Distributed
from thinc_torchopt.core.algorithms.torch_classes import SGD as TorchSGD
from thinc_torchopt.core.algorithms.torch_classes import AdamW, Muon
from thinc_torchopt.core.averages.settings import EMA, SWA
from thinc_torchopt.core.checks import Section
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.loop.checkpoint_settings import Checkpoint

from ..conftest import needs_muon

NUMBER = ["fast", None, True, -1, math.nan, math.inf, {}, torch.nn.Linear]
WHOLE = [2.5, 5.0, "many", None, True, -1, [3]]
FLAG = ["no", 1, 0.0, None, []]
CHOICE = ["wrong", 1, True, ["x"], {}]
SECTION = [3, "encoder", ["ner/*"], {3: {"params": ["*"]}}]
OTHER = [3, "state", {}, [], object()]

OF_OPTIMIZER = {
    "algorithm": [None, "torch.AdamW.v1", torch.optim.AdamW, {}],
    "learn_rate": NUMBER,
    "grad_clip": NUMBER,
    "precision": [*CHOICE, None],
    "allow_untrainable": FLAG,
    "ops": [*CHOICE, None],
    "ops_threads": [*WHOLE, 0, 2, "auto", "2", None],
    "master_weights": FLAG,
    "clip_by": [*CHOICE, None],
    "use_averages": FLAG,
    "averages": OTHER,
    "max_nonfinite": WHOLE,
    "spike_factor": [*NUMBER, 0.5, 1],
    "on_spike": [*CHOICE, None],
    "rollback_after": WHOLE,
    "rollback_factor": [*NUMBER, 0.0, 1.5],
    "max_rollbacks": WHOLE,
    "param_groups": SECTION,
    "per_param_lr": [*SECTION[:3], {3: 0.1}],
    "layer_decay": [*SECTION[:3], {3: 0.1}],
    "skip_decay": CHOICE,
    "on_outside_write": [*CHOICE, None],
    "on_growth": [*CHOICE, None],
    "new_params_warmup": WHOLE,
    "enable_runtime_guards": FLAG,
    "attachments": [3, "x", ["x"]],
    "checkpoint": OTHER,
    "budget": OTHER,
    "controller": OTHER,
    "distributed": OTHER,
    "privacy": OTHER,
    "fine_tuning": OTHER,
}
DROP_IN = {
    "learn_rate": NUMBER,
    "L2": NUMBER,
    "grad_clip": NUMBER,
    "L2_is_weight_decay": FLAG,
    "use_averages": FLAG,
    "ops": [*CHOICE, None],
}
WITH_BETAS = {**DROP_IN, "beta1": [*NUMBER, 1.0], "beta2": [*NUMBER, 1.0], "eps": NUMBER}
AVERAGES = {
    "start_step": WHOLE,
    "every": [*WHOLE, 0],
    "device": [3.5, "nowhere", []],
    "dtype": CHOICE,
    "buffers": [*CHOICE, None],
}
FUNCTIONS = {
    TorchOptimizer: ("[training.optimizer]", OF_OPTIMIZER, {"algorithm": AdamW()}),
    Adam: ("[training.optimizer]", WITH_BETAS, {}),
    RAdam: ("[training.optimizer]", WITH_BETAS, {}),
    SGD: ("[training.optimizer]", DROP_IN, {"learn_rate": 0.1}),
    EMA: ("[training.optimizer.averages]", {**AVERAGES, "decay": [*NUMBER, 1.5], "warmup": [*CHOICE, None]}, {}),
    SWA: ("[training.optimizer.averages]", AVERAGES, {"start_step": 3}),
    Checkpoint: (
        "[training.optimizer.checkpoint]",
        {
            "path": [3, "", None, Path(__file__), []],
            "every": WHOLE,
            "keep": [*WHOLE, 0],
            "resume": [*CHOICE, None],
            "on_config_change": [*CHOICE, None],
            "in_background": FLAG,
            "progress_bar": FLAG,
        },
        {"path": "state"},
    ),
    Budget: (
        "[training.optimizer.budget]",
        {
            "limit": [3, "", None, "20 minutes", []],
            "decay_ratio": [*NUMBER, 0.0, 1.5],
        },
        {"limit": "20m"},
    ),
    Distributed: (
        "[training.optimizer.distributed]",
        {
            "reduce": [*CHOICE, None],
            "backend": CHOICE,
            "timeout_seconds": [*NUMBER, 0.5],
            "check_every": WHOLE,
            "share_evaluation": FLAG,
            "shard_state": FLAG,
            "scale_learn_rate": [*CHOICE, None],
        },
        {},
    ),
}
BAD = [
    (function, name, value)
    for function, (_, bad, _) in FUNCTIONS.items()
    for name, values in bad.items()
    for value in values
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_checks_know_every_argument(function):
    assert set(FUNCTIONS[function][1]) == set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("function", "name", "value"), BAD, ids=[f"{f.__name__}-{name}-{i}" for i, (f, name, _) in enumerate(BAD)]
)
def test_checks_refuse_what_a_config_may_not_say(function, name, value):
    path, _, given = FUNCTIONS[function]
    with pytest.raises(ConfigError) as caught:
        function(**{**given, name: value})
    text = str(caught.value)
    assert f"'{name}' in {path}" in text and "expected" in text and (repr(value) in text or str(value) in text), text


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ({"params": ["*"], "learn_rate": "fast"}, "param_groups.x.learn_rate"),
        ({"params": ["*"], "lr_scale": True}, "param_groups.x.lr_scale"),
        ({"params": ["*"], "freeze": 1}, "freeze"),
        ({"params": ["*"], "unfreeze_at": 2.5}, "unfreeze_at"),
        ({"params": "*"}, "params"),
        ({"params": ["*"], "weight_decay": "much"}, "weight_decay"),
        ({"params": ["*"], "amsgrad": 1}, "amsgrad"),
        ("x", "expected a section"),
    ],
)
def test_checks_of_blocks(block, name):
    with pytest.raises(ConfigError, match=name):
        TorchOptimizer(AdamW(), param_groups={"x": block})


@pytest.mark.parametrize("make", [lambda x: {"per_param_lr": {"*": x}}, lambda x: {"layer_decay": {"*": x}}])
@pytest.mark.parametrize("value", ["fast", None, True, -1.0, math.nan])
def test_checks_of_patterns_values(make, value):
    if value is None and "per_param_lr" in make(value):
        return  # as if it were not there
    with pytest.raises(ConfigError, match=r"per_param_lr|layer_decay"):
        TorchOptimizer(AdamW(), **make(value))


@pytest.mark.parametrize(
    "build",
    [
        lambda: AdamW(amsgrad="no"),
        lambda: AdamW(fused="yes"),
        lambda: TorchSGD(nesterov=1, momentum=0.9),
        lambda: TorchSGD(momentum=True),
        lambda: AdamW(betas=0.9),
        pytest.param(lambda: Muon(fallback=3), marks=needs_muon),
    ],
)
def test_checks_of_algorithms(build):
    with pytest.raises(ConfigError, match=r"in \[training\.optimizer\.algorithm\]: expected"):
        build()


NUMPY = {
    "learn_rate": numpy.float32(0.5),
    "grad_clip": numpy.float64(2.0),
    "max_nonfinite": numpy.int64(3),
    "spike_factor": numpy.float32(4.0),
    "use_averages": numpy.bool_(True),
    "layer_decay": {"*": numpy.float32(0.5)},
    "per_param_lr": {"*": numpy.float64(0.25)},
    "param_groups": {
        "x": {
            "params": ["*"],
            "weight_decay": numpy.float32(0.5),
            "unfreeze_at": numpy.int32(3),
            "lr_scale": numpy.float16(2),
        }
    },
    "new_params_warmup": numpy.int32(7),
}


def test_checks_take_numpy_numbers_for_numbers():
    optimizer = TorchOptimizer(
        AdamW(weight_decay=numpy.float32(0.5), betas=[numpy.float32(0.5), numpy.float64(0.75)]), **NUMPY
    )
    assert (
        type(optimizer.learn_rate) is float
        and optimizer.learn_rate == 0.5
        and optimizer.b2 == 0.75
        and optimizer.L2 == 0.5
    )
    weights = numpy.ones(2, dtype="f")
    for function in (Adam, RAdam, SGD):
        optimizer = function(numpy.float32(0.5), L2=numpy.float32(0.0), grad_clip=numpy.int64(0), use_averages=False)
        optimizer((0, "W"), weights, numpy.ones(2, dtype="f"))
    assert EMA(numpy.float32(0.5), start_step=numpy.int64(2)).as_saved()["decay"] == 0.5
    assert Checkpoint(Path("state"), every=numpy.int64(3)).every == 3 and Checkpoint(Path("state")).path == "state"


def test_checks_take_numbers_in_quotes_as_confection_does():
    assert TorchOptimizer(AdamW(), "0.5", max_nonfinite="3").learn_rate == 0.5


def test_checks_say_what_to_do():
    with pytest.raises(ConfigError, match=r"^Can't set 'x' in \[here\]: expected true or false, found 'no'\.$"):
        Section("[here]").flag("x", "no")
    with pytest.raises(ConfigError, match=r"^Can't set 'x' in \[here\]: expected 'a', 'b' or null, found 'c'\.$"):
        Section("[here]").choice("x", "c", ("a", "b", None))
    with pytest.raises(ConfigError, match=r"^Can't set 'x' in \[here\]: expected a or b, found 3\. Do this\.$"):
        Section("[here]").refuse("x", "a or b", 3, "Do this.")


def test_checks_of_a_section_know_their_limits():
    section = Section("[a.b]", allows_texts=False, verb="load")
    assert section.number("x", 3, at_least=2.0) == 3.0 and section.whole("x", 3) == 3
    for call, said in [
        (
            lambda: section.number("x", 1.0, above=1.0, at_most=2.0),
            "Can't load 'x' in [a.b]: expected a number above 1 and at most 2, found 1.0.",
        ),
        (lambda: section.number("x", math.inf, at_least=-math.inf), "expected a number that is finite, found inf."),
        (lambda: section.number("x", -1, below=1.0), "expected a number of at least 0 and below 1, found -1."),
        (lambda: section.number("x", "1"), "expected a number of at least 0, found '1'."),
        (lambda: section.whole("x", "1"), "expected a whole number of at least 0, found '1'."),
    ]:
        with pytest.raises(ConfigError) as error:
            call()
        assert str(error.value).endswith(said)
    assert Section("[a.b]").number("x", "1") == 1.0
