"""What no honest client sends; in messages: test_messages.py, test_rounds.py."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.core.errors import MessageError

from . import needs_flwr  # noqa: F401  isort:skip

from thinc_torchopt.addons.federated.messages import check_score, check_size, largest_of
from thinc_torchopt.addons.federated.rounds import suspect


@pytest.mark.parametrize("score", [0.0, 1.0, -3.5, 100.0, 1e6, -1e6])
def test_limits_pass_scores(score):
    assert check_score("north", "ents_f", score) == score


@pytest.mark.parametrize("score", [1.000001e6, -2e6, 1e308, math.inf, math.nan])
def test_limits_refuse_scores_that_are_none(score):
    with pytest.raises(MessageError, match=r"the report of 'north': expected 'ents_f' from -1,000,000 to 1,000,000"):
        check_score("north", "ents_f", score)


def test_limits_of_weights_are_those_of_the_server():
    weights = {"a": torch.tensor([0.5, -3.0]), "b": torch.zeros(0, 2), "c": torch.tensor(2.0, dtype=torch.bfloat16)}
    assert largest_of(weights) == 3.0 and largest_of({"a": torch.zeros(3)}) == largest_of({}) == 1.0
    for tensor in (torch.tensor([0.0, -3e6]), torch.zeros(0), torch.tensor(3e6)):
        assert check_size("north", "a", tensor, 3.0) is tensor
    for tensor in (torch.tensor([0.0, -3.1e6]), torch.tensor(1e38), torch.tensor([math.nan, 1e300]).double()[1:]):
        with pytest.raises(
            MessageError, match=r"the report of 'north': expected numbers of at most 1,000,000 times .* in 'a'"
        ):
            check_size("north", "a", tensor, 3.0)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=6), st.floats(1e5, 1e300))
def test_limits_suspect_only_who_is_far_from_all(norms, large):
    honest = {f"client-{i}": {"update_norm": 1.0 + norm} for i, norm in enumerate(norms)}
    assert suspect(honest) is None
    found = suspect(honest | {"liar": {"update_norm": large}})
    assert found.startswith("the update of 'liar' had a norm of ") and not any(name in found for name in honest)


def test_limits_suspect_nobody_without_reports():
    assert suspect({}) is None and suspect({"north": {"update_norm": 0.0}}) is None
