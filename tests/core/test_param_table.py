"""Which params there are: shared ones answer to all their names, and another pipeline's inherit nothing."""

import copy
import gc
import sys
import weakref

import numpy
import pytest
import torch
from thinc.api import Linear, PyTorchWrapper, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW, Muon
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.params.pipeline import all_names

from ..conftest import needs_muon
from ..models import (
    optimizer_for,
    params_of,
    pipeline_of,
    pipeline_params,
    ready_pipeline,
    same,
    toy_examples,
    toy_pipeline,
)


def shared_pipeline(shared):
    """Components c and d, whose models hold one and the same layer below another one each."""
    nlp = toy_pipeline(["tagger", "morphologizer"], shared=False)
    for name, new in (("tagger", "c"), ("morphologizer", "d")):
        nlp.get_pipe(name).model = chain(Linear(5, 5).initialize(), shared, Linear(2, 3).initialize())
        nlp.rename_pipe(name, new)
    return nlp


def train(nlp, optimizer, n=3):
    for step in range(n):
        with optimizer.joint_step():
            for i, (_, proc) in enumerate(nlp.pipeline):
                X = numpy.random.default_rng(10 * step + i).normal(size=(7, 5)).astype("f")
                Y, back = proc.model.begin_update(X)
                back(Y)
                proc.model.finish_update(optimizer)


SHARED = {"torch": lambda: PyTorchWrapper(torch.nn.Linear(5, 3)), "thinc": lambda: Linear(3, 5).initialize()}


@pytest.mark.parametrize("component", ["c", "d"])
@pytest.mark.parametrize("kind", SHARED)
def test_param_table_shared_params_answer_to_all_their_names(kind, component):
    layer = SHARED[kind]()
    nlp = shared_pipeline(layer)
    pattern = f"{component}/pytorch/*" if kind == "torch" else f"{component}/linear-1/*"
    optimizer = optimizer_for(nlp, SGD(), 0.1, param_groups={"still": {"params": [pattern], "freeze": True}})
    before, others = params_of(layer), params_of(nlp.get_pipe("c").model.layers[0])
    train(nlp, optimizer)
    assert same(before, params_of(layer)) and not same(others, params_of(nlp.get_pipe("c").model.layers[0]))
    assert [info.group for info in optimizer.describe()].count("still") == 2


def test_param_table_shared_params_follow_the_last_block_that_matches_any_name():
    layer = SHARED["torch"]()
    nlp = shared_pipeline(layer)
    blocks = {"one": {"params": ["d/pytorch/*"], "learn_rate": 0.5}, "two": {"params": ["c/*"], "learn_rate": 0.25}}
    optimizer = optimizer_for(nlp, SGD(), 0.1, param_groups=blocks)
    groups = {info.name: (info.group, info.learn_rate) for info in optimizer.describe()}
    assert groups["c/pytorch/weight"] == ("one+two", 0.25) and groups["c/linear-0/W"] == ("two", 0.25)
    assert groups["d/linear-0/W"] == ("default", 0.1)
    # When its first name goes, it is known by the other one, and by that alone.
    nlp.remove_pipe("c")
    optimizer.introduce(nlp)
    groups = {info.name: (info.group, info.learn_rate) for info in optimizer.describe()}
    assert groups["d/pytorch/weight"] == ("one", 0.5) and "c/pytorch/weight" not in groups


@needs_muon
def test_param_table_tied_params_of_a_module_answer_to_all_their_names():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embeddings = torch.nn.Linear(5, 5, bias=False)
            self.decoder = torch.nn.Linear(5, 5)
            self.decoder.weight = self.embeddings.weight

        def forward(self, X):
            return self.decoder(self.embeddings(X))

    nlp = pipeline_of(tagger=PyTorchWrapper(module := Tied()))
    settings = {"param_groups": {"still": {"params": ["tagger/*decoder/weight"], "freeze": True}}}
    optimizer = optimizer_for(nlp, AdamW(), 0.1, **settings)
    before = module.embeddings.weight.detach().clone()
    train(nlp, optimizer)
    assert torch.equal(before, module.embeddings.weight)
    assert sorted(optimizer.params) == ["tagger/decoder/bias"]
    # And to the algorithm of a block: an output layer that is tied to the embeddings is no matter for Muon.
    head = {"params": ["*/decoder/*"], "algorithm": AdamW()}
    optimizer = optimizer_for(nlp, Muon(), 0.1, param_groups={"head": head})
    assert {info.name: info.algorithm for info in optimizer.describe()}["tagger/embeddings/weight"] == "torch.AdamW.v1"


def test_param_table_a_shared_param_stays_trained_when_one_of_its_components_is_frozen():
    """[training] frozen_components names one of two components that share a layer: the other one trains it, and its
    state stays.
    """
    layer = SHARED["torch"]()
    nlp = shared_pipeline(layer)
    optimizer = optimizer_for(nlp, AdamW(), 0.1, exclude=["d"])
    shared, alone = params_of(layer), params_of(nlp.get_pipe("d").model.layers[0])
    train(nlp, optimizer, 2)
    assert same(alone, params_of(nlp.get_pipe("d").model.layers[0])) and not same(shared, params_of(layer))
    moment = optimizer.torch_optimizers["algorithm"].state[layer.shims[0]._model.weight]["exp_avg"]
    optimizer.initialize(nlp, exclude=["d"])
    assert (
        optimizer.torch_optimizers["algorithm"].state[layer.shims[0]._model.weight]["exp_avg"] is moment
        and moment.any()
    )


@pytest.mark.parametrize("change", ["insert", "remove", "swap"])
@pytest.mark.parametrize("kind", ["thinc", "torch"])
def test_param_table_names_follow_layers_that_are_moved(kind, change):
    """At the next update. The oracle: a run that saves its state before, which looks at all names."""

    def run(*, saves):
        torch.manual_seed(0)
        numpy.random.seed(0)
        layers = [torch.nn.Linear(5, 5) if kind == "torch" else Linear(5, 5).initialize() for _ in range(4)]
        new = layers.pop()
        model = PyTorchWrapper(torch.nn.Sequential(*layers)) if kind == "torch" else chain(*layers)
        parts = model.shims[0]._model if kind == "torch" else model.layers
        nlp = pipeline_of(tagger=model)
        first = {"params": ["tagger/0/*" if kind == "torch" else "tagger/linear-0/*"], "lr_scale": 0.5}
        optimizer = optimizer_for(nlp, AdamW(), 0.1, use_averages=True, param_groups={"first": first})
        train(nlp, optimizer)
        if change == "insert":
            parts.insert(0, new)
        elif change == "remove":
            del parts[0]
        else:
            parts[0], parts[1] = parts[1], parts[0]
        if saves:
            optimizer.state_dict()
        train(nlp, optimizer)
        return params_of(model), {info.name: info for info in optimizer.describe()}

    (params, infos), (expected, _) = run(saves=False), run(saves=True)
    assert same(params, expected)
    groups = {name.split("/")[1]: (info.group, info.updates) for name, info in infos.items()}
    begin = ("first+new", 3) if change == "insert" else ("first", 6)
    assert [groups[layer] for layer in sorted(groups)] == [begin, *[("default", 6)] * (len(groups) - 1)]


@pytest.mark.parametrize("forget_the_first", [True, False])
def test_param_table_another_pipeline_inherits_nothing(forget_the_first):
    """Cross-validation: one optimizer, and a fresh pipeline for each fold. The oracle: an optimizer of its own for the
    second.
    """

    def fold(optimizer, nlp):
        nlp.initialize(lambda: examples, sgd=optimizer)
        for _ in range(4):
            nlp.update(examples, sgd=optimizer)

    examples = toy_examples(toy_pipeline(["tagger"]))
    settings = {"use_averages": True, "spike_factor": 5.0}
    shared, own = (TorchOptimizer(AdamW(), 0.01, **settings) for _ in range(2))
    first, second, twin = (toy_pipeline(["tagger"]) for _ in range(3))
    fold(shared, first)
    if forget_the_first:
        del first
        gc.collect()
    numpy.random.seed(1)
    fold(shared, second)
    numpy.random.seed(1)
    fold(own, twin)
    assert sorted(shared.nr_update.values()) == sorted(own.nr_update.values()) and max(shared.nr_update.values()) == 4
    found, expected = pipeline_params(second), pipeline_params(twin)
    assert all(same(found[name], expected[name]) for name in expected)
    with second.use_params(shared.averages), twin.use_params(own.averages):
        found, expected = pipeline_params(second), pipeline_params(twin)
        assert all(same(found[name], expected[name]) for name in expected)
    assert shared.state_dict()["learn_rates"]["step_count"] == own.state_dict()["learn_rates"]["step_count"]


@pytest.mark.parametrize("patterns, raises", [({"tagger/*": 0.0}, True), (None, False)])
def test_param_table_patterns_do_not_apply_to_params_of_an_earlier_pipeline(patterns, raises):
    """Two pipelines take turns with one optimizer. Settings by name would hold for the last one only."""
    optimizer = TorchOptimizer(AdamW(), 0.01, per_param_lr=patterns)
    first, second = (toy_pipeline(["tagger"], shared=False) for _ in range(2))
    examples = toy_examples(first)
    for nlp in (first, second):
        nlp.initialize(lambda: examples, sgd=optimizer)
    before = params_of(first.get_pipe("tagger").model)
    if raises:
        with pytest.raises(
            ConfigError, match=r"per_param_lr.* pipeline that .* knows, found 18 of another model, such"
        ):
            first.update(examples, sgd=optimizer)
        second.update(examples, sgd=optimizer)
    else:
        first.update(examples, sgd=optimizer)
    assert same(before, params_of(first.get_pipe("tagger").model)) == raises


def test_param_table_an_id_that_is_used_again_is_another_param():
    """A frozen torch param that is gone leaves its `id`, under which there was a name, to whoever comes next."""
    nlp = toy_pipeline(["tagger", "morphologizer"], shared=False)
    old, wanted = torch.nn.Linear(2, 2, bias=False).requires_grad_(False), None
    nlp.get_pipe("tagger").model = PyTorchWrapper(torch.nn.Linear(5, 3))
    nlp.get_pipe("morphologizer").model = PyTorchWrapper(old)
    settings = {"param_groups": {"tags": {"params": ["tagger/*"], "learn_rate": 0.0}}}
    optimizer = optimizer_for(nlp, SGD(), 0.5, **settings)
    address = id(old.weight)
    nlp.get_pipe("morphologizer").model = Linear(1, 1).initialize()
    del old
    gc.collect()
    kept = []
    for _ in range(10_000):
        if id(param := torch.nn.Parameter(torch.ones(3, 5))) == address:
            wanted = param
            break
        kept.append(param)
    if wanted is None:
        pytest.skip("Python did not use the id again")
    module = nlp.get_pipe("tagger").model.shims[0]._model
    module.weight = wanted
    wanted.grad = torch.ones(3, 5)
    nlp.get_pipe("tagger").model.finish_update(optimizer)
    assert torch.equal(wanted.data, torch.ones(3, 5))  # its name is the tagger's, and so is its rate
    assert optimizer.learn_rates["tags"] == 0.0


@pytest.mark.parametrize("component", ["tagger", "ner", "textcat", "parser", "spancat"])
def test_param_table_a_copied_model_keeps_names_settings_and_state(component):
    """thinc's `Model.copy` does not copy refs, by which spaCy's layers are named. What is frozen stays frozen."""
    frozen = {"still": {"params": ["re:(hashembed|/E$)"], "freeze": True}}
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True, param_groups=frozen)
    nlp, examples = ready_pipeline([component], shared=False, n=40, sgd=optimizer)
    optimizer.initialize(nlp)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    names, before = sorted(info.name for info in optimizer.describe()), sorted(optimizer.nr_update.values())
    pipe, inner = nlp.get_pipe(component), optimizer.torch_optimizers["algorithm"]
    earlier = [weakref.ref(tensor) for group in inner.param_groups for tensor in group["params"]]
    pipe.model = pipe.model.copy()
    embedded = {node.id: node.get_param("E").copy() for node in pipe.model.walk() if node.has_param("E") is True}
    nlp.update(examples, sgd=optimizer)
    gc.collect()
    assert not any(tensor() is not None for tensor in earlier)
    assert sorted(info.name for info in optimizer.describe()) == names
    assert sorted(optimizer.nr_update.values()) == [count + 1 if count else 0 for count in before]
    for node in pipe.model.walk():
        if node.id in embedded:
            assert numpy.array_equal(node.get_param("E"), embedded[node.id])
    assert embedded
    pipe.model = pipe.model.copy()  # a copy of the copy
    with nlp.use_params(optimizer.averages):
        pass
    assert sorted(info.name for info in optimizer.describe()) == names


def test_param_table_a_deep_copy_of_a_copied_model_keeps_names():
    """Also when the one that it is from is gone."""
    nlp = toy_pipeline(["tagger", "ner"], shared=False)
    names = sorted(all_names(nlp))
    for name in ("tagger", "ner"):
        nlp.get_pipe(name).model = nlp.get_pipe(name).model.copy()
    copied = copy.deepcopy([nlp.get_pipe(name).model for name in ("tagger", "ner")])
    for name, model in zip(("tagger", "ner"), copied):
        nlp.get_pipe(name).model = model
    gc.collect()
    assert sorted(all_names(nlp)) == names


def test_param_table_copies_leave_nothing_behind():
    """A server copies models as long as it lives."""
    model = toy_pipeline(["parser"], shared=False).get_pipe("parser").model

    def blocks_after(n_copies):
        for _ in range(n_copies):
            model.copy()
        gc.collect()
        return sys.getallocatedblocks()

    blocks_after(40)  # Python's own caches
    before = blocks_after(1)
    assert blocks_after(30) - before < 100  # eleven for each copy, if the names of its refs stayed


def test_param_table_new_weights_begin_anew():
    """`nlp.initialize` once more, on the same pipeline: as cross-validation may do it, too."""
    nlp = toy_pipeline(["tagger"], shared=False)
    examples = toy_examples(nlp)
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    for _ in range(2):
        nlp.initialize(lambda: examples, sgd=optimizer)
        assert optimizer.averages == {} and set(optimizer.nr_update.values()) == {0}
        for _ in range(3):
            nlp.update(examples, sgd=optimizer)
        assert set(optimizer.nr_update.values()) == {3}
