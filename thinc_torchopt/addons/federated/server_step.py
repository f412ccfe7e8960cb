"""The server's step after a round: the mean of the clients' models, and the algorithm in [federated.algorithm].

Its gradient is the global model minus that mean. So any [training.optimizer.algorithm] works here too, with patterns
over names, and with learning rates that are schedules over rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...core.errors import FederationError, StateError
from ...core.optimizer import TorchOptimizer
from ..modular import AuxVar, Modular
from .pipeline import FederatedPipeline, aux_names, check_evaluates_what_it_trains
from .settings import SECTION, Federated
from .weights import Tensors


def weighted_mean(weights: Mapping[str, torch.Tensor], models: Sequence[Tensors], counts: Sequence[int]) -> Tensors:
    """The mean of models. Weights that no client has moved stay as they are, to the last digit.

    weights (Mapping): The global model of which they are made. counts (Sequence[int]): How much each counts.
    """
    mean, shares = {}, [count / sum(counts) for count in counts]
    for name, before in weights.items():
        found = [model[name] for model in models]
        if all(torch.equal(one, before) for one in found):
            mean[name] = before
            continue
        # Means of half precision need more digits.
        wide = torch.promote_types(before.dtype, torch.float32)
        total = found[0].to(wide) * shares[0]
        for one, share in zip(found[1:], shares[1:]):
            total += one.to(wide) * share
        mean[name] = total.to(before.dtype)
    return mean


class ServerStep:
    """Updates the global model by the averaged update of the clients.

    pipeline (FederatedPipeline): The server's pipeline.
    settings (Federated): Without an algorithm, the average is the new model.
    RAISES (ConfigError): The algorithm can't be used here.
    """

    def __init__(self, pipeline: FederatedPipeline, settings: Federated):
        self._pipeline = pipeline
        self._optimizer: TorchOptimizer | None = None
        if settings.algorithm is not None:
            self._optimizer = TorchOptimizer(settings.algorithm, settings.learn_rate, grad_clip=0.0, max_nonfinite=0)
            self._optimizer.freeze_by_settings(pipeline.weights.fixed)
            self._optimizer.initialize(pipeline.nlp, pipeline.frozen)
            check_evaluates_what_it_trains(self._optimizer, "federated")
            if self._modular is not None and self._modular.normalize is not None:
                SECTION.refuse("algorithm.normalize", "null", self._modular.normalize, "An average has no batch.")

    @property
    def _modular(self) -> Modular | None:
        """Looked up each time: loading a state makes another one."""
        found = {} if self._optimizer is None else self._optimizer.torch_optimizers
        return next((one for one in found.values() if isinstance(one, Modular)), None)

    @property
    def aux_names(self) -> list[str]:
        return [] if self._modular is None else aux_names(self._modular)

    def collect(self) -> dict[str, AuxVar]:
        """Auxiliary variables for clients, by name."""
        return {} if self._modular is None else self._modular.collect_aux_var()

    def check(self, client: str, aux_vars: Mapping[str, AuxVar]) -> None:
        """Check the auxiliary variables of a client. Changes nothing. RAISES (AuxVarError): They can't be used."""
        if self._modular is not None and aux_vars:
            self._modular.check_aux_var(_sent_by(client, aux_vars))

    def process(self, received: Mapping[str, Mapping[str, AuxVar]]) -> None:
        """Process the auxiliary variables of clients, by the clients' names."""
        if self._modular is not None and self.aux_names:
            self._modular.process_aux_var([_sent_by(client, aux) for client, aux in received.items()])

    def apply(self, weights: Mapping[str, torch.Tensor], average: Mapping[str, torch.Tensor]) -> Tensors:
        """Compute the new global model. A param whose average is its old value stays: no client has trained it.

        weights (Mapping): The global model. average (Mapping): Of the clients' models: see `weighted_mean`.
        RAISES (FederationError): The new model has values that are not finite.
        """
        new = dict(average)
        if self._optimizer is not None:
            own = self._pipeline.weights
            own.load({**average, **{name: weights[name] for name in own.params}})
            updates = {name: weights[name] - average[name] for name in own.params}
            own.set_grads(self._optimizer, {name: update for name, update in updates.items() if update.any()})
            self._optimizer.step()
            self._optimizer.step_schedules()
            new = own.collect()
        for name, value in new.items():
            if not bool(value.isfinite().all()):
                raise FederationError(
                    f"Can't continue with the new model: expected finite numbers, found NaN or infinite ones for "
                    f"'{name}'. The server's optimizer has diverged: lower 'learn_rate' in [federated]."
                )
        return new

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any] | None:
        return None if self._optimizer is None else dict(self._optimizer.state_dict())

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): It is of another algorithm."""
        if (state is None) != (self._optimizer is None):
            raise StateError(
                f"Can't go on with the run: expected {'no block' if state is None else 'a block'} "
                f"[federated.algorithm], as before, found {'one' if state is None else 'none'}. Set it back, or start "
                'again with resume = "never" in [federated].'
            )
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state)


def _sent_by(client: str, aux_vars: Mapping[str, AuxVar]) -> dict[str, AuxVar]:
    """Set the client's name, in place of the random one that changes when its supernode is restarted."""
    return {
        name: dataclasses.replace(aux, clients=(client,)) if hasattr(aux, "clients") else aux  # type: ignore[type-var]
        for name, aux in aux_vars.items()
    }
