"""`spacy torchopt try` on a small pipeline: what it says is what trials of the written configs score."""

import json
import re
from statistics import fmean, stdev
from unittest.mock import Mock

import numpy
import pytest
import spacy
from confection import Config
from spacy.tokens import DocBin

from thinc_torchopt.addons.preview import draw_learning_curve
from thinc_torchopt.addons.recipes.rewrite import rewrite, with_fast_products
from thinc_torchopt.addons.trials.trial import TrialResult, run_trial, shorten
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.tables import as_text
from thinc_torchopt.notebook import compare_recipes

from ..addons.trials.test_comparison import differences
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


def test_try_writes_one_file(folder):
    before = contents(folder)
    done = run("slow.cfg", "--recipes", "drop-in", "--steps", 2, "--output", "better.cfg")
    shown = done.stdout
    is_better = "tuned Adam is better than the config as it is:" in shown
    saved = "the config with spaCy's Adam, tuned," if is_better else "the config as it is"
    assert f"Saved {saved} to better.cfg" in shown
    after = contents(folder)
    assert {path.name for path in after if path not in before} == {"better.cfg"}
    assert {path: after[path] for path in before} == before


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


def test_try_keeps_what_there_is_unless_something_is_better(folder):
    """One seed can't tell. Its warnings are those of `init`."""
    args = ["--recipes", "fine-tune,robust", "--steps", 2, "--seeds", 1, "--output", "best.cfg"]
    shown = run("slow.cfg", *args, "--training.optimizer.learn_rate", "0.0").stdout
    assert "Saved the config as it is to best.cfg" in shown
    assert "Note: fine-tune: learn_rate was chosen for SGD" in shown
    assert (
        "Note: robust: Left out in the trials, which save nothing and follow no rules: checkpoint, rollback_after"
        in shown
    )
    expected = (folder / "slow.cfg").read_text().replace("learn_rate = 0.000001", "learn_rate = 0.0")
    assert (folder / "best.cfg").read_text() == expected


@pytest.mark.parametrize(
    ("trial", "told"),
    [
        (1, None),
        (3, r"not yet tuned after 2 of 4 trials, .*: \d\.\d{4} with a rate of up to 0.001, averages; \d\.\d{4} with"),
        (5, "spaCy's own Adam with a rate of up to .*, the best of 4 trials"),
        (8, "One seed can't tell"),
    ],
)
def test_try_that_is_interrupted_shows_what_there_is(folder, trial, told):
    """In the first trial, while spaCy's Adam is tuned, in the first trial that is compared, and in the second seed."""
    stop_in(folder, trial)
    (folder / "better.cfg").write_text("# of an earlier comparison")
    args = ("--recipes", "robust", "--steps", 2, "--code", "stops.py", "--output", "better.cfg")
    done = run("stops.cfg", *args, check=False)
    is_kept = (folder / "better.cfg").read_text() == "# of an earlier comparison"
    assert is_kept == (trial < 6) and ("Saved" not in done.stdout) == is_kept
    assert done.returncode == 130 and "Traceback" not in done.stderr
    if told is None:
        assert not done.stdout
        return
    assert "Stopped before the end" in done.stdout and re.search(told, done.stdout)
    assert ("Nothing was compared yet." in done.stdout) == (trial < 6) == ("CPU seconds" not in done.stdout)


def test_try_tells_of_settings_that_fail(folder, monkeypatch):
    ends = Mock(side_effect=[ConfigError("The rate is too high."), TrialResult([(0, 0.1)]), KeyboardInterrupt()])
    monkeypatch.setattr("thinc_torchopt.addons.preview.comparison.run_trial", ends)
    found = compare_recipes(folder / "slow.cfg", PATHS, recipes="drop-in", steps=2, seeds=1)
    assert "tuned after 2 of 4 trials, by the texts that choose: failed with a rate" in "\n".join(found.notes)


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


# ---------------------------------------------------------------------- the numbers that are printed

# Of three seeds, scores on the half that does not choose: of the kept model, and of the last one.
KEPT = {"as it is": (0.80, 0.82, 0.81), "tuned Adam": (0.81, 0.84, 0.80), "drop-in": (0.9, 0.91, 0.93)}
PARTS = {"100%": (0.80, 0.83, 0.82), "75%": (0.79, 0.83, 0.80), "50%": (0.7, 0.71, 0.72), "25%": (0.5, 0.55, 0.51)}


def faked(monkeypatch, kept, tuning=()):
    """Trials of ten seconds a step, with these scores seed by seed. RETURNS: By name, those on texts drawn again."""
    rng, now = numpy.random.default_rng(0), 0.0
    results = {
        name: [
            TrialResult(
                [(0, 0.1)], score, score - 0.01 * (i + 1), 9, [*rng.normal(score, 0.004, 50)], 500, 1000.5 * i, i
            )
            for i, score in enumerate(of_seeds)
        ]
        for name, of_seeds in kept.items()
    }
    after = iter([*tuning, *(trial for of_seed in zip(*results.values()) for trial in of_seed)])

    def trial(config, *, on_step, draws, **_):
        nonlocal now
        assert draws in (0, 50)  # a standard error from 50 is known to a tenth
        for _ in range(config["training"]["max_steps"] + 1):
            now += 10.0
            on_step()
        return next(after)

    trying = "thinc_torchopt.addons.preview.comparison"
    monkeypatch.setattr(f"{trying}.run_trial", trial)
    monkeypatch.setattr(f"{trying}.default_timer", lambda: now)
    return {name: [trial.resampled for trial in found] for name, found in results.items()}


def cells_in(shown, names):
    """The rows of the table."""
    lines = [line.strip() for line in shown.splitlines() if line.strip().startswith(names)]
    return [re.split("  +", line) for line in lines if "  " in line]


def test_try_prints_the_numbers_of_its_trials(folder, monkeypatch, capsys):
    """By the formulas of textbooks, from the scores of trials. Each trial takes 110 seconds."""
    tuning = [TrialResult([(0, 0.1), (5, best), (10, 0.2)]) for best in (0.5, 0.7, 0.6, 0.4)]
    drawn = faked(monkeypatch, KEPT, tuning)
    tried = compare_recipes(folder / "slow.cfg", PATHS, recipes="drop-in", steps=10, seeds=3)
    shown, told = repr(tried), capsys.readouterr().err
    from_base, from_tuned = (differences(KEPT, drawn, base, 3) for base in ("as it is", "tuned Adam"))
    rows = []
    for name, numbers in zip(KEPT, tried.as_dict()["tried"], strict=True):
        assert numbers["mean"] == pytest.approx(fmean(KEPT[name]))
        row = [name, f"{fmean(KEPT[name]):.4f}", " ".join(f"{score:.4f}" for score in KEPT[name])]
        row.append(f"{fmean(KEPT[name]) - 0.02:.4f}")
        if name != "as it is":
            by, error, chance = from_base[name]
            row += [f"{by:+.4f} ± {error:.4f}", "better" if by > chance else "may be chance"]
        for found, key in ((from_base, "from_base"), (from_tuned, "from_tuned")):
            values = numbers[key] and [numbers[key][one] for one in ("difference", "standard_error", "margin")]
            assert values == (pytest.approx(found[name]) if name in found else None)
        rows.append([*row, "1,000.5"])
    assert [row[-2] for row in rows] == ["0.7900", "may be chance", "better"]
    assert cells_in(shown, tuple(KEPT)) == rows
    _, _, chance = from_base["drop-in"]
    assert (
        f"drop-in is better than the config as it is: 0.9133 against 0.8100. With 3 seeds, up to {chance:.4f} may be "
        "chance."
    ) in shown
    by, error, _ = from_tuned["drop-in"]
    assert f"drop-in against tuned Adam: {by:+.4f} ± {error:.4f}, better." in shown
    assert "Scores are on 9 texts" in shown and "drop-in: 3 updates were skipped" in shown
    assert f"13 trials, about {13 * 110 / 60:.0f} minutes in all." in told
    adams = re.findall(r"^tuned Adam, (a rate .*): (0\.\d{4})$", told, re.MULTILINE)
    assert [score for _, score in adams] == ["0.5000", "0.7000", "0.6000", "0.4000"]
    assert f"spaCy's own Adam with {adams[1][0]}, the best of 4 trials with another seed." in shown
    assert "drop-in, seed 3 of 3: 0.9300\n" in told and all(cell in tried._repr_html_() for row in rows for cell in row)


def test_try_amounts_prints_the_numbers_of_its_trials(folder, monkeypatch, capsys):
    """And the points of 100 that it speaks of. A trial on all texts takes 90 seconds, and a seed two and a half."""
    drawn = faked(monkeypatch, PARTS)
    curve = draw_learning_curve(folder / "slow.cfg", PATHS, steps=8, seeds=3)
    shown = as_text(curve.print)
    sizes = {"25%": ("18", "2"), "50%": ("36", "4"), "75%": ("54", "6"), "100%": ("72", "8")}
    assert cells_in(shown, tuple(PARTS)) == [
        [
            *(name, *sizes[name], f"{fmean(PARTS[name]):.4f}", f"{stdev(PARTS[name]):.4f}"),
            *(" ".join(f"{score:.4f}" for score in PARTS[name]), "1,000.5"),
        ]
        for name in sizes
    ]
    by, error, chance = differences({name: PARTS[name] for name in ("100%", "75%")}, drawn, "75%", 1)["100%"]
    assert 0 < by < chance and curve.as_dict()["rise"]["margin"] == pytest.approx(chance)
    assert (
        f"the score changed by {100 * by:+.1f} ± {100 * error:.1f} points, no clear rise: more texts of this kind are "
        f"not likely to help by more than {100 * (by + chance):.1f} points."
    ) in shown
    assert f"12 trials, about {3 * 2.5 * 90 / 60:.0f} minutes in all." in capsys.readouterr().err
