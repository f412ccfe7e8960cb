"""A search through a space, by Optuna. It is stored in a file, so it can be continued.

A space has the values of settings that are tried. As text: `1e-4..1e-2:log` is a range on a logarithmic scale,
`0.0..0.5` on a linear scale, `0..1:0.25` in steps. `1..8` has whole numbers, as both ends are whole. `16|32|64` are
choices: numbers, true, false, null, or texts.

The file has two Optuna studies. *search*: trials with different values and the first seed, scored on one half of the
development data. *repeats*: the best of them, and the config as it is, with other seeds, scored on the other half.
A trial that Ctrl-C ends is done again; one whose process was killed is left as it is.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Union

from ...core.compat import import_optuna
from ...core.errors import ConfigError
from .trial import TrialResult

# The number of the config as it is, among trials.
AS_IT_IS = -1
# The search ends after this many failures without any finished trial.
_MOST_FAILURES = 3
# No trial is pruned before there are this many.
_TRIALS_BEFORE_PRUNING = 4
_SEARCH, _REPEATS = "search", "repeats"
_SETTINGS, _PROBLEM = "settings", "problem"
_FINISHED = ("COMPLETE", "PRUNED")

# Trains with values by path and a seed, and reports step and score of each evaluation.
Train = Callable[[Mapping[str, Any], int, Callable[[int, float], None]], TrialResult]


# ---------------------------------------------------------------------- the space


@dataclass(frozen=True)
class NumberRange:
    """Numbers from `low` to `high`, inclusive. is_log (bool): Use a logarithmic scale. step (float | None): Distance of
    allowed values.
    """

    low: float
    high: float
    is_log: bool = False
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step) if number is not None)

    @property
    def ends(self) -> list[Any]:
        return [self.low, self.high]

    def __contains__(self, value: Any) -> bool:
        is_number = isinstance(value, int if self.is_whole else (int, float)) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high and (self.step is None or value in self.ends)

    def value_of(self, drawn: Any) -> Any:
        """The value of a setting, from the value that Optuna drew."""
        return drawn

    def suggest(self, trial: Any, path: str) -> Any:
        if self.is_whole:
            return trial.suggest_int(path, self.low, self.high, step=self.step or 1, log=self.is_log)
        return trial.suggest_float(path, self.low, self.high, step=self.step, log=self.is_log)

    def __str__(self) -> str:
        scale = ":log" if self.is_log else "" if self.step is None else f":{self.step}"
        return f"{self.low}..{self.high}{scale}"


@dataclass(frozen=True)
class Choice:
    """A choice of values, each as text."""

    texts: tuple[str, ...]

    @property
    def ends(self) -> list[Any]:
        return [_value(text) for text in self.texts]

    def __contains__(self, value: Any) -> bool:
        return any(type(value) is type(end) and value == end for end in self.ends)

    def text_of(self, value: Any) -> str:
        return next(text for text in self.texts if _value(text) == value)

    def value_of(self, drawn: Any) -> Any:
        return _value(drawn)

    def suggest(self, trial: Any, path: str) -> Any:
        return _value(trial.suggest_categorical(path, self.texts))

    def __str__(self) -> str:
        return "|".join(self.texts)


Dimension = Union[NumberRange, Choice]
Space = dict[str, Dimension]


def parse_space(given: Sequence[tuple[str, str, str]]) -> Space:
    """Parse a space.

    given (Sequence[tuple[str, str, str]]): Source, for errors; dotted path of a setting; its values as text. The last
        one of a path counts.
    RAISES (ConfigError): A text is invalid.
    """
    return {path: _parse(where, path, text) for where, path, text in given}


# ---------------------------------------------------------------------- the search


@dataclass(frozen=True)
class TrialRecord:
    """A trial of the search.

    values (dict[str, Any]): By path.
    score (float | None): None: it failed, or is not finished.
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

    path (Path): The file. An existing study is continued.
    settings (Mapping[str, str]): Settings that must not change when it is continued, by name.
    space (Space): The space to search.
    seed (int): The seed of the search.
    warmup_steps (int | None): No trial is pruned before this step. None: never prune.
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
            storage = optuna.storages.RDBStorage(_url_of(path))
            self._search, self._repeats = (
                optuna.create_study(
                    storage=storage,
                    study_name=name,
                    direction="maximize",
                    load_if_exists=True,
                    pruner=pruner,
                )
                for name in (_SEARCH, _REPEATS)
            )
        self._check(settings)

    def search(self, trials: int, train: Train, on_trial: Callable[[TrialRecord], Any] = lambda found: None) -> None:
        """Search until the study has `trials` trials. on_trial (Callable): Called with each."""
        failures = 0
        while sum(map(_is_over, self._search.trials)) < trials:  # another process may add some
            number = self._run(train)
            found = self._record(self._search.trials[number])
            on_trial(found)
            if found.problem is not None:
                failures += 1
                if failures >= _MOST_FAILURES and not self.count_done():
                    raise ConfigError(f"Can't tune: all {failures} trials failed. The last one: {found.problem}")

    def _run(self, train: Train) -> int:
        """Run one trial of the search. RETURNS (int): Its number."""
        study, states = self._search, self._optuna.trial.TrialState
        # A seed for each trial, so that a study that is continued draws the same values.
        study.sampler = self._optuna.samplers.TPESampler(seed=(self.seed + len(study.trials)) % 2**32)
        trial = study.ask()

        def report(step: int, score: float) -> None:
            trial.report(score, step)
            if trial.should_prune():
                raise self._optuna.TrialPruned

        try:
            values = {path: dimension.suggest(trial, path) for path, dimension in self.space.items()}
            found, problem = self._result(lambda: train(values, self.seed, report))
        except self._optuna.TrialPruned:
            study.tell(trial, state=states.PRUNED)
        except BaseException:
            study.tell(trial, state=states.FAIL)
            study.enqueue_trial(trial.params)
            raise
        else:
            if problem is not None:
                trial.set_user_attr(_PROBLEM, problem)
            if found is None:
                study.tell(trial, state=states.FAIL)
            else:
                study.tell(trial, found.chosen)
        return int(trial.number)

    def _result(self, train: Callable[[], TrialResult]) -> tuple[TrialResult | None, str | None]:
        """RETURNS (tuple): The result of a training, None if it raised an error; and its problem, if it has one."""
        try:
            found = train()
        except self._optuna.TrialPruned:
            raise
        except Exception as error:
            # Some values raise any kind of error: a batch too large for the memory, sizes that don't fit.
            return None, f"{error}" or repr(error)
        # With scores of 0, so that the search avoids these values.
        return (found, None) if found.problem is None else (TrialResult(), found.problem)

    def repeat(
        self,
        numbers: Sequence[int],
        seeds: Sequence[int],
        train: Train,
        on_trial: Callable[[int, int, TrialRecord], Any] = lambda number, seed, found: None,
    ) -> None:
        """Repeat trials with other seeds, except those that were repeated before. on_trial (Callable): Called with the
        number and seed of each, and its result.
        """
        optuna = self._optuna
        values = {found.number: found.values for found in self.found()} | {AS_IT_IS: {}}
        done = [trial.params for trial in self._repeats.trials]
        for params in ({"trial": number, "seed": seed} for seed in seeds for number in numbers):
            if params in done:
                continue
            number, seed = params["trial"], params["seed"]
            found, problem = self._result(partial(train, values[number], seed, lambda step, score: None))
            trial = optuna.trial.create_trial(
                state=optuna.trial.TrialState.FAIL if found is None else optuna.trial.TrialState.COMPLETE,
                value=None if found is None else found.kept,
                params=params,
                distributions=dict.fromkeys(params, optuna.distributions.IntDistribution(AS_IT_IS, max(number, seed))),
                user_attrs={} if problem is None else {_PROBLEM: problem},
            )
            self._repeats.add_trial(trial)
            on_trial(number, seed, self._record(trial))

    def count_done(self) -> int:
        """The trials of the search that are done."""
        return sum(trial.state.name in _FINISHED for trial in self._search.trials)

    def count_repeated(self, numbers: Sequence[int], seeds: Sequence[int]) -> int:
        """The same for repeats."""
        return sum(map(len, self.repeated(numbers, seeds).values()))

    def repeated(self, numbers: Sequence[int], seeds: Sequence[int]) -> dict[int, dict[int, float]]:
        """The scores of repeated trials. RETURNS (dict): By number and seed."""
        scores: dict[int, dict[int, float]] = {number: {} for number in numbers}
        for trial in self._repeats.trials:
            if trial.state.name == "COMPLETE" and trial.params["trial"] in scores and trial.params["seed"] in seeds:
                scores[trial.params["trial"]][trial.params["seed"]] = trial.value
        return scores

    def begin_with(self, values: Mapping[str, Any]) -> None:
        """Use these values for the first trial, if they are all in the space."""
        if self._search.trials or not all(path in values and values[path] in d for path, d in self.space.items()):
            return
        params = {
            path: d.text_of(values[path]) if isinstance(d, Choice) else values[path] for path, d in self.space.items()
        }
        self._search.enqueue_trial(params)

    def found(self) -> list[TrialRecord]:
        """All trials of the search, in order. A trial that was repeated after a failure appears twice."""
        return [self._record(trial) for trial in self._search.trials]

    def _record(self, trial: Any) -> TrialRecord:
        """A trial of the search, or of the repeats, which have no values of their own."""
        return TrialRecord(
            trial.number,
            {path: self.space[path].value_of(value) for path, value in trial.params.items() if path in self.space},
            trial.value if trial.state.name == "COMPLETE" else None,
            dict(trial.intermediate_values),
            "failed" if trial.state.name == "FAIL" else trial.state.name.lower(),
            trial.user_attrs.get(_PROBLEM),
        )

    def best(self, n: int) -> list[TrialRecord]:
        """The best finished trials, the best one first, without duplicates of values."""
        different: dict[str, tuple[float, int, TrialRecord]] = {}
        for found in reversed(self.found()):
            if found.score is not None:
                different[repr(found.values)] = -found.score, found.number, found
        return [found for *_, found in sorted(different.values())][:n]

    def importances(self) -> dict[str, float]:
        """The part of each setting in the variance of scores, highest first. Empty: unknown."""
        done = [found for found in self.found() if found.score is not None]
        if len(self.space) < 2 or len({found.score for found in done}) < 2:
            return {}
        return dict(self._optuna.importance.get_param_importances(self._search))

    # ------------------------------------------------------------------ the file

    @contextmanager
    def _opened(self, path: Path) -> Iterator[None]:
        """Turn errors of opening a study into ours. RAISES (ConfigError): It can't be opened."""
        try:
            yield
        except Exception as error:
            cause = error.__cause__ or error
            raise ConfigError(
                f"Can't open the study '{path}': it is not a file of this command "
                f"({str(cause).splitlines()[0]}). Change --study."
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
                    f"Can't continue the study '{self.path}': expected {name} as before, {before.get(name, 'none')}, "
                    f"found {settings.get(name, 'none')}. Scores of different trainings can't be compared. Change it "
                    "back, or start a new study with another --study."
                )


def _url_of(path: Path) -> str:
    """The URL of a file, for Optuna, in a folder that is made.
    RAISES (ValueError): There is none, or it is another database, to which Optuna would add its tables.
    """
    from sqlalchemy.engine import URL, make_url

    file = str(path.absolute())
    url = URL.create("sqlite", database=file).render_as_string()
    if make_url(url).database != file:
        raise ValueError("SQLAlchemy before 2.1 can't open a path with '?'")
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if tables and "studies" not in tables:
        raise ValueError(f"a database with the table '{tables[0]}'")
    return url.replace("{", "{{").replace("}", "}}")  # Optuna fills in the version of its tables


def _is_over(trial: Any) -> bool:
    """Whether a trial is done, or has failed by itself."""
    return trial.state.name in _FINISHED or _PROBLEM in trial.user_attrs


# ---------------------------------------------------------------------- texts of a space


def _parse(where: str, path: str, text: str) -> Dimension:
    # A config has texts in quotes.
    text = text.strip().strip('"')
    if "." not in path or not all(path.split(".")):
        raise ConfigError(
            f"Can't search in '{path}' of {where}: expected the path of a setting with its sections, found '{path}'. "
            "For example training.optimizer.learn_rate."
        )
    if "|" in text:
        texts = tuple(part.strip() for part in text.split("|"))
        if not all(texts) or len(set(texts)) < len(texts):
            raise _refused(where, path, text, "choices that differ")
        if not all(_is_finite(_value(part)) for part in texts):
            raise _refused(where, path, text, "finite numbers")
        return Choice(texts)
    ends, _, scale = text.partition(":")
    try:
        low, high = map(_number, ends.split(".."))
        step = None if scale in ("", "log") else _number(scale)
    except ValueError:
        raise _refused(where, path, text, "a range or choices") from None
    if not low < high:
        raise _refused(where, path, text, "a range from a lower number to a higher one")
    if scale == "log" and low <= 0:
        raise _refused(where, path, text, "numbers above 0, as the scale is logarithmic")
    if step is not None and not (step > 0 and _divides(step, high - low)):
        raise _refused(where, path, text, "a step above 0 that leads from one end to the other")
    return NumberRange(low, high, scale == "log", step)


def _divides(step: float, width: float) -> bool:
    """Whether a width is a whole number of steps, up to rounding."""
    return math.isclose(width / step, round(width / step))


def _refused(where: str, path: str, text: str, expected: str) -> ConfigError:
    return ConfigError(
        f"Can't search in '{path}' of {where}: expected {expected}, found '{text}'. Ranges are 1e-4..1e-2:log, "
        "0.0..0.5 or 1..8; choices are 16|32|64."
    )


def _number(text: str) -> float:
    """Parse a number: an int if it is written as one. RAISES (ValueError): It is no finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    with suppress(ValueError):
        return int(text)
    return value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_finite(value: Any) -> bool:
    """Whether a value has no number that is NaN or infinite."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True
