"""Compare the optimizer of a config with recipes, in short trainings on the user's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from confection import Config
from rich.console import Console

from ...core.checks import Section
from ...core.config_checks import check_gpu
from ...core.errors import ConfigError, TorchOptError
from ...core.tables import as_text, html_lines, html_of, html_table, print_table, sparkline
from ...loop.progress_bars import show_progress
from ...loop.setup import AnyConfig, config_errors
from ..recipes import ConfigSource, Recipe, open_source, rewrite, with_fast_products, write_config
from ..trials import Comparison, TrialResult, compare, run_trial, shorten

_SECTION = Section("spacy torchopt try", verb="use")
_BASE = "as it is"
_CHART_WIDTH = 20


@dataclass
class Candidate:
    """A candidate with its trials.

    name (str): Its name for the user.
    config (Config): From `shorten`.
    trials (dict[int, TrialResult]): By seed.
    problem (str | None): Why it can't be compared.
    """

    name: str
    config: Config
    trials: dict[int, TrialResult] = field(default_factory=dict)
    problem: str | None = None

    @property
    def scores(self) -> list[float]:
        return [trial.score for trial in self.trials.values()]

    @property
    def curves(self) -> dict[int, list[float]]:
        """The scores of all seeds, by step."""
        found: dict[int, list[float]] = {}
        for trial in self.trials.values():
            for step, score in trial.evaluations:
                found.setdefault(step, []).append(score)
        return found

    @property
    def seconds(self) -> float:
        """Mean training time of its trials."""
        return fmean(trial.seconds for trial in self.trials.values()) if self.trials else 0.0

    def reaches(self, score: float) -> int | None:
        """The step at which the mean score reaches `score`. None: never."""
        return next((step for step, scores in self.curves.items() if fmean(scores) >= score), None)


@dataclass(repr=False)
class RecipeComparison:
    """Recipes that were compared. A notebook shows it.

    tried (dict[str, Candidate]): What was tried, the config as it is first.
    texts (dict[str, str]): The text of the config of each.
    comparison (Comparison | None): None: there was nothing to compare.
    winner (str): The name of the best. It is the config as it is if nothing is better by more than chance.
    verdict (str): What can be said.
    notes (list[str]): What was not tried, and other warnings.
    was_stopped (bool): Whether it was interrupted.
    """

    tried: dict[str, Candidate]
    texts: dict[str, str]
    comparison: Comparison | None
    winner: str
    verdict: str
    notes: list[str]
    was_stopped: bool = False

    @property
    def config(self) -> str:
        """The text of the best config."""
        return self.texts[self.winner]

    @property
    def winner_told(self) -> str:
        """The best config in words."""
        return f"the config with the recipe '{self.winner}'" if self.winner != _BASE else "the config as it is"

    def to_disk(self, path: str | Path) -> None:
        """Write the best config. RAISES (ConfigError): It can't be written."""
        write_config(Path(path), self.config)

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        comparison = self.comparison
        return {
            "tried": [
                {
                    "name": name,
                    "scores": {str(seed): trial.score for seed, trial in found.trials.items()},
                    "evaluations": {str(seed): trial.evaluations for seed, trial in found.trials.items()},
                    "seconds": found.seconds,
                    "words": {str(seed): trial.words for seed, trial in found.trials.items()},
                    "mean": comparison.means.get(name) if comparison is not None else None,
                    "margin": comparison.differences[name].margin
                    if comparison is not None and name in comparison.differences
                    else None,
                    "more_than_chance": comparison is not None and comparison.is_told(name),
                    "problem": found.problem,
                }
                for name, found in self.tried.items()
            ],
            "winner": self.winner,
            "verdict": self.verdict,
            "notes": list(self.notes),
        }

    def print(self, console: Console) -> None:
        """Print the table, what failed, and the verdict."""
        headers, rows = self._table(console)
        print_table(console, headers, rows, numbers=_numbers(headers))
        for text in [*self._problems(), self.verdict]:
            console.print(text)

    def __repr__(self) -> str:
        return "\n".join([as_text(self.print), *(f"Note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        headers, rows = self._table(None)
        told = [("", text) for text in self._problems()] + [("", self.verdict)]
        return html_of(
            html_table(headers, rows, numbers=_numbers(headers)),
            html_lines([*told, *(("Note", note) for note in self.notes)], kinds={"Note": "note"}),
        )

    def _problems(self) -> list[str]:
        return [
            f"{name} did not finish its trials: {found.problem}"
            for name, found in self.tried.items()
            if found.problem is not None
        ]

    def _table(self, console: Console | None) -> tuple[list[str], list[list[str]]]:
        """Headers and rows. console (Console | None): None: for a page, which can show any character."""
        comparison, base = self.comparison, self.tried[_BASE]
        goal = max((fmean(scores) for scores in base.curves.values()), default=0.0)
        highest = max(
            (max(map(fmean, found.curves.values())) for found in self.tried.values() if found.curves), default=0.0
        )
        rows = []
        for name, found in self.tried.items():
            means = [fmean(scores) for scores in found.curves.values()]
            told = comparison is not None and comparison.is_told(name)
            difference = comparison.difference(name) if comparison is not None and name in comparison.means else 0.0
            reached = found.reaches(goal)
            heights = [mean / (highest or 1.0) for mean in means]
            rows.append(
                [
                    name,
                    f"{fmean(found.scores):.4f}" if found.scores else "",
                    " ".join(f"{score:.4f}" for score in found.scores),
                    f"{difference:+.4f}" if comparison is not None and name in comparison.differences else "",
                    ("better" if difference > 0 else "worse") if told else "",
                    "" if reached is None else f"{reached:,}",
                    f"{found.seconds:,.1f}" if found.trials else "",
                    sparkline(console, heights, _CHART_WIDTH) if means else "",
                ]
            )
        headers = ["optimizer", "score", "of each seed", "difference", "verdict", "there at step", "seconds", "curve"]
        return headers, rows


def _numbers(headers: Sequence[str]) -> list[str]:
    return [*headers[1:4], *headers[5:7]]


def compare_recipes(
    config: AnyConfig,
    overrides: Mapping[str, Any] = {},
    *,
    recipes: str | Sequence[str] = ("best", "adamw", "robust"),
    steps: int = 200,
    seeds: int = 2,
    output: str | Path | None = None,
    gpu_id: int = -1,
) -> RecipeComparison:
    """Try recipes on your data, in short trainings. Each builds its own pipeline; no trial writes anything.

    config (AnyConfig): A config or its file.
    overrides (Mapping): Other values, by paths such as "paths.train".
    recipes (str | Sequence[str]): Their names; in one text, with commas between them.
    steps (int): Steps of each trial. seeds (int): Trials of each recipe.
    output (str | Path | None): A file for the best config.
    gpu_id (int): The GPU. -1: the CPU.
    RETURNS (RecipeComparison): Which is better, and whether the difference is more than chance.
    RAISES (ConfigError): The config has an error, or no recipe can be used.
    """
    # Refuse what can be refused before the trainings.
    _SECTION.whole("--steps", steps, at_least=1)
    _SECTION.whole("--seeds", seeds, at_least=1)
    names = recipes.split(",") if isinstance(recipes, str) else recipes
    chosen = [Recipe.of(name.strip()) for name in names if name.strip()]
    if not chosen:
        _SECTION.refuse("--recipes", "names of recipes with commas between them", "none")
    path = None if output is None else Path(output)
    check_gpu(gpu_id)
    # A recipe starts from the config, overrides of the optimizer included.
    source = open_source(config, overrides).write_overrides("training.optimizer.")
    shortened, notes = shorten(source.load(), steps)
    texts, tried = {_BASE: source.text}, {_BASE: Candidate(_BASE, shortened)}
    for recipe in dict.fromkeys(chosen):
        try:
            rewritten = _rewritten(source, recipe, path)
        except ConfigError as error:
            notes.append(f"Not tried: {recipe.value}. {error}")
            continue
        if rewritten is None:
            notes.append(f"Not tried: {recipe.value}. It changes nothing in this config.")
            continue
        texts[recipe.value], warned = rewritten
        shortened, more = shorten(source.load(texts[recipe.value]), steps)
        tried[recipe.value] = Candidate(recipe.value, shortened)
        notes += [f"{recipe.value}: {note}" for note in [*warned, *more] if note not in notes]
    if len(tried) == 1:
        raise ConfigError(f"Can't compare recipes: none of them can be used. {' '.join(notes)}")
    was_stopped = _run(source, tried, [source.seed + i for i in range(seeds)], steps, gpu_id)
    comparison, winner, verdict = _judge(tried)
    if was_stopped:
        notes.append("Stopped before the end. Only the trials up to then are shown.")
    notes += [
        f"{found.name}: {skipped} updates were skipped, as their gradients were not finite or a spike."
        for found in tried.values()
        if (skipped := sum(trial.skipped_updates for trial in found.trials.values()))
    ]
    found = RecipeComparison(tried, texts, comparison, winner, verdict, notes, was_stopped)
    if path is not None:
        found.to_disk(path)
    return found


def _rewritten(source: ConfigSource, recipe: Recipe, output: Path | None) -> tuple[str, list[str]] | None:
    """The text of the config with a recipe, and warnings. None: the recipe changes nothing.

    RAISES (ConfigError): The recipe can't be used.
    """
    state_path = f"training/{(output or source.path).stem}-state"
    with config_errors(path=source.path):
        draft, text = rewrite(source.text, source.path, recipe, state_path, source.overrides)
        if not draft.is_unchanged:
            text, _ = with_fast_products(text, source.overrides)
    return None if draft.is_unchanged or source.load(text) == source.load() else (text, draft.warnings)


def _run(source: ConfigSource, tried: dict[str, Candidate], seeds: Sequence[int], steps: int, use_gpu: int) -> bool:
    """Run the trials seed by seed, so that all candidates get equally many. RETURNS (bool): If it was interrupted."""
    with show_progress(len(tried) * len(seeds) * (steps + 1), "Trying") as bar:
        for n, seed in enumerate(seeds):
            for found in tried.values():
                if found.problem is not None:
                    continue
                which = f"{found.name}, seed {n + 1} of {len(seeds)}"
                bar.set_description(f"Trying {which}")
                try:
                    with config_errors(found.config, path=source.path):
                        trial = run_trial(found.config, seed=seed, use_gpu=use_gpu, on_step=bar.update)
                except KeyboardInterrupt:
                    if not tried[_BASE].trials:
                        raise
                    return True
                except TorchOptError as error:
                    if found.name == _BASE:
                        raise
                    found.problem = str(error)
                    continue
                found.trials[seed] = trial
                found.problem = trial.problem
                bar.tell(f"{which}: {trial.problem or f'{trial.score:.4f}'}")
    return False


def _judge(tried: dict[str, Candidate]) -> tuple[Comparison | None, str, str]:
    """RETURNS (tuple): The comparison, or None if there is nothing to compare; the winner; the verdict."""
    scores = {
        name: {seed: trial.score for seed, trial in found.trials.items()}
        for name, found in tried.items()
        if found.scores and found.problem is None
    }
    if tried[_BASE].problem is not None:
        best = max(scores, key=lambda name: fmean(scores[name].values()), default=_BASE)
        failed = f"The config as it is can't be compared: {tried[_BASE].problem}."
        return None, best, failed if best == _BASE else f"{failed} Of the recipes, {best} has the best score."
    if len(scores) == 1:
        return None, _BASE, "No recipe finished its trials."
    found = compare(scores, _BASE)
    return found, found.winner, _verdict(found)


def _verdict(found: Comparison) -> str:
    best, means, seeds = found.best, found.means, f"{found.seeds} seeds"
    if not any(means.values()):
        return "Nothing can be said: all scores are 0. Try more --steps."
    if len(set(means.values())) == 1 and not any(each.error for each in found.differences.values()):
        return "Nothing can be said: all scores are the same. Try fewer --steps, or more data to evaluate on."
    if not found.differences:
        ahead = f"{best} has the best score, by {found.difference(best):.4f}. " if best != found.base else ""
        return f"{ahead}One seed can't tell a difference from chance. Try --seeds 2 at least."
    if found.winner != found.base:
        return (
            f"{found.winner} is better than the config as it is: {means[found.winner]:.4f} against "
            f"{means[found.base]:.4f}. With {seeds}, up to {found.differences[found.winner].margin:.4f} may be chance."
        )
    widest = max(each.margin for each in found.differences.values())
    if best == found.base:
        return (
            f"No recipe is better than the config as it is. With {seeds}, differences of up to {widest:.4f} may be "
            "chance."
        )
    enough = found.seeds_for(best)
    advice = f" If that is the true difference, --seeds {enough} would show it." if enough is not None else ""
    return (
        f"No recipe is better by more than chance: {best} is ahead by {found.difference(best):.4f}, and with {seeds} "
        f"up to {found.differences[best].margin:.4f} may be chance.{advice}"
    )
