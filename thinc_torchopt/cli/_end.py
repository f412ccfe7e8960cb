"""Where a training should end: one formula over the corpus, for all pipelines.

It was fitted on the choosing tasks of benchmarks/score.py, and confirmed on the others: docs/recipes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from statistics import mean

from spacy.language import Language
from spacy.training import Example
from spacy.util import registry

from ..errors import ConfigError
from ._corpora import read_corpus

EPOCHS = 5
LEAST = 600
MOST = 20_000
_EVALUATIONS = 10


@dataclass(frozen=True)
class End:
    """The end of a training.

    steps (int): Length in steps, a multiple of `eval_every`: otherwise spaCy does not evaluate the last step.
    eval_every (int): Steps from one evaluation to the next.
    words (float): Words of a batch, on average.
    reason (str): Why the training ends there, in words.
    """

    steps: int
    eval_every: int
    words: float
    reason: str


def find_end(nlp: Language, size: int | None = None) -> End:
    """Count the steps of `EPOCHS` epochs, within bounds.

    nlp (Language): The pipeline, with its config filled in. It need not be initialized.
    size (int | None): Size of batches. Default: `size` in [training.batcher].
    RAISES (ConfigError): The corpus is streamed, empty or missing.
    """
    config = nlp.config.interpolate()
    training = config["training"]
    if training["max_epochs"] == -1:
        end = f"{steps:,} here" if (steps := training["max_steps"]) else "which must be set then"
        raise ConfigError(
            "Can't find the end of the training: max_epochs = -1 in [training] streams the corpus, so its length is "
            "unknown. If the texts fit in memory, set max_epochs = 0. Otherwise use the recipe adamw, and for "
            "learn_rate a block with thinc-torchopt.warmup_linear.v1 and warmup_ratio = 0.1: without total_steps, the "
            f"rate falls to the end of the training, max_steps, {end}."
        )
    block = training["batcher"] if size is None else {**training["batcher"], "size": size}
    batcher = registry.resolve({"batcher": block})["batcher"]
    examples = read_corpus(nlp, config, "train_corpus", purpose="find the end of the training")
    batches = words_of_batches(batcher, examples)
    if not batches:
        raise ConfigError(
            f"Can't find the end of the training: expected batches of the texts in [{training['train_corpus']}], found "
            "none: each text is longer than a batch. Set discard_oversize = false in [training.batcher]."
        )
    words = sum(len(example) for example in examples)
    reason = f"{EPOCHS} epochs over {len(examples):,} texts with {words:,} words"
    counted = len(batches)
    if counted < LEAST:
        reason = f"at least {LEAST}; {reason} would be {counted:,}"
    elif counted > MOST:
        reason = f"at most {MOST:,}; {reason} would be more"
    steps = min(max(counted, LEAST), MOST)
    every = min(training["eval_frequency"], -(-steps // _EVALUATIONS))
    return End(-(-steps // every) * every, every, mean(batches), reason)


def words_of_batches(
    batcher: Callable[[Iterable[Example]], Iterable[list[Example]]], examples: list[Example]
) -> list[int]:
    """The words of each batch of `EPOCHS` epochs. Sizes may grow between epochs, so each epoch is drawn.

    RETURNS (list[int]): At most `MOST` + 1 batches.
    """
    epochs = (batch for _ in range(EPOCHS) for batch in batcher(examples))
    return [sum(len(example) for example in batch) for batch in islice(epochs, MOST + 1)]
