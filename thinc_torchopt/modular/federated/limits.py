"""Limits for the numbers in a report, which no honest client reaches, whatever [federated.guard] says. One number
beyond them, and the model of the round or its score is infinite, or all clients diverge in the next round.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import Any

import torch

from ...errors import MessageError

# Scores are mostly from 0 to 1, or to 100.
MOST_SCORE = 1e6
# How many times the server's largest weight a number of a client may be.
MOST_GROWTH = 1e6
# How many times the median of all clients an update is that may have spoiled the model.
_SUSPECT = 1000.0


def check_score(client: str, name: str, score: float) -> float:
    """RAISES (MessageError): A score is too far from 0."""
    if not abs(score) <= MOST_SCORE:
        raise MessageError(
            f"Can't use the report of '{client}': expected '{name}' from -{MOST_SCORE:,.0f} to {MOST_SCORE:,.0f}, as a "
            f"score is, found {score:g}."
        )
    return score


def largest_of(weights: Mapping[str, torch.Tensor]) -> float:
    """The largest weight, whatever its sign. 1 if all are 0."""
    return max((float(value.abs().max()) for value in weights.values() if value.numel()), default=0.0) or 1.0


def check_size(client: str, name: str, tensor: torch.Tensor, largest: float) -> torch.Tensor:
    """largest (float): The server's largest weight. RAISES (MessageError): A number is too large for it."""
    found = float(tensor.abs().max()) if tensor.numel() else 0.0
    if found > MOST_GROWTH * largest:
        raise MessageError(
            f"Can't use the report of '{client}': expected numbers of at most {MOST_GROWTH:,.0f} times the server's "
            f"largest weight, {largest:.3g}, in '{name}', found {found:.3g}. The training of that client has diverged."
        )
    return tensor


def suspect(clients: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The client whose update has probably spoiled the model of a round, with the reason. None: no update was much
    larger than the others.

    clients (Mapping): The reports of the round, as in its row of the results.
    """
    norms = {name: float(report["update_norm"]) for name, report in clients.items()}
    if not norms:
        return None
    name, middle = max(norms, key=lambda name: norms[name]), median_low(norms.values())
    if norms[name] <= _SUSPECT * middle:
        return None
    return f"the update of '{name}' had a norm of {norms[name]:.3g}, and the median of all was {middle:.3g}"
