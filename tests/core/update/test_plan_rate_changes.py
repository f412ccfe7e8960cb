"""What rules make of learning rates. Oracle: a dict of rates by param, to which the same is done by hand; and a plain
torch loop.
"""

import copy
import math
from fnmatch import fnmatchcase

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from thinc.api import PyTorchWrapper, warmup_linear

from thinc_torchopt.core.algorithms.torch_classes import SGD
from thinc_torchopt.core.errors import ConfigError, LearnRateIntegrityError, LearnRateWarning
from thinc_torchopt.core.settings.changes import RateChange, with_rate_change

from ...models import optimizer_for, pipeline_of

# By their names in the module: which blocks of PARAM_GROUPS hold for each.
BLOCKS = {"a1": "one", "a2": "one", "b1": "two", "b2": "two+odd", "c": "default"}
PARAM_GROUPS = {
    "one": {"params": ["tagger/a*"], "weight_decay": 0.0},
    "two": {"params": ["tagger/b*"], "weight_decay": 0.0},  # the same settings: one torch group, at first
    "odd": {"params": ["tagger/b2"], "learn_rate": 0.5},
}
RATE = 0.1


class Five(torch.nn.Module):
    def __init__(self, names=tuple(BLOCKS)):
        super().__init__()
        for name in names:
            self.register_parameter(name, torch.nn.Parameter(torch.ones(3)))


def setting(names=tuple(BLOCKS), rate=RATE, **options):
    nlp = pipeline_of(tagger=PyTorchWrapper(module := Five(names)))
    optimizer = optimizer_for(nlp, SGD(), rate, grad_clip=0.0, param_groups=PARAM_GROUPS, **options)
    return nlp, module, optimizer


def update(nlp, module, optimizer):
    for param in module.parameters():
        param.grad = torch.ones_like(param)
    with optimizer.joint_step():
        nlp.get_pipe("tagger").model.finish_update(optimizer)
    optimizer.step_schedules()


def rates_of(optimizer):
    return {info.name.removeprefix("tagger/"): info.learn_rate for info in optimizer.describe()}


def test_rate_changes_are_made_to_the_params_of_a_block_alone():
    nlp, module, optimizer = setting()
    update(nlp, module, optimizer)
    assert len(optimizer.torch_optimizers["algorithm"].param_groups) == 2
    optimizer.scale_learn_rates(["one"], 0.5)
    assert len(optimizer.torch_optimizers["algorithm"].param_groups) == 3
    before = {name: param.detach().clone() for name, param in module.named_parameters()}
    update(nlp, module, optimizer)
    # SGD with a gradient of ones: the step is the rate, in float32.
    steps = {name: float((before[name] - param.detach())[0]) for name, param in module.named_parameters()}
    assert steps == pytest.approx({"a1": 0.05, "a2": 0.05, "b1": 0.1, "b2": 0.5, "c": 0.1}, rel=1e-5)
    assert optimizer.learn_rates == {"default": 0.1, "one": 0.05, "two": 0.1, "two+odd": 0.5}
    # Equal again: one group again.
    optimizer.scale_learn_rates(["two"], 0.5)
    assert len(optimizer.torch_optimizers["algorithm"].param_groups) == 3
    update(nlp, module, optimizer)
    assert optimizer.learn_rates == {"default": 0.1, "one": 0.05, "two": 0.05, "two+odd": 0.25}


def test_rate_changes_stay_with_a_param_that_is_frozen_and_thawed():
    nlp, module, optimizer = setting()
    update(nlp, module, optimizer)
    optimizer.scale_learn_rates(["one"], 0.5)
    optimizer.freeze(["tagger/a*"])  # its group is gone
    update(nlp, module, optimizer)
    optimizer.scale_learn_rates(["one"], 0.1, 0.025)
    assert optimizer.learn_rates["one"] == 0.0
    optimizer.unfreeze(["tagger/a1"])
    update(nlp, module, optimizer)
    assert rates_of(optimizer) == pytest.approx({"a1": 0.025, "a2": 0.0, "b1": 0.1, "b2": 0.5, "c": 0.1})
    optimizer.unfreeze(["tagger/a2"])
    assert rates_of(optimizer)["a2"] == pytest.approx(0.025)


def test_rates_are_those_of_the_params_that_are_trained():
    """A group with a frozen param has the rate by which SGD moved the others; 0 is for a group that is frozen."""
    nlp, module, optimizer = setting()
    for frozen in ("a1", "c", "a2"):
        optimizer.freeze([f"tagger/{frozen}"])
        before = {name: param.detach().clone() for name, param in module.named_parameters()}
        update(nlp, module, optimizer)
        moved = {name: float((before[name] - param.detach())[0]) for name, param in module.named_parameters()}
        expected = {"one": max(moved["a1"], moved["a2"]), "default": moved["c"], "two": moved["b1"]}
        rates = optimizer.learn_rates
        assert {name: rates[name] for name in expected} == pytest.approx(expected, rel=1e-5)  # float32


def test_rates_have_the_name_of_the_group_while_any_param_of_it_is_trained():
    """Params that join at different steps warm up apart: one of the groups is frozen."""
    nlp, module, optimizer = setting(("a1", "b1", "b2"), new_params_warmup=100)
    update(nlp, module, optimizer)
    for name in ("a2", "a3", "a4"):
        module.register_parameter(name, torch.nn.Parameter(torch.ones(3)))
        optimizer.introduce(nlp)
        update(nlp, module, optimizer)
    assert set(optimizer.learn_rates) == {"one", "one+new", "one+new-2", "one+new-3", "two", "two+odd"}
    optimizer.freeze(["tagger/a2"])
    before = {name: param.detach().clone() for name, param in module.named_parameters()}
    update(nlp, module, optimizer)
    rates = {name: rate for name, rate in optimizer.learn_rates.items() if name.startswith("one+new")}
    moved = [float((before[name] - module.get_parameter(name).detach())[0]) for name in ("a3", "a4")]
    assert "one+new" in rates and sorted(rates.values()) == pytest.approx(sorted(moved), rel=1e-3)  # float32
    assert rates.keys() <= optimizer.rate_names


def test_rate_changes_are_those_of_params_that_come_later():
    nlp, module, optimizer = setting(("a1", "b1", "b2"), new_params_warmup=0)
    update(nlp, module, optimizer)
    optimizer.scale_learn_rates(["o*"], 0.5)
    optimizer.set_learn_rates(["t*"], 0.3)
    optimizer.scale_learn_rates(["two"], 0.5)
    for name in ("a2", "b3"):
        module.register_parameter(name, torch.nn.Parameter(torch.ones(3)))
    optimizer.introduce(nlp)
    update(nlp, module, optimizer)
    assert rates_of(optimizer) == pytest.approx({"a1": 0.05, "b1": 0.15, "b2": 0.15, "a2": 0.05, "b3": 0.15})


def test_rate_changes_take_no_rate_below_the_lowest():
    _, _, optimizer = setting()
    optimizer.rates.scale = 0.5  # of the run
    optimizer.scale_learn_rates(["*"], 0.01, 0.02)
    assert rates_of(optimizer) == pytest.approx({"a1": 0.02, "a2": 0.02, "b1": 0.02, "b2": 0.02, "c": 0.02})
    optimizer.scale_learn_rates(["one"], 0.5, 0.05)  # it is below that already
    assert rates_of(optimizer)["a1"] == pytest.approx(0.02)
    optimizer.scale_learn_rates(["one"], 2.0, 0.05)
    optimizer.set_learn_rates(["two"], 0.3)
    assert rates_of(optimizer) == pytest.approx({"a1": 0.04, "a2": 0.04, "b1": 0.3, "b2": 0.3, "c": 0.02})


def test_rate_changes_hold_where_the_rate_begins_at_zero():
    """Zero is below the lowest already, and half of zero is zero: the rates to come are halved."""
    nlp, module, optimizer = setting(rate=warmup_linear(RATE, 2, 100))
    optimizer.scale_learn_rates(["one"], 0.5, 0.02)
    update(nlp, module, optimizer)
    assert rates_of(optimizer) == pytest.approx(
        {"a1": RATE / 4, "a2": RATE / 4, "b1": RATE / 2, "b2": 0.5, "c": RATE / 2}
    )


def test_rate_changes_that_can_not_be_change_nothing():
    nlp, _, optimizer = setting()
    for texts, factor, message in (
        (["one"], 0.0, "above 0"),
        (["one", "nine"], 0.5, "'nine'.*matches none of the param groups"),
    ):
        with pytest.raises(ConfigError, match=message):
            optimizer.scale_learn_rates(texts, factor)
    with pytest.raises(ConfigError, match="at least 0"):
        optimizer.set_learn_rates(["one"], -1.0)
    assert rates_of(optimizer) == {"a1": 0.1, "a2": 0.1, "b1": 0.1, "b2": 0.5, "c": 0.1}
    assert nlp and optimizer.state_dict()["rate_changes"] == []


@pytest.mark.parametrize("policy", ["restore", "adopt", "raise"])
def test_rate_changes_lose_nothing_that_others_wrote(policy):
    """The group to which they wrote is another one after the change."""
    nlp, module, optimizer = setting(on_outside_write=policy)
    update(nlp, module, optimizer)
    optimizer.torch_optimizers["algorithm"].param_groups[0]["lr"] = 0.4
    expectation = pytest.raises(LearnRateIntegrityError) if policy == "raise" else pytest.warns(LearnRateWarning)
    with expectation:
        optimizer.scale_learn_rates(["one"], 0.5)
    if policy != "raise":
        others = 0.4 if policy == "adopt" else 0.1
        expected = {"a1": others / 2, "a2": others / 2, "b1": others, "b2": 0.5, "c": others}
        assert rates_of(optimizer) == pytest.approx(expected)
        assert optimizer.rates.outside_writes == 1


def test_rate_changes_are_few_however_often_rules_make_them():
    changes = []
    for _ in range(50):
        for name in ("one", "two"):
            changes = with_rate_change(changes, RateChange((name,), 0.999))
    assert [change.groups for change in changes] == [("one",), ("two",)]
    for _ in range(50):
        for change in (RateChange(("one",), rate=0.5), RateChange(("two",), 0.999), RateChange(("one",), 0.9)):
            changes = with_rate_change(changes, change)
    assert len(changes) < 10


# Patterns of groups, with the ops of a rule; "save" and "freeze" happen in between.
PATTERNS = ["one", "two", "odd", "two+odd", "default", "t*", "*"]
CHANGES = st.tuples(
    st.sampled_from(["scale", "limited scale", "set", "freeze", "unfreeze", "update", "save", "copy"]),
    st.sampled_from(PATTERNS),
    st.sampled_from([0.5, 0.9, 2.0]),
)


@given(st.lists(CHANGES, max_size=12))
@example([("limited scale", "two", 0.9)])
@example([("limited scale", "t*", 2.0)] * 3)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_rate_changes_in_any_order_are_those_of_a_dict(operations):
    nlp, module, optimizer = setting()
    rates = {name: 0.5 if "odd" in label else RATE for name, label in BLOCKS.items()}
    frozen: set[str] = set()
    for what, pattern, number in operations:
        chosen = [
            name
            for name, label in BLOCKS.items()
            if any(fnmatchcase(text, pattern) for text in {label, *label.split("+")})
        ]
        if what == "scale":
            optimizer.scale_learn_rates([pattern], number)
            rates |= {name: rates[name] * number for name in chosen}
        elif what == "limited scale":
            optimizer.scale_learn_rates([pattern], number, 0.06, 0.3)
            for name in chosen:
                low, high = (min(rates[name], 0.06), math.inf) if number < 1 else (0.0, max(rates[name], 0.3))
                rates[name] = min(max(rates[name] * number, low), high)
        elif what == "set":
            optimizer.set_learn_rates([pattern], number / 10)
            rates |= dict.fromkeys(chosen, number / 10)
        elif what == "freeze":
            optimizer.freeze([f"tagger/{name}" for name in chosen])
            frozen |= set(chosen)
        elif what == "unfreeze":
            optimizer.unfreeze([f"tagger/{name}" for name in chosen])
            frozen -= set(chosen)
        elif what == "update":
            update(nlp, module, optimizer)
        elif what == "save":
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = optimizer_for(nlp, SGD(), RATE, grad_clip=0.0, param_groups=PARAM_GROUPS)
            optimizer.load_state_dict(saved)
        else:
            nlp.get_pipe("tagger").model = nlp.get_pipe("tagger").model.copy()
            module = nlp.get_pipe("tagger").model.shims[0]._model
            optimizer.introduce(nlp)
        # A product of a dozen numbers, in another order: some roundings of 1e-16 each.
        expected = {name: 0.0 if name in frozen else rate for name, rate in rates.items()}
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12, abs=0)
        groups = [group for inner in optimizer.torch_optimizers.values() for group in inner.param_groups]
        assert all(group["params"] for group in groups)
        assert len(groups) >= len({rate for rate in expected.values() if rate})
