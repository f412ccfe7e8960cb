"""The states in a torch optimizer, by param."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from ..algorithms import Fill, Quantized, fit_param_state, map_tensors
from ..params import Param

# The key in a param's state of the algorithm's values of its group: as of the param's last update.
OF_GROUP = "of_group"


class ParamStates:
    """The states in a torch optimizer, by param: read, replaced, and fitted to another tensor or shape.

    optimizer (torch.optim.Optimizer): Any, with the params in its groups.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer
        self.optimizer_class = type(optimizer)

    def get(self, param: Param) -> dict[str, Any]:
        """The state of a param, in torch's form. Empty: none yet. Quantized tensors are dicts of their parts."""
        state = dict(self._optimizer.state.get(param.tensor, {}))
        return self._optimizer.to_plain(state) if isinstance(self._optimizer, Quantized) else state

    def put(
        self,
        param: Param,
        state: Mapping[str, Any],
        *,
        shape: Sequence[int],
        dtype: torch.dtype,
        on_growth: Fill = "mean",
    ) -> None:
        """Set the state of a param: from a file, or of the param that had its name. Its tensors are copied.

        shape (Sequence[int]), dtype (torch.dtype): Of the param that had this state.
        on_growth (Fill): How to fill new cells.
        RAISES (StateError): It does not fit.
        """
        self._optimizer.state[param.tensor] = self._fit(param, state, param.tensor, shape, dtype, on_growth)

    def of_group(self, param: Param) -> Mapping[str, Any] | None:
        """The algorithm's values of the param's group at its last update. Params that were updated together have the
        same object, unless they were loaded since. None: it has none.
        """
        values: Mapping[str, Any] | None = self._optimizer.state.get(param.tensor, {}).get(OF_GROUP)
        return values

    def put_of_group(self, tensors: Sequence[torch.Tensor], values: Mapping[str, Any]) -> None:
        """Set the values of the group of params that were just updated together."""
        if values:
            for tensor in tensors:
                self._optimizer.state[tensor][OF_GROUP] = values

    def drop(self, param: Param) -> None:
        """Drop the state of a param."""
        self._optimizer.state.pop(param.tensor, None)

    def keep_only(self, tensors: Collection[torch.Tensor]) -> None:
        """Drop the states of all other tensors."""
        state = self._optimizer.state
        for tensor in [known for known in state if isinstance(known, torch.Tensor) and known not in tensors]:
            del state[tensor]

    def add_initial(self, built: torch.optim.Optimizer) -> None:
        """Add the states that another optimizer of the class made when it was built, as Adagrad does, where there are
        none.
        """
        for tensor, state in built.state.items():
            if isinstance(tensor, torch.Tensor):
                self._optimizer.state.setdefault(tensor, state)

    def move(self, param: Param, new: torch.Tensor) -> None:
        """Move the state of a param to a new tensor of the same shape, on any device, in any memory order."""
        if param.tensor in self._optimizer.state:
            state = self.get(param)
            self.drop(param)
            self._optimizer.state[new] = self._fit(param, state, new, param.shape, param.dtype)

    def _fit(
        self,
        param: Param,
        state: Mapping[str, Any],
        tensor: torch.Tensor,
        shape: Sequence[int],
        dtype: torch.dtype,
        on_growth: Fill = "mean",
    ) -> dict[str, Any]:
        """A copy of the state of a param for a tensor: on its device, and in its memory order, as fused kernels need
        it.
        """
        optimizer = self._optimizer
        if isinstance(optimizer, Quantized):
            if tuple(shape) == tuple(tensor.shape):
                state = optimizer.from_plain(state, tensor)
                return {name: value.clone() if name == "step" else value for name, value in state.items()}
            state = optimizer.as_floats(state, torch.empty(tuple(shape), dtype=dtype))
        of_group = {OF_GROUP: state[OF_GROUP]} if OF_GROUP in state else {}
        fitted = fit_param_state(
            self.optimizer_class,
            {name: value for name, value in state.items() if name not in of_group},
            shape,
            tensor,
            on_growth=on_growth,
            name=param.name,
            row_size=param.row_size,
            order=param.order_after(shape),
            old_dtype=dtype,
            options=None if param.group is None else param.group.entry,
        )
        if isinstance(optimizer, Quantized):
            return optimizer.quantize(fitted, tensor)
        fitted |= of_group
        nested = {name: value for name, value in fitted.items() if not isinstance(value, torch.Tensor)}
        if nested:
            fitted |= map_tensors(lambda value: value.to(tensor.device), nested)
        return {
            name: value.clone() if isinstance(value, torch.Tensor) else map_tensors(torch.Tensor.clone, value)
            for name, value in fitted.items()
        }
