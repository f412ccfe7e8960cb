"""A search in a file: what is drawn, pruned, and done again. The training is a function here; with
pipelines: tests/cli/test_tune.py.
"""

import math
import os
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

from thinc_torchopt.addons.trials.study import AS_IT_IS, Study, parse_space
from thinc_torchopt.addons.trials.trial import TrialResult
from thinc_torchopt.core.errors import ConfigError

optuna = pytest.importorskip("optuna", reason="optuna is not installed")

SPACE = parse_space([("", "a.rate", "1e-4..1e-2:log"), ("", "a.kind", "x|7|[1, 2]")])
[SIZES] = parse_space([("", "a.size", "1..8")]).values()
BEST = 1e-3


def score_of(values):
    """Highest at a rate of 1e-3."""
    return 1.0 - abs(math.log10(values.get("a.rate", 1e-4) / BEST)) / 4


def train(values, seed, report):
    trial = TrialResult()
    for step in (0, 5, 10):
        score = score_of(values) * (1 + step) / 11 + seed / 1000
        trial.evaluations.append((step, score))
        report(step, score)
    trial.kept = score
    return trial


def open_study(path, settings={}, space=SPACE, warmup_steps=None):
    return Study(path, settings, space, seed=0, warmup_steps=warmup_steps)


def test_study_searches_in_its_space_and_finds_the_best(tmp_path):
    optuna.logging.set_verbosity(optuna.logging.INFO)
    opened = open_study(tmp_path / "new" / "folder" / "study.db")
    assert optuna.logging.get_verbosity() == optuna.logging.ERROR
    calls = []

    def told(found):
        calls.append(found)
        assert len(calls) <= 25

    opened.search(25, train, told)
    found = opened.found()
    assert found == calls and opened.count_done() == len(found) == 25 and {one.state for one in found} == {"complete"}
    for one in found:
        assert 1e-4 <= one.values["a.rate"] <= 1e-2 and one.values["a.kind"] in ("x", 7, [1, 2])
        assert one.score == pytest.approx(score_of(one.values)) == one.scores[10]
    best = opened.best(5)
    assert [one.score for one in best] == sorted((one.score for one in found), reverse=True)[:5]
    assert best[0].score > 0.95
    importances = opened.importances()
    assert next(iter(importances)) == "a.rate" and sum(importances.values()) == pytest.approx(1.0)


def test_study_draws_each_whole_number_of_a_range():
    assert [SIZES.suggest(optuna.trial.FixedTrial({"a": n}), "a") for n in range(1, 9)] == list(range(1, 9))


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_study_goes_on_and_draws_as_optuna_does(seed, tmp_path):
    for trials in (1, 1, 3):
        opened = Study(tmp_path / "study.db", {}, SPACE, seed=seed, warmup_steps=None)
        opened.search(trials, train)
        assert len(opened.found()) == trials
    for number, one in enumerate(opened.found()):
        sampler = optuna.samplers.TPESampler(seed=(seed + number) % 2**32)
        trial = optuna.create_study(sampler=sampler).ask()
        assert one.values == {path: dimension.suggest(trial, path) for path, dimension in SPACE.items()}


def test_study_tells_what_matters_once_scores_differ(tmp_path):
    def by_size(values, seed, report):
        return TrialResult(evaluations=[(0, values["a.size"])])

    for others, expected in ({"a.rate": SPACE["a.rate"]}, {"a.size", "a.rate"}), ({}, set()):
        opened = open_study(tmp_path / f"{len(others)}.db", space={"a.size": SIZES, **others})
        for trials, found in (1, set()), (2, expected):
            opened.search(trials, by_size)
            assert set(opened.importances()) == found


@pytest.mark.parametrize("name", ["a?b", "100%", "a%41", "{x}", "a#b", "a b", ":memory:"])
def test_study_is_in_the_file_of_its_name(name, tmp_path, monkeypatch):
    """Optuna gets a URL, where these have a meaning. A study is found again, also by another path."""
    monkeypatch.chdir(tmp_path)
    if "?" in name and version("sqlalchemy").startswith("2.0."):  # the last one for Python 3.10
        with pytest.raises(ConfigError, match=r"SQLAlchemy before 2\.1 can't open a path with '\?'"):
            open_study(Path(name))
        assert not os.listdir(tmp_path)
        return
    for path, trials in (Path(name), 1), (tmp_path / name, 2):
        opened = open_study(path)
        opened.search(trials, train)
        assert len(opened.found()) == trials
    assert os.listdir(tmp_path) == [name]


def test_study_prunes_what_is_worse_after_its_warm_up(tmp_path):
    """As Optuna's median pruner: below the median of those that came to their end, once there are four of them."""
    scores = iter([4, 3, 2, 1, 2, 3, 0])

    def next_one(values, seed, report):
        score = next(scores)
        for step in (0, 5, 10):
            report(step, score)
        return TrialResult(evaluations=[(10, score)])

    opened = open_study(tmp_path / "study.db", warmup_steps=5)
    opened.search(7, next_one)
    found = opened.found()
    assert [one.state for one in found] == ["complete"] * 4 + ["pruned", "complete", "pruned"]
    assert all(one.score is None and max(one.scores) == 5 for one in found if one.state == "pruned")
    assert [one.number for one in open_study(tmp_path / "study.db").best(7)] == [0, 1, 5, 2, 3]


def test_study_begins_with_the_values_of_the_config(tmp_path):
    opened = open_study(tmp_path / "study.db")
    opened.begin_with({"a.rate": 2e-3, "a.kind": 7})
    opened.begin_with({"a.rate": 3e-3, "a.kind": 7, "b.c": 1})
    opened.search(1, train)
    assert [one.values for one in opened.found()] == [{"a.rate": 2e-3, "a.kind": 7}]
    other = open_study(tmp_path / "other.db")
    other.begin_with({"a.rate": 1.0, "a.kind": 7})
    other.begin_with({"a.rate": None, "a.kind": 7})
    other.search(1, train)
    assert other.found()[0].values["a.rate"] < 1e-2


def test_study_repeats_with_other_seeds_once(tmp_path):
    opened = open_study(tmp_path / "study.db")
    opened.search(6, train)
    seeds = []

    def counted(values, seed, report):
        seeds.append((values.get("a.rate"), seed))
        return train(values, seed, report)

    numbers = [AS_IT_IS, *(one.number for one in opened.best(2))]
    told = []
    opened.repeat(
        numbers,
        [1, 2],
        counted,
        lambda number, seed, found: told.append(opened.repeated([number], [seed]) == {number: {seed: found.score}}),
    )
    scores = opened.repeated(numbers, [1, 2])
    assert told == [True] * 6
    assert opened.count_repeated(numbers, [1, 2]) == 6
    assert len(seeds) == 6 and {seed for _, seed in seeds} == {1, 2}
    values = {one.number: one.values for one in opened.found()} | {AS_IT_IS: {}}
    for number in numbers:
        assert scores[number] == {seed: pytest.approx(score_of(values[number]) + seed / 1000) for seed in (1, 2)}
    again = open_study(tmp_path / "study.db")
    again.repeat(numbers, [1, 2], counted)
    assert again.repeated(numbers, [1, 2]) == scores and len(seeds) == 6
    again.repeat(numbers, [1, 2, 3], counted)
    assert set(again.repeated(numbers, [1, 2, 3])[AS_IT_IS]) == {1, 2, 3} and len(seeds) == 9


def test_study_that_is_interrupted_does_the_trial_again(tmp_path):
    opened = open_study(tmp_path / "study.db")
    count = []

    def interrupted(values, seed, report):
        count.append(values)
        if len(count) == 3:
            raise KeyboardInterrupt
        return train(values, seed, report)

    with pytest.raises(KeyboardInterrupt):
        opened.search(5, interrupted)
    assert [one.state for one in opened.found()] == ["complete", "complete", "failed", "waiting"]
    opened.search(5, interrupted)
    assert count[3] == count[2]
    assert [one.state for one in opened.found()].count("complete") == 5


def test_study_of_trials_that_fail(tmp_path):
    """One that diverges counts as 0, one that raises not at all; if all raise, the search ends."""

    def some_fail(values, seed, report):
        if values["a.kind"] == "x":
            raise MemoryError("too large")
        return TrialResult(problem="not finite") if values["a.kind"] == 7 else train(values, seed, report)

    opened = open_study(tmp_path / "some.db")
    opened.search(8, some_fail)
    states = [(one.state, one.problem, one.score == 0.0) for one in opened.found()]
    assert len(states) == 8
    assert {*states} == {("failed", "too large", False), ("complete", "not finite", True), ("complete", None, False)}
    opened = open_study(tmp_path / "all.db")
    with pytest.raises(ConfigError, match=r"all 3 trials failed. The last one: wrong size"):
        opened.search(12, lambda *args: (_ for _ in ()).throw(ValueError("wrong size")))
    assert len(opened.found()) == 3


def test_study_is_one_of_the_same_training(tmp_path):
    path = tmp_path / "study.db"
    open_study(path, {"training.max_steps": "200", "--set a.b": "1..8"})
    open_study(path, {"training.max_steps": "200", "--set a.b": "1..8"})
    for settings, message in (
        ({"training.max_steps": "100", "--set a.b": "1..8"}, "training.max_steps as before, 200, found 100"),
        ({"training.max_steps": "200"}, "--set a.b as before, 1..8, found none"),
        ({"training.max_steps": "200", "--set a.b": "1..8", "x.y": "1"}, "x.y as before, none, found 1"),
    ):
        with pytest.raises(ConfigError, match="Can't continue the study") as error:
            open_study(path, settings)
        assert message in str(error.value)
    (tmp_path / "text.db").write_text("no database, but a text\n" * 100)
    with pytest.raises(ConfigError, match=r"Can't open the study .*text.db': it is not a file of this command"):
        open_study(tmp_path / "text.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE customers (name TEXT)")
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(ConfigError, match=r"not a file of this command .*a database with the table 'customers'"):
        open_study(tmp_path / "other.db")
    assert (tmp_path / "other.db").read_bytes() == before


def test_study_leaves_a_trial_that_was_killed(tmp_path):
    opened = open_study(tmp_path / "study.db")
    opened._search.ask()  # begun, and never ended: as if its process had been killed
    opened.search(1, train)
    assert [one.state for one in opened.found()] == ["running", "complete"]


def test_study_repeats_one_that_fails_once(tmp_path):
    opened, calls = open_study(tmp_path / "study.db"), []
    opened.search(1, train)

    def fails(values, seed, report):
        calls.append(seed)
        raise MemoryError("too large")

    told, seeds = [], [2**32]
    for _ in range(2):
        # -1: AS_IT_IS in the file of each study.
        opened.repeat([-1, 0], seeds, fails, lambda number, seed, found: told.append((found.state, found.problem)))
    assert calls == seeds * 2 and told == [("failed", "too large")] * 2
    assert opened.repeated([AS_IT_IS, 0], seeds) == {AS_IT_IS: {}, 0: {}}
