"""What other code writes: seen, and undone, adopted, or refused. The oracle is a plain list of what stood in each
group.
"""

import json
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as torchs

from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.addons.own_loops.policies import Cosine
from thinc_torchopt.core.errors import LearnRateIntegrityError, LearnRateWarning

from .kit import controlled, fill_grads, rates_in, sgd

MESSAGE = (
    "Learn rate of param group 'transformer' was changed outside its schedule at step 3: expected 2e-05, found 0.001. "
    'Other code writes group["lr"], often a torch scheduler. Remove it, or set on_outside_write = "adopt".'
)


def watched(mode, *, policy=2e-5, **options):
    optimizer = sgd(2e-5, 0.5)
    optimizer.param_groups[0]["name"], optimizer.param_groups[1]["name"] = "transformer", "head"
    controller = LearnRateController(on_outside_write=mode, **options)
    controller.register_optimizer(
        "m", optimizer, policy if isinstance(policy, dict) else {"transformer": policy, "head": 0.5}
    )
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
    with pytest.warns(
        LearnRateWarning, match="'m/head' was changed outside its schedule at step 5: expected 0.5, found 0.001"
    ):
        controller.step()


def test_learn_rate_raises_what_user_code_wrote():
    controller, optimizer = watched("raise")
    run_with_a_write(controller, optimizer)
    optimizer.param_groups[1]["lr"] = 0.25
    with pytest.raises(LearnRateIntegrityError) as raised:
        controller.step()
    error = raised.value
    assert str(error) == MESSAGE.replace("'transformer'", "'m/transformer'")
    told = error.group, error.step, error.what, error.expected, error.found
    assert told == ("m/transformer", 3, "learn_rate", 2e-5, 1e-3)
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
        assert controller.step() == controller.learn_rates


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
    controller = controlled(optimizer, 0.5, watch_steps=watch_steps, mode=mode)
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
    with pytest.warns(
        LearnRateWarning, match="'m/transformer' was changed outside its schedule at step 1: expected 2e-05, found 100"
    ):
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
        assert sorted((error.what, error.group) for error in controller.verify()) == [("learn_rate", "m/transformer")]
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


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.LearnRateWarning")
@given(operations=OPERATIONS, mode=st.sampled_from(["restore", "adopt"]), watch_steps=st.booleans())
def test_learn_rate_nothing_goes_unseen(operations, mode, watch_steps):
    """After any writes: each group holds what `step` returned, each write beyond the tolerance was seen, and nothing
    else.
    """
    one, two = sgd(0.1, 0.2), sgd(0.3, 0.4)
    controller = LearnRateController(on_outside_write=mode)
    controller.register_optimizer("one", one, "cosine", total_steps=15, watch_steps=watch_steps)
    controller.register_optimizer("two", two, {0: [0.3, 0.1, 0.2], 1: "warmup"}, watch_steps=watch_steps)
    groups = [*one.param_groups, *two.param_groups]
    ids, stood, count = list(controller.learn_rates), rates_in(one) + rates_in(two), 0

    def foreign(chosen):
        return [
            i
            for i in chosen
            if abs(groups[i]["lr"] - stood[i]) > max(1e-12, 1e-6 * max(abs(groups[i]["lr"]), abs(stood[i])))
        ]

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
                        assert groups[i]["lr"] == (
                            stood[i] if mode == "restore" and not conservative else groups[i]["lr"]
                        )
                        stood[i] = groups[i]["lr"]
            else:
                count += len(foreign(range(4)))
                rates = controller.step()
                stood = [group["lr"] for group in groups]
                assert stood == [rates[i] for i in ids] == list(controller.learn_rates.values())
                assert controller.verify() == []
            assert controller.outside_writes == count
