"""The example definitions of the framework, by what they say, in `spacy train` on the treebank.

When each has to fire is worked out here from the log of a training without rules, by plain Python. Where the framework
looks at the loss on the development data, these look at a score, and losses are as large as spaCy's.
"""

import json
import re
from itertools import islice, pairwise
from types import SimpleNamespace

import pytest
import spacy
import srsly
from spacy.tokens import DocBin

from ...conftest import SHARED, needs_corpora
from ...spacy_cli import train
from .kit import config_for

pytestmark = needs_corpora

WINDOW = "controller_metrics: [{name: window, class: HistoryBasedMetric, arguments: {window_size: 1}}]"
STATE = "{name: state, class: TrainingState}"
BELOW = """len(window["training_loss"]["loss"]) == window["window_size"]
      and window["training_loss"]["loss"][0] < 110 and window["training_loss"]["epoch"][0] > 1"""

# By name: definition, on which event it stops the training, and when: by what the run is at then.
STOPS = {
    "loss": (
        """
controller_metrics: [{name: loss, class: Loss}]
controllers:
  - {name: stop, triggers: [on_log], rule: 'loss["loss"] < 130.0', operations: [hfcontrols.should_training_stop]}
""",
        "on_log",
        lambda run: run.logged[-1] < 130,
    ),
    "thresholded-training-loss": (
        f"""
{WINDOW}
controllers:
  - name: stop
    triggers: [on_log]
    rule: window["training_loss"]["loss"][-1] > 250
    operations: [hfcontrols.should_training_stop]
""",
        "on_log",
        lambda run: run.logged[-1] > 250,
    ),
    "non-decreasing-training-loss": (
        f"""
{WINDOW.replace("1", "5")}
controllers:
  - name: stop
    triggers: [on_log]
    rule: >
      len(window["training_loss"]["loss"]) == window["window_size"]
      and window["training_loss"]["loss"][0] < window["training_loss"]["loss"][-1]
    operations: [hfcontrols.should_training_stop]
""",
        "on_log",
        lambda run: len(run.logged) >= 5 and run.logged[-5] < run.logged[-1],
    ),
    "epoch-level-training-loss": (
        f"""
controller-metrics: [{STATE}, {{name: window, class: HistoryBasedMetric, arguments: {{window_size: 1}}}}]
controllers:
  - name: stop
    triggers: [on_epoch_end]
    rule: window["training_loss"]["loss"][-1] > 2 and state["epoch"] > 1
    operations: [hfcontrols.should_training_stop]
""",
        "on_epoch_end",
        lambda run: run.logged[-1] > 2 and run.epoch > 1,
    ),
    "epoch-level-training-loss-below-threshold": (
        f"""
{WINDOW}
controllers:
  - name: stop
    triggers: [on_log]
    rule: >
      {BELOW}
    config: {{trigger_log_level: info}}
    operations: [hfcontrols.should_training_stop]
""",
        "on_log",
        lambda run: run.logged[-1] < 110 and run.epochs[-1] > 1,
    ),
    # Of the step before: the window is filled by on_log, which comes later.
    "epoch-level-training-loss-below-threshold-log-config": (
        f"""
{WINDOW}
controllers:
  - name: stop
    triggers: [on_step_end]
    rule: >
      {BELOW}
    config: {{trigger_log_level: warning}}
    operations: [hfcontrols.should_training_stop]
""",
        "on_step_end",
        lambda run: run.logged != [] and run.logged[-1] < 110 and run.epochs[-1] > 1,
    ),
    "epoch-level-eval-loss": (
        f"""
controller_metrics: [{STATE}, {{name: window, class: HistoryBasedMetric, arguments: {{window_size: 1}}}}]
controllers:
  - name: stop
    triggers: [on_epoch_end]
    rule: len(window["metrics"]) > 0 and window["metrics"]["tag_acc"][-1] < 0.9 and state["epoch"] > 0
    operations: [hfcontrols.should_training_stop]
""",
        "on_epoch_end",
        lambda run: run.scores != [] and run.scores[-1] < 0.9 and run.epoch > 0,
    ),
    "epoch-level-eval-loss-patience": (
        f"""
{WINDOW.replace("1", "2")}
controllers:
  - name: stop
    triggers: [on_epoch_end]
    rule: len(window["metrics"]) > 0 and window["metrics"]["tag_acc"][-1] < 0.95
    patience: {{patience_threshold: 2}}
    operations: [hfcontrols.should_training_stop]
""",
        "on_epoch_end",
        lambda run: run.epoch == 2 and run.scores[-1] < 0.95,  # the third time
    ),
    "epoch-level-eval-loss-below-threshold": (
        f"""
controller_metrics: [{STATE}, {{name: evalmetric, class: EvalMetrics}}]
controllers:
  - name: stop
    triggers: [on_epoch_end]
    rule: evalmetric['tag_acc'] > 0.5 and state["epoch"] > 0
    operations: [hfcontrols.should_training_stop]
""",
        "on_epoch_end",
        lambda run: run.scores[-1] > 0.5 and run.epoch > 0,
    ),
    "eval_metrics": (
        f"""
controller-metrics: [{STATE}, {{name: evalmetric, class: EvalMetrics}}]
controllers:
  - name: stop
    triggers: [on_log]
    rule: state['epoch'] > 1 and evalmetric['tag_acc'] > 0.5
    operations: [hfcontrols.should_training_stop]
""",
        "on_log",
        lambda run: run.epoch > 1 and run.scores[-1] > 0.5,
    ),
    "on-save": (
        f"""
controller_metrics: [{STATE}]
controllers:
  - name: stop
    triggers: [on_save]
    rule: state["epoch"] >= 0.5
    operations: [hfcontrols.should_training_stop]
""",
        "on_save",
        lambda run: run.epoch >= 0.5,
    ),
}
# Two that log, and go on. The framework's formats look up with brackets.
LOGS = f"""
controller_metrics:
  - {STATE}
  - {{name: training_loss, class: Loss}}
  - {{name: per_process_state, class: PerProcessState}}
operations:
  - name: on_each_log
    class: LogControl
    arguments:
      log_format: 'Epoch: {{state/epoch:.0f}}, Step: {{state/global_step}}, Rank: {{per_process_state/rank}},
        loss = {{training_loss/loss:.3f}}'
      log_level: info
  - name: on_each_save
    class: LogControl
    arguments: {{log_format: 'Saved at step {{state/global_step}} in {{path}}', log_level: warning}}
  - name: on_each_step
    class: LogControl
    arguments: {{log_format: 'This is [{{event_name}}] => {{state}}', log_level: WARNING}}
controllers:
  - {{name: logged, triggers: [on_log], rule: training_loss != None, operations: [on_each_log.should_log]}}
  - {{name: saved, triggers: [on_save], rule: 'True', operations: [on_each_save.should_log]}}
  - name: final
    triggers: [on_save]
    rule: 'state["is_final"] == True'
    operations: [on_each_save.should_log]
  - {{name: steps, triggers: [on_step_end], rule: 'True', operations: [on_each_step.should_log]}}
"""
STEPS = 30


@pytest.fixture(scope="module")
def treebank(tmp_path_factory):
    """A few documents of the treebank, so that they are read in no time."""
    folder, vocab = tmp_path_factory.mktemp("treebank"), spacy.blank("en").vocab
    paths = {}
    for part, source, n in (("train", "dev", 8), ("dev", "test", 3)):
        docs = DocBin().from_disk(SHARED / "data" / f"ud-english-ewt-{source}.spacy").get_docs(vocab)
        paths[part] = folder / f"{part}.spacy"
        DocBin(docs=list(islice(docs, n))).to_disk(paths[part])
    return paths


def run(folder, corpus, definition):
    """`spacy train`. RETURNS: The lines of its log, and what it said."""
    config = config_for(folder, corpus, None if definition is None else srsly.yaml_loads(definition), checkpoint=True)
    config["training"]["max_epochs"] = 4
    config["training"]["logger"] = {
        "@loggers": "thinc-torchopt.JSONLinesLogger.v1",
        "path": str(folder / "log.jsonl"),
        "every": 1,
    }
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


# What each of them says is said by another one too.
SLOW = ("thresholded-training-loss", "epoch-level-training-loss-below-threshold", "epoch-level-eval-loss")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in STOPS])
def test_framework_example_stops_when_it_should(name, plain, treebank, tmp_path, caplog):
    definition, event, holds = STOPS[name]
    expected = stops_at(plain, event, holds)
    assert expected is not None and expected < STEPS
    lines, said = run(tmp_path, treebank, definition)
    assert lines[-1]["step"] == expected
    assert [line["losses"] for line in lines] == [line["losses"] for line in plain[: len(lines)]]
    assert said.count("The training stops.") == 1
    assert f"Controller 'stop' took hfcontrols.should_training_stop on {event} at step {expected}, with {{" in said
    given = re.findall("trigger_log_level: (info|warning)", definition)
    told = [
        record for record in caplog.records if record.getMessage().startswith("Taking [should_training_stop] action")
    ]
    assert [record.levelname for record in told] == [level.upper() for level in given]


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
