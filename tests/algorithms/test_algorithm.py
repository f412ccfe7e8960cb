"""Oracle: the library pytorch-optimizer in a bare loop, fed with the same gradients, and its own `eval()` and
`train()`.
"""

import numpy
import pytest
import spacy
import torch

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.algorithms.pytorch_optimizer import create
from thinc_torchopt.averages.settings import EMA
from thinc_torchopt.errors import ConfigError
from thinc_torchopt.params import components_with_model
from thinc_torchopt.params.names import walk
from thinc_torchopt.state.files import read_folder

from ..models import backprop, grads_of, mixed_model, params_of, same, slots, toy_examples, toy_pipeline
from ..runs import config_for, digests, run

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


# ---------------------------------------------------------------------- learning rates of its own


@pytest.mark.parametrize("name, options", [("grokfastadamw", {"grokfast_after_step": 3}), ("asgd", {})])
def test_algorithm_keeps_the_rate_that_it_makes(name, options):
    rates = []

    def compare(step, optimizer, model, bare, params):
        rates.append(bare.param_groups[0]["lr"])
        # asgd writes the rate of the step that comes
        assert optimizer.learn_rates["default"] == pytest.approx(
            rates[-1] if name != "asgd" else [0.01, *rates][step], rel=1e-9
        )

    ours, theirs = beside_the_library(name, options, after=compare)
    assert set(rates) != {0.01}
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(
            a, b, rtol=1e-6, atol=1e-8
        )  # float32; the rate is found by a factor, so it is rounded once more


def test_algorithm_keeps_its_rate_under_a_schedule():
    rates = [0.01, 0.02, 0.005, 0.03]
    optimizer, model = TorchOptimizer(create("grokfastadamw"), rates, grad_clip=0.0), mixed_model()
    for rate in rates[:-1]:
        backprop(model, numpy.random.default_rng(0))
        model.finish_update(optimizer)
        assert optimizer.learn_rates == pytest.approx({"default": rate / 3}) and optimizer.describe()[
            0
        ].learn_rate == pytest.approx(rate / 3)
        optimizer.step_schedules()


def test_algorithm_that_knows_groups_by_their_place():
    """AdaBound has each group's first rate in a list. Here groups come into a step with their gradients, and stay out
    without.
    """
    nlp = toy_pipeline(["tagger", "ner"], shared=False)
    examples = toy_examples(nlp)
    optimizer = TorchOptimizer(
        create("adabound"), 0.01, grad_clip=0.0, param_groups={"ner": {"params": ["ner/*"], "lr_scale": 0.1}}
    )
    nlp.initialize(lambda: examples, sgd=optimizer)
    optimizer.initialize(nlp)
    params = {
        name: [torch.nn.Parameter(value) for value in params_of(nlp.get_pipe(name).model)] for name in ("tagger", "ner")
    }
    bare = {name: library.AdaBound(params[name], lr=rate) for name, rate in (("tagger", 0.01), ("ner", 0.001))}
    for names in (["tagger", "ner"], ["ner"], ["tagger"], ["tagger", "ner"]):
        nlp.update(examples, sgd=False)
        with optimizer.joint_step():
            for name in names:
                model = nlp.get_pipe(name).model
                for param, (_, grad) in zip(params[name], slots(model)):
                    param.grad = torch.from_numpy(grad.copy())
                bare[name].step()
                model.finish_update(optimizer)
    for name, theirs in params.items():
        assert same(params_of(nlp.get_pipe(name).model), [param.detach() for param in theirs])


@pytest.mark.parametrize("name, said", [("a2grad", "with a learning rate"), ("magma", "it wraps another optimizer")])
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
        ("galore", {"rank": 2, "update_proj_gap": 3, "scale": 1.0, "projection_type": "std"}),
        ("fira", {"rank": 2, "update_proj_gap": 3, "scale": 1.0, "projection_type": "std"}),
        ("apollo", {"rank": 2, "update_proj_gap": 3, "scale": 1.0, "projection_type": "random"}),
    ],
)
def test_algorithm_takes_the_options_that_it_reads_from_its_groups(name, options):
    ours, theirs = beside_the_library(name, options)
    without, _ = beside_the_library(name, {})
    assert same(ours, theirs) and not same(ours, without)


def test_algorithm_takes_such_options_by_group():
    nlp = toy_pipeline(["tagger"], shared=False)
    groups = {"low_rank": {"params": ["tagger/output_layer/W"], "rank": 1}}
    options = {"rank": 2, "update_proj_gap": 3, "scale": 1.0, "projection_type": "std"}
    optimizer = TorchOptimizer(create("galore", options), 0.01, param_groups=groups)
    nlp.initialize(lambda: toy_examples(nlp), sgd=optimizer)
    optimizer.initialize(nlp)
    nlp.update(toy_examples(nlp), sgd=optimizer)
    ranks = {
        optimizer.torch_optimizers["algorithm"].state[tensor]["projector"].rank
        for tensor in optimizer.params.values()
        if tensor.ndim == 2
    }
    assert ranks == {1, 2}


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
        ("galore", {"rank": 2}, "needs the option 'update_proj_gap'"),
    ],
)
def test_algorithm_refuses_options_that_it_does_not_read(name, options, said):
    with pytest.raises(ConfigError, match=said):
        create(name, options)


def test_algorithm_is_tried_out_without_a_trace():
    """The library's Kron draws from NumPy's random numbers, SARA from Python's and torch's."""
    import random

    spacy.util.fix_random_seed(0)
    expected = random.random(), numpy.random.rand(), torch.rand(1)
    spacy.util.fix_random_seed(0)
    for name in ("kron", "sara", "spam"):
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
