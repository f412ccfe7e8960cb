"""Oracles: the same training without the change, a fresh optimizer, and a loop over cells."""

import copy
import pickle

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from thinc_torchopt.addons.modular import Modular
from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.core.errors import ConfigError, StateError
from thinc_torchopt.core.rates import warm_up_new_params
from thinc_torchopt.core.state.preserve import StateMapping, preserve_optimizer_state

from ...conftest import needs_gpu
from ...models import same_tree
from ..algorithms.test_state_fit import build, naive, shapes, tensors

OPTIMIZERS = [
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5, "foreach": True}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("SGD", {}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "betas": (0.8, 0.9)}),
    ("Adam", {"foreach": True, "capturable": False}),
    ("Adam", {"fused": True, "amsgrad": True}),
    ("Adam", {"lr": torch.tensor(0.01)}),
    ("AdamW", {"fused": True}),
    ("AdamW", {"foreach": False, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("RMSprop", {"centered": True, "foreach": True}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"fused": True}),
    ("NAdam", {"decoupled_weight_decay": True}),
    ("NAdam", {"foreach": True}),
    ("RAdam", {}),
    ("RAdam", {"foreach": True}),
    ("Adamax", {}),
    ("Adadelta", {}),
    ("ASGD", {}),
    ("Rprop", {}),
    ("Adafactor", {}),
]


def each_of(rows):
    return pytest.mark.parametrize("name, options", rows, ids=[f"{name}-{'-'.join(options)}" for name, options in rows])


EVERY = each_of(OPTIMIZERS)
NON_NEGATIVE = {
    "exp_avg_sq",
    "max_exp_avg_sq",
    "square_avg",
    "sum",
    "exp_inf",
    "acc_delta",
    "step_size",
    "row_var",
    "col_var",
    "variance",
}


class Params(nn.Module):
    """Params by name. Dots make modules."""

    def __init__(self, seed=0, /, **params):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name, shape in params.items():
            *path, last = name.split("__")
            module = self
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, nn.Parameter(torch.randn(shape, generator=generator)))


def train(optimizer, model, *, steps=4, seed=1, grads=None):
    """A few steps with random gradients. grads (Callable): Changes them, by name."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for name, param in model.named_parameters():
            grad = torch.randn(param.shape, generator=generator)
            param.grad = (grads(name, grad) if grads else grad).to(param.device, param.dtype)
        optimizer.step()


def snapshot(optimizer):
    return copy.deepcopy(optimizer.state_dict())


# ---------------------------------------------------------------------- a whole optimizer


@EVERY
def test_preserve_optimizer_state_without_growth_goes_on_bit_by_bit(name, options):
    model = Params(a__W=(5, 3), a__b=(5,), c=(2, 3, 2))
    optimizer = build(name, [{"params": [model.a.W], "lr": 0.1}, {"params": [model.a.b, model.c]}], options)
    train(optimizer, model)
    theirs, their_model = copy.deepcopy((optimizer, model))
    new_model = copy.deepcopy(model)
    made = preserve_optimizer_state(optimizer, new_model, model)
    assert type(made) is type(optimizer) and made is not optimizer
    train(made, new_model, seed=2)
    train(theirs, their_model, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(new_model.parameters(), their_model.parameters()))
    assert same_tree(made.state_dict(), theirs.state_dict())


@EVERY
@settings(max_examples=settings.default.max_examples // 8)
@given(data=st.data(), on_growth=st.sampled_from(["mean", "zero"]), seed=st.integers(0, 1000))
def test_preserve_optimizer_state_with_random_shapes(name, options, data, on_growth, seed):
    sizes = data.draw(st.lists(shapes, min_size=1, max_size=4))
    model = Params(seed, **{f"p{i}": [before for before, _ in pairs] for i, pairs in enumerate(sizes)}, gone=(2, 2))
    new_model = Params(
        seed + 1, new=(3, 2), **{f"p{i}": [after for _, after in pairs] for i, pairs in enumerate(sizes)}
    )
    optimizer = build(name, model.parameters(), options)
    train(optimizer, model, seed=seed)
    before = snapshot(optimizer)
    made = preserve_optimizer_state(optimizer, new_model, model, on_growth=on_growth)
    assert same_tree(snapshot(optimizer), before)
    assert {id(param) for group in made.param_groups for param in group["params"]} == {
        id(param) for param in new_model.parameters()
    }
    for i, pairs in enumerate(sizes):
        old, new = model.get_parameter(f"p{i}"), new_model.get_parameter(f"p{i}")
        was, is_now = optimizer.state[old], made.state[new]
        assert was.keys() == is_now.keys() and (was or (name, options) == ("SGD", {}))
        for key, value in tensors(is_now).items():
            assert value.dtype == was[key].dtype and value.device == new.device and value.isfinite().all()
            assert key not in NON_NEGATIVE or value.min() >= 0
            if was[key].ndim == 0:
                assert torch.equal(value, was[key])
            elif was[key].shape == old.shape and key not in ("row_var", "col_var"):
                assert value.shape == new.shape
                if old.numel() != new.numel():
                    kept = tuple(slice(min(pair)) for pair in pairs)
                    scale = 0.1 if key == "momentum_buffer" else 1.0  # of SGD and RMSprop: both are sums
                    assert torch.equal(value[kept], was[key][kept])
                    expected = naive(was[key].double().numpy(), tuple(new.shape), on_growth, scale)
                    numpy.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)  # sums of float32
    train(made, new_model, seed=seed + 2)
    assert all(param.isfinite().all() for param in new_model.parameters())


@each_of([row for row in OPTIMIZERS if "dampening" not in row[1]])
def test_preserve_optimizer_state_starts_new_params_as_the_class_does(name, options):
    """A param that joins learns what it would learn in a fresh optimizer. With dampening not quite: torch spares a
    param's very first gradient it, but not that of a param which joins.
    """
    model = Params(layers__0__W=(5, 3))
    new_model = Params(layers__0__W=(5, 3), layers__1__W=(4, 3))
    optimizer = build(name, model.parameters(), options)
    train(optimizer, model)
    made = preserve_optimizer_state(optimizer, new_model, model, new_params_warmup=0)
    alone = nn.Parameter(new_model.layers.get_submodule("1").W.detach().clone())
    fresh = build(name, [alone], options)
    joined = new_model.layers.get_submodule("1").W
    if name != "Adafactor" and (name, options) != ("SGD", {}):  # it is not left to the class's first step
        assert set(made.state[joined]) == set(optimizer.state[model.layers.get_submodule("0").W])
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        for param in new_model.parameters():
            param.grad = torch.randn(param.shape, generator=generator)
        alone.grad = joined.grad.clone()
        made.step()
        fresh.step()
    assert torch.equal(joined, alone)


def test_preserve_optimizer_state_keeps_groups_and_options():
    model = Params(encoder__W=(4, 3), encoder__b=(4,), head__W=(2, 4), head__b=(2,))
    new_model = Params(head__b=(3,), head__W=(3, 4), encoder__b=(4,), encoder__W=(4, 3), encoder__2__W=(4, 4))
    groups = [
        {
            "params": [("head.W", model.head.W), ("encoder.W", model.encoder.W)],
            "lr": 0.5,
            "betas": (0.5, 0.6),
            "id": "ours",
        },
        {"params": [("encoder.b", model.encoder.b), ("head.b", model.head.b)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1, fused=True)
    train(optimizer, model)
    made = preserve_optimizer_state(optimizer, new_model, model)
    assert [group["param_names"] for group in made.param_groups] == [
        ["head.W", "encoder.W"],
        ["encoder.b", "head.b"],
        ["encoder.2.W"],
    ]
    assert made.param_groups[2]["betas"] == (0.5, 0.6) and "id" not in made.param_groups[2]
    for ours, theirs in zip(made.param_groups, optimizer.param_groups):
        assert [id(new_model.get_parameter(name)) for name in ours["param_names"]] == [
            id(param) for param in ours["params"]
        ]
        assert list(ours) == list(theirs)
        assert all(ours[key] == theirs[key] for key in ours if key not in ("params", "param_names"))
    assert made.defaults == optimizer.defaults
    made.add_param_group({"params": [("late", nn.Parameter(torch.zeros(2)))]})
    assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize("warmup", [0, 100])
def test_preserve_optimizer_state_lets_new_params_join_their_nearest_relatives(warmup):
    model = Params(encoder__0__W=(3, 3), encoder__0__b=(3,), norm__g=(3,), head__W=(2, 3))
    decayed, plain = [model.encoder.get_submodule("0").W, model.norm.g], [model.encoder.get_submodule("0").b]
    optimizer = torch.optim.SGD([{"params": decayed}, {"params": plain}, {"params": [model.head.W]}], momentum=0.9)
    train(optimizer, model)
    new_model = Params(
        encoder__0__W=(3, 3),
        encoder__0__b=(3,),
        encoder__1__W=(3, 3),
        encoder__1__b=(3,),
        head__W=(2, 3),
        head__b=(2,),
        x=(2,),
    )
    made = preserve_optimizer_state(optimizer, new_model, model, new_params_warmup=warmup)
    names = {id(param): name for name, param in new_model.named_parameters()}
    old = [["encoder.0.W"], ["encoder.0.b"], ["head.W"]]
    new = [["x", "encoder.1.W"], ["encoder.1.b"], ["head.b"]]
    expected = [*old, *new] if warmup else [one + more for one, more in zip(old, new)]
    assert [[names[id(param)] for param in group["params"]] for group in made.param_groups] == expected


def rates_of_new_params(rates, warmup):
    """By hand: from a hundredth of a tenth of their group's rate to that tenth."""
    return [0.1 * rate * min(1.0, 0.01 + 0.99 * step / warmup) for step, rate in enumerate(rates)]


@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.parametrize("named", [False, True])
def test_preserve_optimizer_state_warms_new_params_up_to_a_tenth(kind, named):
    """Without a controller; a scheduler of torch moves the other rate. The optimizer is replaced again meanwhile."""
    model = Params(a=(3, 3), b=(2,))
    params = model.named_parameters() if named else model.parameters()
    optimizer = torch.optim.AdamW(params, lr=kind(0.5), weight_decay=0.3, foreach=False)
    train(optimizer, model)
    larger, largest = Params(a=(3, 3), b=(2,), c=(4,)), Params(a=(3, 3), b=(2,), c=(5,), d=(2,))
    made = preserve_optimizer_state(optimizer, larger, model, new_params_warmup=8)
    assert made.param_groups[1]["weight_decay"] == 0.3
    scheduler = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.9**step)
    found = []
    for step in range(12):
        if step == 5:
            saved = copy.deepcopy(made.state_dict())
            made = preserve_optimizer_state(made, largest, larger, new_params_warmup=4)
            scheduler = None
        for param in [param for group in made.param_groups for param in group["params"]]:
            param.grad = torch.ones_like(param)
        made.step()
        found.append([float(group["lr"]) for group in made.param_groups])
        if scheduler is not None:
            scheduler.step()
    rates = [0.5 * 0.9 ** min(step, 5) for step in range(12)]
    # float32, in a tensor
    assert [of_step[0] for of_step in found] == pytest.approx(rates, rel=1e-6)
    assert [of_step[1] for of_step in found] == pytest.approx(rates_of_new_params(rates, 8), rel=1e-6)
    assert [of_step[2] for of_step in found[5:]] == pytest.approx(rates_of_new_params(rates[5:], 4), rel=1e-6)
    # The position is saved.
    again = preserve_optimizer_state(optimizer, larger, model, new_params_warmup=8)
    again.load_state_dict(saved)
    again.step()
    assert float(again.param_groups[1]["lr"]) == pytest.approx(found[5][1], rel=1e-6)


def loaded(optimizer):
    """Another optimizer with its state, as in another process."""
    groups = [{"params": copy.deepcopy(group["params"])} for group in optimizer.param_groups]
    made = type(optimizer)(groups, lr=0.1)
    made.load_state_dict(optimizer.state_dict())
    warm_up_new_params(made)
    warm_up_new_params(made)  # no second count of steps
    return made


def pickled(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, loaded])
@pytest.mark.parametrize("cls", [torch.optim.SGD, Modular])
def test_new_params_warm_up_in_copies_of_their_optimizer(cls, copied):
    """From where they are; the original, a state dict of it, and a copy of the copy too."""
    model, larger = Params(a=(3, 3)), Params(a=(3, 3), c=(4,))
    optimizer = cls(model.parameters(), lr=0.5)
    train(optimizer, model)
    made = preserve_optimizer_state(optimizer, larger, model, new_params_warmup=8)

    def rates(of, steps):
        found = []
        for _ in range(steps):
            for param in [param for group in of.param_groups for param in group["params"]]:
                param.grad = torch.ones_like(param)
            of.step()
            found.append(of.param_groups[1]["lr"])
        return found

    expected = rates_of_new_params([0.5] * 12, 8)
    assert rates(made, 3) == pytest.approx(expected[:3])
    copies = [copied(made), copied(copied(made))]
    saved = made.state_dict()
    for one in (made, *copies):
        assert type(one) is cls
        assert rates(one, 9) == pytest.approx(expected[3:])
    made.load_state_dict(saved)
    assert rates(made, 9) == pytest.approx(expected[3:])
    # A later optimizer is copied itself, and not the one before it.
    largest = preserve_optimizer_state(made, Params(a=(3, 3), c=(4,), d=(2,)), larger)
    assert len(copied(largest).param_groups) == 3


def test_preserve_optimizer_state_gives_new_params_to_the_controller():
    """With the rates of `add_params`. Those whose relatives are frozen stay with them."""
    model = Params(body__W=(3, 3), head__W=(2, 3))
    groups = [{"params": model.body.parameters()}, {"params": model.head.parameters()}]
    optimizer, controller = torch.optim.Adam(groups, lr=0.5), LearnRateController()
    controller.register_optimizer("m", optimizer, {0: "frozen", 1: [0.5 - step / 100 for step in range(40)]})
    controller.step()
    larger = Params(body__W=(3, 3), body__b=(3,), head__W=(2, 3), head__b=(2,))
    made = preserve_optimizer_state(optimizer, larger, model, new_params_warmup=8, controller=controller)
    assert [len(group["params"]) for group in made.param_groups] == [2, 1, 1]
    found = []
    for _ in range(12):
        controller.step()
        train(made, larger)
        found.append([group["lr"] for group in made.param_groups])
    rates = [0.49 - step / 100 for step in range(12)]
    assert [of_step[0] for of_step in found] == [0.0] * 12
    assert [of_step[2] for of_step in found] == pytest.approx(rates_of_new_params(rates, 8), rel=1e-6)
    assert controller.verify() == [] and controller.outside_writes == 0


def test_preserve_optimizer_state_leaves_out_what_did_not_learn():
    model = Params(encoder__W=(3, 3), other__0__W=(3, 3), head__W=(2, 3))
    model.encoder.W.requires_grad = False
    optimizer = torch.optim.Adam(model.head.parameters())
    train(optimizer, model)
    shapes = {
        "encoder__W": (3, 3),
        "encoder__adapter": (2, 3),
        "other__0__W": (3, 3),
        "other__1__W": (3, 3),
        "head__W": (3, 3),
        "head__s": (1,),
    }
    new_model = Params(**shapes)
    new_model.head.s.requires_grad = False
    made = preserve_optimizer_state(optimizer, new_model, model)
    names = {id(param): name for name, param in new_model.named_parameters()}
    # encoder.W was frozen; other.0.W was another optimizer's, and other.1.W is its neighbour's; an adapter in a frozen
    # encoder learns.
    found = {names[id(param)] for group in made.param_groups for param in group["params"]}
    assert found == {"head.W", "encoder.adapter"}


def test_preserve_optimizer_state_of_a_model_that_changed_in_place():
    model = Params(a__W=(4, 3), head__W=(2, 4))
    optimizer = torch.optim.Adam(model.parameters())
    train(optimizer, model)
    before = dict(model.named_parameters())
    model.head.W = nn.Parameter(torch.zeros(3, 4))
    made = preserve_optimizer_state(optimizer, model, before)
    assert torch.equal(made.state[model.head.W]["exp_avg"][:2], optimizer.state[before["head.W"]]["exp_avg"])
    assert made.state[model.a.W]["exp_avg"] is optimizer.state[model.a.W]["exp_avg"]
    zero = preserve_optimizer_state(optimizer, model, before, on_growth="zero")
    assert made.state[model.head.W]["exp_avg"][2].all() and not zero.state[model.head.W]["exp_avg"][2].any()


def test_preserve_optimizer_state_of_tied_and_untied_params():
    model = Params(embed__W=(5, 3), head__W=(5, 3))
    model.head.W = model.embed.W
    optimizer = torch.optim.Adam(model.parameters())
    train(optimizer, model)
    untied = Params(embed__W=(5, 3), head__W=(5, 3))
    made = preserve_optimizer_state(optimizer, untied, model)
    first, second = (made.state[param] for param in untied.parameters())
    assert same_tree(first, second) and len(made.param_groups[0]["params"]) == 2
    assert all(first[key].data_ptr() != second[key].data_ptr() for key in first)
    tied = Params(embed__W=(6, 3), head__W=(6, 3))
    tied.head.W = tied.embed.W
    again = preserve_optimizer_state(made, tied, untied)
    assert len(again.param_groups[0]["params"]) == 1 and again.state[tied.embed.W]["exp_avg"].shape == (6, 3)


def test_preserve_optimizer_state_by_mappings():
    model = Params(old__W=(4, 3), positions=(4, 2), fresh=(2,), rest=(3,))
    new_model = Params(new__W=(6, 3), positions=(8, 2), fresh=(2,), rest=(3,))
    optimizer = torch.optim.Adam(model.parameters())
    train(optimizer, model)
    mappings = [
        StateMapping("old.W", "new.W", "expand"),
        StateMapping("positions", "positions", "reshape"),
        StateMapping(None, "fresh"),
    ]
    made = preserve_optimizer_state(optimizer, new_model, model, mappings)
    assert torch.equal(made.state[new_model.new.W]["exp_avg"][:4], optimizer.state[model.old.W]["exp_avg"])
    stretched = nn.functional.interpolate(optimizer.state[model.positions]["exp_avg"].T[None], size=8, mode="linear")
    torch.testing.assert_close(made.state[new_model.positions]["exp_avg"], stretched[0].T)
    assert not made.state[new_model.fresh]["exp_avg"].any() and made.state[new_model.fresh]["step"] == 0
    assert made.state[new_model.rest]["step"] == 4  # not named: matched as always
    by_dict = preserve_optimizer_state(optimizer, new_model, model, {"new.W": "old.W", "fresh": None})
    assert torch.equal(by_dict.state[new_model.new.W]["exp_avg"], made.state[new_model.new.W]["exp_avg"])
    assert by_dict.state[new_model.fresh]["step"] == 0


@pytest.mark.parametrize(
    "mappings, said",
    [
        ({"W": "V"}, "'V' to 'W': expected a name of the old model, found 'V'. It has: W, b"),
        ({"V": "W"}, "'W' to 'V': expected a name of the new model, found 'V'"),
        (
            [StateMapping("W", "W", "contract")],
            r"param 'W' by 'contract': expected dimensions that stay or shrink, found \(4, 3\) before and \(5, 3\)",
        ),
        ([StateMapping("W", "W"), StateMapping("b", "W")], "expected one mapping for it, found another for 'W'"),
        ({"W": "frozen"}, "'frozen' to 'W': the optimizer does not have it"),
        ([("W", "W")], "expected a StateMapping"),
    ],
)
def test_preserve_optimizer_state_says_which_mapping_is_wrong(mappings, said):
    model, new_model = Params(W=(4, 3), b=(4,), frozen=(2,)), Params(W=(5, 3), b=(5,))
    optimizer = torch.optim.Adam([model.W, model.b])  # before its first step: there is no state yet that would not fit
    with pytest.raises(StateError, match=said):
        preserve_optimizer_state(optimizer, new_model, model, mappings)


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda state: state["exp_avg"].fill_(float("nan")), "param 'W': expected finite values in exp_avg"),
        (lambda state: state["exp_avg_sq"].view(-1)[3:4].fill_(float("inf")), "expected finite values in exp_avg_sq"),
        (
            lambda state: state["exp_avg_sq"].view(-1)[3:4].fill_(-1.0),
            "values of at least zero in exp_avg_sq, found -1",
        ),
        (
            lambda state: state.update(exp_avg=torch.zeros(2, 3)),
            r"param 'W': exp_avg has shape \(2, 3\), the param has \(4, 3\)",
        ),
        (lambda state: state.update(exp_avg=torch.zeros(4, 3, dtype=torch.complex64)), "exp_avg is torch.complex64"),
        (lambda state: state.update(step=float("nan")), "expected finite values in step"),
    ],
)
def test_preserve_optimizer_state_refuses_a_damaged_state_and_changes_nothing(damage, said):
    model = Params(W=(4, 3), b=(4,))
    optimizer = torch.optim.Adam(model.parameters())
    train(optimizer, model)
    damage(optimizer.state[model.W])
    before, groups = repr(optimizer.state_dict()), [list(group["params"]) for group in optimizer.param_groups]
    with pytest.raises(StateError, match=said):
        preserve_optimizer_state(optimizer, Params(W=(4, 3), b=(6,)), model)
    assert repr(optimizer.state_dict()) == before and [group["params"] for group in optimizer.param_groups] == groups


def test_preserve_optimizer_state_refuses_what_it_cannot_do():
    model = Params(W=(4, 3))
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(StateError, match="Give the model itself, not a copy"):
        preserve_optimizer_state(optimizer, model, copy.deepcopy(model))
    with pytest.raises(StateError, match="LBFGS"):
        preserve_optimizer_state(torch.optim.LBFGS(model.parameters()), model, model)
    with pytest.raises(ConfigError, match=r"on_growth to be one of \['mean', 'zero'\], found 'median'"):
        preserve_optimizer_state(optimizer, model, model, on_growth="median")
    with pytest.raises(ConfigError, match=r"'new_params_warmup' in .* of at least 0, found -1"):
        preserve_optimizer_state(optimizer, model, model, new_params_warmup=-1)


def test_preserve_optimizer_state_before_the_first_step():
    model, new_model = Params(W=(4, 3)), Params(W=(5, 3), b=(2,))
    made = preserve_optimizer_state(torch.optim.Adam(model.parameters()), new_model, model)
    assert not made.state and [len(group["params"]) for group in made.param_groups] == [1, 1]
    train(made, new_model)


def test_preserve_optimizer_state_follows_the_dtype_of_the_param():
    model, new_model = Params(W=(4, 3)), Params(W=(5, 3)).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters())
    train(optimizer, model)
    made = preserve_optimizer_state(optimizer, new_model, model)
    assert {key: value.dtype for key, value in made.state[new_model.W].items()} == {
        "step": torch.float32,
        "exp_avg": torch.bfloat16,
        "exp_avg_sq": torch.bfloat16,
    }
    train(made, new_model)
    # State that is more exact than its param on purpose stays so.
    for key in ("exp_avg", "exp_avg_sq"):
        made.state[new_model.W][key] = made.state[new_model.W][key].float()
    wider = Params(W=(6, 3)).to(torch.bfloat16)
    assert preserve_optimizer_state(made, wider, new_model).state[wider.W]["exp_avg"].dtype == torch.float32


def test_preserve_optimizer_state_takes_no_hooks_along():
    class Counting(torch.optim.AdamW):
        def __init__(self, params, *, label):  # not the arguments of torch's classes
            super().__init__(params)
            self.label = label

    model, new_model = Params(W=(4, 3)), Params(W=(5, 3))
    optimizer = Counting(model.parameters(), label="mine")
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(optimizer, model, steps=1)
    scheduler.step()
    made = preserve_optimizer_state(optimizer, new_model, model)
    assert made.label == "mine" and made.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    old_W, new_W = model.W.detach().clone(), new_model.W.detach().clone()
    train(made, new_model, steps=1)
    assert called == [1] and torch.equal(model.W, old_W) and not torch.equal(new_model.W, new_W)


@needs_gpu
@pytest.mark.gpu
@EVERY
def test_preserve_optimizer_state_on_a_gpu(name, options):
    """Grown on the device, and moved there while it grows: as grown on the CPU."""
    model = Params(W=(8, 16), b=(8,), c=(3, 3))
    old = copy.deepcopy(model)  # not the optimizer: where there is a GPU, torch can't use a copy of its Adafactor
    optimizer, old_optimizer = (build(name, one.parameters(), options) for one in (model, old))
    train(optimizer, model)
    train(old_optimizer, old)
    wide = {"W": (11, 24), "b": (5,), "c": (3, 3), "new": (4, 2)}
    theirs_model, moved_model = Params(**wide), Params(**wide).cuda()
    theirs = preserve_optimizer_state(old_optimizer, theirs_model, old)
    moved = preserve_optimizer_state(optimizer, moved_model, model)
    train(moved, moved_model)
    train(theirs, theirs_model)
    for ours, expected in zip(moved_model.parameters(), theirs_model.parameters()):
        torch.testing.assert_close(ours.cpu(), expected, rtol=1e-4, atol=1e-5)  # other kernels, five steps
    wider = Params(W=(12, 24), b=(5,), c=(3, 3), new=(4, 2)).cuda()
    train(preserve_optimizer_state(moved, wider, moved_model), wider)
    assert all(param.isfinite().all() for param in wider.parameters())
