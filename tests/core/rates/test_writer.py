"""What other code writes into the torch optimizer inside. Oracle: a plain torch loop with the same gradients."""

import copy
import warnings

import numpy
import pytest
import torch
from thinc.api import PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD
from thinc_torchopt.core.errors import LearnRateIntegrityError, LearnRateWarning

from ...models import params_of, same

RATES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
POLICIES = ["restore", "adopt", "raise"]


class Run:
    """A module that is trained by us, and a copy of it that is trained by torch."""

    def __init__(self, **settings):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        self.model, self.alone = PyTorchWrapper(module), copy.deepcopy(module)
        self.optimizer = TorchOptimizer(SGD(momentum=0.9, weight_decay=0.01), iter(RATES), grad_clip=0.0, **settings)
        self.plain = torch.optim.SGD(self.alone.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, fused=True)
        self.rng = numpy.random.default_rng(0)
        self.step_count = 0

    def step(self, *, factor=1.0):
        """factor (float): Of the rate in the plain loop."""
        for ours, theirs in zip(self.model.shims[0]._model.parameters(), self.alone.parameters()):
            ours.grad = torch.from_numpy(self.rng.normal(size=ours.shape).astype("f"))
            theirs.grad = ours.grad.clone()
        for group in self.plain.param_groups:
            group["lr"] = RATES[self.step_count] * factor
        self.plain.step()
        self.step_count += 1
        self.model.finish_update(self.optimizer)
        self.optimizer.step_schedules()

    @property
    def inside(self):
        return self.optimizer.torch_optimizers["algorithm"]

    @property
    def agrees(self):
        return same(params_of(self.model), [param.detach() for param in self.alone.parameters()])


def load(run):
    run.inside.load_state_dict(run.inside.state_dict())
    run.plain.load_state_dict(run.plain.state_dict())


def load_another_rate(run):
    state = copy.deepcopy(run.inside.state_dict())
    state["param_groups"][0]["lr"] *= 5
    run.inside.load_state_dict(state)


def new_dicts(run):
    run.inside.param_groups = [dict(group) for group in run.inside.param_groups]


def clear(run):
    run.inside.param_groups.clear()


@pytest.mark.parametrize("change", [load, new_dicts])
@pytest.mark.parametrize("policy", POLICIES)
def test_writer_the_same_groups_in_new_dicts_change_nothing(change, policy):
    run, groups = Run(on_outside_write=policy), []
    for step in range(7):
        if step in (3, 4):
            change(run)
        run.step()
        groups += run.inside.param_groups
        assert run.agrees
        assert run.optimizer.learn_rates == {"default": run.inside.param_groups[0]["lr"]} == {"default": RATES[step]}
    assert all(group is groups[0] for group in groups)


@pytest.mark.parametrize("policy", POLICIES)
def test_writer_a_rate_that_is_loaded_is_an_outside_write(policy):
    run = Run(on_outside_write=policy)
    for step in range(6):
        if step == 3:
            load_another_rate(run)
            expectation = (
                pytest.raises(LearnRateIntegrityError) if policy == "raise" else pytest.warns(LearnRateWarning)
            )
            with expectation as caught:
                run.step(factor=5.0 if policy == "adopt" else 1.0)
            if policy == "raise":
                assert caught.value.what == "learn_rate" and caught.value.found == pytest.approx(1.5)
                return
        else:
            run.step(factor=5.0 if policy == "adopt" and step > 3 else 1.0)
        if policy == "restore":
            assert run.agrees
        else:  # a factor of 5, computed as a ratio of two rates: rounded once, in float64
            assert all(
                torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(params_of(run.model), run.alone.parameters())
            )


def test_writer_a_rate_of_zero_is_adopted_and_an_infinite_one_is_not():
    run = Run(on_outside_write="adopt")
    run.step()
    run.inside.param_groups[0]["lr"] = 0.0
    with pytest.warns(LearnRateWarning, match=r"The change is kept\."):
        run.step(factor=0.0)
    run.inside.param_groups[0]["lr"] = float("inf")
    run.step(factor=0.0)
    assert run.agrees


def test_writer_groups_that_others_add_have_labels_of_their_own():
    run = Run()
    run.step()
    for _ in range(3):
        run.inside.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "name": "x"})
    with pytest.warns(LearnRateWarning):
        run.step()
    assert list(run.optimizer.rates.learn_rates) == ["default", "algorithm/x", "algorithm/x-2", "algorithm/x-3"]


@pytest.mark.parametrize("policy", POLICIES)
def test_writer_groups_that_are_taken_out_come_back(policy):
    run = Run(on_outside_write=policy)
    run.step()
    clear(run)
    if policy == "raise":
        with pytest.raises(LearnRateIntegrityError, match="'default' was removed from optimizer 'algorithm'"):
            run.step()
        return
    with pytest.warns(LearnRateWarning, match=r"'default' was removed.*The change was undone\. .*freeze"):
        run.step()
    run.step()
    assert run.agrees and len(run.inside.param_groups) == 1


def test_writer_rates_that_are_rolled_back_are_shown():
    run = Run(on_outside_write="restore")
    for _ in range(5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LearnRateWarning)
            run.step()
        run.inside.param_groups[0]["lr"] = 3.0
    run.optimizer.rates.scale = 0.5
    shown = {info.learn_rate for info in run.optimizer.describe()}
    run.step()
    assert run.optimizer.learn_rates == {"default": RATES[5] * 0.5} and shown == {RATES[5] * 0.5}
