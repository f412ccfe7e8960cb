"""Linear recurrences in blocks, against a plain loop; steps without padding, against torch's PackedSequence."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.online.cells import CELLS
from thinc_torchopt.addons.online.scan import Packing, linear_scan, scan, windows

from .reference import problem


def loop(a, b, begin):
    found = []
    for a_t, b_t in zip(a, b):
        begin = a_t * begin + b_t
        found.append(begin)
    return torch.stack(found)


def some(n_steps, *shape, seed, dtype=torch.float64):
    """Decays from 0 to 1, both among them."""
    rng = torch.Generator().manual_seed(seed)
    a = torch.rand(n_steps, *shape, generator=rng, dtype=dtype)
    a = torch.where(a < 0.1, 0.0, torch.where(a > 0.9, 1.0, a))
    return a, torch.randn(n_steps, *shape, generator=rng, dtype=dtype), torch.randn(*shape, generator=rng, dtype=dtype)


@given(n_steps=st.integers(1, 300), n_batch=st.integers(0, 3), units=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_linear_scan_is_a_loop(n_steps, n_batch, units, seed):
    values = some(n_steps, n_batch, units, seed=seed)
    # float64, some hundred steps.
    assert torch.allclose(linear_scan(*values), loop(*values), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n_steps", [1000, 10_000])
def test_linear_scan_of_long_texts_in_float32(n_steps):
    """As near to the exact values as the loop is: both within 2e-5 of the largest one."""
    values = some(n_steps, 1, 8, seed=0)
    exact = loop(*values)
    short = [tensor.float() for tensor in values]
    for found in (linear_scan(*short), loop(*short)):
        assert (found - exact).abs().max() < 2e-5 * exact.abs().max()


def test_linear_scan_of_decays_that_vanish():
    """Products of decays are 0 at once: nothing is divided by them."""
    a, b, begin = some(100, 2, 3, seed=1)
    assert torch.equal(linear_scan(a * 0, b, begin), b)
    assert linear_scan(a * 1e-300, b, begin).isfinite().all()


@pytest.mark.parametrize("cell", ["mingru", "lstm"])
def test_scan_returns_states_of_sequences_that_end(cell):
    w, x, _ = problem(cell, T=5, B=3, X=2, H=3)
    begin = tuple(torch.rand(3, 3, dtype=x.dtype) for _ in CELLS[cell].states)
    with torch.no_grad():
        outputs, (after, *_), (before, *_) = scan(CELLS[cell](), w, x, begin, [3, 3, 2, 1, 1], keep=2)
    assert torch.equal(after, torch.stack((outputs[4, 0], outputs[2, 1], outputs[1, 2])))
    assert torch.equal(before[0], begin[0]) and torch.equal(before[1, :2], outputs[1, :2])
    assert len(before) == 3 and torch.equal(before[2, 0], outputs[3, 0])


def test_windows_have_up_to_so_many_rows():
    active = [3, 3, 1, 1, 1, 1, 0]
    assert [(steps.start, steps.stop) for steps in windows(active, 6)] == [(0, 2), (2, 7)]
    assert [steps.start for steps in windows(active, 1)] == [0, 1, 2, 3, 4, 5, 6]


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), width=st.integers(1, 3))
def test_packing_is_torchs(lengths, width):
    lengths = sorted(lengths, reverse=True)
    steps = torch.rand(lengths[0], len(lengths), width)
    theirs = torch.nn.utils.rnn.pack_padded_sequence(steps, torch.tensor(lengths))
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs, padding_value=-1.0)
    packing = Packing(theirs.batch_sizes.tolist(), len(lengths), steps.device)
    assert torch.equal(packing.pack(steps), theirs.data)
    assert torch.equal(packing.pad(theirs.data, -1.0), padded)
    assert packing.is_full is (len(set(lengths)) == 1)
