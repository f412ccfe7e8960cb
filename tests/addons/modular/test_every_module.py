"""Every module there is: as torch's own optimizers, as another library, or as the formula of its paper; and the same in
any memory order, in half precision, as updates, and in a copy.
"""

import copy
import json
from collections import defaultdict
from unittest.mock import Mock

import pytest
import torch

from thinc_torchopt.addons.modular.clipping import GaussianNoise
from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.modular.specs import MODULES, REGULARIZERS

from .compare import assert_same

# float32, with another order of operations than torch's, over a few steps.
CLOSE = {"rtol": 2e-5, "atol": 1e-6}
SHAPES = {"matrix": (5, 4), "bias": (7,), "cube": (3, 2, 4), "scalar": ()}


def params(seed=0, dtype=torch.float32, left_out=()):
    generator = torch.Generator().manual_seed(seed)
    values = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
    return {name: torch.nn.Parameter(value) for name, value in values.items() if name not in left_out}


def strange_params(**options):
    """The same values, as a view into larger memory, and transposed."""
    found = params(**options)
    wide = torch.zeros(5, 9)
    wide[:, ::2][:, :4].copy_(found["matrix"].detach())
    found["matrix"] = wide[:, ::2][:, :4].requires_grad_()
    if "cube" in found:
        turned = found["cube"].detach().permute(2, 0, 1).contiguous().permute(1, 2, 0)
        found["cube"] = torch.nn.Parameter(turned)
    assert not any(found[name].is_contiguous() for name in ("matrix", "cube") if name in found)
    return found


def fill_grads(found, step):
    generator = torch.Generator().manual_seed(100 + step)
    for param in found.values():
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)


def like(found):
    return {name: torch.nn.Parameter(param.detach().clone()) for name, param in found.items()}


def modular(*modules, lr=0.01, **settings):
    return lambda found: Modular(found.items(), lr, modules=modules, **settings)


def from_torch(cls, **options):
    return lambda found: cls(list(found.values()), **{"lr": 0.01, **options})


def by_hand(formula, *, decay=0.0, max_norm=None):
    """torch's SGD on what a formula makes of each gradient: of weights, gradient, and what it keeps."""

    def make(found):
        optimizer, kept = torch.optim.SGD(found.values(), lr=0.01, weight_decay=decay), defaultdict(dict)

        def change(*_):
            for param in found.values():
                param.grad = formula(param.detach(), param.grad, kept[param]).clone()
            if max_norm is not None:  # it adds 1e-6 to the norm
                torch.nn.utils.clip_grad_norm_(found.values(), max_norm)

        optimizer.register_step_pre_hook(change)
        return optimizer

    return make


def plain(w, g, s):
    return g


def momentum(w, g, s):
    s["v"] = 0.9 * s.get("v", 0.0) + g
    return s["v"]


def agc(w, g, s, clip=0.01):
    w2, g2 = (t.reshape(len(t), -1) if t.ndim > 1 else t.reshape(1, -1) for t in (w, g))
    limit = clip * w2.norm(dim=1).clamp(min=1e-3)
    factor = (limit / g2.norm(dim=1)).clamp(max=1.0)
    return (g2 * factor[:, None]).reshape(g.shape)


def yogi(w, g, s):
    s["t"] = t = s.get("t", 0) + 1
    v = s.get("v", torch.zeros_like(w))
    s["v"] = v = v - torch.sign(v - g * g) * 0.01 * g * g
    s["m"] = m = 0.9 * s.get("m", torch.zeros_like(w)) + 0.1 * g
    return m / (1 - 0.9**t) / ((v / (1 - 0.99**t)).sqrt() + 1e-7)


class Slower(torch.optim.SGD):
    """Keeps numbers in its group, as some optimizers of libraries do."""

    def step(self, closure=None):
        [group] = self.param_groups
        group["k"] = group.get("k", 0) + 1
        group["lr"] = 1.0 / group["k"]
        super().step(closure)


def slower(w, g, s):
    s["k"] = s.get("k", 0) + 1
    return g / s["k"]


def of_library(make):
    """Of pytorch-optimizer, where it is installed."""

    def made(found):
        library = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")
        return make(library)(found)

    return made


def library_agc(library):
    # Its own eps is added where ours is a limit: 1e-6 of norms of about 1.
    return by_hand(lambda w, g, s: library.optimizer.agc(w, g, 1e-3, 0.01))


def library_centralize(library):
    def change(w, g, s):
        if g.ndim > 1:
            library.optimizer.gradient_centralization.centralize_gradient(g)
        return g

    return by_hand(change)


def library_lookahead(library):
    inner = from_torch(torch.optim.AdamW, weight_decay=0.1)
    return lambda found: library.Lookahead(inner(found), k=2, alpha=0.4)


AS_TORCH = {"beta_2": 0.999, "eps": 1e-8}
CLIP = ("l2-global-clipping", {"max_norm": 0.5})
# Ours, and the oracle.
CHAINS = {
    "sgd": (modular(), from_torch(torch.optim.SGD)),
    "momentum": (modular("momentum"), from_torch(torch.optim.SGD, momentum=0.9)),
    "nesterov": (
        modular(("momentum", {"beta": 0.8, "nesterov": True})),
        from_torch(torch.optim.SGD, momentum=0.8, nesterov=True),
    ),
    "adamw": (modular(("adam", AS_TORCH), weight_decay=0.1), from_torch(torch.optim.AdamW, weight_decay=0.1)),
    # Not last in the chain, so without torch's kernel.
    "adam plain": (
        modular(("adam", {**AS_TORCH, "eps": 0.1}), ("l2-clipping", {"max_norm": 1e6})),
        from_torch(torch.optim.Adam, eps=0.1),
    ),
    "rmsprop": (modular(("rmsprop", {"beta": 0.99, "eps": 1e-8})), from_torch(torch.optim.RMSprop)),
    "adagrad": (modular(("adagrad", {"eps": 1e-10})), from_torch(torch.optim.Adagrad)),
    "numbers in a group": (modular(("torch-optim", {"optim_cls": Slower})), by_hand(slower)),
    "clipped": (modular(CLIP), by_hand(plain, max_norm=0.5)),
    # What comes out of momentum can't be computed twice: it is kept.
    "momentum, clipped": (modular("momentum", CLIP), by_hand(momentum, max_norm=0.5)),
    "agc": (modular(("agc", {"clip": 1.0})), by_hand(lambda w, g, s: agc(w, g, s, 1.0))),  # not all are clipped
    # Momentum gives out its own state: what comes next must not write to it.
    "momentum, agc": (modular("momentum", "agc"), by_hand(lambda w, g, s: agc(w, momentum(w, g, s), s))),
    "yogi": (modular("yogi"), by_hand(yogi)),
    "decay with the rate": (modular("yogi", weight_decay=0.1), by_hand(yogi, decay=0.1)),
    "lion of a library": (modular("lion"), of_library(lambda it: from_torch(it.Lion, weight_decay=0.0)), "scalar"),
    "lookahead of a library": (
        modular(("lookahead", {"k": 2, "alpha": 0.4}), ("adam", AS_TORCH), weight_decay=0.1),
        of_library(library_lookahead),
    ),
    # The library takes the last dimension of a cube for a unit.
    "agc of a library": (modular("agc"), of_library(library_agc), "scalar", "cube"),
    "centralize of a library": (modular("centralize"), of_library(library_centralize)),
}


def race(ours, theirs, make=params, left_out=()):
    """Both get the same gradients, and must give the same params after each step; gradients stay as they were."""
    found, expected = make(left_out=left_out), params(left_out=left_out)
    optimizer, oracle = ours(found), theirs(expected)
    for step in range(7):
        for own in (found, expected):
            fill_grads(own, step)
        before = [param.grad.clone() for param in found.values()]
        optimizer.step()
        oracle.step()
        assert all(map(torch.equal, before, (param.grad for param in found.values())))
        for key, param in found.items():
            torch.testing.assert_close(param.detach().contiguous(), expected[key].detach(), **CLOSE)


@pytest.mark.parametrize("make", [params, strange_params])
@pytest.mark.parametrize("name", CHAINS)
def test_every_module_equals_its_oracle(name, make):
    ours, theirs, *left_out = CHAINS[name]
    race(ours, theirs, make, left_out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", CHAINS)
def test_every_module_other_dtypes(name, dtype):
    """Half precision is computed in float32, and its state is kept so: as good as float32 with rounded weights."""
    found = params(dtype=dtype)
    wide = {key: torch.nn.Parameter(param.detach().double()) for key, param in found.items()}
    optimizer, reference = (CHAINS[name][0](own) for own in (found, wide))
    fill_grads(found, 0)
    for key, param in wide.items():
        param.grad = found[key].grad.double()
    optimizer.step()
    reference.step()
    for key, param in found.items():
        torch.testing.assert_close(param, wide[key].to(dtype), rtol=1e-2 if dtype.itemsize < 4 else 1e-9, atol=1e-3)
        kept = [value for value in optimizer.state[param].values() if isinstance(value, torch.Tensor)]
        assert {value.dtype for value in kept} <= {torch.float64 if dtype is torch.float64 else torch.float32}
    before = like(found)
    optimizer.compute_updates_from_gradients([param.grad for param in found.values()])
    assert all(torch.equal(found[key], before[key]) for key in found)


def test_every_module_adam_takes_torchs_kernel(monkeypatch):
    """The same numbers in less time. Not of params with gaps between their values."""
    for make, expected in ((params, 4), (strange_params, 3)):
        taken, found = Mock(), make()
        monkeypatch.setattr("thinc_torchopt.core.kernels.adam_", taken)
        fill_grads(found, 0)
        Modular(found.items(), 0.01, modules=["adam"]).step()
        assert taken.call_count == expected


@pytest.mark.parametrize("name", CHAINS)
def test_every_module_updates_are_what_a_step_adds(name):
    found, same = params(), params()
    optimizer, other = (CHAINS[name][0](own) for own in (found, same))
    for step in range(2):
        fill_grads(same, step)
        grads = {key: param.grad for key, param in same.items()}
        before = like(found)
        updates = optimizer.compute_updates_from_gradients(grads)
        assert all(torch.equal(found[key], before[key]) for key in found)
        other.apply_gradients(grads)
        for key, param in found.items():
            param.data.add_(updates[key])
            torch.testing.assert_close(param, same[key], **CLOSE)
    with pytest.raises(KeyError, match="one for each"):
        optimizer.apply_gradients([torch.zeros(2)] * 9)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "torch-optim"])
def test_every_module_copies_and_torch_state_dicts_go_on_exactly(name):
    modules = [GaussianNoise(0.1, safe_mode=False)] if name == "gaussian-noise" else [name]

    def make(own):
        return Modular(own.items(), 0.01, 0.1, regularizers=list(REGULARIZERS), modules=modules)

    optimizer = make(found := {**params(), "cube": strange_params()["cube"]})
    for step in range(3):
        fill_grads(found, step)
        optimizer.step()
    copied, same = copy.deepcopy((optimizer, found))
    from_dict = make(loaded := like(found))
    from_dict.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    kept = [one for one in from_dict.state[loaded["cube"]].values() if isinstance(one, torch.Tensor)]
    assert all(one.stride() == loaded["cube"].stride() for one in kept)  # as kernels need it
    for own, each in ((found, optimizer), (same, copied), (loaded, from_dict)):
        each.start_round()
        for step in range(3, 5):
            fill_grads(own, step)
            each.step()
    for key in found:
        assert torch.equal(found[key], same[key]) and torch.equal(found[key], loaded[key])
    in_half = make(half := {key: torch.nn.Parameter(param.detach().bfloat16()) for key, param in found.items()})
    fill_grads(half, 0)
    in_half.step()
    taken, in_half_too = in_half.state_dict(), make(half)
    in_half_too.load_state_dict(copy.deepcopy(taken))
    assert_same(in_half_too.state_dict(), taken)  # torch would make it bfloat16
    before = copy.deepcopy(from_dict.state_dict())
    with pytest.raises(ValueError, match="shared"):
        from_dict.load_state_dict({**make(params(1)).state_dict(), "shared": {}})
    assert_same(from_dict.state_dict(), before)
    assert json.loads(json.dumps(optimizer.get_config())) == optimizer.get_config()
