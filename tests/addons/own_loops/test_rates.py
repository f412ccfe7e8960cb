"""Rates of several optimizers. Oracles: torch's own schedulers, and plain lists."""

import copy
import math
import re
import subprocess
import sys

import pytest
import torch
from torch.optim import lr_scheduler as torchs

from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.addons.own_loops.policies import FromFunction, FromSchedule
from thinc_torchopt.core.errors import ConfigError, LearnRateIntegrityError, LearnRateWarning

from .kit import checksum_of, controlled, fill_grads, make_params, rates_in, sgd


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
        assert list(rates.values()) == [
            rate for optimizer in (host, new, plateau, fixed) for rate in rates_in(optimizer)
        ]
        assert list(rates) == ["host/0", "host/1", "new", "plateau/0", "plateau/1", "fixed/0", "fixed/1"]
        assert controller.learn_rates == rates
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


def test_learn_rate_metrics_of_a_warmup_do_not_count():
    """A run whose loss rises throughout its warm-up goes on at the highest rate; also one that is resumed there."""
    first, second = LearnRateController(), LearnRateController()
    for controller in (first, second):
        controller.register_optimizer("m", sgd(0.01), "adaptive", warmup_steps=100, patience=2, min_rate=1e-6)
    for step in range(99):
        first.step(metrics={"loss": 1.0 + step})
    second.load_state_dict(first.state_dict())
    for controller in (first, second):
        rates = [controller.step(metrics={"loss": 1.0 + step})["m"] for step in range(99, 105)]
        # The loss of step 100 is the best so far, those of 101 and 102 are let pass, and that of 103 lowers the rate.
        assert rates == pytest.approx([0.00991, 0.01, 0.01, 0.01, 0.001, 0.001], rel=1e-9)


def test_learn_rate_registering_changes_nothing():
    optimizer = sgd(0.1)
    controller = controlled(optimizer, "warmup")
    assert rates_in(optimizer) == [0.1] and controller.learn_rates == {"m": 0.1} and controller.verify() == []


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
        [
            {"params": make_params(), "name": "head"},
            {"params": make_params()},
            {"params": make_params(), "name": "head"},
        ],
        lr=0.1,
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
    controller = controlled(optimizer, [0.5, 0.4, 0.3, 0.2], mode="raise")
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
    controller.register_optimizer(
        "second", second, FromFunction(lambda step: 0.2 if controller.step_count == 0 else bad)
    )
    controller.step()
    said = f"Can't set 'learn_rate' in 'second': expected a number of at least 0, found {bad!r}."
    with pytest.raises(ConfigError, match=re.escape(said)):
        controller.step()
    assert rates_in(first) == [0.2] and controller.step_count == 1 and controller.verify() == []
    if not isinstance(bad, float):
        return
    broken = sgd(0.1)
    broken.param_groups[0]["lr"] = bad
    with pytest.raises(
        ConfigError, match=f"Can't set 'learn_rate' in 'm/0': expected a number of at least 0, found {bad}"
    ):
        controller.register_optimizer("m", broken, "cosine")
    assert "m" not in controller.learn_rates


def test_learn_rate_takes_numbers_of_any_kind():
    optimizer = sgd(0.1)
    controller = controlled(optimizer, lambda step: [torch.tensor(0.5), 1, torch.tensor(0.25).numpy()][step])
    for expected in (0.5, 1.0, 0.25):
        assert controller.step() == {"m": expected}
        assert type(optimizer.param_groups[0]["lr"]) is float


def test_learn_rate_refuses_what_can_not_be_registered():
    controller = controlled(optimizer := sgd(0.1), "cosine")
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
        ConfigError,
        match="'on_outside_write' in the learn rate controller: expected 'restore', 'adopt' or 'raise', found 'ig",
    ):
        LearnRateController(on_outside_write="ignore")
    with pytest.raises(ConfigError, match=r"expected a dict of names and numbers, found 0.5"):
        controller.step(0, 0.5)
    assert list(controller.learn_rates) == ["m"]


def test_learn_rate_unregistered_optimizers_are_left_as_they_are():
    optimizer = sgd(0.1)
    controller = controlled(optimizer, "frozen", mode="raise")
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_learn_rate_tensors_are_filled_in_place(dtype):
    """Each group gets one of its own, where torch gives all of them the same."""
    tensor = torch.tensor(0.1, dtype=dtype)
    optimizer = torch.optim.Adam(
        [{"params": make_params()}, {"params": make_params()}], lr=tensor, capturable=False, foreach=False
    )
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"]
    controller = controlled(optimizer, {0: lambda step: 0.3 / (1 + step), 1: 0.7}, mode="raise")
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
    controller = controlled(optimizer, 0.1)
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


def test_learn_rate_needs_no_spacy_and_checksums_are_the_same_in_every_process():
    code = (
        "import sys, torch; from thinc_torchopt.addons.own_loops.controller import LearnRateController as C; c = C();"
        "c.register_optimizer('m', torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3, 2))]), 0.1);"
        "print('spacy' in sys.modules, c.checksums['m'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["False", checksum_of(torch.optim.AdamW(make_params()))]
