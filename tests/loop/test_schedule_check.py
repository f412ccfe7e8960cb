"""The learning rates over a training, from the config alone."""

import random

import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.training.loop import create_train_batches
from spacy.util import registry

from thinc_torchopt.core.algorithms import FAR, usual_rates
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.loop.data_check import Facts
from thinc_torchopt.loop.data_stream import DataStream
from thinc_torchopt.loop.schedule_check import last_step, rates_of_settings, rates_over_steps, trained_params
from thinc_torchopt.loop.training_check import check

from ..models import ready_pipeline
from ..runs import OPTIMIZER
from .test_training_check import texts

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


@pytest.mark.filterwarnings("ignore:The schedule of 'per_param_lr")
def test_rates_over_steps_and_trained_params_of_each_group():
    """The first step has the first values. Two ways to the same rates: by the optimizer, and from the config."""
    groups = {
        "late": {"params": ["tok2vec/embed/*/E"], "unfreeze_at": 2, "lr_scale": 0.5},
        "too late": {"params": ["ner/*"], "unfreeze_at": 9},
        "plain": {"params": ["tok2vec/*/b"], "weight_decay": 0.1},
    }
    block = {"learn_rate": WARMUP, "per_param_lr": {"tagger/*/b": [0.5, 0.25]}, "param_groups": groups}
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
        "tagger/*/b": [0.5, *[0.25] * 8],
    }
    for group, one in [(info.group, each) for each in found for info in each.infos]:
        assert one.rates == pytest.approx(over[group][one.begin :]) and one.begin == 2 * (group == "late")
    assert {info.group for one in found for info in one.infos} == {*over} - {"too late"}


# ---------------------------------------------------------------------- what is told of settings


def warmup(warmup_steps, total_steps, **more):
    return {"learn_rate": {"@schedules": "warmup_linear.v1", "initial_rate": 0.01, **more,
                           "warmup_steps": warmup_steps, "total_steps": total_steps}}  # fmt: skip


def per_param_lr(settings):
    return {"per_param_lr": {"*/W": settings["learn_rate"]}}


def prodigy(rate):
    return {"algorithm": {"@torch_optimizers": "pytorch-optimizer.create.v1", "name": "prodigy"}, "learn_rate": rate}


OURS = {"@schedules": "thinc-torchopt.warmup_linear.v1", "initial_rate": 0.01, "warmup_steps": 1}

# Its highest rate comes one step before the last.
RISEN = {"learn_rate": {"@schedules": "compounding.v1", "start": 0.009, "stop": 0.01, "compound": 1.00107}}

needs_prodigy = pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        # The schedule: too short, too long, thinc's with a slip; and those that are as they should be.
        ({"optimizer": warmup(1, 10)}, "learn nothing (total_steps = 10 in learn_rate)"),
        ({"optimizer": warmup(1, 97)}, "The learning rate is 0 from step 97 on, and the training ends at step 100"),
        ({"optimizer": warmup(1, 98)}, ""),
        ({"optimizer": warmup(9, 900)}, "is still at 0.898 of its highest when the training ends at step 100"),
        ({"optimizer": per_param_lr(warmup(9, 900))}, "(total_steps = 900 in per_param_lr.*/W)"),
        ({"optimizer": per_param_lr(warmup(1, 90))}, "rate of */W is 0 from step 90 on"),
        ({"optimizer": warmup(80, 112)}, "(total_steps = 112 in learn_rate)"),
        ({"last": 19, "eval_frequency": 19, "optimizer": warmup(15, 22)}, ""),
        ({"optimizer": warmup(0, 125)}, ""),
        ({"last": 1, "eval_frequency": 1, "optimizer": warmup(500, 900)}, "is still at 1 of its highest"),
        ({"last": 2, "eval_frequency": 1, "optimizer": warmup(500, 900)}, "still rises at step 2"),
        ({"optimizer": warmup(500, 900)}, "still rises at step 100"),
        ({"optimizer": RISEN}, ""),
        ({"optimizer": warmup(5, 0)}, "learn_rate is thinc's warmup_linear.v1 with total_steps = 0: it falls to 0"),
        ({"optimizer": {"learn_rate": OURS}}, ""),
        # Rates.
        ({"optimizer": {"learn_rate": 0.01}}, ""),
        ({"optimizer": {"learn_rate": FAR * usual_rates("torch.AdamW.v1").highest}}, ""),
        ({"optimizer": {"learn_rate": 0.5}}, "The learning rate goes up to 0.5, far above what is usual for torch."),
        ({"optimizer": per_param_lr({"learn_rate": 0.5})}, "The learning rate of */W goes up to 0.5, far above"),
        ({"optimizer": {"learn_rate": 0.0}}, "Nothing would be trained: each learning rate"),
        ({"optimizer": {"learn_rate": 0.0}, "before_update": {}}, ""),
        ({"optimizer": {"param_groups": {"all": {"params": ["*"], "freeze": True}}}}, "all params are frozen by"),
        pytest.param({"optimizer": prodigy(0.001)}, "here, by 0.001. Set learn_rate = 1.0", marks=needs_prodigy),
        pytest.param({"optimizer": prodigy(1.0 / FAR)}, "", marks=needs_prodigy),
        # The end.
        ({"eval_frequency": 101}, "The only evaluation is at step 0"),
        ({"eval_frequency": 100}, ""),
        ({"last": 1}, "The only evaluation is at step 0"),
        ({"eval_frequency": 60}, "40 steps at the end are not scored"),
        ({"eval_frequency": 90}, ""),
        ({"patience": 1}, "The training ends at step 1, whatever the score does"),
        ({"patience": 100, "eval_frequency": 101}, "The training ends at step 100, whatever the score does"),
        ({"patience": 50}, ""),
        ({"patience": 20, "last": 0}, "The training ends at step 20, whatever the score does"),
        ({"patience": 74, "optimizer": warmup(1, 100)}, "patience = 74 may end the training long before"),
        ({"patience": 74, "optimizer": {"learn_rate": OURS}}, "learn_rate falls until step 100, but patience = 74"),
        ({"patience": 74, "optimizer": warmup(1, 101)}, "patience = 74 may end the training long before"),
        ({"patience": 74, "optimizer": {"learn_rate": {"@schedules": "constant.v1", "rate": 0.01}}}, ""),
        ({"patience": 75, "optimizer": warmup(1, 100)}, ""),
        ({"patience": 1, "eval_frequency": 1, "optimizer": warmup(1, 100)}, "patience = 1 may end the training"),
        ({"last": 0}, "Nothing ends this training"),
        ({"last": 0, "max_epochs": 1}, ""),
    ],
)
def test_training_check_of_settings(settings, told):
    """What explain knows, the run knows."""
    assert [told in one for one in found_in_settings(**settings)] == [True] * bool(told)


def found_in_settings(component="tagger", last=100, **training):
    """What the checks find without corpora, each in words."""
    nlp = spacy.blank("xx")
    nlp.add_pipe(component)
    nlp.initialize(lambda: texts("train", [True] * 6))
    block = OPTIMIZER | training.pop("optimizer", {})
    nlp.config["training"] |= {"optimizer": block, "eval_frequency": 50, "max_steps": last, "patience": 0, **training}
    optimizer = registry.resolve({"o": block})["o"]
    optimizer.initialize(nlp)
    facts = Facts(nlp, nlp.config.interpolate(), optimizer=optimizer, last=last)
    before = optimizer.learn_rate
    random.seed(0)
    expected = random.random()
    random.seed(0)
    found = [one.text for one in check(facts)]
    assert (optimizer.learn_rate, random.random()) == (before, expected)
    return found


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 30),
    epochs=st.integers(-1, 5),
    max_steps=st.sampled_from([0, 3, 1000]),
    size=st.sampled_from([1, 4, {"@schedules": "compounding.v1", "start": 1, "stop": 8, "compound": 1.5}]),
    processes=st.integers(1, 3),
)
def test_training_check_counts_the_steps_of_epochs(n, epochs, max_steps, size, processes):
    """As many as spaCy's own batches, whose sizes may grow from epoch to epoch, joined for several processes."""
    batcher = {"@batchers": "spacy.batch_by_sequence.v1", "size": size, "get_length": None}
    examples = texts("train", [True] * n)
    nlp, training = spacy.blank("xx"), {"max_epochs": epochs, "max_steps": max_steps, "batcher": batcher}
    if epochs <= 0:
        assert last_step(nlp, training, examples, processes) == max_steps
        return
    made = registry.resolve({"batcher": batcher})["batcher"]
    batches = create_train_batches(nlp, lambda nlp: examples, made, epochs)
    steps = [*DataStream(batches, processes)]
    assert last_step(nlp, training, examples, processes) == min(len(steps) - 1, max_steps or len(steps))


@registry.schedules("test-check.noise.v1")
def noise():
    while True:
        yield 0.001 + 0.001 * random.random()


def test_training_check_of_schedules_draws_no_number():
    assert not found_in_settings(optimizer={"learn_rate": {"@schedules": "test-check.noise.v1"}})
