"""Optimizers that take the place of another."""

import copy

import pytest
import torch

from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.addons.own_loops.policies import Cosine
from thinc_torchopt.core.errors import ConfigError, LearnRateWarning
from thinc_torchopt.core.state.preserve import preserve_optimizer_state

from .kit import controlled, fill_grads, make_params, rates_in, sgd


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
    controller.register_optimizer(
        "m", optimizer, {0: Cosine(40), 1: iter([i / 100 for i in range(40)])}, param_names=names
    )
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
            assert rates_in(optimizer) == list(alone.learn_rates.values()) and controller.verify() == []
        if step == 14:  # still watched, by the same policy
            optimizer.param_groups[0]["lr"] = 0.05
            alone._optimizers["m"].optimizer.param_groups[0]["lr"] = 0.05
            for each in (controller, alone):
                with pytest.warns(LearnRateWarning, match="'m/0' was changed outside its schedule"):
                    each.step()
        else:
            controller.step()
            alone.step()
        assert controller.learn_rates == alone.learn_rates and rates_in(optimizer) == list(alone.learn_rates.values())
        fill_grads(optimizer)
        optimizer.step()
    assert [snapshot.rates for snapshot in controller.history] == [snapshot.rates for snapshot in alone.history]
    assert controller.state_dict()["groups"].keys() == alone.state_dict()["groups"].keys()
    old.register_step_pre_hook(lambda *_: None)  # hooks of others run after it
    with pytest.warns(LearnRateWarning, match=r"'m' was replaced at step 8, and the old one was stepped after that"):
        old.step()
    old.step()  # says it once
    old.param_groups[0]["lr"] = 7.0
    controller.step()  # none of its business


@pytest.mark.parametrize("watch_steps", [True, False])
def test_learn_rate_replaced_optimizers_whose_controller_was_not_told(watch_steps, recwarn):
    """Each step would be at the rates that the old one had last. Who tells the controller by hand is not warned."""
    for tell in (None, "replace", "unregister"):
        module, optimizer, controller = two_layers()
        if not watch_steps:
            controller.unregister_optimizer("m")
            controller.register_optimizer("m", optimizer, Cosine(40), watch_steps=False)
        controller.step()
        new = preserve_optimizer_state(optimizer, grown(module), module)
        if tell == "replace":
            controller.replace_optimizer(optimizer, new)
        elif tell == "unregister":
            controller.unregister_optimizer("m")
        fill_grads(new)
        controller.step()
        new.step()
        new.step()  # says it once
        found = [str(warning.message) for warning in recwarn.list]
        assert len(found) == 1 and found[0].startswith(
            "Optimizer SGD was replaced without its controller, which still sets the learning rates of the old one."
        )


def test_learn_rate_replaced_optimizers_keep_tensors_and_frozen_groups_of_their_own():
    old, new = sgd(torch.tensor(0.1), 0.2), sgd(torch.tensor(0.5), 0.6)
    controller = controlled(old, {0: Cosine(10), 1: "frozen"})
    controller.step()
    tensor, of_new = old.param_groups[0]["lr"], new.param_groups[0]["lr"]
    controller.replace_optimizer(old, new)
    controller.step()
    assert new.param_groups[0]["lr"] is of_new and of_new == controller.learn_rates["m/0"] < tensor == torch.tensor(0.1)
    fill_grads(new)
    before = new.param_groups[1]["params"][0].detach().clone()
    new.step()
    assert torch.equal(new.param_groups[1]["params"][0], before)


@pytest.mark.parametrize("new", [None, "known", "more groups"])
def test_learn_rate_refuses_what_can_not_replace_an_optimizer(new):
    old, other = sgd(0.1), sgd(0.3)
    controller = controlled(old, 0.1)
    controller.register_optimizer("n", other, 0.3)
    with pytest.raises(ConfigError, match=r"Can't replace optimizer 'm': expected .*found "):
        controller.replace_optimizer(old, {"known": other, "more groups": sgd(0.1, 0.2), None: None}[new])
    with pytest.raises(ConfigError, match="Can't find the optimizer"):
        controller.replace_optimizer(sgd(0.1), sgd(0.1))
    assert controller.step() == {"m": 0.1, "n": 0.3}
    old.step()
