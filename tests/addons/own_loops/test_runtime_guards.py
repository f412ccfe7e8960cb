"""With a timer that a test moves on: nothing here is measured."""

import json
import logging
import math
import sys
import time
import warnings

import pytest
import torch

from thinc_torchopt import TorchOptimizer, preserve_optimizer_state
from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.core.algorithms.torch_classes import SGD
from thinc_torchopt.core.errors import ConfigError, LearnRateWarning

from ...models import ready_pipeline


class Timer:
    """Moves on by so many seconds each time that somebody looks. A check is looked at twice, a step four times."""

    def __init__(self, pace=0.0):
        self.now, self.pace = 0.0, pace

    def __call__(self):
        self.now += self.pace
        return self.now


def controlled(timer, rates=(0.1, 0.2), **settings):
    groups = [{"params": [torch.nn.Parameter(torch.ones(2, 2)) for _ in range(3)], "lr": rate} for rate in rates]
    optimizer = torch.optim.SGD(groups)
    controller = LearnRateController(timer=timer, **settings)
    controller.register_optimizer("m", optimizer, "cosine", total_steps=200, warmup_steps=50)
    return controller, optimizer


def test_runtime_guards_count_and_tell_once(caplog):
    """Who listens to the log is told. On a console nothing is shown: nothing is wrong."""
    caplog.set_level(logging.INFO, "thinc_torchopt.learn_rate")
    timer = Timer()
    controller, _ = controlled(timer)
    controller.step()
    assert controller.overruns == {}
    timer.pace = 0.0019  # 1.9 ms for the check, 5.7 for the step
    for _ in range(3):
        controller.step()
    assert controller.overruns == {"rate_step": 3}
    timer.pace = 0.003
    controller.step()
    assert controller.overruns == {"rate_step": 4, "integrity_check": 1}
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    said = [record.message for record in caplog.records]
    assert len(said) == 2 and said[0].startswith(
        "Writing the learning rates of a step took 5.7 ms of CPU time at step 1: expected at most 5 ms"
    )
    assert "Verifying the param groups took 3 ms of CPU time at step 4" in said[1]
    assert "expected at most 2 ms" in said[1]


def test_runtime_guards_count_the_work_and_not_the_wait():
    """Of a machine that is busy with other things nothing is said."""

    def wait(step):
        time.sleep(0.03)
        return 0.1

    def work(step):
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass
        return 0.1

    for policy, counted in ((wait, {}), (work, {"rate_step": 1})):
        controller = LearnRateController(runtime_budgets={"rate_step": 20.0, "integrity_check": math.inf})
        controller.register_optimizer("m", torch.optim.SGD([torch.nn.Parameter(torch.ones(2))]), policy)
        controller.step()
        assert controller.overruns == counted


def test_runtime_guards_tell_the_breaker_what_repeats():
    timer = Timer(0.003)
    controller, _ = controlled(timer)
    controller.step()
    assert controller.breaker.state == "closed"  # once is an accident
    for _ in range(2):
        controller.step()
    assert controller.breaker.state == "open" and not controller.conservative and controller.breaker.times == 0
    timer.pace = 0.0
    other, _ = controlled(timer)
    for pace in [0.003, 0.0, 0.0] * 5:
        timer.pace = pace
        other.step()
    assert other.overruns["rate_step"] == 5 and other.breaker.state == "closed"


@pytest.mark.parametrize("writes", [(), (60,), (60, 61, 62), range(10, 200)])
def test_runtime_guards_leave_rates_alone(writes):
    """A slow machine has the rates of a fast one, whatever others write, and after it was stopped too."""

    def run(steps, controller, optimizer):
        rates = []
        for step in steps:
            if step in writes:
                optimizer.param_groups[0]["lr"] = 5.0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rates.append(controller.step())
        return rates

    fast = run(range(200), *controlled(Timer()))
    slow, optimizer = controlled(Timer(1.0))
    assert run(range(61), slow, optimizer) == fast[:61]
    saved = json.loads(json.dumps(slow.state_dict()))
    assert run(range(61, 200), slow, optimizer) == fast[61:]
    again, optimizer = controlled(Timer())
    again.load_state_dict(saved)
    assert run(range(61, 200), again, optimizer) == fast[61:] and again.breaker.times == slow.breaker.times


def test_runtime_guards_have_budgets_for_growth():
    timer, small = Timer(), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    controller = LearnRateController(timer=timer, runtime_budgets={"adding_params": 100.0})
    controller.register_optimizer("m", optimizer, 0.1)
    timer.pace = 0.099
    controller.add_params("m", [torch.nn.Parameter(torch.ones(2))])
    assert controller.overruns == {}
    timer.pace = 0.101
    controller.add_params("m", [torch.nn.Parameter(torch.ones(2))])
    controller.unregister_optimizer("m")
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    controller.register_optimizer("n", optimizer, 0.1)
    preserve_optimizer_state(optimizer, torch.nn.Linear(2, 3), small, controller=controller)
    assert controller.overruns == {"adding_params": 1, "state_preservation": 1}


def test_runtime_guards_take_numbers_in_quotes():
    controller, _ = controlled(Timer(1.0), runtime_budgets={"rate_step": "1e6"})
    controller.step()
    assert controller.guards.budgets["rate_step"] == 1e6 and "rate_step" not in controller.overruns


def test_runtime_guards_can_be_turned_off():
    controller, optimizer = controlled(Timer(), enable_runtime_guards=False, on_outside_write="raise")
    for _ in range(3):
        optimizer.param_groups[0]["lr"] = 5.0
        optimizer.step()
        rates = controller.step()
    assert controller.outside_writes == 0 and optimizer.param_groups[0]["lr"] == rates["m/0"]
    optimizer.param_groups[0]["lr"] = 5.0
    assert len(controller.verify()) == 1  # who asks is told


def test_runtime_guards_of_a_training_restore_at_each_step():
    nlp, examples = ready_pipeline(["tagger"], shared=False)
    for is_checked in (True, False):
        optimizer = TorchOptimizer(SGD(), iter([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), enable_runtime_guards=is_checked)
        optimizer.initialize(nlp)
        rates = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(6):
                nlp.update(examples, sgd=optimizer)
                optimizer.step_schedules()
                rates.append(optimizer.learn_rates["default"])
                optimizer.torch_optimizers["algorithm"].param_groups[0]["lr"] = 5.0
        assert rates == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]  # no rate is held
        assert optimizer.rates.outside_writes == (5 if is_checked else 0)
        found = [warning for warning in caught if warning.category is LearnRateWarning]
        assert len(found) == is_checked  # once


@pytest.mark.parametrize(
    "settings, said",
    [
        (
            {"runtime_budgets": {"step": 5.0}},
            r"'runtime_budgets' in the learn rate controller: expected budgets among .*, found \['step'\]",
        ),
        ({"runtime_budgets": 5.0}, "expected a section.*, found 5.0"),
        ({"runtime_budgets": {"rate_step": 0.0}}, "'rate_step' in .*expected milliseconds, above 0, found 0.0"),
        ({"runtime_budgets": {"rate_step": "long"}}, "found 'long'"),
        ({"runtime_budgets": {"rate_step": math.nan}}, "found nan"),
        ({"runtime_budgets": {"rate_step": True}}, "found True"),
        ({"enable_runtime_guards": "no"}, "'enable_runtime_guards' in .*expected true or false, found 'no'"),
    ],
)
def test_runtime_guards_refuse_what_can_not_be(settings, said):
    with pytest.raises(ConfigError, match=said):
        LearnRateController(**settings)


def test_runtime_guards_checks_of_what_is_untouched_take_one_call_a_group():
    """It runs at every step: with 1,000 groups each call in Python is a tenth of a millisecond."""

    def calls(n_groups):
        controller, _ = controlled(Timer(), [0.1] * n_groups)
        controller.step()
        found = []
        sys.setprofile(lambda frame, event, arg: found.append(frame) if event == "call" else None)
        try:
            assert controller.verify() == []
        finally:
            sys.setprofile(None)
        return len(found)

    assert calls(30) - calls(10) == 20
