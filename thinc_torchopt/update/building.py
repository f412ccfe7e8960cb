"""Build torch optimizers: each for params with the same settings, in one param group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..algorithms import Algorithm, OptionRanges, small_matrix
from ..errors import ConfigError
from ..params import Param
from ..schedules import current, is_moving
from ..settings import ParamSettings, Rates


class Builder:
    """Builds torch optimizers of one algorithm.

    name (str): Config path below [training.optimizer].
    algorithm (Algorithm): The algorithm.
    moving (set[str]): The options that schedules move, in any group.
    rates (Rates): The learning rates of params.
    """

    def __init__(self, name: str, algorithm: Algorithm, moving: set[str], rates: Rates):
        self.name = name
        self.algorithm = algorithm
        self.moving = moving
        self.rates = rates
        self.ranges = OptionRanges(algorithm)
        self._checked: set[tuple[Any, ...]] = set()

    def fuses(self, tensor: torch.Tensor, settings: ParamSettings) -> bool:
        """Whether a fused kernel should update a param with these settings."""
        fused = settings.options.get("fused", False)
        if fused is None:  # the device has a kernel, and the config does not choose another one
            fused = not settings.options.get("foreach") and tensor.device.type in self.algorithm.kernel.devices
        return bool(fused) and self.algorithm.kernel.accepts(tensor)

    def build(self, params: Sequence[Param], *, fused: bool) -> torch.optim.Optimizer:
        """Build an optimizer with one group.

        params (Sequence[Param]): Params that can be in one torch param group.
        fused (bool): The result of `fuses` for them.
        RAISES (ConfigError): The algorithm refuses a param, or the options together. (ScheduleError): Or a schedule's
            value.
        """
        settings = params[0].settings
        options = {name: current(value) for name, value in settings.options.items()}
        for name, value in settings.options.items():
            if is_moving(value):
                self.ranges.check(name, settings.options)
        if "fused" in options and options["fused"] is None:
            options["fused"] = fused or None
        # Some algorithms need a rate when they are built; a warm-up's first one may be 0.
        built = self._build(params, self.rates.at_next_step(settings) or 0.001, options)
        [entry] = built.param_groups
        if entry.get("fused") and not fused:
            entry["fused"] = None
        return built

    def check(self, param: Param) -> None:
        """Check that the algorithm accepts the options of a param that will be trained later.

        RAISES (ConfigError): It does not.
        """
        settings = param.settings
        if settings.key not in self._checked:
            options = {name: current(value) for name, value in settings.options.items()}
            try:
                self.algorithm.build([small_matrix(options)], lr=0.001, **options)
            except _REFUSALS as error:
                raise self._refused(param, options, error) from error
            self._checked.add(settings.key)

    def example_state(self, settings: ParamSettings, device: torch.device, n_dimensions: int) -> dict[str, Any]:
        """The state of a param with this number of dimensions, each of size 2, after its first update.

        device (torch.device): The device of params with these settings.
        RETURNS (dict[str, Any]): Empty: it can't be found out on a small param.
        """
        options = {name: current(value) for name, value in settings.options.items()}
        param = torch.ones(
            (2,) * n_dimensions, device=device if options.get("capturable") else "cpu", requires_grad=True
        )
        param.grad = torch.ones_like(param)
        try:
            optimizer = self.algorithm.build([param], lr=0.001, **options)
            optimizer.step()
        except Exception:
            return {}
        return dict(optimizer.state[param])

    def _build(self, params: Sequence[Param], rate: float, options: Mapping[str, Any]) -> torch.optim.Optimizer:
        try:
            return self.algorithm.build([param.tensor for param in params], lr=rate, **options)
        except _REFUSALS as error:
            for param in params[:-1]:  # find the refused one
                try:
                    self.algorithm.build([param.tensor], lr=rate, **options)
                except _REFUSALS as of_param:
                    raise self._refused(param, options, of_param) from of_param
            raise self._refused(params[-1], options, error) from error

    def _refused(self, param: Param, options: Mapping[str, Any], error: Exception) -> ConfigError:
        """The error for options that the algorithm refuses together. Each block passed the checks alone."""
        return ConfigError(
            f"Can't train param '{param.name}' with the options of '{param.settings.label}' in [training.optimizer]: "
            f"'{self.algorithm.label}' refuses them together: {dict(options)}. {str(error).rstrip('.')}. Several "
            "blocks hold for this param: change an option in one, or its patterns."
        )


_REFUSALS = (ValueError, TypeError, RuntimeError)
