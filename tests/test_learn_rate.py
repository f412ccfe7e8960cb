"""Oracles: torch's own schedulers, plain loops, and a plain list of what stood in each group."""

import copy
import json
import logging
import math
import re
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler as torchs

from thinc_torchopt.errors import ConfigError, LearnRateIntegrityError, LearnRateWarning
from thinc_torchopt.learn_rate import LearnRateController, runtime_guards
from thinc_torchopt.learn_rate.conservative import CircuitBreaker
from thinc_torchopt.learn_rate.history import History
from thinc_torchopt.learn_rate.policies import Adaptive, Cosine, FromFunction, FromSchedule, Warmup
from thinc_torchopt.state.preserve import preserve_optimizer_state


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    """On a busy machine anything may take too long for a budget, which is logged: see test_runtime_guards.py."""
    monkeypatch.setattr(runtime_guards, "BUDGETS", dict.fromkeys(runtime_guards.BUDGETS, math.inf))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def make_params(n=1, shape=(3, 2)):
    return [torch.nn.Parameter(torch.randn(shape)) for _ in range(n)]


def sgd(*rates, **options):
    """An SGD with a param group of one param for each rate."""
    return torch.optim.SGD([{"params": make_params(), "lr": rate} for rate in rates], **options)


def fill_grads(optimizer):
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)


def rates_in(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


# ---------------------------------------------------------------- rates


def test_learn_rate_several_optimizers_side_by_side():
    """Each group equals the torch scheduler of its policy, applied to a twin."""
    host, new, plateau, fixed = sgd(0.1, 0.02), sgd(0.5), sgd(0.3, 0.6), sgd(0.25, 0.125)
    twins = [sgd(0.1, 0.02), sgd(0.5), sgd(0.3, 0.6)]
    theirs = [
        torchs.CosineAnnealingLR(twins[0], 20),
        torchs.LinearLR(twins[1], 0.01, total_iters=10),
        torchs.ReduceLROnPlateau(twins[2], patience=2),
    ]
    controller = LearnRateController()
    assert controller.register_optimizer("host", host, "cosine", total_steps=20) == ["host/0", "host/1"]
    assert controller.register_optimizer("new", new, "warmup", steps=10) == ["new"]
    controller.register_optimizer("plateau", plateau, "adaptive", patience=2)
    controller.register_optimizer("fixed", fixed, {0: "frozen", 1: lambda step: 1 / (1 + step)})
    for step in range(20):
        loss = max(5 - step, 0)
        theirs[2].step(loss)
        rates = controller.step(step // 5, {"loss": loss})
        expected = [rate for twin in twins for rate in rates_in(twin)] + [0.0, 1 / (1 + step)]
        # torch multiplies the rate of the step before, and gathers roundings of 1e-16 each.
        assert list(rates.values()) == pytest.approx(expected, rel=1e-9, abs=1e-13)
        assert list(rates.values()) == [rate for optimizer in (host, new, plateau, fixed) for rate in rates_in(optimizer)]
        assert list(rates) == ["host/0", "host/1", "new", "plateau/0", "plateau/1", "fixed/0", "fixed/1"]
        assert controller.rates == rates
        for twin, scheduler in zip(twins[:2], theirs[:2]):
            twin.step()
            scheduler.step()
    assert rates["plateau/0"] < 0.3 and controller.step_count == 20 and controller.outside_writes == 0


def test_learn_rate_groups_may_come_later_and_count_their_own_steps():
    controller = LearnRateController()
    controller.register_optimizer("a", sgd(1.0), "warmup", steps=4, start_factor=0.0)
    for _ in range(2):
        controller.step()
    controller.register_optimizer("b", sgd(1.0), "warmup", steps=4, start_factor=0.0)
    assert controller.step() == {"a": 0.5, "b": 0.0}


def test_learn_rate_registering_changes_nothing():
    optimizer = sgd(0.1)
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, "warmup")
    assert rates_in(optimizer) == [0.1] and controller.rates == {"m": 0.1} and controller.verify() == []


def test_learn_rate_shared_schedules_move_once_a_step():
    values, shared = iter([0.5, 0.25, 0.125, 0.0625]), FromSchedule([3.0, 2.0, 1.0])
    controller = LearnRateController()
    controller.register_optimizer("a", sgd(0.1, 0.1), values)
    controller.register_optimizer("b", sgd(0.1), values)
    controller.register_optimizer("c", sgd(0.1), shared)
    controller.register_optimizer("d", sgd(0.1), shared)
    controller.register_optimizer("e", sgd(0.1), FromFunction(lambda step: controller.step_count / 10))
    for step in range(3):
        rates = list(controller.step().values())
        assert rates == [0.5 / 2**step] * 3 + [3.0 - step] * 2 + [step / 10]


def test_learn_rate_ids_are_stable():
    controller = LearnRateController()
    named = torch.optim.SGD(
        [{"params": make_params(), "name": "head"}, {"params": make_params()}, {"params": make_params(), "name": "head"}], lr=0.1
    )
    assert controller.register_optimizer("m", named, 0.1) == ["m/head", "m/1", "m/head-2"]
    single = sgd(0.1)
    assert controller.register_optimizer("single", single, 0.1) == ["single"]
    assert controller.add_params("single", make_params()) == "single/1"
    assert controller.register_optimizer("single/1", sgd(0.2), 0.2) == ["single/1-2"]
    assert controller.add_params(single, make_params()) == "single/2"
    assert list(controller.step()) == ["m/head", "m/1", "m/head-2", "single", "single/1", "single/1-2", "single/2"]


def test_learn_rate_scale_is_of_one_step_only():
    optimizer = sgd(0.5)
    controller = LearnRateController(on_outside_write="raise")
    controller.register_optimizer("m", optimizer, [0.5, 0.4, 0.3, 0.2])
    assert controller.step(scale=0.5) == {"m": 0.25} and rates_in(optimizer) == [0.25]
    optimizer.step()
    assert controller.step() == {"m": 0.4}
    assert controller.step(scale=0.0) == {"m": 0.0}
    with pytest.raises(ConfigError, match=r"found -0\.2"):
        controller.step(scale=-1.0)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, None, "high"])
def test_learn_rate_refuses_rates_that_are_none(bad):
    first, second = sgd(0.1), sgd(0.1)
    controller = LearnRateController()
    controller.register_optimizer("first", first, lambda step: 0.2 + step)
    controller.register_optimizer("second", second, FromFunction(lambda step: 0.2 if controller.step_count == 0 else bad))
    controller.step()
    said = f"Can't set 'learn_rate' in 'second': expected a number of at least 0, found {bad!r}."
    with pytest.raises(ConfigError, match=re.escape(said)):
        controller.step()
    assert rates_in(first) == [0.2] and controller.step_count == 1 and controller.verify() == []
    if not isinstance(bad, float):
        return
    broken = sgd(0.1)
    broken.param_groups[0]["lr"] = bad
    with pytest.raises(ConfigError, match=f"Can't set 'learn_rate' in 'm/0': expected a number of at least 0, found {bad}"):
        controller.register_optimizer("m", broken, "cosine")
    assert "m" not in controller.rates


def test_learn_rate_takes_numbers_of_any_kind():
    optimizer = sgd(0.1)
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, lambda step: [torch.tensor(0.5), 1, torch.tensor(0.25).numpy()][step])
    for expected in (0.5, 1.0, 0.25):
        assert controller.step() == {"m": expected}
        assert type(optimizer.param_groups[0]["lr"]) is float


def test_learn_rate_refuses_what_can_not_be_registered():
    controller, optimizer = LearnRateController(), sgd(0.1)
    controller.register_optimizer("m", optimizer, "cosine")
    for name, other, policy, said in [
        ("m", sgd(0.1), "cosine", "Can't register optimizer 'm': expected a new one, found this name"),
        ("n", optimizer, "cosine", "found this optimizer, known as 'm'"),
        ("n", "SGD", "cosine", "expected a name and a torch optimizer, found str"),
        ("", sgd(0.1), "cosine", "expected a name"),
        ("n", sgd(0.1), "steep", "expected one of"),
        ("n", sgd(0.1, 0.1), {0: "cosine"}, "expected one for each"),
    ]:
        with pytest.raises(ConfigError, match=said):
            controller.register_optimizer(name, other, policy)
    with pytest.raises(
        ConfigError, match="'on_outside_write' in the learn rate controller: expected 'restore', 'adopt' or 'raise', found 'ig"
    ):
        LearnRateController(on_outside_write="ignore")
    with pytest.raises(ConfigError, match=r"expected a dict of names and numbers, found 0.5"):
        controller.step(0, 0.5)
    assert list(controller.rates) == ["m"]


def test_learn_rate_unregistered_optimizers_are_left_as_they_are():
    optimizer = sgd(0.1)
    controller = LearnRateController(on_outside_write="raise")
    controller.register_optimizer("m", optimizer, "frozen")
    controller.step()
    controller.unregister_optimizer("m")
    assert rates_in(optimizer) == [0.0] and not optimizer._optimizer_step_pre_hooks
    optimizer.param_groups[0]["lr"] = 0.5
    fill_grads(optimizer)
    before = optimizer.param_groups[0]["params"][0].detach().clone()
    optimizer.step()
    assert not torch.equal(before, optimizer.param_groups[0]["params"][0])
    assert controller.step() == {} and controller.verify() == []
    with pytest.raises(ConfigError, match=r"Can't find the optimizer: expected one of \[\], found 'm'"):
        controller.unregister_optimizer("m")
    assert controller.register_optimizer("m", optimizer, "cosine") == ["m"]


# ---------------------------------------------------------------- writes of others

MESSAGE = (
    "Learn rate of param group 'transformer' was changed outside its schedule at step 3: expected 2e-05, found 0.001. "
    'Something else writes group["lr"], often a torch scheduler. Remove it, or set on_outside_write = "adopt".'
)


def watched(mode, *, policy=2e-5, **options):
    optimizer = sgd(2e-5, 0.5)
    optimizer.param_groups[0]["name"], optimizer.param_groups[1]["name"] = "transformer", "head"
    controller = LearnRateController(on_outside_write=mode, **options)
    controller.register_optimizer("m", optimizer, policy if isinstance(policy, dict) else {"transformer": policy, "head": 0.5})
    return controller, optimizer


def run_with_a_write(controller, optimizer):
    for _ in range(3):
        controller.step()
        fill_grads(optimizer)
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 1e-3


def test_learn_rate_restores_what_user_code_wrote():
    controller, optimizer = watched("restore")
    run_with_a_write(controller, optimizer)
    assert controller.outside_writes == 0
    with pytest.warns(LearnRateWarning) as warned:
        assert controller.step() == {"m/transformer": 2e-5, "m/head": 0.5}
    done = MESSAGE.replace("'transformer'", "'m/transformer'").replace("0.001. ", "0.001. The change was undone. ")
    assert [str(warning.message) for warning in warned] == [done]
    assert warned[0].filename == __file__
    assert rates_in(optimizer) == [2e-5, 0.5] and controller.outside_writes == 1
    optimizer.param_groups[0]["lr"] = 1e-3
    controller.step()  # does not warn again
    assert rates_in(optimizer) == [2e-5, 0.5] and controller.outside_writes == 2
    optimizer.param_groups[1]["lr"] = 1e-3
    with pytest.warns(LearnRateWarning, match="'m/head' was changed outside its schedule at step 5: expected 0.5, found 0.001"):
        controller.step()


def test_learn_rate_raises_what_user_code_wrote():
    controller, optimizer = watched("raise")
    run_with_a_write(controller, optimizer)
    optimizer.param_groups[1]["lr"] = 0.25
    with pytest.raises(LearnRateIntegrityError) as raised:
        controller.step()
    error = raised.value
    assert str(error) == MESSAGE.replace("'transformer'", "'m/transformer'")
    assert (error.group, error.step, error.what, error.expected, error.found) == ("m/transformer", 3, "learn_rate", 2e-5, 1e-3)
    assert [(other.group, other.expected, other.found) for other in error.others] == [("m/head", 0.5, 0.25)]
    assert isinstance(error, RuntimeError)
    assert rates_in(optimizer) == [1e-3, 0.25] and controller.step_count == 3
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 2e-5, 0.5
    assert controller.step() == {"m/transformer": 2e-5, "m/head": 0.5}


def test_learn_rate_adopts_what_user_code_wrote():
    controller, optimizer = watched("adopt", policy=Cosine(20))
    run_with_a_write(controller, optimizer)
    expected = 2e-5 * 0.5 * (1 + math.cos(math.pi * 2 / 20))
    with pytest.warns(LearnRateWarning, match="The change is kept"):
        controller.step()
    for step in range(4, 20):
        # What the policy would give, times found / expected; a few roundings.
        rate = 1e-3 / expected * 2e-5 * 0.5 * (1 + math.cos(math.pi * step / 20))
        assert controller.step() == pytest.approx({"m/transformer": rate, "m/head": 0.5}, rel=1e-12)
    optimizer.param_groups[0]["lr"] = 0.7
    controller.step()  # does not warn again
    assert controller.outside_writes == 2 and controller.breaker.state == "closed"


def test_learn_rate_adopted_rates_of_constants_and_zeros_stay():
    controller, optimizer = watched("adopt", policy="frozen")
    controller.step()
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 1e-3, 0.3
    with pytest.warns(LearnRateWarning):
        rates = controller.step()
    assert rates == pytest.approx({"m/transformer": 1e-3, "m/head": 0.3}, rel=1e-15)  # 0.5 * (0.3 / 0.5)
    fill_grads(optimizer)
    before = optimizer.param_groups[0]["params"][0].detach().clone()
    optimizer.step()
    assert not torch.equal(before, optimizer.param_groups[0]["params"][0])  # no longer frozen
    for rate in (0.0, 0.2, 0.4):
        optimizer.param_groups[1]["lr"] = rate
        assert controller.step()["m/head"] == pytest.approx(rate, rel=1e-15)
        assert controller.step() == controller.rates


@pytest.mark.parametrize("mode", ["restore", "adopt"])
@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf, None, "gone"])
def test_learn_rate_what_can_not_be_a_rate_is_put_back(mode, bad):
    controller, optimizer = watched(mode)
    controller.step()
    if bad == "gone":
        del optimizer.param_groups[0]["lr"]
    else:
        optimizer.param_groups[0]["lr"] = bad
    with pytest.warns(LearnRateWarning, match="'m/transformer' was changed"):
        assert controller.step() == {"m/transformer": 2e-5, "m/head": 0.5}
    assert rates_in(optimizer) == [2e-5, 0.5]


@pytest.mark.parametrize("mode", ["restore", "adopt", "raise"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("watch_steps", [True, False])
def test_learn_rate_torch_schedulers_are_found_out(mode, before, watch_steps):
    """The scheduler writes after each torch step, whether it was there before us or came later."""
    optimizer = sgd(0.5)
    scheduler = torchs.StepLR(optimizer, 1, gamma=0.5) if before else None
    controller = LearnRateController(on_outside_write=mode)
    controller.register_optimizer("m", optimizer, 0.5, watch_steps=watch_steps)
    scheduler = scheduler or torchs.StepLR(optimizer, 1, gamma=0.5)
    assert controller.step() == {"m": 0.5}
    fill_grads(optimizer)
    optimizer.step()
    scheduler.step()
    said = "'m' was changed outside its schedule at step 1: expected 0.5, found 0.25"
    if mode == "raise":
        with pytest.raises(LearnRateIntegrityError, match=said):
            controller.step()
        return
    with pytest.warns(LearnRateWarning, match=said):
        assert controller.step() == {"m": 0.5 if mode == "restore" else 0.25}
    for step in range(2, 8):
        optimizer.step()
        scheduler.step()
        assert controller.step() == {"m": 0.5 if mode == "restore" else 0.5 / 2**step}
    assert controller.outside_writes == 7


def test_learn_rate_writes_are_noticed_at_the_next_torch_step():
    """Also if the controller steps once an epoch."""
    controller, optimizer = watched("restore")
    controller.step(0)
    fill_grads(optimizer)
    optimizer.step()
    before = optimizer.param_groups[0]["params"][0].detach().clone()
    optimizer.param_groups[0]["lr"] = 100.0
    with pytest.warns(LearnRateWarning, match="'m/transformer' was changed outside its schedule at step 1: expected 2e-05, found 100"):
        optimizer.step()
    torch.testing.assert_close(optimizer.param_groups[0]["params"][0], before - 2e-5, rtol=1e-6, atol=0)
    raising, other = watched("raise")
    other.param_groups[0]["lr"] = 100.0
    before = other.param_groups[0]["params"][0].detach().clone()
    fill_grads(other)
    with pytest.raises(LearnRateIntegrityError, match="at step 0"):
        other.step()
    assert torch.equal(other.param_groups[0]["params"][0], before)
    assert raising.outside_writes == 1


def test_learn_rate_within_tolerance_is_the_same():
    controller, optimizer = watched("raise")
    for found in (2e-5 * (1 + 9e-7), 2e-5 * (1 - 9e-7)):
        controller.step()
        optimizer.param_groups[0]["lr"] = found
        assert controller.verify() == []
    optimizer.param_groups[0]["lr"] = 2e-5 * (1 + 1.1e-6)
    assert [error.group for error in controller.verify()] == ["m/transformer"]
    tiny, other = watched("raise", policy=1e-13)
    tiny.step()
    other.param_groups[0]["lr"] = 0.0
    assert tiny.verify() == []
    other.param_groups[0]["lr"] = 1.2e-12
    assert len(tiny.verify()) == 1


def test_learn_rate_verify_changes_nothing():
    controller, optimizer = watched("restore")
    controller.step()
    optimizer.param_groups[0]["lr"] = 0.7
    optimizer.param_groups.reverse()
    groups, saved = list(optimizer.param_groups), json.dumps(controller.state_dict())
    for _ in range(5):
        assert sorted((error.what, error.group) for error in controller.verify()) == [
            ("learn_rate", "m/transformer"), ("order", "m/head"), ("order", "m/transformer"),
        ]  # fmt: skip
    assert optimizer.param_groups == groups and rates_in(optimizer) == [0.5, 0.7]
    assert json.dumps(controller.state_dict()) == saved


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "torch", "write", "restep"]),
        st.integers(0, 3),
        st.floats(0.0, 1.0) | st.sampled_from([0.0, 1e-13, 1.0]),
    ),
    max_size=40,
)


@pytest.mark.filterwarnings("ignore::thinc_torchopt.errors.LearnRateWarning")
@settings(deadline=None, max_examples=200)
@given(operations=OPERATIONS, mode=st.sampled_from(["restore", "adopt"]), watch_steps=st.booleans())
def test_learn_rate_nothing_goes_unseen(operations, mode, watch_steps):
    """After any writes: each group holds what `step` returned, each write beyond the tolerance was seen, and nothing else."""
    one, two = sgd(0.1, 0.2), sgd(0.3, 0.4)
    controller = LearnRateController(on_outside_write=mode)
    controller.register_optimizer("one", one, "cosine", total_steps=15, watch_steps=watch_steps)
    controller.register_optimizer("two", two, {0: [0.3, 0.1, 0.2], 1: "warmup"}, watch_steps=watch_steps)
    groups = [*one.param_groups, *two.param_groups]
    ids, stood, count = list(controller.rates), rates_in(one) + rates_in(two), 0

    def foreign(chosen):
        return [i for i in chosen if abs(groups[i]["lr"] - stood[i]) > max(1e-12, 1e-6 * max(abs(groups[i]["lr"]), abs(stood[i])))]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, which, value in operations:
            if kind == "write":
                groups[which]["lr"] = value
                assert [error.group for error in controller.verify()] == [ids[i] for i in foreign(range(4))]
            elif kind == "torch":
                optimizer, chosen = ((one, range(2)), (two, range(2, 4)))[which % 2]
                seen = foreign(chosen)
                conservative = controller.conservative
                optimizer.step()
                if watch_steps:
                    count += len(seen)
                    for i in seen:
                        assert groups[i]["lr"] == (stood[i] if mode == "restore" and not conservative else groups[i]["lr"])
                        stood[i] = groups[i]["lr"]
            else:
                count += len(foreign(range(4)))
                rates = controller.step()
                stood = [group["lr"] for group in groups]
                assert stood == [rates[i] for i in ids] == list(controller.rates.values())
                assert controller.verify() == []
            assert controller.outside_writes == count


# ---------------------------------------------------------------- circuit breaker and conservative mode


def quiet(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LearnRateWarning)
        return call()


def broken(policy, *, mode="restore", clock=None, times=3):
    """A controller into whose group somebody wrote before each of three steps."""
    optimizer = sgd(0.5)
    controller = LearnRateController(on_outside_write=mode, breaker=CircuitBreaker(clock=clock or Clock()))
    controller.register_optimizer("m", optimizer, policy)
    for _ in range(times):
        optimizer.param_groups[0]["lr"] += 0.1
        quiet(controller.step)
    return controller, optimizer


def test_learn_rate_breaker_opens_after_three_failures(caplog):
    controller, optimizer = broken(0.5, times=2)
    assert controller.breaker.state == "closed" and not controller.conservative
    assert not caplog.records
    optimizer.param_groups[0]["lr"] = 0.9
    controller.step()
    assert controller.breaker.state == "open" and controller.conservative
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("thinc_torchopt.learn_rate", "WARNING")
    assert "conservative from step 2 on" in record.getMessage()


def test_learn_rate_clean_steps_between_failures_keep_the_breaker_closed():
    controller, optimizer = broken(0.5, times=0)
    for _ in range(6):
        optimizer.param_groups[0]["lr"] = 0.9
        quiet(controller.step)
        controller.step()
    assert controller.breaker.state == "closed" and not controller.conservative and controller.outside_writes == 6
    for _ in range(3):  # seen by the hook; the steps in between are not clean
        optimizer.param_groups[0]["lr"] = 0.9
        optimizer.step()
        controller.step()
    assert controller.conservative


def test_learn_rate_conservative_rates_may_fall_but_not_rise():
    rates = iter([0.5, 0.5, 0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.2, 0.3])
    controller, optimizer = broken(rates)
    assert [controller.step()["m"] for _ in range(5)] == [0.4, 0.4, 0.3, 0.3, 0.2]
    optimizer.param_groups[0]["lr"] = 0.05  # neither does what others write count
    assert controller.step(scale=0.5) == {"m": 0.1}
    assert controller.step() == {"m": 0.2}


def test_learn_rate_conservative_mode_ends_after_a_hundred_clean_steps(caplog):
    caplog.set_level(logging.INFO)
    controller, optimizer = broken(lambda step: 0.5 + step / 1000)
    low = controller.rates["m"]
    for step in range(3, 102):
        assert controller.step() == {"m": low}, step
    optimizer.param_groups[0]["lr"] = 0.9
    optimizer.step()  # seen by the hook, and the count begins anew
    assert optimizer.param_groups[0]["lr"] == low and controller.outside_writes == 4
    assert controller.step() == {"m": 0.5 + 102 / 1000}  # not held any more
    assert controller.outside_writes == 4
    for i in range(103, 203):
        assert controller.conservative
        assert controller.step() == {"m": 0.5 + i / 1000}
    assert not controller.conservative and controller.breaker.state == "closed"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "after step 202: no other code wrote to the param groups in the last 100 steps" in caplog.records[1].getMessage()
    optimizer.param_groups[0]["lr"] = 0.9
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.5 + 202 / 1000


@pytest.mark.parametrize("mode", ["restore", "raise"])
@pytest.mark.parametrize("watch_steps", [True, False])
def test_learn_rate_what_others_write_never_reaches_the_params(mode, watch_steps):
    """A plain loop at the rates that were written: the schedule's, held for a hundred steps."""
    optimizer, plain = sgd(0.5), sgd(0.5)
    with torch.no_grad():
        for ours, theirs in zip(optimizer.param_groups[0]["params"], plain.param_groups[0]["params"]):
            theirs.copy_(ours)
    controller = LearnRateController(on_outside_write=mode, breaker=CircuitBreaker(clock=Clock()))
    controller.register_optimizer("m", optimizer, lambda step: 0.5 + step / 1000, watch_steps=watch_steps)
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 5.0
        while True:  # under "raise" the first three are errors
            try:
                rate = quiet(controller.step)["m"]
                break
            except LearnRateIntegrityError:
                assert mode == "raise" and not step
        if watch_steps:
            optimizer.param_groups[0]["lr"] = 5.0
        for built in (optimizer, plain):
            fill_grads(built)
        quiet(optimizer.step)
        plain.param_groups[0]["lr"] = rate
        plain.step()
        for ours, theirs in zip(optimizer.param_groups[0]["params"], plain.param_groups[0]["params"]):
            assert torch.equal(ours, theirs)
    assert rate == 0.5 + 149 / 1000 and controller.conservative


def test_learn_rate_a_forgotten_scheduler_does_not_pin_the_rate_of_the_warm_up(caplog):
    caplog.set_level(logging.INFO)
    optimizer = sgd(0.1)
    controller = LearnRateController(breaker=CircuitBreaker(clock=Clock()))
    controller.register_optimizer("m", optimizer, Warmup(200))
    with pytest.warns(LearnRateWarning):
        for step in range(2103):
            rates = controller.step()
            optimizer.param_groups[0]["lr"] = 0.05 + step / 1e5
            if step == 103:
                assert rates["m"] == Warmup(200).rate(103, 0.1)
    assert rates == {"m": 0.1} and controller.outside_writes == 2102
    begin, *reports = [record.getMessage() for record in caplog.records]
    assert "conservative from step 3 on" in begin
    said = "Other code wrote to the param groups 1000 times in the 1000 steps up to step {}. All writes were undone."
    assert reports == [said.format(1002), said.format(2002)]


def test_learn_rate_breaker_recovers_with_time_in_conservative_mode():
    clock = Clock()
    controller, optimizer = broken(0.5, clock=clock)
    controller.step()
    assert controller.breaker.state == "open"
    clock.now = 60.0
    assert controller.breaker.state == "half-open"
    optimizer.param_groups[0]["lr"] = 0.9
    controller.step()
    assert controller.breaker.state == "open"
    clock.now = 120.0
    controller.step()
    assert controller.breaker.state == "closed" and controller.conservative  # until a hundred steps are clean


def test_learn_rate_raises_no_more_in_conservative_mode():
    optimizer = sgd(0.5)
    controller = LearnRateController(on_outside_write="raise", breaker=CircuitBreaker(clock=Clock()))
    controller.register_optimizer("m", optimizer, 0.5)
    optimizer.param_groups[0]["lr"] = 0.9
    for call in (controller.step, optimizer.step, controller.step):
        assert not controller.conservative
        with pytest.raises(LearnRateIntegrityError):
            call()
    assert controller.conservative and controller.outside_writes == 3
    assert controller.step() == {"m": 0.5} and controller.outside_writes == 4
    assert controller.step_count == 1


def test_learn_rate_history_keeps_every_tenth_conservative_step():
    controller, _ = broken(0.5)
    for _ in range(120):
        controller.step()
    assert [snapshot.step for snapshot in controller.history] == [0, 1, *range(10, 103, 10), *range(103, 123)]


def test_learn_rate_conservative_mode_follows_the_groups_in_silence():
    controller, optimizer = broken({0: 0.5})
    optimizer.add_param_group({"params": make_params(), "lr": 0.2})
    optimizer.param_groups.reverse()
    assert controller.step() == {"m": 0.5, "m/1": 0.5}
    assert rates_in(optimizer) == [0.5, 0.5] and controller.verify() == []


# ---------------------------------------------------------------- optimizers that are replaced


def grown(module):
    """The same layers, the last one with a row more."""
    new = copy.deepcopy(module)
    new[1] = torch.nn.Linear(3, 4)
    return new


def two_layers(**options):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3))
    groups = [{"params": list(layer.parameters()), "lr": rate} for layer, rate in zip(module, (0.1, 0.2))]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    controller = LearnRateController(**options)
    names = {param: name for name, param in module.named_parameters()}
    controller.register_optimizer("m", optimizer, {0: Cosine(40), 1: iter([i / 100 for i in range(40)])}, param_names=names)
    return module, optimizer, controller


@pytest.mark.parametrize("mode", ["restore", "adopt"])
def test_learn_rate_replaced_optimizers_go_on_as_if_nothing_had_happened(mode):
    module, optimizer, controller = two_layers(on_outside_write=mode)
    *_, alone = two_layers(on_outside_write=mode)
    added = make_params()
    for each in (controller, alone):
        each.add_params("m", added if each is controller else make_params(), 1, warmup_steps=30)
    for step in range(20):
        if step == 8:
            new_module = grown(module)
            models = ({**dict(each.named_parameters()), "added": added[0]} for each in (new_module, module))
            holder = torch.nn.Module()
            for name, param in next(models).items():
                holder.register_parameter(name.replace(".", "_"), param)
            before = {name.replace(".", "_"): param for name, param in next(models).items()}
            old, optimizer = optimizer, preserve_optimizer_state(optimizer, holder, before, controller=controller)
            assert rates_in(optimizer) == list(alone.rates.values()) and controller.verify() == []
        if step == 14:  # still watched, by the same policy
            optimizer.param_groups[0]["lr"] = 0.05
            alone._registered.find("m").optimizer.param_groups[0]["lr"] = 0.05
            for each in (controller, alone):
                with pytest.warns(LearnRateWarning, match="'m/0' was changed outside its schedule"):
                    each.step()
        else:
            controller.step()
            alone.step()
        assert controller.rates == alone.rates and rates_in(optimizer) == list(alone.rates.values())
        fill_grads(optimizer)
        optimizer.step()
    assert [snapshot.rates for snapshot in controller.history] == [snapshot.rates for snapshot in alone.history]
    assert controller.state_dict()["groups"].keys() == alone.state_dict()["groups"].keys()
    with pytest.warns(LearnRateWarning, match=r"'m' was replaced at step 8, and the old one was stepped after that"):
        old.step()
    old.step()  # says it once
    old.param_groups[0]["lr"] = 7.0
    controller.step()  # none of its business


def test_learn_rate_replaced_optimizers_keep_tensors_and_frozen_groups_of_their_own():
    old, new = sgd(torch.tensor(0.1), 0.2), sgd(torch.tensor(0.5), 0.6)
    controller = LearnRateController()
    controller.register_optimizer("m", old, {0: Cosine(10), 1: "frozen"})
    controller.step()
    tensor, of_new = old.param_groups[0]["lr"], new.param_groups[0]["lr"]
    controller.replace_optimizer(old, new)
    controller.step()
    assert new.param_groups[0]["lr"] is of_new and of_new == controller.rates["m/0"] < tensor == torch.tensor(0.1)
    fill_grads(new)
    before = new.param_groups[1]["params"][0].detach().clone()
    new.step()
    assert torch.equal(new.param_groups[1]["params"][0], before)


def test_learn_rate_replaced_optimizers_of_ours_still_take_what_is_loaded():
    old, new = sgd(0.1), sgd(0.1)
    controller = LearnRateController()
    controller.register_optimizer("m", old, 0.1, watch_steps=False, keep_groups=True)
    controller.replace_optimizer("m", new)
    group = new.param_groups[0]
    new.load_state_dict(new.state_dict())
    assert new.param_groups[0] is group
    old.load_state_dict(old.state_dict())


@pytest.mark.parametrize("new", [None, "known", "more groups"])
def test_learn_rate_refuses_what_can_not_replace_an_optimizer(new):
    old, other = sgd(0.1), sgd(0.3)
    controller = LearnRateController()
    controller.register_optimizer("m", old, 0.1)
    controller.register_optimizer("n", other, 0.3)
    with pytest.raises(ConfigError, match=r"Can't replace optimizer 'm': expected .*found "):
        controller.replace_optimizer(old, {"known": other, "more groups": sgd(0.1, 0.2), None: None}[new])
    with pytest.raises(ConfigError, match="Can't find the optimizer"):
        controller.replace_optimizer(sgd(0.1), sgd(0.1))
    assert controller.step() == {"m": 0.1, "n": 0.3}
    old.step()


# ---------------------------------------------------------------- what groups are


def three_groups(mode="restore"):
    optimizer = sgd(0.1, 0.2, 0.3, momentum=0.9)
    controller = LearnRateController(on_outside_write=mode)
    controller.register_optimizer("m", optimizer, {i: (i + 1) / 10 for i in range(3)})
    controller.step()
    return controller, optimizer


def test_learn_rate_groups_in_another_order_are_put_back():
    controller, optimizer = three_groups()
    groups = list(optimizer.param_groups)
    optimizer.param_groups[:] = [groups[2], groups[1], groups[0]]
    said = "'m/0' was moved to another place in optimizer 'm' at step 1: expected 0, found 2. The change was undone"
    with pytest.warns(LearnRateWarning) as warned:
        controller.step()
    assert sorted(str(warning.message).startswith("Param group " + said) for warning in warned) == [False, True]
    assert all(group is other for group, other in zip(optimizer.param_groups, groups)) and rates_in(optimizer) == [0.1, 0.2, 0.3]
    assert controller.outside_writes == 2


def test_learn_rate_groups_in_another_order_are_followed():
    controller, optimizer = three_groups("adopt")
    groups = list(optimizer.param_groups)
    optimizer.param_groups = [groups[2], groups[0], groups[1]]
    with pytest.warns(LearnRateWarning, match="The change is kept"):
        assert controller.step() == {"m/0": 0.1, "m/1": 0.2, "m/2": 0.3}
    assert rates_in(optimizer) == [0.3, 0.1, 0.2] and controller.verify() == []
    assert controller.breaker.state == "closed"


@pytest.mark.parametrize("change", ["order", "moved", "params", "options", "came", "gone"])
def test_learn_rate_changed_groups_raise(change):
    controller, optimizer = three_groups("raise")
    change_group(optimizer, change)
    for _ in range(2):
        with pytest.raises(LearnRateIntegrityError) as raised:
            controller.step()
        assert raised.value.what == {"came": "group", "gone": "group"}.get(change, change)
    assert not controller.conservative
    with pytest.raises(LearnRateIntegrityError):
        controller.step()
    assert controller.conservative
    controller.refresh("m")
    assert len(controller.step()) == len(optimizer.param_groups)


def change_group(optimizer, change):
    first, second, third = optimizer.param_groups
    if change == "order":
        optimizer.param_groups[:] = [second, first, third]
    elif change == "moved":
        first["params"], second["params"] = second["params"], first["params"]
    elif change == "params":
        first["params"] = make_params(2)
    elif change == "options":
        first["momentum"], first["nesterov"] = 0.5, True
    elif change == "came":
        optimizer.add_param_group({"params": make_params(2), "lr": 0.7})
    else:
        del optimizer.param_groups[1]


def test_learn_rate_params_moved_between_groups_are_put_back():
    controller, optimizer = three_groups()
    (a,), (b,) = optimizer.param_groups[0]["params"], optimizer.param_groups[1]["params"]
    change_group(optimizer, "moved")
    with pytest.warns(LearnRateWarning) as warned:
        controller.step()
    assert str(warned[0].message) == (
        "Params of group 'm/0' were moved between groups or sorted at step 1: expected m/0[0], found m/1[0]. The change was undone. "
        "Keep params in the group and order in which they were registered."
    )
    assert len(warned) == 2
    assert optimizer.param_groups[0]["params"][0] is a and optimizer.param_groups[1]["params"][0] is b
    adopting, other = three_groups("adopt")
    (a,) = other.param_groups[0]["params"]
    change_group(other, "moved")
    with pytest.warns(LearnRateWarning):
        adopting.step()
    assert other.param_groups[1]["params"][0] is a and adopting.verify() == []


@pytest.mark.parametrize("mode", ["restore", "adopt"])
@pytest.mark.parametrize(
    "change, said, rates",
    [
        (
            "params",
            "Params of group 'm/0' were changed at step 1: expected m/0[0], found a new one of shape (3, 2), a new one of shape (3, 2). "
            "The change is kept. If that is intended, call refresh('m')",
            {"m/0": 0.1, "m/1": 0.2, "m/2": 0.3},
        ),
        (
            "options",
            "Options of param group 'm/0' were changed at step 1: expected momentum = 0.9, nesterov = False, found momentum = 0.5, "
            "nesterov = True. The change is kept.",
            {"m/0": 0.1, "m/1": 0.2, "m/2": 0.3},
        ),
        (
            "came",
            "Param group 'm/3' was added to optimizer 'm' at step 1: expected 3 groups, found 4. {came} Call add_params instead",
            {"m/0": 0.1, "m/1": 0.2, "m/2": 0.3, "m/3": None},
        ),
        (
            "gone",
            "Param group 'm/1' was taken out of optimizer 'm' at step 1: expected 3 groups, found 2. The change is kept.",
            {"m/0": 0.1, "m/2": 0.3},
        ),
    ],
)
def test_learn_rate_changed_groups_are_taken_as_they_are(mode, change, said, rates):
    controller, optimizer = three_groups(mode)
    before = controller.checksums
    change_group(optimizer, change)
    if change == "came":  # the default rate is that of the first group
        said = said.format(came="It gets the default learn rate." if mode == "restore" else "It keeps its learn rate.")
        rates = {**rates, "m/3": 0.1 if mode == "restore" else 0.7}
    with pytest.warns(LearnRateWarning, match=re.escape(said)) as warned:
        assert controller.step() == rates
    assert len(warned) == 1
    assert controller.step() == rates and rates_in(optimizer) == list(rates.values())
    assert controller.breaker.state == "closed"
    changed = {id for id in rates if controller.checksums[id] != before.get(id)}
    assert changed == {"params": {"m/0"}, "options": {"m/0"}, "came": {"m/3"}, "gone": set()}[change]
    assert [list(snapshot.checksums.values()) for snapshot in controller.history[:1]] == [list(before.values())]
    controller.unregister_optimizer("m")


@pytest.mark.parametrize("watch_steps", [True, False])
def test_learn_rate_groups_that_came_follow_the_policy_of_all(watch_steps):
    """Equal to a group that was there from the start."""
    optimizer, twin = sgd(0.1, 0.1), sgd(0.1, 0.1, 0.1)
    for built, controller in ((optimizer, LearnRateController()), (twin, LearnRateController())):
        controller.register_optimizer("m", built, Cosine(20), watch_steps=watch_steps)
        for step in range(15):
            if step == 5 and built is optimizer:
                built.add_param_group({"params": make_params(), "lr": 5.0})
                if watch_steps:
                    with pytest.warns(LearnRateWarning, match="It gets the default learn rate"):
                        built.step()
                    assert rates_in(built)[2] == rates_in(built)[0]  # before anything was updated
                else:
                    quiet(controller.step)
                    continue
            controller.step()
        assert set(rates_in(built)) == {Cosine(20).rate(14, 0.1)} and controller.verify() == []


def test_learn_rate_hooks_that_were_registered_later_do_not_get_around():
    optimizer = sgd(0.1)
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, 0.1)
    (param,) = optimizer.param_groups[0]["params"]

    def write(*_):
        optimizer.param_groups[0]["lr"] = 5.0

    optimizer.register_step_pre_hook(write)
    for _ in range(5):
        controller.step()
        fill_grads(optimizer)
        before = param.detach().clone()
        quiet(optimizer.step)
        assert torch.equal(param, before - 0.1)
    assert controller.outside_writes == 5


def test_learn_rate_checksums_tell_alike_groups_apart():
    controller, optimizer = three_groups()
    checksums = controller.checksums
    assert len(set(checksums.values())) == 3
    other, _ = three_groups()
    assert other.checksums == checksums
    del optimizer.param_groups[0]
    quiet(controller.step)
    assert controller.checksums == {id: checksums[id] for id in ("m/1", "m/2")}


def test_learn_rate_states_of_before_checksums_told_groups_apart_are_loaded():
    controller, _ = three_groups()
    state = controller.state_dict()
    for watched in controller._registered.groups.values():
        state["groups"][watched.id]["checksum"] = watched.identity.checksum_as("")
    other, _ = three_groups()
    other.load_state_dict(state)  # without a warning


def test_learn_rate_loaded_optimizers_are_the_same():
    """`load_state_dict` of torch puts new dicts in the place of the groups; only what differs is seen."""
    controller, optimizer = three_groups("raise")
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert controller.step(scale=0.5) == {"m/0": 0.05, "m/1": 0.1, "m/2": 0.15}
    assert rates_in(optimizer) == [0.05, 0.1, 0.15]
    controller.step()
    optimizer.param_groups[0]["lr"] = 0.9
    assert [error.what for error in controller.verify()] == ["learn_rate"]
    optimizer.param_groups[0]["lr"] = 0.1
    state = optimizer.state_dict()
    state["param_groups"][1]["lr"] = 0.9
    state["param_groups"][2]["momentum"] = 0.8
    optimizer.load_state_dict(state)
    assert [(error.what, error.group) for error in controller.verify()] == [("learn_rate", "m/1"), ("options", "m/2")]


def test_learn_rate_options_that_move_and_counters_are_let_be():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1

    optimizer = Counting([{"params": make_params()}, {"params": make_params()}], lr=0.1, weight_decay=0.1)
    controller = LearnRateController(on_outside_write="raise")
    controller.register_optimizer("m", optimizer, "cosine", moving=("weight_decay",))
    for step in range(5):
        optimizer.param_groups[0]["weight_decay"] = step
        controller.step()
        optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.5
    with pytest.raises(LearnRateIntegrityError, match="momentum"):
        controller.step()
    tensors = torch.optim.Adam(make_params(), lr=0.1, betas=(0.9, 0.99))
    controller.register_optimizer("tensors", tensors, "cosine", watch_steps=False)
    tensors.param_groups[0]["betas"] = (torch.tensor([0.5, 0.6]), 0.99)  # can't be compared to a number
    assert [error.group for error in controller.verify()] == ["m/0", "tensors"]


def test_learn_rate_owners_may_change_their_groups():
    params = make_params(4)
    names = {param: f"ner/{i}" for i, param in enumerate(params)}
    optimizer = torch.optim.AdamW([{"params": params[:2]}], lr=0.1)
    controller = LearnRateController(on_outside_write="raise")
    controller.register_optimizer("m", optimizer, 0.1, param_names=names, watch_steps=False)
    optimizer.param_groups[0]["params"].append(params[2])
    (error,) = controller.verify()
    assert "expected none, found ner/2" in str(error)
    controller.refresh("m")
    assert controller.step() == {"m": 0.1}
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [params[3]], "lr": 0.5})
    assert controller.add_group("m", optimizer.param_groups[1], "warmup", id="heads") == "heads"
    assert controller.step() == {"m": 0.1, "heads": 0.005}
    for group, id in [(optimizer.param_groups[1], None), ({"params": make_params()}, None), (optimizer.param_groups[0], "new")]:
        with pytest.raises(ConfigError, match="Can't take in a param group of optimizer 'm'"):
            controller.add_group("m", group, 0.1, id=id)
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": make_params(), "lr": 0.5})
    with pytest.raises(ConfigError, match="a new id, found 'heads'"):
        controller.add_group("m", optimizer.param_groups[2], 0.1, id="heads")
    late = dict.fromkeys(optimizer.param_groups[2]["params"], "late")
    before = controller.checksums["m"]
    assert controller.add_group("m", optimizer.param_groups[2], 0.1, param_names={**names, **late}) == "m/2"
    optimizer.param_groups[2]["params"] = []
    assert "expected late, found none" in str(controller.verify()[0])
    optimizer.param_groups[2]["params"] = list(late)
    assert controller.checksums["m"] == before and controller.verify() == []
    optimizer.param_groups[0]["lr"] = 0.7
    controller.refresh("m")
    with pytest.raises(LearnRateIntegrityError, match=r"expected 0\.1, found 0\.7"):
        controller.step()


def checksum_of(optimizer, **options):
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, 0.1, watch_steps=False, **options)
    return controller.checksums["m"]


def test_learn_rate_checksums_say_what_a_group_is():
    def build(shape=(3, 2), n=2, **options):
        return torch.optim.AdamW(make_params(n, shape), **{"lr": 0.1, "weight_decay": 0, **options})

    plain = checksum_of(build())
    assert re.fullmatch("[0-9a-f]{16}", plain)
    assert plain == checksum_of(build()) == checksum_of(build(lr=0.5)) == checksum_of(build(weight_decay=0.0))
    others = [build((2, 3)), build((3, 3)), build(n=3), build(weight_decay=0.1), build(betas=(0.9, 0.98)), build(amsgrad=True)]
    named = build()
    others_sums = {checksum_of(other) for other in others}
    assert len(others_sums | {plain}) == 7
    names = dict(zip(named.param_groups[0]["params"], "ab"))
    assert checksum_of(named, param_names=names) not in others_sums | {plain}
    assert checksum_of(build(weight_decay=0.3), moving=("weight_decay",)) == checksum_of(build(), moving=["weight_decay"])
    by_torch = torch.optim.AdamW(list(zip("ab", make_params(2))), lr=0.1, weight_decay=0.0)
    assert checksum_of(by_torch) == checksum_of(named, param_names=names)


# ---------------------------------------------------------------- frozen groups


@pytest.mark.parametrize(
    "cls, options",
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.Adadelta, {"weight_decay": 0.1}),
        (torch.optim.Rprop, {}),
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    ],
)
@pytest.mark.parametrize("with_closure", [False, "argument", "keyword"])
def test_learn_rate_frozen_params_stay_as_they_are(cls, options, with_closure):
    """To the bit, without state; and the others move as in an optimizer without the frozen group."""
    learning, frozen = make_params(2), make_params(2)
    alone = [torch.nn.Parameter(param.detach().clone()) for param in learning]
    before = [param.detach().clone() for param in frozen]
    optimizer = cls([{"params": learning}, {"params": frozen}], lr=0.1, **options)
    reference = cls(alone, lr=0.1, **options)
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, {0: 0.1, 1: "frozen"})

    def closure():
        optimizer.zero_grad()
        loss = sum((param**2).sum() for param in [*learning, *frozen])
        loss.backward()
        return loss

    for step in range(5):
        if step:  # before the first step of the controller the rate is not yet 0, and they are frozen all the same
            assert controller.step()["m/1"] == 0.0
        if with_closure:
            loss = optimizer.step(closure) if with_closure == "argument" else optimizer.step(closure=closure)
            assert float(loss.detach()) > 0
        else:
            closure()
            optimizer.step()
        for param in alone:
            param.grad = 2 * param.detach()
        reference.step()
    assert all(torch.equal(param, other) for param, other in zip(frozen, before))
    assert all(torch.equal(param, other) for param, other in zip(learning, alone))
    assert not any(param in optimizer.state for param in frozen)


# ---------------------------------------------------------------- params that come in mid-training


def test_learn_rate_new_params_follow_a_tenth_of_their_parent():
    optimizer = torch.optim.AdamW([{"params": make_params(), "weight_decay": 0.3}, {"params": make_params(), "lr": 0.5}], lr=0.1)
    controller = LearnRateController(on_outside_write="raise")
    controller.register_optimizer("m", optimizer, {0: "cosine", 1: [0.5 - step / 100 for step in range(40)]})
    for _ in range(5):
        controller.step()
    late = make_params(2, (7,))
    before = controller.rates["m/1"]
    assert controller.add_params(optimizer, late, "m/1", warmup_steps=10, options={"eps": 1e-6}) == "m/2"
    group = optimizer.param_groups[2]
    assert group["lr"] == pytest.approx(before * 0.1 * 0.01, rel=1e-12)
    assert group["params"][0] is late[0] and group["weight_decay"] == 0.01 and group["eps"] == 1e-6
    for step in range(20):
        rates = controller.step(scale=0.5 if step == 7 else 1.0)
        factor = 0.01 + 0.99 * min(step, 10) / 10
        assert rates["m/2"] == pytest.approx(0.1 * factor * rates["m/1"], rel=1e-12)  # a few roundings
        fill_grads(optimizer)
        optimizer.step()
    controller.add_params("m", make_params())
    assert optimizer.param_groups[3]["weight_decay"] == 0.3
    assert controller.step()["m/3"] == pytest.approx(0.001 * controller.rates["m/0"], rel=1e-12)
    with pytest.raises(ConfigError, match="among"):
        controller.add_params("m", make_params(), 4)
    controller.add_params("m", iter(make_params()), 2)  # a tenth of a tenth
    assert controller.step()["m/4"] == pytest.approx(0.001 * controller.rates["m/2"], rel=1e-12)


def test_learn_rate_new_params_follow_adopted_rates():
    optimizer = sgd(0.1)
    controller = LearnRateController(on_outside_write="adopt")
    controller.register_optimizer("m", optimizer, "cosine")
    controller.add_params("m", make_params(), warmup_steps=0)
    optimizer.param_groups[0]["lr"] = 0.4
    with pytest.warns(LearnRateWarning):
        assert controller.step() == pytest.approx({"m": 0.4, "m/1": 0.04}, rel=1e-12)


def test_learn_rate_new_params_train_as_if_they_were_new_in_an_optimizer_of_their_own():
    """Adagrad makes its state when it is built, with a first value that is an option."""
    for cls, options in [(torch.optim.Adagrad, {"initial_accumulator_value": 0.5}), (torch.optim.AdamW, {}), (torch.optim.Rprop, {})]:
        optimizer = cls(make_params(), lr=0.1)
        controller = LearnRateController()
        controller.register_optimizer("m", optimizer, 0.1)
        late = make_params(2)
        alone = [torch.nn.Parameter(param.detach().clone()) for param in late]
        controller.add_params("m", late, warmup_steps=0, options=options)
        own = cls(alone, lr=0.01, **options)
        for param, other in zip(late, alone):
            param.grad, other.grad = torch.ones_like(param), torch.ones_like(param)
        controller.step()
        optimizer.step()
        own.step()
        for param, other in zip(late, alone):
            assert torch.equal(param, other)


def test_learn_rate_new_params_have_names_if_the_others_have():
    optimizer = torch.optim.SGD(list(zip("ab", make_params(2))), lr=0.1)
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, 0.1)
    controller.add_params("m", list(zip("cd", make_params(2))))
    assert optimizer.param_groups[1]["param_names"] == ["c", "d"]
    with pytest.raises(ConfigError, match="expected pairs of name and param, as it has already, found others at place 0"):
        controller.add_params("m", make_params())
    plain = sgd(0.1)
    controller.register_optimizer("plain", plain, 0.1)
    with pytest.raises(ConfigError, match="expected params without names"):
        controller.add_params("plain", list(zip("cd", make_params(2))))


def test_learn_rate_refuses_params_that_can_not_be_added():
    optimizer = sgd(0.1, 0.2)
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, {0: 0.1, 1: "frozen"})
    controller.register_optimizer("lbfgs", torch.optim.LBFGS(make_params()), 0.1)
    one = make_params()[0]
    for params, options, said in [
        ([], {}, "Can't add params to optimizer 'm': expected at least one param, found none"),
        (optimizer.param_groups[1]["params"], {}, r"expected params that are new, found one of shape \(3, 2\) at place 0 that it has"),
        ([one, one], {}, "at place 1 that it has already"),
        ([one * 2], {}, r"expected leaf tensors, found one of shape \(3, 2\) at place 0 that was computed"),
        ([3.0], {}, "expected tensors, found 3.0 at place 0"),
        ([one], {"parent": "n"}, r"expected a parent among \['m/0', 'm/1'\], or its index, found 'n'"),
        ([one], {"parent": -1}, "or its index, found -1"),
        ([one], {"parent": 1}, "expected a parent that learns, found 'm/1', which is frozen"),
        ([one], {"options": {"beta": 1}}, r"expected options among \['momentum'.*, found \['beta'\]"),
        ([one], {"options": {"lr": 1}}, r"found \['lr'\]"),
        ([one], {"warmup_steps": -1}, "'steps' in the learn rate policy 'warmup': expected a whole number of at least 0, found -1"),
    ]:
        with pytest.raises(ConfigError, match=said):
            controller.add_params("m", params, **options)
    with pytest.raises(ConfigError, match="expected an optimizer that takes several param groups, found LBFGS"):
        controller.add_params("lbfgs", [one])
    with pytest.raises(ConfigError, match=r"Can't find the optimizer: expected one of \['lbfgs', 'm'\], found SGD"):
        controller.add_params(sgd(0.1), [one])
    assert len(optimizer.param_groups) == 2 and controller.verify() == []


# ---------------------------------------------------------------- rates that are tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_learn_rate_tensors_are_filled_in_place(dtype):
    """Each group gets one of its own, where torch gives all of them the same."""
    tensor = torch.tensor(0.1, dtype=dtype)
    optimizer = torch.optim.Adam([{"params": make_params()}, {"params": make_params()}], lr=tensor, capturable=False, foreach=False)
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"]
    controller = LearnRateController(on_outside_write="raise")
    controller.register_optimizer("m", optimizer, {0: lambda step: 0.3 / (1 + step), 1: 0.7})
    second = optimizer.param_groups[1]["lr"]
    for step in range(4):
        rates = controller.step()
        assert optimizer.param_groups[0]["lr"] is tensor and optimizer.param_groups[1]["lr"] is second
        assert list(rates.values()) == rates_in(optimizer)
        assert rates["m/0"] == pytest.approx(0.3 / (1 + step), rel=torch.finfo(dtype).eps)
        fill_grads(optimizer)
        optimizer.step()
    controller.add_params("m", make_params())
    assert optimizer.param_groups[2]["lr"].dtype == dtype and controller.verify() == []
    tensor.fill_(0.5)
    with pytest.raises(LearnRateIntegrityError, match=r"expected 0\.07.*, found 0\.5"):
        controller.step()


def test_learn_rate_tensors_that_were_replaced_are_put_back():
    tensor = torch.tensor(0.1)
    optimizer = torch.optim.Adam(make_params(), lr=tensor)
    controller = LearnRateController()
    controller.register_optimizer("m", optimizer, 0.1)
    controller.step()
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.warns(LearnRateWarning):
        controller.step()
    assert optimizer.param_groups[0]["lr"] is tensor
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loaded = optimizer.param_groups[0]["lr"]
    assert loaded is not tensor
    controller.step()
    assert optimizer.param_groups[0]["lr"] is loaded


# ---------------------------------------------------------------- history


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


# ---------------------------------------------------------------- saving and going on


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
        rates.append(quiet(lambda: controller.step(step // 4, {"loss": abs(step - 9)}, scale=0.5 if step == 11 else 1.0)))  # noqa: B023
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
        (["groups", "slow"], KeyError, r"expected the param groups \['head', .*, found none for \['slow'\].*Register the same optimizers"),
        (["groups", "fast"], {}, r"unexpected ones for \['fast'\]"),
        (["groups"], [1], "expected a dict of param groups, found"),
        (["groups", "slow", "rate"], KeyError, "Can't load 'slow' in the saved learn rates: expected a section with"),
        (["groups", "slow", "rate"], "0.5", "'rate' in .* param group 'slow': expected a number of at least 0, found '0.5'"),
        (["groups", "slow"], 0.5, "'slow' in the saved learn rates: expected a section"),
        (["groups", "slow", "policy"], "Cosine", "'policy' in .* param group 'slow': expected 'Adaptive', found 'Cosine'"),
        (["groups", "head", "parent"], "slow", "'parent' in .*: expected None, found 'slow'"),
        (["groups", "slow", "policy_state", "bad"], -1, "'bad' in the learn rate policy 'adaptive': expected a whole number"),
        (["groups", "mixed/0", "policy_state", "schedule", "position"], "x", "mixed/0"),
        (["groups", "mixed/0", "policy_state"], None, "'policy_state' in the schedule of 'mixed/0': expected a section with"),
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
    with pytest.raises(ConfigError, match=said):
        second.load_state_dict(altered(first.state_dict(), path, value))
    assert (second.state_dict(), [rates_in(optimizer) for optimizer in others]) == before


def test_learn_rate_refuses_a_state_of_groups_in_another_order():
    def build(*shapes):
        optimizer = torch.optim.SGD([{"params": make_params(1, shape), "lr": 0.1} for shape in shapes])
        controller = LearnRateController()
        controller.register_optimizer("m", optimizer, "cosine")
        return controller

    saved = build((2, 3), (3, 4), (5,)).state_dict()
    with pytest.raises(ConfigError, match=r"expected param groups \['m/0', 'm/2'\] in the order in which they were saved"):
        build((5,), (3, 4), (2, 3)).load_state_dict(saved)
    grown = build((2, 3), (3, 9), (5,))
    with pytest.warns(LearnRateWarning, match=r"Param groups \['m/1'\] have other params, shapes or options than when they were saved"):
        grown.load_state_dict(saved)


# ---------------------------------------------------------------- the module


def test_learn_rate_needs_no_spacy_and_checksums_are_the_same_in_every_process():
    code = (
        "import sys, torch; from thinc_torchopt.learn_rate import LearnRateController as C; c = C();"
        "c.register_optimizer('m', torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3, 2))]), 0.1);"
        "print('spacy' in sys.modules, c.checksums['m'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["False", checksum_of(torch.optim.AdamW(make_params()))]


def test_learn_rate_params_that_come_may_be_adaptive():
    """They warm up to a tenth of their parent's rate, and are lowered from there."""
    controller, optimizer = LearnRateController(), sgd(1.0)
    controller.register_optimizer("m", optimizer, 1.0)
    id = controller.add_params("m", make_params(), policy="adaptive", warmup_steps=4, patience=0, factor=0.5, min_rate=0.03)
    rates = [controller.step(metrics={"loss": 1.0 if step > 5 else 1.0 - step / 10})[id] for step in range(10)]
    assert rates == pytest.approx([0.03, 0.0325, 0.055, 0.0775, 0.1, 0.1, 0.05, 0.03, 0.03, 0.03], rel=1e-12)
    other = LearnRateController()
    other.register_optimizer("m", twin := sgd(1.0), 1.0)
    other.add_params("m", make_params(), policy="adaptive", warmup_steps=4, patience=0, factor=0.5, min_rate=0.03)
    other.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    assert rates_in(twin) == rates_in(optimizer) and other.step()[id] == 0.03
    with pytest.raises(ConfigError, match="expected settings with a policy given by its name"):
        controller.add_params("m", make_params(), patience=3)
