"""Param groups that are derived from params: what is kept when these change. Oracle: plain torch, and the same training
without the change.
"""

import contextlib
import copy

import numpy
import pytest
import torch
from thinc.api import Linear, PyTorchWrapper, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW, create
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import ConfigError, GrowthWarning, LearnRateWarning

from ...models import backprop, same, toy_pipeline

needs_library = pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")

BLOCKS = {"A": {"params": ["tagger/*"]}, "B": {"params": ["morphologizer/*"]}}
TWO = ("tagger", "morphologizer")


def two_models():
    """The params of both have the same values each time."""
    nlp = toy_pipeline(TWO, shared=False)
    for i, name in enumerate(TWO):
        nlp.get_pipe(name).model = model = chain(Linear(4, 5), Linear(3, 4)).initialize()
        rng = numpy.random.default_rng(i)
        for node in model.layers:
            for param in ("W", "b"):
                node.set_param(param, rng.normal(size=node.get_param(param).shape).astype("f"))
    return nlp


def told(nlp, algorithm, learn_rate=0.1, **settings):
    optimizer = TorchOptimizer(algorithm, learn_rate, **{"param_groups": BLOCKS, **settings})
    optimizer.initialize(nlp)
    return optimizer


def update(nlp, optimizer, seed, names=TWO):
    for name in names:
        backprop(nlp.get_pipe(name).model, numpy.random.default_rng(seed))
    with optimizer.joint_step():
        for name in names:
            nlp.get_pipe(name).model.finish_update(optimizer)
    optimizer.step_schedules()


def values(nlp, name):
    layers = nlp.get_pipe(name).model.layers
    return [torch.from_numpy(node.get_param(param).copy()) for node in layers for param in ("W", "b")]


def groups_of(optimizer):
    return optimizer.torch_optimizers["algorithm"].param_groups


@pytest.mark.parametrize(
    "move",
    [
        torch.nn.Module.double,
        torch.nn.Module.bfloat16,  # without a fused kernel
        lambda module: [setattr(param, "data", param.data.t().contiguous().t()) for param in module.parameters()],
    ],
)
def test_plan_gradients_of_params_that_moved_are_all_used(move):
    """A whole module goes to another dtype or memory order between two updates."""
    module = torch.nn.Sequential(torch.nn.Linear(5, 4, bias=False), torch.nn.Linear(4, 3, bias=False))
    rates = [0.5, 0.25, 0.125, 0.0625]
    model = PyTorchWrapper(module)
    optimizer = TorchOptimizer(SGD(), iter(rates), grad_clip=0.0, on_outside_write="raise")
    for step in range(3):
        if step == 1:
            move(module)
        plain = [torch.nn.Parameter(param.detach().clone()) for param in module.parameters()]
        for param, other in zip(module.parameters(), plain):
            param.grad = torch.full_like(param, 0.5)
            other.grad = param.grad.clone()
        torch.optim.SGD(plain, lr=rates[step]).step()
        model.finish_update(optimizer)
        optimizer.step_schedules()
        assert same([param.detach() for param in module.parameters()], [param.detach() for param in plain])


def test_plan_what_is_frozen_by_hand_waits_for_no_step():
    nlp = two_models()
    blocks = {"late": {"params": ["tagger/*"], "unfreeze_at": 2}}
    optimizer, before = told(nlp, AdamW(), param_groups=blocks), values(nlp, "tagger")
    update(nlp, optimizer, 0)
    optimizer.freeze(["tagger/*"])
    for step in range(4):
        update(nlp, optimizer, step)
    assert same(values(nlp, "tagger"), before)
    found = [info for info in optimizer.describe() if info.name.startswith("tagger/")]
    assert {(info.frozen_until, info.learn_rate) for info in found} == {(float("inf"), 0.0)}


def test_plan_an_unfreeze_that_is_refused_changes_nothing():
    nlp = two_models()
    blocks = {
        "A": {"params": ["tagger/*"], "freeze": True, "nesterov": True},
        "W": {"params": ["tagger/linear-0/*"], "momentum": 0.0},
    }
    optimizer = told(nlp, SGD(momentum=0.9), param_groups=blocks)
    update(nlp, optimizer, 0)
    before = optimizer.nr_update
    with pytest.raises(ConfigError, match=r"with the options of 'A\+W'"):
        optimizer.unfreeze(["tagger/*"])
    assert optimizer.nr_update == before and optimizer.state_dict()["freeze_changes"] == []
    optimizer.unfreeze(["tagger/linear-1/*"])
    update(nlp, optimizer, 1)
    other = told(nlp, SGD(momentum=0.9), param_groups=blocks)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.learn_rates == optimizer.learn_rates


def test_plan_a_name_that_is_refused_leaves_the_settings():
    nlp = two_models()
    blocks = {
        "A": {"params": ["re:^tag"], "nesterov": True},
        "W": {"params": ["re:^(tags|morph).*0/"], "momentum": 0.0},
    }
    optimizer = told(nlp, SGD(momentum=0.9), param_groups=blocks)
    before = [info.options for info in optimizer.describe()]
    nlp.rename_pipe("tagger", "tags")
    with pytest.raises(ConfigError, match="refuses them together"):
        optimizer.introduce(nlp)
    assert [info.options for info in optimizer.describe()] == before


def test_plan_adopted_rates_hold_for_params_that_are_thawed():
    """torch's scheduler drives all groups; a param that comes to one goes on as the others there."""
    nlp = two_models()
    optimizer = told(
        nlp, SGD(), on_outside_write="adopt", param_groups={"late": {"params": ["tagger/*"], "unfreeze_at": 3}}
    )
    for step in range(5):
        update(nlp, optimizer, step)
        with pytest.warns(LearnRateWarning) if not step else contextlib.nullcontext():
            for group in groups_of(optimizer):
                group["lr"] *= 0.5
            optimizer.rates.step()
    assert [len(group["params"]) for group in groups_of(optimizer)] == [8]
    assert list(optimizer.learn_rates.values()) == pytest.approx([0.1 * 0.5**5] * 2)


def test_plan_options_that_others_wrote_stay_when_a_group_is_split():
    nlp = two_models()
    optimizer = told(nlp, AdamW(weight_decay=0.0), on_outside_write="adopt")
    update(nlp, optimizer, 0)
    for group in groups_of(optimizer):
        group["weight_decay"] = 0.5
    with pytest.warns(LearnRateWarning, match="Options of param group"):
        update(nlp, optimizer, 1)
    optimizer.scale_learn_rates(["A"], 0.5)
    assert [group["weight_decay"] for group in groups_of(optimizer)] == [0.5, 0.5]


def test_plan_groups_are_called_after_their_own_params():
    nlp = two_models()
    optimizer = told(nlp, SGD())
    update(nlp, optimizer, 0)
    assert optimizer.rates.learn_rates.keys() == {"A"}
    for limits in ((-1.0, None), (0.0, -1.0)):
        with pytest.raises(ConfigError, match="_rate' in the learn rate controller: expected a number of at least 0"):
            optimizer.scale_learn_rates(["A"], 0.5, *limits)
    groups = groups_of(optimizer)
    optimizer.scale_learn_rates(["*"], 1.0)
    assert len(groups) == 1 and groups_of(optimizer)[0] is groups[0]
    optimizer.scale_learn_rates(["A"], 0.5)
    ids = {info.group: info.learn_rate for info in optimizer.describe()}
    assert ids == {"A": 0.05, "B": 0.1}
    update(nlp, optimizer, 1)
    assert optimizer.rates.learn_rates == {"A": 0.05, "B": 0.1}
    optimizer.scale_learn_rates(["B"], 0.5)
    update(nlp, optimizer, 2)
    other = told(nlp, SGD())
    other.load_state_dict(optimizer.state_dict())
    assert [group["lr"] for group in groups_of(other)] == [0.05]
    assert optimizer.rates.learn_rates == other.rates.learn_rates == {"B": 0.05}


@needs_library
def test_plan_groups_with_a_state_become_one_when_they_are_alike_again():
    """Prodigy finds the size of its steps in each group. What was found for a param stays with it."""

    def found_in(optimizer):
        return {
            name: float(found["state"]["of_group"]["d"]) for name, found in optimizer.state_dict()["params"].items()
        }

    nlp, other_nlp = two_models(), two_models()
    optimizer = told(nlp, create("prodigy"), 1.0)
    for step in range(3):
        update(nlp, optimizer, step)
    optimizer.scale_learn_rates(["A"], 0.5)
    for step in range(5):
        update(nlp, optimizer, step, ("morphologizer",))
    found = found_in(optimizer)
    assert len(set(found.values())) == 2
    optimizer.scale_learn_rates(["B"], 0.5)  # the same rates again
    assert len(groups_of(optimizer)) == 1 and found_in(optimizer) == found
    for name in TWO:
        nlp.get_pipe(name).model = nlp.get_pipe(name).model.copy()
    optimizer.introduce(nlp)
    assert found_in(optimizer) == found
    for name in TWO:
        other_nlp.get_pipe(name).model.from_bytes(nlp.get_pipe(name).model.to_bytes())
    other = told(other_nlp, create("prodigy"), 1.0)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(6):
        for pipeline, each in ((nlp, optimizer), (other_nlp, other)):
            update(pipeline, each, step, TWO[step % 2 :][:1])
        assert all(same(values(nlp, name), values(other_nlp, name)) for name in TWO)


@needs_library
def test_plan_what_is_loaded_frozen_begins_anew_when_it_is_thawed():
    """Its count too, by which these correct their moments."""
    found = []
    for frozen in (True, False):
        nlp = two_models()
        optimizer = told(nlp, create("adabelief"), 0.01, param_groups={"A": {"params": ["tagger/*"], "freeze": frozen}})
        for step in range(3):
            update(nlp, optimizer, step)
        other_nlp = two_models()
        late = {"A": {"params": ["tagger/*"], "unfreeze_at": 4}}
        other = told(other_nlp, create("adabelief"), 0.01, param_groups=late)
        if frozen:
            other.load_state_dict(optimizer.state_dict(), on_growth="mean")
        else:
            with pytest.warns(GrowthWarning, match="dropped: all 4 params of tagger"):
                other.load_state_dict(optimizer.state_dict(), on_growth="mean")
        for step in range(3):
            update(other_nlp, other, step, ("tagger",))
        found.append(values(other_nlp, "tagger"))
    assert same(*found) and not same(found[0], values(two_models(), "tagger"))
