"""`spacy torchopt controller`: definitions are checked, and tried on logs, of which a hand can say where rules fire."""

import json
from pathlib import Path

import pytest
import srsly

from ..models import toy_pipeline
from ..spacy_cli import spacy_cli

LOSS = {"name": "loss", "class": "Loss"}
SCORES = {"name": "scores", "class": "EvalMetrics"}
STATE = {"name": "state", "class": "TrainingState"}


def rule(name, text, *triggers, does="control.should_training_stop", **settings):
    return {"name": name, "triggers": list(triggers), "rule": text, "operations": [does], **settings}


@pytest.fixture
def run(tmp_path):
    """Write a definition and a log, and run the command with them."""

    def run(metrics, rules, lines=None, *args, check=True, operations=()):
        content = {"controller_metrics": metrics, "operations": list(operations), "controllers": rules}
        (tmp_path / "rules.yaml").write_text(srsly.yaml_dumps(content))
        if lines is not None:
            (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            args = ("--replay", tmp_path / "log.jsonl", *args)
        return spacy_cli("torchopt", "controller", tmp_path / "rules.yaml", *args, check=check)

    return run


def log(losses, scores=None, every=1, **more):
    """Lines of a training with ten words a step."""
    lines = [
        {
            "step": i * every,
            "epoch": 0,
            "seconds": i,
            "words": 10 * (i * every + 1),
            "losses": {"ner": loss, "tok2vec": 9},
        }
        | more
        for i, loss in enumerate(losses)
    ]
    for i, score in (scores or {}).items():
        lines[i] |= {"score": score, "scores": {"ents_f": score, "ents_per_type": {"PER": {"f": score}}}}
    return lines


def fired(run):
    return {spec["name"]: spec["steps"] for spec in json.loads(run.stdout)["controllers"]}


def rows(text):
    """The lines of tables, without the padding."""
    return [" ".join(line.split()) for line in text.splitlines()]


# ---------------------------------------------------------------------- check


@pytest.mark.parametrize("flags", [[], ["--check"]])
def test_controller_check_says_what_rules_do(run, flags):
    patience = {"patience_threshold": 2}
    stop = rule("stop", "loss['loss'] < 1", "on_step_end", "on_log", patience=patience, cooldown=1, max_firings=3)
    found = run([LOSS], [stop, rule("save", "loss['loss'] < 2", "on_log", does="hfcontrols.should_save")], None, *flags)
    assert "rules.yaml can be used: 1 metric, 2 controllers." in found.stdout
    line = (
        "stop on_step_end, on_log control.should_training_stop more than 2 times in a row, then not for 1 step, at "
        "most 3 firings"
    )
    assert line in rows(found.stdout)
    assert "save on_log hfcontrols.should_save each time" in rows(found.stdout)


def test_controller_check_as_json(run):
    found = json.loads(run([LOSS], [rule("stop", "loss['loss'] < 1", "on_log")], None, "--check", "--json").stdout)
    assert found["metrics"] == {"loss": "Loss"}
    [spec] = found["controllers"]
    assert (spec["name"], spec["triggers"], spec["operations"]) == (
        "stop",
        ["on_log"],
        ["control.should_training_stop"],
    )
    assert spec["rule"] == "loss['loss'] < 1" and spec["patience"] is None and spec["cooldown"] == 0


@pytest.mark.parametrize("flags", [["--check"], ["--check", "--json"], ["--replay"]])
def test_controller_tells_all_faults_at_once(run, flags):
    metrics = [LOSS, {"name": "x", "class": "Lose"}]
    rules = [rule("a", "los < 1", "on_step"), rule("b", "loss['loss'] <", "on_log", does="control.should_fly")]
    replay = flags == ["--replay"]
    found = run(metrics, rules, log([1]) if replay else None, *([] if replay else flags), check=False)
    assert found.returncode == 1 and not found.stdout
    places = ("metrics[1].class", "controllers[0].triggers[0]", "[0].rule", "[1].rule", "[1].operations[0]")
    assert "found 5 faults" in found.stderr and all(place in found.stderr for place in places)


def test_controller_options_that_do_not_go_together(run):
    found = run([LOSS], [], log([1]), "--check", check=False)
    assert found.returncode == 1 and "Remove --check" in found.stderr and "Traceback" not in found.stderr


# ---------------------------------------------------------------------- replay


def test_controller_replay_fires_where_it_should(run):
    """Losses per word are 0.5, 0.4 ... 0.1, 0.2: below 0.25 at steps 3, 4, 5. tok2vec's is no loss."""
    rules = [
        rule("low", "loss['per_word'] < 0.25", "on_step_end"),
        rule("patient", "loss['per_word'] < 0.25", "on_step_end", patience={"patience_threshold": 1}),
        rule("once", "loss['per_word'] < 0.25", "on_log", max_firings=1),
        rule("rests", "loss['components']['ner'] < 10", "on_log", cooldown=2),
        rule("never", "loss['per_word'] < 0", "on_step_end"),
    ]
    lines = log([5, 4, 3, 2, 1, 2])
    assert fired(run([LOSS], rules, lines, "--json")) == {
        "low": [3, 4, 5],
        "patient": [4],
        "once": [3],
        "rests": [0, 3],
        "never": [],
    }
    text = rows(run([LOSS], rules, lines).stdout)
    assert "low 3 3, 4, 5 control.should_training_stop" in text
    assert "never 0 control.should_training_stop" in text
    assert "4 on_step_end patient loss/per_word 0.1" in text


def test_controller_replay_of_scores(run):
    """The best score is that of step 1; NaN is null in a log, and never the best."""
    rules = [
        rule("plateau", "scores['evaluations_since_best'] >= 2", "on_evaluate"),
        rule("good", "scores['ents_per_type']['PER']['f'] > 0.55", "on_evaluate"),
        rule("later", "scores['ents_f'] > 0.55 and state['step'] > 2", "on_step_end"),
    ]
    lines = log([1] * 6, {0: 0.5, 1: 0.6, 3: None, 4: 0.4, 5: 0.7})
    for line in lines:
        if line.get("score", 0) is None:
            line["scores"] = {"ents_f": 0.3, "ents_per_type": {"PER": {"f": 0.3}}}
    # "later" comes before the evaluation of its step.
    assert fired(run([SCORES, STATE], rules, lines, "--json")) == {"plateau": [4], "good": [1, 5], "later": [3]}


def test_controller_replay_knows_means_only_where_lines_are_apart(run):
    """Every fourth step: ten words a step all the same."""
    found = run([LOSS], [rule("low", "loss['per_word'] <= 0.2", "on_step_end")], log([3, 2, 4, 1], every=4), "--json")
    assert fired(found) == {"low": [4, 12]}
    assert any("Not all steps" in note for note in json.loads(found.stdout)["notes"])
    assert json.loads(found.stdout)["firings"][0]["values"] == {"loss/per_word": pytest.approx(0.2)}


def test_controller_replay_of_windows_epochs_rates_and_norms(run):
    metrics = [
        {"name": "window", "class": "HistoryBasedMetric", "arguments": {"window_size": 2}},
        {"name": "rates", "class": "LearnRates"},
        {"name": "norms", "class": "GradNorm"},
        STATE,
    ]
    window = "window['training_loss']['loss']"
    rules = [
        rule("rises", f"len({window}) == 2 and {window}[0] < {window}[-1]", "on_log"),
        rule("epoch", "state['epoch'] >= 0", "on_epoch_end"),
        rule("begins", "state['epoch'] >= 0", "on_epoch_begin"),
        rule("spike", "norms['total'] > 5", "on_pre_optimizer_step"),
        rule("slow", "rates['default'] < 0.1", "on_step_begin"),
        rule("skipped", "state['skipped_updates'] > 0 and state['words'] < 50", "on_step_end"),
    ]
    lines = log([3, 2, 4, 1, 2])
    for i, line in enumerate(lines):
        line |= {"epoch": i // 2, "grad_norm": [1, None, 9, 1, 1][i], "learn_rates": {"default": 0.2 / (i + 1)}}
        line |= {"skipped_updates": int(i > 1)}
    assert fired(run(metrics, rules, lines, "--json")) == {
        "rises": [2, 4],
        "epoch": [1, 3],
        "begins": [-1, 1, 3],
        "spike": [2],
        "slow": [2, 3, 4],
        "skipped": [2, 3],
    }


def test_controller_replay_tells_once_what_had_no_value(run, caplog):
    rules = [
        rule("memory", "memory['memory'] > 0", "on_step_end"),
        rule("more", "memory['peak_memory'] > 0", "on_step_end"),
        rule("end", "state['step'] > state['max_steps'] - 2", "on_step_end"),
        rule("saved", "state['step'] >= 0", "on_save"),
        rule("fine", "state['step'] == 1", "on_step_end"),
    ]
    found = run([STATE, {"name": "memory", "class": "SystemState"}], rules, log([1, 1]), "--json")
    assert fired(found) == {"memory": [], "more": [], "end": [], "saved": [], "fine": [1]}
    content = json.loads(found.stdout)
    assert content["without_value"] == ["memory"]
    first, second, third = content["notes"]
    assert "memory (SystemState)" in first and "'end'" in second and "max_steps" in second
    assert "on_save" in third and "'saved'" in third
    assert not found.stderr and not caplog.records


def test_controller_replay_does_nothing(run, caplog):
    note = {"name": "note", "class": "LogControl", "arguments": {"log_format": "low", "log_level": "error"}}
    rules = [rule("low", "loss['loss'] < 2", "on_log", does="note.should_log", config={"trigger_log_level": "error"})]
    assert fired(run([LOSS], rules, log([1]), "--json", operations=[note])) == {"low": [0]}
    assert not caplog.records


def test_controller_replay_of_infinite_losses_is_json(run):
    rules = [rule("nan", "loss['loss'] != loss['loss']", "on_log")]
    found = run([LOSS], rules, log([1, None]), "--json")
    assert json.loads(found.stdout)["firings"] == [
        {
            "controller": "nan",
            "event": "on_log",
            "step": 1,
            "operations": ["control.should_training_stop"],
            "values": {"loss/loss": None},
        }
    ]


def test_controller_replay_shows_the_first_of_many_firings(run):
    found = run([STATE], [rule("all", "state['step'] >= 0", "on_log")], log([1] * 60))
    assert "all 60 0, 1, 2, 3, 4 ... control.should_training_stop" in rows(found.stdout)
    assert "the first 50 of 60 firings" in found.stdout
    assert sum(" on_log all " in row for row in rows(found.stdout)) == 50


def test_controller_replay_ends_where_a_rule_fails(run):
    found = run([LOSS], [rule("bad", "1 / (loss['loss'] - 2) < 0", "on_log")], log([1, 2]), check=False)
    assert found.returncode == 1 and "'bad' on on_log at step 1" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("lines, text", [([], "found none"), ([{"a": 1}], "lines of JSON with 'step'")])
def test_controller_replay_of_no_log(run, lines, text):
    found = run([LOSS], [rule("low", "loss['loss'] < 1", "on_log")], lines, check=False)
    assert found.returncode == 1 and text in found.stderr


def test_controller_replay_of_damaged_and_strange_lines(run, tmp_path):
    lines = log([3, 1, 1], learn_rates=[1], grad_norm="x", words=True, score="y")
    lines.insert(1, {"step": 1, "losses": {"ner": 0, "x": "y"}})
    found = run([LOSS], [rule("low", "loss['loss'] < 2", "on_log")], lines, "--json")
    # What comes later counts.
    assert fired(found) == {"low": [1, 2]} and json.loads(found.stdout)["firings"][0]["values"] == {"loss/loss": 1.0}
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    found = spacy_cli("torchopt", "controller", tmp_path / "rules.yaml", "--replay", tmp_path / "log.jsonl", "--json")
    assert fired(found) == {"low": [1, 2]} and "half a line" in json.loads(found.stdout)["notes"][0]


def test_controller_replay_of_a_run_in_several_logs(run, tmp_path):
    """Windows, patience and cool-downs go on from one to the next; steps that were done again count once."""
    window = {"name": "window", "class": "HistoryBasedMetric", "arguments": {"window_size": 3}}
    rules = [
        rule("low", "loss['loss'] < 4", "on_log", patience={"patience_threshold": 2}),
        rule("rests", "loss['loss'] < 9", "on_log", cooldown=2),
        rule("falls", "window['training_loss']['steps'] == [3, 4, 5]", "on_log"),
        rule("begins", "state['step'] < 99", "on_train_begin"),
    ]
    lines = log([5, 4, 3, 2, 1, 2, 3, 5])
    whole = fired(run([LOSS, STATE, window], rules, lines, "--json"))
    assert whole == {"low": [4], "rests": [0, 3, 6], "falls": [5], "begins": [-1]}

    def write(name, lines):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    # It was killed after step 4 and went on after step 2; then after step 5; and was then killed at once.
    write("log.jsonl", log([5, 4, 3, 9, 9]))
    write("log-2.jsonl", lines[3:6])
    write("log-10.jsonl", lines[6:])
    write("log-11.jsonl", [])
    command = ("torchopt", "controller", tmp_path / "rules.yaml", "--replay")
    first, *more = (tmp_path / name for name in ("log-10.jsonl", "log-11.jsonl", "log-2.jsonl", "log.jsonl"))
    found = spacy_cli(*command, first, *more, "--json")
    assert fired(found) == whole
    content = json.loads(found.stdout)
    assert content["logs"] == [str(path) for path in (first, *more)] and content["last_step"] == 7
    assert content["notes"] == [
        "log-2.jsonl begins at step 3: 2 earlier lines from that step on are left out.",
        "log-11.jsonl is empty.",
    ]
    repeated = spacy_cli(*command, more[2], "--replay", more[1], "--replay", first)
    assert "low 1 4 control.should_training_stop" in rows(repeated.stdout)
    assert f"{more[2]}, {more[1]}, {first}: 8 lines, step 0 to 7." in " ".join(repeated.stdout.split())
    # Logs with names of their own stay as they are given.
    write("b.jsonl", log([5, 4, 3, 9, 9]))
    write("a.jsonl", lines[3:])
    assert fired(spacy_cli(*command, tmp_path / "b.jsonl", tmp_path / "a.jsonl", "--json")) == whole


def test_controller_replay_of_logs_that_can_not_be(run, tmp_path):
    run([LOSS], [rule("low", "loss['loss'] < 1", "on_log")], log([1]))
    (tmp_path / "log-2.jsonl").touch()
    found = spacy_cli("torchopt", "controller", tmp_path / "rules.yaml", tmp_path / "log.jsonl", check=False)
    assert found.returncode == 1 and "logs are given after --replay" in found.stderr
    empty = ("--replay", tmp_path / "log-2.jsonl", "--replay", tmp_path / "log-2.jsonl")
    found = spacy_cli("torchopt", "controller", tmp_path / "rules.yaml", *empty, check=False)
    assert found.returncode == 1 and "at least one line" in found.stderr


def test_controller_metrics_of_ones_own(run, tmp_path):
    code = """
from thinc_torchopt.addons.controller.metrics import Metric, controller_metrics

@controller_metrics("TestDoubled")
class Doubled(Metric):
    events = ("on_step_end",)
    def compute(self, event_name, *, losses, **kwargs):
        return 2 * losses["ner"]
"""
    (tmp_path / "code.py").write_text(code)
    metrics, rules = [{"name": "twice", "class": "TestDoubled"}], [rule("low", "twice < 5", "on_log")]
    assert fired(run(metrics, rules, log([3, 2]), "--json", "--code", tmp_path / "code.py")) == {"low": [1]}


def test_controller_replay_knows_the_loss_on_the_development_data(run):
    lines = log([5, 4, 3, 2], {1: 0.1, 3: 0.2})
    lines[1]["dev_losses"] = {"losses": {"ner": 20.0, "tok2vec": 9.0}, "words": 10, "examples": 2}
    lines[3]["dev_losses"] = {"losses": {"ner": 3.0, "tok2vec": 9.0}, "words": 10, "examples": 2}
    metrics = [{"name": "dev", "class": "EvalLoss"}]
    found = run(metrics, [rule("low", "dev['per_word'] < 1", "on_evaluate")], lines, "--json")
    assert fired(found) == {"low": [3]}
    for damaged in ("text", {"losses": 3}, {"losses": {"ner": None}, "words": True, "examples": 2}):
        lines[3]["dev_losses"] = damaged
        assert fired(run(metrics, [rule("low", "dev['per_word'] < 1", "on_evaluate")], lines, "--json")) == {"low": []}


# ---------------------------------------------------------------------- configs, and other settings

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
FALLING = [5, 4, 3, 2, 1, 2]


def test_controller_takes_a_config(tmp_path):
    (tmp_path / "config.cfg").write_text(CONFIG)
    found = spacy_cli("torchopt", "controller", tmp_path / "config.cfg", "--check")
    assert "config.cfg can be used: 1 metric, 1 controller." in found.stdout
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log(FALLING)))
    args = (tmp_path / "config.cfg", "--replay", tmp_path / "log.jsonl", "--json")
    found = spacy_cli("torchopt", "controller", *args)
    assert fired(found) == {"low": [3, 4, 5]}


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
    found = spacy_cli("torchopt", "controller", tmp_path / "config.cfg", check=False)
    said = " ".join((found.stdout + found.stderr).split())
    assert found.returncode == 1 and reason in said and "Traceback" not in said


def test_controller_replays_a_changed_rule(run):
    rules = [rule("low", "loss['per_word'] < 0.25", "on_step_end"), rule("all", "True", "on_step_end", max_firings=1)]
    sets = ("--set", "low.rule=loss['per_word'] < 0.15", "--set", "all.max_firings=2", "--set", "low.cooldown=1")
    found = run([LOSS], rules, log(FALLING), *sets)
    assert "low 1 4 3, 4, 5 control.should_training_stop" in rows(found.stdout)
    assert "all 2 0, 1 0 control.should_training_stop" in rows(found.stdout)
    found = run([LOSS], rules, log(FALLING), *sets, "--json")
    assert fired(found) == {"low": [4], "all": [0, 1]}
    assert [one["unchanged_steps"] for one in json.loads(found.stdout)["controllers"]] == [[3, 4, 5], [0]]
    sets = ("--set", "low.patience.patience_threshold=1")
    assert fired(run([LOSS], rules, log(FALLING), *sets, "--json"))["low"] == [4]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("low", "NAME.KEY=VALUE"),
        ("rule=1", "NAME.KEY=VALUE"),
        ("lo.rule=1 < 2", "Did you mean 'low'"),
        ("low.rul=1 < 2", "Did you mean 'rule'"),
        ("low.rule=los < 1", "Did you mean 'loss'"),
        ("low.name.x=1", "has no keys"),
    ],
)
def test_controller_change_that_can_not_be(run, text, reason):
    found = run([LOSS], [rule("low", "loss['per_word'] < 0.25", "on_step_end")], None, "--set", text, check=False)
    assert found.returncode == 1 and reason in " ".join(found.stderr.split()) and "Traceback" not in found.stderr


# ---------------------------------------------------------------------- a config


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
        algorithm = {"@torch_optimizers": "torch.AdamW.v1"}
        found["training"]["optimizer"] = {
            "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
            "algorithm": algorithm,
            "controller": controller,
            **optimizer,
        }
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
        found = json.loads(spacy_cli("torchopt", "controller", path, "--check", "--json", *args).stdout)
        assert ">= 8" in found["controllers"][0]["rule"]
    found = spacy_cli(
        "torchopt", "controller", path, "--training.optimizer.controller.rules.stop.evals", 8, check=False
    )
    assert found.returncode == 1 and "evals" in found.stderr
    found = spacy_cli("torchopt", "controller", path, "--chek", check=False)
    assert found.returncode == 1 and "No such option '--chek'" in found.stderr


def test_controller_takes_overrides_only_of_a_config(run):
    found = run([LOSS], [rule("low", "loss['loss'] < 1", "on_step_end")], None, "--training.x", "1", check=False)
    assert found.returncode == 1 and "is a file of rules" in " ".join(found.stderr.split())


def test_controller_checks_the_folder_of_a_pipeline(config, tmp_path):
    config({"stop": named("stop_early")})
    found = spacy_cli("torchopt", "controller", tmp_path, "--check")
    assert "1 controller." in found.stdout


def test_controller_sets_arguments_of_rules_by_name(config, tmp_path):
    """And keys of their definition; in a replay, beside the rule as it is."""
    path = config({"stop": named("stop_early", evaluations=2), "2-cut": named("cut_on_plateau", evaluations=1)})
    lines = log([0.5] * 6, dict.fromkeys(range(6), 0.5))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = ("--set", "stop.evaluations=4", "--set", "2-cut.evaluations=3", "--set", "2-cut.max_firings=1")
    found = spacy_cli("torchopt", "controller", path, "--json", *sets, "--replay", tmp_path / "log.jsonl")
    assert fired(found) == {"stop": [4, 5], "2-cut": [3]}
    unchanged = [one["unchanged_steps"] for one in json.loads(found.stdout)["controllers"]]
    assert unchanged == [[2, 3, 4, 5], [1, 2, 3, 4, 5]]
    found = spacy_cli("torchopt", "controller", path, "--set", "stop.evaluation=4", check=False)
    assert found.returncode == 1 and "'evaluations'" in found.stderr and "Traceback" not in found.stderr


def test_controller_knows_the_names_of_scores(config):
    """Those of `score_weights`, which the pipeline brings along."""
    rules = {"stop": named("stop_early", of="scores['tag_accs']"), "best": named("keep_best", of="scores['ents_f']")}
    found = spacy_cli("torchopt", "controller", config(rules), "--check")
    said = " ".join(found.stdout.split())
    assert "found 'tag_accs'. Did you mean 'tag_acc'?" in said and "found 'ents_f'" in said
    good = {"stop": named("stop_early", of="scores['tag_acc'] + scores['token_acc'] + scores['score']")}
    assert "Note" not in spacy_cli("torchopt", "controller", config(good), "--check").stdout


def test_controller_replay_knows_the_end_of_the_training(config, tmp_path):
    """`max_steps`, and the warm-up: what the log of a run does not have."""
    lines = log([0.5] * 8, dict.fromkeys(range(8), 0.5))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    at = {"triggers": ["on_step_end"], "operations": ["control.should_log"]}
    rules = {
        "stop": named("stop_early", evaluations=1),
        "half": {**at, "rule": "state['step'] >= state['max_steps'] / 2"},
        "last": {**at, "rule": "state['is_final']"},
    }
    metrics = '\n[training.optimizer.controller.metrics.state]\n@controller_metrics = "TrainingState"\n'
    warmup = {"@schedules": "thinc-torchopt.warmup_linear.v1", "initial_rate": 0.1, "warmup_ratio": 0.625}
    path = config(rules, steps=7, metrics=metrics, learn_rate=warmup)
    found = spacy_cli("torchopt", "controller", path, "--json", "--replay", tmp_path / "log.jsonl")
    assert fired(found) == {"stop": [5, 6, 7], "half": [4, 5, 6, 7], "last": [7]}  # 8 steps, 5 of them are warm-up
    found = spacy_cli(
        "torchopt", "controller", path, "--json", "--replay", tmp_path / "log.jsonl", "--training.max_steps", 4
    )
    assert fired(found)["half"] == [2, 3, 4, 5, 6, 7]


def test_controller_takes_classes_of_the_user(config):
    """From a file for --code: they have the constructor of `Metric`, or attributes with annotations."""
    metrics = "".join(OWN.format(i=i, name=name) for i, name in enumerate(("Plain", "Annotated", "AnnotatedAlone")))
    rules = {"r": {"rule": "m0 + m1 + m2 > 0", "triggers": ["on_step_end"], "operations": ["control.should_log"]}}
    code = Path(__file__).parents[1] / "addons" / "controller" / "own_classes.py"
    found = spacy_cli("torchopt", "controller", config(rules, metrics=metrics), "--check", "--code", code)
    assert "3 metrics, 1 controller" in found.stdout
