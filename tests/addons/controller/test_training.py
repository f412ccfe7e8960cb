"""The trainer controller in `spacy train`: what rules ask for is done, is logged, and is done again in a run that goes
on.
"""

import io
import json
import logging
import math
import re

import pytest
import spacy
from confection import Config
from spacy.training import loop
from spacy.training.initialize import init_nlp
from spacy.util import registry

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.controller import trainer_controller
from thinc_torchopt.addons.controller.run_rules import Rules
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError, ConfigWarning, ControllerError, RollbackWarning
from thinc_torchopt.loop.checkpoint_folder import steps_of
from thinc_torchopt.loop.run import Run

from ...models import ready_pipeline
from ...spacy_cli import train as train_by_command
from .kit import (
    CUT,
    LAST,
    LOG,
    LOSS,
    LOWER,
    NORMS,
    NOTE,
    SCORES,
    STEP,
    STOP,
    config_for,
    definition,
    firings,
    part,
    rule,
    run,
    same_params,
)


def test_controller_stops_cleanly_at_a_loss(corpus, tmp_path):
    """By the command: exit code 0, the last model, spaCy's success line, and a log that says why."""
    rules = definition(rule("low", "on_step_end", 'loss["per_word"] < 0.3', STOP), metrics=[part("loss", "Loss")])
    config, log = config_for(tmp_path, corpus, rules, steps=200), tmp_path / "log.jsonl"
    config["training"]["logger"] = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1", "path": str(log), "every": 50}
    config.to_disk(tmp_path / "config.cfg")
    done = train_by_command(tmp_path / "config.cfg", tmp_path / "out", corpus, training__max_steps=200)
    assert done.returncode == 0 and "Saved pipeline to output directory" in done.stdout
    assert spacy.load(tmp_path / "out" / "model-last").pipe_names == ["tagger"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    last = lines[-1]
    assert 0 < last["step"] < 200 and not any("controller" in line for line in lines[:-1])
    [firing] = last["controller"]
    assert firing["controller"] == "low" and firing["event"] == "on_step_end" and firing["step"] == last["step"]
    assert firing["values"]["loss"]["per_word"] < 0.3
    said = f"Controller 'low' took {STOP} on on_step_end at step {last['step']}, with {{'loss': "
    assert said in done.stdout + done.stderr, done.stdout + done.stderr


def test_controller_losses_are_divided_by_words(corpus, tmp_path):
    rules = definition(rule("each", "on_step_end", "loss['per_word'] < loss['per_example']", LOG), metrics=[LOSS])
    _, infos, _ = run(config_for(tmp_path, corpus, rules, steps=1))
    [firing] = infos[0]["controller"]
    assert firing["values"]["loss"]["per_word"] == infos[0]["losses"]["tagger"] / infos[0]["words"]


def at(step, *operations, event="on_step_end", **more):
    return rule(f"at-{step}", event, f'state["step"] == {step}', *operations, **more)


GROUPS = {"lower": {"params": ["*embed*"]}}


def test_controller_cuts_and_sets_rates(corpus, tmp_path):
    """Of the groups that are named, from the next step on; down to the smallest."""
    rules = definition(
        rule("often", "on_step_end", 'state["step"] % 2 == 1', "cut.should_cut"),
        at(4, "put.should_set"),
        operations=[
            part("cut", "LearnRateControl", groups=["lower"], factor=0.5, min_rate=0.003),
            part("put", "LearnRateControl", groups=["def*"], rate=0.007),
        ],
    )
    _, infos, _ = run(config_for(tmp_path, corpus, rules, steps=6, param_groups=GROUPS))
    lower, others = ([info["learn_rates"][name] for info in infos.values()] for name in ("lower", "default"))
    assert lower == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.003, 0.003, 0.003])
    assert others == pytest.approx([0.01] * 5 + [0.007] * 2)


def test_controller_saves_evaluates_and_ends_epochs(corpus, tmp_path):
    late = at(5, "control.should_evaluate", event="on_log")
    rules = definition(at(2, "control.should_save"), late, at(1, "control.should_epoch_stop"))
    _, infos, _ = run(config_for(tmp_path, corpus, rules, steps=6, checkpoint=True))
    assert [int(path.name[5:]) for path in steps_of(tmp_path / "state")] == [0, 2, 4, 6]
    assert infos[3]["score"] is None and infos[6]["score"] is not None  # asked for too late at 5, it is done after 6
    assert [info["epoch"] for info in infos.values()][:3] == [0, 0, 1]


def test_controller_freezes_and_unfreezes(corpus, tmp_path):
    """Within an update it is put off to its end. A run that goes on knows it."""
    rules = definition(
        at(3, "lower.should_freeze", event="on_pre_optimizer_step"),
        at(9, "lower.should_unfreeze"),
        at(1, "half.should_cut"),
        operations=[LOWER, part("half", "LearnRateControl", groups=["lower"], factor=0.5)],
    )
    more = {"checkpoint": True, "param_groups": GROUPS, "use_averages": True}
    whole, infos, _ = run(config_for(tmp_path / "a", corpus, rules, **more))
    rates = [info["learn_rates"]["lower"] for info in infos.values()]
    # What was cut stays cut.
    assert rates == [0.01] * 2 + [0.005] * 2 + [0.0] * 6 + [0.005] * 3
    config = config_for(tmp_path / "b", corpus, rules, **more)
    for step in (6, 11, None):  # while they are frozen, and afterwards
        resumed, *_ = run(config, crash_at=step)
    assert same_params(resumed, whole)


@pytest.mark.parametrize("event", ["on_step_end", "on_evaluate"])
def test_controller_goes_back(event, corpus, tmp_path):
    rules = definition(at(8, "last.should_rollback", event=event), operations=[LAST])
    with pytest.warns(RollbackWarning, match="params of step 4 after step 8: a rule or listener asked"):
        _, infos, _ = run(config_for(tmp_path, corpus, rules, checkpoint=True))
    assert infos[12]["rollbacks"] == 1 and infos[12]["last_rollback"] == (8, 4)


def test_controller_that_never_fires_changes_nothing(corpus, tmp_path):
    rules = definition(
        *(rule(event, event, 'state["step"] < -5', STOP) for event in ("on_step_end", "on_evaluate", "on_log")),
        rule("norm", "on_optimizer_step", 'norms["total"] < 0 and loss["loss"] < 0', STOP),
        metrics=[STEP, NORMS, LOSS],
    )
    with_rules, infos, _ = run(config_for(tmp_path, corpus, rules, use_averages=True))
    without, others, _ = run(config_for(tmp_path, corpus, None, use_averages=True))
    assert same_params(with_rules, without)
    passing = ("run_id", "seconds", "elapsed", "time_spent", "other_scores")
    lasting, expected = (
        {step: {key: repr(value) for key, value in info.items() if key not in passing} for step, info in each.items()}
        for each in (infos, others)
    )
    assert lasting == expected


def test_controller_resumes_exactly(corpus, tmp_path):
    """Windows, patience, cool-downs, and what is yet to be logged: the parts fire as the whole."""
    patient = {"patience": {"patience_threshold": 2}, "cooldown": 1}
    rules = definition(
        rule("begin", "on_train_begin", 'state["step"] < 99', "note.should_log"),
        rule("tired", "on_step_end", 'state["step"] > 0', "cut.should_cut", **patient),
        rule("full", "on_step_end", 'len(window["training_loss"]["loss"]) == 3', "note.should_log", max_firings=9),
        rule("saved", "on_save", 'state["step"] == 4', "control.should_evaluate"),
        metrics=[STEP, part("window", "HistoryBasedMetric", window_size=3, source_event="on_step_end")],
        operations=[part("cut", "LearnRateControl", factor=0.9), NOTE],
    )
    _, whole, _ = run(config_for(tmp_path / "whole", corpus, rules, checkpoint=True))
    config, parts = config_for(tmp_path / "parts", corpus, rules, checkpoint=True), {}
    for step in (5, 7, None):
        _, infos, _ = run(config, crash_at=step)
        parts |= infos
    assert {name for _, name, _ in firings(whole)} == {"begin", "tired", "full", "saved"} and len(firings(whole)) > 12
    assert parts[5]["score"] is not None

    def told(infos):
        every = [firing for info in infos.values() for firing in info.get("controller", ())]
        return every, [(info["learn_rates"], info.get("fired")) for info in infos.values()]

    assert told(parts) == told(whole)


@pytest.mark.parametrize(("steps", "stop_at", "is_killed"), [(12, 4, False), (4, 99, False), (4, 99, True)])
def test_controller_that_stopped_stays_so(steps, stop_at, is_killed, corpus, tmp_path, caplog, monkeypatch):
    """Also by a rule on `on_save`, when the state of the run was written already. Rules on its end act once, also if it
    was killed before them.
    """
    stop, end = ("on_save", f'state["step"] == {stop_at}', STOP), ("on_train_end", "True", "note.should_log")
    rules = definition(rule("stop", *stop), rule("end", *end), operations=[NOTE])
    config = config_for(tmp_path, corpus, rules, steps=steps, checkpoint=True)
    if is_killed:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(Run, "end", lambda self: 1 / 0)
            run(config)
        assert "step 4" not in caplog.messages
    else:
        assert list(run(config)[1]) == [0, 1, 2, 3, 4]
    assert run(config)[1] == {} and caplog.messages.count("step 4") == 1


def test_controller_tells_the_console(corpus, tmp_path, caplog):
    """Of a rule with a level of its own, only at that level."""
    rules = definition(
        rule("odd", "on_step_end", 'state["step"] % 2 == 1', "note.should_log"),
        rule("told", "on_step_end", 'state["step"] == 5', "lower.should_freeze"),
        rule("own", "on_step_end", 'state["step"] == 5', "lower.should_unfreeze", config={"trigger_log_level": "info"}),
        operations=[NOTE, LOWER],
    )
    config = config_for(tmp_path, corpus, rules, steps=5)
    text = io.StringIO()
    with caplog.at_level(logging.INFO, "spacy.torchopt"):
        loop.train(init_nlp(config.interpolate()), None, stdout=text, stderr=io.StringIO())
    rows = [line for line in text.getvalue().splitlines() if line.startswith(("  0", "  1"))]
    assert not rows[0].endswith("fired") and rows[1].endswith("odd fired 2 times")
    told = [re.split(" on on_| in ", text)[0] for text in caplog.messages if "step" in text]
    assert told[:3] == ["step 1", "step 3", "step 5"]
    assert told[3:] == ["Taking [should_unfreeze] action", "Controller 'told' took lower.should_freeze"]


def test_controller_rule_that_names_a_score_that_there_is_not(corpus, tmp_path):
    """Which scores there are is known from the first evaluation on."""
    rules = definition(rule("good", "on_evaluate", 'scores["ents_f"] > 0.9', STOP), metrics=[SCORES])
    says = r"controller 'good' on on_evaluate at step 0: expected a key of scores \(.*tag_acc, .*\), found 'ents_f'"
    doubt = "A rule may fail in the training: controller 'good'.*found 'ents_f'"
    with pytest.raises(ControllerError, match=says), pytest.warns(ConfigWarning, match=doubt):
        run(config_for(tmp_path, corpus, rules, steps=2))


@pytest.mark.parametrize(
    ("metric", "lookup", "says"),
    [
        ("LearnRates", '["encodr"]', r"a key of m, found 'encodr'"),
        ("GradNorm", '["components"]["tager"]', r"Did you mean 'tagger'\?"),
        ("Loss", '["components"]["tager"]', r"Did you mean 'tagger'\?"),
        ("EvalLoss", '["components_per_word"]["tager"]', r"Did you mean 'tagger'\?"),
        ("HistoryBasedMetric", '["training_loss"]["components"]["tager"][0]', r"Did you mean 'tagger'\?"),
    ],
)
def test_controller_finds_names_of_nothing_before_the_training(metric, lookup, says, corpus, tmp_path):
    """Components may report other losses than their own: that is a warning."""
    metrics = [STEP, part("m", metric)]

    def config(lookup):
        rules = definition(rule("x", "on_evaluate", f'state["step"] > 99 and m{lookup} < 1', STOP), metrics=metrics)
        groups = {"encoder": {"params": ["*embed*"]}}
        return config_for(tmp_path, corpus, rules, steps=1, param_groups=groups)

    wrong = config(lookup)
    if metric in ("LearnRates", "GradNorm"):
        with pytest.raises(ControllerError, match=rf"in this training: found 1 fault(.|\n)*controller 'x'.*{says}"):
            run(wrong)
    else:
        with pytest.warns(ConfigWarning, match=rf"may fail in the training: controller 'x'.*{says}"):
            run(wrong)
    run(config(lookup.replace("tager", "tagger").replace("encodr", "encoder")))  # without a warning


@pytest.mark.parametrize("metric", ["Loss", "EvalLoss", "HistoryBasedMetric"])
def test_controller_finds_components_to_leave_out_that_there_are_not(metric, corpus, tmp_path):
    """Those that are left out by default may not be there."""

    def config(*exclude):
        metrics = [STEP, part("m", metric, exclude=list(exclude))]
        rules = definition(rule("x", "on_evaluate", "m is None", STOP), metrics=metrics)
        return config_for(tmp_path, corpus, rules, steps=1)

    says = r"The metric 'm' may exclude less than you want.*\(tagger\), found tager, taggr\."
    with pytest.warns(ConfigWarning, match=says):
        run(config("tager", "transformer", "taggr", "tagger"))
    run(config("tok2vec", "transformer", "tagger"))  # without a warning


@pytest.mark.parametrize("given", [None, "debug", "error"])
def test_controller_logs_what_changes_the_run(given, corpus, tmp_path, caplog):
    """By default what would be a surprise in silence. `trigger_log_level` decides, but not on the end of the run."""
    actions = ("cut.should_cut", "control.should_evaluate", "lower.should_freeze", "last.should_rollback")
    level = {"trigger_log_level": given} if given else {}
    rules = definition(
        rule("all", "on_step_end", 'state["step"] == 1', *actions, LOG, "note.should_log", config=level),
        rule("end", "on_step_end", 'state["step"] == 1', STOP),
        operations=[CUT, LOWER, LAST, NOTE],
    )
    with caplog.at_level(logging.INFO), pytest.warns(RollbackWarning):
        run(config_for(tmp_path, corpus, rules, steps=3, checkpoint=True))
    found = [text for text in caplog.messages if "'all'" in text]
    taking = [record.levelname for record in caplog.records if "controller [all]" in record.getMessage()]
    if given is None:
        expected = [f"Controller 'all' took {one} on on_step_end" for one in actions]
        assert [text.split(" at ")[0] for text in found] == expected
        assert all(", with {'state': {" in text and text.endswith("}.") for text in found)
    assert len(found) == (4 if given is None else 0) and taking == (["ERROR"] * 6 if given == "error" else [])
    assert caplog.text.count(f"Controller 'end' took {STOP} on on_step_end at step 1") == 1


def test_controller_definition_fails_when_the_config_is_resolved(corpus, tmp_path):
    wrong = definition({**rule("x", "on_step", "los < 1", STOP)})
    config = config_for(tmp_path, corpus, wrong)
    with pytest.raises(ControllerError, match=r"rules.yaml': found 2 faults"):
        registry.resolve({"optimizer": config["training"]["optimizer"]})
    config["training"]["optimizer"]["controller"]["definition"] = str(tmp_path / "none.yaml")
    with pytest.raises(ControllerError, match=r"Can't read .*none.yaml"):
        registry.resolve({"optimizer": config["training"]["optimizer"]})
    inside = definition(rule("x", "on_step_end", 'state["step"] > 1', STOP))
    config["training"]["optimizer"]["controller"]["definition"] = inside
    again = Config().from_str(config.to_str(), interpolate=False)
    made = registry.resolve({"optimizer": again["training"]["optimizer"]})["optimizer"]
    [found] = made.attachments["controller"].definition.controllers
    assert (found.name, found.triggers, found.rule.text) == ("x", ["on_step_end"], 'state["step"] > 1')


NEEDS = r"needs a block \[training.optimizer.checkpoint"


@pytest.mark.parametrize(
    ("kind", "arguments", "action", "says"),
    [
        ("FreezeControl", {"params": ["nothing/*"]}, "should_freeze", r"'nothing/\*' in the params to freeze: it"),
        ("LearnRateControl", {"groups": ["nothing"], "factor": 0.5}, "should_cut", "'nothing': .*There are: default"),
        ("RollbackControl", {}, "should_rollback", NEEDS),
        ("RollbackControl", {"to": "last"}, "should_rollback", NEEDS),
    ],
    ids=["freeze", "rates", "best", "last"],
)
def test_controller_refuses_what_this_run_can_not_do(kind, arguments, action, says, corpus, tmp_path):
    """Before the first step, and before old models are removed."""
    operation = part("do", kind, **arguments)
    rules = definition(rule("x", "on_step_end", 'state["step"] > 1', f"do.{action}"), operations=[operation])
    (tmp_path / "out" / "model-best").mkdir(parents=True)
    with pytest.raises((ControllerError, ConfigError), match=says):
        run(config_for(tmp_path, corpus, rules), tmp_path / "out")
    assert (tmp_path / "out" / "model-best").is_dir()


def test_controller_params_that_thaw_begin_anew():
    """In a loop of one's own as well: what is frozen stays as it is, and its average begins with what it is then."""
    nlp, examples = ready_pipeline(["tagger"])
    model = nlp.get_pipe("tagger").model
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    optimizer.initialize(nlp)
    name = "tagger/output_layer/W"
    output = next(node for node in model.walk() if node.name == "softmax")

    def update():
        nlp.update(examples[:8], sgd=optimizer)
        [info] = optimizer.describe([name])
        return output.get_param("W").copy(), info

    first, _ = update()
    optimizer.freeze([name])
    second, info = update()
    assert (first == second).all() and name not in optimizer.params
    assert info.frozen_until == math.inf and info.updates == 0
    optimizer.unfreeze([name])
    third, info = update()
    assert not (second == third).all() and info.updates == 1
    key = (output.id, "W")
    assert optimizer.averages[key] == pytest.approx(third * 9 / 11, rel=1e-5)  # as thinc has it after one value
    with pytest.raises(ConfigError, match="matches none"):
        optimizer.freeze(["nothing"])


PREDICTED = {"metrics": [part("s", "EvalMetrics", source_event="on_predict")]}


@pytest.mark.parametrize(
    "events, text, action, more, reason",
    [
        ("on_predict", "True", "training_stop", {}, "the trigger on_predict of the controller 'r': spacy train has no"),
        (["on_log", "on_prediction_step"], "True", "save", {}, "the trigger on_prediction_step of the controller 'r'"),
        ("on_evaluate", "s['score'] > 1", "save", PREDICTED, "the metric 's': expected .*, found one for on_predict"),
        ("on_train_begin", "True", "evaluate", {"patience": {}}, "once, but the rule must be true more than 1 times"),
        *(
            ("on_train_end", "True", action, {}, f"control.should_{action} on on_train_end")
            for action in ("epoch_stop", "evaluate", "log")
        ),
        ("on_exception", "True", "training_stop", {}, r"control\.should_training_stop on on_exception: an error ends"),
    ],
)
def test_controller_rules_that_could_never_act_are_refused(events, text, action, more, reason):
    """Before the training: a loop of one's own may send other events, so the definition alone is in order."""
    limits = {"patience": more["patience"]} if "patience" in more else {}
    one = rule("r", events, text, f"control.should_{action}", **limits)
    rules = definition(one, metrics=more.get("metrics", [STEP]))
    optimizer = TorchOptimizer(AdamW(), controller=trainer_controller(rules))
    with pytest.raises(ControllerError, match=reason):
        Rules(optimizer.attachments["controller"].build(), optimizer)


def failing(*more, text="True"):
    note = part("note", "LogControl", log_format="{error_type}: {error_text} at {step}, {state/error_type}")
    return definition(rule("tell", "on_exception", text, "note.should_log"), *more, operations=[note])


@pytest.mark.parametrize("place", ["hook", "logger", "rule"])
def test_controller_tells_of_an_error(place, corpus, tmp_path, caplog):
    """Of the update, of spaCy's part of a step, and of a rule that fails itself."""

    def breaks():
        raise RuntimeError("out of memory")

    more = [rule("bad", "on_step_end", "1 / (state['step'] - 5) < 9", "control.should_log")] if place == "rule" else []
    config = config_for(tmp_path, corpus, failing(*more))
    expected = ControllerError if place == "rule" else RuntimeError
    with pytest.raises(expected), caplog.at_level(logging.INFO, "spacy.torchopt"):
        run(config, at={5: breaks} if place == "hook" else None, log_at={4: breaks} if place == "logger" else None)
    step = 4 if place == "logger" else 5
    text = "Can't evaluate the rule of the controller 'bad'" if place == "rule" else "out of memory"
    [told] = [line for line in caplog.messages if line.startswith(f"{expected.__name__}: {text}")]
    assert told.endswith(f"at {step}, {expected.__name__}")


def test_controller_a_rule_that_fails_at_an_error_does_not_hide_it(corpus, tmp_path, caplog):
    def breaks():
        raise RuntimeError("out of memory")

    config = config_for(tmp_path, corpus, failing(text="1 / (state['step'] - 5) < 9"))
    with pytest.raises(RuntimeError, match="out of memory"):
        run(config, at={5: breaks})
    assert "A listener failed at on_exception" in caplog.text and "ZeroDivisionError" in caplog.text
