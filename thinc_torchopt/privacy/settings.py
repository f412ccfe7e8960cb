"""The settings of private training: `thinc-torchopt.Privacy.v1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

from ..attachments import Attachment
from ..checks import Section
from ..errors import ConfigError
from ..types import Accountant

BLOCK = "[training.optimizer.privacy]"
PRIVACY = Section(BLOCK)


@dataclass
class PrivacySettings(Attachment):
    """The settings of [training.optimizer.privacy]: see `privacy.Privacy`, which makes them.

    has_noise (bool): Whether the gradients of the next update are private. A run sets it.
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.Privacy.v1", or in Python the result of thinc_torchopt.privacy.Privacy()'
    )

    clip: float
    delta: float
    noise_multiplier: float | None
    target_epsilon: float | None
    accountant: Accountant
    seed: int | None
    has_noise: bool = field(default=False, compare=False, repr=False)

    def check_update(self, optimizer: Any) -> None:
        if not self.has_noise:
            raise ConfigError(
                f"Can't update with {BLOCK}: expected gradients that were clipped for each example and have noise, "
                "found plain ones. Only spacy train makes them private by this block: remove it for spacy pretrain and "
                "for a loop of your own. docs/privacy.md has a private loop."
            )
        self.has_noise = False

    def join(self, run: Any) -> Sequence[Any]:
        from ..training.private import PrivateUpdates

        return [PrivateUpdates(self, run)]


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
