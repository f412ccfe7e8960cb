"""The plan of a private training, before its first update: the noise, and the updates that its target allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..checks import Section
from ..compat import check_opacus
from .accounting import Account, least_noise, most_steps
from .settings import PRIVACY, PrivacySettings


@dataclass(frozen=True)
class PrivacyPlan:
    """The numbers that follow from the settings, the data and the length of a training.

    population (int): The number of examples. size (int): The number of examples that a batch has on average.
    noise_multiplier (float): Of the settings, or the least for the target.
    last (int | None): All updates that the target allows, past ones too. None: there is no target.
    """

    settings: PrivacySettings
    population: int
    size: int
    noise_multiplier: float
    last: int | None

    @property
    def sample_rate(self) -> float:
        """The probability of each example to be in a batch."""
        return self.size / self.population

    @property
    def of_each_update(self) -> PrivacySettings:
        """The settings with this noise and without a target, for a part of the training."""
        return replace(self.settings, noise_multiplier=self.noise_multiplier, target_epsilon=None)

    def told(self) -> str:
        """In words, for the user."""
        settings = self.settings
        reached = "" if self.last is None else f"; {self.last:,} updates reach epsilon {settings.target_epsilon:g}"
        return (
            f"{self.population:,} examples, batches of {self.size} on average (a sample rate of "
            f"{self.sample_rate:.4g}), clip {settings.clip:g}, noise multiplier {self.noise_multiplier:.4g}, delta "
            f"{settings.delta:g}{reached}."
        )


def plan_privacy(
    settings: PrivacySettings,
    *,
    population: int,
    size: int,
    count_steps: Callable[[], int],
    account: Account,
    section: Section = PRIVACY,
) -> PrivacyPlan:
    """Find the noise, and the number of updates that the target allows.

    settings (PrivacySettings): From the config; with a noise multiplier if a run goes on.
    population (int): The number of examples, or of clients. size (int): How many of them are in an update on average.
    count_steps (Callable): The number of updates of the whole training. Called only if the noise depends on it.
    account (Account): What was used so far. section (Section): Of the settings.
    RAISES (ConfigError): The settings don't fit the data. (MissingPackageError): Opacus is not installed.
    """
    if settings.delta >= 1.0 / population:
        section.refuse(
            "delta",
            f"a number far below 1 / {population:,}, one by the number of those that are protected",
            settings.delta,
            "Publishing all of one at random would have such a delta.",
        )
    noise, target, rate = settings.noise_multiplier, settings.target_epsilon, size / population
    if noise is None:
        noise = least_noise(target or 0.0, settings.delta, rate, count_steps(), settings.accountant)
    if noise:
        check_opacus()
    last = None
    if target is not None:
        more = most_steps(account.history, target, settings.delta, noise, rate, settings.accountant)
        if not more and not account.steps:
            section.refuse(
                "target_epsilon",
                f"one that allows an update with a noise_multiplier of {noise:g}",
                target,
                "Raise noise_multiplier, or leave it out.",
            )
        last = account.steps + more
    return PrivacyPlan(settings, population, size, noise, last)
