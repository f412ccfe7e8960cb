"""What a torch optimizer keeps of each param: read, replaced, and fitted to another tensor or shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from ..algorithms import fit_param_state, map_tensors
from ..params import Param, Released


class ParamStates:
    """The states in a torch optimizer, by param.

    optimizer (torch.optim.Optimizer): Any. The params that are asked for are in its groups.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer
        self.optimizer_class = type(optimizer)

    def get(self, param: Param) -> dict[str, Any]:
        """The state of a param, as torch keeps it. Empty: it has none yet."""
        return dict(self._optimizer.state.get(param.tensor, {}))

    def set(self, param: Param, state: Mapping[str, Any], dtype: torch.dtype | None = None) -> None:
        """Give a param a state, e.g. of another process or another device. Its tensors are copied.

        dtype (torch.dtype | None): Of the param when it had this state. None: the same as now.
        """
        fitted = self._fit(param, state, param.tensor, dtype)
        self._optimizer.state[param.tensor] = map_tensors(torch.Tensor.clone, fitted)

    def drop(self, param: Param) -> None:
        """Forget the state of a param."""
        self._optimizer.state.pop(param.tensor, None)

    def take_over(self, built: torch.optim.Optimizer) -> None:
        """Take the states of params that another optimizer of the class made when it was built, as Adagrad does."""
        self._optimizer.state.update(
            (tensor, state) for tensor, state in built.state.items() if isinstance(tensor, torch.Tensor)
        )

    def move(self, param: Param, new: torch.Tensor) -> None:
        """Move the state of a param to the tensor that will take the place of its own: of the same shape, anywhere, in
        any memory order.
        """
        if param.tensor in self._optimizer.state:
            self._optimizer.state[new] = self._fit(param, self._optimizer.state.pop(param.tensor), new, param.dtype)

    def inherit(
        self, param: Param, state: Mapping[str, Any], old: Released, on_growth: Literal["mean", "zero"]
    ) -> None:
        """Give a param the state of one that had its name, and perhaps another shape. RAISES (StateError): It does not
        fit.
        """
        self.set(
            param,
            fit_param_state(
                self.optimizer_class,
                state,
                old.shape,
                param.tensor,
                on_growth=on_growth,
                name=param.name,
                row_size=param.row_size,
                old_dtype=old.dtype,
                options=_options_of(param),
            ),
        )

    def _fit(
        self, param: Param, state: Mapping[str, Any], tensor: torch.Tensor, dtype: torch.dtype | None
    ) -> dict[str, Any]:
        """State of a param for a tensor of the same shape: on its device, and in its memory order, where fused kernels
        look for it.
        """
        fitted = fit_param_state(
            self.optimizer_class,
            state,
            param.shape,
            tensor,
            name=param.name,
            old_dtype=dtype,
            options=_options_of(param),
        )
        nested = {name: value for name, value in fitted.items() if not isinstance(value, torch.Tensor)}
        return fitted | map_tensors(lambda value: value.to(tensor.device), nested)


def _options_of(param: Param) -> Mapping[str, Any] | None:
    return None if param.group is None else param.group.entry
