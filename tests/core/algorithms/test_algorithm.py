"""Oracle: the library pytorch-optimizer in a bare loop, fed with the same gradients, and its own `eval()` and
`train()`.
"""

import random
from contextlib import nullcontext

import numpy
import pytest
import spacy
import torch
from spacy.util import registry
from thinc.api import Linear, decaying

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.algorithm import Algorithm
from thinc_torchopt.core.algorithms.torch_classes import create
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.errors import ConfigError, NonFiniteGradWarning
from thinc_torchopt.core.labels import add_labels
from thinc_torchopt.core.params.names import walk
from thinc_torchopt.core.params.pipeline import components_with_model
from thinc_torchopt.core.state.files import read_folder

from ...models import backprop, grads_of, mixed_model, optimizer_for, params_of, same, toy_examples, toy_pipeline
from ...runs import config_for, digests, run

library = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")

SCHEDULE_FREE = ["schedulefreeadamw", "schedulefreeradam", "schedulefreesgd", "splus"]


def beside_the_library(name, options, *, steps=12, after=lambda step, optimizer, model, bare, params: None, **settings):
    """Train a model with ours; give each step's gradients to the library too, with options in its param group. `after`
    each step.
    """
    spacy.util.fix_random_seed(0)
    optimizer, model = TorchOptimizer(create(name, options), 0.01, grad_clip=0.0, **settings), mixed_model()
    params = [torch.nn.Parameter(value) for value in params_of(model)]
    bare = library.load_optimizer(name)([{"params": params, **options}], lr=0.01)
    rng = numpy.random.default_rng(0)
    for step in range(steps):
        backprop(model, rng)
        for param, grad in zip(params, grads_of(model)):
            param.grad = grad
        generator = torch.get_rng_state()
        bare.step()
        torch.set_rng_state(generator)
        model.finish_update(optimizer)
        after(step, optimizer, model, bare, params)
    return params_of(model), [param.detach() for param in params]


@pytest.mark.parametrize(
    "name, said",
    [
        ("a2grad", "with a learning rate"),
        ("magma", "it wraps another optimizer"),
        ("asgd", "found one that changes lr, theta"),
        ("grokfastadamw", "found one that changes lr"),
        ("adashift", r"'grad_queue'\]: expected .*, found deque"),
        ("scalableshampoo", "found PreConditioner"),
        ("galore", "objects that can't be saved"),
        ("adabound", "fixed order of param groups"),
    ],
)
def test_algorithm_that_cannot_be_driven_is_refused_by_the_config(name, said):
    with pytest.raises(ConfigError, match=rf"\({name}\)' in \[training\.optimizer\.algorithm\].*{said}"):
        create(name)


# ---------------------------------------------------------------------- options that the class does not name


@pytest.mark.parametrize(
    "name, options",
    [
        ("lion", {"cautious": True}),
        ("lion", {"use_gc": True}),
        ("adabelief", {"adam_debias": True}),
        ("adabelief", {"adanorm": True}),
    ],
)
def test_algorithm_takes_the_options_that_it_reads_from_its_groups(name, options):
    ours, theirs = beside_the_library(name, options)
    without, _ = beside_the_library(name, {})
    assert same(ours, theirs) and not same(ours, without)


def test_algorithm_takes_such_options_by_group():
    """A step of Lion is the same for all cells; a cautious one leaves out some."""
    nlp = toy_pipeline(["tagger"], shared=False)
    groups = {"head": {"params": ["tagger/output_layer/*"], "cautious": True}}
    found = []
    for blocks in ({}, groups):
        spacy.util.fix_random_seed(0)
        optimizer = TorchOptimizer(create("lion", {"cautious": False}), 0.01, param_groups=blocks)
        nlp.initialize(lambda: toy_examples(nlp), sgd=optimizer)
        optimizer.initialize(nlp)
        for _ in range(3):
            nlp.update(toy_examples(nlp), sgd=optimizer)
        found.append({name: tensor.clone() for name, tensor in optimizer.params.items()})
    plain, cautious = found
    assert {name for name in plain if not torch.equal(plain[name], cautious[name])} >= {"tagger/output_layer/W"}
    entries = optimizer.torch_optimizers["algorithm"].param_groups
    assert {entry["cautious"] for entry in entries} == {True, False}


@pytest.mark.parametrize(
    "name, options, said",
    [
        ("lion", {"cautios": True}, r"no option cautios\. It has: .*cautious.*use_gc"),
        ("sgdw", {"adam_debias": True}, "no option adam_debias"),
        # The library puts it into the group, and never reads it.
        ("schedulefreeadamw", {"use_palm": True}, "no option use_palm"),
    ],
)
def test_algorithm_refuses_options_that_it_does_not_read(name, options, said):
    with pytest.raises(ConfigError, match=said):
        create(name, options)


class Drawing(torch.optim.SGD):
    def step(self, closure=None):
        numbers = random.random(), numpy.random.rand(), torch.rand(1)
        for group in self.param_groups:
            self.seen = numbers, group.get("one"), "two" in group
        return super().step()


def test_algorithm_is_tried_out_without_a_trace():
    spacy.util.fix_random_seed(0)
    expected = random.random(), numpy.random.rand(), torch.rand(1)
    spacy.util.fix_random_seed(0)
    assert {"one", "two"} <= Algorithm("drawing", Drawing, {}).trial.reads
    assert (random.random(), numpy.random.rand(), torch.rand(1)) == expected


# ---------------------------------------------------------------------- values for evaluation, beside the trained ones


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_algorithm_that_averages_is_evaluated_in_its_own_form(name):
    def compare(step, optimizer, model, bare, params):
        if step % 3 != 1:
            return
        trained = params_of(model)
        with model.use_params(optimizer.averages):
            bare.eval()
            assert same(params_of(model), [param.detach() for param in params])
            assert step < 7 or not same(params_of(model), trained)  # RAdam does not move at first
            for param, value in zip(params, trained):
                param.data = value.clone()  # train() computes them back, which is not to the last bit
            for group in bare.param_groups:
                group["train_mode"] = True
            for state in bare.state.values():
                state.pop("param_buffer", None)
        assert same(params_of(model), trained)

    ours, theirs = beside_the_library(name, {}, after=compare)
    assert same(ours, theirs) and same(ours, beside_the_library(name, {})[0])


def test_algorithm_that_averages_leaves_params_without_updates_alone():
    nlp = toy_pipeline(["tagger", "ner"], shared=False)
    optimizer = TorchOptimizer(create("splus"), 0.01)
    nlp.initialize(lambda: toy_examples(nlp), sgd=optimizer)
    optimizer.initialize(nlp)
    nlp.get_pipe("tagger").update(toy_examples(nlp), sgd=optimizer)
    ner, tagger = (params_of(nlp.get_pipe(name).model) for name in ("ner", "tagger"))
    with nlp.use_params(optimizer.averages):
        assert same(params_of(nlp.get_pipe("ner").model), ner) and not same(
            params_of(nlp.get_pipe("tagger").model), tagger
        )


@pytest.mark.parametrize("averages", [{"use_averages": True}, {"averages": EMA()}])
def test_algorithm_that_averages_refuses_averages(averages):
    with pytest.raises(ConfigError, match=r"schedulefreeadamw.*averages by itself"):
        TorchOptimizer(create("schedulefreeadamw"), **averages)


def test_algorithm_that_averages_in_spacy_train(corpus, tmp_path):
    """On disk are the values that are to be used, in a checkpoint those that are trained. A run that goes on is the one
    never stopped.
    """
    seen = []

    @registry.callbacks("test-algorithm.Seen.v1")
    def before_to_disk():
        return lambda nlp: (seen.append(nlp.get_pipe("tagger").model.to_bytes()), nlp)[1]

    changes = {
        "training__optimizer__algorithm": {
            "@torch_optimizers": "pytorch-optimizer.create.v1",
            "name": "schedulefreeadamw",
        }
    }
    changes["training__optimizer__use_averages"] = False
    changes["training__before_to_disk"] = {"@callbacks": "test-algorithm.Seen.v1"}
    infos = run(config_for(tmp_path / "whole", corpus, steps=6, **changes), tmp_path / "whole")
    config = config_for(tmp_path / "parts", corpus, steps=6, **changes)
    before = run(config, tmp_path / "parts", crash_at=5)
    assert {**before, **run(config, tmp_path / "parts")} == infos
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")
    state = read_folder(max((tmp_path / "whole" / "state").glob("step-*")))
    trained, of_params = state["model"]["params"], state["optimizer"]["params"]
    saved = spacy.load(tmp_path / "whole" / "model-last")
    assert saved.get_pipe("tagger").model.to_bytes() == seen[-1]  # the callback sees what is saved
    found = {found.name: found for name, model in components_with_model(saved) for found in walk(model, name)}
    assert trained.keys() <= found.keys() and "tagger/output_layer/W" in trained
    moved = 0
    for name, value in trained.items():
        values = torch.as_tensor(value).clone()
        if "z" in of_params[name]["state"]:
            values.lerp_(torch.as_tensor(of_params[name]["state"]["z"]), 1.0 - 1.0 / 0.9)  # ScheduleFreeAdamW.eval()
        there = found[name].owner.get_param(name.rpartition("/")[2])
        assert numpy.array_equal(there, values.numpy()), name
        moved += not numpy.array_equal(there, value)
    assert moved > 5


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_algorithm_that_averages_is_evaluated_inside_of_an_evaluation(name):
    """The values that a torch module has inside a block are not taken for the trained ones."""
    spacy.util.fix_random_seed(0)
    optimizer, model = TorchOptimizer(create(name), 0.01), mixed_model()
    rng = numpy.random.default_rng(0)
    for _ in range(8):
        backprop(model, rng)
        model.finish_update(optimizer)
    trained, outer = params_of(model), optimizer.averages
    with model.use_params(outer):
        evaluated = params_of(model)
        for averages in (optimizer.averages, outer):
            with model.use_params(averages):
                assert same(params_of(model), evaluated)
            assert same(params_of(model), evaluated)
    assert same(params_of(model), trained) and not same(evaluated, trained)
    with model.use_params(optimizer.averages):  # and again
        assert same(params_of(model), evaluated)


def test_algorithm_that_averages_skips_what_the_guard_skips():
    """A skipped update leaves no trace in the averages."""

    def skip(step, optimizer, model, bare, params):
        if step % 3 == 1:
            model.layers[0].inc_grad("b", numpy.full(5, numpy.nan, dtype="f"))
            with pytest.warns(NonFiniteGradWarning) if step == 1 else nullcontext():  # it warns once
                model.finish_update(optimizer)
        with model.use_params(optimizer.averages):
            for param, value in zip(params, params_of(model)):
                expected = param.detach().lerp(bare.state[param]["z"], weight=1.0 - 1.0 / 0.9)
                assert torch.equal(value, expected)

    ours, theirs = beside_the_library("schedulefreeadamw", {}, after=skip, max_nonfinite=3)
    assert same(ours, theirs)


def test_algorithm_that_averages_after_its_labels_grew():
    """Old cells are evaluated as before. A new one has no average yet: it is evaluated as it is."""
    nlp = toy_pipeline(["tagger"], shared=False)
    optimizer = TorchOptimizer(create("schedulefreeadamw"), 0.01)
    nlp.initialize(lambda: toy_examples(nlp), sgd=optimizer)
    optimizer.initialize(nlp)
    for _ in range(4):
        nlp.update(toy_examples(nlp), sgd=optimizer)
    tagger = nlp.get_pipe("tagger")

    def output(*, evaluated):
        with nlp.use_params(optimizer.averages if evaluated else {}):
            return tagger.model.get_ref("output_layer").get_param("W").copy()

    before, labels = output(evaluated=True), len(tagger.labels)
    add_labels(nlp, "tagger", ["NEW"])
    optimizer.initialize(nlp)
    after = output(evaluated=True)
    assert len(after) == labels + 1 and numpy.array_equal(after[:labels], before)
    assert numpy.array_equal(after[labels:], output(evaluated=False)[labels:])
    for _ in range(2):
        nlp.update(toy_examples(nlp), sgd=optimizer)
    state = optimizer.state_dict()["params"]["tagger/output_layer/W"]["state"]
    expected = torch.from_numpy(output(evaluated=False)).lerp(state["z"], weight=1.0 - 1.0 / 0.9)
    assert numpy.array_equal(output(evaluated=True), expected.numpy())


@pytest.mark.parametrize(
    "name, options",
    [
        ("schedulefreeadamw", {"betas": [decaying(0.9, 1e-4), 0.999]}),
        ("schedulefreesgd", {"momentum": decaying(0.9, 1e-4)}),
    ],
)
def test_algorithm_that_averages_refuses_a_schedule_of_what_it_averages_by(name, options):
    create(name, {"weight_decay": decaying(0.9, 1e-4)})
    with pytest.raises(ConfigError, match=r"to a schedule: .* computes averages of the weights"):
        create(name, options)


# ---------------------------------------------------------------------- values of a whole group


def beside_one_each(name, rates, options, updated, *, steps=30):
    """Two layers, trained by one optimizer of ours, each with its block; and by one of the library for each.

    updated (Callable): The layers that are updated at a step.
    """
    nlp = toy_pipeline(PIPES, shared=False)
    for seed, pipe in enumerate(PIPES):
        spacy.util.fix_random_seed(seed)
        nlp.get_pipe(pipe).model = Linear(3 + seed, 5).initialize()
    models = [nlp.get_pipe(pipe).model for pipe in PIPES]
    blocks = {
        pipe: {"params": [f"{pipe}/*"], "learn_rate": rate, **own} for pipe, rate, own in zip(PIPES, rates, options)
    }
    alike = rates[0] == rates[1] and options[0] == options[1]
    optimizer = optimizer_for(nlp, create(name), rates[0], grad_clip=0.0, param_groups={} if alike else blocks)
    cls = library.load_optimizer(name)
    params = [[torch.nn.Parameter(value) for value in params_of(model)] for model in models]
    bare = [cls(of_one, lr=rate, **own) for of_one, rate, own in zip(params, rates, options)]
    rng = numpy.random.default_rng(0)
    for step in range(steps):
        for i, is_alone in updated(step):
            backprop(models[i], rng)
            for param, grad in zip(params[i], grads_of(models[i])):
                param.grad = grad
            bare[i].step()
            if is_alone:
                models[i].finish_update(optimizer)
        if not all(is_alone for _, is_alone in updated(step)):
            with optimizer.joint_step():
                for i, _ in updated(step):
                    models[i].finish_update(optimizer)
    with nlp.use_params(optimizer.averages):
        ours = [params_of(model) for model in models]
    for one in bare:
        if hasattr(one, "eval"):
            one.eval()
    return ours, [[param.detach() for param in of_one] for of_one in params]


PIPES = ("tagger", "morphologizer")
WITH_VALUES = ["schedulefreeadamw", "schedulefreeradam", "schedulefreesgd", "prodigy", "dadaptadam", "dadaptlion"]


@pytest.mark.parametrize("name", WITH_VALUES)
@pytest.mark.parametrize(
    "updated",
    [
        lambda step: [(0, True), (1, True)],  # as in `nlp.update(..., sgd=optimizer)`
        lambda step: [(0, False), *([(1, False)] if step >= 10 else [])],  # the second is late
        lambda step: [(step % 2, False)] if step < 10 else [(0, False), (1, False)],  # by turns, and then together
    ],
)
def test_algorithm_keeps_values_of_groups_for_what_is_updated_together(name, updated):
    """A weight of all steps so far, or the size of steps that is found, is not that of other params."""
    rate = 1.0 if "ada" in name or name == "prodigy" else 0.01
    ours, theirs = beside_one_each(name, [rate, rate], [{}, {}], updated)
    assert all(same(*both) for both in zip(ours, theirs))


@pytest.mark.parametrize("name", ["prodigy", "dadaptadam"])
@pytest.mark.parametrize(
    "rates, options", [([1.0, 0.1], [{}, {}]), ([1.0, 1.0], [{}, {"betas": (0.8, 0.99)}]), ([0.1, 1.0], [{}, {}])]
)
def test_algorithm_that_finds_its_rate_uses_the_rates_and_options_of_each_group(name, rates, options):
    """The library's class takes those of its first group for all."""
    ours, theirs = beside_one_each(name, rates, options, lambda step: [(0, False), (1, False)])
    assert all(same(*both) for both in zip(ours, theirs))


def test_algorithm_that_finds_its_rate_finds_one_for_groups_that_differ_in_weight_decay():
    """As the library's class. Biases without decay would find another one."""
    decays = ({"params": ["*/W"], "weight_decay": 0.1}, {"params": ["*/b"], "weight_decay": 0.0})
    nlp = toy_pipeline(["tagger"], shared=False)
    model = nlp.get_pipe("tagger").model = Linear(3, 5).initialize()
    optimizer = optimizer_for(nlp, create("prodigy"), 1.0, grad_clip=0.0, param_groups=dict(zip("ab", decays)))
    params = [torch.nn.Parameter(value) for value in params_of(model)]
    groups = [{"params": [param], "weight_decay": own["weight_decay"]} for param, own in zip(params, decays)]
    bare = library.Prodigy(groups, lr=1.0)
    rng = numpy.random.default_rng(0)
    for _ in range(30):
        backprop(model, rng)
        for param, grad in zip(params, grads_of(model)):
            param.grad = grad
        bare.step()
        model.finish_update(optimizer)
    assert same(params_of(model), [param.detach() for param in params])
    [found] = {group["d"] for group in optimizer.torch_optimizers["algorithm"].param_groups}
    assert found == bare.param_groups[0]["d"] > 1e-6
