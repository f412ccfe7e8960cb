"""Param groups: against a torch optimizer whose groups were written by hand, and against a naive form of the
cascade.
"""

import copy
import math
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy
import pytest
import spacy
import srsly
import torch
from confection import Config
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import Dropout, Linear, PyTorchWrapper, chain, warmup_linear

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, Adagrad, AdamW, Muon, RMSprop, Rprop
from thinc_torchopt.core.errors import ConfigError, ConfigWarning, LearnRateIntegrityError, LearnRateWarning
from thinc_torchopt.core.params.param import Param
from thinc_torchopt.core.schedules.curves import warmup_cosine
from thinc_torchopt.core.schedules.schedules import Schedules
from thinc_torchopt.core.settings.cascade import Cascade

from ...conftest import CONFIGS, needs_muon
from ...models import (
    backprop,
    optimizer_for,
    params_of,
    pipeline_of,
    pipeline_params,
    ready_pipeline,
    same,
    slots,
    snapshot,
    toy_examples,
    toy_pipeline,
)
from ...peek import add_params
from ...runs import loop_over
from ...spacy_cli import spacy_cli, toy_corpus, train


class Encoder(torch.nn.Module):
    """Embeddings, three layers, a pooler: the names of a small BERT."""

    def __init__(self, width=6):
        super().__init__()
        self.embeddings = torch.nn.Linear(5, width)
        self.layer = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU())
            for _ in range(3)
        )
        self.pooler = torch.nn.Linear(width, width)

    def forward(self, X):
        Y = self.embeddings(X)
        for layer in self.layer:
            Y = layer(Y)
        return self.pooler(Y)


def encoder_pipeline():
    """A pipeline of one component 'trf': a torch encoder with a thinc layer on top."""
    model = chain(PyTorchWrapper(Encoder()), Linear(3, 6)).initialize()
    return pipeline_of(trf=model), model


def copy_params(source, target):
    for (old, _), (new, _) in zip(slots(target), slots(source)):
        with torch.no_grad():
            old[...] = new


def run(optimizer, model, steps, after=lambda step: None):
    rng = numpy.random.default_rng(0)
    for step in range(steps):
        backprop(model, rng)
        model.finish_update(optimizer)
        optimizer.step_schedules()
        after(step)


def group_of(optimizer, name):
    """The torch param group that holds a param, of all torch optimizers together. It must be one."""
    tensor = optimizer.params[name]
    [found] = [
        g for o in optimizer.torch_optimizers.values() for g in o.param_groups if any(p is tensor for p in g["params"])
    ]
    return found


# ---------------------------------------------------------------------- against torch


def test_param_groups_equal_torch_groups_written_by_hand():
    """Three blocks, two schedules, a frozen one, layer decay, skip_decay: 50 steps. No clipping, so the kernels see the
    same numbers; 1e-6 leaves room for the rates, which torch's LambdaLR multiplies in another order.
    """
    steps, decay = 50, 0.8
    nlp, model = encoder_pipeline()
    optimizer = optimizer_for(
        nlp,
        AdamW(weight_decay=0.1),
        0.01,
        grad_clip=0.0,
        skip_decay="bias_and_norm",
        param_groups={
            "encoder": {"params": ["trf/*"], "learn_rate": warmup_cosine(0.02, 5, steps), "weight_decay": 0.05},
            "top": {
                "params": ["re:^trf/(pytorch/pooler|linear)/"],
                "learn_rate": warmup_linear(0.03, 10, 60),
                "betas": [0.8, 0.99],
            },
            "embeddings": {"params": ["trf/*embeddings/*"], "freeze": True},
        },
        layer_decay={"trf/*": decay},
    )
    _, oracle_model = encoder_pipeline()
    copy_params(model, oracle_model)
    module = oracle_model.layers[0].shims[0]._model
    head = {name: torch.from_numpy(oracle_model.layers[1].get_param(name)) for name in ("W", "b")}
    groups = []
    for i, layer in enumerate(module.layer):
        scale = decay ** (3 - i)
        groups.append({"params": [layer[0].weight], "lr": 0.02 * scale, "weight_decay": 0.05})
        groups.append(
            {"params": [layer[0].bias, layer[1].weight, layer[1].bias], "lr": 0.02 * scale, "weight_decay": 0.0}
        )
    groups.append({"params": [module.pooler.weight, head["W"]], "lr": 0.03, "weight_decay": 0.05, "betas": (0.8, 0.99)})
    groups.append({"params": [module.pooler.bias, head["b"]], "lr": 0.03, "weight_decay": 0.0, "betas": (0.8, 0.99)})
    oracle = torch.optim.AdamW(groups)

    def cosine(step):
        return step / 5 if step < 5 else 0.5 * (1 + math.cos(math.pi * (step - 5) / (steps - 5)))

    def linear(step):
        return step / 10 if step < 10 else max(0.0, (60 - step) / 50)

    scheduler = torch.optim.lr_scheduler.LambdaLR(oracle, [cosine] * 6 + [linear] * 2)
    embeddings = snapshot(module.embeddings.parameters())
    rng = numpy.random.default_rng(0)
    run(optimizer, model, steps)
    for _ in range(steps):
        backprop(oracle_model, rng)
        for name, param in head.items():
            param.grad = torch.from_numpy(oracle_model.layers[1].get_grad(name))
        oracle.step()
        scheduler.step()
        oracle.zero_grad()
        for name in head:
            oracle_model.layers[1].get_grad(name).fill(0)
    assert len(optimizer.torch_optimizers["algorithm"].param_groups) == 8
    for ours, theirs in zip(params_of(model), params_of(oracle_model)):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert same(snapshot(model.layers[0].shims[0]._model.embeddings.parameters()), embeddings)


@pytest.mark.parametrize(
    "algorithm", [SGD(momentum=0.9), Adagrad(), RMSprop(momentum=0.5), Rprop()], ids=lambda a: a.label
)
def test_param_groups_work_with_every_kind_of_state(algorithm):
    """SGD's fused kernel, state that is made at construction, rates that are read at the first step."""
    nlp, model = encoder_pipeline()
    optimizer = optimizer_for(
        nlp,
        algorithm,
        0.001,
        grad_clip=0.0,
        param_groups={"top": {"params": ["trf/pytorch/pooler/*"], "lr_scale": 4.0}},
    )
    _, oracle_model = encoder_pipeline()
    copy_params(model, oracle_model)
    module = oracle_model.layers[0].shims[0]._model
    head = {name: torch.from_numpy(oracle_model.layers[1].get_param(name)) for name in ("W", "b")}
    rest = [*module.embeddings.parameters(), *module.layer.parameters(), *head.values()]
    options = {name: value for name, value in algorithm.options.items() if name != "fused"}
    oracle = algorithm.build(
        [{"params": rest}, {"params": list(module.pooler.parameters()), "lr": 0.004}], lr=0.001, **options
    )
    rng = numpy.random.default_rng(0)
    run(optimizer, model, 10)
    for _ in range(10):
        backprop(oracle_model, rng)
        for name, param in head.items():
            param.grad = torch.from_numpy(oracle_model.layers[1].get_grad(name))
        oracle.step()
        for param in [*module.parameters(), *head.values()]:
            param.grad.zero_()
    for ours, theirs in zip(params_of(model), params_of(oracle_model)):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # the oracle's kernels are not fused


@needs_muon
def test_param_groups_apply_to_the_fallback_too():
    nlp, model = encoder_pipeline()
    block = {"params": ["trf/pytorch/pooler/*"], "weight_decay": 0.25, "betas": [0.5, 0.6], "momentum": 0.7}
    optimizer = optimizer_for(nlp, Muon(), 0.01, param_groups={"top": block})
    weight, bias = group_of(optimizer, "trf/pytorch/pooler/weight"), group_of(optimizer, "trf/pytorch/pooler/bias")
    assert weight["momentum"] == 0.7 and weight["weight_decay"] == 0.25 and "betas" not in weight
    assert bias["betas"] == (0.5, 0.6) and bias["weight_decay"] == 0.25 and "momentum" not in bias
    run(optimizer, model, 2)
    assert set(optimizer.learn_rates) == {"default", "fallback", "top", "top+fallback"}


# ---------------------------------------------------------------------- the cascade

NAMES = [
    f"{c}/{middle}/{last}"
    for c in ("ner", "trf")
    for middle in ("layer/0", "layer/1", "embed", "out")
    for last in ("W", "b")
]
PATTERNS = ["*", "ner/*", "trf/*", "*/b", "*/W", "trf/layer/0/*", "re:layer/[01]/W", "re:^ner.*b$"]
SCHEDULES = {"one": lambda: warmup_linear(0.1, 2, 9), "two": lambda: warmup_cosine(0.1, 2, 9)}


def matches(pattern, name):
    return bool(re.search(pattern[3:], name)) if pattern.startswith("re:") else fnmatchcase(name, pattern)


blocks = st.lists(
    st.fixed_dictionaries(
        {"params": st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3)},
        optional={
            "learn_rate": st.sampled_from([0.1, 0.2, "one", "two"]),
            "lr_scale": st.sampled_from([0.5, 1.0, 2.0]),
            "weight_decay": st.sampled_from([0.0, 0.1, "one"]),
            "momentum": st.sampled_from([0.0, 0.9]),
            "freeze": st.booleans(),
            "algorithm": st.just("rmsprop"),
        },
    ),
    max_size=4,
)


@given(
    blocks,
    st.dictionaries(st.sampled_from(PATTERNS), st.sampled_from([0.1, 0.3, "two"]), max_size=2),
    st.booleans(),
    st.booleans(),
)
def test_param_groups_follow_the_cascade_and_are_as_few_as_can_be(
    given_blocks, per_param_lr, decays_layers, skips_decay
):
    sources = {name: make() for name, make in SCHEDULES.items()}
    of = {"one": "one", "two": "two"}
    sources["rmsprop"] = RMSprop(weight_decay=0.02, momentum=0.3)
    param_groups = {
        f"g{i}": {k: sources.get(v, v) if isinstance(v, str) else v for k, v in b.items()}
        for i, b in enumerate(given_blocks)
    }
    optimizer = TorchOptimizer(
        SGD(weight_decay=0.01),
        0.05,
        param_groups=param_groups,
        per_param_lr={
            pattern: sources.get(rate, rate) if isinstance(rate, str) else rate
            for pattern, rate in per_param_lr.items()
        }
        or None,
        layer_decay={"trf/*": 0.5} if decays_layers else None,
        skip_decay="bias_and_norm" if skips_decay else None,
    )
    params = [Param(name, name, None, torch.zeros(2), is_bias_or_norm=name.endswith("/b")) for name in NAMES]
    add_params(optimizer, params)

    def naive(name):
        """What holds for a param, by the words of the docs."""
        found = {"learn_rate": "default", "lr_scale": 1.0, "weight_decay": 0.01, "momentum": 0.0, "freeze": False}
        found["algorithm"] = -1
        for i, block in enumerate(given_blocks):
            if any(matches(pattern, name) for pattern in block["params"]):
                if "algorithm" in block:
                    found.update(weight_decay=0.02, momentum=0.3)
                found.update({key: value for key, value in block.items() if key != "params"})
                found["algorithm"] = i if "algorithm" in block else found["algorithm"]
        for pattern, rate in per_param_lr.items():
            if matches(pattern, name):
                found["learn_rate"] = rate
        if skips_decay and name.endswith("/b"):
            found["weight_decay"] = 0.0
        if decays_layers and name.startswith("trf/"):
            found["lr_scale"] *= 0.5 ** (
                2 - (0 if "embed" in name or "layer/0" in name else 1 if "layer/1" in name else 2)
            )
        rate, scale = found.pop("learn_rate"), found.pop("lr_scale")
        return (rate, scale) if rate in of or rate == "default" else ("number", rate * scale), tuple(
            sorted(found.items())
        )

    expected = {name: naive(name) for name in NAMES}
    trained = {name for name, (_, options) in expected.items() if not dict(options)["freeze"]}
    torch_groups = [g for o in optimizer.torch_optimizers.values() for g in o.param_groups]
    held = [id(tensor) for group in torch_groups for tensor in group["params"]]
    assert sorted(held) == sorted(
        id(param.tensor) for param in params if param.name in trained
    )  # each in exactly one, frozen ones in none
    assert len(torch_groups) == len({expected[name] for name in trained})  # minimal
    optimizer.rates.step()
    first = {key: next(make()) for key, make in SCHEDULES.items()}
    for param in params:
        if param.name in trained:
            (rate, scale), options = expected[param.name]
            entry = param.group.entry
            base = {"default": 0.05, "number": 1.0, **first}[rate]
            assert entry["lr"] == pytest.approx(
                base * scale, rel=1e-12
            )  # products of the same factors in another order
            decay = dict(options)["weight_decay"]
            assert entry["weight_decay"] == first.get(decay, decay) and entry["momentum"] == dict(options)["momentum"]
            place = dict(options)["algorithm"]
            path = "algorithm" if place < 0 else f"param_groups.g{place}.algorithm"
            assert any(entry is group for group in optimizer.torch_optimizers[path].param_groups)
    assert optimizer.schedules or not any(value in ("one", "two") for block in given_blocks for value in block.values())


def test_param_groups_share_one_schedule_that_moves_once_a_step():
    nlp, model = encoder_pipeline()
    rate = warmup_linear(0.1, 5, 10)
    optimizer = optimizer_for(
        nlp,
        SGD(),
        rate,
        param_groups={"top": {"params": ["trf/pytorch/pooler/*"], "learn_rate": rate, "momentum": 0.5}},
    )
    seen = []
    run(optimizer, model, 4, lambda step: seen.append(optimizer.learn_rates))
    assert (
        [rates["default"] for rates in seen]
        == [rates["top"] for rates in seen]
        == pytest.approx([0.0, 0.02, 0.04, 0.06])
    )


def test_param_groups_move_any_option_by_a_schedule():
    nlp, model = encoder_pipeline()
    block = {
        "params": ["trf/pytorch/pooler/*"],
        "weight_decay": [0.1, 0.2, 0.3, 0.3],
        "betas": {"beta1": [0.5, 0.6, 0.7, 0.7], "beta2": 0.9},
    }
    scaled = {"params": ["trf/pytorch/layer/*"], "lr_scale": [1.0, 0.5, 0.25, 0.25]}
    optimizer = optimizer_for(nlp, AdamW(), 0.01, param_groups={"top": block, "layers": scaled})
    seen = []

    def note(step):
        top = group_of(optimizer, "trf/pytorch/pooler/weight")
        seen.append((top["weight_decay"], top["betas"], optimizer.learn_rates["layers"]))

    run(optimizer, model, 3, note)
    assert seen == [(0.1, (0.5, 0.9), 0.01), (0.2, (0.6, 0.9), 0.005), (0.3, (0.7, 0.9), 0.0025)]


# ---------------------------------------------------------------------- frozen params


@pytest.mark.parametrize("use_averages", [False, True])
@pytest.mark.device
def test_param_groups_unfreeze_at_their_step(use_averages):
    nlp, model = encoder_pipeline()
    optimizer = optimizer_for(
        nlp,
        AdamW(weight_decay=0.1),
        0.01,
        use_averages=use_averages,
        param_groups={
            "lower": {"params": ["trf/pytorch/embeddings/*", "trf/pytorch/layer/[01]/*"], "unfreeze_at": 3},
            "bottom": {"params": ["trf/pytorch/embeddings/*"], "unfreeze_at": 5},
            "linear": {"params": ["trf/linear/*"], "freeze": True},
        },
    )
    module = model.layers[0].shims[0]._model
    parts = {"embeddings": module.embeddings, "layer": module.layer[0], "top": module.layer[2]}
    before = {name: snapshot(part.parameters()) for name, part in parts.items()}
    moved = {name: [] for name in parts}

    def note(step):
        for name, part in parts.items():
            now = snapshot(part.parameters())
            moved[name].append(not same(now, before[name]))
            assert all(
                param.requires_grad is (step + 1 >= {"embeddings": 5, "layer": 3, "top": 0}[name])
                for param in part.parameters()
            )
        assert module.embeddings.weight.grad is None or step + 1 >= 5
        for node in model.walk():
            assert all(not node.get_grad(name).any() for name in node.param_names if node.has_grad(name))

    with optimizer.training():
        run(optimizer, model, 7, note)
    assert moved == {"embeddings": [False] * 5 + [True] * 2, "layer": [False] * 3 + [True] * 4, "top": [True] * 7}
    assert all(param.requires_grad for param in module.parameters())
    assert optimizer.nr_update[id(module.embeddings.weight)] == 2
    assert optimizer.averages if use_averages else optimizer.averages == {}


@pytest.mark.device
def test_param_groups_frozen_params_have_no_state_average_norm_or_gradient():
    nlp, model = encoder_pipeline()
    block = {
        "frozen": {"params": ["trf/*"], "freeze": True},
        "but": {"params": ["trf/pytorch/pooler/*"], "freeze": False},
    }
    optimizer = optimizer_for(nlp, AdamW(weight_decay=0.5), 0.1, use_averages=True, param_groups=block)
    before = params_of(model)
    for context in (optimizer.training(), optimizer.joint_step()):  # with and without torch's gradients
        with context:
            backprop(model, rng := numpy.random.default_rng(0))
            model.finish_update(optimizer)
        backprop(model, rng)
        pooler = model.layers[0].shims[0]._model.pooler
        norm = math.sqrt(sum(float(param.grad.double().square().sum()) for param in pooler.parameters()))
        model.finish_update(optimizer)
        assert optimizer.grad_norm == pytest.approx(norm, rel=1e-6)  # summed in float32
    changed = [not torch.equal(a, b) for a, b in zip(before, params_of(model))]
    assert sum(changed) == 2 and set(optimizer.params) == {"trf/pytorch/pooler/weight", "trf/pytorch/pooler/bias"}
    assert (
        len(optimizer.torch_optimizers["algorithm"].state) == 2
        and len(optimizer.state_dict()["averages"]["tensors"]) == 2
    )
    assert all(param.requires_grad for param in model.layers[0].shims[0]._model.parameters())


@pytest.mark.device
def test_param_groups_freeze_a_whole_torch_model():
    """torch's backward raises where nothing needs a gradient; a thinc layer below still gets its own."""
    nlp, _ = encoder_pipeline()
    model = chain(Linear(5, 5), PyTorchWrapper(Encoder()), Linear(3, 6)).initialize()
    nlp.get_pipe("trf").model = model
    optimizer = optimizer_for(nlp, AdamW(), 0.01, param_groups={"torch": {"params": ["trf/pytorch/*"], "freeze": True}})
    before = params_of(model)
    with optimizer.training():
        run(optimizer, model, 3)
    moved = [not torch.equal(a, b) for a, b in zip(before, params_of(model))]
    assert moved == [True] * 2 + [False] * (len(before) - 4) + [True] * 2
    alone = PyTorchWrapper(Encoder())
    nlp.get_pipe("trf").model = chain(alone, Linear(3, 6)).initialize()
    optimizer.initialize(nlp)
    with optimizer.training():
        run(optimizer, nlp.get_pipe("trf").model, 3)


@pytest.mark.device
def test_param_groups_loop_freezes_and_puts_back():
    nlp, model = encoder_pipeline()
    examples = toy_examples(nlp)
    tagger = nlp.add_pipe("tagger")
    tagger.initialize(lambda: examples, nlp=nlp)
    optimizer = TorchOptimizer(
        AdamW(), 0.01, param_groups={"lower": {"params": ["trf/*", "tagger/tok2vec/*"], "freeze": True}}
    )
    module = model.layers[0].shims[0]._model
    loop = loop_over(nlp, optimizer, [examples] * 3, eval_frequency=1)
    before = pipeline_params(nlp)["tagger"]
    seen = []
    nlp.get_pipe("trf").update = lambda *args, **kwargs: seen.append(
        any(param.requires_grad for param in module.parameters())
    )
    for _, info, _ in loop:
        assert all(param.requires_grad for param in module.parameters())
        assert info["learn_rates"] == {"default": 0.01, "lower": 0.0}
    assert seen == [False] * 3
    moved = [not torch.equal(a, b) for a, b in zip(before, pipeline_params(nlp)["tagger"])]
    assert 0 < sum(moved) < len(moved)


# ---------------------------------------------------------------------- writes of others


def user_code(optimizer):
    """Somebody's callback."""
    return lambda: optimizer.param_groups[1].update(lr=0.5)


def torch_scheduler(optimizer):
    """Somebody's scheduler, left in: from now on the rates are its own."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 50.0 if step else 1.0)
    return scheduler.step


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("writer", [user_code, torch_scheduler])
@pytest.mark.parametrize("what_happens", ["restore", "adopt", "raise"])
def test_param_groups_notice_rates_written_by_others(writer, what_happens):
    nlp, model = encoder_pipeline()
    rates = [0.01, 0.02, 0.03, 0.04, 0.05]
    top = {"top": {"params": ["trf/linear/*"], "learn_rate": rates}}
    optimizer = optimizer_for(nlp, AdamW(), 0.001, param_groups=top, on_outside_write=what_happens)
    run(optimizer, model, 1)
    inner = optimizer.torch_optimizers["algorithm"]
    write = writer(inner)
    run(optimizer, model, 1)  # attaching a scheduler writes the rates that are there
    write()
    found = inner.param_groups[1]["lr"]
    assert found != 0.02
    message = rf"param group 'top' was changed outside its schedule at step 2: expected 0.02, found {found}"
    if what_happens == "raise":
        before = params_of(model)
        with pytest.raises(LearnRateIntegrityError) as caught:
            run(optimizer, model, 1)
        assert any(re.search(message, str(error)) for error in [caught.value, *caught.value.others])
        assert same(params_of(model), before)
        return
    with pytest.warns(LearnRateWarning) as warned:
        run(optimizer, model, 1)
    assert any(re.search(message, str(warning.message)) for warning in warned)
    expected = 0.03 if what_happens == "restore" else 0.03 * found / 0.02
    assert optimizer.learn_rates["top"] == pytest.approx(expected, rel=1e-12)
    run(optimizer, model, 1)  # and not a word more
    assert optimizer.learn_rates["top"] == pytest.approx(expected / 3 * 4, rel=1e-12)


def test_param_groups_learn_rate_may_be_set_on_the_optimizer():
    nlp, model = encoder_pipeline()
    optimizer = optimizer_for(
        nlp,
        AdamW(),
        0.001,
        param_groups={"top": {"params": ["trf/linear/*"], "lr_scale": 2.0}},
        on_outside_write="raise",
    )
    run(optimizer, model, 1)
    optimizer.learn_rate = 0.25
    run(optimizer, model, 1)
    assert optimizer.learn_rates == {"default": 0.25, "top": 0.5}


# ---------------------------------------------------------------------- bad input


# A block, and words of the answer.
ROWS = srsly.read_yaml(Path(__file__).with_name("param_groups.yaml"))
AS_KEY = r"Can't use a pattern as a key in \[training\.optimizer\.{}\].*Write it in a list: a block"
BAD = [
    *(({"param_groups": {"g": {"params": ["*"], **block}}}, said) for block, said in ROWS["blocks"]),
    ({"param_groups": {"g": 3}}, r"Can't read \[training.optimizer.param_groups.g\]: expected a section"),
    ({"per_param_lr": {"ner/*": "fast"}}, r"'per_param_lr.ner/\*' .*expected a number"),
    *(({name: {key: 0.1}}, AS_KEY.format(name)) for name in ("per_param_lr", "layer_decay")
      for key in ("[tn]*/W", "#*", '"[t]agger/*"')),
    ({"layer_decay": {"ner/*": 1.5}},
     r"'ner/\*' in \[training.optimizer.layer_decay\]: expected a number above 0 and at most 1, found 1.5"),
    ({"skip_decay": "bias"}, "'skip_decay' .*expected 'bias_and_norm' or null, found 'bias'"),
    ({"algorithm": Rprop(), "skip_decay": "bias_and_norm"},
     r"expected an algorithm with weight decay, found 'torch\.Rprop\.v1'"),
    ({"on_outside_write": "shout"}, "on_outside_write"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "said"), BAD, ids=range(len(BAD)))
def test_param_groups_refuse_bad_settings(settings, said):
    with pytest.raises(ConfigError, match=said):
        TorchOptimizer(**{"algorithm": AdamW(), "learn_rate": 0.01, **settings})


@pytest.mark.parametrize(("options", "message"), ROWS["nothing"])
def test_param_groups_name_patterns_that_match_nothing(options, message):
    nlp, _ = encoder_pipeline()
    nlp.add_pipe("tagger", name="flat").model = Linear(2, 2).initialize()
    with pytest.raises(ConfigError, match=message):
        TorchOptimizer(AdamW(), 0.01, **options).initialize(nlp)


MATCHING_NOTHING = [
    {"param_groups": {"x": {"params": ["tagger/tok2vec/embbed/*"], "freeze": True}}},
    {"param_groups": {"x": {"params": ["tagger/tok2vec/embbed/*"], "unfreeze_at": 5}}},
    {"per_param_lr": {"tagger/tok2vec/embbed/*": 0.1}},
    {"layer_decay": {"tagger/tok2vec/embbed/*": 0.9}},
]


@pytest.mark.parametrize(
    ("options", "connect"),
    [
        *((options, "initialize") for options in MATCHING_NOTHING),
        *((MATCHING_NOTHING[0], connect) for connect in ("resume_training", "both", "copied")),
    ],
)
def test_param_groups_name_patterns_that_match_nothing_whoever_connects_the_optimizer(options, connect):
    """At the first update, which changes nothing, and again at the next one."""
    optimizer = TorchOptimizer(AdamW(), 0.01, **options)
    nlp, examples = ready_pipeline(
        ["tagger"], shared=False, sgd=optimizer if connect in ("initialize", "both") else None
    )
    if connect == "copied":
        optimizer = copy.deepcopy(optimizer)
    if connect != "initialize":
        nlp.resume_training(sgd=optimizer)
    before = pipeline_params(nlp)["tagger"]
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"'tagger/tok2vec/embbed/\*' in .*: it matches none of"):
            nlp.update(examples, sgd=optimizer)
    assert same(before, pipeline_params(nlp)["tagger"])


def test_param_groups_are_checked_once_and_with_all_params_of_the_pipeline(monkeypatch):
    """Patterns may name excluded and disabled components, and torch params that are made by the first forward pass."""
    nlp = toy_pipeline(["tagger", "morphologizer", "textcat"], shared=False)
    module = torch.nn.Sequential(torch.nn.LazyLinear(6), torch.nn.ReLU())
    nlp.get_pipe("textcat").model = chain(nlp.get_pipe("textcat").model, PyTorchWrapper(module), Linear(2, 6))
    blocks = {"x": {"params": ["tagger/*", "morphologizer/*", "textcat/pytorch/0/weight"], "learn_rate": 0.1}}
    optimizer, examples = TorchOptimizer(AdamW(), 0.01, param_groups=blocks), toy_examples(nlp)
    walks = []
    monkeypatch.setattr(Cascade, "check", lambda self, names, modules: walks.append(names))
    nlp.initialize(lambda: examples, sgd=optimizer)
    with nlp.select_pipes(disable=["morphologizer"]):
        for _ in range(3):
            nlp.update(examples, sgd=optimizer, exclude=["tagger"])
    [names] = walks
    monkeypatch.undo()
    optimizer.patterns[2].check(names)
    assert {name.partition("/")[0] for name in names} == {"tagger", "morphologizer", "textcat"}


@pytest.mark.parametrize("setting", [{"precision": "tf32"}, {"master_weights": True}])
def test_param_groups_are_checked_with_all_that_initialize_checks(setting):
    optimizer = TorchOptimizer(AdamW(), 0.01, **setting)
    nlp, examples = ready_pipeline(["tagger"], shared=False, sgd=optimizer)
    with pytest.warns(ConfigWarning, match="has no effect"):
        nlp.update(examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    optimizer.initialize(nlp)


def test_param_groups_need_a_pipeline():
    _, model = encoder_pipeline()
    optimizer = TorchOptimizer(AdamW(), 0.01, per_param_lr={"*": 0.1})
    backprop(model, numpy.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"Call optimizer.initialize\(nlp\)"):
        model.finish_update(optimizer)


def test_param_groups_cascade_says_which_settings_go_by_name():
    nothing = dict.fromkeys(("per_param_lr", "layer_decay"), None) | {"new_params_warmup": 0, "keep_apart": False}
    nothing["param_groups"] = {}
    assert not Cascade(AdamW(), Schedules(), **nothing, skip_decay="bias_and_norm").goes_by_name
    assert Cascade(AdamW(), Schedules(), **{**nothing, "per_param_lr": {"*": 0.1}}, skip_decay=None).goes_by_name


@pytest.mark.parametrize("later", [{}, {"unfreeze_at": 5}])
def test_param_groups_refuse_options_that_torch_refuses_only_together(later):
    """Each block is fine by itself, and known to meet the other one only when the params are."""
    blocks = {
        "nesterov": {"params": ["trf/*"], "nesterov": True},
        "plain": {"params": ["*/linear/W"], "momentum": 0.0, **later},
    }
    nlp, _ = encoder_pipeline()
    optimizer = TorchOptimizer(SGD(momentum=0.9), 0.1, param_groups=blocks)
    said = (
        r"'trf/linear/W' with the options of 'nesterov\+plain' .*'torch.SGD.v1' refuses them together.*Nesterov "
        r"momentum requires"
    )
    with pytest.raises(ConfigError, match=said):
        optimizer.initialize(nlp)


# ---------------------------------------------------------------------- in a config


def test_param_groups_survive_what_spacy_does_to_configs(tmp_path):
    """to_str, fill-config, overrides, debug config, training, and loading the trained model's own config."""
    corpus = toy_corpus(tmp_path)
    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", str(corpus[name]))]
    config = Config().from_disk(CONFIGS / "param_groups.cfg")
    order = list(config["training"]["optimizer"]["param_groups"])
    assert list(Config().from_str(config.to_str())["training"]["optimizer"]["param_groups"]) == order
    filled = tmp_path / "filled.cfg"
    spacy_cli("init", "fill-config", CONFIGS / "param_groups.cfg", filled)
    assert list(Config().from_disk(filled)["training"]["optimizer"]["param_groups"]) == order
    override = [
        "--training.optimizer.param_groups.no_decay.weight_decay",
        "0.125",
        "--training.optimizer.per_param_lr.ner/*",
        "0.5",
    ]
    spacy_cli("debug", "config", filled, *paths, *override)
    dotted = {"training.optimizer.param_groups.no_decay.weight_decay": 0.125}
    train(
        "param_groups.cfg", tmp_path / "out", corpus, **{key.replace(".", "__"): value for key, value in dotted.items()}
    )
    saved = spacy.load(tmp_path / "out" / "model-last").config["training"]["optimizer"]
    assert list(saved["param_groups"]) == order and saved["param_groups"]["no_decay"]["weight_decay"] == 0.125
    optimizer = spacy.registry.resolve({"optimizer": saved})["optimizer"]
    nlp = spacy.load(tmp_path / "out" / "model-last")
    optimizer.initialize(nlp)
    name = next(name for name in optimizer.params if name.endswith("output_layer/W"))
    assert group_of(optimizer, name)["weight_decay"] == 0.125


def per_param_lr_of(text):
    config = Config().from_str(
        "[training]\n[training.optimizer]\n@optimizers = "
        '"thinc-torchopt.TorchOptimizer.v1"\n[training.optimizer.algorithm]\n'
        f'@torch_optimizers = "torch.AdamW.v1"\n{text}'
    )
    return spacy.registry.resolve({"optimizer": config["training"]["optimizer"]})["optimizer"]


def test_param_groups_warn_of_a_rate_that_a_number_beats():
    schedule = '@schedules = "constant.v1"\nrate = 0.1\n'
    text = f"[training.optimizer.per_param_lr]\n{{}} = 0.002\n[training.optimizer.per_param_lr.tok2vec/*/E]\n{schedule}"
    nlp, _ = ready_pipeline(["tagger"])
    with pytest.warns(
        ConfigWarning,
        match=r"'tok2vec/\*/E' in \[training\.optimizer\.per_param_lr\] has no effect: .*'tok2vec/\*' replaces it",
    ):
        per_param_lr_of(text.format("tok2vec/*")).initialize(nlp)
    per_param_lr_of(text.format("tagger/*")).initialize(nlp)  # without a warning
    # What the warning says to write.
    groups = "training.optimizer.param_groups"
    first = f'[{groups}]\n[{groups}.all]\nparams = ["tok2vec/*"]\nlearn_rate = 0.002\n'
    second = f'[{groups}.embeddings]\nparams = ["tok2vec/*/E"]\n[{groups}.embeddings.learn_rate]\n'
    optimizer = per_param_lr_of(first + second + schedule)
    optimizer.initialize(nlp)
    assert {info.learn_rate for info in optimizer.describe() if info.name.endswith("/E")} == {0.1}


def test_param_groups_know_how_a_config_reads_a_regular_expression_as_a_key():
    with pytest.raises(ConfigError, match=AS_KEY.format("per_param_lr")):
        per_param_lr_of("[training.optimizer.per_param_lr]\nre:tok2vec/.* = 0.1\n")


@pytest.mark.device
@pytest.mark.skipif(not torch.cuda.is_available(), reason="runs with --device")
def test_param_groups_clip_params_on_several_devices():
    """spaCy's parser keeps a layer on the CPU when the others are on a GPU. Clipping rides along in a fused kernel only
    where all params are on one device.
    """
    rides_along = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            rides_along.append(hasattr(self, "grad_scale"))
            return super().step(closure)

    values, grads = torch.linspace(-1, 1, 6), torch.linspace(2, 3, 6)
    trained = []
    for devices in (("cpu", "cpu"), ("cuda", "cpu"), ("cpu", "cuda")):
        optimizer = TorchOptimizer(replace(SGD(), build=Watched), 0.5, grad_clip=1.0)
        del rides_along[len(trained) :]  # it was tried out
        params = [torch.nn.Parameter(values.to(device, copy=True)) for device in devices]
        for param in params:
            optimizer.set_grad(param, grads.to(param.device, copy=True))
        optimizer.step()
        trained.append([param.detach().cpu() for param in params])
    assert rides_along == [True, False, False]
    for found in trained[1:]:
        # The kernel divides by the factor's inverse: a rounding more or less.
        assert all(torch.allclose(one, other, rtol=1e-6) for one, other in zip(found, trained[0]))


@pytest.mark.parametrize("setting", ["param_groups", "per_param_lr", "layer_decay"])
def test_param_groups_of_an_empty_section_are_none(setting):
    """As `null`, and in all of them alike."""
    optimizer = per_param_lr_of(f"[training.optimizer.{setting}]\n")
    assert optimizer.patterns == [] and TorchOptimizer(SGD(), 0.1, **{setting: {}}).patterns == []
    with pytest.raises(ConfigError, match=rf"'{setting}' in \[training.optimizer\]: expected a section"):
        TorchOptimizer(SGD(), 0.1, **{setting: 0})


# ---------------------------------------------------------------------- names of groups


def test_param_groups_are_chosen_by_whole_names_of_blocks():
    """Not by parts of them: names may hold what joins them."""
    nlp, model = encoder_pipeline()
    blocks = {
        "a+b": {"params": ["trf/linear/*"], "learn_rate": 0.5},
        "top/layer-norm": {"params": ["*/pooler/*"], "learn_rate": 0.25},
        "c": {"params": ["*/weight"], "weight_decay": 0.1},
    }
    optimizer = optimizer_for(nlp, SGD(), 0.125, param_groups=blocks, layer_decay={"trf/pytorch/layer/*": 0.5})
    run(optimizer, model, 1)
    for name in ("a", "b", "top"):
        with pytest.raises(ConfigError, match=f"'{name}': it matches none of the param groups"):
            optimizer.scale_learn_rates([name], 0.5)
    before = optimizer.learn_rates
    assert before["a+b"] == 0.5 and before["top/layer-norm+c"] == 0.25 and "c/layer-1" in before
    optimizer.scale_learn_rates(["a+b", "c"], 0.5)
    run(optimizer, model, 1)
    scaled = {name for name, rate in optimizer.learn_rates.items() if rate == 0.5 * before[name]}
    assert scaled == {"a+b", "top/layer-norm+c", "c", "c/layer-0", "c/layer-1", "c/layer-2"}


def test_param_groups_refuse_a_name_that_is_also_that_of_two_blocks():
    """Both would be one line in `schedule`, and one rate for loggers."""
    blocks = {name: {"params": ["*"]} for name in ("a", "a+b", "b")}
    with pytest.raises(ConfigError, match=r"block 'a\+b' .*'\+' is not allowed beside the block 'a'"):
        TorchOptimizer(SGD(), 0.1, param_groups=blocks)
    TorchOptimizer(SGD(), 0.1, param_groups=dict.fromkeys(("a+b", "c", "a+", "ab"), blocks["a"]))


def test_param_groups_decay_by_the_layers_of_a_module_below_a_numbered_part():
    """As a transformer's inside of an NER: ner/tok2vec/0/... Oracle: the rates of the module by itself."""

    def rates_of(nest):
        nlp, model = encoder_pipeline()
        nlp.get_pipe("trf").model = nest(model)
        optimizer = optimizer_for(nlp, SGD(), 0.125, layer_decay={"trf/*": 0.5})
        return {info.name: info.learn_rate for info in optimizer.describe()}

    alone = rates_of(lambda model: model)
    nested = rates_of(lambda model: chain(model, Linear(2, 2).initialize()))
    in_module = {name: rate for name, rate in alone.items() if "/pytorch/" in name}
    assert {name: nested[name.replace("trf/", "trf/0/")] for name in in_module} == in_module
    assert len(set(in_module.values())) == 4 and nested["trf/linear/W"] == alone["trf/linear/W"]


def test_param_groups_decay_by_modules_that_are_layers():
    """Each of them has numbered parts, too."""

    def block():
        return PyTorchWrapper(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))

    nlp = pipeline_of(tagger=chain(*[chain(block(), Dropout(0.1)) for _ in range(4)]))
    optimizer = optimizer_for(nlp, SGD(), 1.0, layer_decay={"tagger/*": 0.5})
    rates = [info.learn_rate for info in optimizer.describe() if info.name.endswith("weight")]
    assert rates == [0.0625, 0.125, 0.25, 0.5]


def test_param_groups_decay_by_the_layers_that_there_are_now(tmp_path):
    """Another layer makes all others deeper. Oracle: an optimizer that met the model as it is now."""

    def optimizer_of(nlp):
        optimizer = optimizer_for(
            nlp,
            AdamW(),
            0.125,
            layer_decay={"trf/pytorch*": 0.5},
            new_params_warmup=0,
            param_groups={"norms": {"params": ["*/layer/*/1/*"], "learn_rate": 0.25}},
        )
        return optimizer

    def told_of(optimizer):
        return {info.name: (info.group, info.learn_rate) for info in optimizer.describe()}

    nlp, model = encoder_pipeline()
    optimizer = optimizer_of(nlp)
    run(optimizer, model, 1)
    before = told_of(optimizer)
    module = model.layers[0].shims[0]._model
    module.layer.append(copy.deepcopy(module.layer[0]))
    run(optimizer, model, 1)
    fresh = optimizer_of(nlp)
    fresh.step_schedules()
    fresh.step_schedules()
    assert told_of(optimizer) == told_of(fresh) != before
    updates = {info.name: info.updates for info in optimizer.describe()}
    assert updates == {name: 2 if name in before else 1 for name in updates}
    fresh.load_state_dict(optimizer.state_dict())
    assert told_of(optimizer) == told_of(fresh)
