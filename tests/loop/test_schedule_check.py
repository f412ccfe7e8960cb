"""The learning rates over a training, from the config alone."""

import pytest
from spacy.util import registry

from thinc_torchopt.loop.schedule_check import rates_of_settings, rates_over_steps, trained_params

from ..models import ready_pipeline
from ..runs import OPTIMIZER

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


def test_rates_over_steps_and_trained_params_of_each_group():
    """The first step has the first values. Two ways to the same rates: by the optimizer, and from the config."""
    groups = {
        "late": {"params": ["tok2vec/embed/*/E"], "unfreeze_at": 2, "lr_scale": 0.5},
        "too late": {"params": ["ner/*"], "unfreeze_at": 9},
        "plain": {"params": ["tok2vec/*/b"], "weight_decay": 0.1},
    }
    block = {"learn_rate": WARMUP, "per_param_lr": {"tagger/*/b": 0.5}, "param_groups": groups}
    optimizer = registry.resolve({"o": OPTIMIZER | block})["o"]
    nlp, _ = ready_pipeline(("tagger", "ner"))
    optimizer.initialize(nlp)
    found = trained_params(nlp, optimizer, {"training": {"optimizer": block, "max_steps": 8}}, 8)
    over = rates_over_steps(optimizer, 8)
    assert over == {
        "late": [0.0, 0.0, *(pytest.approx(rate / 2000) for rate in (1, 1.5, 2, 1.5, 1, 0.5)), 0.0],
        "too late": [0.0] * 9,
        "plain": RATES,
        "default": RATES,
        "tagger/*/b": [0.5] * 9,
    }
    for group, one in [(info.group, each) for each in found for info in each.infos]:
        assert one.rates == pytest.approx(over[group][one.begin :]) and one.begin == 2 * (group == "late")
    assert {info.group for one in found for info in one.infos} == {*over} - {"too late"}
