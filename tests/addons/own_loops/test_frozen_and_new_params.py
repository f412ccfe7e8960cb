"""Params that are frozen, and params that come in mid-training."""

import json

import pytest
import torch

from thinc_torchopt.core.errors import ConfigError, LearnRateWarning

from .kit import controlled, fill_grads, make_params, rates_in, sgd


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
    controller = controlled(optimizer, {0: 0.1, 1: "frozen"})

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


def test_learn_rate_new_params_follow_a_tenth_of_their_parent():
    optimizer = torch.optim.AdamW(
        [{"params": make_params(), "weight_decay": 0.3}, {"params": make_params(), "lr": 0.5}], lr=0.1
    )
    controller = controlled(optimizer, {0: "cosine", 1: [0.5 - step / 100 for step in range(40)]}, mode="raise")
    for _ in range(5):
        controller.step()
    late = make_params(2, (7,))
    before = controller.learn_rates["m/1"]
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
    assert controller.step()["m/3"] == pytest.approx(0.001 * controller.learn_rates["m/0"], rel=1e-12)
    with pytest.raises(ConfigError, match="among"):
        controller.add_params("m", make_params(), 4)
    controller.add_params("m", iter(make_params()), 2)  # a tenth of a tenth
    assert controller.step()["m/4"] == pytest.approx(0.001 * controller.learn_rates["m/2"], rel=1e-12)


def test_learn_rate_new_params_follow_adopted_rates():
    optimizer = sgd(0.1)
    controller = controlled(optimizer, "cosine", mode="adopt")
    controller.add_params("m", make_params(), warmup_steps=0)
    optimizer.param_groups[0]["lr"] = 0.4
    with pytest.warns(LearnRateWarning):
        assert controller.step() == pytest.approx({"m": 0.4, "m/1": 0.04}, rel=1e-12)


def test_learn_rate_new_params_train_as_if_they_were_new_in_an_optimizer_of_their_own():
    """Adagrad makes its state when it is built, with a first value that is an option."""
    for cls, options in [
        (torch.optim.Adagrad, {"initial_accumulator_value": 0.5}),
        (torch.optim.AdamW, {}),
        (torch.optim.Rprop, {}),
    ]:
        optimizer = cls(make_params(), lr=0.1)
        controller = controlled(optimizer, 0.1)
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
    controller = controlled(optimizer, 0.1)
    controller.add_params("m", list(zip("cd", make_params(2))))
    assert optimizer.param_groups[1]["param_names"] == ["c", "d"]
    with pytest.raises(ConfigError, match="torch says: all optimizer param groups should be with"):
        controller.add_params("m", make_params())
    plain = sgd(0.1)
    controller.register_optimizer("plain", plain, 0.1)
    with pytest.raises(ConfigError, match="torch says: all optimizer param groups should be with"):
        controller.add_params("plain", list(zip("cd", make_params(2))))


def test_learn_rate_refuses_params_that_can_not_be_added():
    optimizer = sgd(0.1, 0.2)
    controller = controlled(optimizer, {0: 0.1, 1: "frozen"})
    controller.register_optimizer("lbfgs", torch.optim.LBFGS(make_params()), 0.1)
    one = make_params()[0]
    for params, options, said in [
        ([], {}, "Can't add params to optimizer 'm': expected at least one param, found none"),
        (optimizer.param_groups[1]["params"], {}, "expected new params .* torch says: .* more than one"),
        ([one, one], {}, "expected each param once, found one twice"),
        ([one * 2], {}, "torch says: can't optimize a non-leaf Tensor"),
        ([3.0], {}, "torch says: optimizer can only optimize Tensors"),
        ([one], {"parent": "n"}, r"expected a parent among \['m/0', 'm/1'\], or its index, found 'n'"),
        ([one], {"parent": -1}, "or its index, found -1"),
        ([one], {"parent": 1}, "expected a parent that learns, found 'm/1', which is frozen"),
        ([one], {"options": {"beta": 1}}, r"expected options among \['momentum'.*, found \['beta'\]"),
        ([one], {"options": {"lr": 1}}, r"found \['lr'\]"),
        (
            [one],
            {"warmup_steps": -1},
            "'steps' in the learn rate policy 'warmup': expected a whole number of at least 0, found -1",
        ),
    ]:
        with pytest.raises(ConfigError, match=said):
            controller.add_params("m", params, **options)
    with pytest.raises(ConfigError, match="expected an optimizer with several param groups, found LBFGS"):
        controller.add_params("lbfgs", [one])
    with pytest.raises(ConfigError, match=r"Can't find the optimizer: expected one of \['lbfgs', 'm'\], found SGD"):
        controller.add_params(sgd(0.1), [one])
    assert len(optimizer.param_groups) == 2 and controller.verify() == []


def test_learn_rate_params_that_come_may_be_adaptive():
    """They warm up to a tenth of their parent's rate, and are lowered from there."""
    controller = controlled(optimizer := sgd(1.0), 1.0)
    id = controller.add_params(
        "m", make_params(), policy="adaptive", warmup_steps=4, patience=0, factor=0.5, min_rate=0.03
    )
    rates = [controller.step(metrics={"loss": 1.0 if step > 5 else 1.0 - step / 10})[id] for step in range(10)]
    assert rates == pytest.approx([0.03, 0.03, 0.0505, 0.07525, 0.1, 0.1, 0.05, 0.03, 0.03, 0.03], rel=1e-12)
    other = controlled(twin := sgd(1.0), 1.0)
    other.add_params("m", make_params(), policy="adaptive", warmup_steps=4, patience=0, factor=0.5, min_rate=0.03)
    other.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    assert rates_in(twin) == rates_in(optimizer) and other.step()[id] == 0.03
    with pytest.raises(ConfigError, match="expected settings with a policy given by its name"):
        controller.add_params("m", make_params(), patience=3)


@pytest.mark.parametrize(
    "policy, more", [(None, {}), ("warmup", {}), ("adaptive", {}), ("cosine", {"total_steps": 50})]
)
@pytest.mark.parametrize("base", [1.0, 2e-5])
def test_learn_rate_params_that_come_begin_at_a_hundredth_with_any_policy(policy, more, base):
    controller = controlled(optimizer := sgd(base), base)
    id = controller.add_params("m", make_params(), policy=policy, warmup_steps=10, **more)
    assert rates_in(optimizer) == pytest.approx([base, 0.001 * base], rel=1e-12)
    rates = [controller.step()[id] for _ in range(11)]
    expected = [0.1 * base * (0.01 + 0.99 * step / 10) for step in range(11)]
    assert rates == pytest.approx(expected, rel=1e-12)
    if policy is not None:
        given = controller.add_params("m", make_params(), policy=policy, warmup_steps=10, warmup_factor=0.5, **more)
        assert controller.step()[given] == pytest.approx(0.05 * base, rel=1e-12)
