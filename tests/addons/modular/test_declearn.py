"""declearn's own numbers: cases made by running declearn (../shared/oracles)."""

import json

import numpy
import pytest
import torch

from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.modular.scaffold import ScaffoldAuxVar
from thinc_torchopt.core.errors import AuxVarWarning

from ...conftest import SHARED
from .compare import assert_same

PATH = SHARED / "oracles" / "declearn_cases.json"
if not PATH.exists():
    pytest.skip("../shared/oracles/declearn_cases.json is not there", allow_module_level=True)
CASES = json.loads(PATH.read_text())
# Given with the cases: the order of operations differs between implementations, all in float32.
CLOSE = {"rtol": 2e-5, "atol": 1e-6}
# What we call declearn's state variables.
STATE_NAMES = {
    "momentum": {"velocity": "momentum_buffer"},
    "ewma": {"state": "exp_avg"},
    "yogi-momentum": {"state": "exp_avg"},
    "adagrad": {"state": "sum"},
    "rmsprop": {"state": "square_avg"},
}


def tensors(values):
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}


def build(spec, weights=None):
    spec = {"w_decay": 0.0, **spec}
    params = {name: torch.nn.Parameter(value) for name, value in tensors(weights or CASES["inputs"]["weights"]).items()}
    return params, Modular(params.items(), **spec)


def step(params, optimizer, grads):
    for name, grad in tensors(grads).items():
        params[name].grad = grad
    optimizer.step()


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        numpy.testing.assert_allclose(
            found[name].detach().numpy(), numpy.array(expected[name], dtype="float32"), **CLOSE, err_msg=name
        )


def ids(cases):
    return [case["id"] for case in cases]


def run(case, first=0, built=None):
    params, optimizer = built or build(case["spec"])
    for t, grads in enumerate(CASES["inputs"]["grads"][first:], first):
        if t in case["start_round_before_step"]:
            optimizer.start_round()
        step(params, optimizer, grads)
        if "weights" in case:
            assert_close(params, case["weights"][t])
    return params, optimizer


@pytest.mark.parametrize("case", CASES["trajectories"], ids=ids(CASES["trajectories"]))
def test_declearn_weights_after_each_step(case):
    run(case)


@pytest.mark.parametrize("case", CASES["trajectories"], ids=ids(CASES["trajectories"]))
def test_declearn_config(case):
    """Ours says the same, and more: declearn's leaves out `round_reset`."""
    params, optimizer = build(case["spec"])
    config = json.loads(json.dumps(optimizer.get_config()))
    assert (config["lr"], config["weight_decay"]) == (case["config"]["lrate"], case["config"]["w_decay"])
    assert config["decay"] == "declearn"
    for kind in ("regularizers", "modules"):
        assert [name for name, _ in config[kind]] == [name for name, _ in case["config"][kind]]
        for (_, found), (_, expected) in zip(config[kind], case["config"][kind]):
            assert {key: found[key] for key in expected} == expected
            assert set(found) - set(expected) <= {"round_reset", "label"}
    assert Modular.from_config(params.items(), config).get_config() == config
    # declearn's own config is taken too.
    theirs = Modular.from_config(params.items(), case["config"]).get_config()
    if not case["id"].startswith("round_reset"):
        assert theirs == config


@pytest.mark.parametrize("kind", ["modules", "regularizers"])
def test_declearn_names_and_defaults(kind):
    """Every name of declearn's registry, every argument with its default."""
    for name, facts in CASES["registry"][kind].items():
        needed = {"optim_cls": "torch.optim.SGD"} if facts["required"] else {}
        _, optimizer = build({"lrate": 0.1, kind: [(name, needed)]})
        [part] = getattr(optimizer, kind)
        expected = {key: value for key, value in facts["params"].items() if key not in ("optim_cls", "validate")}
        assert {key: part.get_config()[key] for key in expected} == expected
        assert (part.aux_name if kind == "modules" else None) == facts.get("aux_name")
        build({"lrate": 0.1, kind: [(name, {**facts["params"], **needed})]})


def assert_state_is(found, expected):
    for (name, ours), (their_name, theirs) in zip(found["modules"], expected["modules"]):
        assert name == their_name
        kept = ours["params"]
        if name in ("adam", "yogi"):
            assert {kept[param]["step"] for param in kept} == {theirs["steps"]}
            pairs = {"exp_avg": theirs["momentum"]["state"], "exp_avg_sq": theirs["velocity"]["state"]}
            if theirs["vmax"] is not None:
                pairs["max_exp_avg_sq"] = theirs["vmax"]
            else:
                assert not any("max_exp_avg_sq" in kept[param] for param in kept)
        elif name == "scaffold-server":
            assert ours["shared"] == {"clients": theirs["clients"]} and theirs["s_state"] == 0.0
            assert not any(kept[param]["correction_sum"].any() for param in kept)
            continue
        else:
            pairs = {STATE_NAMES[name][key]: value for key, value in theirs.items()}
        for key, vector in pairs.items():
            assert_close({param: kept[param][key] for param in kept}, vector["__vector__"])


@pytest.mark.parametrize(
    "case",
    cases := [case for case in CASES["trajectories"] if "final_state" in case],
    ids=ids(cases),
)
def test_declearn_state_after_all_steps(case):
    assert_state_is(run(case)[1].get_state(), case["final_state"])


@pytest.mark.parametrize("case", CASES["state_roundtrip"], ids=ids(CASES["state_roundtrip"]))
def test_declearn_state_round_trip(case):
    params, optimizer = build(case["spec"])
    for grads in CASES["inputs"]["grads"][: case["cut_after_steps"]]:
        step(params, optimizer, grads)
    assert_close(params, case["weights_at_cut"])
    assert_state_is(optimizer.get_state(), case["state"])
    again, resumed = {name: torch.nn.Parameter(param.detach().clone()) for name, param in params.items()}, None
    resumed = Modular.from_config(again.items(), json.loads(json.dumps(optimizer.get_config())))
    resumed.set_state(optimizer.get_state())
    for grads in CASES["inputs"]["grads"][case["cut_after_steps"] :]:
        step(params, optimizer, grads)
        step(again, resumed, grads)
    assert_close(again, case["final_uninterrupted"])
    assert all(torch.equal(params[name], again[name]) for name in params)


# ---------------------------------------------------------------------- scaffold


def vector(value):
    return tensors(value["__vector__"]) if isinstance(value, dict) else value


@pytest.mark.parametrize("case", CASES["scaffold"], ids=ids(CASES["scaffold"]))
def test_declearn_scaffold(case):
    server_params, server = build(case["server_spec"], case["rounds"][0]["global_weights_start"])
    clients = {}
    for name in case["rounds"][0]["participants"]:
        clients[name] = build(case["client_spec"])
        clients[name][1].shared.parts["scaffold_client"]["client"] = name
    for expected in case["rounds"]:
        assert_close(server_params, expected["global_weights_start"])
        sent = server.collect_aux_var()
        state = vector(expected["server_aux"]["scaffold"]["state"])
        if isinstance(state, dict):
            assert_close(sent["scaffold"].state, state)
        else:
            assert sent == {"scaffold": ScaffoldAuxVar(state=state)}
        collected, moved = [], []
        for name in expected["participants"]:
            params, client = clients[name]
            with torch.no_grad():
                for key, param in params.items():
                    param.copy_(server_params[key])
            client.process_aux_var(sent)
            client.start_round()
            for grads, weights in zip(expected["clients"][name]["grads"], expected["clients"][name]["weights"]):
                step(params, client, grads)
                assert_close(params, weights)
            aux = client.collect_aux_var()
            assert_close(aux["scaffold"].delta, vector(expected["clients"][name]["aux"]["scaffold"]["delta"]))
            assert aux["scaffold"].clients == (name,)
            [[_, state]] = client.get_state()["modules"]
            [[_, theirs]] = expected["clients"][name]["state_after_collect"]
            assert_close({key: own["correction"] for key, own in state["params"].items()}, vector(theirs["state"]))
            collected.append(aux)
            moved.append({key: (server_params[key] - params[key]).detach() for key in params})
        total = ScaffoldAuxVar.aggregate([aux["scaffold"] for aux in collected])
        assert_close(total.delta, vector(expected["aggregated_aux"]["scaffold"]["delta"]))
        assert list(total.clients) == expected["aggregated_aux"]["scaffold"]["clients"]
        server.process_aux_var(collected)
        [[_, state]] = server.get_state()["modules"]
        [[_, theirs]] = expected["server_state"]
        assert_close({key: own["correction_sum"] for key, own in state["params"].items()}, vector(theirs["s_state"]))
        assert state["shared"]["clients"] == theirs["clients"]
        mean = {key: sum(own[key] for own in moved) / len(moved) for key in server_params}
        assert_close(mean, expected["server_pseudo_gradient"])
        server.apply_gradients(mean)
        assert_close(server_params, expected["global_weights_end"])


# ---------------------------------------------------------------------- errors

# Ours are of a more telling kind. All are ValueErrors.
OTHER_ERRORS = {
    "modules-is-str": TypeError,  # declearn looks for a module 'a'
    "beta-int-0": ValueError,
    "lrate-str": ValueError,
    "torch-optim-bad-path": ValueError,
    "torch-optim-not-optimizer": ValueError,
    "process_aux_var-to-module-without-aux": KeyError,
}
ERRORS = {"KeyError": KeyError, "TypeError": TypeError, "ValueError": ValueError}


@pytest.mark.parametrize("case", CASES["construct_errors"], ids=ids(CASES["construct_errors"]))
def test_declearn_errors(case):
    if case["error"] is None:
        _, optimizer = build({"lrate": 0.1, "modules": ["scaffold-client"]})
        with pytest.warns(AuxVarWarning):
            assert optimizer.collect_aux_var() == case["returns"]
        return
    expected = OTHER_ERRORS.get(case["id"]) or ERRORS[case["error"]]
    with pytest.raises(expected) as caught:
        provoke(case)
    if case["id"] != "unknown-option":  # Python's own
        assert isinstance(caught.value, ValueError)
        assert "expected" in str(caught.value) or "is missing" in str(caught.value)


def provoke(case):
    spec = case["spec"]
    if isinstance(spec, dict):
        return build(spec)
    client, server = ({"lrate": 0.1, "modules": [f"scaffold-{side}"]} for side in ("client", "server"))
    ones = {name: torch.ones_like(value) for name, value in tensors(CASES["inputs"]["weights"]).items()}
    calls = {
        "process_aux_var-unknown-name": lambda: build(client)[1].process_aux_var({"x": 1}),
        "process_aux_var-to-module-without-aux": lambda: build({"lrate": 0.1, "modules": ["adam"]})[1].process_aux_var(
            {"adam": 1}
        ),
        "process_aux_var-wrong-type": lambda: build(client)[1].process_aux_var({"scaffold": {}}),
        "scaffold-aux-client-gets-delta": lambda: build(client)[1].process_aux_var(
            {"scaffold": ScaffoldAuxVar(delta=ones, clients=("a",))}
        ),
        "scaffold-aux-server-gets-state": lambda: build(server)[1].process_aux_var(
            {"scaffold": ScaffoldAuxVar(state=ones)}
        ),
        "scaffold-aux-both": lambda: ScaffoldAuxVar(state=0.0, delta=0.0),
        "scaffold-aux-neither": lambda: ScaffoldAuxVar(),
        "scaffold-aux-sum-of-states": lambda: ScaffoldAuxVar.aggregate(
            [ScaffoldAuxVar(state=ones), ScaffoldAuxVar(state=ones)]
        ),
        "grads-with-other-names": lambda: build({"lrate": 0.1})[1].apply_gradients(
            {f"module.{name}": value for name, value in ones.items()}
        ),
    }
    return calls[case["id"]]()


def damage(case, state):
    """What the case's name says, done to our state."""
    modules = state["modules"]
    name = case["id"]
    if name == "no-modules-field":
        del state["modules"]
    elif name == "empty-dict":
        state.clear()
    elif name == "too-few-modules":
        modules.pop()
    elif name == "too-many-modules":
        modules.append(modules[-1])
    elif name == "wrong-name-second":
        modules[1][0] = "yogi"
    elif name == "order-swapped":
        modules.reverse()
    elif name == "missing-velocity-first":
        del modules[0][1]["params"]["w"]["momentum_buffer"]
    elif name.startswith("missing-steps-second"):
        del modules[1][1]["params"]["b"]["step"]
    elif name == "missing-vmax":
        modules[1][1]["params"]["b"]["max_exp_avg"] = modules[1][1]["params"]["b"].pop("exp_avg_sq")
    elif name.startswith("nested-missing-state (adam"):
        del modules[1][1]["params"]["b"]["exp_avg"]
    elif name.startswith("nested-missing-state-velocity"):
        del modules[0][1]["params"]["b"]["exp_avg_sq"]
    elif name == "modules None":
        state["modules"] = None
    elif name == "stateless module given data":
        modules[0][1]["params"]["w"] = {"state": torch.ones(4, 3)}
    else:
        assert case["error"] is None


@pytest.mark.parametrize("case", CASES["set_state_errors"], ids=ids(CASES["set_state_errors"]))
def test_declearn_set_state_errors(case):
    params, optimizer = build(case["spec"])
    for grads in CASES["inputs"]["grads"][: case["warm_steps"]]:
        step(params, optimizer, grads)
    before, damaged = optimizer.get_state(), optimizer.get_state()
    damage(case, damaged)
    if case["error"] is None:
        optimizer.set_state(damaged)
    else:
        with pytest.raises(KeyError if case["error"] == "KeyError" else ValueError):
            optimizer.set_state(damaged)
    assert_same(optimizer.get_state(), before)
