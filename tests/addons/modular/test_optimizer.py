"""Modular on torch models. Its modules one by one: test_every_module.py."""

import copy
import math
from typing import ClassVar

import numpy
import pytest
import spacy
import torch
from thinc.api import Linear

from thinc_torchopt.addons.modular.aux_vars import aggregate
from thinc_torchopt.addons.modular.clipping import GaussianNoise, L2GlobalClipping, secure_normal
from thinc_torchopt.addons.modular.module import Module
from thinc_torchopt.addons.modular.moments import Adam, Momentum
from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.modular.scaffold import ScaffoldAuxVar
from thinc_torchopt.addons.modular.specs import MODULES, REGULARIZERS
from thinc_torchopt.core.errors import (
    AuxVarError,
    ConfigError,
    ConfigTypeError,
    ConfigWarning,
    ParamError,
    StateError,
    TorchOptError,
)
from thinc_torchopt.modular import list_optim_modules, list_optim_regularizers

from .test_every_module import CLOSE, fill_grads, params


def test_optimizer_l2_sp_holds_on_to_the_start_and_fedprox_to_the_round():
    for name, moves in (("l2-sp", False), ("fedprox", True)):
        found = params()
        start = {key: param.detach().clone() for key, param in found.items()}
        optimizer = Modular(found.items(), 0.1, regularizers=[(name, {"alpha": 0.5})])
        fill_grads(found, 0)
        optimizer.step()
        optimizer.start_round()
        held = {key: param.detach().clone() for key, param in found.items()} if moves else start
        for step in (1, 2):
            before = {key: param.detach().clone() for key, param in found.items()}
            fill_grads(found, step)
            optimizer.step()
            for key, param in found.items():
                expected = before[key] - 0.1 * (param.grad + 0.5 * (before[key] - held[key]))
                torch.testing.assert_close(param.detach(), expected, **CLOSE)


# ---------------------------------------------------------------------- noise


@pytest.mark.parametrize("safe", [True, False])
def test_optimizer_noise_is_normal(safe):
    """100,000 numbers: the moments of a normal distribution to within five standard errors."""
    n, std = 100_000, 2.0
    param = torch.nn.Parameter(torch.zeros(n))
    module = GaussianNoise(std) if safe else GaussianNoise(std, safe_mode=False, seed=1)
    optimizer = Modular([param], 1.0, modules=[module])
    param.grad = torch.ones(n)
    optimizer.step()
    noise = -param.detach().double() - 1.0
    assert abs(float(noise.mean())) < 5 * std / math.sqrt(n)
    assert abs(float(noise.var()) / std**2 - 1) < 5 * math.sqrt(2 / n)
    assert abs(float((noise / std).pow(4).mean()) - 3) < 5 * math.sqrt(96 / n)
    assert bool(torch.isfinite(noise).all())


def test_optimizer_noise_with_a_seed_has_torchs_numbers():
    """declearn's are NumPy's. Those of the second step are the next ones. Without a seed, each run has its own."""
    one, other = (GaussianNoise(safe_mode=False).first_shared()["generator"] for _ in range(2))
    assert not torch.equal(one, other)
    param, generator = torch.nn.Parameter(torch.zeros(2, 3)), torch.Generator().manual_seed(3)
    seeded = ("gaussian-noise", {"safe_mode": False, "seed": 3})
    alone = [Modular([param], 1.0, modules=[one]).draws_alone for one in ("adam", "gaussian-noise", seeded)]
    assert alone == [False, True, False]
    optimizer = Modular([param], 1.0, modules=[seeded])
    for _ in range(2):
        updates = optimizer.compute_updates_from_gradients([torch.zeros(2, 3)])
        assert torch.equal(updates["0"], -torch.randn(6, generator=generator).view(2, 3))


def test_optimizer_noise_in_safe_mode_is_finite_at_the_ends(monkeypatch):
    """Box and Muller, of 2^-53 at least, and of 1 at most. declearn's can be infinite: the logarithm of 0."""
    for byte, uniform in ((b"\x00", 2.0**-53), (b"\x20", 32 / 255), (b"\xff", 1.0)):
        monkeypatch.setattr("os.urandom", lambda n, byte=byte: byte * n)
        angle = 2.0 * math.pi * uniform
        expected = math.sqrt(-2.0 * math.log(uniform)) * (math.cos(angle) + math.sin(angle))
        assert secure_normal(torch.Size([5])).tolist() == pytest.approx([expected] * 5, rel=1e-12)


# ---------------------------------------------------------------------- steps of all kinds


class Largest(L2GlobalClipping):
    def after_measure(self, tool):
        return float(max(values.abs().max() for values in tool))


def test_optimizer_leaves_params_without_gradients_alone():
    found = {**params(), "empty": torch.nn.Parameter(torch.zeros(0, 3))}
    optimizer = Modular(found.items(), 0.1, 0.1, modules=["adam", Largest()])
    optimizer.step()  # nothing is measured
    before = {name: param.detach().clone() for name, param in found.items()}
    found["matrix"].grad = torch.ones_like(found["matrix"])
    found["empty"].grad = torch.ones_like(found["empty"])
    optimizer.step()
    changed = {name for name, param in found.items() if not torch.equal(param, before[name])}
    assert changed == {"matrix"} and set(optimizer.state) == {found["matrix"]}


def test_optimizer_refuses_sparse_gradients_and_complex_params_before_it_changes_anything():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    linear = torch.nn.Linear(2, 1)
    named = [*linear.named_parameters(), *embedding.named_parameters("embed")]
    optimizer = Modular(named, 0.1, modules=["adam"])
    linear(embedding(torch.tensor([1, 2]))).sum().backward()
    before = linear.weight.detach().clone()
    with pytest.raises(ParamError, match=r"'embed\.weight'.*sparse"):
        optimizer.step()
    assert torch.equal(linear.weight, before) and not optimizer.state
    with pytest.raises(ParamError, match="complex64"):
        Modular([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))], 0.1)


def test_optimizer_huge_and_tiny_gradients_survive_clipping():
    """The factor of clipping waits for the modules behind it: its square must not leave float32."""
    for size in (1e18, 1e-18):
        found = {"w": torch.nn.Parameter(torch.zeros(4))}
        modules = [("l2-global-clipping", {"max_norm": 1e-3}), ("rmsprop", {"beta": 0.0, "eps": 0.0})]
        optimizer = Modular(found.items(), 0.1, modules=modules)
        found["w"].grad = torch.full((4,), size)
        optimizer.step()
        # RMSProp's step is then the sign.
        torch.testing.assert_close(found["w"].detach(), torch.full((4,), -0.1), rtol=1e-5, atol=0)


def test_optimizer_decay_apart_from_the_rate_at_the_smallest_rate():
    """Its part of the weights goes at any rate: divided by the smallest, it would be infinite, and the weights NaN."""
    found = params()
    before = {name: param.detach().clone() for name, param in found.items()}
    optimizer = Modular(found.items(), 5e-324, modules=["adam"], weight_decay=0.0625, decay="declearn")
    fill_grads(found, 0)
    optimizer.step()
    assert all(torch.equal(found[name], before[name] * (1.0 - 0.0625)) for name in found)


def test_optimizer_clipping_to_zero_leaves_nothing_and_no_nan():
    for module in ("l2-clipping", "l2-global-clipping"):
        found = params()
        before = {name: param.detach().clone() for name, param in found.items()}
        optimizer = Modular(found.items(), 0.1, modules=[(module, {"max_norm": 0.0})])
        fill_grads(found, 0)
        found["bias"].grad.zero_()
        optimizer.step()
        assert all(torch.equal(found[name], before[name]) for name in found)


def test_optimizer_normalizes_sums():
    found, mean = params(), params()
    modules = ["l2-clipping", ("l2-global-clipping", {"max_norm": 0.2}), "momentum"]
    optimizer = Modular(found.items(), 0.1, modules=modules, normalize="words")
    reference = Modular(mean.items(), 0.1, modules=modules)
    with pytest.raises(ConfigError, match="batch_size"):
        fill_grads(found, 0)
        optimizer.step()
    for step, size in enumerate((1, 16)):
        fill_grads(found, step)
        fill_grads(mean, step)
        for param in mean.values():
            param.grad /= size
        optimizer.batch_size = size
        optimizer.step()
        reference.step()
    for name in found:
        torch.testing.assert_close(found[name], mean[name], **CLOSE)
    with pytest.raises(ConfigError, match="batch_size"):
        optimizer.batch_size = 0


def test_optimizer_refuses_options_of_groups():
    """Those that hold: test_stateful.py."""
    for options in ({"adam_beta_3": 0.5}, {"adam_beta_1": 1.5}, {"adam_enabled": 1}):
        with pytest.raises(ValueError, match=next(iter(options))[5:]):
            Modular([{"params": params().items(), **options}], 0.01, modules=["adam"])


def test_optimizer_patterns_choose_params():
    found, plain = params(), params()
    optimizer = Modular(
        found.items(),
        0.01,
        regularizers=[("ridge", {"params": ["bias"]})],
        modules=[("adam", {"params": ["re:x$|^c"]})],
    )
    reference = Modular(plain.items(), 0.01)
    for own, each in ((found, optimizer), (plain, reference)):
        fill_grads(own, 0)
        each.step()
    same = {name for name in found if torch.equal(found[name], plain[name])}
    assert same == {"scalar"}
    assert set(optimizer.state[found["bias"]]) == set() and "adam/exp_avg" in optimizer.state[found["matrix"]]
    with pytest.raises(ConfigError, match=r"'nothing/\*'.*matches none of the params matrix"):
        Modular(found.items(), 0.01, modules=[("adam", {"params": ["nothing/*"]})])


def test_optimizer_takes_the_model_before_the_gradients_as_declearn_does():
    """Of a larger model too, of which the optimizer trains a part."""
    ends = []
    for form in ("gradients", "model", "larger"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
        optimizer = Modular(model[0].named_parameters(), 0.1, 0.1, modules=["momentum"], regularizers=["ridge"])
        grads = {"weight": torch.full((2, 3), 2.0), "bias": numpy.ones(2, "f")}
        given = {"gradients": {}, "model": {"model": model[0]}, "larger": {"model": model}}[form]
        updates = optimizer.compute_updates_from_gradients(**given, gradients=grads)
        optimizer.apply_gradients(*given.values(), grads)
        ends.append([*updates.values(), *(param.detach() for param in model[0].parameters())])
    for found in ends[1:]:
        assert all(map(torch.equal, ends[0], found))


@pytest.mark.parametrize(
    ("other", "kind", "told"),
    [
        (lambda model: copy.deepcopy(model), ParamError, "found Linear without weight, bias. Pass the model whose"),
        (lambda model: torch.nn.ReLU(), ParamError, "found ReLU without weight, bias"),
        (lambda model: {"weight": None}, ConfigTypeError, "expected a torch.nn.Module, found dict"),
        (lambda model: Linear(2, 3), ConfigTypeError, "found Model. For thinc models, use thinc_torchopt.privacy"),
    ],
)
def test_optimizer_refuses_gradients_for_another_model(other, kind, told):
    model = torch.nn.Linear(3, 2)
    optimizer, before = Modular(model.named_parameters(), 0.1), model.weight.detach().clone()
    grads = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    for apply in (optimizer.apply_gradients, optimizer.compute_updates_from_gradients):
        with pytest.raises(kind, match=told):
            apply(other(model), grads)
        for args in ((), (model,), ("ab",)):
            with pytest.raises(ConfigTypeError, match="expected a dict by the names"):
                apply(*args)
    assert torch.equal(model.weight, before)


def test_optimizer_lists_modules_and_regularizers_as_declearn_does():
    class Halve(Module):
        name = "halve"

        def run(self, block):
            block.own().mul_(0.5)

    class Nameless(Halve):
        pass

    modules, regularizers = list_optim_modules(), list_optim_regularizers()
    assert {name for name in modules if modules[name].__module__.startswith("thinc_torchopt")} == set(MODULES)
    assert modules["adam"] is MODULES["adam"] and modules["halve"] is Halve and Nameless not in modules.values()
    assert regularizers == REGULARIZERS
    assert {name for name in MODULES if MODULES[name].clips} == {"agc", "l2-clipping", "l2-global-clipping"}
    modules.clear()
    assert list_optim_modules()["adam"] is MODULES["adam"] and MODULES
    assert MODULES["lookahead"]().get_config() == {"k": 5, "alpha": 0.5}
    for name, cls in list_optim_modules().items():
        if name in MODULES and name != "torch-optim":
            [module] = Modular([torch.nn.Parameter(torch.ones(2))], 0.1, modules=[name]).modules
            assert type(module) is cls and not module.get_config().get("round_reset")


# ---------------------------------------------------------------------- whole steps


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def data(n=70):
    return torch.randn(n, 4), torch.randint(3, (n,))


def test_optimizer_train_step_is_a_plain_torch_step():
    ours, theirs, batch = net(), net(), data()
    optimizer = Modular(ours.named_parameters(), 0.1, modules=["momentum"])
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    loss = torch.nn.functional.cross_entropy
    loss(ours(batch[0]), batch[1]).backward()  # a gradient of before does not count
    for _ in range(3):
        value = optimizer.run_train_step(ours, batch, loss=loss)
        reference.zero_grad()
        expected = loss(theirs(batch[0]), batch[1])
        expected.backward()
        reference.step()
        assert value == pytest.approx(float(expected.detach()), rel=1e-5)
    for one, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(one, other, **CLOSE)
        assert one.grad is None


class Recurrent(torch.nn.Module):
    """A net with a layer that torch.func.vmap can't compute."""

    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.layer = layer(1, 6, batch_first=True)
        self.out = torch.nn.Linear(6, 3)

    def forward(self, inputs):
        return self.out(self.layer(inputs.unsqueeze(-1))[0][:, -1])


class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, inputs):
        scores = self.layers(inputs)
        return scores if scores.sum() > 0 else 2 * scores


@pytest.mark.parametrize(
    "make",
    [net, lambda: Recurrent(torch.nn.GRU), lambda: Recurrent(torch.nn.RNN), Branching],
    ids=["linear", "gru", "rnn", "branching"],
)
def test_optimizer_train_step_clips_the_gradient_of_each_sample(make):
    """Against a loop over samples."""
    ours, (inputs, targets) = make(), data()
    theirs = copy.deepcopy(ours)
    optimizer = Modular(ours.named_parameters(), 0.1)
    loss = torch.nn.functional.cross_entropy
    value = optimizer.run_train_step(ours, (inputs, targets), sclip=1.2, loss=loss)
    total, losses, clipped = [torch.zeros_like(param) for param in theirs.parameters()], [], 0
    for i in range(len(inputs)):
        losses.append(loss(theirs(inputs[i : i + 1]), targets[i : i + 1]))
        grads = torch.autograd.grad(losses[-1], theirs.parameters())
        norm = torch.cat([grad.flatten() for grad in grads]).norm()
        clipped += int(norm > 1.2)
        for have, grad in zip(total, grads):
            have += grad * min(1.0, 1.2 / float(norm))
    assert 0 < clipped < len(inputs) and value == pytest.approx(float(sum(losses).detach()) / len(inputs), rel=1e-5)
    for param, other, grad in zip(ours.parameters(), theirs.parameters(), total):
        torch.testing.assert_close(param.detach(), other.detach() - 0.1 * grad / len(inputs), **CLOSE)
    for sclip in (-1.0, "1.2"):
        with pytest.raises(ValueError, match="sclip"):
            optimizer.run_train_step(ours, (inputs, targets), sclip=sclip, loss=loss)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        optimizer.run_train_step(print, (inputs, targets))


def test_optimizer_clipped_samples_are_summed_for_normalize():
    """The number of samples is a given one then, whatever is in the batch: as differential privacy wants it."""
    for n in (1, 6):
        (inputs, targets), loss = data(n), torch.nn.functional.cross_entropy
        ours, theirs = net(), net()
        optimizer, expected = Modular(ours.named_parameters(), 0.1, normalize="examples"), loss(ours(inputs), targets)
        optimizer.batch_size = 2 * n
        found = optimizer.run_train_step(ours, (inputs, targets), sclip=1.2, loss=loss)
        assert found == pytest.approx(float(expected.detach()), rel=1e-5)
        Modular(theirs.named_parameters(), 0.05).run_train_step(theirs, (inputs, targets), sclip=1.2, loss=loss)
        for param, other in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(param, other, **CLOSE)


@pytest.mark.parametrize("normalize", [None, "examples"])
def test_optimizer_clipping_the_samples_of_an_empty_batch_leaves_the_noise(normalize):
    """Random samples are empty at times."""
    model, noise = net(), ("gaussian-noise", {"std": 0.1, "safe_mode": False, "seed": 0})
    optimizer = Modular(model.named_parameters(), 0.1, modules=[noise], normalize=normalize)
    optimizer.batch_size = 4
    before = [param.detach().clone() for param in model.parameters()]
    (inputs, targets), loss = data(0), torch.nn.functional.cross_entropy
    assert optimizer.run_train_step(model, (inputs, targets), sclip=1.0, loss=loss) == 0.0
    for old, param in zip(before, model.parameters()):
        assert bool(param.isfinite().all()) and not torch.equal(old, param)


def test_optimizer_samples_that_are_clipped_have_dropout_of_their_own():
    """With one mask, equal samples would have equal gradients: the weight would move by all of the limit, or not."""
    moved = set()
    for seed in range(5):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(1, 1, bias=False)
        model, before = torch.nn.Sequential(torch.nn.Dropout(0.5), layer), layer.weight.detach().clone()
        batch, optimizer = (torch.ones(64, 1), torch.zeros(64, 1)), Modular(layer.named_parameters(), 1.0)
        optimizer.run_train_step(model, batch, sclip=0.125, loss=lambda found, _: found.sum())
        moved.add(round(float(before - layer.weight.detach()), 6))
    assert len(moved) > 2 and all(0.0 < move < 0.125 for move in moved)


def test_optimizer_samples_cannot_be_clipped_apart_behind_batch_norm():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer, loss = Modular(model.named_parameters(), 0.1), torch.nn.functional.cross_entropy
    with pytest.raises(ParamError, match=r"'1'.*BatchNorm1d.*GroupNorm"):
        optimizer.run_train_step(model, data(4), sclip=1.0, loss=loss)
    optimizer.run_train_step(model.eval(), data(4), sclip=1.0, loss=loss)


# ---------------------------------------------------------------------- construction


@spacy.registry.gradient_modules("test-modular.Wrong.v1")
def wrong():
    return "wrong"


class Beside(torch.optim.SGD):
    """Keeps a text of a param, and a number of all together, once one has a gradient."""

    def step(self, closure=None):
        if self.param_groups[0]["params"][0].grad is not None:
            self.total = 1.0
            self.state[self.param_groups[0]["params"][0]]["text"] = "a text"
        super().step(closure)


@pytest.mark.parametrize(
    "kind, spec, field",
    [
        ("modules", ("torch-optim", {"optim_cls": Beside}), "it also keeps text, total"),
        ("modules", ("adam", {"eps": "1e-8"}), "eps"),
        ("modules", ("gaussian-noise", {"seed": 3}), "seed"),
        ("modules", ("torch-optim", {"optim_cls": "os.system"}), "optim_cls"),
        ("modules", ("torch-optim", {"optim_cls": "torch.optim.SGD", "kwargs": {"lr": 0.1}}), "lr"),
        ("modules", ("torch-optim", {"optim_cls": "torch.optim.SGD", "kwargs": {"weight_decay": 0.1}}), "weight_decay"),
        ("modules", ("torch-optim", {"optim_cls": "torch.optim.SGD", "kwargs": {"nonsense": 0.1}}), "nonsense"),
        ("modules", ("torch-optim", {"optim_cls": "torch.optim.Optimizer"}), "a torch optimizer"),
        ("modules", ("torch-optim", {"optim_cls": "torch.optim.nothing.SGD"}), "optim_cls"),
        ("modules", ("torch-optim", {"optim_cls": "SGD", "validate": False}), "validate"),
        ("modules", ("adam", {"params": []}), "params"),
        ("modules", ("adam", {"label": ""}), "label"),
        ("modules", ("ewma", {"round_reset": "true"}), "round_reset"),
        ("modules", ("momentum", {"nesterov": "true"}), "nesterov"),
        ("modules", ("gaussian-noise", {"safe_mode": "true"}), "safe_mode"),
        ("modules", ("lookahead", {"k": "2"}), "'k'"),
        ("modules", ("lookahead", {"alpha": 1.5}), "alpha"),
        ("modules", ("gaussian-noise", {"safe_mode": False, "seed": "3"}), "seed"),
        ("modules", "test-modular.Wrong.v1", "expected a module, found 'wrong'"),
        ("regularizers", ("ridge", {"alpha": [-0.1, 0.2]}), "alpha"),
    ],
    ids=str,
)
def test_optimizer_refuses_what_cannot_work(kind, spec, field):
    with pytest.raises(ValueError, match=field):
        Modular(params().items(), 0.1, **{kind: [spec]})


@pytest.mark.parametrize(
    "settings",
    [{"lr": -1.0}, {"lr": math.nan}, {"lr": 1.0, "weight_decay": -1.0}, {"lr": 1.0, "w_decay": False}],
    ids=str,
)
def test_optimizer_refuses_rates_below_zero(settings):
    with pytest.raises(ValueError, match="expected a number of at least 0"):
        Modular(params().items(), **settings)


def test_optimizer_names_of_declearn_have_its_decay():
    """`w_decay` is not scaled by the rate."""
    kinds = [{"lr": 0.1, "weight_decay": 0.5}, {"lrate": 0.1, "w_decay": 0.5}, {"lrate": 1, "weight_decay": 0.5}]
    assert [Modular(params().items(), **names).decay for names in kinds] == ["adamw", "declearn", "adamw"]


class AdamModule:
    """As in declearn."""

    name = "adam"

    def get_config(self):
        return {}


AUX = ScaffoldAuxVar(delta=0.0, clients=("a",))
AUX_OF = {client: ScaffoldAuxVar(delta={"a": torch.ones(ord(client))}, clients=(client,)) for client in "ab"}
WIRE = {"field": "delta", "zero": True, "clients": []}


@pytest.mark.parametrize(
    ("kind", "told", "call"),
    [
        (TypeError, "'lr' and 'lrate' mean the same", lambda make: make(lrate=0.1)),
        (ValueError, r"expected shape \(5, 4\), found", lambda make: make().apply_gradients([torch.ones(9)] * 4)),
        (
            KeyError,
            "expected one for the module 'scaffold-client', found several",
            lambda make: make(modules=["scaffold-client"]).process_aux_var(
                dict.fromkeys(["scaffold", "scaffold-client"], ScaffoldAuxVar(state=0.0))
            ),
        ),
        (TypeError, "expected a list", lambda make: make(modules="adam")),
        (TypeError, "a name, or a pair of a name and a dict", lambda make: make(modules=[AdamModule()])),
        (KeyError, "Did you mean 'adam'", lambda make: make(modules=["adams"])),
        (KeyError, "expected a dict with version", lambda make: make().set_state({"lrate": {"steps": 0}})),
        (TypeError, "ScaffoldAuxVar", lambda make: make(modules=["scaffold-client"]).process_aux_var({"scaffold": 1})),
        (AuxVarError, "several of a", lambda make: sum([AUX, AUX])),
        (AuxVarError, "expected exactly one", lambda make: ScaffoldAuxVar()),
        (AuxVarError, "expected tensors by the names of params, or 0.0", lambda make: ScaffoldAuxVar(delta=1.0)),
        (AuxVarError, "the names of the clients", lambda make: ScaffoldAuxVar(state=0.0, clients=("a",))),
        (AuxVarError, "'sum' or 'mean', found 'max'", lambda make: ScaffoldAuxVar.aggregate([AUX], "max")),
        (AuxVarError, "a differ in shape, or are missing", lambda make: AUX_OF["a"] + AUX_OF["b"]),
        (
            AuxVarError,
            "a differ in shape, or are missing",
            lambda make: AUX_OF["a"] + ScaffoldAuxVar(delta={}, clients=("c",)),
        ),
        (AuxVarError, "expected one kind .*found ScaffoldAuxVar, int", lambda make: aggregate([{"a": AUX}, {"a": 1}])),
        (AuxVarError, "expected one kind .*found int", lambda make: aggregate([{"a": 1}])),
        (AuxVarError, "expected 'state' or 'delta'", lambda make: ScaffoldAuxVar.from_wire({}, {**WIRE, "field": "x"})),
        (AuxVarError, "expected 'state' or 'delta'", lambda make: ScaffoldAuxVar.from_wire({"a": torch.ones(2)}, WIRE)),
        (
            AuxVarError,
            r"expected shape \(5, 4\) for param 'matrix'",
            lambda make: make(modules=["scaffold-server"]).process_aux_var(
                {"scaffold": ScaffoldAuxVar(delta=dict.fromkeys(params(), torch.ones(9)))}
            ),
        ),
        (AuxVarError, r"expected \['clients', 'field'", lambda make: ScaffoldAuxVar.from_wire({}, {"field": "state"})),
    ],
)
def test_optimizer_errors_are_builtins_too(kind, told, call):
    with pytest.raises(kind, match=told) as caught:
        call(lambda **settings: Modular(params().items(), 0.1, **settings))
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, TorchOptError)


def test_optimizer_scaffold_counts_the_steps_of_each_param():
    """The mean is over the steps in which a param had a gradient: 1 / 1, not 1 / 2."""
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = Modular([("first", first), ("second", second)], 0.1, modules=["scaffold-client"])
    for step in range(2):
        first.grad, second.grad = torch.ones(2), torch.ones(2) if step else None
        optimizer.step()
    delta = optimizer.collect_aux_var()["scaffold"].delta
    assert all(torch.equal(value, torch.ones(2)) for value in delta.values())
    optimizer.process_aux_var({"scaffold": ScaffoldAuxVar(state=0.0)})
    first.grad, second.grad = torch.full((2,), 4.0), torch.full((2,), 5.0)
    optimizer.step()
    delta = optimizer.collect_aux_var()["scaffold"].delta  # against the mean of the round before
    assert [delta[name].tolist() for name in ("first", "second")] == [[3.0, 3.0], [4.0, 4.0]]


def test_optimizer_scaffold_counts_clients_of_earlier_rounds():
    """The mean is over all that ever took part."""
    server = Modular([("w", torch.nn.Parameter(torch.ones(2)))], 1.0, modules=["scaffold-server"])
    for clients, expected in (("a", 1.0), ("b", 1.0), ("bc", 4 / 3)):
        server.process_aux_var(
            [{"scaffold": ScaffoldAuxVar(delta={"w": torch.ones(2)}, clients=(one,))} for one in clients]
        )
        assert server.collect_aux_var()["scaffold"].state["w"].tolist() == pytest.approx([expected] * 2)


def test_optimizer_two_modules_that_exchange_one_variable_are_an_error_and_scaffold_comes_first():
    with pytest.raises(ConfigError, match="several"):
        Modular(params().items(), 0.1, modules=["scaffold-client", "scaffold-server"])
    for before in ("adam", "yogi-momentum"):
        with pytest.warns(ConfigWarning, match="Put it first"):
            Modular(params().items(), 0.1, modules=[before, "scaffold-client"])
    linear = ["momentum", "ewma", "centralize", "gaussian-noise", "lookahead"]
    Modular(params().items(), 0.1, modules=[*linear, "scaffold-client"])


def test_optimizer_labels_tell_modules_apart():
    optimizer = Modular(params().items(), 0.1, modules=["momentum", ("momentum", {"beta": 0.5})])
    assert [module.label for module in optimizer.modules] == ["momentum", "momentum_2"]
    assert optimizer.param_groups[0]["momentum_2_beta"] == 0.5
    named = Modular(params().items(), 0.1, modules={"first": "momentum", "second": Momentum(0.5)})
    assert named.param_groups[0]["second_beta"] == 0.5
    assert Modular.from_config(params().items(), named.get_config()).get_config() == named.get_config()
    with pytest.raises(ConfigError, match="both have the label"):
        Modular(params().items(), 0.1, modules=[("adam", {"label": "a"}), ("yogi", {"label": "a"})])
    alike = [Odd({"b_enabled": True}, label="a"), Odd(label="a_b")]
    with pytest.raises(ConfigError, match="Can't tell the options a_b_enabled apart"):
        Modular(params().items(), 0.1, modules=alike)
    config = {**named.get_config(), "bogus": 1}
    del config["lr"]
    with pytest.raises(KeyError, match=r"missing: lr; unknown: bogus"):
        Modular.from_config(params().items(), config)
    for spec, message in (
        (("adam", {"beta": 0.9}), "argument 'beta'. Settings: beta_1"),
        (("torch-optim", {}), "optim_cls"),
    ):
        for error in (KeyError, TypeError, ValueError):
            with pytest.raises(error, match=message):
                Modular.from_config(params().items(), {**named.get_config(), "modules": [spec]})


def test_optimizer_refuses_two_params_of_one_name():
    """They could not be told apart in a state. torch looks at the names of each group alone."""
    first, second = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
    groups = [{"params": first.named_parameters()}, {"params": second.named_parameters()}]
    with pytest.raises(ParamError, match=r"several are called bias, weight"):
        Modular(groups, 0.1)
    optimizer = Modular(first.named_parameters(), 0.1, modules=None, regularizers=None)
    with pytest.raises(ParamError, match="bias, weight"):
        optimizer.add_param_group({"params": second.named_parameters()})
    assert list(optimizer.named_params()) == ["weight", "bias"]
    optimizer.add_param_group({"params": [(f"second.{name}", param) for name, param in second.named_parameters()]})
    assert len(optimizer.get_state()["modules"]) == 0 and len(optimizer.named_params()) == 4


# ---------------------------------------------------------------------- nothing is ignored


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("lrate", "lr", 0.5), ("lr", "lr", 0.5), ("w_decay", "weight_decay", 0.2), ("weight_decay", "weight_decay", 0.2)],
)
def test_optimizer_attributes_take_effect(name, key, value):
    """declearn's Optimizer has `lrate` and `w_decay` as attributes, which the next step reads."""
    settings = {"lr": 0.1, "weight_decay": 0.1, "decay": "declearn"}
    found, expected = params(), params()
    optimizer = Modular(found.items(), **settings)
    setattr(optimizer, name, value)
    assert getattr(optimizer, name) == value and optimizer.get_config()[key] == value
    other = Modular(expected.items(), **{**settings, key: value})
    for own, each in ((found, optimizer), (expected, other)):
        fill_grads(own, 0)
        each.step()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_optimizer_attributes_are_those_of_all_groups():
    found = params()
    pairs = list(found.items())
    optimizer = Modular([{"params": pairs[:1], "lr": 0.2}, {"params": pairs[1:]}], 0.1, modules=["adam"])
    with pytest.raises(AttributeError, match=r"one 'lr' for all param groups, found \[0\.2, 0\.1\]"):
        optimizer.lrate  # noqa: B018
    optimizer.lrate = 0.3
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.3]
    copied = copy.deepcopy(optimizer)
    copied.lr = 0.4
    assert (optimizer.lr, copied.lrate) == (0.3, 0.4)
    with pytest.raises(AttributeError, match="no attribute 'rate'"):
        optimizer.rate  # noqa: B018


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lrate", -1.0, "'lr'"),
        ("lr", "0.1", "'lr'"),
        ("weight_decay", float("nan"), "'weight_decay'"),
        ("adam_beta_1", 0.5, "Set it there: for group in"),
        ("adam_enabled", False, "in its param groups"),
        ("w_decay", 0.1, "decay = 'declearn'"),
    ],
)
def test_optimizer_attributes_that_cannot_be_are_refused(name, value, message):
    optimizer = Modular(params().items(), 0.1, modules=["adam"])
    before = optimizer.get_config(), [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ConfigError, match=message):
        setattr(optimizer, name, value)
    assert (optimizer.get_config(), [dict(group) for group in optimizer.param_groups]) == before


NOISE = ("gaussian-noise", {"safe_mode": False})
SCHEDULES = [
    lambda: iter([0.1, 0.2]),
    lambda: [0.1, 0.2],
    lambda: (0.1, 0.2),
]


@pytest.mark.parametrize("make", SCHEDULES)
def test_optimizer_refuses_schedules(make):
    """Everywhere; and nothing has changed then."""
    of_rate, of_option = r"set optimizer\.\w+ before each step", r"set 'adam_beta_1' in each of optimizer.param_groups"
    for name in ("lr", "weight_decay", "lrate", "w_decay"):
        rate = {} if name == "lrate" else {"lr": 0.1}
        with pytest.raises(ConfigTypeError, match=of_rate):
            Modular([{"params": params().items(), "lr": 0.1, "weight_decay": 0.1}], **{**rate, name: make()})
    optimizer = Modular(params().items(), 0.1, modules=["adam"], decay="declearn")
    before = optimizer.get_config(), [dict(group) for group in optimizer.param_groups]
    for name in ("lr", "weight_decay", "lrate", "w_decay"):
        with pytest.raises(ConfigTypeError, match=of_rate):
            setattr(optimizer, name, make())
    for name, told in (("lr", of_rate), ("adam_beta_1", of_option)):
        with pytest.raises(ConfigTypeError, match=told):
            optimizer.add_param_group({"params": [("other", torch.nn.Parameter(torch.ones(2)))], name: make()})
    assert (optimizer.get_config(), [dict(group) for group in optimizer.param_groups]) == before
    if not isinstance(make(), tuple):  # a module refuses that itself
        with pytest.raises(ConfigTypeError, match=of_option):
            Modular(params().items(), 0.1, modules=[Adam(beta_1=make())])


def test_optimizer_refuses_states_of_older_versions_and_other_params():
    optimizer = Modular(params().items(), 0.1, modules=["adam"])
    state = optimizer.get_state()
    state["modules"][0][1]["params"]["other"] = None
    with pytest.raises(StateError, match="other"):
        optimizer.set_state(state)
    with pytest.raises(StateError, match=r"expected version 2, found version 1\. It was written by an older"):
        optimizer.set_state({**optimizer.get_state(), "version": 1, "schedules": {}})


@pytest.mark.parametrize(
    ("spec", "damage", "told"),
    [
        (("adam", {"amsgrad": True}), lambda part: part["params"]["bias"].pop("max_exp_avg_sq"), "max_exp_avg_sq"),
        ("adam", lambda part: part["params"]["bias"].update(exp_avg=torch.zeros(9)), "of shape"),
        ("l2-clipping", lambda part: part["params"].update(bias={}), "None, as this part has no state"),
        ("scaffold-client", lambda part: part["shared"].clear(), "client"),
        (NOISE, lambda part: part["shared"].update(generator=torch.zeros(8, dtype=torch.uint8)), "of shape"),
        (NOISE, lambda part: part["shared"]["generator"].zero_(), "mt19937"),
    ],
)
def test_optimizer_refuses_damaged_states_of_parts(spec, damage, told):
    optimizer = Modular((found := params()).items(), 0.1, modules=[spec])
    fill_grads(found, 0)
    optimizer.step()
    state = optimizer.get_state()
    damage(state["modules"][0][1])
    with pytest.raises(StateError, match=told):
        optimizer.set_state(state)


def test_optimizer_parts_cannot_be_changed_in_a_copy():
    """`optimizer.modules.append(...)` changed a list that nobody reads."""
    optimizer = Modular(params().items(), 0.1, modules=["adam"], regularizers=["ridge"])
    for found in (optimizer.modules, optimizer.regularizers):
        assert isinstance(found, tuple) and len(found) == 1
    for name in ("modules", "regularizers", "decay", "normalize"):
        with pytest.raises(AttributeError):
            setattr(optimizer, name, ())


class CountsRounds(Module):
    """Keeps nothing."""

    name = "counts-rounds"
    seen: ClassVar[list[int]] = []

    def run(self, block):
        block.own()

    def start_round(self, state):
        self.seen.append(len(state))


class Odd(CountsRounds):
    """Its option may have the name of another one's, with the label before it."""

    ranges: ClassVar[dict[str, str]] = {"b_enabled": "flag"}


class KeepsRounds(Module):
    """Keeps a number and a tensor of each param."""

    name = "keeps-rounds"
    tensors = ("total",)

    def first_state(self, weights):
        return {"rounds": 0, **super().first_state(weights)}

    def run(self, block):
        block.state["seen"] = block.own()
        block.state["total"].add_(block.state.pop("seen"))

    def start_round(self, state):
        state["rounds"] += 1


@pytest.mark.parametrize("steps", [0, 1])
def test_optimizer_start_round_reaches_each_part(steps):
    """Those without state too, and also before the first step, once for each param on which they work."""
    found = params()
    CountsRounds.seen.clear()
    parts = [CountsRounds(), KeepsRounds(label="all"), KeepsRounds(params=["bias"], label="limited"), "adam"]
    optimizer = Modular(found.items(), 0.1, modules=parts)
    for step in range(steps):
        fill_grads(found, step)
        optimizer.step()
    optimizer.start_round()
    optimizer.start_round()
    assert CountsRounds.seen == [0] * 2 * len(found)
    assert {name: optimizer.state[param]["all/rounds"] for name, param in found.items()} == dict.fromkeys(found, 2)
    assert [name for name, param in found.items() if "limited/rounds" in optimizer.state[param]] == ["bias"]
    assert ("adam/step" in optimizer.state[found["bias"]]) == bool(steps)  # it has nothing to do
    fill_grads(found, steps)
    optimizer.step()
    other = Modular(found.items(), 0.1, modules=parts)
    other.set_state(optimizer.get_state())
    assert other.state[found["bias"]]["limited/rounds"] == 2
