"""The blocks of private training: `thinc-torchopt.Privacy.v1`, and `thinc-torchopt.poisson.v1` for its batches."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, get_args

from ...core.attachments import Attachment
from ...core.checks import Section
from ...core.errors import ConfigError
from ...core.types import Accountant

BLOCK = "[training.optimizer.privacy]"
PRIVACY = Section(BLOCK)
_BATCHER = Section("[training.batcher]")


@dataclass
class Privacy(Attachment):
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
    seed (int): For the noise, in experiments. Whoever knows it can remove the noise. Without it, the noise is seeded
        from the system's source of randomness.
    RAISES (ConfigError): An argument is out of its range, or both `noise_multiplier` and `target_epsilon` are missing.
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.Privacy.v1", or in Python the result of thinc_torchopt.privacy.Privacy()'
    )

    own_block: ClassVar[str] = "privacy"
    decides_alike: ClassVar[bool] = True

    clip: float
    delta: float
    _: KW_ONLY
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    accountant: Accountant = "prv"
    seed: int | None = None
    # Whether the gradients of the next update are private. A run sets it.
    has_noise: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.noise_multiplier is None and self.target_epsilon is None:
            PRIVACY.refuse("noise_multiplier", "a number here or for 'target_epsilon'", None)
        if self.noise_multiplier is not None:
            self.noise_multiplier = PRIVACY.number("noise_multiplier", self.noise_multiplier)
            if self.noise_multiplier == 0.0 and self.target_epsilon is not None:
                PRIVACY.refuse("noise_multiplier", "a number above 0, as there is a target_epsilon", 0.0)
        if self.target_epsilon is not None:
            self.target_epsilon = PRIVACY.number("target_epsilon", self.target_epsilon, above=0.0)
        self.clip = PRIVACY.number("clip", self.clip, above=0.0)
        self.delta = PRIVACY.number("delta", self.delta, above=0.0, below=1.0)
        PRIVACY.choice("accountant", self.accountant, get_args(Accountant))
        if self.seed is not None:
            self.seed = PRIVACY.whole("seed", self.seed)

    def check_update(self, optimizer: Any) -> None:
        if not self.has_noise:
            raise ConfigError(
                f"Can't update with {BLOCK}: expected gradients that were clipped for each example and have noise, "
                "found plain ones. This block works in spacy train alone. Remove it for spacy pretrain and for a loop "
                "of your own, in which thinc_torchopt.privacy.clip_each_example can clip."
            )
        self.has_noise = False

    def in_short_training(self, nlp: Any, config: Any, optimizer: Any, corpus: Any) -> Privacy:
        """With the noise of the whole training, not of these few steps."""
        from .private_run import plan_private_training

        return plan_private_training(self, nlp, config, optimizer, corpus).of_each_update

    def join(self, run: Any) -> Sequence[Any]:
        from .private_run import PrivateUpdates

        return [PrivateUpdates(self, run)]


class PoissonBatcher:
    """See `poisson`.

    size (int): The number of examples that a batch has on average.

    Public: `size`, `population` (the number of examples; 0: unknown before the first batch).
    """

    def __init__(self, size: int):
        self.size = size
        self.population = 0

    @property
    def sample_rate(self) -> float:
        """The probability of each example to be in a batch."""
        return self.size / self.population

    def __call__(self, items: Iterable[Any]) -> Iterator[list[Any]]:
        examples = list(items)
        self.population = len(examples)
        if self.size > self.population:
            _BATCHER.refuse("size", f"at most the number of examples, {self.population}", self.size)
        for _ in range(max(1, round(self.population / self.size))):
            yield [example for example in examples if random.random() < self.sample_rate]


def poisson(size: int) -> PoissonBatcher:
    """Batches in which each example is with the same probability, whatever the others are. Registered as
    `thinc-torchopt.poisson.v1`.

    Batches have different sizes, and may be empty. An epoch has as many batches as it would have by that size; examples
    may be in none of them, or in several. For private training, whose accounting needs just this.

    size (int): The number of examples that a batch has on average: examples, not words.
    RETURNS (Callable): The batcher for [training.batcher].
    RAISES (ConfigError): `size` is below 1, or above the number of examples.
    """
    return PoissonBatcher(_BATCHER.whole("size", size, at_least=1))
