"""History, saving, and going on."""

import copy
import json
import pickle
from functools import partial

import pytest
import torch

from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.addons.own_loops.policies import Adaptive
from thinc_torchopt.core.errors import ConfigTypeError, LearnRateWarning, StateError

from .kit import broken, checksum_of, controlled, fill_grads, make_params, quiet, rates_in, sgd


def test_learn_rate_history_keeps_a_thousand_steps():
    now = iter(range(10_000))
    optimizer = sgd(0.1, 0.2)
    controller = LearnRateController(clock=lambda: next(now))
    controller.register_optimizer("m", optimizer, lambda step: step / 1e4)
    assert len(controller.history) == 0 and list(controller.history) == []
    for step in range(1205):
        if step == 1100:
            controller.add_params("m", make_params())
        controller.step(step // 100)
    assert len(controller.history) == 1000
    assert [snapshot.step for snapshot in controller.history] == list(range(205, 1205))
    first, last = controller.history[0], controller.history[-1]
    assert (first.epoch, first.step, first.time, first.rates) == (2, 205, 205, {"m/0": 0.0205, "m/1": 0.0205})
    assert list(last.rates) == ["m/0", "m/1", "m/2"] == list(last.checksums)
    assert last.rates["m/0"] == 0.1204 and last.checksums == controller.checksums
    assert list(first.checksums) == ["m/0", "m/1"]


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_learn_rate_controller_can_not_be_copied(copied):
    controller = controlled(sgd(0.1), 0.1)
    with pytest.raises(ConfigTypeError, match=r"copy or pickle a LearnRateController: it belongs to .* state_dict\(\)"):
        copied(controller)


def test_learn_rate_history_of_checksums_stays_as_it_was():
    """They are made when they are read, of what the groups were at that step."""
    optimizer = sgd(0.1)
    controller = controlled(optimizer, 0.1)
    expected = checksum_of(sgd(0.1))
    controller.step()
    optimizer.param_groups[0]["params"] = make_params(3)
    controller.refresh("m")
    controller.step()
    assert controller.history[0].checksums == {"m": expected} != controller.history[1].checksums


def everything(shared=None):
    """A controller with every kind of policy, and its optimizers."""
    optimizers = [sgd(0.1, 0.2), torch.optim.AdamW(make_params(), lr=0.01), sgd(0.3, 0.4), sgd(0.5)]
    shared = shared or (1 / (1 + step) for step in range(1000))
    controller = LearnRateController(on_outside_write="adopt", clock=lambda: 0.0)
    controller.register_optimizer("host", optimizers[0], "cosine", total_steps=40, warmup_steps=5)
    controller.register_optimizer("head", optimizers[1], "warmup", steps=30)
    controller.register_optimizer("mixed", optimizers[2], {0: shared, 1: "frozen"})
    controller.register_optimizer("slow", optimizers[3], Adaptive(patience=1))
    return controller, optimizers


def run(controller, optimizers, steps):
    rates = []
    for step in steps:
        if step == 3:
            optimizers[0].param_groups[1]["lr"] = 0.7  # adopted, as 0.0 stands there: held
        if step == 4:
            optimizers[1].param_groups[0]["lr"] *= 3  # adopted as a factor
        metrics, scale = {"loss": abs(step - 9)}, 0.5 if step == 11 else 1.0
        rates.append(quiet(partial(controller.step, step // 4, metrics, scale=scale)))
        for optimizer in optimizers:
            fill_grads(optimizer)
            optimizer.step()
    return rates


@pytest.mark.parametrize("stop", [1, 4, 12, 21])
def test_learn_rate_goes_on_exactly(stop):
    whole, optimizers = everything()
    whole.add_params("head", make_params())
    expected = run(whole, optimizers, range(30))
    first, optimizers = everything()
    first.add_params("head", make_params())
    found = run(first, optimizers, range(stop))
    saved = json.loads(json.dumps(first.state_dict(), allow_nan=False))
    second, fresh = everything()
    second.add_params("head", make_params())
    second.load_state_dict(saved)
    assert second.learn_rates == first.learn_rates and second.verify() == []
    assert [rates_in(optimizer) for optimizer in fresh] == [rates_in(optimizer) for optimizer in optimizers]
    assert second.state_dict() == saved
    found += run(second, fresh, range(stop, 30))
    assert found == expected
    assert list(second.history) == list(whole.history)[stop:] and second.step_count == 30
    assert second.state_dict() == whole.state_dict()


def test_learn_rate_goes_on_in_conservative_mode():
    rates = [0.5, 0.5, 0.5] + [0.1 + i / 1000 for i in range(200)]
    controller, _ = broken(list(rates))
    for _ in range(50):
        controller.step()
    other = controlled(sgd(0.5), list(rates))
    other.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    assert other.conservative and other.outside_writes == 3
    for step in range(53, 110):
        assert other.step() == controller.step(), step
        assert other.conservative == controller.conservative == (step < 102)


def altered(state, path, value):
    state = copy.deepcopy(state)
    *parents, last = path
    place = state
    for key in parents:
        place = place[key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return state


@pytest.mark.parametrize(
    "path, value, said",
    [
        (["scale"], KeyError, "found one without scale"),
        (["extra"], 1, "found one with extra"),
        (["groups", "slow"], KeyError, "'groups' to be a dict with head.*found one without slow"),
        (["groups"], [1], "'groups' to be a dict, found list"),
        (["groups", "slow", "rate"], KeyError, "'groups/slow' to be a dict with .*found one without rate"),
        (["groups", "slow", "rate"], "0.5", "'groups/slow/rate' to be a number of at least 0, found '0.5'"),
        (["groups", "slow"], 0.5, "'groups/slow' to be a dict, found 0.5"),
        (["groups", "slow", "policy"], "Cosine", "'groups/slow/policy' to be 'Adaptive', found 'Cosine'"),
        (["groups", "head", "parent"], "slow", "'groups/head/parent' to be None, found 'slow'"),
        (["groups", "slow", "policy_state", "bad_evaluations"], -1,
         "policy 'adaptive': expected 'bad_evaluations' to be a whole number"),
        (["groups", "mixed/0", "policy_state", "schedule", "position"], "x", "mixed/0"),
        (["groups", "mixed/0", "policy_state"], None, "schedule of 'mixed/0': expected a dict"),
        (["step_count"], None, "'step_count' to be a whole number from 0"),
        (["mode", "clean_steps"], KeyError, "'mode' to be a dict with .*found one without clean_steps"),
    ],
)  # fmt: skip
def test_learn_rate_refuses_another_state(path, value, said):
    first, optimizers = everything()
    run(first, optimizers, range(7))
    second, others = everything()
    run(second, others, range(2))
    before = copy.deepcopy(second.state_dict()), [rates_in(optimizer) for optimizer in others]
    with pytest.raises(StateError, match=said):
        second.load_state_dict(altered(first.state_dict(), path, value))
    assert (second.state_dict(), [rates_in(optimizer) for optimizer in others]) == before


@pytest.mark.parametrize(
    "shapes, found", [([(5,), (3, 4), (2, 3)], r"\['m/0', 'm/2'\]"), ([(2, 3), (3, 9), (5,)], r"\['m/1'\]")]
)
def test_learn_rate_tells_of_other_groups_than_those_of_the_state(shapes, found):
    def build(shapes):
        optimizer = torch.optim.SGD([{"params": make_params(1, shape), "lr": 0.1} for shape in shapes])
        controller = controlled(optimizer, "cosine")
        return controller

    saved = build([(2, 3), (3, 4), (5,)]).state_dict()
    with pytest.warns(LearnRateWarning, match=f"Param groups {found} have other params, shapes or options than when"):
        build(shapes).load_state_dict(saved)
