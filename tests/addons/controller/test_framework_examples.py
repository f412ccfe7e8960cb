"""The example definitions of the framework, by what they say, in `spacy train` on the treebank.

When each has to fire is worked out here from the log of a training without rules, by plain Python. Where the framework
looks at the loss on the development data, these look at a score, and losses are as large as spaCy's.
"""

import json
from itertools import islice, pairwise
from types import SimpleNamespace

import pytest
import spacy
from spacy.tokens import DocBin

from ...conftest import SHARED, needs_corpora
from ...spacy_cli import train
from .kit import LOSS, STEP, config_for, definition, part, rule

pytestmark = needs_corpora

BELOW = """len(window["training_loss"]["loss"]) == window["window_size"]
and window["training_loss"]["loss"][0] < 110 and window["training_loss"]["epoch"][0] > 1"""
DECREASES_NOT = """len(window["training_loss"]["loss"]) == window["window_size"]
and window["training_loss"]["loss"][0] < window["training_loss"]["loss"][-1]"""
SCORED = """len(window["metrics"]) > 0 and window["metrics"]["tag_acc"][-1]"""


def window(size):
    return part("window", "HistoryBasedMetric", window_size=size)


def stop(event, text, *metrics, **more):
    """A definition that stops the training. The text of a rule may have several lines."""
    stops = rule("stop", event, text.replace("\n", " "), "hfcontrols.should_training_stop", **more)
    return definition(stops, metrics=metrics)


def at_level(level):
    return {"config": {"trigger_log_level": level}}


EVALS = part("evalmetric", "EvalMetrics")
LAST_LOSS = 'window["training_loss"]["loss"][-1]'
# By name: definition, and when it stops the training: by what the run is at then.
STOPS = {
    "loss": (stop("on_log", 'loss["loss"] < 130.0', LOSS), lambda run: run.logged[-1] < 130),
    "non-decreasing-training-loss": (
        stop("on_log", DECREASES_NOT, window(5)),
        lambda run: len(run.logged) >= 5 and run.logged[-5] < run.logged[-1],
    ),
    "epoch-level-training-loss": (
        stop("on_epoch_end", f'{LAST_LOSS} > 2 and state["epoch"] > 1', STEP, window(1)),
        lambda run: run.logged[-1] > 2 and run.epoch > 1,
    ),
    # Of the step before: the window is filled by on_log, which comes later.
    "epoch-level-training-loss-below-threshold-log-config": (
        stop("on_step_end", BELOW, window(1), **at_level("warning")),
        lambda run: run.logged != [] and run.logged[-1] < 110 and run.epochs[-1] > 1,
    ),
    "epoch-level-eval-loss-patience": (
        stop("on_epoch_end", f"{SCORED} < 0.95", window(2), patience={"patience_threshold": 2}),
        lambda run: run.epoch == 2 and run.scores[-1] < 0.95,  # the third time
    ),
    "epoch-level-eval-loss-below-threshold": (
        stop("on_epoch_end", "evalmetric['tag_acc'] > 0.5 and state[\"epoch\"] > 0", STEP, EVALS),
        lambda run: run.scores[-1] > 0.5 and run.epoch > 0,
    ),
    "eval_metrics": (
        stop("on_log", "state['epoch'] > 1 and evalmetric['tag_acc'] > 0.5", STEP, EVALS),
        lambda run: run.epoch > 1 and run.scores[-1] > 0.5,
    ),
    "on-save": (stop("on_save", 'state["epoch"] >= 0.5', STEP), lambda run: run.epoch >= 0.5),
}
# Two that log, and go on. The framework's formats look up with brackets.
LOSS_LINE = "Epoch: {state/epoch:.0f}, Step: {state/global_step}, Rank: {process/rank}, loss = {training_loss/loss:.3f}"
SAVED_LINE = "Saved at step {state/global_step} in {path}"
LOGS = definition(
    rule("logged", "on_log", "training_loss != None", "on_each_log.should_log"),
    rule("saved", "on_save", "True", "on_each_save.should_log"),
    rule("final", "on_save", 'state["is_final"] == True', "on_each_save.should_log"),
    rule("steps", "on_step_end", "True", "on_each_step.should_log"),
    metrics=[STEP, part("training_loss", "Loss"), part("process", "PerProcessState")],
    operations=[
        part("on_each_log", "LogControl", log_format=LOSS_LINE, log_level="info"),
        part("on_each_save", "LogControl", log_format=SAVED_LINE, log_level="warning"),
        part("on_each_step", "LogControl", log_format="This is [{event_name}] => {state}", log_level="WARNING"),
    ],
)
STEPS = 30


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    """A few documents of the treebank, so that they are read in no time."""
    folder, vocab = tmp_path_factory.mktemp("treebank"), spacy.blank("en").vocab
    paths = {}
    for split, source, n in (("train", "dev", 8), ("dev", "test", 3)):
        docs = DocBin().from_disk(SHARED / "data" / f"ud-english-ewt-{source}.spacy").get_docs(vocab)
        paths[split] = folder / f"{split}.spacy"
        DocBin(docs=list(islice(docs, n))).to_disk(paths[split])
    return paths


def run(folder, corpus, rules):
    """`spacy train`. RETURNS: The lines of its log, and what it said."""
    config = config_for(folder, corpus, rules, checkpoint=True)
    config["training"]["max_epochs"] = 4
    logger = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1", "path": str(folder / "log.jsonl"), "every": 1}
    config["training"]["logger"] = logger
    folder.mkdir(exist_ok=True)
    config.to_disk(folder / "config.cfg")
    quick = {"training__max_steps": STEPS, "training__eval_frequency": 5, "training__batcher__size": 300}
    done = train(folder / "config.cfg", folder / "out", corpus, **quick)
    assert (folder / "out" / "model-last" / "meta.json").is_file()
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return lines, done.stdout + done.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory, treebank):
    """The log of a training without rules."""
    lines, _ = run(tmp_path_factory.mktemp("plain"), treebank, None)
    assert lines[-1]["step"] == STEPS and lines[-1]["epoch"] == 3
    return lines


def stops_at(lines, event, holds):
    """The first step at which a rule holds that is evaluated on an event."""
    now = SimpleNamespace(logged=[], epochs=[], scores=[], epoch=0)
    for line, following in pairwise([*lines, None]):
        now.epoch = line["epoch"]
        happens = ["on_step_end"]
        if event == "on_step_end" and holds(now):
            return line["step"]
        if "score" in line:
            now.scores.append(line["scores"]["tag_acc"])
        now.logged.append(line["losses"]["tagger"])
        now.epochs.append(line["epoch"])
        happens = ["on_log", *(["on_save"] if "score" in line else [])]
        if following is not None and following["epoch"] > line["epoch"]:
            happens.append("on_epoch_end")
        if event in happens and holds(now):
            return line["step"]
    return None


@pytest.mark.parametrize("name", STOPS)
def test_framework_example_stops_when_it_should(name, plain, treebank, tmp_path, caplog):
    rules, holds = STOPS[name]
    [one] = rules["controllers"]
    [event] = one["triggers"]
    expected = stops_at(plain, event, holds)
    assert expected is not None and expected < STEPS
    lines, said = run(tmp_path, treebank, rules)
    assert lines[-1]["step"] == expected
    assert [line["losses"] for line in lines] == [line["losses"] for line in plain[: len(lines)]]
    assert said.count("The training stops.") == 1
    assert f"Controller 'stop' took hfcontrols.should_training_stop on {event} at step {expected}, with {{" in said
    given = [level.upper() for level in one.get("config", {}).values()]
    start = "Taking [should_training_stop] action"
    assert [record.levelname for record in caplog.records if record.getMessage().startswith(start)] == given


def test_framework_examples_log(plain, treebank, tmp_path, caplog):
    lines, _ = run(tmp_path, treebank, LOGS)
    said = caplog.text
    assert [line["losses"] for line in lines] == [line["losses"] for line in plain]
    for line in plain:
        assert f"Epoch: {line['epoch']}, Step: {line['step']}, Rank: 0, loss = {line['losses']['tagger']:.3f}\n" in said
    assert said.count("This is [on_step_end] => {") == len(plain)
    saved = [line["step"] for line in plain if "score" in line]
    for step in saved:
        assert said.count(f"Saved at step {step} in {tmp_path / 'out' / 'model-last'}\n") == (2 if step == STEPS else 1)
