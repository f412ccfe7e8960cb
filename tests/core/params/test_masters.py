"""Params of half precision with float32 masters. Oracle: a loop over torch's optimizer with masters made by hand."""

import copy
import json
import warnings

import numpy
import pytest
import spacy
import torch
from thinc.api import SGD as ThincSGD
from thinc.api import Model, PyTorchWrapper, Softmax, chain, with_array

from thinc_torchopt import Adam, TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW, create
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import PrecisionWarning
from thinc_torchopt.core.state.files import read_folder

from ...models import TOK2VEC, same, toy_examples, toy_pipeline
from ...peek import params_in
from ...runs import config_for, digests, run
from ...spacy_cli import spacy_cli

RATE = 1e-4


class InHalf(torch.nn.Module):
    """Two layers whose params are of half precision."""

    def __init__(self, dtype=torch.bfloat16, n_in=5, width=6, n_out=3):
        super().__init__()
        torch.manual_seed(0)
        self.lower, self.norm = torch.nn.Linear(n_in, width), torch.nn.LayerNorm(width)
        self.upper = torch.nn.Linear(width, n_out)
        self.to(dtype)

    def forward(self, x):
        return self.upper(torch.tanh(self.norm(self.lower(x.to(self.lower.weight.dtype))))).float()


@spacy.registry.architectures("test-masters.Tagger.v1")
def tagger() -> Model:
    tok2vec = spacy.registry.resolve({"tok2vec": TOK2VEC | {"depth": 1}})["tok2vec"]
    tok2vec = chain(tok2vec, with_array(PyTorchWrapper(InHalf(n_in=16, n_out=8))))
    tok2vec.set_dim("nO", 8)
    model = chain(tok2vec, with_array(Softmax(nI=8)))
    model.set_ref("tok2vec", tok2vec)
    return model


def pipeline():
    nlp = toy_pipeline((), shared=False)
    nlp.add_pipe("tagger", config={"model": {"@architectures": "test-masters.Tagger.v1"}})
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples)
    return nlp, examples


def shim_of(model):
    return next(shim for node in model.walk() for shim in node.shims)


def tensors(module):
    return [param.detach().clone() for param in module.parameters()]


def batches(n=40, seed=0):
    rng = numpy.random.default_rng(seed)
    return [(rng.normal(size=(7, 5)).astype("f"), rng.normal(size=(7, 3)).astype("f")) for _ in range(n)]


def step(model, optimizer, X, goal):
    Y, backprop = model.begin_update(X)
    backprop(Y - goal)
    model.finish_update(optimizer)


class ByHand:
    """The usual loop: torch's optimizer has the masters, the model gets them rounded."""

    def __init__(self, module, build=lambda masters: torch.optim.AdamW(masters, lr=RATE, fused=True), clip=0.0):
        self.module = copy.deepcopy(module)
        self.masters = [param.detach().float().requires_grad_() for param in self.module.parameters()]
        self.optimizer = build(self.masters)
        self.clip = clip

    def step(self, X, goal):
        Y = self.module(torch.from_numpy(X))
        Y.backward(Y.detach() - torch.from_numpy(goal))
        for param, master in zip(self.module.parameters(), self.masters):
            master.grad, param.grad = param.grad.float(), None
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.masters, self.clip)
        self.optimizer.step()
        for param, master in zip(self.module.parameters(), self.masters):
            param.data.copy_(master.detach())


def optimizer(algorithm=None, rate=RATE, **settings):
    settings = {"grad_clip": 0.0, "master_weights": True} | settings
    return TorchOptimizer(algorithm or AdamW(), rate, **settings)


def begun(*args, **settings):
    """A pipeline with its examples, its module, and an optimizer that knows its params."""
    nlp, examples = pipeline()
    sgd = optimizer(*args, **settings)
    sgd.initialize(nlp)
    return nlp, examples, shim_of(nlp.get_pipe("tagger").model)._model, sgd


def masters_of(optimizer):
    return [param.tensor.clone() for param in params_in(optimizer) if param.has_master]


# ---------------------------------------------------------------------- steps


def trained_by_small_steps(master_weights, dtype=torch.bfloat16):
    module = torch.nn.Linear(1, 1, bias=False).to(dtype)
    module.weight.data.fill_(1.0)
    model = PyTorchWrapper(module)
    sgd = optimizer(SGD(), master_weights=master_weights)
    for _ in range(200):
        module.weight.grad = torch.ones_like(module.weight)
        model.finish_update(sgd)
    return module.weight.item()


def test_masters_keep_updates_that_half_precision_loses():
    with pytest.warns(PrecisionWarning, match="weight' is trained in bfloat16.* 512th .*master_weights = true") as told:
        assert trained_by_small_steps(False) == 1.0
    assert len(told) == 1
    with pytest.warns(PrecisionWarning, match="trained in float16.* 4096th "):
        trained_by_small_steps(False, torch.float16)
    # 200 steps of 1e-4; bfloat16 has 8 bits, so numbers below 1 are apart by 1/256.
    assert trained_by_small_steps(True) == torch.tensor(0.98).bfloat16().item()


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
@pytest.mark.parametrize("kahan", [False, True])
def test_masters_are_not_missed_where_the_algorithm_keeps_small_updates(kahan):
    module = InHalf()
    sgd = optimizer(create("stableadamw", {"kahan_sum": kahan}), master_weights=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", PrecisionWarning)
        step(PyTorchWrapper(module), sgd, *batches(1)[0])
    assert len(told) == (0 if kahan else 1)
    assert kahan or "and 5 others are trained" in str(told[0].message)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "algorithm, build",
    [
        (AdamW(), None),
        (AdamW(fused=False), lambda masters: torch.optim.AdamW(masters, lr=RATE, foreach=False)),
        (SGD(momentum=0.9), lambda masters: torch.optim.SGD(masters, lr=RATE, momentum=0.9, fused=True)),
    ],
    ids=["adamw", "plain-adamw", "sgd"],
)
def test_masters_are_those_of_a_loop_by_hand(dtype, algorithm, build):
    module = InHalf(dtype)
    expected = ByHand(module, *([build] if build else []))
    model, sgd = PyTorchWrapper(module), optimizer(algorithm)
    for X, goal in batches():
        step(model, sgd, X, goal)
        expected.step(X, goal)
        assert same(tensors(module), tensors(expected.module))
    assert same(masters_of(sgd), [master.detach() for master in expected.masters])
    assert all(param.grad is None for param in module.parameters())
    assert [tensor.dtype for tensor in sgd.params.values()] == [dtype] * 6


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_params_change_between_the_passes_of_a_module(dtype, close):
    """`nlp.update` updates a shared tok2vec before its backward pass. Oracle: thinc's SGD; bfloat16 has 8 bits."""
    found = []
    ours = TorchOptimizer(SGD(fused=False), 0.1, grad_clip=0.0, master_weights=dtype is torch.bfloat16)
    for optimizer, kind in ((ThincSGD(0.1, L2=0.0, grad_clip=0.0), torch.float32), (ours, dtype)):
        model = PyTorchWrapper(InHalf(kind))
        for _ in range(4):
            Y, back = model.begin_update(numpy.linspace(-1, 1, 35, dtype="f").reshape(7, 5))
            model.finish_update(optimizer)
            back(Y)
        found.append(torch.cat([param.detach().float().flatten() for param in model.shims[0]._model.parameters()]))
    torch.testing.assert_close(*found, rtol=close, atol=close)


def test_masters_clip_gradients_in_float32():
    module = InHalf()
    expected = ByHand(module, clip=0.01)
    model, sgd = PyTorchWrapper(module), optimizer(grad_clip=0.01)
    for X, goal in batches():
        step(model, sgd, X, goal)
        expected.step(X, goal)
    for master, by_hand in zip(masters_of(sgd), expected.masters):
        # Both sum squares of float32, in another order.
        torch.testing.assert_close(master, by_hand.detach(), rtol=1e-5, atol=1e-7)


def test_masters_of_thinc_arrays():
    """thinc's layers compute in float32; a user's may hold float16."""
    W, sgd = numpy.ones((2, 3), dtype="float16"), optimizer(SGD())
    for _ in range(200):
        grad = numpy.ones((2, 3), dtype="float16")
        sgd.set_grad(W, grad)
        sgd.step()
        assert not grad.any()
    assert (numpy.float16(0.98) == W).all()


# ---------------------------------------------------------------------- changes of the model


def test_masters_follow_what_other_code_changes():
    """One cell of a weight is set, and a bias is loaded. All other masters keep their digits."""
    module = InHalf()
    model, sgd = PyTorchWrapper(module), optimizer()
    expected = ByHand(module)
    data = batches(20)
    for X, goal in data[:10]:
        step(model, sgd, X, goal)
        expected.step(X, goal)
    for one in (module, expected.module):
        one.upper.weight.data[1, 2] = 0.75
        one.load_state_dict(one.state_dict() | {"lower.bias": torch.full((6,), 0.5)})
    params = dict(zip(dict(module.named_parameters()), expected.masters))
    with torch.no_grad():
        params["upper.weight"][1, 2] = 0.75
        params["lower.bias"].fill_(0.5)
    for X, goal in data[10:]:
        step(model, sgd, X, goal)
        expected.step(X, goal)
        assert same(tensors(module), tensors(expected.module))
    assert same(masters_of(sgd), [master.detach() for master in expected.masters])


def test_masters_stay_in_a_copied_model_and_in_one_that_was_reloaded():
    nlp, examples = pipeline()
    pipe = nlp.get_pipe("tagger")
    sgd = optimizer(rate=0.001)
    sgd.initialize(nlp)
    for _ in range(5):
        nlp.update(examples, sgd=sgd)
    masters = masters_of(sgd)
    assert not same(masters, [master.bfloat16().float() for master in masters])
    pipe.model = pipe.model.copy()
    sgd.initialize(nlp)
    assert same(masters_of(sgd), masters)
    shim = shim_of(pipe.model)
    shim.from_bytes(shim.to_bytes())
    sgd.initialize(nlp)
    assert same(masters_of(sgd), masters)


def test_masters_come_and_go_with_the_dtype():
    module = InHalf()
    model, sgd = PyTorchWrapper(module), optimizer()
    data = batches(9)
    for X, goal in data[:3]:
        step(model, sgd, X, goal)
    module.float()
    for X, goal in data[3:6]:
        step(model, sgd, X, goal)
    assert not masters_of(sgd) and all(param.grad is None for param in module.parameters())
    assert all(one is other for one, other in zip(sgd.params.values(), module.parameters()))
    assert not same(tensors(module), [param.bfloat16().float() for param in tensors(module)])
    module.bfloat16()
    for X, goal in data[6:]:
        step(model, sgd, X, goal)
    assert len(masters_of(sgd)) == 6


def test_masters_of_a_layer_that_grows_keep_their_cells():
    """And their state: as those of a module in float32 that grows."""
    nlp, examples, module, sgd = begun(rate=0.001)
    for _ in range(5):
        nlp.update(examples, sgd=sgd)
    old = {name: param.tensor.clone() for name, param in by_name(sgd).items()}
    steps = {name: param.steps for name, param in by_name(sgd).items()}
    wider = torch.nn.Linear(7, 8).bfloat16()
    wider.weight.data[:, :6], wider.bias.data = module.upper.weight.data, module.upper.bias.data.clone()
    module.upper = wider
    module.lower = grown(module.lower, 7)
    module.norm = grown(module.norm, 7)
    sgd.initialize(nlp)
    for name, param in by_name(sgd).items():
        common = tuple(slice(size) for size in old[name].shape)
        assert torch.equal(param.tensor[common], old[name]) and param.steps == steps[name]
        assert torch.equal(param.tensor.to(param.in_model.dtype), param.in_model)
    nlp.update(examples, sgd=sgd)


def grown(layer, size):
    """A layer with more outputs."""
    made = torch.nn.LayerNorm(size) if isinstance(layer, torch.nn.LayerNorm) else torch.nn.Linear(layer.in_features, 7)
    made.bfloat16()
    for new, old in zip(made.parameters(), layer.parameters()):
        new.data[: len(old)] = old.data
    return made


def by_name(optimizer):
    return {param.name: param for param in params_in(optimizer) if param.has_master}


# ---------------------------------------------------------------------- other features


@pytest.mark.parametrize("by_settings", [False, True])
def test_masters_are_of_trained_params_only(by_settings):
    """A frozen param has no copy of itself. When it is trained it gets one, and small updates add up again."""
    nlp, examples, module, sgd = begun(rate=1e-5, use_averages=True)
    names = [param.name for param in params_in(sgd) if "/upper/" in param.name]
    assert len(names) == 2 and by_name(sgd).keys() > {*names}
    for _ in range(2):
        nlp.update(examples, sgd=sgd)
    sgd.freeze_by_settings(names) if by_settings else sgd.freeze(["*/upper/*"])
    frozen = [param for param in params_in(sgd) if param.name in names]
    assert not by_name(sgd).keys() & {*names} and by_name(sgd)
    assert {id(param.tensor) for param in frozen} == {id(param) for param in module.upper.parameters()}
    saved = sgd.state_dict()["params"]
    assert all(saved[name]["master"] is None and not saved[name]["state"] for name in names)
    before = module.upper.weight.detach().clone()
    nlp.update(examples, sgd=sgd)
    assert torch.equal(module.upper.weight, before)
    sgd.freeze_by_settings([]) if by_settings else sgd.unfreeze(["*/upper/*"])
    assert torch.equal(by_name(sgd)[names[0]].tensor, module.upper.weight.float())
    for _ in range(2):
        nlp.update(examples, sgd=sgd)
    assert not torch.equal(by_name(sgd)[names[0]].tensor, before.float())  # an update of less than bfloat16 has


@pytest.mark.parametrize("places", [1, 2])
def test_masters_of_shared_params(places):
    """Two layers of a module with one weight; in one place of the model, or in two."""
    module = InHalf(n_in=5, width=5, n_out=5)
    module.upper.weight = module.lower.weight
    expected = ByHand(module)
    layers, sgd = [PyTorchWrapper(module) for _ in range(places)], optimizer()
    for X, goal in batches(10):
        goal = numpy.pad(goal, ((0, 0), (0, 2)))
        with sgd.joint_step():
            passes = [layer.begin_update(X) for layer in layers]
            for Y, backprop in passes:
                backprop(Y - goal)
            for layer in layers:
                layer.finish_update(sgd)
        for _ in passes[1:]:
            Y = expected.module(torch.from_numpy(X))
            Y.backward(Y.detach() - torch.from_numpy(goal))
        expected.step(X, goal)
        assert same(tensors(module), tensors(expected.module))
    assert same(masters_of(sgd), [master.detach() for master in expected.masters])


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
def test_masters_of_an_algorithm_that_evaluates_other_values():
    """Schedule-free: the model is evaluated with them rounded, and trained as if it had not been."""
    from pytorch_optimizer import ScheduleFreeAdamW

    nlp, examples, module, sgd = begun(create("schedulefreeadamw", {}), rate=0.01)
    names = [name.replace(".", "/") for name, _ in module.named_parameters()]
    found = {param.name: param for param in params_in(sgd) if param.has_master}
    ours = [next(param for path, param in found.items() if path.endswith(name)) for name in names]
    masters = [param.tensor.clone().requires_grad_() for param in ours]
    theirs = ScheduleFreeAdamW(masters, lr=0.01)
    for _ in range(6):
        nlp.update(examples, sgd=False)
        for param, master in zip(module.parameters(), masters):
            master.grad = param.grad.float()
        nlp.get_pipe("tagger").finish_update(sgd)
        theirs.step()
        with nlp.use_params(sgd.averages):
            evaluated = tensors(module)
        theirs.eval()
        assert same(evaluated, [master.detach().bfloat16() for master in masters])
        theirs.train()
        # eval() and train() of theirs compute forth and back, ours copies: float32 has 24 bits.
        for param, master in zip(ours, masters):
            torch.testing.assert_close(param.tensor, master.detach(), rtol=1e-5, atol=1e-7)
            master.data.copy_(param.tensor)


def test_masters_are_averaged_in_float32():
    nlp, examples, module, sgd = begun(rate=0.001, averages=EMA(decay=0.5, warmup="torch"))
    expected = None
    for _ in range(10):
        nlp.update(examples, sgd=sgd)
        now = masters_of(sgd)
        expected = now if expected is None else [torch.lerp(old, new, 0.5) for old, new in zip(expected, now)]
    trained = tensors(module)
    with nlp.use_params(sgd.averages):
        averaged = tensors(module)
    assert same(averaged, [value.bfloat16() for value in expected]) and not same(averaged, trained)
    assert same(tensors(module), trained)
    nlp.update(examples, sgd=sgd)


def masters_config(tmp_path, corpus, **changes):
    config = config_for(tmp_path, corpus, steps=10, training__optimizer__learn_rate=0.001, **changes)
    config["components"] = {"tagger": {"factory": "tagger", "model": {"@architectures": "test-masters.Tagger.v1"}}}
    config["nlp"]["pipeline"] = ["tagger"]
    config["training"]["optimizer"]["master_weights"] = True
    config["training"]["score_weights"] = {"tag_acc": 1.0}
    return config


def test_masters_are_resumed_to_the_bit(corpus, tmp_path):
    groups = {"late": {"params": ["*/lower/*"], "unfreeze_at": 5}, "slow": {"params": ["*/upper/*"], "lr_scale": 0.5}}
    found = []
    for name, crash_at in (("whole", None), ("parts", 7)):
        config = masters_config(tmp_path / name, corpus, training__accumulate_gradient=2)
        settings = {"param_groups": groups, "clip_by": "component", "grad_clip": 0.05, "use_averages": True}
        config["training"]["optimizer"] |= settings
        if crash_at is not None:
            run(config, tmp_path / name, crash_at=crash_at)
        run(config, tmp_path / name)
        saved = read_folder(tmp_path / name / "state" / "step-00000009")["optimizer"]
        found.append((digests(tmp_path / name), {key: one["master"] for key, one in saved["params"].items()}))
    assert found[0][0] == found[1][0]
    masters = [[one for one in named.values() if one is not None] for _, named in found]
    assert len(masters[0]) == 6 and same(*masters)
    assert any(not torch.equal(master, master.bfloat16().float()) for master in masters[0])


def test_masters_are_rolled_back(corpus, tmp_path):
    """A rate of 1e39 ruins the params in step 7: they are restored as they were after step 5."""
    rates = [1e39 if step == 7 else 0.001 for step in range(40)]
    changes = {"training__optimizer__rollback_after": 2, "training__eval_frequency": 50}
    config = masters_config(tmp_path, corpus, **changes)
    config["training"]["optimizer"] |= {"learn_rate": rates, "rollback_factor": 1.0}
    config["training"]["optimizer"]["checkpoint"] |= {"every": 5, "keep": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(config, tmp_path)
    saved = read_folder(tmp_path / "state" / "step-00000010")
    assert len(saved["progress"]["rollbacks"]) == 1
    masters = [found["master"] for found in saved["optimizer"]["params"].values() if found["master"] is not None]
    assert len(masters) == 6 and all(torch.isfinite(master).all() for master in masters)


@pytest.mark.parametrize("master_weights", [False, True])
def test_masters_are_in_the_costs_of_a_training(master_weights, corpus, tmp_path):
    """As many bytes as there are in a checkpoint, and in memory."""
    config = masters_config(tmp_path, corpus, training__optimizer__use_averages=False)
    config["training"]["optimizer"]["master_weights"] = master_weights
    config.to_disk(tmp_path / "config.cfg")
    costs = json.loads(spacy_cli("torchopt", "explain", tmp_path / "config.cfg", "--json", check=False).stdout)["costs"]
    module, found = InHalf(n_in=16, n_out=8), costs["bytes"]
    n_half = sum(param.numel() for param in module.parameters())
    n_float = (found["params"] - 2 * n_half) // 4
    assert found["masters"] == (4 * n_half if master_weights else 0)
    assert found["gradients"] == found["params"] + found["masters"]
    of_state = 8 * (n_float + n_half) if master_weights else 8 * n_float + 4 * n_half
    assert found["state"] == pytest.approx(of_state, rel=0.01)  # and a count for each param


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "sgd, advice",
    [(Adam(RATE), "with thinc-torchopt.TorchOptimizer.v1"), (optimizer(), "master_weights does not reach")],
    ids=["a drop-in", "values that are kept elsewhere"],
)
def test_half_precision_without_masters_is_told(sgd, advice):
    values = torch.ones(3, dtype=torch.bfloat16)
    with pytest.warns(PrecisionWarning, match=f"trained in bfloat16: .*{advice}"):
        sgd.set_grad(values, torch.ones_like(values), callback=lambda new: None)
    sgd.step()
