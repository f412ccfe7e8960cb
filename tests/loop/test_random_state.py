"""The random generators of a run. The oracle: what they draw."""

from dataclasses import replace

import pytest
import torch

from thinc_torchopt.core.errors import StateError
from thinc_torchopt.loop.random_state import check_generators, collect_random

FEW = torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    "damaged",
    [{"python": (3, FEW, None)}, {"numpy": ("MT19937", FEW, 0, 0, 0.0)}, {"cpu": FEW.byte()}],
    ids=lambda damaged: next(iter(damaged)),
)
def test_random_states_are_checked_before_any_is_restored(damaged):
    saved = collect_random()
    check_generators(saved)
    with pytest.raises(StateError, match="state of the random generators"):
        check_generators(replace(saved, **damaged))
    now = collect_random()
    assert now.python[1].equal(saved.python[1]) and now.numpy[1].equal(saved.numpy[1]) and now.cpu.equal(saved.cpu)
