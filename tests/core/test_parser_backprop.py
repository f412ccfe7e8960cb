"""The parser's backward pass in one piece. The oracles: spaCy's own passes, and sums in float64."""

import copy
import pickle

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from spacy.ml import tb_framework
from spacy.ml._precomputable_affine import PrecomputableAffine
from thinc.api import Adam, CupyOps, Model, NumpyOps, fix_random_seed, get_current_ops
from thinc.util import to_numpy

from thinc_torchopt.core import parser_backprop
from thinc_torchopt.core.host import forward_of, swap_forward
from thinc_torchopt.core.ops import PipelineOps, products_by
from thinc_torchopt.core.parser_backprop import batch_backprop_on_gpu

from ..models import toy_examples, toy_pipeline


@given(
    sizes=st.tuples(*[st.integers(1, 5)] * 4),
    words=st.integers(1, 6),
    steps=st.lists(st.integers(0, 9), max_size=6),
    at_once=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)
def test_parser_backprop_sums_are_those_of_all_steps(sizes, words, steps, at_once, seed):
    """Over any number of states, of words that they lack, of pieces, and however many are computed at once."""
    nO, nI, nF, nP = sizes
    generator = numpy.random.default_rng(seed)

    def floats(*shape):
        return generator.uniform(-1, 1, shape).astype("float32")

    lower = PrecomputableAffine(nO, nI, nF, nP)
    W, X = floats(nF, nO, nP, nI), floats(words, nI)
    for name, value in (("W", W), ("b", floats(nO, nP)), ("pad", floats(1, nF, nO, nP))):
        lower.set_param(name, value)
    collecting = parser_backprop._Collecting(lower)
    _, backprop = collecting(X, True)
    dY, ids = [], []
    for states in steps:
        dY.append(floats(states, nO, nP))
        ids.append(generator.integers(-1, words, (states, nF)).astype("int32"))
        backprop((dY[-1].copy(), ids[-1].copy()))
    d_words = numpy.zeros((words + 1, nI))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser_backprop, "_STATES", at_once)
        for found, d_features in collecting.backprop():
            numpy.add.at(d_words, found, d_features)
    if not sum(steps):
        assert not lower.grad_names or not any(lower.get_grad(name).any() for name in lower.grad_names)
        return
    gradients, words_of = numpy.concatenate(dY).astype("float64"), numpy.concatenate(ids)
    # spaCy multiplies the gradients at words that are lacking with the vector of the last word.
    expected = {
        "W": numpy.einsum("sop,sfi->fopi", gradients, X[words_of].astype("float64")),
        "b": gradients.sum(axis=0),
        "pad": numpy.einsum("sf,sop->fop", words_of < 0, gradients)[None],
    }
    expected_words = numpy.zeros((words + 1, nI))
    numpy.add.at(expected_words, words_of, numpy.einsum("sop,fopi->sfi", gradients, W))
    # Sums of so many terms of at most 1, each rounded: half of the last of 24 bits.
    terms = sum(steps) * max(nF * nO * nP, 1)
    for name, value in expected.items():
        assert_allclose(lower.get_grad(name), value, rtol=0, atol=terms**2 * 2**-24)
    assert_allclose(d_words, expected_words, rtol=0, atol=terms**2 * 2**-24)


def trained_pipeline(**changes):
    """A parser and NER after some updates: at first the layer above is zero, and so are the gradients below it."""
    nlp = toy_pipeline(["parser", "ner"])
    for name in ("parser", "ner"):
        pipe = nlp.get_pipe(name)
        pipe.cfg.update({key: value for key, value in changes.items() if key.startswith("beam")})
    examples = toy_examples(nlp)
    optimizer = Adam(0.01)
    nlp.initialize(lambda: examples)
    for _ in range(4):
        nlp.update(examples, sgd=optimizer, drop=0.1)
    gradients(nlp, examples, is_on=False)  # the last update may have left some below the listeners
    return nlp, examples


def gradients(nlp, examples, *, is_on, library="numpy"):
    """By node and name. Gradients are zero afterwards."""
    fix_random_seed(0)
    put_back = batch_backprop_on_gpu(nlp)
    with PipelineOps(nlp, products_by(library)):
        for name in () if is_on else nlp.pipe_names:
            if isinstance(ours := forward_of(nlp.get_pipe(name).model), parser_backprop.Batched):
                ours.end()
        losses = nlp.update(examples, sgd=False, drop=0.1)
    for one in put_back:
        one()
    found = {}
    for name, pipe in nlp.pipeline:
        for i, node in enumerate(pipe.model.walk()):
            for param in node.grad_names:
                found[name, i, node.name, param] = to_numpy(node.get_grad(param).copy())
                node.get_grad(param)[...] = 0
    return losses, found


@pytest.mark.device
@pytest.mark.parametrize("library", ["numpy", "thinc"])
@pytest.mark.parametrize("changes", [{}, {"beam_width": 2, "beam_update_prob": 1.0}], ids=["greedy", "beam"])
def test_parser_backprop_of_a_trained_pipeline_is_spacys(changes, library):
    """Losses to the last bit, but the tok2vec's, a sum of squared gradients, as forward passes are the same. Gradients
    to rounding, in units of the largest.
    """
    if changes and isinstance(get_current_ops(), CupyOps):
        pytest.skip("spaCy's beam can't train on a GPU")
    nlp, examples = trained_pipeline(**changes)
    expected_losses, expected = gradients(nlp, examples, is_on=False, library=library)
    losses, found = gradients(nlp, examples, is_on=True, library=library)
    # float32 gradients, summed in another order: how far apart is up to the processor's matrix products.
    assert losses.pop("tok2vec") == pytest.approx(expected_losses.pop("tok2vec"), rel=1e-6)
    assert losses == expected_losses and found.keys() == expected.keys()
    below = [value for (_, _, node, _), value in expected.items() if node == "precomputable_affine"]
    assert len(below) == 6 and all(value.any() for value in below)
    for key, value in expected.items():
        assert_allclose(found[key], value, rtol=0, atol=2e-5 * numpy.abs(value).max(), err_msg=str(key))


def test_parser_backprop_makes_one_product_for_all_steps(monkeypatch):
    nlp, examples = trained_pipeline()
    sizes = []
    affine = nlp.get_pipe("parser").model.get_ref("lower")
    inc_grad = Model.inc_grad

    def counted(node, name, value):
        if node is affine and name == "W":
            sizes.append(name)
        inc_grad(node, name, value)

    monkeypatch.setattr(Model, "inc_grad", counted)
    gradients(nlp, examples, is_on=False)
    by_step = len(sizes)
    gradients(nlp, examples, is_on=True)
    assert len(sizes) == by_step + 1 and by_step > 3


def test_parser_backprop_is_put_back():
    """Also after an error, and what others set meanwhile stays. Copies and pickles are spaCy's."""
    nlp = toy_pipeline(["parser", "ner"])
    parser, ner = (nlp.get_pipe(name).model for name in ("parser", "ner"))

    def others(model, X, is_train):
        return tb_framework.forward(model, X, is_train)

    with pytest.raises(RuntimeError), PipelineOps(nlp, products_by("numpy")):
        ours = forward_of(parser)
        assert isinstance(ours, parser_backprop.Batched) and isinstance(forward_of(ner), parser_backprop.Batched)
        for other in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert other is tb_framework.forward
        assert b"torchopt" not in pickle.dumps(ours) + pickle.dumps(parser.ops)
        shallow = parser.copy()
        swap_forward(ner, others)
        raise RuntimeError
    assert forward_of(parser) is tb_framework.forward and forward_of(ner) is others
    assert forward_of(shallow) is ours and not ours.is_on


def test_parser_backprop_with_thincs_products():
    """Where thinc's are the fastest too; and not with other ops than thinc's own."""
    nlp = toy_pipeline(["parser", "ner"])
    models = [nlp.get_pipe(name).model for name in ("parser", "ner")]
    models[1].ops = type("AppleOps", (NumpyOps,), {})()
    with PipelineOps(nlp, products_by("thinc")) as in_use:
        assert isinstance(forward_of(models[0]), parser_backprop.Batched) and type(models[0].ops) is NumpyOps
        assert forward_of(models[1]) is tb_framework.forward and in_use.changes_anything
    assert forward_of(models[0]) is tb_framework.forward
