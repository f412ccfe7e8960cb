"""The average of the clients' models, computed by a strategy of Flower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import FederationError, MessageError, StateError
from ...schema import read, write
from .flower import AppExitException, FedOpt, Message, RecordDict, strategies
from .messages import cast_arrays, from_arrays, to_arrays
from .strategies import AverageSettings
from .weights import Tensors

# The key of the number by which clients are weighted.
WEIGHT = "num-examples"
# The state of Flower's strategies: of those with an optimizer, dicts or lists of arrays; of those that clip, a number.
_STATE = ("m_t", "v_t", "momentum_vector", "clipping_norm")


@dataclass
class AverageState:
    """The saved state of an average. strategy (str): Its name. values (list): Of each strategy in it, see `Average`."""

    strategy: str
    values: list[dict[str, Any]]


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
        return " of ".join(type(one).__name__ for one in self._strategies())

    def _strategies(self) -> Iterator[Any]:
        """The strategy, and those that it wraps."""
        one = self._strategy
        while one is not None:
            yield one
            one = getattr(one, "strategy", None)

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
        try:
            return from_arrays(RecordDict({"arrays": cast_arrays(averaged, weights)}), weights)
        except MessageError as error:
            raise FederationError(f"Can't make the model of round {server_round} by {self.name}: {error}") from error

    def _begin(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Tell strategies that work with changes of the model the global one. Flower's get it in `configure_train`,
        which also chooses clients, and waits for them.
        """
        for one in self._strategies():
            if isinstance(one, FedOpt):
                one.current_arrays = {name: array.numpy() for name, array in to_arrays(weights).items()}
            elif hasattr(one, "current_arrays"):
                one.current_arrays = to_arrays(weights)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        values = [{name: getattr(one, name, None) for name in _STATE} for one in self._strategies()]
        given = [{name: value for name, value in own.items() if value is not None} for own in values]
        return write(AverageState(self.name, given))

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): It is of another strategy."""
        saved = read(AverageState, state, "the state of the average")
        if saved.strategy != self.name:
            raise StateError(
                f"Can't go on with the run: expected the average by {saved.strategy} in [federated.average], as before,"
                f' found {self.name}. Set it back, or begin anew by resume = "never" in [federated].'
            )
        for one, values in zip(self._strategies(), saved.values):
            for name, value in values.items():
                setattr(one, name, value)
