"""`[federated.privacy]`: differential privacy for each client. private_average.py computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ...checks import Section
from ...privacy import PrivacySettings, check_privacy
from ...types import Accountant

PRIVACY = Section("[federated.privacy]")


@dataclass
class ClientPrivacySettings(PrivacySettings):
    """The settings in [federated.privacy]: see `ClientPrivacy`."""


def ClientPrivacy(
    clip: float,
    delta: float,
    *,
    noise_multiplier: Optional[float] = None,
    target_epsilon: Optional[float] = None,
    accountant: Accountant = "prv",
    seed: Optional[int] = None,
) -> ClientPrivacySettings:
    """Train with differential privacy for each client: its update is clipped, and noise is added to the sum. Registered
    as `thinc-torchopt.ClientPrivacy.v1`.

    clip (float): The largest norm of a client's update, the change of all weights in a round.
    delta (float): The delta of (epsilon, delta). Far below 1 / number of clients.
    noise_multiplier (float): The standard deviation of the noise, as a multiple of `clip`. Without it, the least noise
        for `target_epsilon` after all rounds.
    target_epsilon (float): The run ends before it would exceed this epsilon.
    accountant ("prv" | "rdp"): The accountant of Opacus that counts. The log has both.
    seed (int): For the noise, in experiments. Who knows it can take the noise off. Without it, it is drawn from the
        system's source of randomness.
    RAISES (ConfigError): An argument is out of its range, or both `noise_multiplier` and `target_epsilon` are missing.
    """
    checked = check_privacy(
        PRIVACY,
        clip,
        delta,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        accountant=accountant,
        seed=seed,
    )
    return ClientPrivacySettings(**vars(checked))
