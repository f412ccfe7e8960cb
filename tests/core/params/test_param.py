"""What can't be optimized, or saved, is named: by the param, and before anything happens to it."""

import warnings
import weakref

import numpy
import pytest
import torch
from thinc.api import Linear, Model, PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import NonFiniteGradWarning, ParamError
from thinc_torchopt.core.schema import read, write
from thinc_torchopt.core.state.files import read_folder, write_folder
from thinc_torchopt.loop.model_state import ModelState, check_model, collect_model, restore_model

from ...models import optimizer_for, toy_pipeline

DTYPES = {
    "big-endian": (">f4", "dtype >f4"),
    "longdouble": (numpy.longdouble, "dtype (float128|float96|longdouble)"),
    "complex": ("c8", "dtype complex64"),
}
if numpy.dtype(numpy.longdouble) == numpy.dtype("f8"):
    del DTYPES["longdouble"]


def pipeline(model):
    nlp = toy_pipeline([], shared=False)
    nlp.add_pipe("tagger").model = model
    return nlp


def layer(array):
    return Model("layer", lambda model, X, is_train: (X, lambda dY: dY), params={"W": array})


@pytest.mark.parametrize("kind", DTYPES)
def test_params_of_a_dtype_that_torch_does_not_have(kind):
    dtype, found = DTYPES[kind]
    with pytest.raises(ParamError, match=rf"Can't optimize param 'tagger/W': expected .* found {found}"):
        TorchOptimizer(AdamW()).initialize(pipeline(layer(numpy.ones((3, 2)).astype(dtype))))


@pytest.mark.parametrize("dtype, found", [*DTYPES.values(), ("i4", "dtype int32")])
def test_params_with_gradients_of_a_dtype_that_torch_does_not_have(dtype, found):
    nlp = pipeline(Linear(3, 2).initialize())
    model = nlp.get_pipe("tagger").model
    optimizer = optimizer_for(nlp, AdamW())
    with pytest.raises(ParamError, match=rf"Can't use the gradient of param 'tagger/W': expected .* found {found}"):
        optimizer.set_grad(model.get_param("W"), numpy.ones((3, 2)).astype(dtype), key=(model.id, "W"))


class Sparse(torch.nn.Module):
    def __init__(self, make_param):
        super().__init__()
        self.weight = make_param(torch.nn.Parameter(torch.eye(3)))


def test_params_that_are_sparse():
    module = Sparse(lambda param: torch.nn.Parameter(param.detach().to_sparse()))
    with pytest.raises(
        ParamError, match=r"param 'tagger/weight': expected a dense tensor, found one of layout torch.sparse_coo"
    ):
        TorchOptimizer(AdamW()).initialize(pipeline(PyTorchWrapper(module)))


@pytest.mark.parametrize("settings", [{}, {"grad_clip": 0.0, "max_nonfinite": 0}])
def test_params_with_sparse_gradients(settings):
    """Those of torch.nn.Embedding(sparse=True). torch's SGD takes them, but nothing that measures or clips them
    does.
    """
    model = PyTorchWrapper(torch.nn.Embedding(5, 3, sparse=True))
    optimizer = TorchOptimizer(SGD(), **settings)
    optimizer.initialize(pipeline(model))
    model.shims[0]._model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(
        ParamError, match=r"gradient of param 'tagger/weight': expected a dense tensor.*sparse_coo.*sparse = False"
    ):
        model.finish_update(optimizer)


def test_params_from_a_shim_may_have_any_strides():
    taken = []
    optimizer = TorchOptimizer(SGD(), 0.5, grad_clip=0.0)
    optimizer.set_grad(numpy.arange(3.0)[::-1], numpy.ones(3)[::-1], taken.append, key="W")
    optimizer.step()
    assert taken[0].tolist() == [1.5, 0.5, -0.5]


@pytest.mark.parametrize(
    "make", [lambda a: a[::-1], lambda a: a.astype(">f4"), lambda a: a.astype(">i8"), lambda a: a.T[:, ::-1]]
)
def test_params_of_any_layout_are_saved_and_brought_back(make, tmp_path):
    """Those of frozen components, which no optimizer has made plain."""
    array = make(numpy.arange(12, dtype="f").reshape(3, 4))
    expected, nlp = array.copy(), pipeline(layer(array))
    write_folder(tmp_path / "model", write(collect_model(nlp)))
    saved = read(ModelState, read_folder(tmp_path / "model"), "the model")
    array[...] = 0
    check_model(nlp, saved)
    restore_model(nlp, saved)
    found = nlp.get_pipe("tagger").model.get_param("W")
    assert found.dtype == expected.dtype and numpy.array_equal(found, expected)


def test_params_that_cannot_be_saved_are_named():
    with pytest.raises(
        ParamError, match=r"Can't save param 'tagger/W': expected .* found dtype complex256|float128|longdouble"
    ):
        collect_model(pipeline(layer(numpy.ones(3, dtype=numpy.longdouble))))


def module_on_meta():
    """As when a part of a model was never loaded."""
    model = PyTorchWrapper(module := torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 3)))
    module[1] = torch.nn.Linear(3, 3, device="meta")
    return model


def test_params_without_values_are_refused():
    """Those on the device "meta", which torch has for models that are loaded later, are found when training begins."""
    expected = r"Can't optimize param '{}': expected a tensor with values, found one on the device 'meta'"
    with pytest.raises(ParamError, match=expected.format("tagger/1/weight")):
        TorchOptimizer(AdamW()).initialize(pipeline(module_on_meta()))
    optimizer, model = TorchOptimizer(AdamW()), module_on_meta()
    for param in model.shims[0]._model.parameters():
        param.grad = torch.ones_like(param)
    with pytest.raises(ParamError, match=expected.format("pytorch/1/weight")):
        model.finish_update(optimizer)
    assert not optimizer.params
    param = torch.nn.Parameter(torch.ones(3, device="meta"))
    with pytest.raises(ParamError, match=expected.format("unnamed/0")):
        optimizer.set_grad(param, torch.ones_like(param))
    frozen = module_on_meta()
    frozen.shims[0]._model[1].requires_grad_(False)
    optimizer.initialize(pipeline(frozen))
    assert sorted(optimizer.params) == ["tagger/0/bias", "tagger/0/weight"]


def test_params_without_a_shape_wait_for_the_first_forward_pass():
    module = torch.nn.Sequential(torch.nn.LazyLinear(6), torch.nn.LazyBatchNorm1d(), torch.nn.Linear(6, 3))
    nlp, optimizer = pipeline(model := PyTorchWrapper(module)), TorchOptimizer(AdamW(), use_averages=True)
    with pytest.raises(ParamError, match="'unnamed/0': expected a param with a shape, found one that its module"):
        optimizer.set_grad(module[0].weight, torch.ones(3))
    optimizer.initialize(nlp)
    assert sorted(optimizer.params) == ["tagger/2/bias", "tagger/2/weight"]
    for factor in (numpy.nan, 1.0, 1.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteGradWarning)
            Y, backprop = model.begin_update(factor * numpy.linspace(-1, 1, 20, dtype="f").reshape(4, 5))
            backprop(Y)
            model.finish_update(optimizer)
        # The first batch made the statistics, and its update was skipped.
        assert all(buffer.isfinite().all() for buffer in module.buffers())
    assert len(optimizer.params) == 6 and set(optimizer.nr_update.values()) == {2}


def test_params_of_no_dimensions_may_be_numpy_scalars(tmp_path):
    """`array.sum()` is one, and so is a param that was set to it. The oracle: a plain torch loop."""

    def forward(model, X, is_train):
        scale = model.get_param("W")

        def backprop(dY):
            model.inc_grad("W", (dY * X).sum())
            return dY * scale

        return X * scale, backprop

    model = layer(numpy.float32(2.0))
    model._func = forward
    nlp, optimizer = pipeline(model), TorchOptimizer(AdamW(), 0.1, grad_clip=0.0)
    optimizer.initialize(nlp)
    plain = torch.nn.Parameter(torch.tensor(2.0))
    oracle = torch.optim.AdamW([plain], lr=0.1)
    X = numpy.ones((2, 3), dtype="f")
    for _ in range(3):
        Y, back = model.begin_update(X)
        back(Y)
        model.finish_update(optimizer)
        plain.grad = (plain.detach() * torch.ones(2, 3)).sum()
        oracle.step()
    # Gradients of one number are summed in another order, perhaps: a few roundings in float32.
    assert model.get_param("W") == pytest.approx(plain.item(), rel=1e-6)
    write_folder(tmp_path / "model", write(collect_model(nlp)))
    model.set_param("W", numpy.float32(9.0))
    restore_model(nlp, read(ModelState, read_folder(tmp_path / "model"), "the model"))
    assert model.get_param("W") == pytest.approx(plain.item(), rel=1e-6)


def test_copies_of_gradients_in_another_memory_order_are_gone_after_the_step():
    """As the gradients are of which they were made: a forward pass has their memory."""
    param = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = TorchOptimizer(SGD(), 0.1)
    param.grad = torch.ones(2, 3).t()
    optimizer.set_grad(param, param.grad)
    copied = weakref.ref(param.grad)
    assert param.grad.is_contiguous()
    optimizer.step()
    assert param.grad is None and copied() is None
