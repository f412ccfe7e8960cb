"""The block of private training, `thinc-torchopt.Privacy.v1`, its batches, `thinc-torchopt.poisson.v1`, and its part of
a run: clipped sums with noise in place of gradients, and the epsilon that they have used.

    one step                                                                     loop/run.py
      each part of the batch    Book.recording: the clipped sum of its examples  book.py
      then                      noise, and the sum divided by q N                noise.py
      the update                as always
      at its end                one more update counted; was it the last that the target allows?
      an evaluation             epsilon, in the log, and as told to the user

The counts are saved in checkpoints, with the secret of the noise. A rollback takes back the params, not the counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from confection import Config
from spacy.language import Language
from spacy.training import Example

from ...core.attachments import Attachment
from ...core.checks import Section
from ...core.compat import check_opacus
from ...core.errors import ConfigError
from ...core.launched import is_launched
from ...core.log import inform
from ...core.schema import Count, NotNegative, read, write
from ...core.types import Accountant
from ...loop.config_check import collect_values
from ...loop.data_stream import Batches, DataStream, batches_of, checksums_of
from ...loop.events import Control, Evaluate, Log, PreOptimizerStep, StepEnd, TrainBegin
from .accounting import Account, least_noise, most_steps
from .book import Book, check_layers
from .noise import Noise

if TYPE_CHECKING:  # and not before a run begins: it takes the optimizer
    from ...core.optimizer import TorchOptimizer
    from ...loop.run import Run

BLOCK = "[training.optimizer.privacy]"
PRIVACY = Section(BLOCK)
_BATCHER = Section("[training.batcher]")
_WHAT = """Private training: epsilon and delta hold for one example of the training corpus: a doc, or a sentence where \
the corpus is read sentence by sentence. A person with several is protected less.
Covered: the trained params after any update, and what is computed from them alone.
Not covered: the set of labels and the vocabulary, and what else is initialized from the data; the number of examples; \
scores on the dev data, the choice of a model by them, and tuning; the losses, the number of words and times in logs; \
checkpoints, which have the secret of the noise."""
_GOES_ON = """Private training goes on after %s updates: epsilon is that of this run. If several runs go on from one \
checkpoint, and differ in anything, then each draws noise of its own, and together they have used more \
than it says."""


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

    clip: float
    delta: float
    _: KW_ONLY
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    accountant: Accountant = "prv"
    seed: int | None = None

    def __post_init__(self) -> None:
        self.has_noise = False  # whether the gradients of the next update are private: a run sets it
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
        return plan_private_training(self, nlp, config, optimizer, corpus).of_each_update

    def join(self, run: Any) -> Sequence[Any]:
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


@dataclass
class PrivacyState:
    """The saved state: the noise multiplier, the noise's secret, and the updates so far.

    history (list): Noise multiplier, sample rate, number of updates. Another element where a setting has changed.
    """

    noise_multiplier: NotNegative
    secret: str
    history: list[tuple[NotNegative, NotNegative, Count]] = field(default_factory=list)


class PrivateUpdates:
    """Makes the gradients of a run private, and counts. A listener.

    settings (Privacy): From the config.
    run (Run): The run.
    RAISES (ConfigError): The settings can't be private, or the batches are no Poisson samples. (ParamError): A
        component is not known to treat examples apart.
    """

    name = "privacy"

    needs_each_update = (
        f"With {BLOCK} it can't be skipped: that would tell something about its examples. Lower learn_rate. To go on "
        'from the newest checkpoint, set on_config_change = "warn" in [training.optimizer.checkpoint].'
    )

    def __init__(self, settings: Privacy, run: Run):
        self._settings = self._block = settings
        self._nlp = run.nlp
        self._optimizer = run.optimizer
        self._exclude = run.exclude
        self._batches = run.batches
        self._max_steps = run.max_steps
        self._batcher = _check_all(settings, run.nlp, run.optimizer, run.batches, self._exclude)
        self._book = Book(settings.clip)
        self._noise = Noise(settings.seed)
        self._account = Account(settings.delta, settings.accountant)
        self._about: tuple[object, ...] = ()
        self._plan: PrivacyPlan | None = None
        self._epsilons: dict[Accountant, float] | None = None

    def before_run(self) -> None:
        """Find the noise and the number of updates that the target allows, and tell the user what is private. After a
        saved state was loaded, as it draws the first batch: the number of examples is known then.

        RAISES (ConfigError): The settings don't fit the data. (MissingPackageError): Opacus is not installed.
        """
        # Only of a run with checkpoints, as no other is repeated. Before the plan, which may draw all batches.
        examples = self._batches.all_examples() if isinstance(self._batches, DataStream) else []
        data, config = sorted(checksums_of(examples)), sorted(collect_values(self._nlp).items())
        self._about = self._settings.clip, sha256(repr((data, config)).encode("utf8")).hexdigest()
        self._plan = _plan(self._settings, self._batches, self._batcher, self._max_steps, self._account)
        self._announce()

    @property
    def plan(self) -> PrivacyPlan:
        assert self._plan is not None  # of `before_run`
        return self._plan

    # ------------------------------------------------------------------ one step

    def around_part(self, examples: Sequence[Example]) -> AbstractContextManager[None]:
        """Inside, `nlp.update` of a part of the batch is recorded. At its end its clipped sum is in the models."""
        return self._book.recording(self._nlp, len(examples), self._exclude, self._optimizer.frozen_until)

    def after_backward(self, losses: dict[str, Any]) -> None:
        """Add the noise to the sums in the models, and divide them by the size that batches have on average."""
        plan = self.plan
        self._noise.add(
            self._nlp,
            self._exclude,
            self._optimizer.frozen_until,
            std=plan.noise_multiplier * plan.settings.clip,
            divide_by=plan.size,
            about=(self._account.steps, *self._about),
        )
        self._block.has_noise = True
        self._account.count(plan.noise_multiplier, plan.sample_rate)

    def on_pre_optimizer_step(self, event: PreOptimizerStep, control: Control) -> None:
        self._optimizer.batch_size = None  # the size of a batch is not private

    # ------------------------------------------------------------------ the run

    def _announce(self) -> None:
        inform("%s", _WHAT)
        for warning in what_is_not_covered(self._settings, self._nlp.config.interpolate()["training"]["seed"]):
            inform("%s", warning)
        inform("Private training: %s", self.plan.in_words())
        if self._account.steps:
            inform(_GOES_ON, f"{self._account.steps:,}")
        self._tell_end()

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        control.should_stop |= self._is_over

    @property
    def _is_over(self) -> bool:
        return self.plan.last is not None and self._account.steps >= self.plan.last

    def _tell_end(self) -> None:
        if self._is_over:
            inform("Private training ends: one more update would exceed epsilon %g.", self._settings.target_epsilon)

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        self._tell_end()
        if self._is_over:
            control.should_stop = control.should_evaluate = True

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        self._epsilons = self._account.epsilons()
        inform("Private training: %s", self._account.in_words(self._epsilons))

    def on_log(self, event: Log, control: Control) -> None:
        if self._epsilons is not None:
            numbers = self._account.numbers(self._epsilons)
            event.info["epsilon"] = numbers.pop("epsilon")
            used = {"noise_multiplier": self.plan.noise_multiplier, "sample_rate": self.plan.sample_rate}
            event.info["privacy"] = {**numbers, **used}
            self._epsilons = None

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        return write(PrivacyState(self.plan.noise_multiplier, self._noise.secret, self._account.history))

    def load_state_dict(self, saved: Any) -> None:
        """Resume. The past counts as it was; a noise that was computed stays, unless the target has changed.

        RAISES (StateError): The state is invalid.
        """
        state = read(PrivacyState, saved, "the state of the private training")
        self._noise.secret = state.secret
        self._account.history = list(state.history)
        if self._settings.noise_multiplier is None:
            self._settings = replace(self._settings, noise_multiplier=state.noise_multiplier)


@dataclass(frozen=True)
class PrivacyPlan:
    """The numbers that follow from the settings, the data and the length of a training.

    population (int): The number of examples. size (int): The number of examples that a batch has on average.
    noise_multiplier (float): Of the settings, or the least for the target.
    last (int | None): All updates that the target allows, past ones too. None: there is no target.
    """

    settings: Privacy
    population: int
    size: int
    noise_multiplier: float
    last: int | None

    @property
    def sample_rate(self) -> float:
        """The probability of each example to be in a batch."""
        return self.size / self.population

    @property
    def of_each_update(self) -> Privacy:
        """The settings with this noise and without a target, for a part of the training."""
        return replace(self.settings, noise_multiplier=self.noise_multiplier, target_epsilon=None)

    def in_words(self) -> str:
        """For the user."""
        settings = self.settings
        reached = "" if self.last is None else f"; {self.last:,} updates reach epsilon {settings.target_epsilon:g}"
        return (
            f"{self.population:,} examples, batches of {self.size} on average (a sample rate of "
            f"{self.sample_rate:.4g}), clip {settings.clip:g}, noise multiplier {self.noise_multiplier:.4g}, delta "
            f"{settings.delta:g}{reached}."
        )


def plan_privacy(
    settings: Privacy,
    *,
    population: int,
    size: int,
    count_steps: Callable[[], int],
    account: Account,
) -> PrivacyPlan:
    """Find the noise, and the number of updates that the target allows.

    settings (Privacy): From the config; with a noise multiplier if a run goes on.
    population (int): The number of examples. size (int): How many of them are in an update on average.
    count_steps (Callable): The number of updates of the whole training. Called only if the noise depends on it.
    account (Account): What was used so far.
    RAISES (ConfigError): The settings don't fit the data. (MissingPackageError): Opacus is not installed.
    """
    if settings.delta >= 1.0 / population:
        PRIVACY.refuse(
            "delta",
            f"a number far below 1 divided by the number of examples, 1 / {population:,}",
            settings.delta,
            "With such a delta, even publishing one of them at random would count as private.",
        )
    noise, target, rate, guess = settings.noise_multiplier, settings.target_epsilon, size / population, None
    if noise is None:
        assert target is not None  # `Privacy` needs one of both
        guess = count_steps()
        noise = least_noise(target, settings.delta, rate, guess, settings.accountant)
    if noise:
        check_opacus()
    last = None
    if target is not None:
        more = most_steps(account.history, target, settings.delta, noise, rate, settings.accountant, guess=guess)
        if not more and not account.steps:
            PRIVACY.refuse(
                "target_epsilon",
                f"one that allows an update with a noise_multiplier of {noise:g}",
                target,
                "Raise noise_multiplier, or leave it out.",
            )
        last = account.steps + more
    return PrivacyPlan(settings, population, size, noise, last)


def plan_private_training(
    settings: Privacy,
    nlp: Language,
    config: Config,
    optimizer: TorchOptimizer,
    corpus: Callable[[Language], Iterable[Example]] | None = None,
) -> PrivacyPlan:
    """Plan a private training by its config, without training.

    settings (Privacy): From the config.
    nlp (Language): The pipeline, initialized. config (Config): Its config, interpolated.
    optimizer (TorchOptimizer): The config's.
    corpus (Callable | None): The training corpus, if it is loaded already.
    RAISES (ConfigError): It would be refused. (ParamError): A component or layer can't be trained so.
        (MissingPackageError): Opacus is not installed.
    """
    training, account = config["training"], Account(settings.delta, settings.accountant)
    batches = batches_of(nlp, config, corpus)
    batcher = _check_all(settings, nlp, optimizer, batches, training["frozen_components"])
    return _plan(settings, batches, batcher, training["max_steps"], account)


def what_is_not_covered(settings: Privacy, seed: int | None) -> Iterator[str]:
    """Find settings with which less is covered. seed (int | None): In [training]."""
    if seed is not None:
        yield (
            "Less is private from those who know the seed in [training], as they can draw the batches again. Set seed "
            "= null."
        )
    if settings.seed is not None:
        yield f"Nothing is private from those who know 'seed' in {BLOCK}: set it in experiments only."


def _check_all(
    settings: Privacy, nlp: Language, optimizer: TorchOptimizer, batches: Batches, exclude: Collection[str]
) -> PoissonBatcher:
    _check_settings(optimizer)
    if "budget" in optimizer.attachments and settings.target_epsilon is not None and settings.noise_multiplier:
        PRIVACY.refuse(
            "target_epsilon",
            "none beside [training.optimizer.budget] and a noise_multiplier",
            settings.target_epsilon,
            "The target could end the training before the learning rate falls. Remove it: the log has the epsilon.",
        )
    check_layers(nlp, exclude)
    return _poisson_of(batches)


def _plan(
    settings: Privacy, batches: Batches, batcher: PoissonBatcher, max_steps: int, account: Account
) -> PrivacyPlan:
    if settings.noise_multiplier is None and not max_steps and not batches.max_epochs:
        PRIVACY.refuse(
            "noise_multiplier",
            "a number, or a training with an end: the noise for target_epsilon depends on the number of updates",
            None,
            "Set max_steps in [training], or noise_multiplier.",
        )
    _ = batches.next_epoch  # the batcher has seen all examples then
    return plan_privacy(
        settings,
        population=batcher.population,
        size=batcher.size,
        count_steps=lambda: batches.count_steps(max_steps),
        account=account,
    )


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
    if "recorder" in optimizer.attachments:
        raise ConfigError(
            f"Can't train with {BLOCK} and [training.optimizer.recorder]: the record tells how hard each text was, "
            "which is not private. Remove one of the blocks."
        )
    for name, algorithm in optimizer.torch_optimizers.items():
        if getattr(algorithm, "normalize", None) is not None:
            raise ConfigError(
                f"Can't train with {BLOCK} and 'normalize' in [training.optimizer.{name}]: the sum of the gradients is "
                "divided by the batches' mean size, and the size of a batch is not private. Remove 'normalize'."
            )
