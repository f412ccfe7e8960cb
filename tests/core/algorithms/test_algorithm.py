"""Oracle: the library pytorch-optimizer in a bare loop, fed with the same gradients, and its own `eval()` and
`train()`.
"""

import numpy
import pytest
import spacy
import torch

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.pytorch_optimizer import create
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.params.names import walk
from thinc_torchopt.core.params.pipeline import components_with_model
from thinc_torchopt.core.state.files import read_folder

from ...models import backprop, grads_of, mixed_model, params_of, same, toy_examples, toy_pipeline
from ...runs import config_for, digests, run

library = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")

SCHEDULE_FREE = ["schedulefreeadamw", "schedulefreeradam", "schedulefreesgd", "splus"]


def beside_the_library(name, options, *, steps=12, after=lambda step, optimizer, model, bare, params: None):
    """Train a model with ours; give each step's gradients to the library too, with options in its param group. `after`
    each step.
    """
    spacy.util.fix_random_seed(0)
    optimizer, model = TorchOptimizer(create(name, options), 0.01, grad_clip=0.0), mixed_model()
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
        ("adabound", "by their place"),
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
        (
            "schedulefreeadamw",
            {"use_palm": True},
            "no option use_palm",
        ),  # the library puts it into the group, and never reads it
    ],
)
def test_algorithm_refuses_options_that_it_does_not_read(name, options, said):
    with pytest.raises(ConfigError, match=said):
        create(name, options)


def test_algorithm_is_tried_out_without_a_trace():
    """The library's Kron draws from NumPy's random numbers, SPAM from torch's."""
    import random

    spacy.util.fix_random_seed(0)
    expected = random.random(), numpy.random.rand(), torch.rand(1)
    spacy.util.fix_random_seed(0)
    for name in ("kron", "spam"):
        create(name)
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
    changes = {
        "training__optimizer__algorithm": {
            "@torch_optimizers": "pytorch-optimizer.create.v1",
            "name": "schedulefreeadamw",
        }
    }
    changes["training__optimizer__use_averages"] = False
    infos = run(config_for(tmp_path / "whole", corpus, steps=6, **changes), tmp_path / "whole")
    config = config_for(tmp_path / "parts", corpus, steps=6, **changes)
    before = run(config, tmp_path / "parts", crash_at=5)
    assert {**before, **run(config, tmp_path / "parts")} == infos
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")
    trained = read_folder(max((tmp_path / "whole" / "state").glob("step-*")))["model"]["params"]
    saved = spacy.load(tmp_path / "whole" / "model-last")
    saved = {found.name: found for name, model in components_with_model(saved) for found in walk(model, name)}
    name = "tagger/output_layer/W"
    assert trained.keys() <= saved.keys()
    assert not numpy.array_equal(trained[name], saved[name].owner.get_param("W"))
