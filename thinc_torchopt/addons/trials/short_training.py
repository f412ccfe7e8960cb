"""A short training for measurements: spaCy's loop over a pipeline that is thrown away afterwards.

It writes nothing: it has no logger, no folder for models, and no checkpoint, controller or rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import spacy.training.loop
from confection import Config
from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import create_evaluation_callback, create_train_batches
from spacy.util import registry, resolve_dot_names
from thinc.api import Optimizer, fix_random_seed

Scores = tuple[float, dict[str, Any]]
Corpus = Callable[[Language], Iterable[Example]]

# Settings of [training.optimizer] that write files, or need files that were written.
WRITES = ("checkpoint", "rollback_after", "rollback_factor", "max_rollbacks", "controller", "budget")
_WANTED = (
    "train_corpus",
    "dev_corpus",
    "batcher",
    "dropout",
    "accumulate_gradient",
    "frozen_components",
    "annotating_components",
    "before_update",
)


class ShortTraining(NamedTuple):
    """A prepared training.

    steps (Iterator): Batch, log entry, and whether the model is the best so far, as spaCy's loop yields them.
    optimizer (Optimizer): A new one.
    evaluate (Callable): Evaluates the pipeline on the development data. RETURNS (tuple): The score, and all scores.
    """

    steps: Iterator[tuple[Any, dict[str, Any], bool | None]]
    optimizer: Optimizer
    evaluate: Callable[[], Scores]


def begin_training(
    nlp: Language,
    config: Config,
    optimizer: Mapping[str, Any],
    *,
    max_steps: int,
    eval_frequency: int,
    evaluate: Callable[[Callable[[], Scores]], Scores],
    corpora: tuple[Corpus, Corpus] | None = None,
) -> ShortTraining:
    """Prepare a training as `spacy train` does.

    nlp (Language): The pipeline, initialized. Training changes it.
    config (Config): Its config, interpolated.
    optimizer (Mapping[str, Any]): [training.optimizer], without the settings in `WRITES`.
    max_steps (int): The last step, counted from 0.
    evaluate (Callable): Called for each evaluation with the function that does it.
    corpora (tuple | None): Corpora for training and evaluation, if they are loaded already. None: those of the config.
    """
    training = config["training"]
    block = {name: training[name] for name in _WANTED} | {"optimizer": optimizer}
    T = registry.resolve({"training": block})["training"]
    corpus = None if corpora is None else corpora[0]
    attachments = getattr(T["optimizer"], "attachments", {})
    for name, attachment in list(attachments.items()):
        attachments[name] = attachment.in_short_training(nlp, config, T["optimizer"], corpus)
        if attachments[name] is None:
            del attachments[name]
    if training.get("seed") is not None:
        fix_random_seed(training["seed"])
    train_corpus, dev_corpus = corpora or resolve_dot_names(config, [T["train_corpus"], T["dev_corpus"]])
    scores = create_evaluation_callback(nlp, dev_corpus, training["score_weights"])
    # By the name that core/hooks.py replaces: our loop, if the optimizer is ours.
    steps = spacy.training.loop.train_while_improving(
        nlp,
        T["optimizer"],
        # 0: no limit. -1: a streamed corpus.
        create_train_batches(nlp, train_corpus, T["batcher"], min(training["max_epochs"], 0)),
        lambda: evaluate(scores),
        dropout=T["dropout"],
        eval_frequency=eval_frequency,
        accumulate_gradient=T["accumulate_gradient"],
        patience=0,
        max_steps=max_steps,
        exclude=T["frozen_components"],
        annotating_components=T["annotating_components"],
        before_update=T["before_update"],
    )
    return ShortTraining(steps, T["optimizer"], scores)
