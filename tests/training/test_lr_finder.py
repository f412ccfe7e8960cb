"""The range test, against problems whose answer is known: gradient descent in a bowl diverges above 2 / curvature, and
nowhere else.
"""

import copy
import math
import re
from itertools import islice

import numpy
import pytest
import spacy
import torch
from spacy.errors import Errors
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.util import resolve_dot_names
from thinc.api import Model, fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.errors import ConfigError
from thinc_torchopt.schedules import warmup_linear
from thinc_torchopt.training.lr_finder import (
    RangeTest,
    _analyse,
    learn_rate_settings,
    make_ramp,
    run_range_test,
    smooth,
    with_ramp,
)

from ..conftest import CONFIGS
from ..spacy_cli import toy_corpus

WIDTH, START = 4, 3.0


class Bowl(TrainablePipe):
    """The loss per word is curvature / 2 x |W|^2, whatever the words are. `floor` is added to it, and noise."""

    def __init__(self, name, curvature, floor, noise, goes_wrong):
        self.name, self.curvature, self.floor, self.noise, self.goes_wrong = name, curvature, floor, noise, goes_wrong
        self.model = Model("bowl", lambda model, X, is_train: (X, lambda dY: dY), params={"W": None})
        self.cfg = {}
        self.rng = numpy.random.default_rng(0)

    def initialize(self, get_examples, *, nlp=None):
        self.model.set_param("W", numpy.full(WIDTH, START, dtype="f"))

    def predict(self, docs):
        return None

    def set_annotations(self, docs, scores):
        pass

    def update(self, examples, *, drop=0.0, sgd=None, losses=None):
        W = self.model.get_param("W")
        words = sum(map(len, examples))
        loss = self.floor + 0.5 * self.curvature * float((W.astype("d") ** 2).sum()) + self.noise * self.rng.normal()
        if self.goes_wrong == "raises":
            raise ValueError(Errors.E910.format(name=self.name))
        losses[self.name] = losses.get(self.name, 0.0) + (math.nan if self.goes_wrong == "loss" else loss) * words
        gradient = self.curvature * W
        self.model.inc_grad("W", gradient * numpy.float32("nan") if self.goes_wrong == "gradient" else gradient)
        return losses


@Language.factory("test_bowl")
def make_bowl(nlp, name, curvature: float, floor: float = 0.0, noise: float = 0.0, goes_wrong: str = ""):
    return Bowl(name, curvature, floor, noise, goes_wrong)


def bowls(folder, bowls_by_name, **optimizer):
    """A pipeline of bowls that plain gradient descent trains, and its config."""
    nlp = spacy.blank("en")
    for name, settings in bowls_by_name.items():
        nlp.add_pipe("test_bowl", name=name, config=settings)
    config = nlp.config.copy()
    config["paths"] |= {name: str(path) for name, path in toy_corpus(folder).items() if name in ("train", "dev")}
    config["training"]["optimizer"] = {
        "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
        "algorithm": {"@torch_optimizers": "torch.SGD.v1"},
        "grad_clip": 0.0,
        "learn_rate": 0.01,
        **optimizer,
    }
    nlp = init_nlp(config)
    return nlp, nlp.config.interpolate()


@pytest.mark.parametrize("curvature", [0.1, 10.0, 1000.0])
def test_lr_finder_suggests_rates_that_train(tmp_path, curvature):
    nlp, config = bowls(tmp_path, {"bowl": {"curvature": curvature}})
    found = run_range_test(nlp, config, min_rate=1e-7, max_rate=1e3)

    # Each loss is the one that a plain loop has. 1e-3: thousands of roundings to float32, which grow as it diverges.
    w = START
    for rate, loss in zip(found.rates, found.losses):
        assert loss == pytest.approx(0.5 * curvature * WIDTH * w**2, rel=1e-3, abs=1e-6 * curvature)
        w *= 1 - rate * curvature

    diverges = 2 / curvature
    assert found.ended == "diverged" and found.rates[-1] > diverges
    assert found.problem is None and set(found.suggestions) == {"steepest", "lowest/10"}
    for rate in found.suggestions.values():
        assert rate < diverges
        assert abs(1 - rate * curvature) ** 100 < 0.5  # so many steps at this rate halve the distance at least
    assert found.rates_by_group() == {"default": found.suggestions}


def test_lr_finder_keeps_ratios_of_groups(tmp_path):
    """The second bowl is ten times as steep and has a tenth of the rate, a third one never moves."""
    groups = {
        "steep": {"params": ["steep/*"], "policy": "cosine", "max_rate": 0.001, "total_steps": 5},
        "scaled": {"params": ["scaled/*"], "lr_scale": 0.5},
        "still": {"params": ["still/*"], "policy": "frozen"},
    }
    curvatures = {"flat": 10.0, "steep": 100.0, "scaled": 20.0, "still": 0.1}
    nlp, config = bowls(
        tmp_path, {name: {"curvature": value} for name, value in curvatures.items()}, param_groups=groups
    )
    before = copy.deepcopy(config)
    found = run_range_test(nlp, config)
    assert config == before
    for rates, ramp in zip(found.group_rates, found.rates):
        assert rates == pytest.approx(
            {"default": ramp, "steep": 0.1 * ramp, "scaled": 0.5 * ramp, "still": 0.0}, rel=1e-12
        )
    rates = found.rates_by_group()
    assert set(rates) == {"default", "steep", "scaled"}
    for group, of_group in rates.items():
        factor = {"default": 1.0, "steep": 0.1, "scaled": 0.5}[group]
        assert of_group == pytest.approx({name: factor * rate for name, rate in found.suggestions.items()}, rel=1e-12)
        assert of_group["steepest"] < 2 / curvatures[{"default": "flat"}.get(group, group)]
    assert numpy.array_equal(nlp.get_pipe("still").model.get_param("W"), numpy.full(WIDTH, START, dtype="f"))


def test_lr_finder_sees_through_noise(tmp_path):
    """Each loss is off by a tenth of the first one: the suggestion is still a rate that trains."""
    nlp, config = bowls(tmp_path, {"bowl": {"curvature": 10.0, "noise": 18.0}})
    found = run_range_test(nlp, config)
    assert found.problem is None and 1e-3 < found.suggestions["steepest"] < 0.2


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"curvature": 0.0, "floor": 5.0, "noise": 1.0}, "expected a loss that falls"),
        ({"curvature": 1e-9}, "expected a loss that falls"),
        ({"curvature": 3e7}, "It breaks away at a rate of .*: if that is at once, lower --min-lr"),
        ({"curvature": 1e9}, "Lower --min-lr"),
        (
            {"curvature": 1.0, "goes_wrong": "loss"},
            "found 0 before the loss or a gradient was not finite, at a rate of 1e-07",
        ),
        ({"curvature": 1.0, "goes_wrong": "gradient"}, "found 0 before the loss or a gradient was not finite"),
        ({"curvature": 1.0, "goes_wrong": "raises"}, "found 0 before the loss or a gradient was not finite"),
    ],
)
def test_lr_finder_says_when_there_is_nothing_to_suggest(tmp_path, settings, message):
    nlp, config = bowls(tmp_path, {"bowl": settings})
    found = run_range_test(nlp, config)
    assert re.search(message, found.problem) and "Raise --max-lr" not in found.problem
    assert found.suggestions == {} and found.rates_by_group() == {} and found.steepest is None


def test_lr_finder_loss_is_that_of_the_components_that_have_one(tmp_path):
    """tok2vec reports its squared gradient under the name of a loss. The oracle is spaCy's own update, on the same
    batch.
    """
    corpus = toy_corpus(tmp_path)
    overrides = {"paths.train": str(corpus["train"]), "paths.dev": str(corpus["dev"]), "training.dropout": 0.0}
    raw = spacy.util.load_config(CONFIGS / "param_groups.cfg", overrides=overrides, interpolate=False)
    nlp, same = init_nlp(raw), init_nlp(raw)
    for pipeline in (nlp, same):
        # It begins with zeros, and so would the gradient.
        output = pipeline.get_pipe("tagger").model.get_ref("output_layer")
        output.set_param("W", numpy.random.default_rng(0).normal(size=output.get_param("W").shape).astype("f"))
    config = nlp.config.interpolate()
    found = run_range_test(nlp, config, steps=12)
    fix_random_seed(config["training"]["seed"])
    T = spacy.registry.resolve({"batcher": config["training"]["batcher"]})
    [read] = resolve_dot_names(config, ["corpora.train"])
    [(_, batch)] = islice(create_train_batches(same, read, T["batcher"], 0), 1)
    losses = same.update(batch, sgd=False, losses={})
    expected = (losses["tagger"] + losses["ner"]) / sum(map(len, batch))
    assert losses["tok2vec"] > 0
    assert found.losses[0] == pytest.approx(expected, rel=1e-6)
    # Of the second step it has the loss of this step alone. At such rates it is much the same.
    assert found.losses[1] == pytest.approx(found.losses[0], rel=0.3)
    # Rates apart, the optimizer is the config's.
    optimizer = spacy.registry.resolve({"optimizer": config["training"]["optimizer"]})["optimizer"]
    optimizer.initialize(same)
    assert set(found.group_rates[0]) == {info.group for info in optimizer.describe()}


def test_lr_finder_settings_and_their_peaks():
    config = spacy.util.load_config(CONFIGS / "param_groups.cfg")
    peaks = learn_rate_settings(config)
    assert peaks == pytest.approx(
        {("learn_rate",): 0.002, ("per_param_lr", "ner/*"): 0.001, ("per_param_lr", "tagger/*"): 0.003}
    )
    # A training that ends in the warm-up never comes higher.
    config["training"]["max_steps"] = 9
    assert learn_rate_settings(config)["learn_rate",] == pytest.approx(max(islice(warmup_linear(0.002, 100, 2000), 10)))
    config["training"]["max_steps"] = 0  # no end
    assert learn_rate_settings(config)["learn_rate",] == pytest.approx(0.002)
    config["training"]["optimizer"]["learn_rate"] = [0.1, 0.3, 0.2]
    config["training"]["optimizer"]["param_groups"]["shared"]["learn_rate"] = 0.5
    assert learn_rate_settings(config)["learn_rate",] == 0.3
    assert learn_rate_settings(config)["param_groups", "shared", "learn_rate"] == 0.5

    block = config["training"]["optimizer"]
    changed = with_ramp(block, {("learn_rate",): 0.1, ("per_param_lr", "ner/*"): 0.4}, [1.0, 2.0])
    assert changed["learn_rate"] == [0.25, 0.5] and changed["per_param_lr"]["ner/*"] == [1.0, 2.0]
    assert block["learn_rate"] == [0.1, 0.3, 0.2]
    assert isinstance(spacy.registry.resolve({"optimizer": changed})["optimizer"], TorchOptimizer)
    with pytest.raises(ConfigError, match="above 0, found 0 in learn_rate"):
        with_ramp(block, {("learn_rate",): 0.0}, [1.0])


def test_lr_finder_smooths_as_it_says():
    losses = torch.rand(30, dtype=torch.float64).tolist()
    for smoothing in (0.0, 0.5, 0.9):
        smoothed = smooth(losses, smoothing)
        for i, value in enumerate(smoothed):
            weights = [smoothing ** abs(i - j) for j in range(30)]
            assert value == pytest.approx(sum(w * loss for w, loss in zip(weights, losses)) / sum(weights), rel=1e-12)
    assert smooth(losses, 0.0) == losses


def test_lr_finder_finds_the_steepest_place_of_a_curve():
    """A curve that is known: a logistic fall over the logarithm of the rate, steepest in its middle, then a blow-up."""
    ramp = make_ramp(1e-7, 10.0, 100)
    losses = [1 / (1 + math.exp(3 * (math.log10(rate) + 3))) for rate in ramp]
    lowest = 85
    losses[lowest + 1 :] = [10.0 ** (2 * i) for i in range(100 - lowest - 1)]
    found = RangeTest(ramp, losses, [{"default": rate} for rate in ramp], "diverged")
    _analyse(found, 1.0, 0.5)
    # Two steps: the ramp has 12.4 a decade, and the smoothing is over some of them.
    assert abs(math.log(found.suggestions["steepest"] / 1e-3)) <= 2 * math.log(ramp[1] / ramp[0])
    # What comes after it counts a little, so that the lowest place is found rather too early than too late.
    assert lowest - 10 <= found.lowest <= lowest
    assert found.suggestions["lowest/10"] == ramp[found.lowest] / 10


@pytest.mark.parametrize("seed", range(20))
def test_lr_finder_finds_a_small_fall_before_a_loss_that_breaks_away(seed):
    """As of a tagger and a parser: flat for four decades, an eighth lower in the two after them, then twice as high as
    ever, where it stays. The noise of a step is as large as the fall.
    """
    ramp = make_ramp(1e-7, 10.0, 100)
    noise = 0.3 * numpy.random.default_rng(seed).normal(size=100)
    curve = [2.4 - 0.4 / (1 + (1e-3 / rate) ** 2) if rate < 0.03 else 5.0 for rate in ramp]
    losses = [loss + more for loss, more in zip(curve, noise)]
    found = RangeTest(ramp, losses, [{"default": rate} for rate in ramp])
    _analyse(found, max(losses[:60]), 0.9)
    assert found.problem is None and found.breaks is not None and 0.02 < ramp[found.breaks] < 0.05
    assert 2e-4 < found.suggestions["lowest/10"] < 5e-3
    assert 5e-5 < found.suggestions["steepest"] < 0.03
    assert not found.may_go_higher


@pytest.mark.parametrize("high", [1.0, 10.0])
def test_lr_finder_advises_higher_rates_only_where_there_are_some(high):
    ramp = make_ramp(1e-7, high, 100)
    found = RangeTest(ramp, [5.0] * 100, [{"default": rate} for rate in ramp])
    _analyse(found, math.inf, 0.9)
    assert ("Raise --max-lr" in found.problem) == found.may_go_higher == (high < 10.0)
    losses = [5.0] * 80 + [50.0] * 20
    found = RangeTest(ramp, losses, [{"default": rate} for rate in ramp])
    _analyse(found, math.inf, 0.9)
    assert not found.may_go_higher and "Raise --max-lr" not in found.problem and found.breaks == 80


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.9])
def test_lr_finder_suggests_nothing_from_noise(smoothing):
    ramp, suggested = make_ramp(1e-7, 10.0, 100), 0
    for seed in range(200):
        losses = (5.0 + numpy.random.default_rng(seed).normal(size=100)).tolist()
        found = RangeTest(ramp, losses, [{"default": rate} for rate in ramp])
        _analyse(found, math.inf, smoothing)
        suggested += found.problem is None
    assert suggested <= 2  # chance


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.9])
def test_lr_finder_finds_a_fall_at_any_smoothing(smoothing):
    ramp = make_ramp(1e-7, 10.0, 100)
    rng = numpy.random.default_rng(0)
    losses = [10 / (1 + math.exp(3 * (math.log10(rate) + 3))) + 0.2 * rng.normal() for rate in ramp]
    found = RangeTest(ramp, losses, [{"default": rate} for rate in ramp])
    _analyse(found, math.inf, smoothing)
    assert found.problem is None and 1e-4 < found.suggestions["steepest"] < 1e-2


def test_lr_finder_takes_a_config_that_goes_back_to_checkpoints(tmp_path):
    corpus = toy_corpus(tmp_path)
    overrides = {
        "paths.train": str(corpus["train"]),
        "paths.dev": str(corpus["dev"]),
        "paths.state": str(tmp_path / "state"),
    }
    nlp = init_nlp(spacy.util.load_config(CONFIGS / "guards.cfg", overrides=overrides, interpolate=False))
    found = run_range_test(nlp, nlp.config.interpolate(), steps=10)
    assert len(found.rates) <= 10 and not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "arguments", [(0.0, 1.0, 100), (1.0, 1.0, 100), (1e-7, math.inf, 100), (1e-7, 10.0, 9), (math.nan, 1.0, 100)]
)
def test_lr_finder_refuses_a_ramp_that_does_not_rise(arguments):
    with pytest.raises(ConfigError, match="Can't run the range test: expected"):
        make_ramp(*arguments)


def test_lr_finder_ramp():
    ramp = make_ramp(1e-3, 1e3, 13)
    assert ramp == pytest.approx(torch.logspace(-3, 3, 13, dtype=torch.float64).tolist(), rel=1e-12)
    with pytest.raises(ConfigError, match="'smoothing'"):
        run_range_test(None, {}, smoothing=1.0)
