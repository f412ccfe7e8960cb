"""Closed forms against torch.func, traces against a naive loop, and cells of one's own."""

import numpy
import pytest
import torch

from thinc_torchopt.addons.online.cells import CELLS, RNN, Cell, TorchLSTM
from thinc_torchopt.addons.online.eligibility import ParamDimTraces
from thinc_torchopt.addons.online.functional import check_cell
from thinc_torchopt.addons.online.gradients import eligibility_gradients
from thinc_torchopt.addons.online.node import recurrent_nodes
from thinc_torchopt.addons.online.online_rnn import OnlineRNN
from thinc_torchopt.addons.online.relations import Dense, Elementwise
from thinc_torchopt.core.checks import Section
from thinc_torchopt.core.errors import ConfigError, ShapeError

from . import reference
from .reference import distance, naive, problem

HERE = Section("[here]")
# float64, a few steps: rounding.
EXACT = 1e-11


def begin(cell, B, H):
    return tuple(torch.randn(B, H, dtype=torch.float64) for _ in CELLS[cell].states)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("cell", reference.CELLS)
def test_cells_traces_after_each_step(cell, fast):
    w, x, dh = problem(cell, T=5, B=2, X=2, H=3)
    state = begin(cell, 2, 3)
    expected, history = naive(cell, w, x, dh, state=state)
    traces = ParamDimTraces(CELLS[cell](), w, 2, fast_solve=fast)
    for t in range(5):
        state = traces.update(x[t], state)
        traces.solve(dh[t])
        assert distance({name: traces.trace_of(name) for name in w}, history[t]) < EXACT
    assert distance(traces.grads, expected) < EXACT and not traces.snapshot().is_zero
    before = {name: traces.trace_of(name) for name in w}
    traces.reset([1])
    assert all(torch.equal(traces.trace_of(name)[0], before[name][0]) for name in w)
    assert not any(traces.trace_of(name)[1].any() for name in w)
    traces.reset()
    assert traces.snapshot().is_zero and ParamDimTraces(CELLS[cell](), w, 2).snapshot().is_zero
    traces.clear_grads()
    assert not any(traces.trace_of(name).any() or traces.grads[name].any() for name in w)


@pytest.mark.parametrize("cell", reference.CELLS)
def test_cells_say_what_is_truncated(cell):
    w, _, _ = problem(cell, T=1, B=1, X=2, H=3)
    built, known = CELLS[cell](), CELLS[cell].truncated
    built.truncated = None
    assert check_cell(built, w, HERE) == known == {"gru": ("Wr",), "mgu": ("Wf",)}.get(cell, ())


# ---------------------------------------------------------------------- cells of one's own


class Leaky(Cell):
    """A cell as a user writes it: two states, a dense and an elementwise relation."""

    states = ("h", "slow")
    relations = (Dense("W"), Elementwise("a", ("slow",)))

    def step(self, x, state, relate):
        h, slow = state
        slow = 0.9 * slow + 0.1 * h + relate("a", slow)
        return torch.tanh(relate("W", x, h) + slow), slow


def test_cells_of_ones_own():
    """By hand: D and Df of Leaky from its formula, in a plain loop."""
    rng = torch.Generator().manual_seed(0)
    w = {
        name: torch.randn(*shape, generator=rng, dtype=torch.float64) * 0.3
        for name, shape in {"W.weight": (5, 3), "W.bias": (3,), "a": (3,)}.items()
    }
    x, dh = (torch.randn(6, 2, n, generator=rng, dtype=torch.float64) for n in (2, 3))
    expected = {name: torch.zeros_like(value) for name, value in w.items()}
    own = w["W.weight"][2:].diagonal()
    for b in range(2):
        h = slow = torch.zeros(3, dtype=torch.float64)
        of_W = [torch.zeros(6, 3, dtype=torch.float64) for _ in range(2)]  # the bias as the last row
        of_a = [torch.zeros(3, dtype=torch.float64) for _ in range(2)]
        for t in range(6):
            read = torch.cat((x[t, b], h, torch.ones(1, dtype=torch.float64)))
            new_slow = 0.9 * slow + 0.1 * h + w["a"] * slow
            new_h = torch.tanh(read[:-1] @ w["W.weight"] + w["W.bias"] + new_slow)
            g, keep = 1 - new_h**2, 0.9 + w["a"]
            of_W = [g * (own + 0.1) * of_W[0] + g * keep * of_W[1] + read[:, None] * g, 0.1 * of_W[0] + keep * of_W[1]]
            of_a = [g * (own + 0.1) * of_a[0] + g * keep * of_a[1] + slow * g, 0.1 * of_a[0] + keep * of_a[1] + slow]
            h, slow = new_h, new_slow
            expected["W.weight"] += dh[t, b] * of_W[0][:-1]
            expected["W.bias"] += dh[t, b] * of_W[0][-1]
            expected["a"] += dh[t, b] * of_a[0]
    for how in ({}, {"traces": "adjoint"}):
        assert distance(eligibility_gradients(Leaky(), w, x, dh, **how)[0], expected) < EXACT


class Shared(Cell):
    """Each of its relations is used twice in a step. Units read only their own state."""

    relations = (Dense("W", ("x",)), Elementwise("u"))

    def step(self, x, state, relate):
        (h,) = state
        gate = torch.sigmoid(relate("W", x) + relate("u", h))
        return (gate * h + (1 - gate) * torch.tanh(relate("W", x * x) - relate("u", torch.sin(h))),)


@pytest.mark.parametrize(
    "how", [{}, {"traces": "adjoint"}, {"vjp_method": "multi-step", "window": 2}, {"trace_dtype": torch.float64}]
)
def test_cells_may_use_a_relation_twice(how, monkeypatch):
    """Of elementwise recurrence the gradient is that of autograd."""
    monkeypatch.setattr("thinc_torchopt.addons.online.gradients.BLOCK", 3)
    rng = torch.Generator().manual_seed(0)
    shapes = {"W.weight": (3, 4), "W.bias": (4,), "u": (4,)}
    w = {name: torch.randn(*shape, generator=rng, dtype=torch.float64) for name, shape in shapes.items()}
    x, dh = (torch.randn(7, 2, n, generator=rng, dtype=torch.float64) for n in (3, 4))
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    h, loss = torch.zeros(2, 4, dtype=torch.float64), 0.0
    for x_t, dh_t in zip(x, dh):

        def dense(inputs):
            return inputs @ leaves["W.weight"] + leaves["W.bias"]

        gate = torch.sigmoid(dense(x_t) + leaves["u"] * h)
        h = gate * h + (1 - gate) * torch.tanh(dense(x_t * x_t) - leaves["u"] * torch.sin(h))
        loss = loss + (h * dh_t).sum()
    expected = dict(zip(w, torch.autograd.grad(loss, list(leaves.values()))))
    assert distance(eligibility_gradients(Shared(), w, x, dh, **how)[0], expected) < EXACT
    traces, state = ParamDimTraces(Shared(), w, 2), (torch.zeros(2, 4, dtype=torch.float64),)
    for x_t, dh_t in zip(x, dh):
        state = traces.update(x_t, state)
        traces.solve(dh_t)
    assert distance(traces.grads, expected) < EXACT
    joined, state, steps = ParamDimTraces(Shared(), w, 2), (torch.zeros(2, 4, dtype=torch.float64),), []
    for x_t, dh_t in zip(x, dh):
        step = joined.linearize(x_t, state)
        state = step.state
        steps.append((step, dh_t))
    joined.learn(steps[:4])
    joined.learn(steps[4:])
    assert distance(joined.grads, expected) < EXACT
    normalized, _ = eligibility_gradients(Shared(), w, x, dh, normalize_matrix_spectrum=True)
    assert distance(normalized, expected) > EXACT  # its traces are larger than 1


W = Dense("W")


def cell_with(step, relations=(W,), states=("h",)):
    return type("Own", (Cell,), {"step": step, "relations": relations, "states": states})()


def weights_of(cell, width=2, units=3):
    shapes = {name: shape for relation in cell.relations for name, shape in relation.shapes(width, units).items()}
    return {name: torch.ones(*shape) * 0.1 for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (cell_with(lambda self, x, s, r: s), "used in a step, for 'W', found 'none'"),
        (cell_with(lambda self, x, s, r: (r("V", x, s[0]),)), r"\['W'\].*'V'"),
        (cell_with(lambda self, x, s, r: (r("W", x, s[0])[..., :2],)), r"states.*\(2, 2\)"),
        (cell_with(lambda self, x, s, r: r("W", x, s[0])), "tuple of 1 states.*Tensor"),
        (cell_with(lambda self, x, s, r: (r("W", s[0]),)), "matching shapes"),
        (cell_with(lambda self, x, s, r: (r("W", x, s[0]) * float(s[0].sum() > 0),)), "torch.func can differentiate"),
        (cell_with(lambda self, x, s, r: s, relations=()), "at least one relation"),
    ],
    ids=["never", "unknown", "narrow", "no tuple", "shapes", "item", "none"],
)
def test_cells_that_traces_cant_follow(cell, says):
    x, dh = torch.ones(2, 1, 2), torch.ones(2, 1, 3)
    with pytest.raises(ConfigError, match=says):
        eligibility_gradients(cell, weights_of(cell), x, dh)
    if cell.relations:
        with pytest.raises(ConfigError, match=says):
            ParamDimTraces(cell, weights_of(cell), 1)


@pytest.mark.parametrize(
    ("relations", "name"),
    [((W, W), "W"), ((W, Elementwise("W")), "W"), ((W, Elementwise("W.bias")), "W.bias")],
    ids=["twice", "two kinds", "of a weight"],
)
def test_cells_relations_have_different_names(relations, name):
    """Those of one name would share weights and traces, and their gradients would add up."""
    cell = cell_with(lambda self, x, s, r: (torch.tanh(r("W", x, s[0])),), relations)
    for use in (
        lambda: eligibility_gradients(cell, weights_of(cell), torch.ones(2, 1, 2), torch.ones(2, 1, 3)),
        lambda: ParamDimTraces(cell, weights_of(cell), 1),
        lambda: OnlineRNN(3, 2, cell=cell),
    ):
        with pytest.raises(ConfigError, match=f"'cell'.*relations with different names, found '{name}'"):
            use()


class Plain(RNN):
    """torch.nn.RNN(bias=False)."""

    W = Dense("W", has_bias=False)
    relations = (W,)


class PlainGates(TorchLSTM):
    """torch.nn.LSTM(bias=False): its gates are computed by one matmul."""

    relations = Wi, Wg, Wf, Wo = tuple(Dense(name, has_bias=False) for name in ("Wi", "Wg", "Wf", "Wo"))


@pytest.mark.parametrize("how", [{}, {"fast_solve": False}, {"traces": "adjoint"}], ids=str)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("plain", "cell"), [(Plain, "rnn"), (PlainGates, "torch-lstm")])
def test_cells_without_biases_are_those_with_zeros(plain, cell, how, normalize):
    w, x, dh = problem(cell, T=5, B=2, X=2, H=3)
    zeros = {name: torch.zeros_like(value) if value.ndim == 1 else value for name, value in w.items()}
    how = {"normalize_matrix_spectrum": True, "fast_solve": how.get("fast_solve", True)} if normalize else how
    expected, outputs = eligibility_gradients(cell, zeros, x, dh, **how)
    matrices = {name: value for name, value in w.items() if value.ndim == 2}
    found, same = eligibility_gradients(plain(), matrices, x, dh, **how)
    assert found.keys() == matrices.keys() and torch.allclose(same, outputs, atol=EXACT)
    assert distance(found, {name: expected[name] for name in matrices}) < EXACT
    with pytest.raises(ShapeError, match=r"bias.*expected none"):
        eligibility_gradients(plain(), zeros, x, dh)


@pytest.mark.parametrize("learning", ["d-rtrl", "bptt"])
@pytest.mark.parametrize(("plain", "module"), [(Plain, torch.nn.RNN), (PlainGates, torch.nn.LSTM)])
def test_cells_without_biases_in_a_layer(plain, module, learning):
    """torch's, of one window. float32: 1e-5."""
    torch.manual_seed(0)
    theirs, x = module(2, 3, bias=False), torch.randn(4, 1, 2, requires_grad=True)
    how = {"vjp_method": "multi-step", "window": 4} if learning == "d-rtrl" else {}
    layer = OnlineRNN(3, 2, cell=plain(), learning=learning, **how)
    layer.initialize()
    (node,) = recurrent_nodes(layer)
    suffixes = ["_i", "_f", "_g", "_o"] if module is torch.nn.LSTM else [""]
    assert sorted(node.param_names) == sorted(f"{letter}{suffix}" for letter in "WU" for suffix in suffixes)
    for letter, matrix in (("W", theirs.weight_ih_l0), ("U", theirs.weight_hh_l0)):
        for suffix, gate in zip(suffixes, matrix.detach().chunk(len(suffixes))):
            node.set_param(f"{letter}{suffix}", gate.numpy().copy())
    expected, _ = theirs(x)
    expected.sum().backward()
    found, backprop = layer.begin_update(x.detach().numpy())
    assert numpy.allclose(found, expected.detach().numpy(), atol=1e-5)
    assert numpy.allclose(backprop(numpy.ones_like(found)), x.grad, atol=1e-5)
    for letter, matrix in (("W", theirs.weight_ih_l0), ("U", theirs.weight_hh_l0)):
        for suffix, grad in zip(suffixes, matrix.grad.chunk(len(suffixes))):
            assert numpy.allclose(node.get_grad(f"{letter}{suffix}"), grad.numpy(), atol=1e-5)
    with pytest.raises(ConfigError, match=r"'chrono'.*no bias"):
        OnlineRNN(3, 2, cell=PlainGates(), chrono=100)


@pytest.mark.parametrize("how", [{"learning": "bptt"}, {"vjp_method": "multi-step", "window": 2}], ids=str)
def test_cells_that_ignore_their_input(how):
    own = cell_with(lambda self, x, s, r: (torch.cos(r("W", s[0])),), relations=(Dense("W", ("h",)),))
    layer = OnlineRNN(3, 2, cell=own, **how)
    layer.initialize()
    found, backprop = layer.begin_update(numpy.ones((4, 1, 2), "f"))
    assert not backprop(numpy.ones_like(found)).any() and recurrent_nodes(layer)[0].get_grad("U").any()


def test_cells_say_which_weights_have_traces():
    cell = Plain()
    traces = ParamDimTraces(cell, weights_of(cell), 1)
    assert traces.trace_of("W.weight").shape == (1, 5, 3, 1) and traces.cell is cell
    with pytest.raises(ConfigError, match=r"'weight'.*expected 'W.weight', found 'nope'"):
        traces.trace_of("nope")
    with pytest.raises(ConfigError, match=r"'has_bias'.*true or false"):
        Dense("W", has_bias="no")


def test_cells_whose_relation_reaches_two_units_are_truncated():
    cell = cell_with(lambda self, x, s, r: (torch.tanh(r("W", x, s[0]).cumsum(-1)),))
    assert check_cell(cell, weights_of(cell), HERE) == ("W",)
    assert check_cell(Leaky(), weights_of(Leaky()), HERE) == ()
