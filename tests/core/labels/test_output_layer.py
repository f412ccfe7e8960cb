"""New rows of output layers, layer by layer: what they begin with, and what optimizers are told of them."""

import math

import numpy
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from thinc import api
from thinc.api import Linear, chain

from thinc_torchopt.core.errors import PipelineError
from thinc_torchopt.core.host import insertions_into, original_refs, set_original_refs
from thinc_torchopt.core.inserted import Insertion
from thinc_torchopt.core.labels.output_layer import find_output_layer, grow, lift

W = numpy.asarray([[1.0, 2.0], [3.0, 6.0], [8.0, -4.0]], dtype="float32")
B = numpy.asarray([1.0, 5.0, 9.0], dtype="float32")
MEAN = None  # of the old rows, with a tenth of its probability


def layer_of(kind, bias=B):
    layer = kind(*W.shape)
    layer.set_param("W", W.ravel() if layer.has_dim("length") else W.copy())
    layer.set_param("b", numpy.asarray(bias, dtype="float32"))
    return layer


def same():
    return api.Model("same", lambda model, X, is_train: (X, lambda dY: dY))


@pytest.mark.parametrize("n_last", [0, 1])
@pytest.mark.parametrize(
    ("layers", "settings", "bias"),
    [
        (lambda: [layer_of(api.Softmax)], {}, MEAN),
        (lambda: [api.Maxout(2, 2), layer_of(api.Softmax_v2), same()], {"is_exclusive": True}, MEAN),
        (lambda: [layer_of(Linear), same(), api.softmax_activation()], {}, MEAN),
        (lambda: [layer_of(api.Sigmoid)], {}, math.log(0.05 / 0.95)),
        (lambda: [api.Softmax(2, 2), layer_of(Linear), api.Logistic()], {"prior": 0.2}, math.log(0.2 / 0.8)),
        (lambda: [layer_of(Linear), api.Logistic()], {"is_exclusive": True}, MEAN),
        (lambda: [api.with_array(chain(same(), layer_of(Linear)))], {}, 0.0),
        (lambda: [layer_of(Linear)], {"is_exclusive": True}, 0.0),
        (lambda: [layer_of(api.SparseLinear_v2), api.softmax_activation()], {}, MEAN),
    ],
)
def test_output_layer_begins_new_rows_where_they_do_no_harm(layers, settings, bias, n_last):
    """Behind those of the labels. A gradient waits, for old rows. Refs, also of copies, lead to the new layer."""
    model, n = chain(*layers(), same()), 3 - n_last
    old = find_output_layer(model).layer
    old.set_grad("b", B + 1)
    model.set_dim("nO", 3)
    model.set_ref("output_layer", old)
    set_original_refs(model, {"output_layer": old.id, "other": 0})
    grow(model, n, 2, n_last=n_last, **settings)
    new = find_output_layer(model).layer
    assert model.get_ref("output_layer") is new is not old and new.get_dim("nO") == model.get_dim("nO") == 5
    assert original_refs([model]) == {id(model): {"output_layer": new.id, "other": 0}}
    weights = W[:n].mean(axis=0) if bias is MEAN else numpy.zeros(2)
    bias = B[:n].mean() - math.log(10) if bias is MEAN else bias
    assert_allclose(new.get_param("W").reshape(5, 2), [*W[:n], weights, weights, *W[n:]], rtol=1e-6)
    assert_allclose(new.get_param("b"), [*B[:n], bias, bias, *B[n:]], rtol=1e-6)
    assert_array_equal(new.get_grad("b"), [*(B + 1)[:n], 0, 0, *(B + 1)[n:]])
    told = [Insertion("W", 0, 2, 2, len(old.get_param("W"))), Insertion("b", 0, 2, 2, 3)]
    assert insertions_into(new) == tuple(told * n_last)
    grow(model, n + 2, 1, n_last=n_last, **settings)
    assert insertions_into(find_output_layer(model).layer)[: 2 * n_last] == insertions_into(new)


@pytest.mark.parametrize("kind", [Linear, api.SparseLinear, api.SparseLinear_v2])
@pytest.mark.parametrize("is_exclusive", [False, True])
def test_output_layer_lifts_rows_that_no_training_would(kind, is_exclusive):
    """Rows of SparseLinear.v1 share their cells, which stay."""
    found = find_output_layer(chain(layer_of(kind, [1.0, -2500.0, -2500.5]), api.Logistic()))
    assert lift(found, is_exclusive=is_exclusive) == [2] and lift(found) == []
    weights = W[2] if kind is api.SparseLinear else W[:2].mean(axis=0) * is_exclusive
    assert_array_equal(found.layer.get_param("W").reshape(3, 2), [*W[:2], weights])
    bias = -2499 / 2 - math.log(10) if is_exclusive else math.log(0.05 / 0.95)
    assert_allclose(found.layer.get_param("b"), [1.0, -2500.0, bias], rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (chain(api.Softmax(3, 2), api.residual(Linear(3, 3))), "its output comes from a layer 'residual"),
        (api.concatenate(Linear(3, 2), same()), "its output comes from a layer 'linear|same'"),
        (chain(same(), same()), "its output comes from a layer 'same>>same'"),
        (chain(Linear(3, 2), api.Maxout(3, 3)), "its output layer is 'maxout': expected Linear"),
    ],
)
def test_output_layer_that_can_not_grow(model, said):
    with pytest.raises(PipelineError) as error:
        find_output_layer(model)
    assert said in str(error.value)
