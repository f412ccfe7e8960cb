"""eligibility_gradients against recorded numbers, against a naive loop, and by what must hold for any input."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinc_torchopt.addons.online import adjoint, gradients, scan
from thinc_torchopt.addons.online import cells as layer_cells
from thinc_torchopt.addons.online.cells import make_cell
from thinc_torchopt.addons.online.eligibility import ParamDimTraces
from thinc_torchopt.addons.online.gradients import eligibility_gradients
from thinc_torchopt.addons.online.relations import Dense, Elementwise
from thinc_torchopt.core.checks import Section
from thinc_torchopt.core.errors import ConfigError, ShapeError

from ...conftest import SHARED, needs_gpu
from .reference import ACTS, CELLS, bptt, distance, naive, problem, step

ORACLES = SHARED / "oracles" / "drtrl_cases.json"
# float64: what is left is rounding, over some dozen steps.
EXACT = 1e-10
HERE = Section("[here]")

shapes = st.fixed_dictionaries(
    {
        "T": st.integers(1, 9),
        "B": st.integers(1, 3),
        "X": st.integers(1, 4),
        "H": st.integers(1, 4),
        "seed": st.integers(0, 10**6),
    }
)
cells, acts = st.sampled_from(CELLS), st.sampled_from(sorted(ACTS))
some_examples = settings(max_examples=20)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that a few steps are several blocks, and the last one is not full."""
    monkeypatch.setattr(gradients, "BLOCK", 4)


def recorded():
    if not ORACLES.is_file():
        return [pytest.param(None, None, marks=pytest.mark.skip(reason="../shared/oracles is absent"))]
    return [pytest.param(name, case, id=name) for name, case in json.loads(ORACLES.read_text())["cases"].items()]


@pytest.mark.parametrize(
    "how",
    [{}, {"fast_solve": False}, {"traces": "adjoint"}, {"traces": "auto"}],
    ids=["traces", "func", "adjoint", "auto"],
)
@pytest.mark.parametrize(("name", "case"), recorded())
def test_gradients_recorded_cases(name, case, how):
    """To 1e-5 relative: they were computed in float32."""
    values = {key: torch.tensor(value, dtype=torch.float32) for key, value in case["inputs"].items()}
    x, dh = values.pop("x"), values.pop("dLdh")
    cell, act = case["spec"]["cell"], case["spec"]["act"]
    grads, outputs = eligibility_gradients(cell, values, x, dh, activation=act, **how)
    assert list(grads) == list(values)
    for result in case["results"].values():
        assert distance(grads, {key: torch.tensor(result[key]) for key in grads}) < 1e-5
    exact, _ = eligibility_gradients(
        cell, values, x, dh, activation=act, vjp_method="multi-step", window=case["spec"]["T"]
    )
    assert distance(exact, {key: torch.tensor(case["bptt"][key]) for key in exact}) < 1e-5
    assert torch.allclose(outputs, torch.tensor(case["bptt"]["state.h"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("act", sorted(ACTS))
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_naive_loop(cell, act):
    """Each cell with each activation, from a state that is not zero; more steps than a block has."""
    w, x, dh = problem(cell, T=6, B=2, X=2, H=3, seed=3)
    state = [torch.randn(2, 3, dtype=x.dtype) for _ in range(2 if "lstm" in cell else 1)]
    expected, _ = naive(cell, w, x, dh, act=act, state=state)
    for how in ({}, {"fast_solve": False}, {"traces": "adjoint"}):
        found, outputs = eligibility_gradients(cell, w, x, dh, activation=act, state=state, **how)
        assert distance(found, expected) < EXACT
    assert torch.allclose(outputs, bptt(cell, w, x, dh, act=act, state=state)[3], atol=EXACT)


@some_examples
@given(cell=cells, act=acts, shape=shapes)
def test_gradients_all_ways_agree(cell, act, shape):
    """Traces in blocks, step by step by torch.func, and backwards in time."""
    w, x, dh = problem(cell, **shape)
    lengths = torch.randint(0, shape["T"] + 1, (shape["B"],), generator=torch.Generator().manual_seed(shape["seed"]))
    for some in (None, lengths):
        fast, outputs = eligibility_gradients(cell, w, x, dh, activation=act, lengths=some)
        for how in ({"fast_solve": False}, {"traces": "adjoint"}):
            other, same = eligibility_gradients(cell, w, x, dh, activation=act, lengths=some, **how)
            assert distance(other, fast) < EXACT or all((value.abs() < EXACT).all() for value in fast.values())
            assert torch.allclose(outputs, same, atol=EXACT)


METHODS = [
    {},
    {"traces": "adjoint"},
    {"vjp_method": "multi-step", "window": 3},
    {"normalize_matrix_spectrum": True},
    {"trace_dtype": torch.float64},
]


@pytest.mark.parametrize("how", METHODS, ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_slow_and_fast_solve_agree(cell, how, monkeypatch):
    """To 1e-6 in float32, and to rounding in float64. The slow one uses no closed form, whatever the method."""
    lengths = [7, 0, 5]
    expected = {}
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, EXACT)):
        w, x, dh = problem(cell, T=7, B=3, X=2, H=4, seed=11, dtype=dtype)
        expected[tolerance] = eligibility_gradients(cell, w, x, dh, lengths=lengths, **how)[0], (w, x, dh)

    def closed(*args):
        raise AssertionError("a closed form")

    monkeypatch.setattr(layer_cells.CELLS[cell], "linearize", closed)
    for relation in (Dense, Elementwise):
        for name in ("grads", "instant", "add_instant_", "add_block_"):
            monkeypatch.setattr(relation, name, closed)
    for tolerance, (fast, inputs) in expected.items():
        slow, _ = eligibility_gradients(cell, *inputs, lengths=lengths, fast_solve=False, **how)
        assert distance(slow, fast) < tolerance
    with pytest.raises(AssertionError, match="a closed form"):
        eligibility_gradients(cell, *inputs, lengths=lengths, **how)


@pytest.mark.parametrize("window", [1, 3, 5, 7, 9])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_windows(cell, window):
    """Exact inside a window; before it, the naive traces, times what the exact gradient of the state is there."""
    w, x, dh = problem(cell, T=7, B=2, X=2, H=3, seed=5)
    _, traces = naive(cell, w, x, dh)
    expected = {name: torch.zeros_like(value) for name, value in w.items()}
    state = [torch.zeros(2, 3, dtype=x.dtype) for _ in range(2 if "lstm" in cell else 1)]
    for start in range(0, 7, window):
        steps = slice(start, min(start + window, 7))
        inside, before, _, _ = bptt(cell, w, x[steps], dh[steps], state=state)
        for name in w:
            expected[name] += inside[name]
            if start:
                signal = torch.stack(before, -1)
                signal = signal if w[name].ndim == 1 else signal[:, None]
                expected[name] += (signal * traces[start - 1][name]).sum((0, -1))
        for t in range(steps.start, steps.stop):
            now = [step(cell, w, x[t, b], tuple(s[b] for s in state)) for b in range(2)]
            state = [torch.stack([row[a] for row in now]) for a in range(len(state))]
    for fast in (True, False):
        found, _ = eligibility_gradients(cell, w, x, dh, vjp_method="multi-step", window=window, fast_solve=fast)
        assert distance(found, expected) < EXACT


@some_examples
@given(cell=cells, shape=shapes, how=st.sampled_from([{}, {"normalize_matrix_spectrum": True}, {"traces": "adjoint"}]))
def test_gradients_add_up_over_samples_in_any_order(cell, shape, how):
    """Also if traces are normalized: samples don't influence each other."""
    w, x, dh = problem(cell, **shape, scale=2.0)
    rng = torch.Generator().manual_seed(shape["seed"])
    lengths = torch.randint(0, shape["T"] + 1, (shape["B"],), generator=rng)
    order = torch.randperm(shape["B"], generator=rng)
    whole, outputs = eligibility_gradients(cell, w, x, dh, lengths=lengths, **how)
    mixed, others = eligibility_gradients(cell, w, x[:, order], dh[:, order], lengths=lengths[order], **how)
    assert torch.allclose(outputs[:, order], others, atol=EXACT)
    alone = {name: torch.zeros_like(value) for name, value in w.items()}
    for b, length in enumerate(lengths.tolist()):
        if length:
            part = x[:length, b : b + 1], dh[:length, b : b + 1]
            for name, grad in eligibility_gradients(cell, w, *part, **how)[0].items():
                alone[name] += grad
    for name in w:
        assert torch.allclose(whole[name], mixed[name], atol=EXACT)
        assert torch.allclose(whole[name], alone[name], atol=1e-9)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "indrnn"])
def test_gradients_normalized(cell):
    """By a plain loop over samples: D by its largest eigenvalue, instant terms and traces by their largest value."""
    w, x, dh = problem(cell, T=5, B=2, X=2, H=3, seed=1, scale=4.0)
    x = x * 3
    n = 2 if cell == "lstm" else 1
    from .reference import jacobians

    expected = {name: torch.zeros_like(value) for name, value in w.items()}
    for b in range(2):
        state = (torch.zeros(3, dtype=x.dtype),) * n
        eps = {name: torch.zeros(*value.shape, n, dtype=x.dtype) for name, value in w.items()}
        for t in range(5):
            state, D, Df, inputs = jacobians(cell, w, x[t, b], state, "tanh")
            D = torch.tensor(D, dtype=x.dtype)
            D = D / torch.linalg.eigvals(D).abs().amax(-1).clamp(min=1)[:, None, None]
            for name, read in inputs.items():
                reach = torch.tensor(Df[name], dtype=x.dtype)
                parts = {"u": read[:, None] * reach} if name == "u" else {}
                if name != "u":
                    parts = {f"{name}.weight": read[:, None, None] * reach, f"{name}.bias": reach}
                for key, instant in parts.items():
                    new = (D * eps[key][..., None, :]).sum(-1) + instant / instant.abs().max().clamp(min=1)
                    eps[key] = new / new.abs().max().clamp(min=1)
                    expected[key] += dh[t, b] * eps[key][..., 0]
    for fast in (True, False):
        found, _ = eligibility_gradients(cell, w, x, dh, normalize_matrix_spectrum=True, fast_solve=fast)
        assert distance(found, expected) < EXACT
    plain, _ = eligibility_gradients(cell, w, x, dh)
    assert distance(plain, expected) > 0.01


@some_examples
@given(cell=cells, shape=shapes, size=st.integers(1, 4), kept=st.booleans())
def test_gradients_in_windows(cell, shape, size, kept):
    """And of many steps only the states at the beginning of each window are kept, the others are computed again."""
    w, x, dh = problem(cell, **shape)
    lengths = torch.randint(0, shape["T"] + 1, (shape["B"],), generator=torch.Generator().manual_seed(shape["seed"]))
    for some in (None, lengths):
        how = {"lengths": some, "traces": "adjoint"}
        expected, outputs = eligibility_gradients(cell, w, x, dh, **how)
        with pytest.MonkeyPatch.context() as patch:
            if not kept:
                patch.setattr(adjoint, "_KEPT_ROWS", 0)
            patch.setattr(adjoint, "_ROWS", size * shape["B"])
            patch.setattr(scan, "_ROWS", size * shape["B"])
            assert adjoint.states_to_keep(shape["T"], shape["B"]) == (1 if kept else size)
            found, same = eligibility_gradients(cell, w, x, dh, **how)
        assert torch.allclose(same, outputs, atol=EXACT)
        assert all(torch.allclose(found[name], expected[name], atol=EXACT) for name in w)


def test_gradients_that_need_less_memory():
    """Traces have as many numbers as the weights, states as the steps have units."""
    w, *_ = problem("rnn", T=1, B=1, X=2, H=3)  # 18 weights
    for how, expected in {"auto": [False, True], "forward": [True, True], "adjoint": [False, False]}.items():
        assert [gradients.Method(traces=how).uses_traces(None, w, n) for n in (6, 7)] == expected
    assert gradients.Method(traces="auto", trace_dtype=torch.float16).uses_traces(None, w, 6)
    assert [adjoint.states_to_keep(n, 2) for n in (8 * 1024, 8 * 1024 + 1)] == [1, 512]
    assert adjoint.states_to_keep(10, 10_000) == 1


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_one_sequence(cell):
    """Without a dimension for samples, as torch.nn.GRU takes it."""
    w, x, dh = problem(cell, T=6, B=1, X=2, H=3)
    state = [torch.randn(1, 3, dtype=x.dtype) for _ in make_cell(cell, "tanh", HERE).states]
    for how in ({}, {"traces": "adjoint"}, {"lengths": [4]}):
        expected, outputs = eligibility_gradients(cell, w, x, dh, state=state, **how)
        found, same = eligibility_gradients(cell, w, x[:, 0], dh[:, 0], state=[s[0] for s in state], **how)
        assert torch.equal(same, outputs[:, 0]) and all(torch.equal(found[name], expected[name]) for name in w)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # Rounding of each trace at each step, and in float32 of the rest too.
    [(torch.float64, 1e-10), (torch.float32, 1e-6), (torch.float16, 0.005), (torch.bfloat16, 0.04)],
)
@pytest.mark.parametrize(
    "how", [{}, {"normalize_matrix_spectrum": True}, {"vjp_method": "multi-step", "window": 3}], ids=str
)
def test_gradients_of_traces_in_another_dtype(cell, dtype, tolerance, how, monkeypatch):
    monkeypatch.setattr(gradients, "BLOCK", 2)
    w, x, dh = problem(cell, T=6, B=3, X=4, H=5)
    expected, outputs = eligibility_gradients(cell, w, x, dh, **how)
    found, same = eligibility_gradients(cell, w, x, dh, trace_dtype=dtype, **how)
    assert torch.equal(same, outputs) and all(grad.dtype == torch.float64 for grad in found.values())
    assert distance(found, expected) < tolerance
    assert dtype is torch.float64 or distance(found, expected) > tolerance / 1e4


def test_gradients_of_a_long_sequence():
    """More steps than the chunks of inputs have."""
    w, x, dh = problem("torch-lstm", T=70, B=2, X=2, H=2)
    expected, _ = naive("torch-lstm", w, x, dh)
    for traces in ("forward", "adjoint"):
        assert distance(eligibility_gradients("torch-lstm", w, x, dh, traces=traces)[0], expected) < EXACT


def good():
    w, x, dh = problem("torch-gru", T=3, B=2, X=2, H=3, dtype=torch.float32)
    return {"cell": "torch-gru", "weights": w, "x": x, "output_grads": dh}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"cell": "GRU"}, ConfigError, "'torch-gru'"),
        ({"activation": "gelu"}, ConfigError, "'relu'"),
        ({"vjp_method": "multi"}, ConfigError, "'multi-step'"),
        ({"vjp_method": "multi-step"}, ConfigError, "window"),
        ({"window": 3}, ConfigError, "window"),
        ({"vjp_method": "multi-step", "window": 0}, ConfigError, "at least 1"),
        ({"fast_solve": "yes"}, ConfigError, "'fast_solve'.*true or false"),
        ({"normalize_matrix_spectrum": 1}, ConfigError, "'normalize_matrix_spectrum'.*true or false"),
        ({"trace_dtype": "bfloat16"}, ConfigError, "'trace_dtype' in eligibility_gradients.*a dtype of floats"),
        ({"trace_dtype": torch.int8}, ConfigError, "'trace_dtype'.*torch.int8"),
        ({"traces": "adjoint", "trace_dtype": torch.float16}, ConfigError, "'traces'.*trace_dtype"),
        ({"traces": "backward"}, ConfigError, "'adjoint'"),
        ({"traces": "adjoint", "normalize_matrix_spectrum": True}, ConfigError, "normalize_matrix_spectrum"),
        ({"x": torch.zeros(0, 2, 2), "output_grads": torch.zeros(0, 2, 3)}, ShapeError, "none of them 0"),
        ({"x": torch.zeros(3, 2)}, ShapeError, r"\(3, 2\)"),
        ({"output_grads": torch.zeros(3, 1, 3)}, ShapeError, r"\(3, 1, 3\)"),
        ({"x": torch.full((3, 2, 2), float("nan"))}, ConfigError, "'x'.*finite"),
        ({"output_grads": torch.full((3, 2, 3), float("inf"))}, ConfigError, "'output_grads'.*finite"),
        ({"x": torch.zeros(3, 2, 2) + 1j}, ConfigError, "'x'.*real numbers.*complex64"),
        ({"output_grads": torch.zeros(3, 2, 3) + 1j}, ConfigError, "'output_grads'.*real numbers"),
        ({"state": [torch.zeros(2, 3) + 1j]}, ConfigError, "'state'.*real numbers"),
        ({"state": [torch.full((2, 3), float("nan"))]}, ConfigError, "'state'.*finite"),
        ({"state": 3}, ConfigError, "'state'.*a list"),
        ({"x": "text"}, ConfigError, "'x'"),
        ({"weights": [1.0]}, ConfigError, "'weights'.*dict"),
        ({"x": torch.zeros(3, 2, 5)}, ShapeError, r"Wn.weight.*\(5, 3\).*\(2, 3\)"),
        ({"lengths": [4, 1]}, ConfigError, "0 to 3"),
        ({"lengths": [1]}, ConfigError, "2 whole numbers"),
        ({"lengths": [1.0, 2.0]}, ConfigError, "whole numbers"),
        ({"state": [torch.zeros(2, 2)]}, ShapeError, r"\(2, 3\)"),
        ({"weights": {**good()["weights"], "Wq.bias": torch.zeros(3)}}, ShapeError, "Wq.bias.*expected none"),
        ({"weights": {"Wr.bias": torch.zeros(3)}}, ShapeError, "Whn.bias.*found none"),
    ],
)
def test_gradients_errors(change, error, says):
    with pytest.raises(error, match=says):
        eligibility_gradients(**{**good(), **change})


@pytest.mark.parametrize(
    ("dtype", "all_of_them"), [(torch.float64, False), (torch.complex64, True), (torch.int64, True)]
)
def test_traces_refuse_weights_of_other_dtypes(dtype, all_of_them):
    weights = good()["weights"]
    changed = {name: w.to(dtype) if all_of_them or name == "Wn.bias" else w for name, w in weights.items()}
    with pytest.raises(ConfigError, match=r"'weights'.*floats of one dtype"):
        ParamDimTraces(make_cell("torch-gru", "tanh", Section("test")), changed, 2)


def test_gradients_are_in_the_dtype_of_a_wider_state():
    kwargs = good()
    found, outputs = eligibility_gradients(**kwargs, state=[torch.ones(2, 3, dtype=torch.float64)])
    assert outputs.dtype is torch.float64 and {grad.dtype for grad in found.values()} == {torch.float64}


def test_gradients_takes_arrays_and_lists_and_leaves_them_as_they_are():
    kwargs = good()
    expected, _ = eligibility_gradients(**kwargs)
    arrays = {
        **kwargs,
        "weights": {name: w.numpy() for name, w in kwargs["weights"].items()},
        "x": kwargs["x"].tolist(),
    }
    found, _ = eligibility_gradients(**arrays)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert all(torch.equal(a, b) for a, b in zip(good()["weights"].values(), kwargs["weights"].values()))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_on_a_gpu(cell):
    w, x, dh = problem(cell, T=9, B=3, X=4, H=5)
    lengths = [9, 2, 5]
    for how in ({}, {"traces": "adjoint"}, {"vjp_method": "multi-step", "window": 4}):
        expected, outputs = eligibility_gradients(cell, w, x, dh, lengths=lengths, **how)
        moved = {name: value.cuda() for name, value in w.items()}
        found, there = eligibility_gradients(cell, moved, x.cuda(), dh.cuda(), lengths=lengths, **how)
        assert torch.allclose(there.cpu(), outputs, atol=EXACT)
        assert distance({name: grad.cpu() for name, grad in found.items()}, expected) < EXACT
