"""The epsilon that a training has used, by Opacus: how many updates, with which noise, of which part of the data.

SOURCE: the subsampled Gaussian mechanism, by RDP (Mironov 2017, https://arxiv.org/abs/1702.07476) and PRV (Gopi et al.
    2021, https://arxiv.org/abs/2106.02848).
"""

from __future__ import annotations

import math
import warnings

from ..compat import import_opacus_accountants
from ..errors import ConfigError
from ..schema import Count
from ..types import Accountant

# Part of a saved state: noise multiplier, sample rate, updates.
History = list[tuple[float, float, Count]]


def epsilon_of(history: History, delta: float, kind: Accountant) -> float:
    """The epsilon at `delta` of updates in a row. Infinite without noise.

    history (list): Noise multiplier, sample rate and number of updates, for each kind of update.
    RAISES (MissingPackageError): Opacus is not installed.
    """
    history = [(noise, rate, steps) for noise, rate, steps in history if steps]
    if not history:
        return 0.0
    if any(noise == 0.0 for noise, _, _ in history):
        return math.inf
    accountant = getattr(import_opacus_accountants(), f"{kind.upper()}Accountant")()
    accountant.history = [(noise, rate, int(steps)) for noise, rate, steps in history]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the range of orders that RDP tries: the bound holds all the same
        try:
            return float(accountant.get_epsilon(delta=delta))
        except (ValueError, RuntimeError):  # PRV finds no bound where epsilon is very large
            return math.inf


def least_noise(target_epsilon: float, delta: float, rate: float, steps: int, kind: Accountant) -> float:
    """The noise multiplier with which `steps` updates stay below an epsilon.

    RAISES (ConfigError): None is large enough. (MissingPackageError): Opacus is not installed.
    """
    utils = import_opacus_accountants().utils
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(
                utils.get_noise_multiplier(
                    target_epsilon=target_epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant=kind
                )
            )
        except ValueError as error:
            raise ConfigError(
                f"Can't find the noise for target_epsilon = {target_epsilon:g} in [training.optimizer.privacy]: no "
                f"noise is large enough for {steps:,} updates with a sample rate of {rate:.3g}. Train fewer steps, use "
                f"smaller batches, or raise target_epsilon. ({error})"
            ) from error


def most_steps(
    before: History, target_epsilon: float, delta: float, noise: float, rate: float, kind: Accountant
) -> int:
    """How many more updates stay below an epsilon. before (list): The updates so far."""
    low, high = 0, 1
    while epsilon_of([*before, (noise, rate, high)], delta, kind) <= target_epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon_of([*before, (noise, rate, middle)], delta, kind) <= target_epsilon:
            low = middle
        else:
            high = middle
    return low
