"""The range test, against problems whose answer is known: gradient descent in a bowl diverges above 2 / curvature, and
nowhere else.
"""

import copy
import math
import random
import re
from itertools import islice

import numpy
import pytest
import spacy
import torch
from confection import Config
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.util import resolve_dot_names
from thinc.api import Model

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.trials import lr_finder
from thinc_torchopt.addons.trials.lr_finder import (
    RangeTest,
    _analyse,
    _draw_examples,
    _first_points,
    _has_diverged,
    _noise_of_curve,
    learn_rate_settings,
    make_ramp,
    run_range_test,
    smooth,
    with_ramp,
)
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.schedules.curves import warmup_linear

from ...configs import smaller
from ...conftest import CONFIGS
from ...spacy_cli import toy_corpus

WIDTH, START = 4, 3.0
NOT_FINITE = "the loss or a gradient was not finite at a rate of 1e-06, after 1 steps"


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
        losses[self.name] = losses.get(self.name, 0.0) + (math.nan if self.goes_wrong == "loss" else loss) * words
        gradient = self.curvature * W
        self.model.inc_grad("W", gradient * numpy.float32("nan") if self.goes_wrong == "gradient" else gradient)
        return losses


@Language.factory("test_bowl")
def make_bowl(nlp, name, curvature: float, floor: float = 0.0, noise: float = 0.0, goes_wrong: str = ""):
    return Bowl(name, curvature, floor, noise, goes_wrong)


def bowls(folder, bowls_by_name, **optimizer):
    """A pipeline of bowls that plain gradient descent trains, and its config."""
    nlp = spacy.blank("xx")
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
    # The loss is not that of the averages.
    averages = {"@misc": "thinc-torchopt.EMA.v1", "decay": 0.5}
    nlp, config = bowls(tmp_path, {"bowl": {"curvature": curvature}}, averages=averages)
    found = run_range_test(nlp, config, min_rate=1e-7, max_rate=1e3, steps=200)

    # The loss after each second step is the one that a plain loop has. 1e-3: thousands of roundings to float32, which
    # grow as it diverges.
    w, expected = START, {}
    for i, rate in enumerate(make_ramp(1e-7, 1e3, 200)[: found.steps]):
        w *= 1 - rate * curvature
        if i % 2 == 0:
            expected[rate] = pytest.approx(0.5 * curvature * WIDTH * w**2, rel=1e-3, abs=1e-6 * curvature)
    assert dict(zip(found.rates, found.losses)) == {rate: expected[rate] for rate in found.rates}

    diverges = 2 / curvature
    assert found.ended == "diverged" and found.rates[-1] > diverges and found.steps == 2 * len(found.rates) - 1
    assert found.problem is None and found.suggestion < diverges
    assert abs(1 - found.suggestion * curvature) ** 100 < 0.5  # so many steps at this rate halve the distance at least
    assert found.rates_by_group() == {"default": pytest.approx(found.suggestion, rel=1e-12)}


def test_lr_finder_keeps_ratios_of_groups(tmp_path):
    """The second bowl is ten times as steep and has a tenth of the rate, a third one never moves."""
    groups = {
        "steep": {"params": ["steep/*"], "learn_rate": 0.001},
        "scaled": {"params": ["scaled/*"], "lr_scale": 0.5},
        "still": {"params": ["still/*"], "freeze": True},
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
        assert of_group == pytest.approx(factor * found.suggestion, rel=1e-12)
        assert of_group < 2 / curvatures[{"default": "flat"}.get(group, group)]
    assert numpy.array_equal(nlp.get_pipe("still").model.get_param("W"), numpy.full(WIDTH, START, dtype="f"))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"curvature": 0.0, "floor": 5.0, "noise": 1.0}, "expected a loss that falls"),
        ({"curvature": 1e-9}, "expected a loss that falls"),
        ({"curvature": 3e6}, "it diverged at a rate of .*, after .* steps. Lower --min-lr"),
        ({"curvature": 1e9}, "Lower --min-lr"),
        *(({"curvature": 1.0, "goes_wrong": what}, NOT_FINITE) for what in ("loss", "gradient")),
    ],
)
def test_lr_finder_says_when_there_is_nothing_to_suggest(tmp_path, settings, message):
    nlp, config = bowls(tmp_path, {"bowl": settings})
    found = run_range_test(nlp, config)
    assert re.search(message, found.problem) and "Raise --max-lr" not in found.problem
    assert found.suggestion is None and found.rates_by_group() == {} and found.stretch is None


def test_lr_finder_trains_to_the_end_of_the_ramp(tmp_path):
    nlp, config = bowls(tmp_path, {"bowl": {"curvature": 1e-9}})
    steps = []
    found = run_range_test(nlp, config, progress=lambda: steps.append(1))
    assert found.steps == len(steps) == 140 and found.ended == "max_rate"
    # From 1e-6 to 10, by the same factor each step. The loss is that of each second one.
    assert found.rates == pytest.approx(numpy.geomspace(1e-6, 10.0, 140)[::2])


@pytest.mark.parametrize(("words", "texts", "expected"), [(1, 2500, 100), (50, 60, 40), (200, 60, 16)])
def test_lr_finder_draws_the_same_texts_each_time(words, texts, expected, monkeypatch):
    nlp = spacy.blank("xx")
    docs = [Doc(nlp.vocab, words=["a"] * words) for _ in range(texts)]
    examples = [Example(doc, doc) for doc in docs]
    monkeypatch.setattr(lr_finder, "resolve_dot_names", lambda config, names: [lambda nlp: examples])
    shuffled = examples[:2000]
    random.Random(0).shuffle(shuffled)
    assert _draw_examples(nlp, {"training": {"dev_corpus": "dev"}}) == shuffled[:expected]


def test_lr_finder_loss_is_that_of_the_components_that_have_one(tmp_path):
    """tok2vec reports its squared gradient under the name of a loss. The oracle is spaCy's own update, of all of the
    development data: it has fewer examples than are drawn.
    """
    corpus = toy_corpus(tmp_path)
    overrides = {"paths.train": str(corpus["train"]), "paths.dev": str(corpus["dev"]), "training.dropout": 0.0}
    text = smaller((CONFIGS / "param_groups.cfg").read_text())
    raw = Config().from_str(text, overrides=overrides, interpolate=False)
    nlp, same = init_nlp(raw), init_nlp(raw)
    for pipeline in (nlp, same):
        # They begin with zeros: so would the gradient, and ties of ner would break at the first step.
        for output in (
            pipeline.get_pipe("tagger").model.get_ref("output_layer"),
            pipeline.get_pipe("ner").model.get_ref("upper"),
        ):
            output.set_param("W", numpy.random.default_rng(0).normal(size=output.get_param("W").shape).astype("f"))
    config = nlp.config.interpolate()
    state, of_torch = random.getstate(), torch.get_rng_state()
    found = run_range_test(nlp, config, min_rate=1e-12, max_rate=1e-11, steps=22)
    assert random.getstate() == state and torch.equal(torch.get_rng_state(), of_torch)
    [read] = resolve_dot_names(config, ["corpora.dev"])
    examples = list(read(same))
    # ner draws what of its hidden layer it drops: the same in each computation.
    random.Random(0).shuffle(examples)
    random.seed(0)
    numpy.random.seed(0)
    losses = same.update(examples, sgd=False, losses={}, drop=0.0)
    expected = (losses["tagger"] + losses["ner"]) / sum(map(len, examples))
    assert losses["tok2vec"] > 0 and found.examples == len(examples) == 18
    # At such rates nothing is learned.
    assert found.losses[0] == pytest.approx(expected, rel=1e-5)
    assert found.losses == pytest.approx([found.losses[0]] * 11, rel=1e-4)
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
    for peaks, what in ({("learn_rate",): 0.0}, "0 in learn_rate"), ({}, "none"):
        with pytest.raises(ConfigError, match=f"above 0, found {what}"):
            with_ramp(block, peaks, [1.0])


def test_lr_finder_rates_are_of_groups_that_were_trained_all_along():
    rates = [{"default": 1e-3, "late": 0.0}, {"default": 1e-2, "late": 1e-2}]
    found = RangeTest([1e-3, 1e-2], [1.0, 0.5], rates, stretch=(0, 1))
    assert found.rates_by_group() == {"default": pytest.approx(0.5 * math.sqrt(1e-5))}


def test_lr_finder_smooths_as_it_says():
    losses = torch.rand(30, dtype=torch.float64).tolist()
    for width in (0.5, 1.5, 4.0):
        smoothed = smooth(losses, width)
        for i, value in enumerate(smoothed):
            weights = [math.exp(-0.5 * ((i - j) / width) ** 2) for j in range(30)]
            assert value == pytest.approx(sum(w * loss for w, loss in zip(weights, losses)) / sum(weights), rel=1e-12)
    assert smooth(losses, 0.0) == losses


@pytest.mark.parametrize("width", [1.0, 4.0])
def test_lr_finder_knows_the_noise_of_a_curve(width):
    """Of noise alone, it is its standard deviation. 2,000 points around 4 know it to about 5%."""
    losses = numpy.random.default_rng(0).normal(size=2000).tolist()
    assert _noise_of_curve(losses, width) == pytest.approx(numpy.std(smooth(losses, width)), rel=0.1)


RATES = make_ramp(1e-6, 10.0, 70)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([9.0, 1.0, 1.0, 9.0], False),  # too few
        ([9.0, 1.0, 1.0, 1.0, 2.1], True),
        ([9.0, 1.0, 1.0, 1.0, 2.0], False),
        ([9.0, *[1.0] * 10, *[8.0] * 20, 2.1], True),  # more than at first
    ],
)
def test_lr_finder_sees_what_diverges(losses, expected):
    assert _has_diverged(RangeTest(RATES[: len(losses)], losses)) is expected


def test_lr_finder_first_points_are_a_decade():
    assert [_first_points(RangeTest(make_ramp(1e-6, 10.0, n))) for n in (71, 22)] == [10, 3]


def analyse(losses, rates=RATES, ended="max_rate"):
    rates = list(rates[: len(losses)])
    found = RangeTest(rates, list(losses), [{"default": rate} for rate in rates], 2 * len(rates), 10, ended)
    _analyse(found)
    return found


def fall_and_rise(falls_at, rises_at, noise=0.0, seed=0):
    """The loss is 1 before the first rate, about 0.1 up to the second one, and 1.5 after it."""
    rng = numpy.random.default_rng(seed)
    return [
        0.1 + 0.9 / (1 + (rate / falls_at) ** 2) + 1.4 / (1 + (rises_at / rate) ** 4) + noise * rng.normal()
        for rate in RATES
    ]


@given(
    falls_at=st.floats(1e-4, 1e-2),
    width=st.floats(30, 300),
    times=st.floats(1e-4, 1e4),
    faster=st.floats(1e-3, 1e3),
    noise=st.sampled_from([0.0, 0.01, 0.03]),
    seed=st.integers(0, 1000),
)
def test_lr_finder_suggestion_is_between_the_fall_and_the_rise(falls_at, width, times, faster, noise, seed):
    """The loss in other units gives the same rate; a ramp of rates that are all so many times as high gives one that is
    so many times as high.
    """
    losses = fall_and_rise(falls_at, falls_at * width, noise, seed)
    found = analyse(losses)
    assert falls_at / 3 < found.suggestion < falls_at * width
    # By hand, of the curve without noise: where the fall reaches 80%, and where the rise comes to 20% of it.
    low, high = 2 * falls_at, falls_at * width * (0.18 / (1.4 - 0.18)) ** 0.25
    # The smoothing makes the stretch a little shorter, and noise another bit.
    assert 1 / 2 < found.suggestion / (0.5 * math.sqrt(low * high)) < 2 or noise
    assert 1 / 3 < found.suggestion / (0.5 * math.sqrt(low * high)) < 3
    assert analyse([times * loss for loss in losses]).stretch == found.stretch
    assert analyse(losses, [faster * rate for rate in RATES]).suggestion == pytest.approx(faster * found.suggestion)


def test_lr_finder_leaves_out_what_comes_before_and_after():
    """The first point, and what has diverged: with other losses there, the suggestion is the same."""
    losses = fall_and_rise(1e-3, 0.1)
    expected = analyse(losses[:60], ended="diverged")
    assert expected.first == 1 and len(expected.smoothed) == 58
    for first, last in ((0.0, 100.0), (50.0, 1e30)):
        assert analyse([first, *losses[1:59], last], ended="diverged").stretch == expected.stretch
    assert analyse([*losses[:59], math.nan], ended="not_finite").stretch == expected.stretch
    # A stretch at the start, with losses as low at the end, where it diverged.
    low = [0.3, 0.1, 0.0, 0.1]
    assert analyse([9.0, *low, *[1.0] * 40, *[0.2] * 3, 9.0], ended="diverged").stretch == (1, 3)


def test_lr_finder_suggests_nothing_from_noise():
    """Nor from a loss that only rises. Chance looks like a fall in 7 of 10,000 curves of noise alone."""
    by_chance = 0
    for seed in range(1000):
        rng = numpy.random.default_rng(seed)
        level, slope = rng.uniform(-5, 5), rng.uniform(0, 0.5)
        found = analyse([level + slope * i / 70 + rng.normal() for i in range(70)])
        by_chance += found.suggestion is not None
        if found.suggestion is None:
            assert "expected a loss that falls" in found.problem and "--max-lr" not in found.problem
    assert by_chance <= 3


@pytest.mark.parametrize(
    ("end", "ended", "advice"),
    [
        (1.04, "max_rate", "Up to a rate of 10 nothing happened. "),
        (1.05, "max_rate", ""),  # smoothed, it rose by 2%
        (1.05, "diverged", "It diverged at a rate of 10: if that is at once, lower --min-lr. "),
        (1.05, "not_finite", "It was not finite at a rate of 10: if that is at once, lower --min-lr. "),
    ],
)
def test_lr_finder_says_what_may_help_if_the_loss_does_not_fall(end, ended, advice):
    assert "a loss that falls" in analyse([1.0] * 11).problem and "--min-lr" in analyse([1.0] * 10).problem
    assert "a loss that falls" in analyse([0.0] * 70).problem
    problem = analyse([1.0] * 69 + [end], ended=ended).problem
    assert problem.endswith(f"which may be chance. {advice}Check that something is trained: spacy torchopt params.")


def test_lr_finder_does_not_take_a_dip_of_the_flat_start_for_the_lowest():
    """What was suggested once: 3e-07, from the noise of the flat start."""
    for seed in range(50):
        rng = numpy.random.default_rng(seed)
        losses = [loss + 0.05 * rng.normal() for loss in fall_and_rise(3e-3, 0.3)]
        losses[5] = losses[6] = 0.6
        assert 1e-3 < analyse(losses).suggestion < 0.3


@pytest.mark.parametrize("high", [1.0, 10.0, 100.0])
def test_lr_finder_asks_for_higher_rates_where_the_loss_is_still_low(high):
    rates = make_ramp(1e-6, high, 70)
    found = analyse([0.001 + 0.009 / (1 + (rate / 1e-2) ** 2) for rate in rates], rates)
    assert found.suggestion is None and found.problem.endswith(f"at the highest, {high:.2g}. Raise --max-lr.")
    found = analyse([0.9 / (1 + (rate / 1e-2) ** 4) for rate in rates], rates)
    assert found.suggestion is None and "--max-lr" not in found.problem and "so easy that every rate" in found.problem


def test_lr_finder_takes_a_config_that_goes_back_to_checkpoints(tmp_path):
    paths = {**toy_corpus(tmp_path), "state": tmp_path / "state"}
    overrides = {f"paths.{name}": str(paths[name]) for name in ("train", "dev", "state")}
    text = smaller((CONFIGS / "guards.cfg").read_text())
    nlp = init_nlp(Config().from_str(text, overrides=overrides, interpolate=False))
    found = run_range_test(nlp, nlp.config.interpolate(), steps=22)
    assert found.steps <= 22 and not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "arguments", [(0.0, 1.0, 100), (1.0, 1.0, 100), (1e-7, math.inf, 100), (1e-7, 10.0, 21), (math.nan, 1.0, 100)]
)
def test_lr_finder_refuses_a_ramp_that_does_not_rise(arguments):
    with pytest.raises(ConfigError, match="Can't run the range test: expected"):
        make_ramp(*arguments)


def test_lr_finder_needs_development_data(tmp_path):
    nlp, config = bowls(tmp_path, {"bowl": {"curvature": 10.0}})
    DocBin().to_disk(tmp_path / "dev.spacy")
    with pytest.raises(ConfigError, match=r"expected examples in \[training\] dev_corpus = 'corpora.dev', found none"):
        run_range_test(nlp, config)
