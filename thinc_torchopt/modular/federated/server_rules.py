"""The rules of [federated.controller], evaluated when a model has its scores: the means over the clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...controller import (
    ControllerSettings,
    HFControls,
    KeepBestControl,
    LearnRateControl,
    LogControl,
    RunHandle,
)
from ...errors import ControllerError
from ...events import Control
from ...schema import read, write
from ...training import SavedModels
from .house import House
from .server_step import ServerStep
from .weights import Tensors

LOG = logging.getLogger("flwr.thinc-torchopt")

_EVENT = "on_evaluate"
_ACTIONS = (KeepBestControl, LearnRateControl, LogControl)


@dataclass
class ServerRulesState:
    """The saved state of `ServerRules`. last (int): The round of the last model that they were
    evaluated for."""

    controller: dict[str, Any]
    models: dict[str, Any]
    last: int
    is_stopped: bool


class ServerRules:
    """Evaluates rules for models of the server. Their step is the round.

    settings (ControllerSettings): From the config.
    house (House), step (ServerStep): The server's.
    output (Path): The folder for models that rules keep.
    RAISES (ControllerError): A rule needs what a federated training does not have.

    Public: `is_stopped` (a rule ended the training).
    """

    def __init__(self, settings: ControllerSettings, house: House, step: ServerStep, output: Path):
        self._controller = settings.build()
        self._house = house
        self._step = step
        self._models = SavedModels(house.nlp, house.optimizer)
        self._models.after_cleaning(output)
        self._control = Control()
        self._run = RunHandle(step.optimizer, self._models)  # what it lacks is refused
        self._last = -1
        self.is_stopped = False
        self._check()

    def _check(self) -> None:
        definition = self._controller.definition
        for spec in definition.controllers:
            if others := [event for event in spec.triggers if event != _EVENT]:
                raise ControllerError(
                    f"Can't use the rule '{spec.name}' in [federated.controller]: expected {_EVENT} alone, the one "
                    f"event of a server, found {', '.join(others)}."
                )
            for name, action in spec.actions:
                operation = definition.operations[name].instance
                if isinstance(operation, LearnRateControl) and self._step.optimizer is None:
                    raise ControllerError(
                        f"Can't use the action {name}.{action} in [federated.controller]: it needs an optimizer of the "
                        "server, a block [federated.algorithm]. Clients have rates of their own."
                    )
                is_ours = type(operation).__module__.startswith("thinc_torchopt.")
                can_stop = isinstance(operation, HFControls) and action == "should_training_stop"
                if is_ours and not can_stop and not isinstance(operation, _ACTIONS):
                    raise ControllerError(
                        f"Can't use the action {name}.{action} in [federated.controller]: expected "
                        f"control.should_training_stop, or one of {', '.join(one.__name__ for one in _ACTIONS)}. A "
                        "server can do no more."
                    )
        for name, part in definition.metrics.items():
            if _EVENT not in part.instance.events or "dev_losses" in (getattr(part.instance, "reads", None) or ()):
                raise ControllerError(
                    f"Can't use the metric '{name}' ({part.kind}) in [federated.controller]: a server has only the "
                    "scores of a model, the round as 'step', and times. Use EvalMetrics, or the name 'scores'."
                )

    def evaluated(self, round: int, score: float, scores: Mapping[str, float], weights: Tensors, rounds: int) -> None:
        """Evaluate the rules, once for each model.

        round (int): After which the model has these scores. rounds (int): Of the whole run.
        """
        if round <= self._last:
            return
        self._last = round
        payload = {
            "step": round,
            "score": score,
            "scores": dict(scores),
            "max_steps": rounds,
            "is_final": round == rounds,
            "control": self._control,
            "run": self._run,
        }
        for firing in self._controller.on_event(_EVENT, **payload):
            LOG.info("%s", firing)
        self._house.weights.load(weights)
        self._models.keep_asked()
        self.is_stopped |= self._control.should_stop

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        models = dict(self._models.state_dict())
        return write(ServerRulesState(self._controller.state_dict(), models, self._last, self.is_stopped))

    def load_state_dict(self, state: Any) -> None:
        """RAISES (StateError): The state is invalid."""
        saved = read(ServerRulesState, state, "the state of the rules")
        self._controller.load_state_dict(saved.controller)
        if saved.models:
            self._models.load_state_dict(saved.models)
        self._last, self.is_stopped = saved.last, saved.is_stopped
