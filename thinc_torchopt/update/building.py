"""From settings to a torch optimizer: params with the same settings, and an optimizer with one param group for them."""

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
    algorithm (Algorithm): What to build.
    moving (set[str]): The options that schedules move, in any group.
    rates (Rates): What rates params should have.
    """

    def __init__(self, name: str, algorithm: Algorithm, moving: set[str], rates: Rates):
        self.name = name
        self.algorithm = algorithm
        self.moving = moving
        self.rates = rates
        self.ranges = OptionRanges(algorithm)
        self._checked: set[tuple[Any, ...]] = set()

    def fuses(self, tensor: torch.Tensor, settings: ParamSettings) -> bool:
        """Whether a fused kernel is to update a param with these settings."""
        fused = settings.options.get("fused", False)
        if fused is None:  # there is a kernel for the device, and the config does not ask for another one
            fused = not settings.options.get("foreach") and tensor.device.type in self.algorithm.kernel.devices
        return bool(fused) and self.algorithm.kernel.accepts(tensor)

    def build(self, params: Sequence[Param], *, fused: bool) -> torch.optim.Optimizer:
        """Build an optimizer with one group.

        params (Sequence[Param]): Params that can be in one torch param group.
        fused (bool): What `fuses` says of them.
        RAISES (ConfigError): The algorithm does not take the options together, or a param. (ScheduleError): Or not the
            value of a schedule.
        """
        settings = params[0].settings
        options = {name: current(value) for name, value in settings.options.items()}
        for name, value in settings.options.items():
            if is_moving(value):
                self.ranges.check(name, settings.options)
        if "fused" in options and options["fused"] is None:
            options["fused"] = fused or None
        # Some algorithms want to know a rate when they are built; a warm-up's first one may be 0.
        built = self._build(params, self.rates.at_next_step(settings) or 0.001, options)
        [entry] = built.param_groups
        if entry.get("fused") and not fused:
            entry["fused"] = None
        return built

    def check(self, param: Param) -> None:
        """Check that the algorithm takes the options of a param that is to be trained later.

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
        """What torch keeps of a param of so many dimensions, each of size 2, from its first update on.

        device (torch.device): That of the params with these settings.
        RETURNS (dict[str, Any]): Empty: that can't be found out on a small one.
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
            for param in params[:-1]:  # which of them is it?
                try:
                    self.algorithm.build([param.tensor], lr=rate, **options)
                except _REFUSALS as of_param:
                    raise self._refused(param, options, of_param) from of_param
            raise self._refused(params[-1], options, error) from error

    def _refused(self, param: Param, options: Mapping[str, Any], error: Exception) -> ConfigError:
        """The algorithm does not take these options together. Each block was tried out by itself before."""
        return ConfigError(
            f"Can't train param '{param.name}' with the options of '{param.settings.label}' in [training.optimizer]: "
            f"expected some that '{self.algorithm.label}' takes together, found {dict(options)}. "
            f"{str(error).rstrip('.')}. Several blocks hold for this param: change an option in one, or its patterns."
        )


_REFUSALS = (ValueError, TypeError, RuntimeError)
