"""Compare the optimizer of a config with recipes and with spaCy's own, in short trainings on the user's data.

The same judgement for all: they train on the same number of words, are evaluated equally often, and are scored on texts
that did not choose their model. spaCy's Adam is tuned before, with another seed, by the texts that choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from statistics import fmean
from timeit import default_timer
from typing import Any

from confection import Config
from rich.console import Console
from spacy.language import DEFAULT_CONFIG, Language
from spacy.util import load_model_from_config

from ...core.checks import Section
from ...core.config_checks import check_gpu, check_training_section
from ...core.errors import ConfigError, TorchOptError
from ...core.tables import as_text, html_lines, html_of, html_table, print_table
from ...core.words import count, time_in_words
from ...loop.components import check_listeners, may_read_tensors
from ...loop.data_stream import batcher_of
from ...loop.progress_bars import show_progress
from ...loop.setup import AnyConfig, config_errors
from ..recipes import (
    ENCODER_PEAKS,
    PEAKS,
    TUNING_TRIALS,
    ConfigSource,
    Recipe,
    Stock,
    check_output,
    find_pretrained,
    not_written,
    open_source,
    read_corpus,
    rewrite,
    tune,
    with_fast_products,
    words_of_batches,
    write_config,
)
from ..trials import Comparison, TrialResult, compare, run_trial, shorten

TRY = Section("spacy torchopt try", verb="use")
_BASE, _STOCK = "as it is", "tuned Adam"
# Evaluations after the first step, and so the least number of steps that can be told apart.
EVALUATIONS = 10
# The seed with which spaCy's Adam is tuned is that far from the others.
_APART = 100
# The time of all trials is known after this part of the first.
_MEASURED = 0.3
# How often texts are drawn again. A standard error from so many is known to a tenth of it: 1 / sqrt(2 * 50).
_DRAWS = 50
# Their standard error is too small by sqrt(1 - 1 / texts): with fewer texts by more than 5%.
_FEW_TEXTS = 10


@dataclass
class Candidate:
    """A candidate with its trials.

    text (str): The text of its config.
    config (Config): What its trials have: shortened.
    share (float): Of the training texts, that it is trained on.
    trials (dict[int, TrialResult]): By seed.
    problem (str | None): Why it can't be compared.
    """

    text: str
    config: Config
    share: float = 1.0
    trials: dict[int, TrialResult] = field(default_factory=dict)
    problem: str | None = None

    @property
    def scores(self) -> dict[int, float]:
        """By seed."""
        return {seed: trial.kept for seed, trial in self.trials.items()}

    @property
    def last(self) -> float:
        """The mean score of its last models."""
        return fmean(trial.last for trial in self.trials.values()) if self.trials else 0.0

    @property
    def seconds(self) -> float:
        """Mean CPU time of its trials."""
        return fmean(trial.seconds for trial in self.trials.values()) if self.trials else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The numbers of its trials, for JSON."""
        return {
            "steps": self.config["training"]["max_steps"],
            "scores": self._by_seed(lambda trial: trial.kept),
            "last_scores": self._by_seed(lambda trial: trial.last),
            "evaluations": self._by_seed(lambda trial: trial.evaluations),
            "cpu_seconds": self._by_seed(lambda trial: round(trial.seconds, 3)),
            "words": self._by_seed(lambda trial: trial.words),
            "problem": self.problem,
        }

    def _by_seed(self, value: Callable[[TrialResult], Any]) -> dict[str, Any]:
        return {str(seed): value(trial) for seed, trial in self.trials.items()}


@dataclass(repr=False)
class RecipeComparison:
    """Recipes that were compared. A notebook shows it.

    tried (dict[str, Candidate]): What was tried, the config as it is first.
    comparison (Comparison | None): With the config as it is. None: there was nothing to compare.
    with_stock (Comparison | None): With spaCy's Adam, tuned.
    winner (str): The name of the best. It is the config as it is if nothing is better by more than chance.
    verdict (str): What can be said, a line about the config as it is and one about spaCy's Adam for each recipe.
    notes (list[str]): What was not tried, and other warnings.
    was_stopped (bool): Whether it was interrupted.
    """

    tried: dict[str, Candidate]
    comparison: Comparison | None
    with_stock: Comparison | None
    winner: str
    verdict: str
    notes: list[str]
    was_stopped: bool = False

    @property
    def is_decided(self) -> bool:
        """Whether anything was compared. Otherwise the winner is the config as it is, for want of another."""
        return self.comparison is not None or self.winner != _BASE

    @property
    def config(self) -> str:
        """The text of the best config."""
        return self.tried[self.winner].text

    @property
    def winner_told(self) -> str:
        """The best config in words."""
        if self.winner in (_BASE, _STOCK):
            return {_BASE: "the config as it is", _STOCK: "the config with spaCy's Adam, tuned,"}[self.winner]
        return f"the config with the recipe '{self.winner}'"

    def to_disk(self, path: str | Path) -> None:
        """Write the best config. RAISES (ConfigError): It can't be written."""
        write_config(Path(path), self.config)

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {
            "tried": [
                {
                    "name": name,
                    **found.as_dict(),
                    "mean": self.comparison.means.get(name) if self.comparison is not None else None,
                    "from_base": numbers_of(self.comparison, name),
                    "from_tuned": numbers_of(self.with_stock, name),
                }
                for name, found in self.tried.items()
            ],
            "winner": self.winner,
            "is_decided": self.is_decided,
            "verdict": self.verdict,
            "notes": list(self.notes),
        }

    def print(self, console: Console) -> None:
        """Print the table, what failed, and the verdict."""
        headers, rows = self._table()
        if rows:
            print_table(console, headers, rows, numbers=_numbers(headers))
        for text in [*failures(self.tried), *self.verdict.splitlines()]:
            console.print(text)

    def __repr__(self) -> str:
        return "\n".join([as_text(self.print), *(f"Note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        headers, rows = self._table()
        table = html_table(headers, rows, numbers=_numbers(headers)) if rows else ""
        told = [("", text) for text in [*failures(self.tried), *self.verdict.splitlines()]]
        return html_of(
            table,
            html_lines([*told, *(("Note", note) for note in self.notes)], kinds={"Note": "note"}),
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Headers and rows. No rows: it was stopped before the first of the trials that are compared."""
        headers = ["optimizer", "score (0-1)", "of each seed", "last model", "difference", "verdict", "CPU seconds"]
        rows = []
        for name, found in self.tried.items() if self.tried[_BASE].trials else ():
            rows.append(
                [
                    name,
                    f"{fmean(found.scores.values()):.4f}" if found.trials else "",
                    " ".join(f"{score:.4f}" for score in found.scores.values()),
                    f"{found.last:.4f}" if found.trials else "",
                    *(("", "") if self.comparison is None else self.comparison.cells(name)),
                    f"{found.seconds:,.1f}" if found.trials else "",
                ]
            )
        return headers, rows


def numbers_of(comparison: Comparison | None, name: str) -> dict[str, Any] | None:
    """The difference of a candidate from the base, for JSON. None: there is none."""
    found = comparison.differences.get(name) if comparison is not None else None
    if found is None:
        return None
    return {
        "difference": found.value,
        "standard_error": found.error,
        "of_seeds": found.of_seeds,
        "of_texts": found.of_texts,
        "margin": found.margin,
        "more_than_chance": found.is_told,
    }


def _numbers(headers: Sequence[str]) -> list[str]:
    return [*headers[1:5], headers[6]]


def compare_recipes(
    config: AnyConfig,
    overrides: Mapping[str, Any] = {},
    *,
    recipes: str | Sequence[str] = ("best",),
    steps: int = 300,
    seeds: int = 3,
    output: str | Path | None = None,
    gpu_id: int = -1,
) -> RecipeComparison:
    """Try recipes on your data, in short trainings, beside the config as it is and spaCy's Adam, tuned. Each builds its
    own pipeline; no trial writes anything.

    config (AnyConfig): A config or its file.
    overrides (Mapping): Other values, by paths such as "paths.train".
    recipes (str | Sequence[str]): Their names; in one text, with commas between them.
    steps (int): Steps of each trial, in the batches of the recipe best; others train on that number of words.
    seeds (int): Trials of each.
    output (str | Path | None): A file for the best config. Not written if nothing could be compared.
    gpu_id (int): The GPU. -1: the CPU.
    RETURNS (RecipeComparison): Which is better, and whether the difference is more than chance.
    RAISES (ConfigError): The config has an error, or nothing can be compared.
    """
    # Refuse what can be refused before the trainings.
    TRY.whole("--steps", steps, at_least=1)
    TRY.whole("--seeds", seeds, at_least=1)
    names = recipes.split(",") if isinstance(recipes, str) else recipes
    chosen = [Recipe.of(name.strip()) for name in names if name.strip()]
    if not chosen:
        TRY.refuse("--recipes", "names of recipes with commas between them", "none")
    path = None if output is None else Path(output)
    if path is not None:
        check_output(path)
    check_gpu(gpu_id)
    # A recipe starts from the config, overrides of the optimizer included.
    source = open_source(config, overrides).write_overrides("training.optimizer.")
    check_training_section(source.load())
    texts, best, notes = _rewritten_by(source, chosen, path)
    nlp = load_pipeline(source, "compare recipes")
    if best is not None:
        texts = {_BASE: source.text, _STOCK: best, **texts}  # to be tuned
    tried, told = _shortened(source, nlp, texts, _STOCK if best is not None else _BASE, steps)
    notes += told
    of_all = len(tried) * seeds + (TUNING_TRIALS if best is not None else 0)
    was_stopped = False
    with Trials(source, gpu_id, of_all) as trials:
        if best is not None:
            note, was_stopped = _tune(trials, nlp, tried[_STOCK])
            notes.append(note)
        was_stopped = was_stopped or run_trials(trials, tried, [source.seed + i for i in range(seeds)])
    notes += notes_on(tried, was_stopped)
    result = RecipeComparison(tried, *_judge(tried), notes, was_stopped)
    if path is not None and result.is_decided:
        result.to_disk(path)
    return result


def load_pipeline(source: ConfigSource, purpose: str) -> Language:
    """The pipeline of a config, not initialized. purpose (str): The verb for errors.

    RAISES (ConfigError): It can't be made or trained, or there is no development data.
    """
    with config_errors(source.load(), path=source.path):
        nlp = load_model_from_config(source.load(), auto_fill=True)
    config = nlp.config.interpolate()
    frozen, annotating = config["training"]["frozen_components"], config["training"]["annotating_components"]
    check_listeners(nlp, frozen, annotating, have_tensors=may_read_tensors(nlp))
    read_corpus(nlp, config, "dev_corpus", purpose=purpose, limit=1)
    return nlp


def failures(tried: Mapping[str, Candidate]) -> list[str]:
    """Say what did not finish."""
    return [
        f"{name} did not finish its trials: {found.problem}"
        for name, found in tried.items()
        if found.problem is not None
    ]


def notes_on(tried: Mapping[str, Candidate], was_stopped: bool) -> Iterator[str]:
    """Say what may be wrong with the trials."""
    if was_stopped:
        yield "Stopped before the end. Only the trials up to then are shown."
    for name, found in tried.items():
        if skipped := sum(trial.skipped_updates for trial in found.trials.values()):
            yield f"{name}: {skipped} updates were skipped, as their gradients were not finite or a spike."
    texts_seen = max((trial.texts for found in tried.values() for trial in found.trials.values()), default=0)
    if 0 < texts_seen < _FEW_TEXTS:
        yield (
            f"Scores are on {count(texts_seen, 'text')} of the development data. With so few, even a difference that "
            "is called better may be chance. Evaluate on more texts."
        )


# ---------------------------------------------------------------------- what is tried


def _rewritten_by(
    source: ConfigSource, chosen: Sequence[Recipe], output: Path | None
) -> tuple[dict[str, str], str | None, list[str]]:
    """RETURNS (tuple): The configs to try, as texts; that with the recipe best, for spaCy's Adam, None if it can't be
    used; and notes.

    RAISES (ConfigError): There is nothing to compare.
    """
    texts, best, notes, refused, cause = {_BASE: source.text}, None, [], 0, ""
    for recipe in dict.fromkeys([Recipe.best, *chosen]):
        try:
            text, warned = _rewritten(source, recipe)
        except ConfigError as error:
            if recipe in chosen:
                notes.append(f"Not tried: {recipe.value}. {error}")
                refused += 1
            else:
                cause = f" {error}"
            continue
        best = text if recipe == Recipe.best else best
        if recipe in chosen and source.load(text) == source.load():
            notes.append(f"Not tried: {recipe.value}. It changes nothing in this config.")
        elif recipe in chosen:
            texts[recipe.value] = text
            notes += [f"{recipe.value}: {note}" for note in warned]
    if refused == len(set(chosen)):
        raise ConfigError(f"Can't compare recipes: none of them can be used. {' '.join(notes)}")
    if best is None:
        notes.append(
            f"Not tried: {_STOCK}. It needs the batches and the number of steps of the recipe best, which can't be "
            f"used.{cause}"
        )
        if len(texts) == 1:
            raise ConfigError(f"Can't compare recipes: there is nothing to compare. {' '.join(notes)}")
    return texts, best, notes


def _rewritten(source: ConfigSource, recipe: Recipe) -> tuple[str, list[str]]:
    """The text of the config with a recipe, and warnings. RAISES (ConfigError): The recipe can't be used."""
    with config_errors(path=source.path):
        draft, text = rewrite(source.text, source.path, recipe, source.overrides)
        warnings = [*draft.warnings, *not_written(source.overrides, source.text, text, in_trials=True)]
        if draft.is_unchanged or source.load(text) == source.load():
            return source.text, warnings
        return with_fast_products(text, source.overrides)[0], warnings


def _shortened(
    source: ConfigSource, nlp: Language, texts: Mapping[str, str], measure: str, steps: int
) -> tuple[dict[str, Candidate], list[str]]:
    """Shorten all to trials on the same number of words.

    nlp (Language): The pipeline. measure (str): Whose steps are counted.
    RETURNS (tuple): What is tried, and notes.
    """
    notes: list[str] = []
    configs = {name: Config(DEFAULT_CONFIG).merge(source.load(text)) for name, text in texts.items()}
    lengths = dict.fromkeys(texts, _in_tens(steps))
    blocks = {name: config.interpolate()["training"]["batcher"] for name, config in configs.items()}
    if others := [name for name, block in blocks.items() if block != blocks[measure]]:
        examples = read_corpus(nlp, nlp.config.interpolate(), "train_corpus", purpose="compare recipes")

        def words_of(name: str, epochs: int) -> Iterator[int]:
            return words_of_batches(batcher_of(nlp, {"batcher": blocks[name]}), examples, epochs)

        words = sum(islice(words_of(measure, lengths[measure]), lengths[measure]))
        for name in others:
            reached = (n for n, seen in enumerate(accumulate(words_of(name, words)), start=1) if seen >= words)
            lengths[name] = _in_tens(next(reached, lengths[measure]))
        told = ", ".join(f"{name} in {length:,} steps" for name, length in lengths.items())
        notes.append(f"As batches differ, all trials have the same number of words, about {words:,}: {told}.")
        whole = configs[measure].interpolate()["training"]["max_steps"]
        if lengths[measure] < whole and max(lengths.values()) > 2 * lengths[measure]:
            notes.append(
                "In short trials a config with smaller batches is ahead, as it takes more steps. The whole training by "
                f"the recipe is --steps {whole}."
            )
    tried = {}
    for name, text in texts.items():
        short, more = shorten(configs[name], lengths[name])
        short["training"]["eval_frequency"] = max(1, lengths[name] // EVALUATIONS)
        tried[name] = Candidate(text, short)
        notes += [f"{name}: {note}" for note in more if name != _STOCK]
    return tried, notes


def _in_tens(steps: int) -> int:
    """So many steps that evaluations are at equal distances, up to the last step."""
    return steps if steps < EVALUATIONS else -(-steps // EVALUATIONS) * EVALUATIONS


# ---------------------------------------------------------------------- trials


class Trials:
    """Runs one trial after the other, and says how long they take. For a `with` block.

    count (int): Of all trials. work (float): Of all trials, in trials on all texts. 0: each is on all.
    """

    def __init__(self, source: ConfigSource, use_gpu: int, count: int, work: float = 0.0):
        self.source = source
        self._use_gpu = use_gpu
        self._count = count
        self._work = work or count
        self._done = 0.0
        self._began: float | None = default_timer()
        self._progress = show_progress(round(100 * self._work), "Trying")

    def __enter__(self) -> Trials:
        self._bar = self._progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.__exit__(*error)

    def run(self, config: Config, seed: int, what: str, *, draws: int = 0, share: float = 1.0) -> TrialResult:
        """Run one. what (str): It, in words. share (float): Of the texts. RAISES (TorchOptError): It can't be run."""
        steps, step = config["training"]["max_steps"] + 1, 0
        self._bar.set_description(f"Trying {what}")

        def on_step() -> None:
            nonlocal step
            step += 1
            self._move(step / steps, share)

        with config_errors(config, path=self.source.path):
            trial = run_trial(config, seed=seed, use_gpu=self._use_gpu, draws=draws, share=share, on_step=on_step)
        self._move(1.0, share)
        self._done += share
        self._bar.tell(f"{what}: {trial.problem or f'{trial.kept if draws else trial.chosen:.4f}'}")
        return trial

    def skip(self, share: float) -> None:
        """A trial is left out. share (float): Of the texts, that it would have had."""
        self._done += share
        self._move(0.0, share)

    def _move(self, done: float, share: float) -> None:
        """done (float): The part of this trial that is done. share (float): Of the texts, that it has."""
        self._bar.move_to(round(100 * (self._done + done * share)))
        if self._began is not None and done >= _MEASURED:
            seconds = (default_timer() - self._began) / done / share * self._work
            self._bar.say(f"{self._count} trials, about {time_in_words(seconds)} in all. Ctrl-C shows what is there.")
            self._began = None


def _tune(trials: Trials, nlp: Language, stock: Candidate) -> tuple[str, bool]:
    """Tune spaCy's Adam.

    stock (Candidate): With the recipe best at first.
    RETURNS (tuple): What was chosen, for notes, and whether it was interrupted.
    RAISES (KeyboardInterrupt): It was interrupted in the first trial.
    """
    source, text = trials.source, stock.text
    training = source.load(text).interpolate()["training"]
    encoders = find_pretrained(nlp, nlp.config.interpolate()).encoders
    length, every = (stock.config["training"][key] for key in ("max_steps", "eval_frequency"))
    problems: list[str] = []
    found: list[str] = []

    def use(settings: Stock) -> None:
        stock.text = settings.write(text, training)
        stock.config, _ = shorten(source.load(stock.text), length)
        stock.config["training"]["eval_frequency"] = every

    def score(settings: Stock) -> float:
        use(settings)
        try:
            trial = trials.run(stock.config, source.seed + _APART, f"{_STOCK}, {settings}")
        except TorchOptError as error:
            problems.append(str(error))
            trials.skip(stock.share)
            found.append(f"failed with {settings}")
            return -math.inf
        found.append(f"{trial.problem or f'{trial.chosen:.4f}'} with {settings}")
        return -math.inf if trial.problem is not None else trial.chosen

    try:
        chosen = tune(ENCODER_PEAKS if encoders else PEAKS, score)
    except KeyboardInterrupt:
        if not found:
            raise
        told = f"tuned after {len(found)} of {TUNING_TRIALS} trials, by the texts that choose: {'; '.join(found)}"
        return f"{_STOCK}: not yet {told}.", True
    use(chosen)
    if len(problems) == TUNING_TRIALS:
        stock.problem = problems[-1]
    return f"{_STOCK}: spaCy's own Adam with {chosen}, the best of {TUNING_TRIALS} trials with another seed.", False


def run_trials(trials: Trials, tried: dict[str, Candidate], seeds: Sequence[int]) -> bool:
    """Run the trials seed by seed, so that all candidates get equally many. RETURNS (bool): If it was interrupted."""
    first = next(iter(tried))
    for n, seed in enumerate(seeds):
        for name, found in tried.items():
            if found.problem is not None:
                trials.skip(found.share)
                continue
            try:
                what = f"{name}, seed {n + 1} of {len(seeds)}"
                trial = trials.run(found.config, seed, what, draws=_DRAWS, share=found.share)
            except KeyboardInterrupt:
                if not tried[first].trials and _STOCK not in tried:
                    raise
                return True
            except TorchOptError as error:
                if name == first:
                    raise
                found.problem = str(error)
                trials.skip(found.share)
                continue
            found.trials[seed] = trial
            found.problem = trial.problem
    return False


# ---------------------------------------------------------------------- the verdict


def judge(tried: Mapping[str, Candidate], base: str, comparisons: int) -> Comparison:
    """Compare candidates that finished their trials. base, comparisons: As for `compare`."""
    scores = {name: found.scores for name, found in tried.items()}
    drawn = {name: {seed: trial.resampled for seed, trial in found.trials.items()} for name, found in tried.items()}
    return compare(scores, base, drawn, comparisons=comparisons)


def _judge(tried: dict[str, Candidate]) -> tuple[Comparison | None, Comparison | None, str, str]:
    """RETURNS (tuple): The comparisons with the config as it is and with spaCy's Adam, None if there is nothing to
    compare; the winner; the verdict.
    """
    fine = {name: found for name, found in tried.items() if found.trials and found.problem is None}
    if not tried[_BASE].trials:
        return None, None, _BASE, "Nothing was compared yet."
    if _BASE not in fine:
        best = max(fine, key=lambda name: fmean(fine[name].scores.values()), default=_BASE)
        failed = f"The config as it is can't be compared: {tried[_BASE].problem}."
        return None, None, best, failed if best == _BASE else f"{failed} Of the others, {best} has the best score."
    if len(fine) == 1:
        return None, None, _BASE, "Nothing else finished its trials."
    # Those with the config as it is, and those of recipes with spaCy's Adam.
    told = len(fine) - 1 + (len(fine) - 2) * (_STOCK in fine)
    found = judge(fine, _BASE, told)
    with_stock = judge(fine, _STOCK, told) if _STOCK in fine else None
    return (
        found,
        with_stock,
        found.winner,
        "\n".join([found.verdict("the config as it is"), *_beside_stock(with_stock)]),
    )


def _beside_stock(found: Comparison | None) -> Iterator[str]:
    """Say of each recipe whether it is better than spaCy's Adam, tuned."""
    if found is not None:
        for name in found.differences:
            if name != _BASE:
                yield f"{name} against {_STOCK}: {', '.join(found.cells(name))}."
