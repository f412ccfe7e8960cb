"""Modules in mixed precision get the gradients that they get without it: each backward pass is scaled by itself.

torch scales on GPUs only, and thinc checks that: here the check is taken out, and a scaler works on the CPU. Scales are
powers of two, so scaling rounds nothing, and gradients are the same to the last bit.
"""

import copy
import pickle
import weakref

import numpy
import pytest
import spacy
import torch
from thinc.api import Adam, Model, PyTorchGradScaler, PyTorchWrapper, Softmax, chain, fix_random_seed, with_array

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD

from ...models import TOK2VEC, params_of, same, snapshot, toy_examples, toy_pipeline
from ...runs import loop_over


@spacy.registry.architectures("test-mixed-precision.Tagger.v1")
def torch_tagger(times: int) -> Model:
    """A torch module that is used several times in a forward pass, and another one."""
    torch.manual_seed(0)
    tok2vec = spacy.registry.resolve({"tok2vec": {**TOK2VEC, "width": 8, "depth": 1}})["tok2vec"]
    twice = PyTorchWrapper(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()))
    once = PyTorchWrapper(torch.nn.Linear(8, 8))
    model = chain(tok2vec, with_array(chain(*[twice] * times, once)), with_array(Softmax(nI=8)))
    model.set_ref("tok2vec", tok2vec)
    return model


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    def scale(self, tensor, scale_per_device, inplace):
        return tensor.mul_(self._scale) if inplace else tensor * self._scale

    monkeypatch.setattr(PyTorchGradScaler, "_scale_tensor", scale)


def shims_of(model):
    return [shim for node in model.walk() for shim in node.shims]


def optimizer(learn_rate=0.5):
    return TorchOptimizer(SGD(), learn_rate, grad_clip=0.0)


def pipeline(sgd, *, scale=None, times=1):
    fix_random_seed(0)
    nlp = toy_pipeline((), shared=False)
    nlp.add_pipe("tagger", config={"model": {"@architectures": "test-mixed-precision.Tagger.v1", "times": times}})
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples, sgd=sgd)
    if scale is not None:
        put_scalers(nlp, scale)
    return nlp, examples


def put_scalers(nlp, scale, **settings):
    for shim in shims_of(nlp.get_pipe("tagger").model):
        shim._grad_scaler = PyTorchGradScaler(enabled=True, init_scale=scale, **settings)


def run(nlp, sgd, examples, *, accumulate, before_update=None):
    """Three steps of spaCy's training loop."""
    batches = [examples[i : i + 4] for i in (0, 4, 8)]
    steps = loop_over(nlp, sgd, batches, accumulate_gradient=accumulate, before_update=before_update)
    assert len(list(steps)) == 3
    return params_of(nlp.get_pipe("tagger").model)


@pytest.mark.parametrize("accumulate, times", [(1, 1), (2, 1), (4, 1), (1, 2), (2, 3)])
def test_mixed_precision_changes_no_gradient_in_spacys_loop(accumulate, times):
    trained = []
    for scale in (None, 2.0**16):
        sgd = optimizer()
        nlp, examples = pipeline(sgd, scale=scale, times=times)
        trained.append(run(nlp, sgd, examples, accumulate=accumulate))
    assert same(*trained)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_mixed_precision_changes_no_gradient_in_nlp_update(times):
    trained = []
    for scale in (None, 2.0**16):
        sgd = optimizer()
        nlp, examples = pipeline(sgd, scale=scale, times=times)
        for _ in range(3):
            nlp.update(examples, sgd=sgd)
        # Several batches for one update, by hand.
        for batch in (examples[:5], examples[5:]):
            nlp.update(batch, sgd=False)
        nlp.get_pipe("tagger").finish_update(sgd)
        trained.append(params_of(nlp.get_pipe("tagger").model))
    assert same(*trained)


def test_mixed_precision_of_a_model_that_took_the_place_of_another():
    """A copied model, and other scalers: in the step in which they come."""
    trained = []
    for scale in (None, 2.0**10):
        sgd = optimizer()
        nlp, examples = pipeline(sgd, scale=scale and 2.0**16, times=2)

        def before_update(nlp, args, scale=scale):
            if args["step"] == 1:
                tagger = nlp.get_pipe("tagger")
                tagger.model = tagger.model.copy()
                if scale is not None:
                    put_scalers(nlp, scale)

        trained.append(run(nlp, sgd, examples, accumulate=2, before_update=before_update))
    assert same(*trained)


def test_mixed_precision_overflow_in_one_pass_skips_the_module():
    sgd = optimizer()
    nlp, examples = pipeline(sgd, scale=2.0**16, times=2)
    model = nlp.get_pipe("tagger").model
    nlp.update(examples, sgd=sgd)
    shim = shims_of(model)[0]
    before = snapshot(shim._model.parameters())
    for scale in (2.0**127, 2.0**16):  # the gradient is infinite in the first of two batches
        shim._grad_scaler._scale.fill_(scale)
        nlp.update(examples, sgd=False)
    nlp.get_pipe("tagger").finish_update(sgd)
    assert same(snapshot(shim._model.parameters()), before)
    assert float(shim._grad_scaler._scale) == 2.0**15
    nlp.update(examples, sgd=sgd)
    assert all(value.isfinite().all() for value in params_of(model))
    assert not same(snapshot(shim._model.parameters()), before)


def test_mixed_precision_leaves_nothing_in_shims_and_scalers():
    """Copies, pickles and bytes are as without us."""
    sgd = optimizer()
    nlp, examples = pipeline(sgd, scale=2.0**16, times=2)
    model = nlp.get_pipe("tagger").model
    kept = [(set(vars(shim)), set(vars(shim._grad_scaler)), type(shim._grad_scaler)) for shim in shims_of(model)]
    nlp.update(examples, sgd=sgd)
    for found in (model, model.copy(), copy.deepcopy(model)):
        now = [(set(vars(shim)), set(vars(shim._grad_scaler)), type(shim._grad_scaler)) for shim in shims_of(found)]
        assert now == kept
    assert b"torchopt" not in pickle.dumps([shim._grad_scaler for shim in shims_of(model)])
    model.from_bytes(model.to_bytes())
    [gone, *_] = map(weakref.ref, shims_of(model.copy()))
    assert gone() is None


def test_mixed_precision_with_thincs_optimizer_is_thincs():
    """Gradients are set apart only for modules that our optimizers train."""
    trained = []
    for known in (False, True):
        nlp, examples = pipeline(Adam(0.1), scale=2.0**16, times=2)
        if known:
            optimizer()
        for _ in range(3):
            nlp.update(examples)
        trained.append(params_of(nlp.get_pipe("tagger").model))
    assert same(*trained)
    right = optimizer()
    nlp, examples = pipeline(right, times=2)
    for _ in range(3):
        nlp.update(examples, sgd=right)
    assert not same(trained[0], params_of(nlp.get_pipe("tagger").model))


@pytest.mark.parametrize("init_scale", [1024, numpy.int64(1024)])
def test_mixed_precision_takes_a_whole_number_as_scale(init_scale):
    """spaCy#13512: torch refused it in the first update, by "current_scale must be a float tensor"."""
    trained = []
    for scale in (1024.0, init_scale):
        sgd = optimizer()
        nlp, examples = pipeline(sgd, scale=scale)
        nlp.update(examples, sgd=sgd)
        trained.append(params_of(nlp.get_pipe("tagger").model))
        saved = copy.deepcopy(sgd.state_dict())
        # Another process, whose scalers had no update yet.
        other = optimizer()
        again, _ = pipeline(other)
        put_scalers(again, scale)
        other.initialize(again)
        other.load_state_dict(saved)
        nlp.update(examples, sgd=sgd)
    assert same(*trained)
