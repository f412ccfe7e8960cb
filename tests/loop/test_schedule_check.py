"""The learning rates over a training, from the config alone."""

import pytest

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD
from thinc_torchopt.loop.schedule_check import rates_of_settings, rates_over_steps

from ..models import ready_pipeline

WARMUP = {"@schedules": "warmup_linear.v1", "initial_rate": 0.002, "warmup_steps": 4, "total_steps": 8}
RATES = pytest.approx([0.0, 0.0005, 0.001, 0.0015, 0.002, 0.0015, 0.001, 0.0005, 0.0])


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"learn_rate": 0.001}, {("learn_rate",): [0.001]}),
        ({"learn_rate": WARMUP}, {("learn_rate",): RATES}),
        ({"learn_rate": 0.001, "param_groups": {"encoder": {"params": ["*"], "learn_rate": WARMUP}}},
         {("learn_rate",): [0.001], ("param_groups", "encoder", "learn_rate"): RATES}),
        ({"learn_rate": 0.001, "per_param_lr": {"ner/*.x": WARMUP}},
         {("learn_rate",): [0.001], ("per_param_lr", "ner/*.x"): RATES}),
        ({}, {}),
    ],
)  # fmt: skip
def test_rates_of_settings(block, expected):
    assert rates_of_settings({"training": {"optimizer": block, "max_steps": 8}}) == expected


def test_rates_of_settings_without_an_end():
    block = {"learn_rate": {**WARMUP, "total_steps": 40_000}}
    config = {"training": {"optimizer": block, "max_steps": 0}}
    assert len(rates_of_settings(config)["learn_rate",]) == 20_001
    assert len(rates_of_settings(config, 5)["learn_rate",]) == 6


def test_rates_over_steps_of_each_group():
    """The first step has the first values."""
    learn_rate, tagger = iter([0.1, 0.2, 0.3, 0.4]), iter([0.9, 0.8, 0.7, 0.6])
    late = {"params": ["tok2vec/embed/*/E"], "unfreeze_at": 2, "lr_scale": 0.5}
    optimizer = TorchOptimizer(SGD(), learn_rate, per_param_lr={"tagger/*": tagger}, param_groups={"late": late})
    optimizer.initialize(ready_pipeline(("tagger", "ner"))[0])
    assert rates_over_steps(optimizer, 3) == {
        "late": [0.0, 0.0, pytest.approx(0.15), pytest.approx(0.2)],
        "default": [0.1, 0.2, 0.3, 0.4],
        "tagger/*": pytest.approx([0.9, 0.8, 0.7, 0.6]),
    }
