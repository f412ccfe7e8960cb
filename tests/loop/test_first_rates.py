"""What is said of the learning rates at the start of a run, from the config alone."""

import random

import pytest
import spacy

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.schedules import curves
from thinc_torchopt.loop.first_rates import first_rates

WARMUP = {"@schedules": "warmup_linear.v1", "initial_rate": 0.0019, "warmup_steps": 150, "total_steps": 1000}
TO_THE_END = {"@schedules": "thinc-torchopt.warmup_linear.v1", "initial_rate": 0.002, "warmup_ratio": 0.1}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"learn_rate": 0.001}, "0.001"),
        ({"learn_rate": WARMUP}, "rises to 0.0019 by step 150"),
        ({"learn_rate": {**WARMUP, "warmup_steps": 0}}, "0.0019 at first"),
        ({"learn_rate": 0.001, "param_groups": {"encoder": {"params": ["*"], "learn_rate": WARMUP}}},
         "0.001; encoder: rises to 0.0019 by step 150"),
        ({"learn_rate": WARMUP, "per_param_lr": {"ner/*": WARMUP}}, "rises to 0.0019 by step 150"),
        ({}, "0.002"),
    ],
)  # fmt: skip
def test_first_rates_in_words(block, expected):
    nlp = spacy.blank("en")
    nlp.config["training"]["optimizer"] = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", **block}
    random.seed(1)
    before = random.getstate()
    assert first_rates(nlp, TorchOptimizer(AdamW(), learn_rate=0.002), 0) == expected
    assert random.getstate() == before
    assert first_rates(nlp, TorchOptimizer(AdamW(), learn_rate=0.002), 301) == "0.002 at step 301"  # a resumed run


def test_first_rates_of_a_schedule_that_ends_with_the_training():
    """The run knows how many steps that is, the config does not."""
    nlp = spacy.blank("en")
    nlp.config["training"]["optimizer"] = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "learn_rate": TO_THE_END}
    nlp.config["training"]["max_steps"] = 0
    optimizer = TorchOptimizer(AdamW(), learn_rate=curves.warmup_linear(0.002, warmup_ratio=0.1))
    optimizer.set_total_steps(61)
    assert first_rates(nlp, optimizer, 0) == "rises to 0.002 by step 6"


def test_first_rates_of_an_optimizer_that_code_of_the_user_builds():
    """Its settings may be called as ours are, and be something else."""
    nlp = spacy.blank("en")
    nlp.config["training"]["optimizer"] = {"@optimizers": "my.Optimizer.v1", "learn_rate": "high", "param_groups": None}
    assert first_rates(nlp, TorchOptimizer(AdamW(), learn_rate=0.002), 0) == "0.002 at step 0"
