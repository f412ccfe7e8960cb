"""The checks of a training before its first step: one list, for `spacy train` and for `explain`.

Nothing is read twice that can't be read twice. The training data is what the loop will draw from, read a little earlier
than spaCy would. The development data is read now if spaCy's own reader reads it from files, and the first evaluation
uses it; otherwise it is looked at while the first evaluation reads it. A streamed corpus is watched as it is drawn.
Random generators stay as they are.

There is no check in loops of the user, nor where `spacy.training.loop.train` was imported by name before this package.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import create_evaluation_callback

from ..core.errors import ConfigError, PipelineWarning
from ..core.hooks import resumed_components
from ..core.optimizer import TorchOptimizer
from ..core.read_once import ReadOnce, can_be_kept, dev_reader_of
from . import data_check as data
from . import schedule_check as settings
from .data_check import Corpus, Facts, Finding
from .events import Control, Evaluate, StepBegin
from .label_conflicts import doubts_of_labels
from .processes import Scores
from .random_state import preserved_random

Evaluation = Callable[[], Scores]
Check = Callable[[Facts], Iterator[Finding]]

_MOST_WARNINGS = 6
# Of a stream, so many words are looked at together, if there is no evaluation before.
_MOST_WORDS = 200_000
_WITH_SETTING = "thinc-torchopt.TorchOptimizer.v1"


def labels_in_conflict(facts: Facts) -> Iterator[Finding]:
    if facts.train is not None and facts.is_initialized:
        for text in doubts_of_labels(facts.nlp, facts.config, facts.train, facts.sourced):
            yield Finding("doubt", text)


# Each looks at the facts that it needs, if they are known.
OF_TEXTS: Final[Sequence[Check]] = (
    data.texts_to_score,
    data.blank_components,
    data.nothing_to_learn,
    data.spans_not_proposed,
    data.vectors_that_are_gone,
    data.texts_in_no_batch,
    data.texts_without_category,
    data.nothing_to_score,
    data.labels_unknown,
    data.tokens_misaligned,
    data.entities_of_white_space,
    data.lemmas_too_rare,
    data.categories_of_another_kind,
)
CHECKS: Final[Sequence[Check]] = (
    *OF_TEXTS,
    data.texts_left_out,
    labels_in_conflict,
    settings.learning_rates,
    settings.end_of_training,
)


def check(facts: Facts, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Make the checks. Nothing is changed, and no random number is drawn."""
    with preserved_random():
        return [finding for one in checks for finding in one(facts)]


class TrainingCheck:
    """The check of one run.

    nlp (Language): The pipeline, initialized. optimizer (TorchOptimizer): Knows the pipeline; has `allow_untrainable`.
    evaluate (Callable): spaCy's evaluation of the development data. Another one is left alone.

    It is a listener, if the corpus is streamed.
    """

    name = "training check"

    def __init__(self, nlp: Language, optimizer: TorchOptimizer, evaluate: Evaluation):
        self._facts = Facts(nlp, nlp.config.interpolate(), sourced=resumed_components(nlp))
        self._optimizer = optimizer
        self._evaluate = evaluate
        self._told: set[str] = set()
        self._drawn: list[Example] = []
        self._words = 0
        self._has_looked = False

    def begin(self, examples: Sequence[Example], processes: int = 1) -> Evaluation:
        """Check the settings, and the corpora as far as they can be read now.

        examples (Sequence[Example]): The training data. Empty: it is streamed. processes (int): That share
            the work.
        RETURNS (Callable): The evaluation, which may check more at its first call.
        RAISES (ConfigError): The training would stop, learn nothing, or could not be scored.
        """
        training, nlp = self._facts.training, self._facts.nlp
        if examples:
            self._facts.train = Corpus(training["train_corpus"], [*examples])
        reader = dev_reader_of(self._evaluate)
        dev = None
        if reader is not None and (isinstance(reader, ReadOnce) or can_be_kept(reader)):
            with preserved_random():
                dev = Corpus(training["dev_corpus"], [*reader(nlp)])
        last = settings.last_step(nlp, training, examples, processes)
        self._tell(check(replace(self._facts, dev=dev, optimizer=self._optimizer, last=last)))
        return self._evaluate if dev is not None or reader is None else self._evaluation_watching(reader)

    def on_step_begin(self, event: StepBegin, control: Control) -> None:
        if event.step == 0:  # later, the pipeline may have forgotten what it found
            self._tell(check(self._of_part([*event.batch]), [labels_in_conflict]))
        self._drawn += event.batch
        self._words += sum(len(example.reference) for example in event.batch)
        if self._words >= _MOST_WORDS:
            self._look_at_drawn()

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        if event.step:
            self._look_at_drawn()

    def _look_at_drawn(self) -> None:
        """Look at what was drawn of a stream since the last time. A label may come late."""
        checks = [data.labels_unknown] if self._has_looked else OF_TEXTS
        self._tell(_doubts(check(self._of_part(self._drawn), checks)))
        self._drawn, self._words, self._has_looked = [], 0, True

    def _of_part(self, examples: list[Example]) -> Facts:
        part = Corpus(self._facts.training["train_corpus"], examples, is_whole=False)
        return replace(self._facts, train=part)

    def _evaluation_watching(self, reader: Callable[[Language], Iterable[Example]]) -> Evaluation:
        """An evaluation that looks at the texts of its first call."""
        is_first = True

        def evaluate() -> Scores:
            nonlocal is_first
            if not is_first:
                return self._evaluate()
            is_first = False
            read: list[Example] = []

            def watched(nlp: Language) -> Iterator[Example]:
                for example in reader(nlp):
                    read.append(example)
                    yield example

            nlp, training = self._facts.nlp, self._facts.training
            scores = create_evaluation_callback(nlp, watched, training["score_weights"])()
            self._tell(_doubts(check(replace(self._facts, dev=Corpus(training["dev_corpus"], read)), OF_TEXTS)))
            return scores

        return evaluate

    def _tell(self, found: Sequence[Finding]) -> None:
        """Raise what would stop the training, or make it vain, and warn of the rest."""
        is_allowed = self._optimizer.allow_untrainable
        stops = [one for one in found if one.kind == "stops" or (one.kind == "in vain" and not is_allowed)]
        if stops:
            is_vain = all(one.kind == "in vain" for one in stops)
            setting = how_to_allow(self._facts.config) if is_vain else ""
            raise ConfigError("\n".join(f"Can't train: {one.text}" for one in stops) + setting)
        notes = [one.text for one in found if one.text not in self._told]
        self._told.update(notes)
        if len(notes) > _MOST_WARNINGS:
            rest = len(notes) - _MOST_WARNINGS + 1
            notes = [*notes[: _MOST_WARNINGS - 1], f"and {rest} more: spacy torchopt explain"]
        for note in notes:
            warnings.warn(PipelineWarning(note), stacklevel=5)


def _doubts(found: Sequence[Finding]) -> list[Finding]:
    """Findings after the training has begun, as doubts: it goes on."""
    return [Finding("doubt", one.text) for one in found]


def how_to_allow(config: Mapping[str, Any]) -> str:
    """How to train all the same, as the last line of an error. Empty: the optimizer of a config has no such setting."""
    helps: bool = config["training"]["optimizer"].get("@optimizers") == _WITH_SETTING
    return "\nTo train all the same: allow_untrainable = true in [training.optimizer]." * helps
