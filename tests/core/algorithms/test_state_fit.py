"""Oracles: a loop over cells, and torch's own interpolation."""

import copy
import itertools

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from thinc_torchopt.core.algorithms.state_fit import fit_param_state
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import StateError
from thinc_torchopt.core.inserted import Order

from ...models import same_tree

shapes = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4
)  # of each dimension: before, after


def build(name, params, options):
    return getattr(torch.optim, name)(params, **{"lr": 0.01, **options})


def tensors(state):
    return {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}


# ---------------------------------------------------------------------- one tensor


def naive(old, shape, fill, scale):
    """Cell by cell: an old cell, or the mean over all old cells whose index is the same wherever the dimension did not
    grow.
    """
    old = old[tuple(slice(size) for size in shape)]
    grown = numpy.empty(shape)
    for index in itertools.product(*map(range, shape)):
        if all(i < size for i, size in zip(index, old.shape)):
            grown[index] = old[index]
            continue
        sources = itertools.product(*(range(size) if i >= size else [i] for i, size in zip(index, old.shape)))
        grown[index] = scale * numpy.mean([old[source] for source in sources]) if fill == "mean" else 0.0
    return grown


def fit_state(value, shape, *, kind=None, fill="mean", scale=1.0):
    """Fit one tensor: an average, or with a scale of a tenth a sum."""
    cls, key = (torch.optim.SGD, "momentum_buffer") if scale == 0.1 else (torch.optim.Adam, "exp_avg")
    param = torch.zeros(shape, dtype=value.dtype)
    return fit_param_state(cls, {key: value}, value.shape, param, on_growth=fill, kind=kind)[key]


@given(shapes, st.sampled_from(["mean", "zero"]), st.sampled_from([1.0, 0.1]), st.integers(0, 1000))
def test_fit_state_equals_a_loop_over_cells(sizes, fill, scale, seed):
    old, new = zip(*sizes)
    if old != new and numpy.prod(old) == numpy.prod(new):
        return  # a reshape
    value = torch.from_numpy(numpy.random.default_rng(seed).normal(size=old))
    before = value.clone()
    fitted = fit_state(value, new, fill=fill, scale=scale)
    expected = naive(value.numpy(), new, fill, scale)
    assert fitted.dtype == value.dtype and fitted.is_contiguous()
    kept = tuple(slice(min(pair)) for pair in sizes)
    assert torch.equal(fitted[kept], value[kept])
    numpy.testing.assert_allclose(fitted.numpy(), expected, rtol=1e-12, atol=1e-14)  # float64: sums in another order
    assert torch.equal(value, before)


@given(shapes, st.integers(0, 1000))
def test_fit_state_interpolates_as_torch_does(sizes, seed):
    old, new = zip(*sizes[:3])
    value = torch.from_numpy(numpy.random.default_rng(seed).normal(size=old))
    fitted = fit_state(value, new, kind="reshape")
    if numpy.prod(old) == numpy.prod(new):
        assert torch.equal(fitted, value.reshape(new))
    else:
        mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(old)]
        expected = nn.functional.interpolate(value[None, None], size=new, mode=mode, align_corners=False)[0, 0]
        torch.testing.assert_close(fitted, expected, rtol=1e-9, atol=1e-9)


def test_fit_state_with_another_number_of_dimensions_keeps_the_order_of_cells():
    value = torch.arange(12.0).view(3, 4)
    assert torch.equal(fit_state(value, (2, 3, 2)), value.view(2, 3, 2))
    longer = fit_state(value, (2, 3, 4))
    assert torch.equal(longer.flatten(), nn.functional.interpolate(value.view(1, 1, 12), size=24, mode="linear")[0, 0])
    assert longer.flatten().diff().ge(0).all()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.uint8]
)
@pytest.mark.parametrize(
    "shape, kind", [((5, 3), None), ((2, 6), None), ((2, 2), None), ((7, 5), "reshape"), ((4, 3), None)]
)
def test_fit_state_keeps_dtypes(dtype, shape, kind):
    value = torch.full((4, 3), 3).to(dtype)
    fitted = fit_state(value, shape, kind=kind)
    assert fitted.dtype == dtype and torch.equal(fitted, torch.full(shape, 3).to(dtype))


def test_fit_state_copies_no_more_than_it_must():
    value = torch.ones(4, 3)
    assert fit_state(value, (4, 3)) is value
    assert fit_state(value, (3, 4)).data_ptr() == value.data_ptr()  # as many cells, in their order
    smaller = fit_state(value, (2, 3))
    assert smaller.untyped_storage().nbytes() == 2 * 3 * 4  # no view that keeps the old cells in memory


@pytest.mark.parametrize(
    "old, new", [((0, 3), (2, 5)), ((0, 3), (2, 3)), ((4, 3), (0, 3)), ((0,), (2, 2)), ((), (3,)), ((3,), ())]
)
def test_fit_state_of_shapes_without_cells_or_dimensions(old, new):
    fitted = fit_state(torch.ones(old), new)
    assert fitted.shape == new and torch.equal(fitted, torch.full(new, float(numpy.prod(old) > 0)))


@pytest.mark.parametrize(
    "kind, new, said",
    [
        ("identity", (5, 3), "the same shape"),
        ("expand", (5, 2), "dimensions that stay or grow"),
        ("expand", (5, 3, 1), "dimensions that stay or grow"),
        ("contract", (3, 4), "dimensions that stay or shrink"),
        ("grow", (5, 3), "expected one of .*'expand'"),
    ],
)
def test_fit_state_says_which_kind_does_not_fit(kind, new, said):
    with pytest.raises(StateError, match=said):
        fit_state(torch.ones(4, 3), new, kind=kind)


@pytest.mark.parametrize("kind, new", [("identity", (4, 3)), ("expand", (5, 3)), ("contract", (4, 2))])
def test_fit_state_by_a_kind_takes_dimensions_that_stay(kind, new):
    assert fit_state(torch.ones(4, 3), new, kind=kind).shape == new


# ---------------------------------------------------------------------- one param


def test_fit_param_state_keeps_factored_state_factored():
    torch.manual_seed(0)
    for old, new in [((3, 4), (5, 4)), ((1, 4), (3, 4)), ((3, 1), (3, 2)), ((1, 1), (2, 3)), ((2, 3, 4), (2, 5, 6))]:
        param = nn.Parameter(torch.randn(old))
        optimizer = torch.optim.Adafactor([param])
        param.grad = torch.randn(old)
        optimizer.step()
        state, grown = optimizer.state[param], nn.Parameter(torch.zeros(new))
        fitted = fit_param_state(torch.optim.Adafactor, state, old, grown)
        assert fitted["row_var"].shape == (*new[:-1], 1) and fitted["col_var"].shape == (*new[:-2], 1, new[-1])
        kept = tuple(map(slice, old))
        assert all(torch.equal(fitted[key][kept], state[key]) for key in ("row_var", "col_var"))
        assert fitted["step"] is state["step"]


@pytest.mark.parametrize("key", ["preconditioner", "row_var"])
@pytest.mark.parametrize("value", [torch.ones(3, 3), [torch.ones(2)]])
def test_fit_param_state_refuses_state_of_an_unknown_shape(value, key):
    state = {"step": torch.tensor(1.0), key: value}
    with pytest.raises(StateError, match=rf"param 'head\.W' .*'{key}' to have the param's shape, \(4, 3\)"):
        fit_param_state(torch.optim.Optimizer, state, (4, 3), torch.zeros(5, 3), name="head.W")
    assert fit_param_state(torch.optim.Optimizer, state, (5, 3), torch.zeros(5, 3))[key] is value


def test_fit_param_state_takes_a_counter_for_no_moment():
    """A param without dimensions has the shape of its step."""
    state = {"step": torch.tensor(7.0), "mu_product": torch.tensor(0.5), "own": torch.ones(1)}
    fitted = fit_param_state(torch.optim.NAdam, {**state, "exp_avg": torch.tensor(2.0)}, (), torch.zeros(3))
    assert fitted.pop("exp_avg").tolist() == [2.0, 2.0, 2.0] and fitted == state


@pytest.mark.parametrize(
    "options, device",
    [
        (None, "cpu"),
        ({"fused": False, "capturable": False}, "cpu"),
        ({"fused": True}, "meta"),
        ({"capturable": True}, "meta"),
    ],
)
def test_fit_param_state_moves_to_the_device_of_the_param(options, device):
    """But counts of steps only where torch wants them there."""
    state = {"step": torch.tensor(3.0), "mu_product": torch.tensor(0.5), "exp_avg": torch.ones(3)}
    param = torch.zeros(3, device="meta")
    fitted = fit_param_state(torch.optim.NAdam, state, (3,), param, old_dtype=torch.float32, options=options)
    assert [fitted[key].device.type for key in state] == [device, "meta", "meta"]


@pytest.mark.parametrize("row_size, old, new", [(2, 4, 8), (3, 6, 9), (3, 6, 3), (3, 6, 6), (3, 6, 8), (3, 5, 6)])
def test_fit_param_state_grows_flat_params_by_rows(row_size, old, new):
    value = torch.arange(float(old)).square()
    fitted = fit_param_state(
        torch.optim.Adam, {"step": 3, "exp_avg": value}, (old,), torch.zeros(new), row_size=row_size
    )
    if old % row_size or new % row_size:
        expected = fit_state(value, (new,))
    else:
        expected = fit_state(value.view(-1, row_size), (new // row_size, row_size)).flatten()
    assert torch.equal(fitted["exp_avg"], expected) and fitted["step"] == 3


@pytest.mark.parametrize("old, axis", [((4,), 0), ((4, 6), 0), ((6, 4), 1)])
def test_fit_param_state_puts_new_cells_in_the_middle(old, axis):
    """Before the last three. Oracle: NumPy."""
    new = tuple(6 for _ in old)
    shapes = {"exp_avg": old}
    if len(old) == 2:
        shapes |= {"row_var": (old[0], 1), "col_var": (1, old[1]), "exp_avg_sq_row": old[:1], "exp_avg_sq_col": old[1:]}
    rng = numpy.random.default_rng(0)
    state = {key: torch.from_numpy(rng.uniform(size=shape)) for key, shape in shapes.items()}
    order = Order(axis, (0, 3, 4, 5, 1, 2))
    fitted = fit_param_state(
        torch.optim.Optimizer, {"step": torch.tensor(1.0), **state}, old, torch.zeros(new), order=order, row_size=2
    )
    for key, value in state.items():
        # The one dimension of four cells, if it has it.
        expected = value.numpy()
        for dim in [dim for dim, size in enumerate(value.shape) if size == 4]:
            expected = numpy.insert(expected, [1, 1], expected.mean(dim, keepdims=True), dim)
        numpy.testing.assert_allclose(fitted[key], expected, rtol=1e-12)  # float64: sums in another order


@pytest.mark.parametrize("new", [(9, 3), (3, 8), (5, 4)])
def test_fit_param_state_keeps_the_variance_of_centered_rmsprop_above_zero(new):
    """With one gradient everywhere, all the time, there is no variance but by rounding: torch would take a root of less
    than zero.
    """
    rng = numpy.random.default_rng(0)
    for value in rng.uniform(0.1, 2.0, size=200).astype("f"):
        grad_avg = torch.full((7, 3), float(value))
        state = {"square_avg": grad_avg.square(), "grad_avg": grad_avg}
        fitted = fit_param_state(torch.optim.RMSprop, state, (7, 3), torch.zeros(new))
        kept = tuple(slice(min(pair)) for pair in zip((7, 3), new))
        assert all(torch.equal(fitted[key][kept], state[key][kept]) for key in state)
        variance = fitted["square_avg"].addcmul(fitted["grad_avg"], fitted["grad_avg"], value=-1)
        variance[kept] = 0  # those are torch's own
        assert 0 <= variance.min() <= variance.max() < 1e-5


def test_fit_param_state_never_writes_to_the_old_state():
    grad_avg = torch.full((4, 3), 0.7)
    state = {"square_avg": grad_avg.square() * 0.999, "grad_avg": grad_avg, "momentum_buffer": torch.randn(4, 3)}
    of_complex = {key: value.to(torch.complex64) for key, value in state.items()}
    before = copy.deepcopy((state, of_complex))
    for shape in [(3, 4), (12,), (4, 3), (5, 4), (2, 2), (6,)]:
        for one in (state, of_complex):
            fit_param_state(torch.optim.RMSprop, one, (4, 3), torch.zeros(shape))
        assert same_tree((state, of_complex), before)


def test_fit_param_state_follows_the_memory_format_of_the_param():
    """torch's fused steps take the cells of param and state as they lie in memory."""
    old = nn.Parameter(torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last))
    new = nn.Parameter(torch.zeros(6, 3, 2, 2).to(memory_format=torch.channels_last))
    optimizer = torch.optim.Adam([old], fused=True)
    old.grad = torch.randn_like(old)
    optimizer.step()
    fitted = fit_param_state(torch.optim.Adam, optimizer.state[old], old.shape, new)
    assert fitted["exp_avg"].stride() == new.stride()
    assert torch.equal(fitted["exp_avg"][:4], optimizer.state[old]["exp_avg"])
    contiguous = nn.Parameter(torch.zeros(4, 3, 2, 2))  # the same shape, built anew
    fitted = fit_param_state(torch.optim.Adam, optimizer.state[old], old.shape, contiguous)
    assert fitted["exp_avg"].stride() == contiguous.stride()


@pytest.mark.parametrize("old, new", [((4, 3, 6), (6, 2, 7)), ((3, 4), (4, 2)), ((2, 3, 4), (3, 2, 5))])
def test_fit_param_state_treats_factored_state_as_its_param(old, new):
    """One dimension shrinks, another grows. Those of the factored state may have as many cells as before, and still it
    is no reshape.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = {"row_var": lambda shape: (*shape[:-1], 1), "col_var": lambda shape: (*shape[:-2], 1, shape[-1])}
    state = {key: torch.rand(shape(old), generator=generator, dtype=torch.float64) for key, shape in shapes.items()}
    fitted = fit_param_state(torch.optim.Adafactor, state, old, torch.zeros(new))
    for key, shape in shapes.items():
        numpy.testing.assert_allclose(
            fitted[key], naive(state[key].numpy(), shape(new), "mean", 1.0), rtol=1e-12
        )  # float64


@pytest.mark.parametrize(
    "name, options, is_sum",
    [("SGD", {"momentum": 0.9}, True), ("RMSprop", {"momentum": 0.9}, True), ("Muon", {}, False)],
)
def test_fit_param_state_puts_a_tenth_into_new_cells_of_a_sum(name, options, is_sum):
    """With one gradient all the time, a sum becomes several times what is added at each step; an average never."""
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    param = nn.Parameter(torch.ones(2, 2))
    optimizer = build(name, [param], options)
    for _ in range(300):
        param.grad = torch.ones(2, 2)
        optimizer.step()
    assert (optimizer.state[param]["momentum_buffer"].mean().item() > 1.5) == is_sum
    state, cls = {"momentum_buffer": torch.tensor([1.0, 3.0])}, type(optimizer)
    assert fit_param_state(cls, state, (2,), torch.zeros(3))["momentum_buffer"].tolist() == pytest.approx(
        [1, 3, 0.2 if is_sum else 2]
    )
    assert fit_param_state(cls, state, (2,), torch.zeros(3), on_growth="zero")["momentum_buffer"].tolist() == [
        1.0,
        3.0,
        0.0,
    ]


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
def test_fit_param_state_takes_new_cells_of_copies_from_the_param():
    """What is as the param was before a step that moves it hardly at all is a copy of it."""
    import pytorch_optimizer as library

    found = set()
    for name in library.get_supported_optimizers():
        cls, param, options = library.load_optimizer(name), nn.Parameter(torch.randn(4, 3) + 2), {"lr": 1e-9}
        options |= (
            {"num_iterations": 20} if name == "ranger21" else {"use_shadow": True} if name.startswith("emo") else {}
        )
        before = param.detach().clone()
        try:
            optimizer = cls([param], **options)
            param.grad = torch.full((4, 3), 1e-3)
            optimizer.step()
        except Exception:  # it needs a closure, or more
            continue
        state, new = dict(optimizer.state[param]), nn.Parameter(torch.cat([before, torch.randn(2, 3)]))
        copies = [
            key
            for key, value in tensors(state).items()
            if value.shape == (4, 3) and torch.allclose(value.float(), before, atol=0.1)
        ]
        if not copies:
            continue
        found.add(cls.__name__)
        state = {key: value for key, value in state.items() if key in copies}
        for key, value in fit_param_state(cls, state, (4, 3), new).items():
            assert torch.equal(value[:4], state[key]) and torch.equal(value[4:], new[4:]), (name, key)
    assert len(found) > 12 and {"MADGRAD", "Prodigy", "ScheduleFreeAdamW"} <= found
