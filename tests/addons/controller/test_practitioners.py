"""Rules of practitioners, in a short training on the treebank: each fires at the steps at which plain Python over the
log of this training says that it must. Also in a training that was killed, and in two processes.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import ROOT, SHARED, needs_corpora
from ...spacy_cli import spacy_cli
from .test_training import config_for, definition

DATA = SHARED / "data"
CODE = Path(__file__).parent / "killed.py"
STEPS, EVERY = 40, 4


def metric(name, kind, **arguments):
    return {"name": name, "class": kind, "arguments": arguments}


METRICS = [
    metric("loss", "Loss"),
    metric("dev", "EvalLoss", max_examples=10),
    metric("scores", "EvalMetrics"),
    metric("norms", "GradNorm"),
    metric("best_dev", "Best", of="dev['per_word']", mode="min", min_delta=0.25, min_delta_mode="relative"),
    metric("lately", "Window", of="scores['tag_acc']", size=3),
    metric("losses", "Window", of="loss['per_word']", size=8),
    metric("grads", "Window", of="norms['total']", size=5),
    metric("calmest", "Best", of="grads['median']", mode="min"),
    metric("lowest", "Best", of="losses['mean']", mode="min"),
    metric("rising", "Window", of="loss['per_word'] > losses['median']", size=6),
]
# Each with the event, the rule, and the same in plain Python: whether it holds at a line of the log, given this and the
# lines before.
RULES = {}


def rule(event, text):
    return lambda holds: RULES.setdefault(holds.__name__, (event, text, holds))


@rule("on_evaluate", "best_dev['evaluations_since'] >= 2")
def dev_loss_no_better_for_two_evaluations(lines):
    best, since = None, 0
    for loss in map(dev_loss, evaluated(lines)):
        since += 1
        if best is None or loss < best - 0.25 * best:
            best, since = loss, 0
    return since >= 2


@rule("on_evaluate", "lately['max'] - lately['min'] < 0.05 and losses['slope'] > -0.02")
def score_flat_while_the_loss_does_not_fall(lines):
    scores, losses = [line["scores"]["tag_acc"] for line in evaluated(lines)][-3:], [*map(loss, lines)][-8:]
    if len(scores) < 3 or len(losses) < 8:
        return False
    slope = statistics.linear_regression(range(8), losses).slope
    return max(scores) - min(scores) < 0.05 and slope > -0.02


@rule("on_step_end", "grads['median'] > 1.1 * calmest['value']")
def median_of_the_gradient_norm_rose_by_a_tenth(lines):
    medians = means_of([line["grad_norm"] for line in lines], 5, statistics.median)
    return bool(medians) and medians[-1] > 1.1 * min(medians)


@rule("on_step_end", "losses['mean'] > 1.01 * lowest['value']")
def loss_diverged_from_its_own_best(lines):
    means = means_of([*map(loss, lines)], 8, statistics.mean)
    return bool(means) and means[-1] > 1.01 * min(means)


@rule("on_evaluate", "get(scores, ['morph_per_feat', 'Abbr', 'f'], 0.0) == 0.0 and scores['tag_acc'] > 0.3")
def label_is_missing_at_an_evaluation(lines):
    scores = lines[-1]["scores"]
    return scores["morph_per_feat"].get("Abbr", {"f": 0.0})["f"] == 0.0 and scores["tag_acc"] > 0.3


@rule("on_step_end", "loss['per_word'] > quantile(losses['values'][:-1], 1) or not isfinite(loss['per_word'])")
def loss_is_higher_than_all_before_in_the_window(lines):
    losses = [*map(loss, lines)][-8:]
    return len(losses) == 8 and losses[-1] > max(losses[:-1])


@rule("on_step_end", "std(losses['values'][-4:]) < 0.1 * mean(losses['values'][-4:])")
def loss_is_calm(lines):
    last = [*map(loss, lines)][-4:]
    return len(lines) >= 8 and statistics.pstdev(last) < 0.1 * statistics.mean(last)


@rule("on_step_end", "mean(losses['values'][-4:]) > 0.99 * mean(losses['values'][:4])")
def loss_of_the_newer_half_is_no_lower(lines):
    losses = [*map(loss, lines)][-8:]
    return len(losses) == 8 and statistics.mean(losses[4:]) > 0.99 * statistics.mean(losses[:4])


@rule("on_step_end", "rising['mean'] >= 0.5")
def half_of_the_losses_are_above_the_median(lines):
    losses = [*map(loss, lines)]
    above = [losses[i] > statistics.median(losses[i - 7 : i + 1]) for i in range(7, len(losses))]
    return len(above) >= 6 and statistics.mean(above[-6:]) >= 0.5


@rule("on_evaluate", "dev['per_word'] > 0.3 * mean(losses['values']) and lately['slope'] < 0.1")
def score_flat_and_dev_loss_not_far_below_the_loss(lines):
    losses, scores = [*map(loss, lines)][-8:], [line["scores"]["tag_acc"] for line in evaluated(lines)][-3:]
    return (
        len(losses) == 8
        and len(scores) == 3
        and dev_loss(lines[-1]) > 0.3 * statistics.mean(losses)
        and (scores[-1] - scores[0]) / 2 < 0.1
    )


def means_of(values, size, mean):
    return [mean(values[i - size + 1 : i + 1]) for i in range(size - 1, len(values))]


def evaluated(lines):
    return [line for line in lines if "scores" in line]


def loss(line):
    return sum(loss for name, loss in line["losses"].items() if name != "tok2vec") / line["batch_words"]


def dev_loss(line):
    found = line["dev_losses"]
    return sum(loss for name, loss in found["losses"].items() if name != "tok2vec") / found["words"]


def write_config(folder):
    rules = [
        {"name": name, "triggers": [event], "rule": text, "operations": ["control.should_log"]}
        for name, (event, text, _) in RULES.items()
    ]
    # Of the same file: the development data has no labels that training data has not.
    paths = dict.fromkeys(("train", "dev"), DATA / "ud-english-ewt-train.spacy")
    config = config_for(folder, paths, definition(*rules, metrics=METRICS), steps=STEPS, checkpoint=True)
    config["nlp"] |= {"lang": "en", "pipeline": ["tagger", "morphologizer"]}
    config["components"]["tagger"]["model"]["tok2vec"]["embed_size"] = 300  # with which each rule fires
    model = {**config["components"]["tagger"]["model"], "@architectures": "spacy.Tagger.v2"}
    config["components"]["morphologizer"] = {"factory": "morphologizer", "model": model}
    config["corpora"]["train"]["limit"], config["corpora"]["dev"]["limit"] = 120, 4
    config["training"] |= {"eval_frequency": EVERY, "max_steps": STEPS}
    config["training"]["before_update"] = {"@callbacks": "test-practitioners.Kill.v1"}
    config["training"]["batcher"]["size"] = 100
    config["training"]["optimizer"]["checkpoint"]["every"] = 7
    config["training"]["logger"] = {
        "@loggers": "thinc-torchopt.JSONLinesLogger.v1",
        "path": str(folder / "log.jsonl"),
        "every": 1,
    }
    config.to_disk(folder / "config.cfg")
    return folder / "config.cfg"


def environment(**more):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **more}


def train(folder, *command, code=0, **env):
    config = write_config(folder) if not (folder / "config.cfg").exists() else folder / "config.cfg"
    args = [*(command or ("-m", "spacy", "train")), str(config), "--output", str(folder / "out")]
    done = subprocess.run(
        [sys.executable, *args, "--code", str(CODE)],
        capture_output=True,
        text=True,
        env=environment(**env),
        cwd=folder,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return lines_of(folder)


def lines_of(folder):
    # A resumed run repeats the steps since its checkpoint, in a log of its own.
    texts = [path.read_text() for path in (folder / "log.jsonl", folder / "log-2.jsonl") if path.exists()]
    lines = list({line["step"]: line for line in map(json.loads, "".join(texts).splitlines())}.values())
    for before, line in zip([{"words": 0}, *lines], lines):
        line["batch_words"] = line["words"] - before["words"]
    return lines


def check(log):
    assert [line["step"] for line in log] == list(range(STEPS + 1))
    found = {name: [] for name in RULES}
    for line in log:
        for firing in line.get("controller", ()):
            found[firing["controller"]].append(firing["step"])
    expected = {
        name: [
            line["step"]
            for i, line in enumerate(log)
            if (event == "on_step_end" or "scores" in line) and holds(log[: i + 1])
        ]
        for name, (event, _, holds) in RULES.items()
    }
    assert found == expected  # of each rule, all steps
    return found


@needs_corpora
def test_practitioners_rules_fire_where_plain_python_says(tmp_path):
    spacy_cli("train", write_config(tmp_path), "--output", tmp_path / "out", "--code", CODE)
    fired = check(lines_of(tmp_path))
    assert len(fired) == 10 and not [name for name, steps in fired.items() if not steps]
    assert not [name for name, steps in fired.items() if len(steps) == STEPS]


@needs_corpora
@pytest.mark.slow
def test_practitioners_rules_after_kill_9(tmp_path):
    """The run that continues fires as one that was never stopped."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = train(tmp_path / "whole")
    train(tmp_path / "killed", code=-signal.SIGKILL, KILL_AT="24")
    killed = train(tmp_path / "killed")
    assert check(killed) == check(whole)


@needs_corpora
@pytest.mark.slow
def test_practitioners_rules_in_two_processes(tmp_path):
    fired = check(train(tmp_path, "-m", "spacy", "torchopt", "train", "--nproc-per-node", "2"))
    assert any(fired.values())
