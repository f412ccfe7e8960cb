"""A pipeline for federated training, built from a config without any text; and one round of local training.

Nothing here knows of Flower.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from confection import Config
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Example
from spacy.training.loop import create_before_to_disk_callback, create_evaluation_callback, create_train_batches
from spacy.util import get_sourced_components, load_config, load_model_from_config, registry, resolve_dot_names
from thinc.api import fix_random_seed

from ...core.checks import Section
from ...core.errors import ConfigError, ConfigWarning, PipelineError
from ...core.host import link_components
from ...core.optimizer import TorchOptimizer
from ...core.schema import Count
from ...loop.data_stream import for_pipeline
from ...loop.run import train_while_improving
from ..modular import Modular
from .agreement import describe
from .weights import Tensors, Weights

_OPTIMIZER = Section("[training.optimizer]")
_PARAM_GROUPS = Section("[training.optimizer.param_groups]")


@dataclass(frozen=True)
class RoundPlan:
    """The work of a client in a round.

    round (int): Counted from 1. steps, epochs (int): As `local_steps` and `local_epochs`; one of them is 0.
    """

    round: Count
    steps: Count
    epochs: Count


@dataclass(frozen=True)
class Outcome:
    """The result of a round of local training.

    weights (Tensors): The new weights.
    aux_vars (Mapping): Auxiliary variables for the server, by name.
    state (Mapping): The optimizer's state, for the next round.
    examples (int): Number of examples of the client.
    steps, words, skipped (int): Number of steps and words in this round, and of updates that were skipped.
    losses (dict): By component, summed over the steps.
    """

    weights: Tensors
    aux_vars: Mapping[str, Any]
    state: Mapping[str, Any]
    examples: int
    steps: int
    words: int
    losses: dict[str, float]
    skipped: int


class FederatedPipeline:
    """A pipeline with its config, at the server and at each client.

    It is initialized as in spaCy, but with an empty text instead of a corpus. So it is the same everywhere, and needs
    its labels in [initialize.components].

    config (Config): Not interpolated.
    RAISES (ConfigError): A setting has no effect here, or can't be used. (PipelineError): Nothing to train.

    Public: `nlp`, `config` (filled, interpolated), `optimizer`, `frozen` (names of components), `weights`.
    """

    def __init__(self, config: Config):
        training = config.interpolate()["training"]
        if training.get("seed") is not None:
            fix_random_seed(training["seed"])
        self.nlp: Language = load_model_from_config(config, auto_fill=True)
        self.config = self.nlp.config.interpolate()
        self._training = registry.resolve(_without_averages(self.config["training"]), schema=ConfigSchemaTraining)
        self.optimizer: TorchOptimizer = _optimizer_of(self._training)
        self.frozen: list[str] = list(self._training["frozen_components"])
        resumed = [name for name in get_sourced_components(config) if name not in self.frozen]
        if resumed:
            with self.nlp.select_pipes(enable=resumed):
                self.nlp.resume_training(sgd=self.optimizer)
        link_components(self.nlp)
        with self.nlp.select_pipes(disable=[*self.frozen, *resumed]):
            self.nlp.initialize(sgd=self.optimizer)
        self.optimizer.initialize(self.nlp, self.frozen)
        check_evaluates_what_it_trains(self.optimizer)
        frozen_until = self.optimizer.frozen_until
        never_trained = {key for key, step in frozen_until.items() if math.isinf(step)}
        self.weights = Weights(self.nlp, self.frozen, never_trained)
        first_thaw = min(frozen_until.values(), default=math.inf)
        if any(aux_names(one) for one in self._modular) and not math.isinf(first_thaw):
            _PARAM_GROUPS.refuse(
                "unfreeze_at",
                "none beside modules that exchange auxiliary variables, which are of all params",
                int(first_thaw),
                "Remove it, or set freeze = true in its place.",
            )
        _check_labels(self.nlp, self.frozen)

    def describe(self, exchanged: Iterable[str] | None = None) -> dict[str, Any]:
        """Describe the pipeline for comparison: see agreement.py.

        exchanged (Iterable[str]): Names of auxiliary variables. None: those of this pipeline's optimizer.
        """
        own = [name for one in self._modular for name in aux_names(one)]
        return describe(self.nlp, self.weights, sorted(own if exchanged is None else exchanged))

    def evaluate(self, weights: Mapping[str, Any]) -> tuple[float, dict[str, float], int]:
        """Evaluate weights on the dev corpus.

        RETURNS (tuple): The main score, all scores that are numbers, and the number of examples. Without examples, the
            score is 0.
        """
        self.weights.load(weights)
        [corpus] = resolve_dot_names(self.config, [self._training["dev_corpus"]])
        examples = list(corpus(self.nlp))
        if not examples:
            return 0.0, {}, 0
        score, scores = create_evaluation_callback(self.nlp, lambda nlp: examples, self._training["score_weights"])()
        numbers = {
            name: float(value)
            for name, value in scores.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and name != "speed"
        }
        return float(score), numbers, len(examples)

    def to_save(self, weights: Mapping[str, Any]) -> Language:
        """The pipeline with these weights, after [training] before_to_disk."""
        self.weights.load(weights)
        saved: Language = create_before_to_disk_callback(self._training["before_to_disk"])(self.nlp)
        return saved

    def train(
        self,
        weights: Mapping[str, Any],
        plan: RoundPlan,
        *,
        score: float = 0.0,
        aux_vars: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> Outcome:
        """Train for a round.

        weights (Mapping): The global model.
        plan (RoundPlan): The work of this round.
        score (float): Score of the global model on the dev corpus, for learning rates that depend on it.
        aux_vars (Mapping | None): The server's auxiliary variables.
        state (Mapping | None): The optimizer's state after the last round. None: it starts fresh, with schedules moved
            to this round.
        name (str): The client's name, which is a part of its random seed.
        """
        optimizer, T = self.optimizer, self._training
        self.weights.load(weights)
        if T["seed"] is not None:
            fix_random_seed((T["seed"] + 1_000_003 * plan.round + crc32(name.encode("utf8"))) % 2**31)
        if state is not None:
            optimizer.load_state_dict(state)
        for _ in range((plan.round - 1) * plan.steps - (0 if state is None else state["step"])):
            optimizer.step_schedules()
        for one in self._modular:
            if aux_vars:
                one.process_aux_var(aux_vars)
            one.start_round()
        [corpus] = resolve_dot_names(self.config, [T["train_corpus"]])
        count = _Count(corpus)
        batcher: Any = for_pipeline(T["batcher"], self.nlp)
        batches = create_train_batches(self.nlp, count.read, batcher, plan.epochs or min(T["max_epochs"], 0))
        losses = _Losses()
        words, skipped_before = 0, optimizer.skipped_updates
        for _, info, _ in train_while_improving(
            self.nlp,
            optimizer,
            islice(batches, plan.steps) if plan.steps else batches,
            lambda: (score, {}),
            dropout=T["dropout"],
            eval_frequency=2**62,
            accumulate_gradient=T["accumulate_gradient"],
            patience=0,
            max_steps=0,
            exclude=T["frozen_components"],
            annotating_components=T["annotating_components"],
            before_update=T["before_update"],
            listeners=[losses],
        ):
            words = info["words"]
        aux = {name: value for one in self._modular for name, value in one.collect_aux_var().items()}
        return Outcome(
            self.weights.collect(),
            aux,
            optimizer.state_dict(),
            examples=count.examples,
            steps=losses.steps,
            words=words,
            losses=losses.sums,
            skipped=optimizer.skipped_updates - skipped_before,
        )

    @property
    def _modular(self) -> list[Modular]:
        return [one for one in self.optimizer.torch_optimizers.values() if isinstance(one, Modular)]


class _Count:
    """A corpus that counts the examples of its last reading."""

    def __init__(self, corpus: Any):
        self._corpus = corpus

    def read(self, nlp: Language) -> Iterator[Example]:
        self.examples = 0
        for example in self._corpus(nlp):
            self.examples += 1
            yield example


class _Losses:
    """Sums the losses of a round. A listener: see loop/events.py."""

    name = "losses of a round"

    def __init__(self) -> None:
        self.steps = 0
        self.sums: dict[str, float] = {}

    def on_step_end(self, event: Any, control: Any) -> None:
        self.steps += 1
        for component, loss in event.run.losses.items():
            # Skipped batches may have none that is finite, and messages carry no other.
            self.sums[component] = self.sums.get(component, 0.0) + (loss if math.isfinite(loss) else 0.0)


def aux_names(optimizer: Modular) -> list[str]:
    """The names of the auxiliary variables that its modules exchange."""
    return [module.key for module in optimizer.modules if module.has_aux]


def read_config(path: str | Path, overrides: Mapping[str, Any]) -> Config:
    """Read a config, with overrides by their dotted path. RAISES (ConfigError): The file is missing."""
    if not Path(path).is_file():
        raise ConfigError(f"Can't read the config '{path}': expected a file, found none. Give an absolute path.")
    return load_config(path, overrides=dict(overrides), interpolate=False)


def _check_labels(nlp: Language, frozen: Iterable[str]) -> None:
    """RAISES (PipelineError): A component needs labels, and has none. Some components raise that error themselves."""
    for name, proc in nlp.pipeline:
        # None: the component can't be initialized with labels, such as a shared tok2vec.
        needs_labels = getattr(proc, "label_data", None) is not None
        if name not in frozen and needs_labels and not proc.labels:  # type: ignore[attr-defined]
            raise PipelineError(
                f"Can't train component '{name}' federated: expected labels in [initialize.components.{name}.labels], "
                "found none. Clients don't see each other's texts, so list them at each client with "
                "`spacy init labels`, put all into one file, and name it there in each config."
            )


def _without_averages(training: Mapping[str, Any]) -> dict[str, Any]:
    """[training] without averages, which have no effect in a round."""
    block = training.get("optimizer")
    if not isinstance(block, Mapping):
        return dict(training)
    averaged = [name for name in ("use_averages", "averages") if block.get(name)]
    if averaged:
        warnings.warn(
            ConfigWarning(
                f"'{averaged[0]}' in [training.optimizer] has no effect in federated training, where the server "
                "averages. Remove it."
            ),
            stacklevel=3,
        )
    return {**training, "optimizer": {name: value for name, value in block.items() if name not in averaged}}


def check_evaluates_what_it_trains(optimizer: TorchOptimizer, section: str = "training.optimizer") -> None:
    """RAISES (ConfigError): An algorithm evaluates other values than it trains, and continues from both."""
    for name, built in optimizer.torch_optimizers.items():
        if hasattr(built, "eval") and hasattr(built, "train"):
            raise ConfigError(
                f"Can't train federated with {type(built).__name__} in [{section}.{name}]: expected an algorithm whose "
                "trained weights are evaluated, found one that evaluates averages of them. Server and clients send "
                "each other only the trained weights. Choose another algorithm."
            )


# Blocks that need more than one round, and why.
_NOT_IN_ROUNDS = {
    "checkpoint": "Flower keeps the state of clients. Remove the block.",
    "controller": "Its rules would start again in each round. Remove the block.",
    "budget": "Each round would be a run with this budget. Remove the block.",
    "privacy": "It would count the epsilon of one round, not of all. Remove the block.",
}


def _optimizer_of(training: Mapping[str, Any]) -> TorchOptimizer:
    optimizer: TorchOptimizer = _OPTIMIZER.kind(
        "@optimizers", training["optimizer"], TorchOptimizer, '"thinc-torchopt.TorchOptimizer.v1"'
    )
    for name, why in _NOT_IN_ROUNDS.items():
        if name in optimizer.attachments:
            _OPTIMIZER.refuse(name, "null in federated training", "a block", why)
    return optimizer
