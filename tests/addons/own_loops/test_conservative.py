"""Conservative mode, in a controller into which others write."""

import logging

import pytest
import torch

from thinc_torchopt.core.errors import LearnRateIntegrityError

from .kit import broken, controlled, fill_grads, make_params, quiet, rates_in, sgd


def test_learn_rate_breaker_opens_after_three_failures(caplog):
    controller, optimizer = broken(0.5, times=2)
    assert controller.breaker.state == "closed" and not controller.conservative
    assert not caplog.records
    optimizer.param_groups[0]["lr"] = 0.9
    controller.step()
    assert controller.breaker.state == "open" and controller.conservative
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("thinc_torchopt.learn_rate", "WARNING")
    assert "Conservative mode began at step 2" in record.getMessage()


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
    low = controller.learn_rates["m"]
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
    assert (
        "after step 202: no other code wrote to the param groups in the last 100 steps"
        in caplog.records[1].getMessage()
    )
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
    controller = controlled(optimizer, lambda step: 0.5 + step / 1000, watch_steps=watch_steps, mode=mode)
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


def test_learn_rate_raises_no_more_in_conservative_mode():
    optimizer = sgd(0.5)
    controller = controlled(optimizer, 0.5, mode="raise")
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
