"""Options that move: schedules of thinc's form, lists, and declearn's schedulers, in Python."""

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thinc.api import compounding, warmup_linear

import thinc_torchopt.schedules as ours
from thinc_torchopt.errors import ConfigError, ScheduleError, StateError, StateKeyError
from thinc_torchopt.modular import Modular
from thinc_torchopt.modular.schedulers import SCHEDULERS

# declearn 2.9.1's values, driven in time: (step, round) -> compute_value(step, round).
DECLEARNS = [
    (["cosine-annealing", {"base": 0.1, "max_lr": 1.0, "duration": 4}], [1.0, 0.868198, 0.55, 0.231802, 0.1, 0.1]),
    (
        ["cosine-annealing-warm-restarts", {"base": 0.1, "max_lr": 1.0, "period": 2, "t_mult": 0.5}],
        [1.0, 0.55, 0.5, 0.3, 0.25, 0.175],
    ),
    (
        ["cyclic-exp-range", {"base": 0.1, "max_lr": 1.0, "stepsize": 2, "decay": 0.5}],
        [0.1, 0.275, 0.25, 0.06875, 0.00625, 0.0171875],
    ),
    (
        ["cyclic-triangular", {"base": 0.1, "max_lr": 1.0, "stepsize": 2, "decay": True}],
        [0.1, 0.55, 1.0, 0.55, 0.1, 0.325],
    ),
    (["exponential-decay", {"base": 0.8, "rate": 0.5}], [0.8, 0.4, 0.2, 0.1, 0.05, 0.025]),
    (["inverse-scaling", {"base": 0.8, "rate": 1.0}], [0.8, 0.4, 0.8 / 3, 0.2, 0.16, 0.8 / 6]),
    (["linear-decay", {"base": 0.8, "rate": 0.25}], [0.8, 0.6, 0.4, 0.2, 0.0, 0.0]),
    (["piecewise-decay", {"base": 0.8, "rate": 0.5, "step_size": 2}], [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]),
    (["polynomial-decay", {"base": 0.8, "power": 2, "limit": 4}], [0.8, 0.45, 0.2, 0.05, 0.0, 0.0]),
    (["warmup", {"base": 0.8, "warmup": 4}], [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
    (
        ["warmup", {"base": ["exponential-decay", {"base": 0.8, "rate": 0.5}], "warmup": 2}],
        [0.4, 0.8, 0.8, 0.4, 0.2, 0.1],
    ),
]
OF_ROUNDS = [
    (["exponential-decay", {"base": 0.8, "rate": 0.5, "step_level": False}], [0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2]),
    (["warmup-rounds", {"base": 0.9, "warmup": 3}], [0.3, 0.3, 0.3, 0.6, 0.6, 0.9, 0.9]),
    (
        ["warmup-rounds", {"base": ["linear-decay", {"base": 0.9, "rate": 0.25}], "warmup": 2}],
        [0.45, 0.45, 0.45, 0.9, 0.9, 0.9, 0.675],
    ),
    (
        ["warmup", {"base": ["exponential-decay", {"base": 0.8, "rate": 0.5, "step_level": False}], "warmup": 2}],
        [0.4, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2],  # the round in which the warm-up ends counts as the first
    ),
]


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def a_step(model, optimizer):
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()


def rates_of(optimizer, model, steps):
    """The rates by which weights moved: with gradients of 1, a step is the rate."""
    found = []
    for _ in range(steps):
        before = model.bias.detach().double().clone()
        a_step(model, optimizer)
        found.append(float((before - model.bias.detach().double())[0]))
    return found


@pytest.mark.parametrize(("spec", "expected"), DECLEARNS, ids=lambda value: str(value[0]))
def test_schedulers_steps(spec, expected):
    model = linear().double()
    assert rates_of(Modular(model.named_parameters(), lrate=spec), model, 6) == pytest.approx(expected, rel=1e-5)
    config = {"lrate": spec, "w_decay": spec}
    optimizer = Modular.from_config(model.named_parameters(), config)
    assert optimizer.lrate == optimizer.w_decay == pytest.approx(expected[0])
    config = json.loads(json.dumps(optimizer.get_config()))
    assert config["lr"] == config["weight_decay"] == spec
    assert Modular.from_config(model.named_parameters(), config).get_config() == config


@pytest.mark.parametrize(("spec", "expected"), OF_ROUNDS, ids=lambda value: str(value[0]))
def test_schedulers_rounds(spec, expected):
    """A step before the first round, then rounds of two steps."""
    model = linear().double()
    optimizer = Modular(model.named_parameters(), lrate=spec)
    found = rates_of(optimizer, model, 1)
    for _ in range(3):
        optimizer.start_round()
        found += rates_of(optimizer, model, 2)
    assert found == pytest.approx(expected)


def test_schedulers_all_are_tested():
    assert {spec[0] for spec, _ in DECLEARNS + OF_ROUNDS} == set(SCHEDULERS)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([spec for spec, _ in DECLEARNS + OF_ROUNDS]),
    st.lists(st.booleans(), max_size=12),
    st.lists(st.booleans(), max_size=12),
)
def test_schedulers_go_on_and_back(spec, before, after):
    """From a saved state, values are the same, also in the same optimizer."""

    def play(optimizer, moves):
        found = []
        for is_round in moves:
            if is_round:
                optimizer.start_round()
            else:
                a_step(model, optimizer)
            found.append(optimizer.lr)
        return found

    model = linear()
    optimizer = Modular(model.named_parameters(), lrate=spec)
    play(optimizer, before)
    saved = json.loads(json.dumps(optimizer.get_state(as_json=True)))
    in_torch = copy.deepcopy(optimizer.state_dict())
    copied = copy.deepcopy(optimizer)
    expected = play(optimizer, after)
    optimizer.set_state(saved)
    assert play(optimizer, after) == expected
    again = Modular(model.named_parameters(), lrate=spec)
    again.load_state_dict(in_torch)
    assert play(again, after) == expected
    assert play(copied, after) == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: compounding(0.1, 1.0, 1.5),
        lambda: warmup_linear(0.5, 2, 6),
        lambda: ours.warmup_cosine(0.5, 2, 6),
        lambda: iter([0.1, 0.2, 0.3, 0.3, 0.3]),
        lambda: [0.5, 0.25, 0.125, 0.125, 0.125, 0.125],
    ],
)
def test_schedulers_of_thincs_form(make):
    expected = [value for value, _ in zip(make(), range(5))]
    for name in ("lr", "lrate"):
        model = linear().double()
        optimizer = Modular(model.named_parameters(), **{name: make()})
        found = [optimizer.lr]
        steps = rates_of(optimizer, model, 4)
        assert found == [expected[0]] and steps == pytest.approx(expected[:4]) and optimizer.lrate == expected[4]
        state = json.loads(json.dumps(optimizer.get_state(as_json=True)))
        again = Modular(model.named_parameters(), **{name: make()})
        again.set_state(state)
        assert again.lr == expected[4]


def test_schedulers_of_options_groups_and_shared_ones_move_once():
    model = linear()
    shared = compounding(0.1, 1.0, 1.1)
    groups = [
        {"params": [model.weight]},
        {"params": [model.bias], "lr": [0.4, 0.3, 0.2], "weight_decay": 0.0, "adam_beta_1": [0.8, 0.7, 0.6]},
    ]
    optimizer = Modular(groups, shared, shared, modules=[("adam", {"beta_2": [0.9, 0.8, 0.7]})])
    seen = []
    for _ in range(3):
        keys = ("lr", "weight_decay", "adam_beta_1", "adam_beta_2")
        seen.append([tuple(round(group[key], 6) for key in keys) for group in optimizer.param_groups])
        if len(seen) < 3:
            a_step(model, optimizer)
    assert seen == [
        [(0.1, 0.1, 0.9, 0.9), (0.4, 0.0, 0.8, 0.9)],
        [(0.11, 0.11, 0.9, 0.8), (0.3, 0.0, 0.7, 0.8)],
        [(0.121, 0.121, 0.9, 0.7), (0.2, 0.0, 0.6, 0.7)],
    ]
    again = Modular(
        [{"params": [model.weight]}, {**groups[1], "lr": [0.4, 0.3, 0.2], "adam_beta_1": [0.8, 0.7, 0.6]}],
        0.1,
        modules=[("adam", {"beta_2": [0.9, 0.8, 0.7]})],
    )
    with pytest.raises(
        StateKeyError, match=r"state of the schedules of Modular.* found one with lr, weight"
    ):  # there it was a schedule
        again.set_state(optimizer.get_state())
    with pytest.raises(ConfigError, match="'lr' is a schedule, which JSON can't hold"):
        optimizer.get_config()
    optimizer.lr = optimizer.weight_decay = 0.5
    config = optimizer.get_config()
    assert (config["lr"], config["modules"]) == (
        0.5,
        [["adam", {**config["modules"][0][1], "beta_2": [0.9, 0.8, 0.7]}]],
    )


def test_schedulers_attributes_replace_them():
    model = linear()
    optimizer = Modular(
        [{"params": [model.weight]}, {"params": [model.bias], "lr": [0.4, 0.3, 0.2]}],
        ["exponential-decay", {"base": 1.0, "rate": 0.5}],
    )
    with pytest.raises(AttributeError, match="expected one 'lr'"):
        print(optimizer.lrate)
    optimizer.lrate = 0.25
    a_step(model, optimizer)
    assert optimizer.lrate == 0.25 and optimizer.schedules.by_name == {}
    optimizer.lrate = ["exponential-decay", {"base": 1.0, "rate": 0.5}]
    a_step(model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    before = optimizer.get_state()["schedules"]
    for wrong in (["linear", {}], ["linear-decay", {"base": 1.0}], [], -1.0, "x", iter([-1.0])):
        with pytest.raises(ConfigError):
            optimizer.lrate = wrong
        assert optimizer.lrate == 0.5 and optimizer.get_state()["schedules"] == before
        assert optimizer.get_config()["lr"] == ["exponential-decay", {"base": 1.0, "rate": 0.5}]
    optimizer.param_groups[1]["lr"] = 0.1
    weights = model.bias.detach().clone()
    with pytest.raises(ConfigError, match=r"lr of param group 1 follows a schedule, and was set to 0.1 beside it"):
        a_step(model, optimizer)
    assert torch.equal(model.bias, weights)


def test_schedulers_values_are_checked_before_the_step():
    model = linear()
    optimizer = Modular(model.named_parameters(), lr=iter([0.1, float("nan"), 0.1]))
    a_step(model, optimizer)
    weights = model.bias.detach().clone()
    with pytest.raises(ConfigError, match=r"'lr'.*found nan"):
        a_step(model, optimizer)
    assert torch.equal(model.bias, weights)
    optimizer = Modular(model.named_parameters(), lr=0.1, modules=[("adam", {"beta_1": [0.5, 1.5, 0.5]})])
    a_step(model, optimizer)
    with pytest.raises(ConfigError, match=r"'beta_1'.*found 1\.5"):
        a_step(model, optimizer)


def test_schedulers_that_span_the_training_or_watch_a_score():
    model = linear()
    optimizer = Modular(model.named_parameters(), lr=ours.warmup_linear(1.0, 2))
    with pytest.raises(ScheduleError, match=r"call optimizer.schedules.set_total_steps"):
        a_step(model, optimizer)
    optimizer.schedules.set_total_steps(4)
    a_step(model, optimizer)
    a_step(model, optimizer)
    assert optimizer.lr == next(ours.warmup_linear(1.0, 0, 2))
    watching = Modular(model.named_parameters(), lr=ours.plateau(1.0, factor=0.5, patience=0))
    for score in (0.5, 0.4):
        a_step(model, watching)
        watching.schedules.observe({"score": score})
    model = linear().double()
    watching.param_groups[0]["params"] = list(model.parameters())
    assert rates_of(watching, model, 1) == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (["exponential", {"base": 0.1}], "Did you mean 'exponential-decay'"),
        (["exponential-decay", {"base": 0.1}], "rate must be given"),
        (["exponential-decay", {"base": 0.1, "rates": 0.1}], "expected some of base, rate, step_level"),
        (["exponential-decay", {"base": "x", "rate": 0.1}], "'base' in the scheduler"),
        (["exponential-decay", {"base": 0.1, "rate": 0.1, "step_level": 1}], "'step_level'"),
        (["cosine-annealing", {"base": 0.1, "max_lr": 1.0, "duration": 0}], "'duration'"),
        (["warmup", {"base": ["linear-decay", {"base": 0.1}], "warmup": 3}], "rate must be given"),
        (["warmup", {"base": "x", "warmup": 3}], "'base'"),
        (["linear-decay", 0.1], "expected a pair of a name"),
        ([0.1, "x"], "expected a number, found 'x'"),
    ],
)
def test_schedulers_wrong_ones(spec, told):
    for name in ("lrate", "weight_decay"):
        with pytest.raises(ConfigError, match=told):
            optimizer = Modular(linear().named_parameters(), **{"lrate": 0.1, name: spec})
            a_step(linear(), optimizer)
            optimizer.schedules.step()


# ---------------------------------------------------------------------- declearn's states


class Vector:
    """As declearn's."""

    def __init__(self, coefs):
        self.coefs = coefs


SHAPES = {"weight": (2, 3), "bias": (2,)}


def vector(seed, kind):
    generator = torch.Generator().manual_seed(seed)
    found = {name: torch.rand(shape, generator=generator) for name, shape in SHAPES.items()}
    if kind == "lists":
        return {name: value.tolist() for name, value in found.items()}
    return Vector({name: value.numpy() if kind == "arrays" else value for name, value in found.items()})


@pytest.mark.parametrize("kind", ["tensors", "arrays", "lists"])
def test_schedulers_states_of_declearn_are_read(kind):
    state = {
        "lrate": {"steps": 4, "rounds": 1},
        "w_decay": {"steps": 0, "rounds": 1},
        "modules": [
            ("momentum", {"velocity": vector(0, kind)}),
            (
                "adam",
                {
                    "steps": 3,
                    "vmax": vector(3, kind),
                    "momentum": {"state": vector(1, kind)},
                    "velocity": {"state": vector(2, kind)},
                },
            ),
            ("l2-clipping", {}),
            ("rmsprop", {"state": 0.0}),
        ],
    }
    model = linear()
    optimizer = Modular(
        model.named_parameters(),
        lrate=["exponential-decay", {"base": 1.0, "rate": 0.5}],
        w_decay=0.1,
        regularizers=["fedprox"],
        modules=["momentum", ("adam", {"amsgrad": True}), "l2-clipping", "rmsprop"],
    )
    a_step(model, optimizer)
    kept = optimizer.get_state()["regularizers"]
    optimizer.set_state(state)
    found = optimizer.get_state()
    assert optimizer.lr == 0.125 and found["schedules"]["lr"]["source"]["begun"] == 2
    (_, momentum), (_, adam), (_, clipping), (_, rmsprop) = found["modules"]
    for name in SHAPES:
        of = {seed: torch.as_tensor(vector(seed, "tensors").coefs[name]) for seed in range(4)}
        assert torch.equal(momentum["params"][name]["momentum_buffer"], of[0])
        assert torch.equal(adam["params"][name]["exp_avg"], of[1])
        assert torch.equal(adam["params"][name]["exp_avg_sq"], of[2])
        assert torch.equal(adam["params"][name]["max_exp_avg_sq"], of[3])
        assert adam["params"][name]["step"] == 3
        assert clipping["params"][name] is None and rmsprop["params"][name] is None
        assert torch.equal(
            found["regularizers"][0][1]["params"][name]["reference"], kept[0][1]["params"][name]["reference"]
        )


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda state: state.pop("modules"), KeyError),
        (lambda state: state.update(lrate={"steps": 3, "rounds": -1}), KeyError),
        (lambda state: state.update(lrate={}), ValueError),
        (lambda state: state.update(modules=[]), KeyError),
        (lambda state: state["modules"][0][1].pop("velocity"), KeyError),
        (lambda state: state["modules"][0][1].update(velocity=1.5), ValueError),
        (lambda state: state["modules"][0][1].update(velocity={"weight": torch.ones(2, 3)}), KeyError),
        (lambda state: state["modules"][0][1].update(velocity={"weight": "x", "bias": torch.ones(2)}), ValueError),
        (lambda state: state["modules"][0][1].update(velocity={"weight": torch.ones(3), "bias": 1}), ValueError),
        (lambda state: state["modules"][1][1].pop("momentum"), KeyError),
        (lambda state: state["modules"][1][1].update(momentum={}), KeyError),
        (lambda state: state["modules"].append(("mine", {"x": 1})), KeyError),
        (lambda state: state["modules"].reverse(), KeyError),
    ],
)
def test_schedulers_damaged_states_of_declearn_change_nothing(damage, kind):
    model = linear()
    optimizer = Modular(model.named_parameters(), lrate=0.1, modules=["momentum", "adam"])
    a_step(model, optimizer)
    before = json.dumps(optimizer.get_state(as_json=True))
    state = {
        "lrate": {"steps": 0, "rounds": -1},
        "w_decay": {"steps": 0, "rounds": -1},
        "modules": [
            ("momentum", {"velocity": vector(0, "tensors")}),
            ("adam", {"steps": 0, "vmax": None, "momentum": {"state": 0.0}, "velocity": {"state": 0.0}}),
        ],
    }
    damage(state)
    with pytest.raises(kind) as caught:
        optimizer.set_state(state)
    assert isinstance(caught.value, StateError)
    assert json.dumps(optimizer.get_state(as_json=True)) == before
