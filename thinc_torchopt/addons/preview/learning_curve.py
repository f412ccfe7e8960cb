"""A learning curve: a config trained on growing parts of its texts, to see whether more texts would help.

Each seed draws parts of its own, and each part has all texts of the smaller ones. All have the labels of all texts and
the same development data, and are trained for as many steps per text. Trials and judgement are those of comparison.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from confection import Config
from rich.console import Console
from spacy.language import DEFAULT_CONFIG, Language
from spacy.training import Example

from ...core.config_checks import check_gpu, check_training_section
from ...core.kinds import kind_in
from ...core.tables import print_table
from ...core.words import listed
from ...loop.data_stream import count_steps
from ...loop.setup import AnyConfig
from ..recipes import open_source, read_corpus
from ..trials import Comparison, Sentences, part_of, shorten, size_of_part
from . import comparison as trying
from .comparison import TRY, Candidate, Trials, load_pipeline

_PURPOSE = "draw a learning curve"
_ALL, _MOST = "100%", "75%"
# The largest first: its trials tell early if something is wrong, and how long all take.
_SHARES = {_ALL: 1.0, _MOST: 0.75, "50%": 0.5, "25%": 0.25}
# With fewer texts, or steps, two parts would have the same number.
_LEAST = 4
_FROM = "From 75 to 100% of the texts, the score "
_CHANGED = _FROM + "changed by {points[0]:+.1f} ± {points[1]:.1f} points, no clear rise: "
_UNCLEAR = _CHANGED + "more texts of this kind are not likely to help by more than {points[2]:.1f} points."
_OF_TEXTS = Sentences(
    _FROM + "rose by {points[0]:.1f} ± {points[1]:.1f} points: more texts will still help.",
    _UNCLEAR,
    _UNCLEAR + "{advice}",
)


@dataclass
class LearningCurve:
    """A config that was trained on parts of its texts.

    tried (dict[str, Candidate]): By part, all texts last.
    texts (dict[str, int]): The number of texts of each part.
    notes (list[str]): Warnings.
    was_stopped (bool): Whether it was interrupted.
    """

    tried: dict[str, Candidate]
    texts: dict[str, int]
    notes: list[str]
    was_stopped: bool

    @property
    def comparison(self) -> Comparison | None:
        """Of all texts with three quarters of them. None: their trials did not finish."""
        pair = {name: self.tried[name] for name in (_MOST, _ALL)}
        is_done = all(found.trials and found.problem is None for found in pair.values())
        return trying.judge(pair, _MOST, 1) if is_done else None

    @property
    def verdict(self) -> str:
        """Whether more texts would help, in a sentence."""
        if (found := self.comparison) is None:
            return f"Nothing can be said: it takes trials on {_MOST} and on {_ALL} of the texts."
        return found.verdict(_MOST, _OF_TEXTS)

    @property
    def points(self) -> dict[int, list[float]]:
        """By number of texts, the score of each seed."""
        return {self.texts[name]: [*found.scores.values()] for name, found in self.tried.items() if found.trials}

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "parts": [
                {"part": name, "texts": self.texts[name], **found.as_dict()} for name, found in self.tried.items()
            ],
            "rise": trying.numbers_of(self.comparison, _ALL),
            "verdict": self.verdict,
            "notes": list(self.notes),
        }

    def print(self, console: Console) -> None:
        """Print the table, what failed, and the sentence. The spread is the standard deviation over the seeds."""
        headers = ["part", "texts", "steps", "score (0-1)", "spread", "of each seed", "CPU seconds"]
        rows = [
            [
                name,
                f"{self.texts[name]:,}",
                f"{found.config['training']['max_steps']:,}",
                f"{fmean(found.scores.values()):.4f}",
                f"{stdev(found.scores.values()):.4f}" if len(found.trials) > 1 else "",
                " ".join(f"{score:.4f}" for score in found.scores.values()),
                f"{found.seconds:,.1f}",
            ]
            for name, found in self.tried.items()
            if found.trials
        ]
        print_table(console, headers, rows, numbers=headers)
        for text in [*trying.failures(self.tried), self.verdict]:
            console.print(text)


def draw_learning_curve(
    config: AnyConfig, overrides: Mapping[str, Any] = {}, *, steps: int | None = None, seeds: int = 3, gpu_id: int = -1
) -> LearningCurve:
    """Train a config on 25, 50, 75 and 100% of its texts. Each trial builds its own pipeline, and writes nothing.

    config (AnyConfig): A config or its file.
    overrides (Mapping): Other values, by paths such as "paths.train".
    steps (int | None): Steps of a trial on all texts. None: those of the config, `patience` aside.
    seeds (int): Trials of each part.
    gpu_id (int): The GPU. -1: the CPU.
    RAISES (ConfigError): The config has an error, the corpus is streamed, or has too few texts.
    """
    if steps is not None:
        TRY.whole("--steps", steps, at_least=_LEAST, because=" with --amounts")
    TRY.whole("--seeds", seeds, at_least=1)
    check_gpu(gpu_id)
    source = open_source(config, overrides)
    check_training_section(source.load())
    nlp = load_pipeline(source, _PURPOSE)
    filled = nlp.config.interpolate()
    training = filled["training"]
    if training["max_epochs"] == -1:
        advice = "If they fit in memory, set --training.max_epochs 0."
        TRY.refuse("--amounts", "texts that are read into memory", "max_epochs = -1 in [training]", advice)
    if not (steps or training["max_steps"] or training["max_epochs"]):
        advice = "All parts get as many steps per text, so say where it ends on all texts, e.g. --steps 2000."
        TRY.refuse("--amounts", "max_steps or max_epochs above 0 in [training]", 0, advice)
    examples = read_corpus(nlp, filled, "train_corpus", purpose=_PURPOSE)
    if len(examples) < _LEAST:
        where = f"[{training['train_corpus']}]"
        TRY.refuse("--amounts", f"at least {_LEAST} texts in {where}, one for each part", len(examples))
    # Steps are counted from 0.
    whole = steps or max(count_steps(nlp, filled, lambda _: examples) - 1, _LEAST)
    texts = {name: size_of_part(share, len(examples)) for name, share in _SHARES.items()}
    tried = {}
    for name, share in _SHARES.items():
        length = steps_of_part(whole, texts[name], len(examples))
        short, told = shorten(Config(DEFAULT_CONFIG).merge(source.load()), length)
        short["training"]["eval_frequency"] = max(length // trying.EVALUATIONS, 1)
        tried[name] = Candidate(source.text, short, share)
    notes = [f"{name}: {note}" for note in told]  # of the shortest trials, for which most is changed
    numbers = [source.seed + i for i in range(seeds)]
    notes += _missing_labels(nlp, examples, numbers)
    with Trials(source, gpu_id, len(tried) * seeds, seeds * sum(_SHARES.values())) as trials:
        was_stopped = trying.run_trials(trials, tried, numbers)
    notes += trying.notes_on(tried, was_stopped)
    return LearningCurve(dict(reversed(tried.items())), texts, notes, was_stopped)


def steps_of_part(steps: int, texts: int, all_texts: int) -> int:
    """As many steps per text as a training on all texts has. steps (int): Of that."""
    return round(steps * texts / all_texts)


def _missing_labels(nlp: Language, examples: Sequence[Example], seeds: Sequence[int]) -> Iterator[str]:
    """Say which labels a part lacks."""
    frozen = nlp.config.interpolate()["training"]["frozen_components"]
    kinds = [kind_in(nlp, name) for name in nlp.pipe_names if name not in frozen]

    def labels_in(some: Sequence[Example]) -> set[str]:
        docs = [example.reference for example in some]
        return {label for kind in kinds for label in kind.labels_in(docs) or ()}

    labels = labels_in(examples)
    for name, share in _SHARES.items():
        missing = set().union(*(labels - labels_in(part_of(examples, share, seed)) for seed in seeds))
        if missing:
            told = listed([f"'{label}'" for label in sorted(missing)], "or")
            yield f"{name}: in the part of at least one seed, no text has {told}, which can't be learned there."
