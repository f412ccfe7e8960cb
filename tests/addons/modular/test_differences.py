"""Each difference to declearn. docs/modular.md names those that users meet."""

import json
import warnings

import numpy
import pytest
import torch

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.modular import clipping
from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.modular.registered import create
from thinc_torchopt.addons.modular.scaffold import ScaffoldAuxVar
from thinc_torchopt.core.errors import (
    AuxVarError,
    ConfigError,
    ConfigTypeError,
    ConfigWarning,
    ParamError,
    StateKeyError,
    TorchOptError,
)

CHECKS = {}
LOSS = torch.nn.functional.cross_entropy


def row(name):
    def add(check):
        CHECKS[name] = check
        return check

    return add


def linear(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2).to(dtype)


def make(model=None, lrate=0.1, **settings):
    return Modular((model or linear()).named_parameters(), lrate=lrate, **settings)


def a_step(optimizer, value=1.0):
    for param in optimizer.named_params().values():
        param.grad = torch.full_like(param, value)
    optimizer.step()


def weights(optimizer):
    return [param.detach().clone() for param in optimizer.named_params().values()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other))


def state_of(optimizer):
    return json.dumps(optimizer.get_state(as_json=True))


def refuses(error, told, call, *args, **settings):
    with pytest.raises(error, match=told):
        call(*args, **settings)


@row("`Optimizer(lrate)`")
def _():
    assert list(make().named_params()) == ["weight", "bias"]
    refuses(TypeError, "params", Modular, lrate=0.1)


@row("`lr`, `weight_decay`")
def _():
    moved = []
    for names in ({"lr": 0.1, "weight_decay": 0.5}, {"lrate": 0.1, "w_decay": 0.5}):
        model = linear()
        before = model.bias.detach().clone()
        optimizer = Modular(model.named_parameters(), **names)
        a_step(optimizer, 0.0)
        moved.append((before - model.bias.detach()) / before)
    torch.testing.assert_close(moved[0], torch.full((2,), 0.05), rtol=1e-5, atol=0)  # rounding of float32
    torch.testing.assert_close(moved[1], torch.full((2,), 0.5), rtol=1e-5, atol=0)


@row("`lrate = 1`")
def _():
    assert make(lrate=1).lrate == 1


@row("`optimizer.lrate = 0.5`")
def _():
    optimizer = make()
    before = weights(optimizer)
    optimizer.lrate = 0.5
    a_step(optimizer)
    torch.testing.assert_close(weights(optimizer), [value - 0.5 for value in before], rtol=0, atol=1e-6)


@row("instances of declearn's classes")
def _():
    class AdamModule:
        name = "adam"

        def get_config(self):
            return {}

    refuses(ConfigError, "a name, or a pair of a name and a dict", make, modules=[AdamModule()])
    refuses(ConfigError, "'lr'.*expected a number", make, lrate=AdamModule())


@row("schedulers")
def _():
    for rates in (iter([0.5, 0.25]), [0.5, 0.25], ["exponential-decay", {"base": 0.5, "rate": 0.5}]):
        refuses(ConfigTypeError, "set optimizer.lr before each step", make, lrate=rates)


@row("`regularizers`, `modules`")
def _():
    optimizer = make(modules=["adam"])
    assert isinstance(optimizer.modules, tuple) and isinstance(optimizer.regularizers, tuple)
    with pytest.raises(AttributeError):
        optimizer.modules = []


@row("`apply_gradients(model, gradients)`, `compute_updates_from_gradients`")
def _():
    model, grads = linear(), {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    optimizer = make(model)
    before = weights(optimizer)
    updates = optimizer.compute_updates_from_gradients(model, grads)
    assert isinstance(updates, dict) and all(map(torch.equal, weights(optimizer), before))
    optimizer.apply_gradients(grads)
    torch.testing.assert_close(weights(optimizer), [a + b for a, b in zip(before, updates.values())], rtol=0, atol=1e-6)
    refuses(ParamError, "without weight, bias", optimizer.apply_gradients, linear(), grads)


@row("params without a gradient")
def _():
    optimizer = make(modules=["momentum"], w_decay=0.1)
    before = weights(optimizer)
    optimizer.named_params()["weight"].grad = torch.ones(2, 3)
    optimizer.step()
    after = weights(optimizer)
    assert torch.equal(before[1], after[1]) and not torch.equal(before[0], after[0])
    refuses(KeyError, "bias", optimizer.apply_gradients, {"weight": torch.ones(2, 3)})


@row("`run_train_step`")
def _():
    model, batch = linear(), (torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    assert make(model).run_train_step(model, batch, loss=LOSS) == pytest.approx(
        LOSS(linear()(batch[0]), batch[1]).item()
    )


@row("batches `(x, y, weights)`")
def _():
    model, batch = linear(), (torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    optimizer = make(model)
    refuses(TypeError, "weights of samples", optimizer.run_train_step, model, (*batch, torch.ones(4)), loss=LOSS)
    optimizer.run_train_step(model, (*batch, None), loss=LOSS)


@row("`sclip`")
def _():
    torch.manual_seed(1)
    model, x, y = linear(), torch.randn(1, 3) * 10, torch.tensor([0])
    LOSS(model(x), y).backward()
    norm = torch.cat([param.grad.flatten() for param in model.parameters()]).norm()
    expected = [param.detach() - 0.1 * param.grad * (0.5 / norm) for param in model.parameters()]
    assert norm > 0.5
    make(model).run_train_step(model, (x, y), sclip=0.5, loss=LOSS)
    # torch.func sums in another order.
    torch.testing.assert_close([param.detach() for param in model.parameters()], expected, rtol=1e-5, atol=1e-6)


@row("dropout with `sclip`")
def _():
    """With one mask, equal samples would have equal gradients: no row of the weights would move by a part."""
    moved = set()
    for seed in range(5):
        torch.manual_seed(seed)
        weight = torch.nn.Linear(1, 1, bias=False)
        model = torch.nn.Sequential(torch.nn.Dropout(0.5), weight)
        before = weight.weight.detach().clone()
        make(model, lrate=1.0).run_train_step(
            model, (torch.ones(64, 1), torch.zeros(64, 1)), sclip=0.125, loss=lambda found, _: found.sum()
        )
        moved.add(round(float(before - weight.weight.detach()), 6))
    assert len(moved) > 2 and all(0.0 < move < 0.125 for move in moved)  # 0 or 0.125 with one mask


@row("BatchNorm with `sclip`")
def _():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    batch = (torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    refuses(ParamError, r"'1' \(BatchNorm1d\)", make(model).run_train_step, model, batch, sclip=1.0, loss=LOSS)


@row("half-precision params")
def _():
    optimizer = make(linear(torch.bfloat16), modules=["adam"])
    a_step(optimizer)
    [[_, state]] = optimizer.get_state()["modules"]
    assert state["params"]["weight"]["exp_avg"].dtype == torch.float32


@row("`get_config`")
def _():
    [[_, config]] = make(modules=[("adam", {"round_reset": True})]).get_config()["modules"]
    assert config["round_reset"] is True


@row("`get_state`")
def _():
    optimizer = make(modules=["momentum"])
    a_step(optimizer)
    before = optimizer.get_state()
    text = state_of(optimizer)
    before["modules"][0][1]["params"]["weight"]["momentum_buffer"].zero_()
    assert state_of(optimizer) == text


def resumes(parts, in_round=True):
    """Whether a run that is saved and loaded ends with the same weights."""
    ends = []
    for resumed in (False, True):
        model = linear()
        optimizer = make(model, **parts)
        optimizer.start_round()
        a_step(optimizer)
        if resumed:
            again = make(model, **parts)
            again.set_state(json.loads(state_of(optimizer)))
            optimizer = again
        a_step(optimizer, -0.5)
        if optimizer.modules and optimizer.modules[0].has_aux:
            ends.append(list(optimizer.collect_aux_var()["scaffold"].delta.values()))
        else:
            ends.append(weights(optimizer))
    return same(*ends)


@row("`set_state` of declearn's state")
def _():
    rate = {"steps": 0, "rounds": -1}
    state = {"lrate": rate, "w_decay": rate, "modules": []}
    refuses(StateKeyError, "expected a dict with version", make().set_state, state)


@row("state of regularizers")
def _():
    assert resumes({"regularizers": [("fedprox", {"alpha": 0.5})]})


@row("state of seeded noise")
def _():
    assert resumes({"modules": [("gaussian-noise", {"safe_mode": False, "seed": 3})]})


@row("state of `scaffold-client` in mid-round")
def _():
    assert resumes({"modules": ["scaffold-client"]})


@row("after a failed `set_state`, `process_aux_var`")
def _():
    optimizer = make(modules=["scaffold-client", "momentum"])
    a_step(optimizer)
    before = state_of(optimizer)
    state = optimizer.get_state()
    del state["modules"][1][1]["params"]["bias"]
    refuses(KeyError, "bias", optimizer.set_state, state)
    aux = ScaffoldAuxVar(state={"weight": torch.ones(2, 3), "bias": torch.ones(2)})
    refuses(KeyError, "Nothing was processed", optimizer.process_aux_var, {"scaffold": aux, "other": aux})
    assert state_of(optimizer) == before


@row("NaN in a state or auxiliary variable")
def _():
    optimizer = make(modules=["scaffold-client", "momentum"])
    a_step(optimizer)
    state = optimizer.get_state()
    state["modules"][1][1]["params"]["bias"]["momentum_buffer"][0] = torch.nan
    refuses(ValueError, "NaN", optimizer.set_state, state)
    aux = ScaffoldAuxVar(state={"weight": torch.full((2, 3), torch.nan), "bias": torch.ones(2)})
    refuses(ValueError, "NaN", optimizer.process_aux_var, {"scaffold": aux})


@row("negative settings, NaN")
def _():
    for settings in (
        {"lrate": -1.0},
        {"lrate": float("nan")},
        {"w_decay": -0.1},
        {"regularizers": [("ridge", {"alpha": -3.0})]},
        {"modules": [("adam", {"eps": -1.0})]},
    ):
        refuses(ValueError, "expected a number of at least 0", make, **settings)


@row("`seed` in safe mode")
def _():
    refuses(ValueError, "'seed'", make, modules=[("gaussian-noise", {"seed": 3})])


@row("seeded noise")
def _():
    optimizer = make(lrate=1.0, modules=[("gaussian-noise", {"safe_mode": False, "seed": 3})])
    updates = optimizer.compute_updates_from_gradients({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
    expected = torch.randn(6, generator=torch.Generator().manual_seed(3)).view(2, 3)
    assert torch.equal(updates["weight"], -expected)
    theirs = numpy.random.default_rng(3).normal(size=(2, 3)).astype("float32")
    assert not numpy.allclose(expected.numpy(), theirs)


@row("noise in safe mode")
def _():
    with pytest.MonkeyPatch.context() as patch:
        for byte in (b"\0", b"\xff"):
            patch.setattr(clipping.os, "urandom", lambda n, byte=byte: byte * n)
            assert bool(clipping.secure_normal(torch.Size([4])).isfinite().all())


@row("`torch-optim` with `weight_decay` or `lr`")
def _():
    for name in ("weight_decay", "lr"):
        refuses(ValueError, name, make, modules=[("torch-optim", {"optim_cls": "torch.optim.SGD", name: 0.5})])


@row("`torch-optim` of other paths")
def _():
    refuses(ValueError, "torch.optim", make, modules=[("torch-optim", {"optim_cls": "antigravity.SGD"})])
    make(modules=[("torch-optim", {"optim_cls": torch.optim.SGD})])


@row("two modules with one auxiliary name")
def _():
    refuses(ValueError, "several modules", make, modules=["scaffold-client", "scaffold-server"])


@row("`scaffold-client` after a module that isn't linear")
def _():
    with pytest.warns(ConfigWarning, match="Put it first"):
        make(modules=["adam", "scaffold-client"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(modules=["momentum", "scaffold-client"])


@row("steps K in SCAFFOLD")
def _():
    optimizer = make(modules=["scaffold-client"])
    params = optimizer.named_params()
    for step in range(2):
        params["weight"].grad = torch.ones(2, 3)
        params["bias"].grad = torch.ones(2) if step else None
        optimizer.step()
    delta = optimizer.collect_aux_var()["scaffold"].delta
    assert bool((delta["weight"] == 1.0).all() and (delta["bias"] == 1.0).all())  # bias: 1 / 1, not 1 / 2


@row("several auxiliary variables of one client")
def _():
    aux = ScaffoldAuxVar(delta=0.0, clients=("a",))
    refuses(AuxVarError, "several of a", sum, [aux, aux])


@row("`process_aux_var`")
def _():
    states = []
    for together in (True, False):
        server = make(modules=["scaffold-server"])
        sent = [
            {"scaffold": ScaffoldAuxVar(delta={"weight": torch.ones(2, 3), "bias": torch.ones(2)}, clients=(name,))}
            for name in "ab"
        ]
        server.process_aux_var(sent if together else {"scaffold": sum(aux["scaffold"] for aux in sent)})
        states.append(state_of(server))
    assert states[0] == states[1]


@row("`prepare_for_secagg`")
def _():
    assert not hasattr(ScaffoldAuxVar, "prepare_for_secagg")


@row("errors")
def _():
    for kind, call in (
        (TypeError, lambda: make(modules="adam")),
        (KeyError, lambda: make(modules=["adams"])),
        (KeyError, lambda: make().set_state({})),
        (TypeError, lambda: make(modules=["scaffold-client"]).process_aux_var({"scaffold": 1})),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, TorchOptError)


@row("frameworks")
def _():
    refuses(TypeError, "Tensors", Modular, [numpy.ones(3)], 0.1)
    found, _ = TorchOptimizer(create(), 0.5, grad_clip=0.0)((1, "W"), numpy.ones(3, "f"), numpy.ones(3, "f"))
    assert found.tolist() == [0.5] * 3


@pytest.mark.parametrize("name", CHECKS)
def test_differences(name):
    CHECKS[name]()
