"""The comparison of recipes, with trials whose scores are given."""

import re
from statistics import fmean, stdev

import numpy
import pytest

from thinc_torchopt.addons.preview import comparison, draw_learning_curve
from thinc_torchopt.addons.preview.comparison import compare_recipes
from thinc_torchopt.addons.trials import TrialResult
from thinc_torchopt.core.errors import TorchOptError
from thinc_torchopt.core.tables import as_text
from thinc_torchopt.loop.progress_bars import Bar

from ...configs import small_tagger
from ...spacy_cli import toy_corpus
from ..trials.test_comparison import differences

GROWING = '\n[training.batcher.size]\n@schedules = "compounding.v1"\nstart = 120\nstop = 1000\ncompound = 1.001\n'
BASE = '[training.optimizer]\n@optimizers = "SGD.v1"\nlearn_rate = 0.5\n'


class Trials:
    """In place of trainings. scores: By the kind of optimizer, or the highest rate of Adam without averages."""

    def __init__(self, scores):
        self._scores, self.made, self.now = scores, [], 0.0

    def run(self, config, *, seed, use_gpu, draws, share, on_step):
        block, training = config["training"]["optimizer"], config["training"]
        rate = block["learn_rate"] if isinstance(block["learn_rate"], float) else block["learn_rate"]["initial_rate"]
        name = block["@optimizers"].removeprefix("thinc-torchopt.")
        name = f"{name} {rate:g}{' averaged' * bool(block.get('use_averages'))}"
        self.made.append((name, seed, training["max_steps"], training["eval_frequency"], draws, share))
        for _ in range(training["max_steps"] + 1):
            self.now += 1
            on_step()
        score = self._scores[name]
        if isinstance(score, BaseException):
            raise score
        if isinstance(score, str):
            return TrialResult(problem=score)
        score += seed * (0.001 if "SGD" in name else 0.004)
        return TrialResult([(0, 0.0), (9, score / 2)], score, score / 4, 50, [score, score + 0.001], 777, 1.23456)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    toy_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = small_tagger()
    text = text[: text.index("[training.optimizer]")]
    text = text.replace("size = 500\n", "").replace("tolerance = 0.2\n", f"tolerance = 0.2\n{GROWING}") + BASE
    (tmp_path / "own.cfg").write_text(text)
    return tmp_path


ADAM = {f"Adam.v1 {peak}{more}": 0.4 for peak in (0.0005, 0.001, 0.002, 0.004) for more in ("", " averaged")}
SCORES = {"SGD.v1 0.5": 0.3, "TorchOptimizer.v1 0.0018": 0.5, **ADAM, "Adam.v1 0.002 averaged": 0.45}
PATHS = {"paths.train": "train.spacy", "paths.dev": "dev.spacy"}


def compared(monkeypatch, scores={}, **settings):
    trials = Trials(SCORES | scores)
    monkeypatch.setattr(comparison, "run_trial", trials.run)
    monkeypatch.setattr(comparison, "default_timer", lambda: trials.now)
    return trials.made, compare_recipes("own.cfg", PATHS, **{"steps": 25, "seeds": 2, **settings})


def test_comparison_of_recipes(folder, monkeypatch, capsys):
    """As many words for each, in steps that are tens; ten evaluations. Adam is tuned with a seed of its own."""
    made, found = compared(monkeypatch, output="best.cfg")
    tuning = ["0.001 averaged", "0.002 averaged", "0.004 averaged", "0.002"]
    of_seeds = [
        (name, seed, steps, steps // 10, 50, 1.0)
        for seed in range(2)
        for name, steps in (("SGD.v1 0.5", 90), ("Adam.v1 0.002 averaged", 30), ("TorchOptimizer.v1 0.0018", 30))
    ]
    assert made == [(f"Adam.v1 {rate}", 100, 30, 3, 0, 1.0) for rate in tuning] + of_seeds
    told = ["As batches", "In short t", "best: Sche", "tuned Adam"]
    assert [note[:10] for note in found.notes] == told
    assert (folder / "best.cfg").read_text() == found.config and "TorchOptimizer" in found.config
    base, stock, best = found.as_dict()["tried"]
    assert base["from_base"] is None and stock["from_tuned"] is None
    assert best["from_tuned"]["difference"] == pytest.approx(0.05) and best["from_tuned"]["more_than_chance"]
    assert best["from_base"]["difference"] == pytest.approx(0.2015) and best["mean"] == pytest.approx(0.502)
    assert best["cpu_seconds"] == {"0": 1.235, "1": 1.235} and best["evaluations"]["0"] == [(0, 0.0), (9, 0.25)]
    # A step takes a second: 31 of the first of 10 trials.
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "10 trials, about 5 minutes in all. Ctrl-C shows what is there." and len(told) == 11
    assert told[1] == "tuned Adam, a rate of up to 0.001, averages: 0.4000"
    assert told[-1] == "best, seed 2 of 2: 0.5040"


BROKEN = TorchOptError("broken")


@pytest.mark.parametrize(
    ("names", "score", "n", "winner", "told"),
    [
        ("SGD.v1 0.5", "lost", 9, "best", "can't be compared: lost. Of the others, best has the best score."),
        ("SGD.v1 0.5", BROKEN, None, None, None),
        ("TorchOptimizer.v1 0.0018", "lost", 9, "tuned Adam", "better than the config as it is: 0.4520 against"),
        ("TorchOptimizer.v1 0.0018", BROKEN, 9, "tuned Adam", "best did not finish its trials: broken"),
        ("TorchOptimizer.v1 0.0018", KeyboardInterrupt(), 7, "as it is", "Stopped before the end."),
        ("Adam.v1 0.001 averaged", KeyboardInterrupt(), None, None, None),
        ("Adam.v1 0.002 averaged", KeyboardInterrupt(), 2, "as it is", "not yet tuned after 1 of 4 trials, by the "
         "texts that choose: 0.4000 with a rate of up to 0.001, averages."),
        ("Adam.v1 0.002 averaged", BROKEN, 10, "best", "spaCy's own Adam with a rate of up to 0.001, averages, the"),
        (ADAM, BROKEN, 8, "best", "tuned Adam did not finish its trials: broken"),
        (["SGD.v1 0.5", *ADAM, "TorchOptimizer.v1 0.0018"], "lost", 7, "as it is", "as it is can't be compared: lost."),
        (["TorchOptimizer.v1 0.0018", *ADAM], "lost", 8, "as it is", "Nothing else finished its trials."),
    ],
)  # fmt: skip
def test_comparison_that_does_not_finish(names, score, n, winner, told, folder, monkeypatch):
    """Trials that can't be judged are left out. Without one of the config as it is, nothing can be said."""
    scores = dict.fromkeys([names] if isinstance(names, str) else names, score)
    if n is None:
        with pytest.raises(type(score)):
            compared(monkeypatch, scores)
        return
    places, names = [], []
    monkeypatch.setattr(Bar, "move_to", lambda bar, place: places.append(place / bar._bar.total))
    monkeypatch.setattr(Bar, "set_description", lambda bar, what: names.append(what))
    monkeypatch.setattr(Bar, "__exit__", lambda bar, *error: names.append("closed"))
    made, found = compared(monkeypatch, scores, output="best.cfg")
    # Trials that are left out are done, too: 10 of 100 parts each, in 31 steps.
    assert (found.was_stopped or places[-1] == 1.0) and places[:4] == [0.003, 0.006, 0.01, 0.013]
    assert (names[0][:26], names[-1], len(names)) == ("Trying tuned Adam, a rate ", "closed", n + 1)
    assert told in repr(found).replace("\n", " ") and (len(made), found.winner) == (n, winner)
    assert found.was_stopped == isinstance(score, KeyboardInterrupt)
    assert (folder / "best.cfg").exists() == found.is_decided


def test_comparison_notes_what_may_be_wrong():
    def notes_of(texts, skipped=0, *, stopped=False):
        trials = {seed: TrialResult(texts=texts, skipped_updates=skipped) for seed in range(2)}
        tried = {"best": comparison.Candidate("", None, trials=trials)}
        return [note.split(". ")[0] for note in comparison.notes_on(tried, stopped)]

    assert notes_of(10) == notes_of(0) == []
    assert notes_of(9) == ["Scores are on 9 texts of the development data"]
    assert notes_of(1)[0].startswith("Scores are on 1 text of")
    told = ["Stopped before the end", "best: 6 updates were skipped, as their gradients were not finite or a spike."]
    assert notes_of(10, 3, stopped=True) == told


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


def test_comparison_prints_the_numbers_of_its_trials(folder, monkeypatch, capsys):
    """By the formulas of textbooks, from the scores of trials. Each trial takes 110 seconds."""
    tuning = [TrialResult([(0, 0.1), (5, best), (10, 0.2)]) for best in (0.5, 0.7, 0.6, 0.4)]
    drawn = faked(monkeypatch, KEPT, tuning)
    tried = compare_recipes("own.cfg", PATHS, recipes="drop-in", steps=10)
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


def test_learning_curve_prints_the_numbers_of_its_trials(folder, monkeypatch, capsys):
    """And the points of 100 that it speaks of. A trial on all texts takes 90 seconds, and a seed two and a half."""
    drawn = faked(monkeypatch, PARTS)
    curve = draw_learning_curve("own.cfg", PATHS, steps=8, seeds=3)
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
