"""Where a training should end: one formula from the corpus, the same for all pipelines.

It was fitted on the choosing tasks of benchmarks/score.py, and confirmed on the others: docs/recipes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from statistics import mean

from spacy.language import Language
from spacy.training import Example
from spacy.util import dot_to_object, registry

from ..errors import ConfigError

EPOCHS = 5
LEAST = 600
MOST = 20_000
_EVALUATIONS = 10


@dataclass(frozen=True)
class End:
    """The end of a training.

    steps (int): Its length, a multiple of `eval_every`: spaCy evaluates the last step only if it is one.
    eval_every (int): Steps from one evaluation to the next.
    words (float): Of a batch, on average.
    reason (str): Why it is there, for people.
    """

    steps: int
    eval_every: int
    words: float
    reason: str


def find_end(nlp: Language, size: int | None = None) -> End:
    """Count the steps of so many epochs, within bounds.

    nlp (Language): The pipeline, with its config filled in. It may be not initialized.
    size (int | None): Of batches, in the place of `size` in [training.batcher].
    RAISES (ConfigError): The corpus has no end, is empty, or is not there.
    """
    config = nlp.config.interpolate()
    training = config["training"]
    if training["max_epochs"] == -1:
        raise ConfigError(
            "Can't find the end of the training: expected a corpus with an end, found max_epochs = -1 in [training], "
            "for one that is streamed. Use the recipe adamw, and set max_steps and a schedule by hand."
        )
    block = training["batcher"] if size is None else {**training["batcher"], "size": size}
    batcher = registry.resolve({"batcher": block})["batcher"]
    try:
        # This corpus alone: spaCy's own function resolves all of them, and the path of dev may not be given.
        corpus = registry.resolve({"corpus": dot_to_object(config, training["train_corpus"])})["corpus"]
        examples = list(corpus(nlp))
    except ValueError as error:
        if "E913" not in str(error):  # spaCy's, for a corpus without a path
            raise
        raise ConfigError(
            f"Can't find the end of the training: expected a path in [{training['train_corpus']}], to count the steps "
            "of an epoch, found none. Give it: --paths.train train.spacy."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"Can't find the end of the training: expected texts in [{training['train_corpus']}], found: {error}. "
            "Check the path of the corpus."
        ) from error
    batches = words_of_batches(batcher, examples)
    if not batches:
        raise ConfigError(
            f"Can't find the end of the training: expected texts in [{training['train_corpus']}], found none. "
            "Check the path of the corpus."
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
    """The words of each batch of so many epochs. Sizes may grow from one epoch to the next, so each is gone through.

    RETURNS (list[int]): At most one batch more than the upper bound.
    """
    epochs = (batch for _ in range(EPOCHS) for batch in batcher(examples))
    return [sum(len(example) for example in batch) for batch in islice(epochs, MOST + 1)]
