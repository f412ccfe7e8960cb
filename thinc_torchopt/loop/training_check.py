"""Tell, before the first step of `spacy train`, what keeps a training from learning anything, or its scores from
telling it.

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
from typing import Any

from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import create_evaluation_callback

from ..core.errors import ConfigError, PipelineWarning
from ..core.hooks import resumed_components
from ..core.optimizer import TorchOptimizer
from ..core.read_once import ReadOnce, can_be_kept, dev_reader_of
from .data_check import MOST_WORDS, Corpus, Findings, check_data
from .events import Control, Evaluate, StepBegin
from .label_conflicts import doubts_of_labels
from .processes import Scores
from .random_state import preserved_random
from .schedule_check import doubts_of_config, last_step

Evaluation = Callable[[], Scores]

_MOST_WARNINGS = 6
_WITH_SETTING = "thinc-torchopt.TorchOptimizer.v1"


class TrainingCheck:
    """The check of one run.

    nlp (Language): The pipeline, initialized. optimizer (TorchOptimizer): Has `allow_untrainable`.
    evaluate (Callable): spaCy's evaluation of the development data. Another one is left alone.

    It is a listener, if the corpus is streamed.
    """

    name = "training check"

    def __init__(self, nlp: Language, optimizer: TorchOptimizer, evaluate: Evaluation):
        self._nlp = nlp
        self._is_allowed = optimizer.allow_untrainable
        self._config = nlp.config.interpolate()
        self._evaluate = evaluate
        self._told: set[str] = set()
        self._train: Corpus | None = None
        self._drawn: list[Example] | None = []  # None: it was looked at
        self._words = 0

    def begin(self, examples: Sequence[Example], processes: int = 1) -> Evaluation:
        """Check the settings, and the corpora as far as they can be read now.

        examples (Sequence[Example]): The training data. Empty: it is streamed. processes (int): That share
            the work.
        RETURNS (Callable): The evaluation, which may check more at its first call.
        RAISES (ConfigError): A component has nothing to learn from, or no text could be scored.
        """
        training = self._config["training"]
        if examples:
            self._train = _evenly(Corpus(training["train_corpus"], [*examples]))
        reader = dev_reader_of(self._evaluate)
        dev = None
        if reader is not None and (isinstance(reader, ReadOnce) or can_be_kept(reader)):
            with preserved_random():
                dev = _first_texts(training["dev_corpus"], reader(self._nlp))
        found = self._look(dev)
        if self._train is not None:
            found.notes += self._doubts_of_labels(self._train)
        found.notes += doubts_of_config(training, last_step(training, examples, processes))
        self._tell(found)
        return self._evaluate if dev is not None or reader is None else self._evaluation_watching(reader)

    def on_step_begin(self, event: StepBegin, control: Control) -> None:
        if event.step == 0:  # later, the pipeline may have forgotten what it found
            drawn = Corpus(self._config["training"]["train_corpus"], [*event.batch], is_whole=False)
            self._tell(Findings(notes=self._doubts_of_labels(drawn)))
        if self._drawn is not None and self._words < MOST_WORDS:
            self._drawn += event.batch
            self._words += sum(len(example.reference) for example in event.batch)

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        """Look at what was drawn of a stream, at the first evaluation after step 0."""
        if self._drawn is None or event.step == 0:
            return
        drawn = _first_texts(self._config["training"]["train_corpus"], self._drawn)
        drawn.is_whole, self._drawn = False, None
        self._train = drawn
        self._tell(self._look(None))

    def _look(self, dev: Corpus | None) -> Findings:
        if dev is not None and not dev.examples:
            none = f"there is no text in [{dev.name}], so nothing can be scored. Add texts, or correct its path."
            return Findings([none], allowable=[none])
        with preserved_random():
            return check_data(
                self._nlp,
                self._config,
                self._train,
                dev,
                sourced=resumed_components(self._nlp),
                is_initialized=True,
                is_thorough=False,
            )

    def _doubts_of_labels(self, train: Corpus) -> list[str]:
        with preserved_random():
            return list(doubts_of_labels(self._nlp, self._config, train, resumed_components(self._nlp)))

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

            weights = self._config["training"]["score_weights"]
            scores = create_evaluation_callback(self._nlp, watched, weights)()
            found = self._look(_first_texts(self._config["training"]["dev_corpus"], read))
            # The training has begun: it goes on.
            self._tell(Findings(notes=found.stops + found.notes))
            return scores

        return evaluate

    def _tell(self, found: Findings) -> None:
        """Raise what would stop the training, and warn of the rest."""
        allowed = [*found.allowable] if self._is_allowed else []
        stops = [stop for stop in found.stops if stop not in (*allowed, *self._told)]
        if stops:
            setting = how_to_allow(self._config) if set(stops) <= set(found.allowable) else ""
            raise ConfigError("\n".join(f"Can't train: {stop}" for stop in stops) + setting)
        notes = [note for note in (*allowed, *found.notes) if note not in self._told]
        self._told.update(notes)
        if len(notes) > _MOST_WARNINGS:
            rest = len(notes) - _MOST_WARNINGS + 1
            notes = [*notes[: _MOST_WARNINGS - 1], f"and {rest} more: spacy torchopt explain"]
        for note in notes:
            warnings.warn(PipelineWarning(note), stacklevel=5)


def how_to_allow(config: Mapping[str, Any]) -> str:
    """How to train all the same, as the last line of an error. Empty: the optimizer of a config has no such setting."""
    helps: bool = config["training"]["optimizer"].get("@optimizers") == _WITH_SETTING
    return "\nTo train all the same: allow_untrainable = true in [training.optimizer]." * helps


def _first_texts(name: str, examples: Iterable[Example]) -> Corpus:
    """The first texts of a corpus, up to the most words."""
    read: list[Example] = []
    words = 0
    for example in examples:
        if words >= MOST_WORDS:
            return Corpus(name, read, is_whole=False)
        read.append(example)
        words += len(example.reference)
    return Corpus(name, read)


def _evenly(corpus: Corpus) -> Corpus:
    """Texts from all parts of a corpus, up to the most words."""
    stride = -(-corpus.words // MOST_WORDS)
    if stride <= 1:
        return corpus
    return replace(corpus, examples=corpus.examples[::stride], is_whole=False, is_first=False)
