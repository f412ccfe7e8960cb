"""The settings of private training: `thinc-torchopt.Privacy.v1`."""

from __future__ import annotations

from typing import Optional

from ..checks import Section
from ..types import Accountant, PrivacySettings

BLOCK = "[training.optimizer.privacy]"
PRIVACY = Section(BLOCK)


def Privacy(
    clip: float,
    delta: float,
    *,
    noise_multiplier: Optional[float] = None,
    target_epsilon: Optional[float] = None,
    accountant: Accountant = "prv",
    seed: Optional[int] = None,
) -> PrivacySettings:
    """Train with differential privacy for each example: its gradient is clipped, and noise is added to the sum.
    Registered as `thinc-torchopt.Privacy.v1`.

    Needs `thinc-torchopt.poisson.v1` as batcher, and Opacus for the accounting. With `noise_multiplier` 0 nothing is
    private, and Opacus is not needed.

    clip (float): The largest norm of an example's gradient, over all params that are trained.
    delta (float): The delta of (epsilon, delta). Far below 1 / number of examples.
    noise_multiplier (float): The standard deviation of the noise, as a multiple of `clip`. Without it, the least noise
        for `target_epsilon` at the end of the training, by `max_steps` or `max_epochs`.
    target_epsilon (float): The training ends before it would exceed this epsilon.
    accountant ("prv" | "rdp"): The accountant of Opacus that counts. The log has both.
    seed (int): For the noise, in experiments. Who knows it can take the noise off. Without it, it is drawn from the
        system's source of randomness.
    RAISES (ConfigError): An argument is out of its range, or both `noise_multiplier` and `target_epsilon` are missing.
    """
    return check_privacy(
        PRIVACY,
        clip,
        delta,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        accountant=accountant,
        seed=seed,
    )


def check_privacy(
    section: Section,
    clip: float,
    delta: float,
    *,
    noise_multiplier: float | None,
    target_epsilon: float | None,
    accountant: Accountant,
    seed: int | None,
) -> PrivacySettings:
    """Check the settings of a block. RAISES (ConfigError): See `Privacy`."""
    if noise_multiplier is None and target_epsilon is None:
        section.refuse("noise_multiplier", "a number, or one for 'target_epsilon'", None)
    if noise_multiplier is not None:
        noise_multiplier = section.number("noise_multiplier", noise_multiplier)
        if noise_multiplier == 0.0 and target_epsilon is not None:
            section.refuse("noise_multiplier", "a number above 0, as there is a target_epsilon", noise_multiplier)
    if target_epsilon is not None:
        target_epsilon = section.number("target_epsilon", target_epsilon, above=0.0)
    return PrivacySettings(
        clip=section.number("clip", clip, above=0.0),
        delta=section.number("delta", delta, above=0.0, below=1.0),
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        accountant=section.choice("accountant", accountant, ("prv", "rdp")),
        seed=None if seed is None else section.whole("seed", seed),
    )
