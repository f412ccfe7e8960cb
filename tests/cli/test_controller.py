"""`spacy torchopt controller`: definitions are checked."""

import json
from pathlib import Path

import pytest
import srsly

from ..models import toy_pipeline
from ..runs import OPTIMIZER
from ..spacy_cli import refusal, spacy_cli

LOSS = {"name": "loss", "class": "Loss"}


def rule(name, text, *triggers, does="control.should_training_stop", **settings):
    return {"name": name, "triggers": list(triggers), "rule": text, "operations": [does], **settings}


@pytest.fixture
def run(tmp_path):
    """Write a definition, and run the command with it."""

    def run(metrics, rules, *args, by=spacy_cli):
        content = {"controller_metrics": metrics, "controllers": rules}
        (tmp_path / "rules.yaml").write_text(srsly.yaml_dumps(content))
        return by("torchopt", "controller", tmp_path / "rules.yaml", *args)

    return run


def rows(text):
    """The lines of tables, without the padding."""
    return [" ".join(line.split()) for line in text.splitlines()]


# ---------------------------------------------------------------------- check


def test_controller_check_says_what_rules_do(run):
    patience = {"patience_threshold": 2}
    stop = rule("stop", "loss['loss'] < 1", "on_step_end", "on_log", patience=patience, cooldown=1, max_firings=3)
    found = run([LOSS], [stop, rule("save", "loss['loss'] < 2", "on_log", does="hfcontrols.should_save")])
    assert "rules.yaml can be used: 1 metric, 2 controllers." in found.stdout
    line = (
        "stop on_step_end, on_log control.should_training_stop more than 2 times in a row, then not for 1 step, at "
        "most 3 firings"
    )
    assert line in rows(found.stdout)
    assert "save on_log hfcontrols.should_save each time" in rows(found.stdout)


def test_controller_check_as_json(run):
    found = json.loads(run([LOSS], [rule("stop", "loss['loss'] < 1", "on_log")], "--json").stdout)
    assert found["metrics"] == {"loss": "Loss"}
    [spec] = found["controllers"]
    assert (spec["name"], spec["triggers"], spec["operations"]) == (
        "stop",
        ["on_log"],
        ["control.should_training_stop"],
    )
    assert spec["rule"] == "loss['loss'] < 1" and spec["patience"] is None and spec["cooldown"] == 0


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_controller_tells_all_faults_at_once(run, flags):
    metrics = [LOSS, {"name": "x", "class": "Lose"}]
    rules = [rule("a", "los < 1", "on_step"), rule("b", "loss['loss'] <", "on_log", does="control.should_fly")]
    said = run(metrics, rules, *flags, by=refusal)
    places = ("metrics[1].class", "controllers[0].triggers[0]", "[0].rule", "[1].rule", "[1].operations[0]")
    assert "found 5 faults" in said and all(place in said for place in places)


# ---------------------------------------------------------------------- configs

CONFIG = """
[training]

[training.optimizer]

[training.optimizer.controller]
@misc = "thinc-torchopt.TrainerController.v1"

[training.optimizer.controller.metrics]

[training.optimizer.controller.metrics.loss]
@controller_metrics = "Loss"

[training.optimizer.controller.rules]

[training.optimizer.controller.rules.low]
rule = "loss['per_word'] < 0.25"
triggers = ["on_step_end"]
operations = ["control.should_training_stop"]
"""


def test_controller_takes_a_config(tmp_path):
    (tmp_path / "config.cfg").write_text(CONFIG)
    found = spacy_cli("torchopt", "controller", tmp_path / "config.cfg")
    assert "config.cfg can be used: 1 metric, 1 controller." in found.stdout


@pytest.mark.parametrize(
    "text, reason",
    [
        ("[training]\n[training.optimizer]\n", r"expected a block [training.optimizer.controller], found none"),
        (CONFIG.replace("< 0.25", "<"), "rules.low"),
        (CONFIG.replace("per_word'", "per_wrd'"), "Did you mean 'per_word'"),
        (CONFIG.replace('"Loss"', '"Lose"'), "Lose"),
        (CONFIG.replace("TrainerController.v1", "EMA.v1"), "training.optimizer.controller"),
    ],
)
def test_controller_config_with_an_error(text, reason, tmp_path):
    (tmp_path / "config.cfg").write_text(text)
    assert reason in refusal("torchopt", "controller", tmp_path / "config.cfg")


OWN = """
[training.optimizer.controller.metrics.m{i}]
@controller_metrics = "test-own.{name}.v1"
"""


@pytest.fixture
def config(tmp_path):
    """A config with blocks of rules, for a pipeline of a tagger."""

    def make(rules, *, steps=600, pipeline=("tagger",), metrics="", **optimizer):
        nlp = toy_pipeline(pipeline)
        found = nlp.config.copy()
        controller = {"@misc": "thinc-torchopt.TrainerController.v1", "metrics": {}, "rules": rules}
        found["training"]["optimizer"] = OPTIMIZER | {"controller": controller, **optimizer}
        found["training"]["max_steps"] = steps
        (tmp_path / "config.cfg").write_text(found.to_str() + metrics)
        return tmp_path / "config.cfg"

    return make


def named(kind, **arguments):
    return {"@controller_rules": f"thinc-torchopt.{kind}.v1", **arguments}


def test_controller_takes_overrides_of_a_config(config):
    """As all commands that take a config."""
    path, key = config({"stop": named("stop_early")}), "--training.optimizer.controller.rules.stop.evaluations"
    for args in ([key, 8], [f"{key}=8"]):
        found = json.loads(spacy_cli("torchopt", "controller", path, "--json", *args).stdout)
        assert ">= 8" in found["controllers"][0]["rule"]
    said = refusal("torchopt", "controller", path, "--training.optimizer.controller.rules.stop.evals", 8)
    assert "evals" in said
    assert "No such option '--chek'" in refusal("torchopt", "controller", path, "--chek")


def test_controller_takes_overrides_only_of_a_config(run):
    said = run([LOSS], [rule("low", "loss['loss'] < 1", "on_step_end")], "--training.x", "1", by=refusal)
    assert "is a file of rules" in said


def test_controller_checks_the_folder_of_a_pipeline(config, tmp_path):
    config({"stop": named("stop_early")})
    found = spacy_cli("torchopt", "controller", tmp_path)
    assert "1 controller." in found.stdout


def test_controller_knows_the_names_of_scores(config):
    """Those of `score_weights`, which the pipeline brings along."""
    rules = {"stop": named("stop_early", of="scores['tag_accs']"), "best": named("keep_best", of="scores['ents_f']")}
    found = spacy_cli("torchopt", "controller", config(rules))
    said = " ".join(found.stdout.split())
    assert "found 'tag_accs'. Did you mean 'tag_acc'?" in said and "found 'ents_f'" in said
    good = {"stop": named("stop_early", of="scores['tag_acc'] + scores['token_acc'] + scores['score']")}
    assert "Note" not in spacy_cli("torchopt", "controller", config(good)).stdout


def test_controller_takes_classes_of_the_user(config):
    """From a file for --code: they have the constructor of `Metric`, or attributes with annotations."""
    metrics = "".join(OWN.format(i=i, name=name) for i, name in enumerate(("Plain", "Annotated", "AnnotatedAlone")))
    rules = {"r": {"rule": "m0 + m1 + m2 > 0", "triggers": ["on_step_end"], "operations": ["control.should_log"]}}
    code = Path(__file__).parents[1] / "addons" / "controller" / "own_classes.py"
    found = spacy_cli("torchopt", "controller", config(rules, metrics=metrics), "--code", code)
    assert "3 metrics, 1 controller" in found.stdout
