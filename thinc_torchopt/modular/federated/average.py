"""The average of the clients' models, computed by a strategy of Flower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import FederationError, StateError
from ...schema import read, write
from .flower import AppExitException, Message, RecordDict, strategies
from .messages import cast_arrays, from_arrays, to_arrays
from .strategies import AverageSettings
from .weights import Tensors

# The key of the number by which clients are weighted.
WEIGHT = "num-examples"
# The state of Flower's strategies with an optimizer: dicts or lists of arrays.
_STATE = ("m_t", "v_t", "momentum_vector")


@dataclass
class AverageState:
    """The saved state of an average. strategy (str): The class of the strategy."""

    strategy: str
    values: dict[str, Any]


class Average:
    """Averages models by a strategy of Flower, of which only `aggregate_train` is called.

    strategy (Strategy | AverageSettings | None): The strategy, or its settings. None: FedAvg.
    """

    def __init__(self, strategy: strategies.Strategy | AverageSettings | None = None):
        if strategy is None:
            strategy = AverageSettings("FedAvg")
        if isinstance(strategy, AverageSettings):
            strategy = getattr(strategies, strategy.strategy)(weighted_by_key=WEIGHT, **strategy.arguments)
        self._strategy: Any = strategy

    @property
    def name(self) -> str:
        return type(self._strategy).__name__

    def compute(self, server_round: int, weights: Mapping[str, torch.Tensor], replies: Sequence[Message]) -> Tensors:
        """Compute the average.

        weights (Mapping): The global model of which the clients' models are made.
        replies (Sequence[Message]): Each with one ArrayRecord, and one MetricRecord with its weight.
        RAISES (FederationError): There is none.
        """
        self._begin(weights)
        try:
            averaged, _ = self._strategy.aggregate_train(server_round, replies)
        except AppExitException as error:
            raise FederationError(f"Can't make the model of round {server_round}: {self.name}: {error}") from error
        if averaged is None:
            raise FederationError(
                f"Can't make the model of round {server_round}: {self.name} gave no average of the models of "
                f"{len(replies)} clients."
            )
        return from_arrays(RecordDict({"arrays": cast_arrays(averaged, weights)}), weights)

    def _begin(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Tell a strategy with an optimizer the global model. Flower's do that in `configure_train`, which also
        chooses clients, and waits for them.
        """
        if hasattr(self._strategy, "current_arrays"):
            arrays = to_arrays(weights)
            takes_records = isinstance(self._strategy, strategies.FedAvgM)
            self._strategy.current_arrays = (
                arrays if takes_records else {name: array.numpy() for name, array in arrays.items()}
            )

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        values = {name: getattr(self._strategy, name, None) for name in _STATE}
        return write(AverageState(self.name, {name: value for name, value in values.items() if value is not None}))

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): It is of another strategy."""
        saved = read(AverageState, state, "the state of the average")
        if saved.strategy != self.name:
            raise StateError(
                f"Can't go on with the run: expected the average by {saved.strategy} in [federated.average], as before,"
                f' found {self.name}. Set it back, or begin anew by resume = "never" in [federated].'
            )
        for name, value in saved.values.items():
            setattr(self._strategy, name, value)
