"""The private part of a run: clipped sums with noise in place of gradients, and the epsilon that they have used.

    one step                                                                     run.py
      each part of the batch    Book.recording: the clipped sum of its examples  privacy/book.py
      then                      noise, and the sum divided by q N                privacy/noise.py
      the update                as always
      at its end                one more update counted; was it the last that the target allows?
      an evaluation             epsilon, in the log, and as told to the user

The counts are saved in checkpoints, with the state of the noise. A rollback takes back the params, not the counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from spacy.language import Language
from spacy.training import Example

from ..compat import check_opacus
from ..errors import ConfigError, StateError
from ..launched import is_launched
from ..optimizers import TorchOptimizer
from ..privacy import BLOCK, Book, Noise, PoissonBatcher, epsilon_of, least_noise, most_steps
from ..schema import Count, NotNegative, read, write
from ..types import Accountant, PrivacySettings
from .components import is_trained
from .data_stream import Batches
from .events import Control, Evaluate, Log, StepEnd, TrainBegin

logger = logging.getLogger("spacy.torchopt")

_WHAT = """Private training: epsilon and delta hold for one example of the training corpus: a doc, or a sentence where \
the corpus is read sentence by sentence. A person with several is protected less.
Covered: the trained params after any update, and what is computed from them alone.
Not covered: the set of labels and the vocabulary, and what else is initialized from the data; the number of examples; \
scores on the dev data, the choice of a model by them, and tuning; the losses, the number of words and times in logs; \
checkpoints, which have the state of the noise."""


@dataclass
class PrivacyState:
    """The saved state: the noise multiplier, the updates so far, the number of examples, and the noise's generator.

    history (list): Noise multiplier, sample rate, number of updates. Another element where a setting has changed.
    last (int | None): The number of updates that the target allows. None: there is no target.
    """

    noise_multiplier: NotNegative
    last: Count | None
    generator: torch.Tensor
    history: list[tuple[NotNegative, NotNegative, Count]] = field(default_factory=list)


class PrivateUpdates:
    """Makes the gradients of a run private, and counts. A listener.

    settings (PrivacySettings): From the config.
    nlp (Language), optimizer (TorchOptimizer), batches (Batches): The run's.
    exclude (Sequence[str]): Components that are not trained.
    max_steps (int): The run's.
    RAISES (ConfigError): The settings can't be private, or the batches are no Poisson samples. (ParamError): A
        component is not known to treat examples apart.

    Public: `noise_multiplier`, `epsilon` (None before the first evaluation).
    """

    name = "privacy"

    def __init__(
        self,
        settings: PrivacySettings,
        nlp: Language,
        optimizer: TorchOptimizer,
        batches: Batches,
        exclude: Sequence[str],
        *,
        max_steps: int,
    ):
        self._settings = settings
        self._nlp = nlp
        self._optimizer = optimizer
        self._exclude = exclude
        self._batches = batches
        self._book = Book(settings.clip)
        self._noise = Noise(settings.seed)
        self._history: list[tuple[float, float, int]] = []
        self.epsilon: dict[str, float] | None = None
        _check_settings(optimizer)
        self._batcher = _poisson_of(batches)
        self._book.check(nlp, exclude)
        self._max_steps = max_steps
        self.noise_multiplier = settings.noise_multiplier or 0.0
        self._last: int | None = None

    def prepare(self) -> None:
        """Find the noise and the number of updates that the target allows, and tell the user what is private. After a
        saved state was loaded, as it draws the first batch: the number of examples is known then.

        RAISES (ConfigError): The settings don't fit the data. (MissingPackageError): Opacus is not installed.
        """
        settings = self._settings
        _ = self._batches.next_epoch
        population = self._batcher.population
        if settings.delta >= 1.0 / population:
            raise ConfigError(
                f"Can't set 'delta' in {BLOCK}: expected a number far below 1 / {population:,}, the number of "
                f"examples, found {settings.delta:g}. Publishing one example at random would have such a delta."
            )
        if settings.noise_multiplier is None and not self._history:
            steps, rate = self._batches.count_steps(self._max_steps), self._batcher.sample_rate
            self.noise_multiplier = least_noise(
                settings.target_epsilon or 0.0, settings.delta, rate, steps, settings.accountant
            )
        self._last = self._steps_allowed()
        if self.noise_multiplier:
            check_opacus()
        self._announce()

    def _steps_allowed(self) -> int | None:
        """All updates that the target allows, past ones too."""
        settings, rate = self._settings, self._batcher.sample_rate
        if settings.target_epsilon is None:
            return None
        more = most_steps(
            self._history, settings.target_epsilon, settings.delta, self.noise_multiplier, rate, settings.accountant
        )
        if not more and not self._history:
            raise ConfigError(
                f"Can't train with target_epsilon = {settings.target_epsilon:g} in {BLOCK}: one update with a "
                f"noise_multiplier of {self.noise_multiplier:g} exceeds it. Raise noise_multiplier, or leave it out."
            )
        return self._steps + more

    @property
    def _steps(self) -> int:
        return sum(steps for _, _, steps in self._history)

    # ------------------------------------------------------------------ one step

    def recording(self, examples: Sequence[Example]) -> AbstractContextManager[None]:
        """Inside, `nlp.update` of a part of the batch is recorded. At its end its clipped sum is in the models."""
        return self._book.recording(self._nlp, len(examples), self._exclude, self._optimizer.frozen_keys)

    def add_noise(self, losses: dict[str, Any]) -> None:
        """Add the noise to the sums in the models, and divide them by the size that batches have on average.

        losses (dict): Those of an empty batch are 0, for spaCy's table.
        """
        for name, proc in self._nlp.pipeline:
            if name not in self._exclude and is_trained(proc):
                losses.setdefault(name, 0.0)
        batcher, multiplier = self._batcher, self.noise_multiplier
        self._noise.add(
            self._nlp,
            self._exclude,
            self._optimizer.frozen_keys,
            std=multiplier * self._settings.clip,
            divide_by=batcher.size,
        )
        rate = batcher.sample_rate
        if self._history and self._history[-1][:2] == (multiplier, rate):
            self._history[-1] = (multiplier, rate, self._history[-1][2] + 1)
        else:
            self._history.append((multiplier, rate, 1))

    # ------------------------------------------------------------------ the run

    def _announce(self) -> None:
        batcher, settings = self._batcher, self._settings
        logger.info("%s", _WHAT)
        if self._nlp.config.interpolate()["training"]["seed"] is not None:
            logger.info(
                "Not covered either while it is known: the seed in [training], by which batches can be drawn again. "
                "Set seed = null."
            )
        if settings.seed is not None:
            logger.info("Nothing is covered from anyone who knows 'seed' in %s: it is for experiments.", BLOCK)
        logger.info(
            "Private training: %s examples, batches of %d on average (a sample rate of %.4g), clip %g, noise "
            "multiplier %.4g, delta %g%s.",
            f"{batcher.population:,}",
            batcher.size,
            batcher.sample_rate,
            settings.clip,
            self.noise_multiplier,
            settings.delta,
            "" if self._last is None else f"; {self._last:,} updates reach epsilon {settings.target_epsilon:g}",
        )

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        control.should_stop |= self._is_over

    @property
    def _is_over(self) -> bool:
        return self._last is not None and self._steps >= self._last

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        if self._is_over:
            logger.info(
                "Private training ends: one more update would exceed epsilon %g.", self._settings.target_epsilon
            )
            control.should_stop = control.should_evaluate = True

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        self.epsilon = {kind: epsilon_of(self._history, self._settings.delta, kind) for kind in get_args(Accountant)}
        logger.info(
            "Private training: epsilon %.3f (%s; by %s %.3f) at delta %g after %s updates.",
            self.epsilon[self._settings.accountant],
            self._settings.accountant.upper(),
            *next((kind.upper(), found) for kind, found in self.epsilon.items() if kind != self._settings.accountant),
            self._settings.delta,
            f"{self._steps:,}",
        )

    def on_log(self, event: Log, control: Control) -> None:
        if self.epsilon is not None:
            found = {kind: None if math.isinf(epsilon) else epsilon for kind, epsilon in self.epsilon.items()}
            event.info["epsilon"] = found[self._settings.accountant]
            event.info["privacy"] = {
                **{f"epsilon_{kind}": epsilon for kind, epsilon in found.items()},
                "delta": self._settings.delta,
                "noise_multiplier": self.noise_multiplier,
                "sample_rate": self._batcher.sample_rate,
                "updates": self._steps,
            }
            self.epsilon = None

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        return write(PrivacyState(self.noise_multiplier, self._last, self._noise.state, self._history))

    def load_state_dict(self, saved: Any) -> None:
        """Resume. The past counts as it was; a noise that was computed stays, unless the target has changed.

        RAISES (StateError): The state is invalid.
        """
        state = read(PrivacyState, saved, "the state of the private training")
        if state.generator.shape != self._noise.state.shape or state.generator.dtype != torch.uint8:
            raise StateError("Can't load the state of the private training: its generator is damaged.")
        self._history = list(state.history)
        self._noise.state = state.generator
        if self._settings.noise_multiplier is None:
            self.noise_multiplier = state.noise_multiplier


def _poisson_of(batches: Batches) -> PoissonBatcher:
    """RAISES (ConfigError): The batches are no Poisson samples of a corpus in memory."""
    batcher = batches.batcher
    if not isinstance(batcher, PoissonBatcher) or batches.max_epochs == -1:
        found = "a streamed corpus (max_epochs = -1)" if batches.max_epochs == -1 else type(batcher).__name__
        raise ConfigError(
            f"Can't train with {BLOCK}: expected batches by Poisson sampling, found {found}. The accounting holds for "
            'those only. Set @batchers = "thinc-torchopt.poisson.v1" and size in [training.batcher], and max_epochs to '
            "0 or more."
        )
    return batcher


def _check_settings(optimizer: TorchOptimizer) -> None:
    """RAISES (ConfigError): A setting by which an update depends on the data in another way, or that is not done."""
    if is_launched():
        raise ConfigError(f"Can't train with {BLOCK} in several processes: train in one, without torchrun.")
    if optimizer.precision != "float32":
        raise ConfigError(
            f"Can't train with {BLOCK} and precision = {optimizer.precision!r}: the norms of gradients need float32."
        )
    if optimizer.controller.goes_by_metrics:
        raise ConfigError(
            f"Can't train with {BLOCK} and a learning rate that follows losses or scores: they are not private. Use "
            "a schedule."
        )
    for name, algorithm in optimizer.torch_optimizers.items():
        if getattr(algorithm, "normalize", None) is not None:
            raise ConfigError(
                f"Can't train with {BLOCK} and 'normalize' in [training.optimizer.{name}]: the sum of the gradients is "
                "divided by the batches' mean size, and the size of a batch is not private. Remove 'normalize'."
            )
