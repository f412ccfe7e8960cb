"""The epsilon that a training has used, by Opacus: how many updates, with which noise, of which part of the data; and
the plan before the first update: the noise, and the updates that its target allows.

SOURCE: the subsampled Gaussian mechanism, by RDP (Mironov 2017, https://arxiv.org/abs/1702.07476) and PRV (Gopi et al.
    2021, https://arxiv.org/abs/2106.02848).
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from functools import cache
from typing import Any, get_args

from ...core.compat import import_opacus_accountants
from ...core.errors import ConfigError
from ...core.schema import Count
from ...core.types import Accountant

# Part of a saved state: noise multiplier, sample rate, updates.
PrivacyHistory = list[tuple[float, float, Count]]


class Account:
    """The updates so far, and the epsilon that they have used.

    delta (float): The delta of (epsilon, delta). accountant ("prv" | "rdp"): The one whose epsilon counts.

    Public: `history` (noise multiplier, sample rate and number of updates, for each kind of update in a row).
    """

    def __init__(self, delta: float, accountant: Accountant):
        self.delta = delta
        self.accountant = accountant
        self.history: list[tuple[float, float, int]] = []

    def count(self, noise_multiplier: float, sample_rate: float) -> None:
        """Count one more update."""
        kind = noise_multiplier, sample_rate
        if self.history and self.history[-1][:2] == kind:
            self.history[-1] = (*kind, self.history[-1][2] + 1)
        else:
            self.history.append((*kind, 1))

    @property
    def steps(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def epsilons(self) -> dict[Accountant, float]:
        """The epsilon so far by each of Opacus' accountants. Infinite without noise."""
        return {kind: epsilon_of(self.history, self.delta, kind) for kind in get_args(Accountant)}

    def in_words(self, epsilons: dict[Accountant, float]) -> str:
        """For the user. epsilons (dict): From `epsilons`, which takes time."""
        [other] = (kind for kind in epsilons if kind != self.accountant)
        return (
            f"epsilon {epsilons[self.accountant]:.3f} ({self.accountant.upper()}; by {other.upper()} "
            f"{epsilons[other]:.3f}) at delta {self.delta:g} after {self.steps:,} update{'s' * (self.steps != 1)}."
        )

    def numbers(self, epsilons: dict[Accountant, float]) -> dict[str, Any]:
        """For logs and files, as JSON has no infinity."""
        found = {kind: None if math.isinf(epsilon) else epsilon for kind, epsilon in epsilons.items()}
        return {
            "epsilon": found[self.accountant],
            **{f"epsilon_{kind}": epsilon for kind, epsilon in found.items()},
            "delta": self.delta,
            "updates": self.steps,
        }


def epsilon_of(history: PrivacyHistory, delta: float, kind: Accountant) -> float:
    """The epsilon at `delta` of updates in a row. Infinite without noise.

    history (list): Noise multiplier, sample rate and number of updates, for each kind of update.
    RAISES (MissingPackageError): Opacus is not installed.
    """
    history = [(noise, rate, steps) for noise, rate, steps in history if steps]
    if not history:
        return 0.0
    if any(noise == 0.0 for noise, _, _ in history):
        return math.inf
    accountants = import_opacus_accountants()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the range of orders that RDP tries: the bound holds all the same
        try:
            if kind == "rdp":
                rdp = sum(_rdp_of_an_update(noise, rate) * int(steps) for noise, rate, steps in history)
                orders = accountants.RDPAccountant.DEFAULT_ALPHAS
                return float(accountants.analysis.rdp.get_privacy_spent(orders=orders, rdp=rdp, delta=delta)[0])
            accountant = accountants.PRVAccountant()
            accountant.history = [(noise, rate, int(steps)) for noise, rate, steps in history]
            return float(accountant.get_epsilon(delta=delta))
        except (ValueError, RuntimeError, MemoryError):  # PRV finds no bound where epsilon is very large
            return math.inf


@cache
def _rdp_of_an_update(noise: float, rate: float) -> Any:
    """At each order that Opacus tries. This is what takes the time; more updates have a multiple of it."""
    accountants = import_opacus_accountants()
    orders = accountants.RDPAccountant.DEFAULT_ALPHAS
    return accountants.analysis.rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


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
                f"Can't find the noise for target_epsilon = {target_epsilon:g}: none is large enough for {steps:,} "
                f"updates with a sample rate of {rate:.3g}. Train fewer steps, use smaller batches, or raise "
                f"target_epsilon. ({error})"
            ) from error


def most_steps(
    before: PrivacyHistory,
    target_epsilon: float,
    delta: float,
    noise: float,
    rate: float,
    kind: Accountant,
    *,
    guess: int | None = None,
) -> int:
    """How many more updates stay below an epsilon. before (list): The updates so far. guess (int | None): A number
    near to it, which saves time: PRV takes half a second for each number that is tried.
    """

    def are_allowed(steps: int) -> bool:
        return epsilon_of([*before, (noise, rate, steps)], delta, kind) <= target_epsilon

    low = guess if guess and are_allowed(guess) else 0
    high = low + 1
    while are_allowed(high):
        low, high = high, high + 2 * (high - low)
    return low + bisect_left(range(low + 1, high), True, key=lambda steps: not are_allowed(steps))
