"""`spacy torchopt try`: compare the optimizer of a config with recipes, in short trainings on the user's data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Optional

import typer
from confection import Config
from rich.console import Console
from typer import Option as Opt

from ..addons.recipes import Recipe, rewrite
from ..addons.trials import Comparison, TrialResult, compare, run_trial, shorten
from ..core.checks import Section
from ..core.errors import ConfigError, TorchOptError
from ..loop.progress_bars import show_progress
from ._command import BEST_CONFIG, CODE, GPU, JSON, TRAINING_CONFIG
from ._screen import errors_shown, make_console
from ._setup import ConfigSource, check_output_file, config_errors_shown, open_source, write_config
from ._terminal import print_json, print_notes, print_table, sparkline

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


def try_(
    ctx: typer.Context,
    config_path: Path = TRAINING_CONFIG,
    recipes: str = Opt(
        "best,adamw,robust", "--recipes", "-r", help=f"Recipes to try, comma-separated: {Recipe.names()}"
    ),
    steps: int = Opt(200, "--steps", "-n", help="Steps of each trial"),
    seeds: int = Opt(2, "--seeds", "-s", help="Number of seeds to try each recipe with"),
    output_path: Optional[Path] = BEST_CONFIG,
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Try recipes on your data, in short trainings. Trains for a few steps with the config as it is and with each recipe,
    with several seeds, and says which is better and whether the difference is more than chance. Each trial builds its
    own pipeline, without loggers, checkpoints or output folders. Pass overrides such as --paths.train train.spacy as in
    `spacy train`.
    """
    with errors_shown(as_json=as_json):
        # Refuse what can be refused before the trainings.
        _SECTION.whole("--steps", steps, at_least=1)
        _SECTION.whole("--seeds", seeds, at_least=1)
        chosen = [Recipe.of(name.strip()) for name in recipes.split(",") if name.strip()]
        if not chosen:
            _SECTION.refuse("--recipes", "names of recipes with commas between them", recipes)
        check_output_file(output_path)
        # A recipe starts from the config, overrides of the optimizer included.
        source = open_source(config_path, ctx.args, code_path=code_path, use_gpu=use_gpu)
        source = source.write_overrides("training.optimizer.")
        config, notes = shorten(source.load(), steps)
        texts, tried = {_BASE: source.text}, {_BASE: Candidate(_BASE, config)}
        for recipe in dict.fromkeys(chosen):
            try:
                rewritten = _rewritten(source, recipe, output_path)
            except ConfigError as error:
                notes.append(f"Not tried: {recipe.value}. {error}")
                continue
            if rewritten is None:
                notes.append(f"Not tried: {recipe.value}. It changes nothing in this config.")
                continue
            texts[recipe.value], warned = rewritten
            config, more = shorten(source.load(texts[recipe.value]), steps)
            tried[recipe.value] = Candidate(recipe.value, config)
            notes += [f"{recipe.value}: {note}" for note in [*warned, *more] if note not in notes]
        if len(tried) == 1:
            raise ConfigError(f"Can't compare recipes: none of them can be used. {' '.join(notes)}")
        was_stopped = _run(source, tried, [source.seed + i for i in range(seeds)], steps, use_gpu)
        comparison, winner, verdict = _judge(tried)
        if was_stopped:
            notes.append("Stopped before the end. Only the trials up to then are shown.")
        notes += [
            f"{found.name}: {skipped} updates were skipped, as their gradients were not finite or a spike."
            for found in tried.values()
            if (skipped := sum(trial.skipped_updates for trial in found.trials.values()))
        ]
        if output_path is not None:
            write_config(output_path, texts[winner])
    if as_json:
        print_json(_as_json(tried, comparison, winner, verdict, notes))
    else:
        console = make_console()
        _print(console, tried, comparison)
        console.print(verdict)
        print_notes(console, notes)
        if output_path is not None:
            what = f"the config with the recipe '{winner}'" if winner != _BASE else "the config as it is"
            console.print(f"Saved {what} to {output_path}")
    if was_stopped:
        sys.exit(130)


def _rewritten(source: ConfigSource, recipe: Recipe, output_path: Path | None) -> tuple[str, list[str]] | None:
    """The text of the config with a recipe, and warnings. None: the recipe changes nothing.

    RAISES (ConfigError): The recipe can't be used.
    """
    state_path = f"training/{(output_path or source.path).stem}-state"
    with config_errors_shown(source.path):
        draft, text = rewrite(source.text, source.path, recipe, state_path, source.overrides)
    return None if draft.is_unchanged or source.load(text) == source.load() else (text, draft.warnings)


def _run(source: ConfigSource, tried: dict[str, Candidate], seeds: Sequence[int], steps: int, use_gpu: int) -> bool:
    """Run the trials seed by seed, so that all candidates get equally many. RETURNS (bool): If it was interrupted."""
    with show_progress(len(tried) * len(seeds) * (steps + 1), "Trying") as bar:
        for n, seed in enumerate(seeds):
            for found in tried.values():
                if found.problem is not None:
                    continue
                bar.set_description(f"Trying {found.name}, seed {n + 1} of {len(seeds)}")
                try:
                    with config_errors_shown(source.path, found.config):
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
    return False


def _judge(tried: dict[str, Candidate]) -> tuple[Comparison | None, str, str]:
    """RETURNS (tuple): The comparison, or None if there is nothing to compare; the winner; the verdict."""
    scores = {name: found.scores for name, found in tried.items() if found.scores and found.problem is None}
    if tried[_BASE].problem is not None:
        best = max(scores, key=lambda name: fmean(scores[name]), default=_BASE)
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
    if len(set(means.values())) == 1 and not found.spread:
        return "Nothing can be said: all scores are the same. Try fewer --steps, or more data to evaluate on."
    if found.spread is None:
        ahead = f"{best} has the best score, by {found.difference(best):.4f}. " if best != found.base else ""
        return f"{ahead}One seed can't tell a difference from chance. Try --seeds 2 at least."
    if found.winner != found.base:
        return (
            f"{found.winner} is better than the config as it is: {means[found.winner]:.4f} against "
            f"{means[found.base]:.4f}. With {seeds}, up to {found.margins[found.winner]:.4f} may be chance."
        )
    widest = max(found.margins.values())
    if best == found.base:
        return (
            f"No recipe is better than the config as it is. With {seeds}, differences of up to {widest:.4f} may be "
            "chance."
        )
    enough = found.seeds_for(best)
    advice = f" If that is the true difference, --seeds {enough} would show it." if enough is not None else ""
    return (
        f"No recipe is better by more than chance: {best} is ahead by {found.difference(best):.4f}, and with {seeds} "
        f"up to {found.margins[best]:.4f} may be chance.{advice}"
    )


# ---------------------------------------------------------------------- output


def _print(console: Console, tried: dict[str, Candidate], comparison: Comparison | None) -> None:
    base = tried[_BASE]
    goal = max((fmean(scores) for scores in base.curves.values()), default=0.0)
    highest = max((max(map(fmean, found.curves.values())) for found in tried.values() if found.curves), default=0.0)
    rows = []
    for name, found in tried.items():
        means = [fmean(scores) for scores in found.curves.values()]
        told = comparison is not None and comparison.is_told(name)
        difference = comparison.difference(name) if comparison is not None and name in comparison.means else 0.0
        reached = found.reaches(goal)
        rows.append(
            [
                name,
                f"{fmean(found.scores):.4f}" if found.scores else "",
                " ".join(f"{score:.4f}" for score in found.scores),
                f"{difference:+.4f}" if comparison is not None and name in comparison.margins else "",
                ("better" if difference > 0 else "worse") if told else "",
                "" if reached is None else f"{reached:,}",
                f"{found.seconds:,.1f}" if found.trials else "",
                sparkline(console, [mean / (highest or 1.0) for mean in means], _CHART_WIDTH) if means else "",
            ]
        )
    headers = ["optimizer", "score (0-1)", "of each seed", "difference", "verdict", "there at step", "seconds", "curve"]
    print_table(console, headers, rows, numbers=[*headers[1:4], *headers[5:7]])
    for name, found in tried.items():
        if found.problem is not None:
            console.print(f"{name} did not finish its trials: {found.problem}")


def _as_json(
    tried: dict[str, Candidate], comparison: Comparison | None, winner: str, verdict: str, notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "tried": [
            {
                "name": name,
                "scores": {str(seed): trial.score for seed, trial in found.trials.items()},
                "evaluations": {str(seed): trial.evaluations for seed, trial in found.trials.items()},
                "seconds": found.seconds,
                "words": {str(seed): trial.words for seed, trial in found.trials.items()},
                "mean": comparison.means.get(name) if comparison is not None else None,
                "margin": comparison.margins.get(name) if comparison is not None else None,
                "more_than_chance": comparison is not None and comparison.is_told(name),
                "problem": found.problem,
            }
            for name, found in tried.items()
        ],
        "spread": comparison.spread if comparison is not None else None,
        "winner": winner,
        "verdict": verdict,
        "notes": list(notes),
    }
