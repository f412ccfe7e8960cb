"""The checks of a training before its first step: one list, for `spacy train` and for `explain`. And two during it.

Nothing is read twice that can't be read twice. The training data is what the loop will draw from, read a little earlier
than spaCy would. The development data is read now if spaCy's own reader reads it from files, and the first evaluation
uses it; otherwise it is looked at while the first evaluation reads it. A streamed corpus is watched as it is drawn.
Random generators stay as they are.

There is no check in loops of the user, nor where `spacy.training.loop.train` was imported by name before this package.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import create_evaluation_callback

from ..core.errors import ConfigError, PipelineWarning
from ..core.hooks import resumed_components
from ..core.kinds import Categories, OneCategory, kind_in
from ..core.optimizer import TorchOptimizer
from ..core.params import Param, escape, in_order
from ..core.read_once import ReadOnce, can_be_kept, dev_reader_of
from ..core.schema import Count, read, write
from ..core.words import listed
from . import data_check as data
from . import schedule_check as settings
from .components import is_trained
from .data_check import Corpus, Facts, Finding, Found
from .events import Control, EpochBegin, EpochEnd, Evaluate, Log, OptimizerStep, PreOptimizerStep, StepBegin, TrainEnd
from .label_conflicts import doubts_of_labels
from .processes import Scores
from .random_state import preserved_random

Evaluation = Callable[[], Scores]
Check = Callable[[Facts], Iterator[Found]]

_MOST_WARNINGS = 6
LEAST_BATCHES: Final = 10
MOST_BATCHES: Final = 200
# Of a stream, so many words are looked at together, if there is no evaluation before.
_MOST_WORDS = 200_000
_WITH_SETTING = "thinc-torchopt.TorchOptimizer.v1"


def labels_in_conflict(facts: Facts) -> Iterator[Found]:
    if facts.train is not None and facts.is_initialized:
        yield from doubts_of_labels(facts.nlp, facts.config, facts.train, facts.sourced)


# Each looks at the facts that it needs, if they are known.
OF_TEXTS: Final[Sequence[Check]] = (
    data.texts_to_score,
    data.blank_components,
    data.gradients_that_stop,
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
    data.labels_too_rare,
    data.labels_alike,
    data.one_class,
    data.texts_annotated_in_other_ways,
    data.texts_in_both,
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
        found = [finding for one in checks for finding in one(facts)]
    return [Finding("doubt", one) if isinstance(one, str) else one for one in found]


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
            notes[_MOST_WARNINGS - 1 :] = [f"and {len(notes) - _MOST_WARNINGS + 1} more: spacy torchopt explain"]
        for note in notes:
            warnings.warn(PipelineWarning(note), stacklevel=5)


def _doubts(found: Sequence[Finding]) -> list[Finding]:
    """Findings after the training has begun, as doubts: it goes on."""
    return [Finding("doubt", one.text) for one in found]


def how_to_allow(config: Mapping[str, Any]) -> str:
    """How to train all the same, as the last line of an error. Empty: the optimizer of a config has no such setting."""
    helps: bool = config["training"]["optimizer"].get("@optimizers") == _WITH_SETTING
    return "\nTo train all the same: allow_untrainable = true in [training.optimizer]." * helps


# ---------------------------------------------------------------------- during the training


@dataclass
class GradientState:
    """The saved state.

    done (list[str]): The components that got a gradient, or had their warning.
    batches (dict): How many batches others were trained on.
    in_epoch, left_out (int): The batches of this epoch; those that were left out before it.
    """

    done: list[str] = field(default_factory=list)
    batches: dict[str, Count] = field(default_factory=dict)
    in_epoch: Count = 0
    left_out: Count = 0


class GradientCheck:
    """The check of the gradients of one run. A listener.

    Find components that are trained and learn nothing, whatever the reason: they get no gradient, or only zeros.

    One is found after a whole epoch of at least `LEAST_BATCHES` batches (after several shorter ones), or after
    `MOST_BATCHES`, since it is trained; those before a run was resumed count. That is an error. It is a warning with
    `allow_untrainable`, if the run ends before, and of components that may know everything: those with a 'source', and
    those that give each word a label and have only one.

    A tok2vec gets only zeros in the first batches: output layers begin with weights of 0, and rates may, too.

    A gradient counts if its param is in no other component: a shared tok2vec gets its gradients from others. One that
    is not finite counts, too. Updates that were skipped don't count as batches. A component that got a gradient is
    never looked at again, so a GPU is waited for about once in a run. In a private training all gradients have noise:
    nothing is found.

    This sees nothing of a span categorizer that is only told which spans have no label: that is a gradient.
    """

    name = "gradient check"

    def __init__(self) -> None:
        self._state = GradientState()
        self._found: set[str] = set()  # those that got a gradient in this process, and are not `done`
        self._waiting: list[str] = []  # those that are trained in this step, and are not `done`

    def on_epoch_begin(self, event: EpochBegin, control: Control) -> None:
        self._state.in_epoch, self._state.left_out = 0, event.run.progress.left_out

    def on_pre_optimizer_step(self, event: PreOptimizerStep, control: Control) -> None:
        """Look for gradients of components that had none so far."""
        run = event.run
        open_ones = {
            escape(name): name
            for name, pipe in run.nlp.pipeline
            if name not in run.exclude and name not in self._state.done and is_trained(pipe)
        }
        self._waiting = []
        if not open_ones:
            return
        owners = {_owner(param) for param in run.optimizer.trained_params}
        self._waiting = [name for escaped, name in open_ones.items() if escaped in owners]
        with in_order():
            for param in run.optimizer.params_to_update if self._waiting else ():
                name = open_ones.get(_owner(param), "")
                if name and name not in self._found and bool(param.grad.any()):
                    self._found.add(name)

    def on_optimizer_step(self, event: OptimizerStep, control: Control) -> None:
        if event.skipped:
            return
        batches = self._state.batches
        self._state.in_epoch += 1
        for name in self._waiting:
            batches[name] = batches.get(name, 0) + 1
        # After 1, 2, 4 ... batches: processes need not agree on it at each.
        if any((n := batches[name]) >= MOST_BATCHES or n & (n - 1) == 0 for name in self._waiting):
            self._tell_of_those_with(MOST_BATCHES, event.run)

    def on_epoch_end(self, event: EpochEnd, control: Control) -> None:
        if self._state.in_epoch and self._state.left_out == event.run.progress.left_out:
            self._tell_of_those_with(self._state.in_epoch, event.run)

    def on_train_end(self, event: TrainEnd, control: Control) -> None:
        self._tell_of_those_with(0, event.run, is_over=True)

    def _tell_of_those_with(self, least: int, run: Any, *, is_over: bool = False) -> None:
        """Tell, once, of components that got no gradient in so many batches. is_over (bool): The run ends by itself.

        RAISES (ConfigError): One of them is refused.
        """
        state, nlp = self._state, run.nlp
        if not state.batches:
            return
        self._finish(set().union(*run.ranks.gather(self._found)))
        self._found = set()
        least = max(least, LEAST_BATCHES)
        names = [name for name, number in state.batches.items() if number >= least and name in nlp.pipe_names]
        told = {name: _in_words(nlp, name, state.batches[name]) for name in names}
        may_go_on = is_over or run.optimizer.allow_untrainable
        refused = [text for name, text in told.items() if not (may_go_on or _may_know_all(nlp, name))]
        if refused:
            lines = "\n".join(f"Can't train: {text}" for text in refused)
            raise ConfigError(lines + how_to_allow(nlp.config.interpolate()))
        self._finish(told)
        for text in told.values():
            warnings.warn(PipelineWarning(text), stacklevel=5)

    def _finish(self, names: Iterable[str]) -> None:
        self._state.done = sorted({*self._state.done, *names})
        for name in names:
            self._state.batches.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        done = sorted({*self._state.done, *self._found})
        batches = {name: number for name, number in self._state.batches.items() if name not in self._found}
        return write(GradientState(done, batches, self._state.in_epoch, self._state.left_out))

    def load_state_dict(self, saved: Any) -> None:
        """RAISES (StateError): The state is invalid."""
        self._state = read(GradientState, saved, "the state of the gradient check")


def _may_know_all(nlp: Language, name: str) -> bool:
    pipe = nlp.get_pipe(name)
    has_one = kind_in(nlp, name).is_of_each_word and len(getattr(pipe, "labels", ())) == 1
    listening = getattr(pipe, "listening_components", ())
    return has_one or name in resumed_components(nlp) or any(_may_know_all(nlp, one) for one in listening)


def _in_words(nlp: Language, name: str, number: int) -> str:
    """number (int): Of batches."""
    return (
        f"'{name}' learns nothing: all its gradients were 0, or it had none, in {number:,} "
        f"batch{'es' * (number != 1)}. {_needs(nlp, name)} Or remove it from [nlp] pipeline."
    )


def _needs(nlp: Language, name: str) -> str:
    kind = kind_in(nlp, name)
    if not kind.is_known and (heard := getattr(nlp.get_pipe(name), "listening_components", None)):
        return f"It learns what {listed(heard)} need, and gets no gradient of theirs."
    return kind.needs(name)


def _owner(param: Param) -> str:
    """The only component that has a param, as in its names. Empty: several have it."""
    component = param.component
    return component if all(alias.partition("/")[0] == component for alias in param.aliases) else ""


# ---------------------------------------------------------------------- at evaluations


class OneLabelCheck:
    """The check of the scores of one run. A listener. It warns, once, of a classifier that gives all texts the same
    label, if some texts have another.

    Not at step 0, when nothing is learned yet.
    """

    name = "one label check"

    def __init__(self) -> None:
        self._is_told = False
        self._label: str | None = None  # for the log of this step

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        found = None if self._is_told or not event.step else label_of_all(event.scores)
        nlp = event.run.nlp
        # Several classifiers write the same scores: these are of the last one.
        names = [name for name in nlp.pipe_names if isinstance(kind_in(nlp, name), Categories)] if found else []
        if found is None or not names or not isinstance(kind_in(nlp, names[-1]), OneCategory):
            return
        self._is_told, (self._label, share) = True, found
        warnings.warn(
            PipelineWarning(
                f"'{names[-1]}' gives each text of [{nlp.config['training']['dev_corpus']}] the category {found[0]} at "
                f"step {event.step:,}, which is right for {share:.1%} of them. If it still does at the end, it has "
                "learned nothing else: add texts of the others, or train longer."
            ),
            stacklevel=5,
        )

    def on_log(self, event: Log, control: Control) -> None:
        if self._label is not None:
            event.info["one_label"], self._label = self._label, None


def label_of_all(scores: Mapping[str, Any]) -> tuple[str, float] | None:
    """The category that a classifier gives all texts, and the share of texts that have it. None: it gives several, or
    all texts have this one, or none has.

    For one category a text, of scores alone. All texts with this category have got it, none with another was right;
    and the precision of all that was said is that of this category, so nothing else was said.
    SOURCE: spacy/scorer.py, `score_cats`.
    """
    by_label = scores.get("cats_f_per_type")
    right = {label: one for label, one in by_label.items() if one["r"]} if isinstance(by_label, Mapping) else {}
    if len(right) != 1:
        return None
    [(label, one)] = right.items()
    return (label, one["p"]) if one["r"] == 1 > one["p"] == scores.get("cats_micro_p") else None
