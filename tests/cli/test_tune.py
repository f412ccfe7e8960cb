"""`spacy torchopt tune` on a small pipeline: what it says is what trials of the written configs score. How a study is
continued, shared and killed: tests/addons/trials/test_study.py.
"""

import json
import re
from statistics import fmean

import pytest
import spacy

from thinc_torchopt.addons.recipes import open_source
from thinc_torchopt.addons.trials.trial import run_trial, shorten
from thinc_torchopt.cli.tune import _default_space, _short_names
from thinc_torchopt.core.compat import has_matplotlib, has_optuna

from ..configs import small_tagger, smaller
from ..conftest import CONFIGS
from ..pictures import curves, drawn, widths
from ..spacy_cli import refusal, spacy_cli, toy_corpus

pytestmark = pytest.mark.skipif(not has_optuna, reason="optuna is not installed")

CNN = CONFIGS / "cnn.cfg"
RATE = "training.optimizer.learn_rate.initial_rate"
SEARCH = f"""
# What to try.
[search]
{RATE} = 1e-4..1e-2:log
training.dropout = "0.1|0.3"

"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    toy_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.cfg").write_text(small_tagger().replace("[training]\n", "[training]\ndropout = 0.1\n"))
    head, sign, rest = (tmp_path / "plain.cfg").read_text().partition("[training.batcher]")
    (tmp_path / "search.cfg").write_text(head.rstrip("\n") + "\n" + SEARCH + sign + rest)
    return tmp_path


PATHS = ("--paths.train", "train.spacy", "--paths.dev", "dev.spacy")


def run(*args):
    return spacy_cli("torchopt", "tune", *args, *PATHS)


def refused(*args):
    return refusal("torchopt", "tune", *args, *PATHS)


def test_tune_searches_what_the_config_says_and_goes_on(folder, monkeypatch):
    picture, figures = (["--picture", "tune.png"], drawn(monkeypatch)) if has_matplotlib else ([], [])
    args = ["search.cfg", "--steps", 4, "--study", "study.db", "--set", "training.dropout=0.1|0.2", "--json"]
    args += ["--training.batcher.size", 60]
    begun = run(*args, "--trials", 2, "--seeds", 0)
    first = json.loads(begun.stdout)
    # In a pipe, a line for each trial, and no bar.
    assert re.findall(r"^trial (\d): (\S+)$", begun.stderr, re.MULTILINE) == [
        (str(n), f"{trial['score']:.4f}") for n, trial in enumerate(first["trials"])
    ]
    assert not re.search("[\r\x1b]", begun.stderr)
    assert [trial["number"] for trial in first["trials"]] == [0, 1] and not first["other_seeds"]
    assert first["trials"][0]["values"] == {RATE: 0.002, "training.dropout": 0.1}  # the config's own

    done = run(*args, "--trials", 3, "--seeds", 2, "--output", "best.cfg", *picture)
    found = json.loads(done.stdout)
    assert "trial 2: " in done.stderr and "as it is, seed 1: " in done.stderr
    assert found["trials"][:2] == first["trials"] and len(found["trials"]) == 3
    assert set(found["other_seeds"]) == {"as it is", *map(str, found["best"])}

    complete = [trial for trial in found["trials"] if trial["state"] == "complete"]
    for history, bars, *slices, _ in (figure.axes for figure in figures):
        assert curves(history)["to the end"] == [(trial["number"], trial["score"]) for trial in complete]
        assert {y for _, y in curves(history)["the config as it is, other seeds"]} == {
            fmean(found["other_seeds"]["as it is"])
        }
        assert [right for _, right in widths(bars)] == pytest.approx([*found["importances"].values()])
        for axes in slices:
            chosen = [trial["values"][axes.get_xlabel()] for trial in complete]
            assert curves(axes)["to the end"] == [*zip(chosen, (trial["score"] for trial in complete))]
            assert axes.get_xscale() == ("log" if axes.get_xlabel() == RATE else "linear")

    # What was found is written, and nothing else; so [search] is gone.
    plain, best = ((folder / name).read_text().splitlines() for name in ("plain.cfg", "best.cfg"))
    changed = [line for line in best if line not in plain]
    expected = {
        "initial_rate": found["values"].get(RATE, 0.002),
        "dropout": found["values"].get("training.dropout", 0.1),
    }
    assert all(line in [f"{key} = {json.dumps(value)}" for key, value in expected.items()] for line in changed)
    assert "search" not in "\n".join(best) and len([*filter(None, best)]) == len([*filter(None, plain)])
    overrides = {"paths.train": "train.spacy", "paths.dev": "dev.spacy", "training.batcher.size": 60}
    config, _ = shorten(spacy.util.load_config("best.cfg", overrides=overrides, interpolate=False), 4)
    row = next(trial for trial in found["trials"] if trial["number"] == max(found["winner"], 0))
    if row["state"] == "complete" and found["winner"] >= 0:
        trial = run_trial(config, seed=0)
        assert row["score"] == trial.chosen and row["evaluations"] == [list(step) for step in trial.evaluations]
    name = "as it is" if found["winner"] < 0 else str(found["winner"])
    assert found["other_seeds"][name] == [run_trial(config, seed=seed).kept for seed in (1, 2)]

    # Another config is another study.
    said = refused(*args, "--trials", 3, "--training.batcher.tolerance", 0.1)
    assert "training.batcher.tolerance as before, 0.2, found 0.1" in said


def test_tune_shows_trials_that_fail(folder):
    width = "components.tagger.model.tok2vec.width=16|17"  # the tok2vec has 16
    done = run("plain.cfg", "--set", width, "--steps", 1, "--trials", 3, "--seeds", 0)
    assert "failed" in done.stdout and "to the end" in done.stdout
    assert "Trial 0 has the best score, 0." in done.stdout
    assert (folder / "tune.db").is_file()


def test_tune_verdict_is_of_what_is_saved(folder):
    """With one other seed: by its score, and not by that of the search."""
    args = ["search.cfg", "--steps", 4, "--study", "s.db", "--set", "training.dropout=0.1|0.2", "--trials", 2]
    done = run(*args, "--seeds", 1, "--output", "best.cfg")
    [name] = re.findall(r"^Saved the config (?:of )?(as it is|trial \d) to best.cfg$", done.stdout, re.MULTILINE)
    found = json.loads(run(*args, "--seeds", 1, "--json").stdout)
    scores = {name: score for name, [score] in found["other_seeds"].items()}
    assert scores[name.removeprefix("trial ")] == max(scores.values())
    named = name[:1].upper() + name[1:]
    assert f"{named} has the best score, {max(scores.values()):.4f}. One seed" in done.stdout


def test_tune_default_space(folder):
    def space(text):
        (folder / "config.cfg").write_text(text)
        return _default_space(open_source(folder / "config.cfg"))

    decay, dropout = {"training.optimizer.algorithm.weight_decay": "1e-4..0.3:log"}, {"training.dropout": "0.0..0.4"}
    assert space(CNN.read_text()) == {RATE: "0.0002..0.02:log", **decay, **dropout}
    text = smaller(CNN.read_text())
    adam = text[: text.index("[training.optimizer]")] + '[training.optimizer]\n@optimizers = "Adam.v1"\n'
    rate, L2 = {"training.optimizer.learn_rate": "0.0001..0.01:log"}, {"training.optimizer.L2": "1e-4..0.3:log"}
    assert space(adam) == {**rate, **L2, **dropout}
    # spaCy fills in an optimizer, but refuses overrides of what is not there.
    assert space(text[: text.index("[training.optimizer]")]) == dropout


def test_tune_fails_if_no_trial_comes_to_its_end(folder):
    width = "components.tagger.model.tok2vec.width=97|98"  # the tok2vec has 16
    args = ["plain.cfg", "--set", width, "--steps", 1, "--trials", 2, "--seeds", 0, "--output", "best.cfg"]
    said = refused(*args)
    assert "No trial has finished." in said
    assert "Nothing is saved to best.cfg" in said and not (folder / "best.cfg").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "training.dropout"], "expected a setting and its values, as in training.dropout=0.0..0.4"),
        (["--set", "training.dropout=0.1"], "Can't search in 'training.dropout' of --set: expected a range or choices"),
        (["--set", "training.nonsense.rate=0.1..0.2"], "no section [training.nonsense]"),
        (["--set", "training.dropout=a|b"], "dropout"),
        (["--set", "training.optimizer.grad_clip=0.1|x"], "grad_clip"),
        (
            ["--set", "training.optimizer.learn_rate=1e-4..1e-2"],
            "found 'the section [training.optimizer.learn_rate]'. Search one of its settings:",
        ),
        (["--set", "training.dropuot=0.1..0.5"], "no setting 'dropuot', and spaCy would ignore it"),
        (["--set", "nlp.batchsize=9..10"], "Can't read [nlp]: there is no setting 'batchsize'"),
        (["--training.dropuot", "0.2"], "Did you mean 'dropout'?"),
        (["--training.dropout", "0.2"], "Can't use '[search]' in spacy torchopt tune: expected settings that have no"),
        (["--set", "training.max_steps=10..20"], "Can't use '--set' in spacy torchopt tune: expected settings that"),
        (["--set", "training.dropout=0.0..1.5"], "'dropout' in [training]: expected a number from 0 to 1, found 1.5"),
        (["--recipe", "nonsense"], "Can't use the recipe 'nonsense'"),
        (["--output", "."], "expected a file, found a folder"),
        (["--output", "train.spacy"], "found that of texts"),
        (["--trials", 0], "Can't use '--trials' in spacy torchopt tune"),
        (["--seeds", -1], "Can't use '--seeds' in spacy torchopt tune"),
        (["--study", "train.spacy"], "Can't open the study 'train.spacy': it is not a file"),
    ],
)
def test_tune_refuses_early(folder, args, message):
    assert message in refused("search.cfg", *args)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("training.seed", "expected settings that change what a trial learns, found 'training.seed'"),
        ("training.optimizer", "expected settings with one value, found 'the section [training.optimizer]'"),
    ],
)
def test_tune_names_the_section_with_the_entry(path, message, folder):
    """Not --set, which was not given."""
    text = (folder / "search.cfg").read_text()
    (folder / "search.cfg").write_text(text.replace("training.dropout = ", f"{path} = "))
    said = refused("search.cfg")
    assert f"Can't use '[search]' in spacy torchopt tune: {message}" in said and "--set" not in said


def test_tune_names_are_as_short_as_can_be():
    assert _short_names(["a.b.c", "x.b.c", "x.d"]) == ["a.b.c", "x.b.c", "d"]
