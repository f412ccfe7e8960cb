"""The average of the clients' models: by a strategy of Flower, or with differential privacy for each client."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...core.errors import FederationError, MessageError, StateError
from ...core.schema import Count, NotNegative, read, write
from ..privacy import Account, Noise, PrivacyPlan, plan_privacy
from .flower import AppExitException, FedOpt, Message, RecordDict, strategies
from .messages import cast_arrays, from_arrays, to_arrays
from .settings import ClientPrivacy, FlowerStrategy
from .weights import Tensors

LOG = logging.getLogger("flwr.thinc-torchopt")

# The key of the number by which clients are weighted.
WEIGHT = "num-examples"
# The state of Flower's strategies: of those with an optimizer, dicts or lists of arrays; of those that clip, a number.
_STATE = ("m_t", "v_t", "momentum_vector", "clipping_norm")
_WHAT = """Private training: epsilon and delta hold for one client with all of its texts, against anyone who gets the \
models. The server sees each client's model as it is.
Covered: the model after any round, and what is computed from it alone.
Not covered: which clients there are, and their labels; what clients report beside the model: scores, losses, numbers \
of examples; the choice of a model by these scores; the state of the run, which has the secret of the noise."""


@dataclass
class ModelAverageState:
    """The saved state of `ModelAverage`. strategy (str): Its name. values (list): Of each strategy in it."""

    strategy: str
    values: list[dict[str, Any]]


class ModelAverage:
    """Averages models by a strategy of Flower, of which only `aggregate_train` is called.

    strategy (Strategy | FlowerStrategy | None): The strategy, or its settings. None: FedAvg.
    """

    def __init__(self, strategy: strategies.Strategy | FlowerStrategy | None = None):
        if strategy is None:
            strategy = FlowerStrategy("FedAvg")
        if isinstance(strategy, FlowerStrategy):
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

    @property
    def _is_wrapped(self) -> bool:
        """Whether the strategy is around another one, and adds noise. It must not tell which weights were moved."""
        return hasattr(self._strategy, "strategy")

    def compute(self, server_round: int, weights: Mapping[str, torch.Tensor], replies: Sequence[Message]) -> Tensors:
        """Compute the average. Weights that no client has moved stay as they are, to the last digit.

        weights (Mapping): The global model of which the clients' models are made.
        replies (Sequence[Message]): Each with one ArrayRecord, and one MetricRecord with its weight.
        RAISES (FederationError): There is none.
        """
        self._begin(weights)
        unmoved = {} if self._is_wrapped else _unmoved(weights, replies)
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
            return from_arrays(RecordDict({"arrays": cast_arrays(averaged, weights)}), weights) | unmoved
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
        return write(ModelAverageState(self.name, given))

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): It is of another strategy."""
        saved = read(ModelAverageState, state, "the state of the average")
        if saved.strategy != self.name:
            raise StateError(
                f"Can't go on with the run: expected the average by {saved.strategy} in [federated.average], as before,"
                f' found {self.name}. Set it back, or start again with resume = "never" in [federated].'
            )
        for one, values in zip(self._strategies(), saved.values):
            for name, value in values.items():
                setattr(one, name, value)


def _unmoved(weights: Mapping[str, torch.Tensor], replies: Sequence[Message]) -> Tensors:
    """The weights that are the same in all replies as in the global model."""
    unmoved = dict(weights)
    for reply in replies:
        found = from_arrays(reply.content, weights)
        unmoved = {name: value for name, value in unmoved.items() if torch.equal(found[name], value)}
    return unmoved


@dataclass
class ClientPrivacyState:
    """The saved state: the noise multiplier, the noise's secret, and the rounds so far."""

    noise_multiplier: NotNegative
    secret: str
    history: list[tuple[NotNegative, NotNegative, Count]]


class PrivateAverage:
    """Makes the average of the clients' models private, and counts. In the place of `ModelAverage`.

        one round
          each client's update    the change of all weights, scaled down to the norm `clip`
          their sum               plus noise with a standard deviation of `noise_multiplier` * `clip`
          divided by `clients`    of [federated]: the number of reports would tell who took part
          the epsilon             of all rounds so far, with a sample rate of 1, as every client is asked

    Flower's wrappers are not used: their noise comes from NumPy's global generator, which a config's seed sets.

    settings (ClientPrivacy): From the config. clients, rounds (int): Of [federated].
    RAISES (ConfigError): The settings don't go together. (MissingPackageError): Opacus is not installed.
    SOURCE: McMahan et al. 2018, https://arxiv.org/abs/1710.06963, with all clients in each round.
    """

    name = "PrivateAverage"

    def __init__(self, settings: ClientPrivacy, *, clients: int, rounds: int):
        self._settings = settings
        self._clients = clients
        self._rounds = rounds
        self._noise = Noise(self._settings.seed)
        self._account = Account(self._settings.delta, self._settings.accountant)
        self._plan = self._planned()

    def _planned(self) -> PrivacyPlan:
        return plan_privacy(
            self._settings,
            population=self._clients,
            size=self._clients,
            count_steps=lambda: self._rounds,
            account=self._account,
            section=ClientPrivacy.section,
        )

    @property
    def is_over(self) -> bool:
        """Whether one more round would exceed the target."""
        return self._plan.last is not None and self._account.steps >= self._plan.last

    def announce(self) -> None:
        """Tell the user what is private."""
        LOG.info("%s", _WHAT)
        if self._settings.seed is not None:
            LOG.warning("Nothing is private from those who know 'seed' in [federated.privacy]: set it for experiments")
        rounds = "" if self._plan.last is None else f"; the target allows {self._plan.last:,} rounds"
        LOG.info(
            "Private training: clip %g, noise multiplier %.4g, delta %g%s",
            self._settings.clip,
            self._plan.noise_multiplier,
            self._settings.delta,
            rounds,
        )

    def compute(self, server_round: int, weights: Mapping[str, torch.Tensor], replies: Sequence[Message]) -> Tensors:
        """Compute the average. weights, replies: As for `ModelAverage.compute`."""
        clip, plan = self._settings.clip, self._plan
        total = {name: torch.zeros_like(value, dtype=torch.double) for name, value in weights.items()}
        for reply in replies:
            found = from_arrays(reply.content, weights)
            change = {name: found[name].double() - value.double() for name, value in weights.items()}
            norm = sum(float(one.square().sum()) for one in change.values()) ** 0.5
            for name, one in change.items():
                total[name] += one * min(1.0, clip / norm if norm else 1.0)
        about = self._account.steps, clip, self._clients
        self._noise.add_to(list(total.values()), list(weights.values()), plan.noise_multiplier * clip, about=about)
        self._account.count(plan.noise_multiplier, plan.sample_rate)
        return {name: (value + total[name] / self._clients).to(value.dtype) for name, value in weights.items()}

    def used(self) -> dict[str, Any]:
        """Tell the epsilon of all rounds so far. RETURNS (dict): It, in numbers."""
        epsilons = self._account.epsilons()
        LOG.info("Private training: %s", self._account.in_words(epsilons, unit="round"))
        return {**self._account.numbers(epsilons), "noise_multiplier": self._plan.noise_multiplier}

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        return write(ClientPrivacyState(self._plan.noise_multiplier, self._noise.secret, self._account.history))

    def load_state_dict(self, state: Any) -> None:
        """Go on. The past counts as it was; a noise that was computed stays.

        RAISES (StateError): The state is damaged, or of a run that was not private.
        """
        try:
            saved = read(ClientPrivacyState, state, "the state of the private training")
            self._noise.secret = saved.secret
        except StateError as error:
            raise StateError(
                f"Can't go on with the run: expected the state of [federated.privacy], found another one ({error}). "
                'Set the config back, or start again with resume = "never" in [federated].'
            ) from error
        self._account.history = list(saved.history)
        if self._settings.noise_multiplier is None:
            self._settings = replace(self._settings, noise_multiplier=saved.noise_multiplier)
        self._plan = self._planned()
