"""What the server does with the averaged update of a round: the modules of [federated.algorithm].

The update is a gradient like any other: the global model minus the average. So all that [training.optimizer.algorithm]
can be works here as well, with patterns over names, and rates that go by a schedule from round to round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from ...errors import FederationError
from ...optimizers import TorchOptimizer
from ..aux_vars import AuxVar
from ..optimizer import Modular
from .house import House, aux_names
from .settings import SECTION, FederatedSettings
from .weights import Tensors


class ServerStep:
    """Moves the global model by the averaged update.

    house (House): The server's pipeline, in which the step is made.
    settings (FederatedSettings): With an algorithm, or without one: then the average is the new model.
    RAISES (ConfigError): The algorithm can't work here.
    """

    def __init__(self, house: House, settings: FederatedSettings):
        self._house = house
        self._optimizer: TorchOptimizer | None = None
        self._modular: Modular | None = None
        if settings.algorithm is not None:
            self._optimizer = TorchOptimizer(settings.algorithm, settings.learn_rate, grad_clip=0.0, max_nonfinite=0)
            self._optimizer.initialize(house.nlp, house.frozen)
            for one in self._optimizer.torch_optimizers.values():
                if isinstance(one, Modular):
                    if one.normalize is not None:
                        SECTION.refuse("algorithm.normalize", "null", one.normalize, "An average has no batch.")
                    self._modular = self._modular or one

    @property
    def aux_names(self) -> list[str]:
        return [] if self._modular is None else aux_names(self._modular)

    def collect(self) -> dict[str, AuxVar]:
        """Auxiliary variables for clients, by name."""
        return {} if self._modular is None else self._modular.collect_aux_var()

    def check(self, client: str, aux_vars: Mapping[str, AuxVar]) -> None:
        """Check what a client sent. Changes nothing. RAISES (AuxVarError): It can't be taken."""
        if self._modular is not None and aux_vars:
            self._modular.check_aux_var(_sent_by(client, aux_vars))

    def process(self, received: Mapping[str, Mapping[str, AuxVar]]) -> None:
        """Take the auxiliary variables of clients, by the clients' names."""
        if self._modular is not None and self.aux_names:
            self._modular.process_aux_var([_sent_by(client, aux) for client, aux in received.items()])

    def apply(self, weights: Mapping[str, torch.Tensor], average: Mapping[str, torch.Tensor]) -> Tensors:
        """The new global model.

        weights (Mapping): The global model's. average (Mapping): The clients'.
        RAISES (FederationError): It has values that are not finite.
        """
        new = dict(average)
        if self._optimizer is not None:
            own = self._house.weights
            own.load({**average, **{name: weights[name] for name in own.params}})
            own.set_grads(self._optimizer, {name: weights[name] - average[name] for name in own.params})
            self._optimizer.step()
            self._optimizer.step_schedules()
            new = own.collect()
        for name, value in new.items():
            if not bool(value.isfinite().all()):
                raise FederationError(
                    f"Can't go on with the new model: expected finite numbers, found NaN or infinite ones for "
                    f"'{name}'. The server's optimizer has diverged: lower 'learn_rate' in [federated]."
                )
        return new


def _sent_by(client: str, aux_vars: Mapping[str, AuxVar]) -> dict[str, AuxVar]:
    """With the client's name in the place of one that it made up: that is another after its supernode is restarted."""
    return {
        name: dataclasses.replace(aux, clients=(client,)) if hasattr(aux, "clients") else aux  # type: ignore[type-var]
        for name, aux in aux_vars.items()
    }
