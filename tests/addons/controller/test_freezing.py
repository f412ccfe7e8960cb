"""Rules that freeze and unfreeze params in the course of a training, torch's among them. The oracles: torch's own
`requires_grad`, the values of params, and the same training without a stop.
"""

import re

import pytest
import torch
from spacy.util import registry
from thinc.api import Model, PyTorchWrapper, chain, with_array

from thinc_torchopt.core.state.files import read_folder
from thinc_torchopt.loop.run import Run

from ...models import TOK2VEC, WIDTH
from .kit import config_for, definition, part, rule, run, same_params

SMALL = {**TOK2VEC, "depth": 1}


class Spoils(torch.nn.Module):
    """Makes the batches of some steps NaN."""

    step, steps = -1, ()

    def forward(self, X):
        return X * torch.nan if self.training and self.step in self.steps else X


@registry.architectures("test-freezing.Tok2Vec.v1")
def tok2vec(below: Model, width: int) -> Model:
    """thinc's layers, and on them two of torch's, the second with statistics of its own."""
    module = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), Spoils()
    )
    return chain(below, with_array(PyTorchWrapper(module)))


def control(name, *params):
    return part(name, "FreezeControl", params=list(params))


def at(step, *operations, event="on_step_end"):
    return rule(f"at-{step}", event, f'state["step"] == {step}', *operations)


def prepared(folder, corpus, rules, *, steps=12, **optimizer):
    config = config_for(folder, corpus, rules, steps=steps, checkpoint=True, **optimizer)
    tok2vec = {"@architectures": "test-freezing.Tok2Vec.v1", "below": SMALL, "width": WIDTH}
    config["components"]["tagger"]["model"]["tok2vec"] = tok2vec
    config["training"]["optimizer"]["checkpoint"] |= {"every": 1, "keep": 99}
    return config


def saved(folder, step):
    return read_folder(folder / "state" / f"step-{step:08d}")


def modules_of(folder, step):
    """The values of the torch module, by the names that torch has for them."""
    [module] = saved(folder, step)["model"]["modules"].values()
    return module


def changed(folder, one, other):
    left, right = modules_of(folder, one), modules_of(folder, other)
    return {name for name in left if not torch.equal(left[name], right[name])}


PARAMS = {f"{i}.{name}" for i in range(3) for name in ("weight", "bias")}
FIRST = {"0.weight", "0.bias"}
FROZEN = re.compile("/0/(weight|bias)$")
STATISTICS = {"2.running_mean", "2.running_var", "2.num_batches_tracked"}


@pytest.mark.parametrize("event", ["on_step_end", "on_pre_optimizer_step", "on_substep_end"])
def test_freezing_torch_params(event, corpus, tmp_path, monkeypatch):
    """Within an update, from its end on. While they are frozen torch computes no gradients for them; between the
    steps, `requires_grad` is the user's.
    """
    inside, between = {}, {}
    forward, begin_step = torch.nn.Sequential.forward, Run.begin_step

    def learning(module):
        return {name for name, param in module.named_parameters() if param.requires_grad}

    def look_inside(self, X):
        if torch.is_grad_enabled():
            inside[len(between) - 1] = learning(self)
        return forward(self, X)

    def look_between(self, batch):
        [module] = [shim._model for node in self.nlp.get_pipe("tagger").model.walk() for shim in node.shims]
        between[len(between)] = learning(module)
        begin_step(self, batch)

    monkeypatch.setattr(torch.nn.Sequential, "forward", look_inside)
    monkeypatch.setattr(Run, "begin_step", look_between)
    rules = definition(
        at(3, "first.should_freeze", event=event),
        at(7, "first.should_unfreeze", event=event),
        operations=[control("first", "*/0/weight", "*/0/bias")],
    )
    config = prepared(tmp_path, corpus, rules)
    run(config)
    assert changed(tmp_path, 2, 3) == changed(tmp_path, 7, 8) == PARAMS | STATISTICS
    assert changed(tmp_path, 3, 7) == (PARAMS - FIRST) | STATISTICS
    assert {step for step, names in inside.items() if names == PARAMS - FIRST} == {4, 5, 6, 7}
    assert all(names == PARAMS for step, names in inside.items() if not 4 <= step <= 7)
    assert all(names == PARAMS for names in between.values()) and len(inside) == len(between) == 13
    for step in range(3, 7):
        assert changed(tmp_path, step, step + 1) == (PARAMS - FIRST) | STATISTICS
    params = saved(tmp_path, 12)["optimizer"]["params"]
    assert {params[name]["updates"] for name in params if FROZEN.search(name)} == {5}  # since it thawed


def test_freezing_a_whole_torch_module(corpus, tmp_path):
    """thinc's layers below it learn all the same, through it."""
    rules = definition(
        at(3, "all.should_freeze"), at(6, "all.should_unfreeze"), operations=[control("all", "*/weight", "*/bias")]
    )
    run(prepared(tmp_path, corpus, rules, steps=8))
    assert changed(tmp_path, 3, 6) == STATISTICS and changed(tmp_path, 6, 7) == PARAMS | STATISTICS
    before, after = (saved(tmp_path, step)["model"]["params"] for step in (3, 6))
    assert not any(torch.equal(before[name], after[name]) for name in before)


AVERAGES = {"averages": {"@misc": "thinc-torchopt.EMA.v1", "decay": 0.9, "buffers": "copy"}}


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.NonFiniteGradWarning")
@pytest.mark.parametrize(
    "settings",
    [pytest.param({"use_averages": True}, marks=pytest.mark.slow), AVERAGES],
    ids=["averages", "copied buffers"],
)
def test_freezing_resumes_exactly(settings, corpus, tmp_path, monkeypatch):
    """Stopped before, while and after torch's params are frozen; with updates that the guard skips in between, where
    it brings back what the batch left in buffers.
    """
    begin_step = Run.begin_step

    def begin(self, batch):
        Spoils.step = self.progress.step + 1
        begin_step(self, batch)

    monkeypatch.setattr(Run, "begin_step", begin)
    monkeypatch.setattr(Spoils, "steps", (3, 6, 8, 10))
    rules = definition(
        at(3, "first.should_freeze", "lower.should_freeze"),
        at(8, "first.should_unfreeze", "lower.should_unfreeze"),
        operations=[control("first", "*/0/weight", "*/0/bias"), control("lower", "*embed*")],
    )
    whole, infos, _ = run(prepared(tmp_path / "a", corpus, rules, **settings))
    for stop in (2, 5, 9, 11, None):
        resumed, *_ = run(prepared(tmp_path / "b", corpus, rules, **settings), crash_at=stop)
    assert infos[12]["skipped_updates"] == 4
    assert same_params(whole, resumed)
    left, right = modules_of(tmp_path / "a", 12), modules_of(tmp_path / "b", 12)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert all(torch.isfinite(value).all() for value in left.values())
    assert changed(tmp_path / "a", 2, 8) == (PARAMS - FIRST) | STATISTICS
    assert changed(tmp_path / "a", 8, 9) == PARAMS | STATISTICS


def test_freezing_and_averages(corpus, tmp_path):
    """What is frozen is evaluated as it is; its average begins anew when it thaws."""
    rules = definition(
        at(3, "first.should_freeze"), at(8, "first.should_unfreeze"), operations=[control("first", "*/0/weight")]
    )
    averages = {"@misc": "thinc-torchopt.EMA.v1", "decay": 0.5, "warmup": "torch"}
    run(prepared(tmp_path, corpus, rules, averages=averages))

    def average(step):
        params = saved(tmp_path, step)["optimizer"]["averages"]["tensors"]
        return next((value for name, value in params.items() if name.endswith("/0/weight")), None)

    assert average(2) is not None and not torch.equal(average(2), modules_of(tmp_path, 2)["0.weight"])
    assert average(5) is None
    nine = modules_of(tmp_path, 9)["0.weight"]
    assert torch.equal(average(9), nine)
    expected = nine
    for step in (10, 11, 12):
        expected = 0.5 * expected + 0.5 * modules_of(tmp_path, step)["0.weight"]
    assert torch.allclose(average(12), expected, rtol=1e-6)
