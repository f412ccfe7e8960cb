"""The sizes of state that is still to come, against the state that torch's optimizers have after a real step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinc_torchopt.core.algorithms.algorithm import StateSizes
from thinc_torchopt.core.algorithms.torch_classes import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Rprop,
    create,
)
from thinc_torchopt.core.compat import has_pytorch_optimizer

ALGORITHMS = [
    SGD(),
    SGD(momentum=0.9),
    Adam(),
    Adam(amsgrad=True),
    AdamW(),
    Adamax(),
    Adadelta(),
    Adagrad(),
    Adafactor(),
    Rprop(),
]


def bytes_after_a_step(algorithm, shape, dtype=torch.float32):
    param = torch.ones(shape, dtype=dtype, requires_grad=True)
    optimizer = algorithm.build([param], lr=0.001, **algorithm.options)
    param.grad = torch.randn(shape, dtype=dtype)
    optimizer.step()
    values = optimizer.state[param].values()
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.label)
@given(
    shape=st.lists(st.integers(1, 20), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=10)
def test_state_size_is_that_after_a_step(algorithm, shape, dtype):
    found = StateSizes().bytes_of(algorithm, algorithm.options, shape, dtype)
    assert found == bytes_after_a_step(algorithm, shape, dtype)


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
@pytest.mark.parametrize("name", ["lion", "adafactor", "came", "prodigy"])
def test_state_size_of_pytorch_optimizers(name):
    """Lion has one number for each cell; Adafactor and CAME some for each row and column."""
    algorithm = create(name)
    for shape in ((30, 40), (17,), (4, 6, 5)):
        assert StateSizes().bytes_of(algorithm, algorithm.options, shape) == bytes_after_a_step(algorithm, shape)


def test_state_size_of_other_options():
    """Options of a param group, which are not those of the algorithm."""
    sizes, algorithm = StateSizes(), SGD()
    assert sizes.bytes_of(algorithm, algorithm.options, (10, 10)) == 0
    assert sizes.bytes_of(algorithm, {**algorithm.options, "momentum": 0.5}, (10, 10)) == 400
