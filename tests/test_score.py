"""benchmarks/score.py: what is judged, the arithmetic of differences, and that the pages say what was measured."""

import importlib
import itertools
import sys
from pathlib import Path

import numpy
import pytest
import spacy
import srsly
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import DocBin
from spacy.training import Corpus
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train

from thinc_torchopt.addons.trials.comparison import predict, resampled
from thinc_torchopt.addons.trials.comparison import score as score_of_trials

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def score_pages():
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("score_pages")
    finally:
        sys.path[:] = before
        for name in ("score", "score_pages"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def score(score_pages):
    return sys.modules["score"]


def line(arm, seed, points, *, task="food", cpu=10.0, spread=(0, 0), **more):
    """The resamples are the score, and that much less and more."""
    part = {"step": 100, "score": points, "resampled": [points - spread[0], points + spread[1]]}
    curve = [[0, 0, 0], [100, points, points]]
    found = {"task": task, "arm": arm, "seed": seed, "steps": 100, "words": 1, "cpu": cpu, "evaluating": 1.0}
    return {**found, "curve": curve, "saved": part, "last": part, **more}


# ---------------------------------------------------------------------- what is judged


@given(st.integers(1, 300), st.integers(1, 80))
def test_score_shares_are_close(score, every, count):
    found = score.at_shares([every * i for i in range(count + 1)])
    assert found[-1] == every * count and 0 not in found
    assert len(found) == min(10, count)
    for k in range(1, 11):
        assert min(abs(step - every * count * k / 10) for step in found) <= max(every / 2, every * (count < 10))


def test_score_judges_what_is_kept(score, tmp_path, monkeypatch):
    """Beside spaCy's own function `train` and `evaluate`."""
    monkeypatch.setattr(score, "RESAMPLES", 4)
    words = ["Ann", "eats", "soup", "in", "Rome", "with", "Bob"]
    vocab = spacy.blank("en").vocab
    docs = []
    for i, some in enumerate(itertools.islice(itertools.permutations(words, 5), 0, 2400, 60)):
        doc = spacy.tokens.Doc(vocab, words=some)
        names = [j for j, word in enumerate(some) if word in ("Ann", "Bob") or (word == "Rome" and i % 3)]
        doc.ents = [spacy.tokens.Span(doc, j, j + 1, label="NAME") for j in names]
        docs.append(doc)
    for part, some in (("train", docs[:20]), ("dev", docs[20:]), ("odd", docs[21::2])):
        DocBin(docs=some).to_disk(tmp_path / f"{part}.spacy")
    task = score.Task(("ner",), "efficiency", "none", prepare=None)
    monkeypatch.setattr(score, "DATA", tmp_path)
    for part in ("train", "dev"):
        (tmp_path / f"none-{part}.spacy").write_bytes((tmp_path / f"{part}.spacy").read_bytes())
    config = score.config_of(task, 3, tmp_path)
    config["training"] |= {"max_steps": 12, "eval_frequency": 4, "patience": 0}
    config["training"]["optimizer"] |= {"learn_rate": 0.01, "use_averages": True}
    for key in ("width", "depth"):
        config["components"]["tok2vec"]["model"]["encode"][key] = 8 if key == "width" else 1
    found = score.run_config(config, tmp_path)

    assert [step for step, *_ in found["curve"]] == [0, 4, 8, 12]
    halves = {step: half for step, half, _ in found["curve"][1:]}
    assert found["saved"]["step"] == max(halves, key=halves.get)
    for part in ("saved", "last"):
        other = {step: half for step, _, half in found["curve"]}
        assert found[part]["score"] == other[found[part]["step"]]
        assert len(found[part]["resampled"]) == 4
    assert 0 <= found["evaluating"] <= found["cpu"]

    nlp = init_nlp(config)
    (tmp_path / "model").mkdir()
    spacy_train(nlp, tmp_path / "model")
    nlp = spacy.load(tmp_path / "model" / "model-last")
    expected = nlp.evaluate(list(Corpus(tmp_path / "odd.spacy")(nlp)))["ents_f"]
    assert expected > 0.2
    assert found["last"]["score"] == round(10_000 * expected)

    # `spacy torchopt try` judges in the same way; it isn't imported there, so that other arms are free of it.
    corpus, weights = Corpus(tmp_path / "odd.spacy"), {"ents_f": 0.75, "ents_p": 0.25, "ents_per_type": None}
    one, other = score.predicted(nlp, corpus), predict(nlp, list(corpus(nlp)))
    assert score.main_score(nlp, one, weights) == score_of_trials(nlp, other, weights)
    drawn = score.resampled(one, lambda some: score.main_score(nlp, some, weights))
    again = resampled(lambda some: score_of_trials(nlp, some, weights), other, draws=4)
    assert drawn == [round(10_000 * value) for value in again] and len(set(drawn)) > 1


# ---------------------------------------------------------------------- the tuned arm


@given(st.lists(st.integers(0, 5), min_size=9, max_size=9))
def test_score_tunes_one_setting_after_the_other(score, numbers):
    """The settings' gains add up, so the best of each is the best of all; at most eight runs."""
    peaks = dict(zip(score.PEAKS, numbers))
    tried = set()

    def score_of(tuning):
        tried.add(tuning)
        gains = (tuning.averages * numbers[4], tuning.own_batches * numbers[5], (tuning.steps > 600) * numbers[6])
        return peaks[tuning.peak] + sum(gains)

    found = score.tune(score_of, 600)
    everything = [
        score.Tuning(*values) for values in itertools.product(score.PEAKS, (600, 1200), (True, False), (False, True))
    ]
    assert score_of(found) == max(map(score_of, everything))
    tried.clear()
    score.tune(score_of, 600)
    assert len(tried) <= 8


def test_score_tunes_with_batches_of_spacy(score):
    """Those by wordpieces need our optimizer. 1.25 wordpieces in a word."""
    batcher = {"@batchers": "thinc-torchopt.batch_by_padded_pieces.v1", "size": 625}
    recipe = {"batcher": batcher, "max_steps": 600, "optimizer": {"learn_rate": {"warmup_ratio": 0.1}}}
    config = {"training": {"optimizer": {}}}
    score.Tuning(2e-5, 600).edit(config, {"training": recipe})
    found = config["training"]["batcher"]
    assert (found["@batchers"], found["size"]) == ("spacy.batch_by_padded.v1", 500)


def test_score_runs_what_is_missing_alone(score, tmp_path):
    """All runs of `tune` are in the file, so no process is started."""
    path = tmp_path / "score.jsonl"
    tunings = [score.Tuning(peak, 600) for peak in score.PEAKS]
    best = score.Tuning(0.002, 600)
    tunings += [
        score.replace(best, averages=False),
        score.replace(best, own_batches=True),
        score.replace(best, steps=1200),
    ]
    lines = [line("tuned", 100, 7000 + 100 * (tuning == best), tuning=score.asdict(tuning)) for tuning in tunings]
    srsly.write_jsonl(path, lines)
    assert score.Runs(path, until=0.0).tuned("food") == best
    assert score.Runs(path, until=0.0).get("food", "tuned", 100, best)["saved"]["score"] == 7100
    with pytest.raises(SystemExit, match="time is over"):
        score.Runs(path, until=0.0).get("food", "best", 0)


def test_score_repeats_a_row(score, tmp_path, capsys):
    lines = [line("tuned", 0, 7200, cpu=50.0, tuning=score.asdict(score.Tuning(0.002, 600)))]
    lines += [line("stock", 0, 7000, cpu=30.0), line("best", 0, 7100)]
    srsly.write_jsonl(tmp_path / "again.jsonl", lines)
    score.repeat(lines, "food", None, tmp_path / "again.jsonl")
    printed = capsys.readouterr().out
    assert printed.startswith("3 trainings, about 2 minutes")  # 90 seconds, and 11 more for each
    assert printed.count("| food \\* | saved | 1 | 70.0 | 72.0 | 71.0 | +1.0 (one seed) | -1.0 (one seed) |") == 2
    with pytest.raises(SystemExit, match="was not measured yet"):
        score.repeat(lines, "ewt", None, tmp_path / "again.jsonl")


# ---------------------------------------------------------------------- differences


def test_score_resamples_as_the_formula_says(score):
    """Of a mean over texts the standard error is known: sigma / sqrt(n). 100 resamples know a spread to within 7%; the
    tolerance is four times that. The two arms share most of their errors, so their difference is known much better.
    """
    rng = numpy.random.default_rng(1)
    texts = rng.normal(0.7, 0.2, size=200)
    others = texts + rng.normal(0.02, 0.01, size=200)
    found = [score.resampled(list(values), lambda some: float(numpy.mean(some))) for values in (texts, others)]
    lines = [[line("x", 0, 0, saved={"score": 0, "resampled": samples})] for samples in found]
    alone, paired = score.stdev(found[0]) / 100, score.difference(lines[1], lines[0]).texts
    assert alone == pytest.approx(100 * texts.std() / 200**0.5, rel=0.28)
    assert paired == pytest.approx(100 * (others - texts).std() / 200**0.5, rel=0.28)
    assert paired < alone / 10


def test_score_row_of_a_task(score):
    lines = [line("tuned", 100, 9999, cpu=99.0, tuning={"peak": 1.0, "steps": 600})]
    for seed in (0, 1):
        lines += [line("stock", seed, 7000, cpu=40.0), line("best", seed, 7100, cpu=10.0)]
        lines.append(line("tuned", seed, 7200, cpu=20.0, tuning={"peak": 1.0, "steps": 600}))
    lines.append(line("stock", 2, 9000, cpu=1000.0))  # the others have no such seed
    lines.append(line("Adam", 1, 7150, cpu=12.0))
    assert list(score.levers(lines)) == ["| lever | food |", "| --- | --- |", "| Adam | +0.5 (one seed) |"]
    more = [line("Adam", 0, 7100), line("best", 7, 7000, task="ewt"), line("no clipping", 7, 7100, task="ewt")]
    told = list(score.levers([*lines, *more]))[2:]
    assert told == ["| Adam | +0.2 ± 0.2 (2) |  |", "| no clipping |  | +1.0 (one seed) |"]
    [row] = score.rows_of(lines)
    assert row.share_of_time("stock") == 0.25 and row.share_of_time("tuned") == 0.5
    assert row.gain("stock").mean == 1.0 and row.gain("tuned").mean == -1.0
    assert row.seeds("best") == [0, 1] and not row.is_single and not score.rows_of(lines[:2])
    printed = "\n".join(score.table([row]))
    assert "| food \\* | saved | 2 | 70.0 | 72.0 | 71.0 | +1.0 ± 0.0 | -1.0 ± 0.0 |" in printed
    assert "| 0.25 | 0.50 | peak 1, averages |" in printed


def test_score_row_with_fewer_seeds_of_one_arm(score):
    """Each difference, and each share of time, is of the seeds that both arms have."""
    lines = [line("stock", 1, 7000, cpu=100.0)]
    for seed in (0, 1, 2):
        lines.append(line("best", seed, 7100 + 100 * seed, cpu=10.0 * (1 + seed)))
        lines.append(line("tuned", seed, 7200, cpu=20.0, tuning={"peak": 1.0, "steps": 600}))
    [row] = score.rows_of(lines)
    assert row.gain("stock").mean == 2.0 and row.gain("tuned").mean == pytest.approx(0.0)
    [single] = score.rows_of([found for found in lines if found["seed"] == 1])
    assert single.is_single and not row.is_single
    assert row.share_of_time("stock") == 0.2 and row.share_of_time("tuned") == 1.0
    assert "| food \\* | saved | 1, 3, 3 | 70.0 | 72.0 | 72.0 | +2.0 (one seed) | +0.0 ± 0.6 |" in score.table([row])
    # No seed of `best` without another arm, and none of another arm without `best`.
    [row] = score.rows_of([*lines, line("best", 7, 1), line("stock", 8, 1)])
    assert row.counts == "1, 3, 3" and not score.rows_of([*lines[1:], line("stock", 8, 1)])


# ---------------------------------------------------------------------- the pages


def made_up(gain, *, task, share=0.2):
    for seed in (0, 1, 2):
        yield line("stock", seed, 7000, task=task, cpu=100.0)
        yield line("tuned", seed, 7300, task=task, cpu=40.0, tuning={"peak": 0.001, "steps": 600})
        yield line("best", seed, 7000 + gain + 10 * seed, task=task, cpu=100.0 * share, spread=(20, 20))


def test_score_claims_count_tasks(score, score_pages):
    lines = [*made_up(400, task="food"), *made_up(-100, task="brands", share=0.1), *made_up(300, task="cooking")]
    said = " ".join(score_pages.claims(score.rows_of(lines)).split())
    n = len(score.TASKS)
    assert f"measured on 3 of {n} tasks so far, 2 of which did not choose it" in said
    # Gains of 4.1, -0.9 and 3.1 beside `stock`, 3.0 less beside `tuned`.
    assert "init config` | +2.1, -0.9 (brands) | 0.10 to 0.20 | +1.1, -0.9 (brands) |" in said
    assert "each task | -0.9, -3.9 (brands) | 0.25 to 0.50 | -1.9, -3.9 (brands) |" in said
    lines += [found for found in made_up(-100, task="ewt") if found["seed"] == 0]
    said = " ".join(score_pages.claims(score.rows_of(lines)).split())
    assert f"measured on 3 of {n}" in said and said.endswith("one seed so far: -4.0 points on ewt against that Adam.")
    assert score_pages.claims([]) == "Not measured yet."


def test_score_claims_say_which_levers_pass(score_pages):
    lines = [found for task in score_pages.LEVER_TASKS for found in made_up(0, task=task)]

    def lever(name, *gains):
        for task, gain in zip(score_pages.LEVER_TASKS, gains):
            for seed in (0, 1):
                yield line(name, seed, 7000 + gain + 10 * seed, task=task, spread=(20, 20))

    assert ": no lever yet." in score_pages.lever_claims(lines)
    lines += [*lever("Adam", 100, 0, 0, 0), *lever("no clipping", 100, 0, 0, -100), *lever("beta2 = 0.98", 500, 500)]
    lines += lever("half of the peak", 0, 0, 0, 0)
    said = " ".join(score_pages.lever_claims(lines).split())
    assert ": half of the peak; Adam; no clipping. " in said and said.endswith("on none: Adam.")


def test_score_claims_say_what_a_teacher_adds(score_pages):
    lessons = [
        {"task": "taught-food", "row": row, "seed": seed, "scores": {"F": F}}
        for row, scores in (("share4", (75.0, 77.0, 80.0)), ("share2", (10.0, 20.0)))
        for seed, F in enumerate(scores)
    ]
    lines = [line("tuned", seed, 7000 + 100 * seed, task="food") for seed in (0, 1)]
    said = " ".join(score_pages.taught_claims(lines, lessons).split())
    assert said.endswith("has 77.3 on food: +5.5 ± 0.5 beside `tuned` (2 paired seeds, whose error alone this is).")
    assert score_pages.taught_claims(lines[:1], lessons) == ""


def test_score_report_writes_the_pages(score_pages, tmp_path, monkeypatch):
    """Whatever the figures are, and as often as it is asked to."""
    measured = tmp_path / "measured.yaml"
    measured.write_text(score_pages.MEASURED_FILE.read_text("utf8"), "utf8")
    monkeypatch.setattr(score_pages, "MEASURED_FILE", measured)
    monkeypatch.setattr(score_pages, "REPO", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks").mkdir()
    for name in ("README.md", "docs/recipes.md", "benchmarks/README.md"):
        (tmp_path / name).write_text(f"before\n\n{score_pages.BEGIN}\nold\n\n{score_pages.END}\nafter\n", "utf8")
    food = [*made_up(300, task="food")]
    for lines, fresh in ((food, "none"), ([*food, *made_up(300, task="cooking")], "cooking")):
        for _ in range(2):
            score_pages.report(lines)
        for path, text in score_pages.pages(lines).items():
            page = path.read_text("utf8")
            assert score_pages.between(page) == text
            assert page.startswith("before\n") and page.endswith(f"\n\n{score_pages.END}\nafter\n")
            assert "old" not in page
        rows = {row["train"]: row["expect"] for row in srsly.read_yaml(measured)["rows"]}
        for train, tasks in score_pages.MEASURED.items():
            if said := score_pages.expectation(score_pages.rows_of(lines), tasks):
                assert rows[train] == said
        assert f"these tasks but {fresh}. No recipe" in srsly.read_yaml(measured)["about"]
    assert "food +3.1 ± 0.3 points" in rows["NER"] and rows["any pipeline, and results must not change"]
    assert "<svg" in (tmp_path / "docs" / "recipes.svg").read_text("utf8")


def test_score_pages_say_what_was_measured(score, score_pages):
    lines = score.read()
    keys = [score.key_of(found) for found in lines]
    assert len(keys) == len(set(keys))
    assert all(task in score.TASKS and arm in score.ARMS for task, arm, *_ in keys)
    # No row mixes recipes, or settings of the tuned arm.
    runs = [key[:3] for key in keys if key[2] != score.TUNE_SEED]
    assert len(runs) == len(set(runs))
    digests = {}
    for key, found in zip(keys, lines):
        if "training" in found and key[2] != score.TUNE_SEED:  # what is only chosen may be evaluated at other steps
            assert digests.setdefault((*key[:2], key[3]), found["training"]) == found["training"], (
                f"another recipe: {key}"
            )
    for path, text in score_pages.pages(lines).items():
        found = score_pages.between(path.read_text("utf8"))
        assert found == text or (path.name == "README.md" and found is None), (
            f"{path.name} is not what score.jsonl says: python benchmarks/score_pages.py"
        )
    measured = srsly.read_yaml(score_pages.MEASURED_FILE)
    rows = {row["train"]: row["expect"] for row in measured["rows"]}
    for train, tasks in score_pages.MEASURED.items():
        said = score_pages.expectation(score.rows_of(lines), tasks)
        assert rows[train] == said if said else "±" not in rows[train]
    assert f"on all of these tasks but {score_pages.fresh_tasks(score.rows_of(lines))}." in measured["about"]
