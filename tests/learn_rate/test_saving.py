"""History, saving, and going on."""

import copy
import json
from functools import partial

import pytest
import torch

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.algorithms.torch_classes import SGD
from thinc_torchopt.errors import ConfigError, LearnRateWarning, StateError
from thinc_torchopt.learn_rate import Adaptive, CircuitBreaker, LearnRateController
from thinc_torchopt.learn_rate.history import History

from ..models import toy_examples, toy_pipeline
from .kit import Clock, broken, checksum_of, fill_grads, make_params, quiet, rates_in, sgd


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
    assert [snapshot.step for snapshot in controller.history[-3:]] == [1202, 1203, 1204]
    with pytest.raises(IndexError):
        controller.history[1000]
    saved = json.loads(json.dumps(controller.history.state_dict()))
    assert list(History.from_state_dict(saved)) == list(controller.history)


def test_learn_rate_history_of_checksums_stays_as_it_was():
    """They are made when they are read, of what the groups were at that step."""
    optimizer = sgd(0.1)
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, 0.1)
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
    controller = LearnRateController(on_outside_write="adopt", breaker=CircuitBreaker(clock=Clock()), clock=Clock())
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
    assert second.rates == first.rates and second.verify() == []
    assert [rates_in(optimizer) for optimizer in fresh] == [rates_in(optimizer) for optimizer in optimizers]
    assert second.state_dict() == saved
    found += run(second, fresh, range(stop, 30))
    assert found == expected
    assert list(second.history) == list(whole.history) and second.step_count == 30
    assert second.state_dict() == whole.state_dict()


def test_learn_rate_goes_on_in_conservative_mode():
    clock = Clock()
    rates = [0.5, 0.5, 0.5] + [0.1 + i / 1000 for i in range(200)]
    controller, _ = broken(list(rates), clock=clock)
    for _ in range(50):
        controller.step()
    other = LearnRateController(breaker=CircuitBreaker(clock=clock))
    other.register_optimizer("m", sgd(0.5), list(rates))
    other.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    assert other.conservative and other.breaker.state == "open" and other.outside_writes == 3
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
        (["history"], KeyError, r"expected the parts .*, found none for \['history'\]"),
        (["extra"], 1, r"unexpected ones for \['extra'\]"),
        (
            ["groups", "slow"],
            KeyError,
            r"expected the param groups \['head', .*, found none for \['slow'\].*Register the same optimizers",
        ),
        (["groups", "fast"], {}, r"unexpected ones for \['fast'\]"),
        (["groups"], [1], "expected a dict of param groups, found"),
        (["groups", "slow", "rate"], KeyError, "Can't load 'slow' in the saved learn rates: expected a section with"),
        (
            ["groups", "slow", "rate"],
            "0.5",
            "'rate' in .* param group 'slow': expected a number of at least 0, found '0.5'",
        ),
        (["groups", "slow"], 0.5, "'slow' in the saved learn rates: expected a section"),
        (
            ["groups", "slow", "policy"],
            "Cosine",
            "'policy' in .* param group 'slow': expected 'Adaptive', found 'Cosine'",
        ),
        (["groups", "head", "parent"], "slow", "'parent' in .*: expected None, found 'slow'"),
        (
            ["groups", "slow", "policy_state", "bad"],
            -1,
            "'bad' in the learn rate policy 'adaptive': expected a whole number",
        ),
        (["groups", "mixed/0", "policy_state", "schedule", "position"], "x", "schedule of 'mixed/0'"),
        (
            ["groups", "mixed/0", "policy_state"],
            None,
            "'policy_state' in the schedule of 'mixed/0': expected a section with",
        ),
        (["step_count"], None, "expected what state_dict gives, found TypeError"),
        (["history", "snapshots"], [[0, 0, 7, [], 0.0]], "found IndexError"),
        (["mode", "clean_steps"], KeyError, "found KeyError"),
        (["mode", "breaker"], {}, "Can't load the state of a circuit breaker"),
    ],
)
def test_learn_rate_refuses_another_state(path, value, said):
    first, optimizers = everything()
    run(first, optimizers, range(7))
    second, others = everything()
    run(second, others, range(2))
    before = copy.deepcopy(second.state_dict()), [rates_in(optimizer) for optimizer in others]
    with pytest.raises((ConfigError, StateError), match=said):  # a schedule's own is a StateError
        second.load_state_dict(altered(first.state_dict(), path, value))
    assert (second.state_dict(), [rates_in(optimizer) for optimizer in others]) == before


def test_learn_rate_refuses_a_state_of_groups_in_another_order():
    def build(*shapes):
        optimizer = torch.optim.SGD([{"params": make_params(1, shape), "lr": 0.1} for shape in shapes])
        controller = LearnRateController()
        controller.register_optimizer("m", optimizer, "cosine")
        return controller

    saved = build((2, 3), (3, 4), (5,)).state_dict()
    with pytest.raises(
        ConfigError, match=r"expected param groups \['m/0', 'm/2'\] in the order in which they were saved"
    ):
        build((5,), (3, 4), (2, 3)).load_state_dict(saved)
    grown = build((2, 3), (3, 9), (5,))
    with pytest.warns(
        LearnRateWarning, match=r"Param groups \['m/1'\] have other params, shapes or options than when they were saved"
    ):
        grown.load_state_dict(saved)


# As it was written by the version before policies could be told from their sources; after three steps, each after a
# write of others.
OLD_STATE = """
{"step_count": 3, "outside_writes": 3, "scale": 1.0, "mode": {"is_on": true, "times": 1, "in_a_row": 3, "steps": 1,
"failures": 1, "clean_steps": 0, "failed_since_step": false, "breaker": {"failures_in_a_row": 3, "seconds_open":
0.0}}, "history": {"layouts": [{"ids": ["a/0", "a/1", "b", "c"], "checksums": ["5559193d9f0c6c0e", "9cf66fecde17c287",
"69da6f6eb945f640", "e8550c5eab62a0c2"]}], "snapshots": [[null, 0, 0, [0.1, 0.5, 0.3, 0.03], 7.0], [null, 1, 0,
[0.09999999753259892, 0.25, 0.15, 0.0975], 7.0]]}, "groups": {"a/0": {"start": 0, "base": 0.1, "factor": 1.0,
"held_rate": null, "rate": 0.09999999013039593, "applied_rate": 0.09999999013039593, "parent": null, "checksum":
"5559193d9f0c6c0e", "policy": "Cosine", "policy_state": null}, "a/1": {"start": 0, "base": 0.2, "factor": 1.0,
"held_rate": null, "rate": 0.125, "applied_rate": 0.125, "parent": null, "checksum": "9cf66fecde17c287", "policy":
"FromSchedule", "policy_state": {"schedule": {"position": 2, "source": null}, "is_due": true}},
"b": {"start": 0, "base": 0.3, "factor": 1.0, "held_rate": null, "rate": 0.075, "applied_rate": 0.075, "parent": null,
"checksum": "69da6f6eb945f640", "policy": "InRatesByMetrics", "policy_state": {"best": 1.0, "bad": 0, "cooling": 0,
"reductions": 2}}, "c": {"start": 0, "base": 0.3, "factor": 1.0, "held_rate": null, "rate": 0.0975, "applied_rate":
0.0975, "parent": null, "checksum": "e8550c5eab62a0c2", "policy": "InRates", "policy_state": null}}}
"""


def test_learn_rate_goes_on_from_a_state_of_an_older_version():
    first, clock = sgd(0.1, 0.2), Clock()
    controller = LearnRateController(breaker=CircuitBreaker(clock=clock))
    controller.register_optimizer("a", first, {0: "cosine", 1: [0.5, 0.25, 0.125, 0.0625]})
    controller.register_optimizer("b", sgd(0.3), "adaptive", patience=0, factor=0.5, min_rate=0.01)
    controller.register_optimizer("c", sgd(0.3), "warmup", warmup_steps=4)
    with pytest.warns(
        LearnRateWarning, match="have other params, shapes or options"
    ):  # it was saved with params of another shape
        controller.load_state_dict(json.loads(OLD_STATE))
    assert controller.conservative and controller.times_conservative == 1 and controller.outside_writes == 3
    assert [snapshot.rates["b"] for snapshot in controller.history] == [0.3, 0.15]
    # To the bit: what that version went on with.
    assert controller.step(metrics={"loss": 1.0}) == {
        "a/0": 0.09999997779339174,
        "a/1": 0.0625,
        "b": 0.0375,
        "c": 0.0975,
    }


def test_learn_rate_groups_of_an_optimizer_are_called_in_states_as_ever():
    """What their policies are called is compared when a checkpoint is loaded."""
    nlp = toy_pipeline(["tagger"], shared=False)
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples)
    blocks = {"w": {"params": ["*/W"], "policy": "adaptive"}, "b": {"params": ["*/b"], "policy": "cosine"}}
    optimizer = TorchOptimizer(SGD(), 0.01, param_groups=blocks)
    optimizer.initialize(nlp)
    nlp.update(examples, sgd=optimizer)
    groups = optimizer.controller.state_dict()["groups"]
    assert {id: (group["policy"], group["policy_state"] is not None) for id, group in groups.items()} == {
        "default": ("Live", False),
        "b": ("Live", False),
        "w": ("LiveByMetrics", True),
    }
