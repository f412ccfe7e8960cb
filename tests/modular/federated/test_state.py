"""What a client keeps from round to round."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from . import needs_flwr  # noqa: F401  isort:skip

from flwr.app import ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from thinc_torchopt.modular.federated.client import find_state, keep_state, open_house

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
TENSORS = st.builds(
    lambda dtype, shape, seed: (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
LEAVES = st.one_of(TENSORS, st.integers(), st.floats(allow_nan=False), st.text(max_size=4), st.none(), st.booleans())
STATES = st.dictionaries(
    st.text(max_size=4),
    st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(max_size=3), inner))),
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other and type(one) is type(other)


@settings(deadline=None)
@given(STATES, STATES)
def test_state_comes_back_as_it_was(before, now):
    kept = RecordDict({"of another app": ConfigRecord({"x": 1})})
    keep_state(kept, (4, before), (5, now))
    kept = recorddict_from_proto(recorddict_to_proto(kept))
    assert "of another app" in kept
    for round, state in ((4, before), (5, now)):
        found = find_state(kept, round, "north")
        assert found[0] == round and same(found[1], state)


@pytest.mark.parametrize(
    ("rounds", "taken", "expected"),
    [
        ([], 0, 0),
        ([1], 1, 1),
        ([1], 0, 0),  # the first report was lost
        ([1, 2], 2, 2),
        ([1, 2], 1, 1),
        ([2], 1, 0),  # the supernode was started again before round 2
        ([], 3, 0),
    ],
)
def test_state_is_that_of_the_last_round_that_the_server_took(rounds, taken, expected):
    kept = RecordDict()
    before = (0, None)
    for round in rounds:
        now = (round, {"round": round})
        keep_state(kept, before, now)
        before = now
    assert find_state(kept, taken, "north") == (expected, {"round": expected} if expected else None)


def test_state_that_cannot_be_kept_leaves_the_one_before():
    kept = RecordDict()
    keep_state(kept, (0, None), (1, {"x": torch.ones(2)}))
    with pytest.raises(ValueError, match="Can't save"):
        keep_state(kept, (1, {"x": torch.ones(2)}), (2, {"x": object()}))
    assert find_state(kept, 1, "north")[0] == 1


def test_state_is_of_a_client_with_settings(tmp_path):
    with pytest.raises(ValueError, match="expected a file, found none"):
        open_house({"name": "north", "config": str(tmp_path / "gone.cfg")})
