"""Values that a stateful layer carries from batch to batch: the state of each sequence, and its traces.

They are arrays in the attrs of its node, so a checkpoint of the training includes them. Sequences are identified by
their place in the batch: the third one continues where the third one of the last batch ended.
"""

from __future__ import annotations

from typing import Any

import torch
from thinc.api import Model
from torch import Tensor

from .cells import State
from .eligibility import ParamDimTraces, TracesState

ATTR = "carried"


def reset_state(model: Model) -> None:
    """Reset all stateful layers of a model: at the boundary of a document, for example."""
    for node in model.walk():
        if ATTR in node.attrs:
            node.attrs[ATTR] = {}


def is_stateful(model: Model) -> bool:
    """Whether any layer of a model carries values from batch to batch."""
    return any(ATTR in node.attrs for node in model.walk())


def begin(node: Model, order: Tensor, zero: State) -> State:
    """The state at the start of a batch. order (Tensor): The place in the batch of each row. zero: Shape: (B, H)."""
    saved = node.attrs[ATTR].get("state")
    return zero if saved is None else tuple(_rows(s, order, like) for s, like in zip(saved, zero))


def begin_traces(traces: ParamDimTraces, carried: Any, order: Tensor) -> None:
    """Set traces to the carried ones. carried (dict): Of the last batch."""
    if saved := carried.get("traces"):
        now = traces.snapshot()
        rows = {name: [_rows(s, order, like) for s, like in zip(saved[name], now.traces[name])] for name in saved}
        traces.go_on_from(TracesState(rows, now.grads, is_zero=False))


def keep(node: Model, order: Tensor, state: State) -> Any:
    """Carry the state to the next batch; traces follow later. RETURNS (dict): The carried values."""
    node.attrs[ATTR] = {"state": [_in_batch_order(s, order) for s in state]}
    return node.attrs[ATTR]


def keep_traces(carried: Any, traces: ParamDimTraces, order: Tensor) -> None:
    """Carry the traces as well. carried (dict): From `keep`."""
    carried["traces"] = {
        name: [_in_batch_order(t, order) for t in of_states] for name, of_states in traces.snapshot().traces.items()
    }


def _in_batch_order(rows: Tensor, order: Tensor) -> Any:
    """Rows that are not finite begin anew: a bad batch must not spoil later ones."""
    found = torch.zeros_like(rows)
    found[order] = rows
    finite = found.flatten(1).isfinite().all(1)
    return torch.where(finite.reshape(-1, *[1] * (rows.ndim - 1)), found, 0.0).cpu().numpy()


def _rows(saved: Any, order: Tensor, like: Tensor) -> Tensor:
    """Carried rows in the order of this batch; zero for new sequences."""
    rows = torch.zeros_like(like)
    known = order < len(saved)
    rows[known] = torch.as_tensor(saved).to(like)[order[known]]
    return rows
