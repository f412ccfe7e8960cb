"""A search through a space, by Optuna: in a file, so that it can be stopped and continued, and shared by several
processes.

The file has two studies of Optuna's. *search*: each trial has other values, and the first seed. *repeats*: the best of
them, and the config as it is, with more seeds. A trial whose process was killed has no heartbeat, and is done again.
"""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compat import import_optuna
from ..errors import ConfigError
from .space import Choice, Space
from .trial import Trial

# The config as it is, among the numbers of trials.
AS_IT_IS = -1
# In seconds. A trial without a heartbeat for so long is dead: a busy process may be late by some.
_HEARTBEAT, _GRACE = 5, 60
# Without one that came to its end, so many trials may fail.
_MOST_FAILURES = 3
# Before there are so many trials, none is pruned.
_TRIALS_BEFORE_PRUNING = 4
_SEARCH, _REPEATS = "search", "repeats"
_SETTINGS, _PROBLEM, _AGAIN = "settings", "problem", "again"
_FINISHED = ("COMPLETE", "PRUNED")

# Trains with values, by their paths, and a seed; reports the step and the score of each evaluation.
Train = Callable[[Mapping[str, Any], int, Callable[[int, float], None]], Trial]


@dataclass(frozen=True)
class Found:
    """A trial of the search.

    values (dict[str, Any]): By path.
    score (float | None): None: it failed, or is not done.
    scores (dict[int, float]): By step.
    state (str): "complete", "pruned", "failed", "running" or "waiting".
    """

    number: int
    values: dict[str, Any]
    score: float | None
    scores: dict[int, float]
    state: str
    problem: str | None


class Study:
    """A study in a file.

    path (Path): The file, which may be there.
    settings (Mapping[str, str]): What must be the same when it goes on, by name.
    space (Space): Which values there are.
    seed (int): The seed of the search.
    warmup_steps (int): No trial is pruned before this step. With None, none is.
    RAISES (ConfigError): The file is no study, or one with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, str], space: Space, *, seed: int, warmup_steps: int | None):
        self.path = path
        self.space = space
        self.seed = seed
        self._optuna = optuna = import_optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = (
            optuna.pruners.NopPruner()
            if warmup_steps is None
            else optuna.pruners.MedianPruner(n_startup_trials=_TRIALS_BEFORE_PRUNING, n_warmup_steps=warmup_steps)
        )
        with self._opened(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _refuse_others(path)
            storage = optuna.storages.RDBStorage(
                f"sqlite:///{path}",
                # Several processes may write: how long one waits for another.
                engine_kwargs={"connect_args": {"timeout": _GRACE}},
                heartbeat_interval=_HEARTBEAT,
                grace_period=_GRACE,
                heartbeat_stale_trial_callback=_again,
            )
            self._search, self._repeats = (
                optuna.create_study(
                    storage=storage,
                    study_name=name,
                    direction="maximize",
                    load_if_exists=True,
                    sampler=_sampler(seed),
                    pruner=pruner,
                )
                for name in (_SEARCH, _REPEATS)
            )
        self._check(settings)

    def search(self, trials: int, train: Train, on_trial: Callable[[], Any] = lambda: None) -> None:
        """Search until the study has so many trials, of all its processes. on_trial (Callable): Called after each."""
        failures = 0

        def objective(trial: Any) -> float:
            values = {path: dimension.suggest(trial, path) for path, dimension in self.space.items()}

            def report(step: int, score: float) -> None:
                trial.report(score, step)
                if trial.should_prune():
                    raise self._optuna.TrialPruned

            return self._score(trial, lambda: train(values, self.seed, report))

        while self._wait_for_room(self._search, trials):
            number = self._run(self._search, objective)
            on_trial()
            problem = self._search.trials[number].user_attrs.get(_PROBLEM)
            failures += problem is not None
            if failures >= _MOST_FAILURES and not any(trial.state.name in _FINISHED for trial in self._search.trials):
                raise ConfigError(
                    f"Can't tune: expected a trial that comes to its end, found {failures} that failed. "
                    f"The last one: {problem}"
                )

    def repeat(
        self, numbers: Sequence[int], seeds: Sequence[int], train: Train, on_trial: Callable[[], Any] = lambda: None
    ) -> None:
        """Do trials again, with other seeds. Those that are done, also by other processes, are not done again."""
        values = {found.number: found.values for found in self.found()} | {AS_IT_IS: {}}
        for seed in seeds:
            for number in numbers:
                self._repeats.enqueue_trial({"trial": number, "seed": seed}, skip_if_exists=True)

        def objective(trial: Any) -> float:
            number = trial.suggest_int("trial", AS_IT_IS, 1_000_000)
            seed = trial.suggest_int("seed", 0, 2**32)
            if number not in values:  # another process was faster, and nothing was left to be done
                raise self._optuna.TrialPruned
            return self._score(trial, lambda: train(values[number], seed, lambda step, score: None))

        while self._wait_for_queue():
            self._run(self._repeats, objective)
            on_trial()

    def repeated(self, numbers: Sequence[int], seeds: Sequence[int]) -> dict[int, dict[int, float]]:
        """What came of that. RETURNS (dict): By number, the score of each seed."""
        scores: dict[int, dict[int, float]] = {number: {} for number in numbers}
        for trial in self._repeats.trials:
            if trial.state.name == "COMPLETE" and trial.params["trial"] in scores and trial.params["seed"] in seeds:
                scores[trial.params["trial"]][trial.params["seed"]] = trial.value
        return scores

    def begin_with(self, values: Mapping[str, Any]) -> None:
        """Let the first trial have these values, if the space has them all."""
        if self._search.trials or not all(path in values and values[path] in d for path, d in self.space.items()):
            return
        params = {
            path: d.text_of(values[path]) if isinstance(d, Choice) else values[path] for path, d in self.space.items()
        }
        self._search.enqueue_trial(params, skip_if_exists=True)

    def found(self) -> list[Found]:
        """All trials of the search, in their order. Of one that was done again, there are two."""
        return [
            Found(
                trial.number,
                {path: self.space[path].value_of(value) for path, value in trial.params.items()},
                trial.value if trial.state.name == "COMPLETE" else None,
                dict(trial.intermediate_values),
                "failed" if trial.state.name == "FAIL" else trial.state.name.lower(),
                trial.user_attrs.get(_PROBLEM),
            )
            for trial in self._search.trials
        ]

    def best(self, n: int) -> list[Found]:
        """The best trials that came to their end, the best one first, and no values twice."""
        different: dict[str, tuple[float, int, Found]] = {}
        for found in reversed(self.found()):
            if found.score is not None:
                different[repr(found.values)] = -found.score, found.number, found
        return [found for *_, found in sorted(different.values(), key=lambda entry: entry[:2])][:n]

    def importances(self) -> dict[str, float]:
        """How much of the differences between scores is due to each setting, highest first. Empty: that is not
        known.
        """
        done = [found for found in self.found() if found.score is not None]
        if len(self.space) < 2 or len({found.score for found in done}) < 2:
            return {}
        return dict(self._optuna.importance.get_param_importances(self._search))

    # ------------------------------------------------------------------ trials

    def _run(self, study: Any, objective: Callable[[Any], float]) -> int:
        """Run one trial. RETURNS (int): Its number."""
        numbers: list[int] = []

        def noted(trial: Any) -> float:
            numbers.append(trial.number)
            # Two processes may notice at once that a third was killed. The first trial in its place counts.
            of = trial.user_attrs.get(_AGAIN)
            others = study.trials[: trial.number] if of is not None else ()
            if any(other.user_attrs.get(_AGAIN) == of for other in others):
                raise _Failed
            try:
                return objective(trial)
            except KeyboardInterrupt:
                _again(study, study.trials[trial.number])
                raise

        study.optimize(noted, n_trials=1, catch=(_Failed,))
        return numbers[0]

    def _score(self, trial: Any, train: Callable[[], Trial]) -> float:
        """The score of a trial, whose problem is noted. RAISES (_Failed): It has none."""
        try:
            found = train()
        except self._optuna.TrialPruned:
            raise
        except Exception as error:
            # Of some values, any error can come: too large a batch for the memory, sizes that don't fit.
            trial.set_user_attr(_PROBLEM, f"{error}" or repr(error))
            raise _Failed from error
        if found.problem is None:
            return found.score
        trial.set_user_attr(_PROBLEM, found.problem)
        return 0.0  # so that the search stays away from there

    def _wait_for_room(self, study: Any, trials: int) -> bool:
        """Wait for trials of other processes, if they are the last ones. RETURNS (bool): Whether there is one to do."""
        while True:
            _fail_stale(study)
            states = [
                trial.state.name for trial in study.trials if trial.state.name != "FAIL" or _PROBLEM in trial.user_attrs
            ]
            if sum(state not in ("WAITING", "RUNNING") for state in states) >= trials:
                return False
            if sum(state != "WAITING" for state in states) < trials:
                return True
            time.sleep(1.0)

    def _wait_for_queue(self) -> bool:
        """The same, of the repeats."""
        while True:
            _fail_stale(self._repeats)
            states = [trial.state.name for trial in self._repeats.trials]
            if "WAITING" in states:
                return True
            if "RUNNING" not in states:
                return False
            time.sleep(1.0)

    # ------------------------------------------------------------------ the file

    @contextmanager
    def _opened(self, path: Path) -> Iterator[None]:
        """Inside, what is wrong with a file becomes an error of ours. RAISES (ConfigError): Something is."""
        try:
            with warnings.catch_warnings():
                # Heartbeats are what Optuna has for it, even if it calls them experimental.
                warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
                yield
        except Exception as error:
            cause = error.__cause__ or error
            raise ConfigError(
                f"Can't open the study '{path}': expected a new file, or one that this command wrote, found something "
                f"else ({str(cause).splitlines()[0]}). Change --study."
            ) from error

    def _check(self, settings: Mapping[str, str]) -> None:
        """RAISES (ConfigError): The study was begun with other settings."""
        before = self._search.user_attrs.get(_SETTINGS)
        if before is None:
            self._search.set_user_attr(_SETTINGS, dict(settings))
            return
        for name in [*settings, *before]:
            if before.get(name) != settings.get(name):
                raise ConfigError(
                    f"Can't go on with the study '{self.path}': expected {name} as before, {before.get(name, 'none')}, "
                    f"found {settings.get(name, 'none')}. Scores of different trainings can't be compared. Change it "
                    "back, or begin a new study: change --study."
                )


def _refuse_others(path: Path) -> None:
    """Optuna would add its tables to any database. RAISES (ValueError): It is another one."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if tables and "studies" not in tables:
        raise ValueError(f"a database with the table '{tables[0]}'")


class _Failed(Exception):
    """A trial has no score."""


def _sampler(seed: int) -> Any:
    """Optuna's own sampler, with a seed for each trial: what is drawn does not depend on which process draws it."""
    optuna = import_optuna()

    class Sampler(optuna.samplers.BaseSampler):  # type: ignore[name-defined]
        _inner = optuna.samplers.TPESampler(seed=seed)

        def before_trial(self, study: Any, trial: Any) -> None:
            self._inner = optuna.samplers.TPESampler(seed=(seed + trial.number) % 2**32)
            self._inner.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self._inner.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._inner.sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return self._inner.sample_independent(study, trial, param_name, param_distribution)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            self._inner.after_trial(study, trial, state, values)

    return Sampler()


def _again(study: Any, trial: Any) -> None:
    """Let a trial that was killed or interrupted be done again."""
    if trial.params:
        study.enqueue_trial(trial.params, user_attrs={_AGAIN: trial.number})


def _fail_stale(study: Any) -> None:
    """What is running without a heartbeat has failed, and is done again."""
    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
