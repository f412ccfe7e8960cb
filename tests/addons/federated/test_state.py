"""What a client keeps from round to round."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from . import needs_flwr  # noqa: F401  isort:skip

from thinc_torchopt.addons.federated import client
from thinc_torchopt.addons.federated.client import find_state, keep_state, open_pipeline

from ...models import same_tree
from .pipelines import paths, small_config

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


@given(STATES, STATES)
def test_state_comes_back_as_it_was(before, now):
    with TemporaryDirectory() as name:
        folder = Path(name)
        keep_state(folder, "a", 3, 4, before)
        keep_state(folder, "a", 4, 5, now)
        for round, state in ((4, before), (5, now)):
            assert same_tree(find_state(folder, "a", round, "north"), state)


@pytest.mark.parametrize(
    ("rounds", "taken", "expected"),
    [
        ([], 0, 0),
        ([1], 1, 1),
        ([1], 0, 0),  # the first report was lost
        ([1, 2], 2, 2),
        ([1, 2], 1, 1),
        ([2], 1, 0),  # the state of round 1 is lost
        ([], 3, 0),
    ],
)
def test_state_is_that_of_the_last_round_that_the_server_took(rounds, taken, expected, tmp_path):
    before = 0
    for round in rounds:
        keep_state(tmp_path, "a", before, round, {"round": round})
        before = round
    assert find_state(tmp_path, "a", taken, "north") == ({"round": expected} if expected else None)
    assert find_state(tmp_path, "another run", taken, "north") is None


def test_state_is_removed_when_no_one_needs_it(tmp_path):
    """After each round there are two at most, also if rounds were not accepted, and of runs before."""
    (tmp_path / ".unfinished-new-round-9-1").mkdir()
    for run, taken, round in (("a", 0, 1), ("a", 0, 2), ("a", 2, 3), ("b", 0, 1), ("b", 1, 2)):
        keep_state(tmp_path, run, taken, round, {})
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"round-{n}" for n in {taken, round} - {0}]


def test_state_that_cannot_be_kept_leaves_the_one_before(tmp_path):
    keep_state(tmp_path, "a", 0, 1, {"x": torch.ones(2)})
    with pytest.raises(ValueError, match="Can't save"):
        keep_state(tmp_path, "a", 1, 2, {"x": object()})
    assert find_state(tmp_path, "a", 1, "north") is not None


def test_state_that_is_damaged_is_not_used(tmp_path, caplog):
    keep_state(tmp_path, "a", 0, 1, {"x": torch.ones(2)})
    tensors = tmp_path / "round-1" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"!")
    with caplog.at_level("WARNING", "flwr"):
        assert find_state(tmp_path, "a", 1, "north") is None
    assert "Client 'north' can't use its state: Can't read" in caplog.text and "has lost the state" in caplog.text


def test_state_needs_a_folder(texts, tmp_path, monkeypatch):
    gpus = []
    monkeypatch.setattr(client, "require_gpu", gpus.append)
    config = tmp_path / "north.cfg"
    small_config().to_disk(config)
    (tmp_path / "file").write_text("")
    settings = {"name": "north", "config": str(config), "state": str(tmp_path / "file"), **paths(texts, "north")}
    with pytest.raises(ValueError, match="'state' in --node-config: expected a folder that can be written to, found"):
        open_pipeline(settings)
    name, _, folder = open_pipeline({**settings, "name": "no/rth", "state": "", "gpu": "1"})
    assert gpus == [1] and name == "no/rth" and folder == tmp_path / "north.cfg.state" / "no%2Frth" and folder.is_dir()


def test_state_is_of_a_client_with_settings(tmp_path):
    with pytest.raises(ValueError, match="expected a file, found none"):
        open_pipeline({"name": "north", "config": str(tmp_path / "gone.cfg")})
