"""`spacy torchopt try` on a small pipeline: what it says is what trials of the written configs score."""

import json
import re
from statistics import fmean

import pytest
import spacy
from confection import Config
from spacy.tokens import DocBin

from thinc_torchopt.addons.recipes.rewrite import rewrite, with_fast_products
from thinc_torchopt.addons.trials.trial import run_trial, shorten
from thinc_torchopt.notebook import compare_recipes

from ..configs import small_tagger
from ..conftest import CONFIGS
from ..pictures import drawn, series
from ..runs import contents
from ..spacy_cli import flags_of, refusal, spacy_cli, toy_corpus

# In so few steps SGD at this rate learns nothing.
SLOW = '[training.optimizer]\n@optimizers = "SGD.v1"\n# The rate.\nlearn_rate = 0.000001\n'
STOPS = """
import spacy

@spacy.registry.callbacks("test_try.stop.v1")
def stop(trial: int):
    def before_update(nlp, args):
        with open("trials", "a+") as file:
            if args["step"] == 0:
                file.write(".")
            file.seek(0)
            if len(file.read()) == trial and args["step"] == 1:
                raise KeyboardInterrupt
    return before_update
"""

PATHS = {"paths.train": "train.spacy", "paths.dev": "dev.spacy"}
FLAGS = flags_of(PATHS)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    toy_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = small_tagger()
    text = text[: text.index("[training.optimizer]")] + SLOW
    (tmp_path / "slow.cfg").write_text(text)
    growing = '\n[training.batcher.size]\n@schedules = "compounding.v1"\nstart = 120\nstop = 1000\ncompound = 1.001\n'
    text = text.replace("size = 500\n", "").replace("tolerance = 0.2\n", f"tolerance = 0.2\n{growing}")
    (tmp_path / "growing.cfg").write_text(text)
    return tmp_path


def run(*args, check=True):
    return spacy_cli("torchopt", "try", "--seeds", 2, *args, *FLAGS, check=check)


def stop_in(folder, trial):
    """Write stops.cfg, which is interrupted in this trial by the code in stops.py."""
    (folder / "stops.py").write_text(STOPS)
    hook = f'\n[training.before_update]\n@callbacks = "test_try.stop.v1"\ntrial = {trial}\n'
    (folder / "stops.cfg").write_text((folder / "slow.cfg").read_text() + hook)


def test_try_amounts(folder, monkeypatch):
    """The numbers are those of trials, and nothing is written but the picture."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    before, figures = contents(folder), drawn(monkeypatch)
    args = ("--amounts", "--steps", 8, "--training.optimizer.learn_rate", "0.1", "--picture", "кривая.svg")
    done = json.loads(run("slow.cfg", *args, "--json").stdout)
    after = contents(folder)
    assert {path.name for path in after if path not in before} == {"кривая.svg"}
    assert {path: after[path] for path in before} == before
    overrides = {**PATHS, "training.optimizer.learn_rate": 0.1}
    config = spacy.util.load_config(folder / "slow.cfg", overrides=overrides, interpolate=False)
    for part, share in zip(done["parts"], (0.25, 0.5, 0.75, 1.0), strict=True):
        short, _ = shorten(config, part["steps"])
        short["training"]["eval_frequency"] = 1
        trial = run_trial(short, seed=1, share=share)
        assert [*part["scores"]] == ["0", "1"] and part["scores"]["1"] == trial.kept
    points = {part["texts"]: [*part["scores"].values()] for part in done["parts"]}
    (*_, each), (*_, mean), *_ = series(figures[0].axes[0])
    assert each == [(texts, score) for texts, found in points.items() for score in found]
    assert mean == [(texts, pytest.approx(fmean(found))) for texts, found in points.items()]


def test_try_numbers_are_those_of_trials(folder):
    """Of trainings on as many words, as batches of the recipe best are larger. A step has one batch, also if its
    gradients are accumulated over parts of it.
    """
    args = ["--recipes", "best", "--steps", 10, "--json", "--output", "best.cfg", "--training.accumulate_gradient", 2]
    rate = ["--training.optimizer.learn_rate", "0.002"]
    done = json.loads(run("growing.cfg", *args, *rate).stdout)
    text = (folder / "growing.cfg").read_text().replace("learn_rate = 0.000001", "learn_rate = 0.002")
    overrides = {**PATHS, "training.accumulate_gradient": 2}
    _, best = rewrite(text, folder / "growing.cfg", "best", overrides)
    rows = {row["name"]: row for row in done["tried"]}
    assert list(rows) == ["as it is", "tuned Adam", "best"]
    assert rows["as it is"]["steps"] > rows["best"]["steps"] == rows["tuned Adam"]["steps"] == 10
    for name, changed in {"as it is": text, "best": with_fast_products(best)[0]}.items():
        config = spacy.util.load_config_from_str(changed, overrides=overrides, interpolate=False)
        row, (short, _) = rows[name], shorten(config, rows[name]["steps"])
        short["training"]["eval_frequency"] = rows[name]["steps"] // 10
        trial = run_trial(short, seed=1)
        assert list(row["scores"]) == ["0", "1"] and row["scores"]["1"] == trial.kept
        assert row["last_scores"]["1"] == trial.last
        assert row["evaluations"]["1"] == [list(step) for step in trial.evaluations] and len(trial.evaluations) == 11
    words = [row["words"]["0"] for row in rows.values()]
    assert max(words) < 1.4 * min(words)  # as many, up to the last batches, and to ten steps
    [told] = [note for note in done["notes"] if note.startswith("As batches differ")]
    assert int(re.search(r"about ([\d,]+):", told)[1].replace(",", "")) == pytest.approx(min(words), rel=0.2)
    whole = Config().from_str(best)["training"]["max_steps"]
    favoured = [note for note in done["notes"] if note.startswith("In short trials")]
    assert rows["as it is"]["steps"] > 20 and f"by the recipe is --steps {whole}." in favoured[0]
    assert done["winner"] in rows and done["is_decided"]
    assert [note for note in done["notes"] if "--training.accumulate_gradient: used here, but not written" in note]


def test_try_tuned_adam_is_spacys_own(folder):
    """It trains without us, in the batches and up to the end of the recipe best."""
    found = compare_recipes(folder / "growing.cfg", PATHS, steps=2, seeds=1)
    # The recipe is the file that `init` writes, with nothing of the trials in it.
    spacy_cli("torchopt", "init", "growing.cfg", "init.cfg", "--recipe", "best", *FLAGS)
    assert found.tried["best"].text == (folder / "init.cfg").read_text()
    config = Config().from_str(found.tried["tuned Adam"].text)
    best = Config().from_str(found.tried["best"].text)
    assert "thinc-torchopt" not in found.tried["tuned Adam"].text
    optimizer, rate = config["training"]["optimizer"], config["training"]["optimizer"]["learn_rate"]
    assert optimizer["@optimizers"] == "Adam.v1" and rate["@schedules"] == "warmup_linear.v1"
    assert rate["total_steps"] == best["training"]["max_steps"]
    assert rate["warmup_steps"] == round(
        rate["total_steps"] * best["training"]["optimizer"]["learn_rate"]["warmup_ratio"]
    )
    for found.winner, told in (("tuned Adam", "spaCy's Adam, tuned,"), ("best", "the recipe 'best'")):
        found.to_disk(folder / "winner.cfg")
        assert (folder / "winner.cfg").read_text() == found.tried[found.winner].text
        assert found.winner_told == f"the config with {told}"
    for settings in (config, best):
        del settings["training"]["optimizer"]
    assert config == best
    assert [note for note in found.notes if note.startswith("tuned Adam: spaCy's own Adam with a rate of up to")]


def test_try_a_config_that_is_the_best_already(folder):
    spacy_cli("torchopt", "init", "slow.cfg", "best.cfg", "--recipe", "best", *FLAGS)
    shown = run("best.cfg", "--steps", 2, "--seeds", 1).stdout
    assert "Not tried: best. It changes nothing in this config." in shown and "tuned Adam" in shown


def test_try_a_stream(folder):
    """The recipe best needs the end of the corpus, and spaCy's Adam that of the recipe."""
    args = ["--training.max_epochs", -1, "--training.max_steps", 100, "--steps", 2, "--seeds", 1]
    shown = run("slow.cfg", "--recipes", "best,fine-tune", *args).stdout
    assert "Note: Not tried: best. Can't find the end of the training" in shown
    assert "Note: Not tried: tuned Adam." in shown
    assert shown.count("Can't find the end of the training") == 1
    assert "Note: Scores are on 9 texts of the development data. With so few, even a difference" in shown
    assert re.search(r"^as it is .*\nfine-tune ", shown, re.MULTILINE)
    done = run("slow.cfg", "--recipes", "robust", *args)
    shown = done.stdout
    assert "which can't be used. Can't find the end of the training" in shown and "Not tried: best" not in shown
    assert "One seed can't tell" in shown and "2 trials, about" in done.stderr


def test_try_tells_of_recipes_that_fail(folder):
    """fine-tune can't be used where there are groups; robust at such a rate diverges."""
    rate = ["--training.optimizer.learn_rate", "1e30", "--training.optimizer.grad_clip", "0"]
    done = run("slow.cfg", "--recipes", "robust", "--steps", 4, "--seeds", 1, *rate)
    assert "can't be compared: the loss, the gradients or the score were not finite at step" in done.stdout
    args = ("--recipes", "fine-tune,drop-in", "--steps", 2)
    said = refusal("torchopt", "try", CONFIGS / "param_groups.cfg", *args, *FLAGS)
    assert "Can't compare recipes: none of them can be used. " in said
    assert "Can't use the recipe fine-tune" in said and "Can't use the recipe drop-in" in said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--recipes", " , "], "Can't use '--recipes' in spacy torchopt try: expected names of recipes"),
        (["--steps", 0], "Can't use '--steps' in spacy torchopt try: expected a whole number of at least 1, found 0."),
        (["--seeds", 0], "Can't use '--seeds' in spacy torchopt try"),
        (["--output", "."], "expected a file, found a folder"),
        (["--amounts", "--recipes", "best"], "Can't use '--recipes' with --amounts. Recipes are for an --output"),
        (["--amounts", "--output", "best.cfg"], "Can't use '--output' with --amounts"),
        (["--picture", "curve.png"], "Can't use '--picture' without --amounts"),
        (["--amounts", "--picture", "slow.cfg"], "expected a name that ends in one of"),
        (["--amounts", "--steps", 3], "expected a whole number of at least 4 with --amounts, found 3."),
        (["--amounts", "--seeds", 0], "Can't use '--seeds' in spacy torchopt try"),
        (["--amounts", "--training.max_epochs", -1], "expected texts that are read into memory, found"),
        (["--amounts", "--corpora.dev.path", "empty.spacy"], "draw a learning curve: expected texts in [corpora.dev]"),
        (["--output", "train.spacy"], "found that of texts"),
        (["--training.optimizer.nonsense.rate", 1], "nonsense"),
        (["--corpora.dev.path", "empty.spacy"], "Can't compare recipes: expected texts in [corpora.dev], found none"),
        (["--training.dropuot", 0.2], "no setting 'dropuot', and spaCy would ignore it. Did you mean 'dropout'?"),
        (["--nlp.pipeline", '["tagger", "tok2vec"]'], "Can't train 'tagger': it listens to 'tok2vec', which"),
    ],
)
def test_try_refuses_early(folder, args, message):
    DocBin().to_disk(folder / "empty.spacy")
    assert message in refusal("torchopt", "try", "slow.cfg", "--seeds", 2, *args, *FLAGS)


@pytest.mark.parametrize(
    ("trial", "parts", "told"),
    [
        (1, [], None),
        (2, ["100%"], "Nothing can be said: it takes"),
        (6, ["25%", "50%", "75%", "100%"], "One seed can't tell"),
    ],
)
def test_try_amounts_that_is_interrupted_shows_what_there_is(folder, trial, parts, told):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    stop_in(folder, trial)
    rate = ["--training.optimizer.learn_rate", "0.5"]
    args = ("--amounts", "--steps", 8, "--code", "stops.py", "--picture", "curve.png", *rate)
    done = run("stops.cfg", *args, check=False)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if re.match(r" *\d+%  ", line)] == parts
    assert (folder / "curve.png").exists() == ("Saved the picture to curve.png\n" in done.stdout) == bool(parts)
    assert told is None or told in done.stdout
