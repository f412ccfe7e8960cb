"""An optimizer's state by name: another process goes on exactly where this one stood, and what does not fit is refused
whole.
"""

import copy
import warnings
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import numpy
import pytest
import srsly
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import Linear, PyTorchWrapper, chain, warmup_linear

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.modular import registered as modular
from thinc_torchopt.addons.modular.registered import FedProx, Lookahead, Momentum
from thinc_torchopt.core import drop_ins
from thinc_torchopt.core.algorithms import torch_classes as torch_optimizers
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW, create
from thinc_torchopt.core.errors import (
    CheckpointWarning,
    ConfigError,
    PipelineError,
    StateError,
    TorchOptError,
    TorchOptWarning,
)
from thinc_torchopt.core.params import names
from thinc_torchopt.core.params import pipeline as params_pipeline
from thinc_torchopt.core.schedules.plateau import plateau

from ...conftest import HAS_MUON, needs_gpu
from ...models import backprop, optimizer_for, params_of, pipeline_of, same, same_tree, slots, toy_pipeline
from ..settings.test_param_groups import Encoder

# All the others are in tests/test_every_optimizer.py.
ALGORITHMS = {name: getattr(torch_optimizers, name) for name in ("AdamW", "Rprop", *(["Muon"] if HAS_MUON else []))} | {
    "SGD momentum": lambda: SGD(momentum=0.9),
    "amsgrad": lambda: AdamW(amsgrad=True),
    "prodigy": lambda: create("prodigy"),
    "schedulefreeadamw": lambda: create("schedulefreeadamw"),
}


def pipeline(order=("torch", "thinc")):
    """Two components: a torch encoder below a thinc layer, and a thinc layer."""
    torch.manual_seed(0)
    numpy.random.seed(0)
    models = {"torch": chain(PyTorchWrapper(Encoder()), Linear(3, 6)), "thinc": Linear(3, 5)}
    for model in models.values():
        model.initialize()
    nlp = toy_pipeline(["tagger", "morphologizer"], shared=False)
    for name, component in zip(order, nlp.pipe_names):
        nlp.get_pipe(component).model = models[name]
        nlp.rename_pipe(component, f"{name}-x")
    return nlp, [models["torch"], models["thinc"]]


def steps(optimizer, models, n, *, start=0):
    for step in range(start, start + n):
        with optimizer.joint_step():
            for i, model in enumerate(models):
                backprop(model, numpy.random.default_rng(10 * step + i))
                model.finish_update(optimizer)
        optimizer.step_schedules()


def begun(algorithm, n=0, learn_rate=0.01, **settings):
    """A pipeline, its models and its optimizer, after some steps."""
    nlp, models = pipeline()
    optimizer = optimizer_for(nlp, algorithm, learn_rate, **settings)
    steps(optimizer, models, n)
    return nlp, models, optimizer


def copy_params(source, target):
    for old_model, new_model in zip(target, source):
        for (old, _), (new, _) in zip(slots(old_model), slots(new_model)):
            with torch.no_grad():
                old[...] = new


@pytest.mark.parametrize("name", ALGORITHMS)
def test_state_lets_another_process_go_on_exactly(name, tmp_path):
    """Also if its components were created in another order."""
    if name in ("prodigy", "schedulefreeadamw"):
        pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")
    settings = {
        "use_averages": name != "schedulefreeadamw",  # that has its own
        "param_groups": {
            "top": {"params": ["torch-x/pytorch/pooler/*"], "lr_scale": 0.5},
            "late": {"params": ["torch-x/pytorch/layer/0/*"], "unfreeze_at": 3},
            "later": {"params": ["thinc-x/*"], "unfreeze_at": 5},
        },
    }
    _, models, optimizer = begun(ALGORITHMS[name](), 4, warmup_linear(0.01, 3, 30), **settings)
    optimizer.to_disk(tmp_path / "state")
    other_nlp, other_models = pipeline(order=("thinc", "torch"))
    copy_params(models, other_models)
    other = optimizer_for(other_nlp, ALGORITHMS[name](), warmup_linear(0.01, 3, 30), **settings)
    other.from_disk(tmp_path / "state")
    assert other.learn_rate == optimizer.learn_rate
    steps(optimizer, models, 3, start=4)
    steps(other, other_models, 3, start=4)
    for ours, theirs in zip(models, other_models):
        assert same(params_of(ours), params_of(theirs))
    assert set(other.averages) and other.learn_rates == optimizer.learn_rates
    for ours, theirs in zip(models, other_models):
        with ours.use_params(optimizer.averages), theirs.use_params(other.averages):
            assert same(params_of(ours), params_of(theirs))
    if settings["use_averages"]:
        ours, theirs = (found.state_dict()["averages"]["tensors"] for found in (optimizer, other))
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@needs_gpu
@pytest.mark.gpu
def test_state_goes_to_another_device(tmp_path):
    nlp, models = pipeline()
    optimizer = optimizer_for(nlp, AdamW(), 0.01)
    steps(optimizer, models[:1], 2)
    optimizer.to_disk(tmp_path / "state")
    models[0].layers[0].shims[0]._model.cuda()
    other = optimizer_for(nlp, AdamW(), 0.01)
    other.from_disk(tmp_path / "state")
    state = other.torch_optimizers["algorithm"].state[models[0].layers[0].shims[0]._model.pooler.weight]
    assert state["exp_avg"].is_cuda


def changed(state, *path, value):
    """A copy of a state with one part replaced, or removed."""
    state = copy.deepcopy(state)
    part = state
    for key in path[:-1]:
        part = part[key]
    if value is REMOVED:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return state


REMOVED = object()
ROW = {
    "shape": [1],
    "dtype": "torch.float32",
    "shim": None,
    "updates": 1,
    "joined_at": None,
    "label": "default",
    "rate_scale": {"factor": 1.0, "held": None},
    "frozen_until": None,
    "master": None,
    "state": {},
}
NAME, BIAS = (f"torch-x/pytorch/pooler/{name}" for name in ("weight", "bias"))
REFUSED = Path(__file__).with_name("by_name.yaml")
BAD = [
    *((tuple(path), value, StateError, said) for path, value, said in srsly.read_yaml(REFUSED)["refused"]),
    (("params",), REMOVED, StateError, "found one without params"),
    (("params", NAME), REMOVED, StateError, rf"1 missing \({NAME}\)"),
    (("params", "ner/new"), ROW, StateError, r"1 unexpected \(ner/new\)"),
    (("averages",), 5, (StateError, ConfigError), "averages"),
]


@pytest.mark.parametrize(("path", "value", "error", "message"), BAD, ids=[".".join(bad[0]) for bad in BAD])
def test_state_that_does_not_fit_changes_nothing(path, value, error, message):
    groups = {"top": {"params": [NAME], "lr_scale": 0.5}}
    rate = warmup_linear(0.01, 3, 30)
    _, models, optimizer = begun(AdamW(), 3, rate, use_averages=True, param_groups=groups)
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)
    with pytest.raises(error, match=message):
        optimizer.load_state_dict(changed(saved, *path, value=value))
    after = optimizer.state_dict()
    assert repr(after) == repr(before)
    steps(optimizer, models, 1, start=3)


def test_state_needs_a_pipeline():
    model = Linear(3, 5).initialize()
    optimizer = TorchOptimizer(AdamW(), 0.01)
    backprop(model, numpy.random.default_rng(0))
    model.finish_update(optimizer)
    known = begun(AdamW())
    for use in (optimizer.state_dict, lambda: optimizer.load_state_dict(known[-1].state_dict())):
        with pytest.raises(PipelineError, match=r"no lasting names. Call optimizer.initialize\(nlp\) first"):
            use()


@pytest.mark.parametrize("had", [True, False])
@pytest.mark.device
def test_state_with_and_without_averages(had):
    """The setting has changed since: averages begin anew, or are dropped, and a warning says so."""
    nlp, models = pipeline()
    first, second = (TorchOptimizer(AdamW(), use_averages=use_averages) for use_averages in (had, not had))
    for optimizer in (first, second):
        optimizer.initialize(nlp)
    steps(first, models, 2)
    with pytest.warns(CheckpointWarning, match="The saved averages are dropped" if had else "The averages start again"):
        second.load_state_dict(first.state_dict())
    assert not second.averages and set(second.nr_update.values()) == {2}
    steps(second, models, 1)
    assert bool(second.averages) != had


OTHERS = {
    "amsgrad": (
        lambda: AdamW(amsgrad=True),
        r"expected \['max_exp_avg_sq'\], which torch.AdamW.v1 keeps with its current options",
    ),
    "NAdam": (torch_optimizers.NAdam, "expected the state of torch.NAdam.v1, found the state of torch.AdamW.v1"),
    "Adafactor": (torch_optimizers.Adafactor, "expected the state of torch.Adafactor.v1"),
    "SGD": (SGD, "expected the state of torch.SGD.v1"),
}


@pytest.mark.parametrize("on_growth", [None, "mean"])
@pytest.mark.parametrize("name", OTHERS)
def test_state_of_another_algorithm_is_refused(name, on_growth):
    nlp, _, optimizer = begun(AdamW(), 2)
    algorithm, message = OTHERS[name]
    other = optimizer_for(nlp, algorithm())
    with pytest.raises(StateError, match=message):
        other.load_state_dict(optimizer.state_dict(), on_growth=on_growth)
    assert not any(other.nr_update.values())


def test_state_of_sgd_just_before_its_momentum_begins():
    """torch makes the buffer in the step that comes. An unbroken run is the oracle."""

    def begun():
        numpy.random.seed(0)
        nlp = pipeline_of(tagger=Linear(3, 4).initialize())
        optimizer = optimizer_for(nlp, SGD(momentum=[0.0, 0.0, 0.9, 0.9, 0.0, 0.9, 0.9]), 0.1)
        return nlp, optimizer

    def update(nlp, optimizer, step):
        model = nlp.get_pipe("tagger").model
        for name in ("W", "b"):
            model.inc_grad(name, numpy.full_like(model.get_param(name), step + 1.0))
        model.finish_update(optimizer)
        optimizer.step_schedules()

    unbroken, whole = begun()
    nlp, optimizer = begun()
    for step in range(6):
        saved, weights = copy.deepcopy(optimizer.state_dict()), nlp.get_pipe("tagger").model.to_bytes()
        nlp, optimizer = begun()
        nlp.get_pipe("tagger").model.from_bytes(weights)
        optimizer.load_state_dict(saved)
        update(unbroken, whole, step)
        update(nlp, optimizer, step)
        assert same(*(params_of(one.get_pipe("tagger").model) for one in (nlp, unbroken)))


def test_state_of_a_param_that_had_no_update_yet_is_none(tmp_path):
    """One of two params had its first gradient before the state was saved, the other has it after: torch's fused SGD
    wants to know.
    """

    def update(models, optimizer, names):
        for name in names:
            models[1].set_grad(name, numpy.ones_like(models[1].get_param(name)))
        models[1].finish_update(optimizer)

    nlp, models, optimizer = begun(SGD(momentum=0.9), 0, 0.1, grad_clip=0.0)
    update(models, optimizer, ["W"])
    optimizer.to_disk(tmp_path / "state")
    other_nlp, other_models, other = begun(SGD(momentum=0.9), 0, 0.1, grad_clip=0.0)
    copy_params(models, other_models)
    other.from_disk(tmp_path / "state")
    for of_run, of_optimizer in ((models, optimizer), (other_models, other)):
        update(of_run, of_optimizer, ["W", "b"])
    assert same(params_of(models[1]), params_of(other_models[1])) and nlp is not other_nlp


# ---------------------------------------------------------------------- any tree at all

JUNK = [
    None,
    True,
    -1,
    3,
    10**12,
    0.5,
    float("nan"),
    "x",
    [],
    [1],
    {},
    {"x": 1},
    (1, 2),
    torch.ones(3),
    torch.tensor(float("nan")),
]
SETTINGS = {
    "use_averages": True,
    "spike_factor": 5.0,
    "param_groups": {
        "top": {"params": [NAME], "lr_scale": 0.5},
        "late": {"params": ["torch-x/pytorch/layer/0/*"], "unfreeze_at": 9},
    },
}


def paths_of(tree, path=()):
    """The path of every part of a tree."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from paths_of(value, (*path, key))


def bits(tree):
    """A tree with tensors as their bytes, to compare."""
    if isinstance(tree, torch.Tensor):
        return str(tree.dtype), tuple(tree.shape), tree.stride(), tree.detach().numpy().tobytes()
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    return [bits(value) for value in tree] if isinstance(tree, (list, tuple)) else repr(tree)


@pytest.fixture(scope="module")
def state_to_damage():
    """Of a pipeline with a gradient scaler, a schedule that keeps a state, and a frozen block."""
    rate, clip = plateau(0.01, patience=1), warmup_linear(1.0, 3, 30)
    nlp, models, optimizer = begun(AdamW(), 3, rate, grad_clip=clip, **SETTINGS)
    optimizer.observe(0.5)
    with scaler_on(models):
        return nlp, models, copy.deepcopy(optimizer.state_dict())


@contextmanager
def scaler_on(models):
    """A gradient scaler is there, as for mixed precision on a GPU. Without one it can't take a step."""
    scaler = models[0].layers[0].shims[0]._grad_scaler
    scaler._enabled = True
    yield
    scaler._enabled = False


@given(st.data())
@hypothesis.settings(
    deadline=None,
    derandomize=True,
    max_examples=hypothesis.settings.default.max_examples // 2,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_state_is_loaded_whole_or_not_at_all(state_to_damage, data):
    """A part is gone, or another, or one too many: it is loaded, or refused by an error of ours, and then nothing has
    changed.
    """
    nlp, models, saved = state_to_damage
    for model in models:
        for param, _ in slots(model):
            with torch.no_grad():
                param[...] = 0.1  # what was loaded before may have made it NaN
    optimizer = optimizer_for(nlp, AdamW(), plateau(0.01, patience=1), grad_clip=warmup_linear(1.0, 3, 30), **SETTINGS)
    steps(optimizer, models, 1)
    with scaler_on(models):
        before = bits(optimizer.state_dict())
    tree, keys = saved, data.draw(st.sampled_from(sorted(paths_of(saved), key=repr)))
    for _ in range(data.draw(st.integers(1, 2))):
        tree = changed(tree, *keys, value=data.draw(st.sampled_from([REMOVED, *JUNK])))
        keys = data.draw(st.sampled_from(sorted(paths_of(tree), key=repr)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchOptWarning)
        with scaler_on(models):
            try:
                optimizer.load_state_dict(tree)
            except TorchOptError:
                assert bits(optimizer.state_dict()) == before
        steps(optimizer, models, 1)  # whatever was loaded, it can be gone on with


def test_state_is_loaded_in_the_middle_of_a_training(state_to_damage):
    """Where params of a frozen block take no gradients."""
    nlp, models, saved = state_to_damage
    shim = models[0].layers[0].shims[0]
    optimizer = optimizer_for(nlp, AdamW(), plateau(0.01, patience=1), grad_clip=warmup_linear(1.0, 3, 30), **SETTINGS)
    frozen = [param for name, param in shim._model.named_parameters() if name.startswith("layer.0.")]
    with optimizer.training():
        assert frozen and not any(param.requires_grad for param in frozen)
        with pytest.raises(StateError):
            optimizer.load_state_dict(changed(saved, "params", value={}))
        assert not any(param.requires_grad for param in frozen)
        optimizer.load_state_dict(saved)
        assert not any(param.requires_grad for param in frozen)
        with scaler_on(models):
            optimizer.load_state_dict(changed(saved, "grad_scalers", value={}))
        steps(optimizer, models, 6, start=3)
        assert all(param.requires_grad for param in frozen)
    with optimizer.training():
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(param.requires_grad for param in frozen)


OWN = {
    "torch": lambda: TorchOptimizer(AdamW(amsgrad=True)),
    "momentum": lambda: TorchOptimizer(SGD(momentum=0.9)),
    "drop-in": lambda: drop_ins.Adam(L2=0.01),
    "modular": lambda: TorchOptimizer(
        modular.create(
            regularizers={"proximal": FedProx(alpha=0.1)},
            modules={"momentum": Momentum(), "adam": modular.Adam(amsgrad=True), "lookahead": Lookahead(k=2)},
        )
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_state_of_a_param_that_is_damaged_is_refused(name):
    """Whatever keeps it: torch's classes and ours."""
    nlp, models = pipeline()
    optimizer = OWN[name]()
    optimizer.initialize(nlp)
    steps(optimizer, models, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = saved["params"][NAME]["state"]
    assert kept
    for key, value in kept.items():
        junk = [REMOVED, None, "five", [3.0], {}, -3, 2.5, torch.ones(7), 1 if value is False else True]
        junk += [torch.ones(3, 6, 2)] if isinstance(value, torch.Tensor) else [torch.ones(())]
        for found in junk:
            with pytest.raises(StateError, match=f"state of param '{NAME}'.*'{key}'"):
                optimizer.load_state_dict(changed(saved, "params", NAME, "state", key, value=found))
    optimizer.load_state_dict(saved)
    steps(optimizer, models, 2, start=3)


@pytest.mark.parametrize(
    "damage, found",
    [
        (lambda values: {**values, "d": "five"}, "d = 'five'"),
        (lambda values: {name: value for name, value in values.items() if name != "d"}, "no d"),
        (lambda values: {**values, "lr": 3.0}, "lr = 3.0"),
        (lambda values: [1, 2], r"\[1, 2\]"),
    ],
)
def test_state_with_damaged_values_of_a_group_is_refused(damage, found):
    pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")
    _, models, optimizer = begun(create("prodigy"), 3, 1.0)
    saved = copy.deepcopy(optimizer.state_dict())
    values = damage(saved["params"][NAME]["state"]["of_group"])
    with pytest.raises(StateError, match=f"state of param '{NAME}': expected the values of .*, found {found}. It is"):
        optimizer.load_state_dict(changed(saved, "params", NAME, "state", "of_group", value=values))
    optimizer.load_state_dict(saved)
    steps(optimizer, models, 2, start=3)


def test_state_by_name_names_the_pipeline_once(monkeypatch):
    """To initialize, to save and to load: for params, gradients, averages and gradient scalers together."""
    nlp, models = pipeline()
    optimizer, walked = TorchOptimizer(AdamW(), 0.01, use_averages=True), []
    of_paths = names.paths_of

    def noted(root, prefix):
        walked.append(prefix)
        return of_paths(root, prefix)

    for module in (names, params_pipeline):
        monkeypatch.setattr(module, "paths_of", noted)
    optimizer.initialize(nlp)
    assert len(walked) == 2  # once for each component
    for model in models:
        backprop(model, numpy.random.default_rng(0))
        model.finish_update(optimizer)
    assert len(walked) == 2
    for model in models:
        backprop(model, numpy.random.default_rng(1))
    saved = copy.deepcopy(optimizer.state_dict())
    grads = copy.deepcopy(saved["grads"])
    assert len(walked) == 4
    optimizer.load_state_dict(saved)
    assert len(walked) == 6
    for model in models:
        backprop(model, numpy.random.default_rng(2))  # adds to gradients of its own
    assert same_tree(saved["grads"], grads)
