"""`spacy torchopt try` on a small pipeline: what it says is what trials of the written configs score."""

import json
import re
from statistics import fmean

import pytest
import spacy

from thinc_torchopt.addons.preview.comparison import _verdict
from thinc_torchopt.addons.recipes.rewrite import rewrite
from thinc_torchopt.addons.trials.comparison import compare
from thinc_torchopt.addons.trials.trial import run_trial, shorten

from ..conftest import CONFIGS
from ..runs import contents
from ..spacy_cli import spacy_cli, toy_corpus

CNN = CONFIGS / "cnn.cfg"
# In so few steps SGD at this rate learns nothing.
SLOW = '[training.optimizer]\n@optimizers = "SGD.v1"\n# The rate.\nlearn_rate = 0.001\n'
STOPS = """
import spacy

@spacy.registry.callbacks("test_try.stop.v1")
def stop():
    def before_update(nlp, args):
        if nlp.config["training"]["seed"] == 1 and args["step"] == 1:
            raise KeyboardInterrupt
    return before_update
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    toy_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = CNN.read_text()
    (tmp_path / "slow.cfg").write_text(text[: text.index("[training.optimizer]")] + SLOW)
    return tmp_path


def run(*args, check=True):
    return spacy_cli("torchopt", "try", *args, "--paths.train", "train.spacy", "--paths.dev", "dev.spacy", check=check)


def test_try_finds_a_better_recipe_and_writes_it(folder):
    before = contents(folder)
    output = ["--recipes", "drop-in,adamw", "--steps", 12, "--output", "best.cfg"]
    done = run("slow.cfg", *output, "--training.batcher.size", 60)
    shown = done.stdout
    assert re.search(r"left\] adamw, seed 2 of 2: 0\.\d{4}$", done.stderr, re.MULTILINE)  # a line for each trial
    assert "adamw is better than the config as it is:" in shown and "With 2 seeds" in shown
    assert "Saved the config with the recipe 'adamw' to best.cfg" in shown
    after = contents(folder)
    assert {path.name for path in after if path not in before} == {"best.cfg"}
    assert {path: after[path] for path in before} == before

    # The same file as `init` writes, with nothing of the trials in it.
    spacy_cli("torchopt", "init", "slow.cfg", "init.cfg", "--recipe", "adamw")
    assert (folder / "best.cfg").read_text() == (folder / "init.cfg").read_text()


def test_try_numbers_are_those_of_trials(folder):
    args = ["--recipes", "adamw", "--steps", 6, "--seeds", 2, "--json", "--training.optimizer.learn_rate", "0.002"]
    found = json.loads(run("slow.cfg", *args).stdout)
    text = (folder / "slow.cfg").read_text().replace("learn_rate = 0.001", "learn_rate = 0.002")
    _, recipe = rewrite(text, folder / "slow.cfg", "adamw", "state")
    overrides = {"paths.train": "train.spacy", "paths.dev": "dev.spacy"}
    for row, changed in zip(found["tried"], (text, recipe), strict=True):
        config, _ = shorten(spacy.util.load_config_from_str(changed, overrides=overrides, interpolate=False), 6)
        trials = [run_trial(config, seed=seed) for seed in (0, 1)]
        assert row["scores"] == {str(seed): trial.score for seed, trial in enumerate(trials)}
        assert row["evaluations"]["1"] == [list(step) for step in trials[1].evaluations]
        assert row["mean"] == pytest.approx(fmean(trial.score for trial in trials))
    assert [row["name"] for row in found["tried"]] == ["as it is", "adamw"]
    assert found["winner"] in found["verdict"]


def test_try_keeps_what_there_is_unless_something_is_better(folder):
    """At a rate of 0, all are alike. Its warnings are those of `init`."""
    args = ["--recipes", "adamw,robust", "--steps", 2, "--output", "best.cfg", "--training.optimizer.learn_rate", "0.0"]
    shown = run("slow.cfg", *args).stdout
    assert "Nothing can be said" in shown and "Saved the config as it is to best.cfg" in shown
    assert "Note: adamw: learn_rate was chosen for SGD" in shown
    assert "Note: robust: Left out in the trials, as it writes or reaches out: checkpoint, rollback_after" in shown
    expected = (folder / "slow.cfg").read_text().replace("learn_rate = 0.001", "learn_rate = 0.0")
    assert (folder / "best.cfg").read_text() == expected


def test_try_that_is_interrupted_shows_what_there_is(folder):
    (folder / "stops.py").write_text(STOPS)
    text = (folder / "slow.cfg").read_text()
    hook = '\n[training.before_update]\n@callbacks = "test_try.stop.v1"\n'
    (folder / "stops.cfg").write_text(text + hook)
    done = run("stops.cfg", "--recipes", "adamw", "--steps", 3, "--code", "stops.py", check=False)
    assert done.returncode == 130
    assert "Stopped before the end" in done.stdout and "One seed can't tell" in done.stdout


def test_try_tells_of_recipes_that_fail(folder):
    """fine-tune can't be used where there are groups; adamw at such a rate diverges."""
    rate = ["--training.optimizer.learn_rate", "1e30", "--training.optimizer.grad_clip", "0"]
    done = run("slow.cfg", "--recipes", "adamw", "--steps", 30, "--seeds", 1, *rate)
    assert "can't be compared: the loss, the gradients or the score were not finite at step" in done.stdout
    groups = run(CONFIGS / "param_groups.cfg", "--recipes", "fine-tune,drop-in", "--steps", 2, check=False)
    assert groups.returncode == 1 and not groups.stdout
    assert "Can't compare recipes: none of them can be used. " in groups.stderr
    assert "Can't use the recipe fine-tune" in groups.stderr and "Can't use the recipe drop-in" in groups.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--recipes", "nonsense"], "Can't use the recipe 'nonsense'"),
        (["--recipes", " , "], "Can't use '--recipes' in spacy torchopt try: expected names of recipes"),
        (["--steps", 0], "Can't use '--steps' in spacy torchopt try: expected a whole number of at least 1, found 0."),
        (["--seeds", 0], "Can't use '--seeds' in spacy torchopt try"),
        (["--output", "."], "expected a file, found a folder"),
        (["--training.optimizer.nonsense.rate", 1], "nonsense"),
    ],
)
def test_try_refuses_early(folder, args, message):
    done = run("slow.cfg", *args, check=False)
    assert done.returncode == 1 and message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_try_verdicts():
    def verdict(**scores):
        return _verdict(
            compare({n: dict(enumerate(f)) for n, f in {"as it is": scores.pop("own"), **scores}.items()}, "as it is")
        )

    ahead = verdict(own=[0.80, 0.82], adamw=[0.81, 0.83])
    assert ahead.startswith("No recipe is better by more than chance: adamw is ahead by 0.0100, and with 2 seeds up to")
    assert "If that is the true difference, --seeds" in ahead
    assert verdict(own=[0.9, 0.91], adamw=[0.8, 0.81]).startswith("No recipe is better than the config as it is. With")
    assert verdict(own=[0.8], adamw=[0.9]).startswith("adamw has the best score, by 0.1000. One seed can't tell")
    assert verdict(own=[0.0, 0.0], adamw=[0.0, 0.0]).startswith("Nothing can be said: all scores are 0.")
    better = verdict(own=[0.80, 0.81], adamw=[0.90, 0.91])
    assert better.startswith("adamw is better than the config as it is: 0.9050 against 0.8050. With 2 seeds, up to")
