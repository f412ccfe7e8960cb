"""What passes from a model to the one that takes its name: all, if that is a copy or was resized; nothing, if it is
another one.
"""

from contextlib import nullcontext

import numpy
import pytest
import spacy
import thinc.api
import torch
from thinc.api import Linear, Maxout, PyTorchWrapper, PyTorchWrapper_v3, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.algorithm import Algorithm
from thinc_torchopt.core.algorithms.thinc import ThincAdam
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.rates.new_params import Warmup

from ..models import (
    backprop,
    mixed_model,
    optimizer_for,
    params_of,
    pipeline_of,
    ready_pipeline,
    same,
    snapshot,
    thinc_model,
    torch_model,
    toy_pipeline,
)

# With a layer that is normalized: LayerNorm and all biases begin alike in every model.
MODELS = {
    "thinc": lambda: chain(Maxout(nO=5, nI=5, nP=2, normalize=True), thinc_model()).initialize(),
    "torch": torch_model,
    "mixed": mixed_model,
}


def replace_pipe(nlp, model):
    nlp.replace_pipe("tagger", "tagger")
    nlp.get_pipe("tagger").model = model


def remove_and_add(nlp, model):
    nlp.remove_pipe("tagger")
    nlp.add_pipe("tagger").model = model


def set_model(nlp, model):
    nlp.get_pipe("tagger").model = model


WAYS = [replace_pipe, remove_and_add, set_model]


def begun(**models):
    """A pipeline, and an optimizer that knows it."""
    nlp = pipeline_of(**models)
    return nlp, optimizer_for(nlp, AdamW(), 0.01, use_averages=True)


def train(nlp, optimizer, steps, *, begin=0):
    for step in range(begin, begin + steps):
        with optimizer.joint_step() if isinstance(optimizer, TorchOptimizer) else nullcontext():
            for i, (_, proc) in enumerate(nlp.pipeline):
                backprop(proc.model, numpy.random.default_rng(10 * step + i))
                proc.model.finish_update(optimizer)


def looks_at(nlp, optimizer):
    """Weights, and averages as they are evaluated."""
    params = [value for _, proc in nlp.pipeline for value in params_of(proc.model)]
    with nlp.use_params(optimizer.averages):
        return params, [value for _, proc in nlp.pipeline for value in params_of(proc.model)]


def as_thincs_adam():
    """The drop-in, without a warm-up of params that come late."""
    options = {"betas": (0.9, 0.999), "eps": 1e-8, "L2": 0.0, "L2_is_weight_decay": True}
    algorithm = Algorithm("thinc-torchopt.Adam.v1", ThincAdam, options)
    return TorchOptimizer(algorithm, 0.01, clip_by="param", use_averages=True, new_params_warmup=0)


def updates_of(optimizer):
    return {info.name: info.updates for info in optimizer.describe()}


def groups_below(optimizer, *paths):
    return {info.group for info in optimizer.describe() if info.name.startswith(paths)}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_succession_a_fresh_model_begins_anew(way, kind):
    """The oracle: an optimizer that never saw the old model."""
    nlp, optimizer = begun(tagger=MODELS[kind]())
    train(nlp, optimizer, 20)
    fresh = MODELS[kind]()
    twin, own = begun(tagger=fresh.copy())
    way(nlp, fresh)
    train(nlp, optimizer, 1)
    train(twin, own, 1)
    assert set(updates_of(optimizer).values()) == {1}
    for found, expected in zip(looks_at(nlp, optimizer), looks_at(twin, own)):
        assert same(found, expected)
    train(nlp, optimizer, 3)
    train(twin, own, 3)
    for found, expected in zip(looks_at(nlp, optimizer), looks_at(twin, own)):
        assert same(found, expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["thinc", "mixed"])
def test_succession_of_a_fresh_model_equals_thincs(way, kind):
    """The oracle: thinc's Adam, which goes by the ids of nodes. The other component goes on."""
    ends = []
    for optimizer in (as_thincs_adam(), thinc.api.Adam(0.01)):
        thinc.api.fix_random_seed(0)
        nlp = pipeline_of(tagger=MODELS[kind](), other=MODELS[kind]())
        if isinstance(optimizer, TorchOptimizer):
            optimizer.initialize(nlp)
        train(nlp, optimizer, 5)
        thinc.api.fix_random_seed(1)
        way(nlp, MODELS[kind]())
        train(nlp, optimizer, 3, begin=5)
        nodes = [node for name in ("other", "tagger") for node in nlp.get_pipe(name).model.walk()]
        keys = [(node.id, name) for node in nodes for name in node.param_names]
        weights = [value for name in ("other", "tagger") for value in params_of(nlp.get_pipe(name).model)]
        ends.append((weights, [torch.from_numpy(optimizer.averages[key].copy()) for key in keys]))
    for found, expected in zip(*ends):
        for ours, theirs in zip(found, expected, strict=True):
            # Eight updates in float32, whose roundings Adam makes larger where a gradient is near zero.
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_succession_a_fresh_model_warms_up_as_one_that_joins():
    nlp, optimizer = pipeline_of(tagger=torch_model(), other=torch_model()), TorchOptimizer(AdamW(), 0.01)
    optimizer.initialize(nlp)
    train(nlp, optimizer, 3)
    set_model(nlp, torch_model())
    rates = []
    for _ in range(3):
        train(nlp, optimizer, 1)
        rates.append(optimizer.learn_rates["new"])
    assert rates == pytest.approx([Warmup(100).rate(step, 0.001) for step in range(3)], rel=1e-12)
    # So does one whose name was gone for a while.
    nlp.remove_pipe("tagger")
    train(nlp, optimizer, 1)
    nlp.add_pipe("tagger").model = torch_model()
    train(nlp, optimizer, 1)
    assert groups_below(optimizer, "tagger/") == {"new"}
    assert optimizer.learn_rates["new"] == pytest.approx(Warmup(100).rate(0, 0.001), rel=1e-12)


@pytest.mark.parametrize("kind", MODELS)
def test_succession_weights_that_all_models_begin_with_tell_nothing(kind):
    """At a learning rate of zero, where warm-ups begin, biases and LayerNorm are as in the fresh model."""
    nlp, optimizer = pipeline_of(tagger=MODELS[kind](), other=MODELS[kind]()), TorchOptimizer(AdamW(), 0.0)
    optimizer.initialize(nlp)
    train(nlp, optimizer, 1)
    set_model(nlp, MODELS[kind]())
    optimizer.initialize(nlp)
    found = updates_of(optimizer)
    assert {n for name, n in found.items() if name.startswith("tagger/")} == {0}
    # And a copy is one, also there.
    nlp.get_pipe("other").model = nlp.get_pipe("other").model.copy()
    optimizer.initialize(nlp)
    assert {n for name, n in updates_of(optimizer).items() if name.startswith("other/")} == {1}


def test_succession_a_fresh_part_of_a_torch_module_begins_anew():
    module = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(4, 5), "body": torch.nn.Linear(5, 5), "head": torch.nn.Linear(5, 3)}
    )
    module.forward = lambda X: module["head"](module["body"](X + module["embed"].weight.mean(0)))
    model = PyTorchWrapper(module)
    nlp, optimizer = begun(tagger=model)
    train(nlp, optimizer, 3)
    larger = torch.nn.Embedding(6, 5)
    with torch.no_grad():
        larger.weight[:4] = module["embed"].weight
    module["embed"], module["head"] = larger, torch.nn.Linear(5, 3)
    optimizer.initialize(nlp)
    assert {name.split("/")[1]: n for name, n in updates_of(optimizer).items()} == {"embed": 3, "body": 3, "head": 0}
    assert groups_below(optimizer, "tagger/head") == {"new"}
    assert groups_below(optimizer, "tagger/embed", "tagger/body") == {"default"}


@pytest.mark.parametrize("kind", MODELS)
def test_succession_the_same_node_goes_on_whatever_is_loaded(kind, tmp_path):
    nlp, optimizer = begun(tagger=MODELS[kind]())
    train(nlp, optimizer, 3)
    other = MODELS[kind]()
    nlp.get_pipe("tagger").model.from_bytes(other.to_bytes())
    optimizer.initialize(nlp)
    assert set(updates_of(optimizer).values()) == {3}
    MODELS[kind]().to_disk(tmp_path / "model")
    nlp.get_pipe("tagger").model.from_disk(tmp_path / "model")
    # And a copy of what was loaded, before the optimizer saw any of it, is a copy.
    nlp.get_pipe("tagger").model = nlp.get_pipe("tagger").model.copy()
    train(nlp, optimizer, 1)
    assert set(updates_of(optimizer).values()) == {4}


def test_succession_a_shim_that_builds_its_module_anew_goes_on_whatever_is_loaded():
    """As spacy-transformers does in from_bytes."""

    def build(_, state, device):
        module = make()
        return thinc.shims.pytorch.default_deserialize_torch_model(module, state, device)

    def make():
        return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))

    model = PyTorchWrapper_v3(make(), deserialize_model=build)
    nlp, optimizer = begun(tagger=model)
    train(nlp, optimizer, 3)
    module = model.shims[0]._model
    averages = optimizer.state_dict()["averages"]
    model.from_bytes(PyTorchWrapper(make()).to_bytes())
    assert model.shims[0]._model is not module
    optimizer.initialize(nlp)
    assert set(updates_of(optimizer).values()) == {3}
    found = optimizer.state_dict()["averages"]
    assert found["taken"] == averages["taken"] and found["module_steps"] == averages["module_steps"]
    assert all(torch.equal(found["tensors"][name], tensor) for name, tensor in averages["tensors"].items())


def test_succession_pipe_initialize_goes_on_as_with_thincs_optimizers():
    """It gives the same nodes other weights. Who wants to begin anew freezes and unfreezes, or calls nlp.initialize."""
    counts = []
    for optimizer in (TorchOptimizer(AdamW(), 0.01, use_averages=True), thinc.api.Adam(0.01)):
        nlp, examples = ready_pipeline(["tagger"], shared=False, n=20, sgd=optimizer)
        for _ in range(3):
            nlp.update(examples, sgd=optimizer)
        nlp.get_pipe("tagger").initialize(lambda: examples, nlp=nlp)  # noqa: B023  (called at once)
        nlp.update(examples, sgd=optimizer)
        counts.append(sorted(optimizer.nr_update.values()))
        if isinstance(optimizer, TorchOptimizer):
            assert set(updates_of(optimizer).values()) == {4}
            nlp.get_pipe("tagger").initialize(lambda: examples, nlp=nlp)  # noqa: B023  (called at once)
            optimizer.freeze(["tagger/*"])
            optimizer.unfreeze(["tagger/*"])
            assert set(updates_of(optimizer).values()) == {0} and not optimizer.averages
    assert counts[0] == counts[1]


@pytest.mark.parametrize("swap", ["copy", "same"])
def test_succession_averages_of_buffers_go_on_in_a_copy(swap):
    """The oracle: the same training without a copy."""
    ends = []
    for copies in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
        nlp, optimizer = begun(tagger=PyTorchWrapper(module))
        train(nlp, optimizer, 3)
        if copies:
            pipe = nlp.get_pipe("tagger")
            # Or another wrapper around the same module.
            pipe.model = pipe.model.copy() if swap == "copy" else PyTorchWrapper(module)
        seen = []
        for step in range(3):
            averages = optimizer.state_dict()["averages"]
            seen.append((averages["taken"], averages["module_steps"], snapshot(averages["tensors"].values())))
            train(nlp, optimizer, 1, begin=3 + step)
        assert len(seen[0][2]) == 8 and set(seen[0][0].values()) == {3}
        with nlp.use_params(optimizer.averages):
            in_use = nlp.get_pipe("tagger").model.shims[0]._model.state_dict()
            ends.append((seen, {name: value.clone() for name, value in in_use.items()}))
    (before, evaluated), (after, evaluated_copy) = ends
    for (taken, steps, tensors), (taken_copy, steps_copy, tensors_copy) in zip(before, after):
        assert taken == taken_copy and steps == steps_copy and same(tensors, tensors_copy)
    assert evaluated.keys() == evaluated_copy.keys()
    assert all(torch.equal(value, evaluated_copy[name]) for name, value in evaluated.items())


def test_succession_averages_follow_the_buffers_of_a_fresh_part():
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4))
    model = PyTorchWrapper(torch.nn.Sequential(module, torch.nn.Linear(4, 3)))
    nlp, optimizer = begun(tagger=model)
    train(nlp, optimizer, 3)
    module[1] = torch.nn.BatchNorm1d(4)
    train(nlp, optimizer, 1)
    taken = {
        name.rpartition("/")[2]: n
        for name, n in optimizer.state_dict()["averages"]["taken"].items()
        if "buffer" in name
    }
    assert taken == {"0.1.running_mean": 1, "0.1.running_var": 1, "0.2.running_mean": 4, "0.2.running_var": 4}
    averages = optimizer.state_dict()["averages"]["tensors"]
    [mean] = [tensor for name, tensor in averages.items() if name.endswith("0.1.running_mean")]
    assert torch.equal(mean, module[1].running_mean)


@pytest.mark.parametrize("component", ["tagger", "ner", "parser"])
@pytest.mark.parametrize("also_copied", [False, True])
def test_succession_replaced_listeners_have_the_names_of_the_saved_pipeline(component, also_copied, tmp_path):
    """The copy of the tok2vec has no refs, after which its layers are named; that of a loaded pipeline has."""
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    nlp, examples = ready_pipeline([component], n=40, sgd=optimizer)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    nlp.replace_listeners("tok2vec", component, ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    if also_copied:
        nlp.get_pipe(component).model = nlp.get_pipe(component).model.copy()
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    optimizer.to_disk(tmp_path / "optimizer")
    nlp.to_disk(tmp_path / "pipeline")
    loaded = spacy.load(tmp_path / "pipeline")
    other = optimizer_for(loaded, AdamW(), 0.01, use_averages=True)
    other.from_disk(tmp_path / "optimizer")
    assert updates_of(other) == updates_of(optimizer)
    assert groups_below(other, f"{component}/tok2vec/embed") == {"new"}
    assert {n for name, n in updates_of(other).items() if name.startswith(f"{component}/tok2vec/embed")} == {2}


def test_succession_a_copy_has_not_grown():
    """`on_growth = "reset"` is about params that have."""
    nlp = pipeline_of(tagger=thinc_model())
    optimizer = optimizer_for(nlp, AdamW(), 0.01, use_averages=True, on_growth="reset")
    train(nlp, optimizer, 3)
    set_model(nlp, nlp.get_pipe("tagger").model.copy())
    train(nlp, optimizer, 1)
    assert set(updates_of(optimizer).values()) == {4}


@pytest.mark.parametrize("change", ["fresh layer", "fresh model", "reset"])
def test_succession_what_begins_anew_is_saved_also_before_its_first_update(change):
    """Else the state could not be loaded: it would lack params of the pipeline."""

    def optimizer_of(nlp):
        return optimizer_for(nlp, AdamW(), 0.1, on_growth="reset")

    nlp = toy_pipeline(["tagger"], shared=False)
    tagger = nlp.get_pipe("tagger")
    tagger.model = chain(Linear(4, 5), Linear(3, 4)).initialize()
    optimizer = optimizer_of(nlp)
    for node in tagger.model.layers:
        node.set_grad("W", numpy.ones_like(node.get_param("W")))
        node.set_grad("b", numpy.ones_like(node.get_param("b")))
    tagger.model.finish_update(optimizer)
    old = tagger.model.layers[1]
    if change == "fresh model":
        tagger.model = chain(Linear(4, 5), Linear(3, 4)).initialize()
    else:
        new = tagger.model._layers[1] = Linear(4 if change == "reset" else 3, 4).initialize()
        if change == "reset":  # as add_label does it
            for name in ("W", "b"):
                new.get_param(name)[:3] = old.get_param(name)
    saved = optimizer.state_dict()
    expected = {"linear-0": 0 if change == "fresh model" else 1, "linear-1": 0}
    found = {name: param["updates"] for name, param in saved["params"].items()}
    assert found == {f"tagger/{layer}/{name}": count for layer, count in expected.items() for name in ("W", "b")}
    optimizer_of(nlp).load_state_dict(saved)
