"""`spacy torchopt tune`: search for better settings, in short trainings on the user's data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Optional

import typer
from confection import Config
from rich.console import Console
from spacy.language import DEFAULT_CONFIG
from spacy.schemas import ConfigSchemaTraining
from spacy.util import registry
from typer import Option as Opt

from ..addons.recipes import (
    ConfigSource,
    Recipe,
    check_output,
    not_written,
    open_source,
    rewrite,
    value_at,
    with_settings,
    write_config,
)
from ..addons.report import Point, check_picture, plot_study
from ..addons.trials import (
    AS_IT_IS,
    WRITES,
    Choice,
    Comparison,
    Space,
    Study,
    TrialRecord,
    TrialResult,
    compare,
    learn_rate_settings,
    parse_space,
    run_trial,
    shorten,
)
from ..core.checks import Section
from ..core.compat import import_optuna
from ..core.config_checks import check_gpu, check_names, check_training_section
from ..core.errors import ConfigError
from ..core.tables import print_table
from ..loop.progress_bars import Bar, show_progress
from ..loop.setup import config_errors
from ._command import BEST_CONFIG, CODE, GPU, JSON, PICTURE_BESIDE, TRAINING_CONFIG
from ._screen import errors_shown, make_console, show
from ._setup import read_overrides
from .find_lr import find_peak

_SECTION = Section("spacy torchopt tune", verb="use")
# Number of best trials that are repeated.
_BEST = 5
# No trial is pruned in this first part of its steps: early on, a high learning rate looks better than it is.
_WARMUP = 0.4
# The default space: the learning rate times and divided by this.
_TIMES = 10.0
_DEFAULTS = {"training.optimizer.algorithm.weight_decay": "1e-4..0.3:log", "training.optimizer.L2": "1e-4..0.3:log"}
# A trial sets these itself, or does not have them.
_NOT_SEARCHED = (
    *(f"training.{key}" for key in ("max_steps", "max_epochs", "patience", "eval_frequency", "seed")),
    *(f"training.{key}" for key in ("logger", "before_to_disk")),
    *(f"training.optimizer.{key}" for key in WRITES),
)
_DROPOUT = ("training.dropout", "0.0..0.4")


def tune(
    ctx: typer.Context,
    config_path: Path = TRAINING_CONFIG,
    given: Optional[list[str]] = Opt(
        None,
        "--set",
        metavar="PATH=VALUES",
        help="Setting to search, and its values: 1e-4..1e-2:log, 0.0..0.5, 1..8 or 16|32. Repeatable",
    ),
    recipe: Optional[str] = Opt(
        None, "--recipe", "-r", help=f"Rewrite the optimizer by a recipe first: {Recipe.names()}"
    ),
    steps: int = Opt(200, "--steps", "-n", help="Steps of each trial"),
    trials: int = Opt(30, "--trials", "-t", help="Trials of the study in total, over all its runs"),
    seeds: int = Opt(2, "--seeds", "-s", help="Number of other seeds to repeat the best five trials with"),
    study_path: Path = Opt(
        Path("tune.db"), "--study", help="SQLite file of the study. An existing study is continued", dir_okay=False
    ),
    output_path: Optional[Path] = BEST_CONFIG,
    picture_path: Optional[Path] = PICTURE_BESIDE,
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Search for better settings on your data, by Optuna. Tries values in short trainings (needs Optuna 5).
    Searches the settings given by --set or by a section [search] in the config; by default, the learning rate, weight
    decay and dropout. Run the same command again to continue. Pass overrides such as --paths.train train.spacy as in
    `spacy train`.
    """
    with errors_shown(as_json=as_json):
        # Refuse what can be refused before the trainings.
        _SECTION.whole("--steps", steps, at_least=1)
        _SECTION.whole("--trials", trials, at_least=1)
        _SECTION.whole("--seeds", seeds)
        if picture_path is not None:
            check_picture(picture_path, [config_path, study_path])
        if output_path is not None:
            check_output(output_path)
        import_optuna()
        overrides = read_overrides(ctx.args, code_path)
        check_gpu(use_gpu)
        source = open_source(config_path, overrides)
        overridden = set(source.overrides)
        source = source.write_overrides("training.optimizer.")
        warned: list[str] = []
        if recipe is not None:
            with config_errors(path=config_path):
                draft, text = rewrite(source.text, config_path, Recipe.of(recipe), source.overrides)
            warned = [*draft.warnings, *not_written(source.overrides, source.text, text, in_trials=True)]
            source.text = text
        space = _space(source, given or (), overridden)
        config, notes = shorten(source.load(), steps)
        _check_space(source, space)
        study = Study(
            study_path,
            _settings(config, space),
            space,
            seed=source.seed,
            warmup_steps=round(_WARMUP * steps),
        )
        own = _filled(source)
        study.begin_with({path: value_at(own, path) for path in space})

        was_stopped, other_seeds = False, [source.seed + 1 + i for i in range(seeds)]
        per_trial = steps + 1
        bar: Bar

        def train(values: Mapping[str, Any], seed: int, on_evaluation: Callable[[int, float], None]) -> TrialResult:
            config, _ = shorten(source.load(overrides=values), steps)
            return run_trial(config, seed=seed, use_gpu=use_gpu, on_step=bar.update, on_evaluation=on_evaluation)

        def tell(name: str, found: TrialRecord, done: int) -> None:
            bar.move_to(done * per_trial)  # a trial may have ended early
            bar.tell(f"{name}: {found.state if found.score is None else f'{found.score:.4f}'}")

        def tell_trial(found: TrialRecord) -> None:
            tell(_name(found.number), found, study.count_done())

        def tell_repeat(number: int, seed: int, found: TrialRecord) -> None:
            tell(f"{_name(number)}, seed {seed}", found, study.count_repeated(again, other_seeds))

        try:
            done = min(trials, study.count_done())
            with show_progress(trials * per_trial, "Searching", done=done * per_trial) as bar:
                study.search(trials, train, tell_trial)
            best = [found.number for found in study.best(_BEST)]
            if best:
                again = [AS_IT_IS, *best]
                all_steps, done = len(again) * seeds * per_trial, study.count_repeated(again, other_seeds)
                with show_progress(all_steps, "The best again, with other seeds", done=done * per_trial) as bar:
                    study.repeat(again, other_seeds, train, tell_repeat)
        except KeyboardInterrupt:
            was_stopped = True
        result = _StudyResult(study, other_seeds, [*warned, *notes])
        if picture_path is not None:
            plot_study(result.points, result.importances, _logs(space), result.as_it_is, picture_path)
        if output_path is not None and result.winner is not None:
            write_config(output_path, with_settings(source.text, result.values(result.winner)))
    show(result, as_json=as_json)
    if not as_json:
        console = make_console()
        if picture_path is not None:
            console.print(f"Saved the picture to {picture_path}")
        if output_path is not None and result.winner is not None:
            what = "the config as it is" if result.winner == AS_IT_IS else f"the config of trial {result.winner}"
            console.print(f"Saved {what} to {output_path}")
        if was_stopped:
            console.print(f"Stopped before the end. The same command continues the study '{study_path}'.")
        if output_path is not None and result.winner is None:
            console.print(f"Nothing is saved to {output_path}.")
    if was_stopped:
        sys.exit(130)
    if result.winner is None:
        sys.exit(1)


# ---------------------------------------------------------------------- the space


def _space(source: ConfigSource, given: Sequence[str], overridden: Collection[str]) -> Space:
    """The space to search: --set before [search]; without both, the default space.

    overridden (Collection[str]): Settings that have a value from the command line.
    RAISES (ConfigError): There is nothing to search, or a dimension is invalid, or no setting of a trial.
    """
    texts = [("[search]", path, text) for path, text in source.search.items()]
    for text in given:
        path, sign, values = text.partition("=")
        if not sign:
            _SECTION.refuse("--set", "a setting and its values, as in training.dropout=0.0..0.4", text)
        texts.append(("--set", path.strip(), values))
    if not texts:
        defaults = _default_space(source).items()
        texts = [("the default space", path, text) for path, text in defaults if path not in overridden]
    space = parse_space(texts)
    if not space:
        raise ConfigError(
            "Can't tune: expected settings to search, found none; and the config has no learning rate, weight decay or "
            "dropout that is a number. Add --set, or a section [search]; or let spacy init fill-config write the "
            "sections that spaCy fills in."
        )
    written = source.load()
    for path, where in {path: where for where, path, _ in texts}.items():
        if path.startswith(_NOT_SEARCHED):
            _SECTION.refuse(
                where, "settings that change what a trial learns", path, "Trials set it themselves, or ignore it."
            )
        if path in overridden:
            _SECTION.refuse(where, "settings that have no value from the command line", path, "Remove one of both.")
        if isinstance(section := value_at(written, path), Mapping):
            _SECTION.refuse(
                where,
                "settings with one value",
                f"the section [{path}]",
                f"Search one of its settings: {', '.join(f'{path}.{key}' for key in section)}.",
            )
    return space


def _filled(source: ConfigSource) -> Config:
    """The config with spaCy's defaults filled in, interpolated."""
    return Config(DEFAULT_CONFIG).merge(source.load()).interpolate()


def _default_space(source: ConfigSource) -> dict[str, str]:
    """The highest learning rate, weight decay and dropout, where they are numbers."""
    config = _filled(source)
    block = config["training"]["optimizer"]
    found = {}
    peak = learn_rate_settings(config).get(("learn_rate",), 0.0)
    if peak:
        places = list(find_peak(block, ["learn_rate"], peak))
        if len(places) == 1:
            found[".".join(["training", "optimizer", *places[0]])] = f"{peak / _TIMES:.3g}..{peak * _TIMES:.3g}:log"
    for path, text in (*_DEFAULTS.items(), _DROPOUT):
        if _is_number(value_at(config, path)):
            found[path] = text
    written = source.load()  # spaCy allows overrides only in existing sections
    return {path: text for path, text in found.items() if value_at(written, path.rpartition(".")[0]) is not None}


def _check_space(source: ConfigSource, space: Space) -> None:
    """Check that each value is valid in the config, as far as that is known without a pipeline."""
    lowest = {path: dimension.ends[0] for path, dimension in space.items()}
    for path, dimension in space.items():
        for value in dimension.ends:
            written = source.load(overrides={**lowest, path: value})
            check_training_section(written)
            config = Config(DEFAULT_CONFIG).merge(written)
            shortened, _ = shorten(config, 1)
            with config_errors(config, path=source.path):
                registry.resolve(shortened["training"], schema=ConfigSchemaTraining)
    check_names(space)


def _settings(config: Config, space: Space) -> dict[str, str]:
    """Collect what must not change when a study continues: the space, and the settings that are not searched."""
    found: dict[str, str] = {}

    def collect(section: Mapping[str, Any], prefix: str) -> None:
        for key, value in section.items():
            path = f"{prefix}{key}"
            if path in space:
                continue
            if isinstance(value, Mapping):
                collect(value, f"{path}.")
            else:
                found[path] = json.dumps(value)

    collect(config, "")
    return found | {f"--set {path}": str(dimension) for path, dimension in space.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _logs(space: Space) -> list[str]:
    return [path for path, dimension in space.items() if not isinstance(dimension, Choice) and dimension.is_log]


# ---------------------------------------------------------------------- results


class _StudyResult:
    """The results of a study.

    study (Study): The study.
    other_seeds (Sequence[int]): The seeds of repeated trials. notes (list[str]): Warnings.

    Public: `found` (its trials), `best` (the best of them), `importances`, and `scores` (of repeated trials, by
    number).
    """

    def __init__(self, study: Study, other_seeds: Sequence[int], notes: list[str]):
        self.notes = notes
        self.found = study.found()
        self.best = study.best(_BEST)
        self.importances = study.importances()
        again = study.repeated([AS_IT_IS, *(found.number for found in self.best)], other_seeds)
        self.scores = scores = {number: found for number, found in again.items() if found}
        self._names = {number: _name(number) for number in scores}
        self.comparison: Comparison | None = None
        base = next((number for number in scores if number == AS_IT_IS), None)
        if base is not None and len(scores) > 1:
            self.comparison = compare({self._names[n]: found for n, found in scores.items()}, self._names[base])

    @property
    def winner(self) -> int | None:
        """The trial with the best mean score over the other seeds, or with the best score if none was repeated."""
        if self.comparison is not None:
            return next(number for number, name in self._names.items() if name == self.comparison.best)
        return self.best[0].number if self.best else None

    @property
    def as_it_is(self) -> float | None:
        return fmean(self.scores[AS_IT_IS].values()) if AS_IT_IS in self.scores else None

    @property
    def points(self) -> list[Point]:
        return [
            Point(found.number, score, found.state, found.values)
            for found in self.found
            if (score := max(found.scores.values(), default=None) if found.score is None else found.score) is not None
        ]

    def values(self, number: int) -> dict[str, Any]:
        """The values of a trial. Empty: the config as it is."""
        return next((found.values for found in self.found if found.number == number), {})

    @property
    def verdict(self) -> str:
        if not self.best:
            return "No trial has finished."
        if self.comparison is None:
            return (
                f"Trial {self.best[0].number} has the best score, {self.best[0].score:.4f}. One seed can't tell a "
                "difference from chance. Try --seeds 2 at least."
            )
        return self.comparison.verdict("the config as it is")

    def print(self, console: Console) -> None:
        states = [found.state for found in self.found]
        told = {"complete": "to the end", "pruned": "stopped early", "failed": "failed"}
        told |= {"running": "not finished", "waiting": "waiting"}
        counts = [f"{states.count(state)} {words}" for state, words in told.items() if state in states]
        console.print(f"{len(states)} trials: {', '.join(counts)}.")
        for problem in dict.fromkeys(found.problem for found in self.found if found.problem is not None):
            numbers = [str(found.number) for found in self.found if found.problem == problem]
            console.print(f"Trial {', '.join(numbers)}: {problem}")
        paths = list(dict.fromkeys(path for found in self.best for path in found.values))
        rows: list[TrialRecord | None] = [*([None] if self.as_it_is is not None else []), *self.best]
        if rows:
            headers = ["", "score (0-1)", "other seeds", "of each", "difference", "verdict", *_short_names(paths)]
            print_table(console, headers, [self._row(found, paths) for found in rows], numbers=headers[1:5])
        if self.importances:
            shown = ", ".join(f"{path} {share:.2f}" for path, share in self.importances.items())
            console.print(f"Importance: {shown}")
        console.print(self.verdict)

    def _row(self, found: TrialRecord | None, paths: Sequence[str]) -> list[str]:
        """found (TrialRecord | None): None: the config as it is."""
        number = AS_IT_IS if found is None else found.number
        name = _name(number)
        scores = list(self.scores.get(number, {}).values())
        return [
            name,
            "" if found is None else f"{found.score:.4f}",
            f"{fmean(scores):.4f}" if scores else "",
            " ".join(f"{score:.4f}" for score in scores),
            *(("", "") if self.comparison is None else self.comparison.cells(name)),
            *("" if found is None or path not in found.values else _shown(found.values[path]) for path in paths),
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "trials": [
                {
                    "number": found.number,
                    "state": found.state,
                    "values": found.values,
                    "score": found.score,
                    "evaluations": list(found.scores.items()),
                    "problem": found.problem,
                }
                for found in self.found
            ],
            "best": [found.number for found in self.best],
            "other_seeds": {
                "as it is" if n == AS_IT_IS else str(n): [*found.values()] for n, found in self.scores.items()
            },
            "importances": self.importances,
            "winner": self.winner,
            "values": {} if self.winner is None else self.values(self.winner),
            "verdict": self.verdict,
            "notes": self.notes,
        }


def _name(number: int) -> str:
    """The name of a trial in output."""
    return "as it is" if number == AS_IT_IS else f"trial {number}"


def _short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that differ from each other."""
    found = []
    for path in paths:
        parts = path.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        found.append(next(end for end in ends if sum(f".{other}".endswith(f".{end}") for other in paths) == 1))
    return found


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
