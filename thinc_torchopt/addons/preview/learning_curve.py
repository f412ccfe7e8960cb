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
from ...core.errors import ConfigError
from ...core.kinds import kind_in
from ...core.tables import print_table
from ...core.words import listed
from ...loop.data_stream import count_steps
from ...loop.setup import AnyConfig
from ..recipes import open_source, read_corpus
from ..trials import Comparison, Sentences, compare, part_of, shorten, size_of_part
from .comparison import TRY, Candidate, Trials, failures, load_pipeline, notes_on, run_all

_PURPOSE = "draw a learning curve"
_ALL, _MOST = "100%", "75%"
# The largest first: its trials tell early if something is wrong, and how long all take.
_SHARES = {_ALL: 1.0, _MOST: 0.75, "50%": 0.5, "25%": 0.25}
# With fewer texts, or steps, two parts would have the same number.
_LEAST = 4
_EVALUATIONS = 10
_FROM = "From 75 to 100% of the texts, the score "
_CHANGED = f"{_FROM}changed by {{points:+.1f}} ± {{error:.1f}} points, no clear rise: more texts of this kind are not "
_OF_TEXTS = Sentences(
    better=_FROM + "rose by {points:.1f} ± {error:.1f} points: more texts will still help.",
    not_better=_CHANGED + "likely to help.",
    unclear=_CHANGED + "likely to help by more than {most:.1f} points.{advice}",
)


@dataclass
class LearningCurve:
    """A config that was trained on parts of its texts.

    tried (dict[str, Candidate]): By part, all texts first.
    texts (dict[str, int]): The number of texts of each part.
    comparison (Comparison | None): Of all texts with three quarters of them. None: their trials did not finish.
    notes (list[str]): Warnings.
    was_stopped (bool): Whether it was interrupted.
    """

    tried: dict[str, Candidate]
    texts: dict[str, int]
    comparison: Comparison | None
    notes: list[str]
    was_stopped: bool

    @property
    def verdict(self) -> str:
        """Whether more texts would help, in a sentence."""
        if self.comparison is None:
            return f"Nothing can be said yet: it takes trials on {_MOST} and on {_ALL} of the texts."
        return self.comparison.verdict(_MOST, _OF_TEXTS)

    @property
    def points(self) -> dict[int, list[float]]:
        """By number of texts, the score of each seed. Only parts that finished their trials."""
        return {self.texts[name]: [*found.scores.values()] for name, found in self._rising() if found.trials}

    def _rising(self) -> Iterator[tuple[str, Candidate]]:
        return reversed(self.tried.items())

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        of_all = self.comparison and self.comparison.differences.get(_ALL)
        return {
            "parts": [
                {
                    "part": name,
                    "texts": self.texts[name],
                    "steps": found.config["training"]["max_steps"],
                    "scores": {str(seed): score for seed, score in found.scores.items()},
                    "mean": fmean(found.scores.values()) if found.trials else None,
                    "spread": _spread(found),
                    "cpu_seconds": round(found.seconds, 3),
                    "problem": found.problem,
                }
                for name, found in self._rising()
            ],
            "rise": of_all and {"difference": of_all.value, "standard_error": of_all.error, "margin": of_all.margin},
            "verdict": self.verdict,
            "notes": list(self.notes),
        }

    def print(self, console: Console) -> None:
        """Print the table, what failed, and the sentence."""
        headers = ["part", "texts", "steps", "score (0-1)", "spread", "of each seed", "CPU seconds"]
        rows = [
            [
                name,
                f"{self.texts[name]:,}",
                f"{found.config['training']['max_steps']:,}",
                f"{fmean(found.scores.values()):.4f}",
                "" if (spread := _spread(found)) is None else f"{spread:.4f}",
                " ".join(f"{score:.4f}" for score in found.scores.values()),
                f"{found.seconds:,.1f}",
            ]
            for name, found in self._rising()
            if found.trials
        ]
        print_table(console, headers, rows, numbers=headers)
        for text in [*failures(self.tried), self.verdict]:
            console.print(text)


def _spread(found: Candidate) -> float | None:
    """The standard deviation of its scores over the seeds. None: there are no two."""
    return stdev(found.scores.values()) if len(found.trials) > 1 else None


def draw_learning_curve(
    config: AnyConfig,
    overrides: Mapping[str, Any] = {},
    *,
    steps: int | None = None,
    seeds: int = 3,
    gpu_id: int = -1,
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
    training = nlp.config.interpolate()["training"]
    if training["max_epochs"] == -1:
        raise ConfigError(
            f"Can't {_PURPOSE}: expected texts that are read into memory, found max_epochs = -1 in [training], which "
            "streams them without an end. If they fit in memory, set --training.max_epochs 0."
        )
    examples = read_corpus(nlp, nlp.config.interpolate(), "train_corpus", purpose=_PURPOSE)
    if len(examples) < _LEAST:
        raise ConfigError(
            f"Can't {_PURPOSE}: expected at least {_LEAST} texts in [{training['train_corpus']}], one for each part, "
            f"found {len(examples)}."
        )
    texts = {name: size_of_part(share, len(examples)) for name, share in _SHARES.items()}
    whole = steps or _steps_of(nlp, examples)
    tried, notes = {}, []
    for name, share in _SHARES.items():
        length = steps_of_part(whole, texts[name], len(examples))
        short, told = shorten(Config(DEFAULT_CONFIG).merge(source.load()), length)
        short["training"]["eval_frequency"] = max(length // _EVALUATIONS, 1)
        tried[name] = Candidate(source.text, short, share)
    notes += [f"{name}: {note}" for note in told]  # of the shortest trials, for which most is changed
    numbers = [source.seed + i for i in range(seeds)]
    notes += _missing_labels(nlp, examples, numbers)
    with Trials(source, gpu_id, len(tried) * seeds, seeds * sum(_SHARES.values())) as trials:
        was_stopped = run_all(trials, tried, numbers)
    return LearningCurve(tried, texts, _judge(tried), [*notes, *notes_on(tried, was_stopped)], was_stopped)


def steps_of_part(steps: int, texts: int, all_texts: int) -> int:
    """As many steps per text as a training on all texts has. steps (int): Of that."""
    return round(steps * texts / all_texts)


def _steps_of(nlp: Language, examples: Sequence[Example]) -> int:
    """The last step of the config's own training. RAISES (ConfigError): Only `patience` ends it."""
    config = nlp.config.interpolate()
    if not config["training"]["max_steps"] and not config["training"]["max_epochs"]:
        raise ConfigError(
            f"Can't {_PURPOSE}: expected max_steps or max_epochs above 0 in [training], as all parts get as many steps "
            "per text, found 0 for both. Say where the training on all texts ends, e.g. --steps 2000."
        )
    return max(count_steps(nlp, config, lambda _: examples) - 1, _LEAST)


def _missing_labels(nlp: Language, examples: Sequence[Example], seeds: Sequence[int]) -> Iterator[str]:
    """Say which labels a part lacks."""
    kinds = [kind_in(nlp, name) for name in nlp.pipe_names]

    def labels_in(some: Sequence[Example]) -> set[str]:
        docs = [example.reference for example in some]
        return {label for kind in kinds for label in kind.labels_in(docs) or ()}

    labels = labels_in(examples)
    for name, share in _SHARES.items():
        missing = set().union(*(labels - labels_in(part_of(examples, share, seed)) for seed in seeds))
        if missing:
            told = listed([f"'{label}'" for label in sorted(missing)], "or")
            yield f"{name}: in the part of at least one seed, no text has {told}, which can't be learned there."


def _judge(tried: Mapping[str, Candidate]) -> Comparison | None:
    """Compare all texts with three quarters of them, by the seeds that both have."""
    fine = {name: tried[name] for name in (_MOST, _ALL) if tried[name].trials and tried[name].problem is None}
    if len(fine) < 2:
        return None
    drawn = {name: {seed: trial.resampled for seed, trial in found.trials.items()} for name, found in fine.items()}
    return compare({name: found.scores for name, found in fine.items()}, _MOST, drawn)
