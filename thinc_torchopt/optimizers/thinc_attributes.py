"""What thinc's own optimizers have as attributes, for code that reads them there."""

from __future__ import annotations

from typing import Any

from ..averages import AveragedParams
from ..errors import ConfigError
from ..types import Key
from .parts import Parts


class ThincAttributes(Parts):
    """The attributes of `thinc.api.Optimizer`, read from what a TorchOptimizer has."""

    @property
    def learn_rate(self) -> float:
        """The learning rate of this step."""
        return self._settings["learn_rate"]

    @learn_rate.setter
    def learn_rate(self, value: float) -> None:
        self._settings["learn_rate"] = value

    @property
    def grad_clip(self) -> float:
        """The largest gradient norm of this step. 0: no clipping."""
        return self._settings["grad_clip"]

    @grad_clip.setter
    def grad_clip(self, value: float) -> None:
        self._settings["grad_clip"] = value

    @property
    def averages(self) -> dict[Any, Any]:
        """The averages, for `nlp.use_params` and `Model.use_params`; empty while there are none. See
        `Averages.as_thinc`.
        """
        with self._lock:
            return AveragedParams() if self._is_settled else self._trained.averages_for_thinc()

    @averages.setter  # type: ignore[override]
    def averages(self, value: None) -> None:
        if value is not None:
            raise ConfigError(
                f"Can't set 'averages' of the optimizer: expected None, found {type(value).__name__}. None drops the "
                "averages and keeps no more; to keep some, build the optimizer with use_averages = true."
            )
        with self._lock:
            self._average_settings = None
            self._trained.drop_averages()

    @property
    def schedules(self) -> dict[str, Any]:  # type: ignore[override]
        """The sources of all schedules by config path, e.g. "learn_rate", "algorithm.weight_decay"."""
        return {name: schedule.source for name, schedule in self._settings.schedules.by_name.items()}

    @property
    def nr_update(self) -> dict[Key, int]:  # type: ignore[override]
        """How many updates each param had."""
        return {key: param.steps for key, param in self._trained.table.by_key.items()}

    @property
    def b1(self) -> float:  # type: ignore[override]
        """The first of the algorithm's `betas`, else its `momentum`, else 0."""
        options = self._trained.groups.options
        return float(options["betas"][0] if "betas" in options else options.get("momentum", 0.0))

    @property
    def b2(self) -> float:  # type: ignore[override]
        """The second of the algorithm's `betas`, else 0."""
        return float(self._trained.groups.options.get("betas", (0.0, 0.0))[1])

    @property
    def eps(self) -> float:  # type: ignore[override]
        """The algorithm's `eps`, or 0."""
        eps = self._trained.groups.options.get("eps", 0.0)
        return float(eps[-1] if isinstance(eps, tuple) else eps)

    @property
    def L2(self) -> float:  # type: ignore[override]
        """The algorithm's weight decay, or 0."""
        options = self._trained.groups.options
        return float(options.get("L2", options.get("weight_decay", 0.0)))
