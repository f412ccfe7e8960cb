"""What groups are, and what happens to groups that others change."""

import copy
import re

import pytest
import torch

from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.addons.own_loops.policies import Cosine
from thinc_torchopt.core.errors import LearnRateIntegrityError, LearnRateWarning

from .kit import checksum_of, controlled, fill_grads, make_params, quiet, rates_in, sgd, three_groups


@pytest.mark.parametrize("mode", ["restore", "adopt", "raise"])
def test_learn_rate_groups_in_another_order_keep_their_rates(mode):
    controller, optimizer = three_groups(mode)
    optimizer.param_groups[:] = optimizer.param_groups[2:] + optimizer.param_groups[:2]
    assert controller.verify() == []
    assert controller.step() == {"m/0": 0.1, "m/1": 0.2, "m/2": 0.3}
    assert rates_in(optimizer) == [0.3, 0.1, 0.2] and controller.outside_writes == 0


@pytest.mark.parametrize("change", ["moved", "params", "options", "came", "gone"])
def test_learn_rate_changed_groups_raise(change):
    controller, optimizer = three_groups("raise")
    change_group(optimizer, change)
    for _ in range(2):
        with pytest.raises(LearnRateIntegrityError) as raised:
            controller.step()
        assert raised.value.what == {"moved": "params", "came": "group", "gone": "group"}.get(change, change)
    assert not controller.conservative
    with pytest.raises(LearnRateIntegrityError):
        controller.step()
    assert controller.conservative
    controller.refresh("m")
    assert len(controller.step()) == len(optimizer.param_groups)


def change_group(optimizer, change):
    first, second, _ = optimizer.param_groups
    if change == "moved":
        first["params"], second["params"] = second["params"], first["params"]
    elif change == "params":
        first["params"] = make_params(2)
    elif change == "options":
        first["momentum"], first["nesterov"] = 0.5, True
    elif change == "came":
        optimizer.add_param_group({"params": make_params(2), "lr": 0.7})
    else:
        del optimizer.param_groups[1]


@pytest.mark.parametrize("mode", ["restore", "adopt"])
@pytest.mark.parametrize(
    "change, said, rates",
    [
        (
            "params",
            "Params of group 'm/0' were changed at step 1: expected 1 params, found 2, 2 of them new. "
            "The change is kept. If that is intended, call refresh('m')",
            {"m/0": 0.1, "m/1": 0.2, "m/2": 0.3},
        ),
        (
            "options",
            "Options of param group 'm/0' were changed at step 1: expected momentum = 0.9, nesterov = False, found "
            "momentum = 0.5, "
            "nesterov = True. The change is kept.",
            {"m/0": 0.1, "m/1": 0.2, "m/2": 0.3},
        ),
        (
            "came",
            "Param group 'm/3' was added to optimizer 'm' at step 1: expected 3 groups, found 4. {came} Call "
            "add_params instead",
            {"m/0": 0.1, "m/1": 0.2, "m/2": 0.3, "m/3": None},
        ),
        ("gone",
         "Param group 'm/1' was removed from optimizer 'm' at step 1: expected 3 groups, found 2. The change is kept.",
         {"m/0": 0.1, "m/2": 0.3}),
    ],
)  # fmt: skip
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
    assert [list(snapshot.checksums.values()) for snapshot in list(controller.history)[:1]] == [list(before.values())]
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
    controller = controlled(optimizer, 0.1)
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
    controller = controlled(optimizer, "cosine", moving=("weight_decay",), mode="raise")
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
    controller = controlled(optimizer, 0.1, param_names=names, watch_steps=False, mode="raise")
    optimizer.param_groups[0]["params"].append(params[2])
    (error,) = controller.verify()
    assert "expected 2 params, found 3, 1 of them new" in str(error)
    controller.refresh("m")
    assert controller.step() == {"m": 0.1}
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [params[3]], "lr": 0.5})
    controller.refresh("m")
    assert controller.step() == {"m": 0.1, "m/1": 0.5}
    optimizer.param_groups[0]["lr"] = 0.7
    controller.refresh("m")
    with pytest.raises(LearnRateIntegrityError, match=r"expected 0\.1, found 0\.7"):
        controller.step()


def test_learn_rate_checksums_say_what_a_group_is():
    def build(shape=(3, 2), n=2, **options):
        return torch.optim.AdamW(make_params(n, shape), **{"lr": 0.1, "weight_decay": 0, **options})

    plain = checksum_of(build())
    assert re.fullmatch("[0-9a-f]{16}", plain)
    assert plain == checksum_of(build()) == checksum_of(build(lr=0.5)) == checksum_of(build(weight_decay=0.0))
    others = [
        build((2, 3)),
        build((3, 3)),
        build(n=3),
        build(weight_decay=0.1),
        build(betas=(0.9, 0.98)),
        build(amsgrad=True),
    ]
    named = build()
    others_sums = {checksum_of(other) for other in others}
    assert len(others_sums | {plain}) == 7
    if muon := getattr(torch.optim, "Muon", None):  # an option that is a text
        texts = ("original", "match_rms_adamw")
        assert len({checksum_of(muon(make_params(2), lr=0.1, adjust_lr_fn=text)) for text in texts}) == 2
    names = dict(zip(named.param_groups[0]["params"], "ab"))
    assert checksum_of(named, param_names=names) not in others_sums | {plain}
    assert checksum_of(build(weight_decay=0.3), moving=("weight_decay",)) == checksum_of(
        build(), moving=["weight_decay"]
    )
    by_torch = torch.optim.AdamW(list(zip("ab", make_params(2))), lr=0.1, weight_decay=0.0)
    assert checksum_of(by_torch) == checksum_of(named, param_names=names)
