"""The double of CuPy computes as NumPy does, and lets nothing pass that CuPy would not."""

import copy
import operator
import pickle

import numpy
import pytest

from . import cupy
from .waits import operations, waits

HOST = numpy.arange(6, dtype="f").reshape(2, 3)


@pytest.fixture
def there():
    return cupy.array(HOST)


@pytest.mark.parametrize(
    "compute",
    [
        lambda xp, x: x * 2 + 1,
        lambda xp, x: 1 - x / numpy.float32(3),
        lambda xp, x: numpy.float32(3) * x,
        lambda xp, x: x @ x.T,
        lambda xp, x: x[1:, ::2],
        lambda xp, x: x[x > 2],
        lambda xp, x: x[numpy.array([1, 0])],  # CuPy takes indices of both
        lambda xp, x: x.sum(axis=0, keepdims=True),
        lambda xp, x: x.max(),
        lambda xp, x: x.reshape((3, 2)).transpose().astype("float64"),
        lambda xp, x: xp.concatenate([x, xp.zeros((1, 3), dtype="f")]),
        lambda xp, x: xp.where(x > 2, x, xp.exp(-x)),
        lambda xp, x: xp.linalg.norm(x),
        lambda xp, x: xp.split(x, numpy.array([1]))[1],
        lambda xp, x: numpy.sqrt(x),
        lambda xp, x: numpy.concatenate([x, x]),
    ],
)
def test_numbers_are_numpys(there, compute):
    found, expected = compute(cupy, there), compute(numpy, HOST)
    assert isinstance(found, cupy.ndarray)
    assert not isinstance(found, numpy.ndarray)
    numpy.testing.assert_array_equal(found.get(), expected)
    assert found.dtype == expected.dtype


def test_views_share_memory(there):
    there[0] += 1
    there.reshape(-1)[:2] = 7
    row = there[1]
    row *= 2
    numpy.testing.assert_array_equal(there.get(), [[7, 7, 3], [6, 8, 10]])
    same = there
    same -= there
    assert same is there
    assert cupy.asarray(there) is there
    assert cupy.add(there, 1, out=there) is there


@pytest.mark.parametrize("operate", [operator.add, operator.matmul, operator.lt, operator.iadd])
def test_mixing_raises(there, operate):
    for mix in (lambda: operate(there, HOST.T if operate is operator.matmul else HOST), lambda: operate(HOST, there)):
        with pytest.raises(TypeError):
            mix()


def test_numpy_gets_nothing(there):
    for take in (numpy.asarray, numpy.array, lambda x: numpy.concatenate([x, HOST]), lambda x: cupy.dot(x, HOST.T)):
        with pytest.raises(TypeError):
            take(there)
    with pytest.raises(TypeError, match="Unsupported"):
        there[0] = HOST[0]
    for name in ("__array_interface__", "ctypes"):
        assert not hasattr(there, name)
    assert not hasattr(there.flags, "writeable")


def test_waits_are_counted(there):
    with waits() as found:
        there.get()
        float(there.sum())
        bool(there.any())
        there[0, 0].item()
        there.tolist()
        there * there + cupy.zeros((3,))
    assert found == {"get": 1, "float": 1, "bool": 1, "item": 1, "tolist": 1}


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda x: x * 2 + 1, 2),
        (lambda x: cupy.sqrt(x), 1),
        (lambda x: x[x > 2], 2),
        (lambda x: operator.isub(x, 1), 1),
        (lambda x: x.fill(0), 1),
        (lambda x: cupy.array(HOST), 1),
        (lambda x: x[1:].reshape(-1).T, 0),
        (lambda x: cupy.empty(3), 0),
        (lambda x: cupy.asarray(x), 0),
    ],
)
def test_operations_are_counted(there, compute, expected):
    """Views and new memory are none."""
    with operations() as found:
        compute(there)
    assert sum(found.values()) == expected, found


def test_copies(there):
    for made in (copy.copy(there), copy.deepcopy(there), pickle.loads(pickle.dumps(there)), there.copy()):
        made += 1
        numpy.testing.assert_array_equal(made.get(), HOST + 1)
    numpy.testing.assert_array_equal(there.get(), HOST)


def test_generators_are_cupys_own():
    before = numpy.random.get_state()[1].copy()
    cupy.random.seed(3)
    first, kept = cupy.random.uniform(0.0, 1.0, (4,)).get(), cupy.random.get_random_state()
    cupy.random.set_random_state(cupy.random.RandomState(3))
    numpy.testing.assert_array_equal(cupy.random.uniform(0.0, 1.0, (4,)).get(), first)
    cupy.random.set_random_state(kept)
    assert not hasattr(kept, "get_state")
    assert (numpy.random.get_state()[1] == before).all()
