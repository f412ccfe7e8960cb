"""Rules in blocks of the config. Oracle: the same rules in a file, in the same training."""

import math
from dataclasses import replace

import pytest
from confection import Config
from spacy.util import registry

from thinc_torchopt.addons.controller import TrainerController, trainer_controller
from thinc_torchopt.core.errors import ConfigError, ControllerError

from ...conftest import CONFIGS
from ...runs import Crash  # noqa: F401  # raised in `run`
from .kit import LOSS, SCORES, STOP, config_for, definition, part, rule, run

FILE = definition(
    rule("low", "on_step_end", "w['mean'] < 2.0", "control.should_log", cooldown=3),
    rule("worse", "on_evaluate", "b['evaluations_since'] >= 1 or scores['score'] > 0.2", "down.should_cut"),
    metrics=[
        LOSS,
        SCORES,
        part("w", "Window", of="loss['per_word']", size=3),
        part("b", "Best", of="loss['per_word']", mode="min"),
    ],
    operations=[part("down", "LearnRateControl", factor=0.5)],
)


def blocks_of(content):
    """The same as blocks of a config."""
    found = {"@misc": "thinc-torchopt.TrainerController.v1"}
    for section, kind in (("metrics", "controller_metrics"), ("operations", "operations")):
        label = f"@controller_{section}"
        found[section] = {one["name"]: {label: one["class"], **one.get("arguments", {})} for one in content[kind]}
    found["rules"] = {
        one["name"]: {key: value for key, value in one.items() if key != "name"} for one in content["controllers"]
    }
    return found


def resolved(blocks):
    """After a round through the text of a config, as `spacy train` does."""
    config = Config({"training": {"optimizer": {"controller": blocks}}})
    return registry.resolve(Config().from_str(config.to_str()))["training"]["optimizer"]["controller"]


def test_in_config_is_the_definition_of_a_file():
    found, expected = resolved(blocks_of(FILE)).definition, TrainerController(FILE).definition
    assert list(found.metrics) == list(expected.metrics) and found.operations.keys() == expected.operations.keys()
    for name, one in expected.metrics.items():
        assert type(found.metrics[name].instance) is type(one.instance) and found.metrics[name].kind == one.kind
        assert one.arguments.items() <= found.metrics[name].arguments.items()
    specs = [[replace(spec, rule=spec.rule.text) for spec in each.controllers] for each in (found, expected)]
    assert specs[0] == specs[1]


@pytest.mark.parametrize("groups", [["*"], ["encoder"]])
def test_in_config_names_groups(groups):
    blocks = blocks_of(FILE)
    blocks["operations"]["down"]["groups"] = groups
    assert resolved(blocks).names_groups is (groups != ["*"])


def test_in_config_each_run_has_its_own_metrics():
    settings = resolved(blocks_of(FILE))
    first, second = settings.build(), settings.build()
    first.on_event("on_step_end", step=0, losses={"a": 1.0}, batch_words=1)
    assert first.values["b"]["value"] == 1.0 and second.values["b"] is None
    assert settings.build().values["b"] is None
    assert first.definition.metrics["w"].instance is not second.definition.metrics["w"].instance


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"rules": {}}, "expected a 'definition', or a block 'rules', found neither"),
        ({"definition": "rules.yaml"}, "found both"),
        ({"rules": {"x": 3}}, r"\.rules\.x\]: expected the keys rule, triggers and operations"),
        ({"rules": {"x": {"rule": "True", "name": "y"}}}, r"'name' in \[training.optimizer.controller.rules.x\]"),
        ({"metrics": {"m": 3}}, r"controller.metrics.m\]: expected a block with @controller_metrics"),
        ({"operations": {"m": {"a": 1}}}, r"controller.operations.m\]: expected a block with @controller_operations"),
        ({"rules": {"x": {"rule": "los < 1"}}}, r"- rules\.x: the key 'triggers' is missing"),
        ({"rules": {"x": {"rule": "los < 1", "triggers": [], "operations": [STOP]}}}, r"- rules\.x\.rule: .*Did you"),
        ({"rules": {"x": {"rul": "True"}}}, r"- rules\.x: expected the keys .*Did you mean 'rule'"),
    ],
)
def test_in_config_bad_input(changes, reason):
    with pytest.raises((ControllerError, ConfigError), match=reason):
        resolved(blocks_of(FILE) | changes)


def test_in_config_names_blocks_in_errors():
    blocks = blocks_of(FILE)
    blocks["metrics"]["w"]["of"] = "los['per_word']"
    blocks["operations"]["unused"] = blocks["operations"]["down"]
    with pytest.raises(ControllerError) as caught:
        resolved(blocks)
    message = str(caught.value)
    assert message.startswith("Can't use [training.optimizer.controller]: found 2 faults.\n- metrics.w: Can't use 'of'")
    assert "\n- operations.unused: no controller uses the operation 'unused'" in message


def test_in_config_refuses_metrics_that_are_no_subclass():
    """Their arguments are unknown. A file can name them."""

    @registry.controller_metrics("test-in-config.Words")
    class Words:
        events = ("on_step_end",)

        def compute(self, event_name, **kwargs):
            return 1

    blocks = {"metrics": {"m": {"@controller_metrics": "test-in-config.Words"}}}
    with pytest.raises(ControllerError, match="subclass of Metric"):
        resolved(blocks_of(FILE) | blocks)


def test_in_config_a_key_of_a_rule_from_the_command_line():
    """As `--training.optimizer.controller.rules.stop_early.evaluations 2`."""
    path = "training.optimizer.controller.rules"
    overrides = {f"{path}.stop_early.evaluations": 2, f"{path}.stop_when_diverged.rule": "lately['mean'] > 9.0"}
    config = Config().from_disk(CONFIGS / "controller_in_config.cfg", overrides=overrides)
    settings = registry.resolve({"c": config["training"]["optimizer"]["controller"]})["c"]
    stop, _, diverged = settings.definition.controllers
    assert stop.rule.text.endswith(">= 2))") and diverged.rule.text == "lately['mean'] > 9.0"


@pytest.mark.parametrize("kind", ["HFControls", "PerProcessState", "EvalMetrics"])
def test_in_config_arguments_that_there_are_not(kind):
    """Remembering arguments does not make a class accept them; nor a base class remember others."""
    section = "operations" if kind == "HFControls" else "metrics"
    with pytest.raises(ValueError, match="nothing"):
        resolved(blocks_of(FILE) | {section: {"x": {f"@controller_{section}": kind, "nothing": 1}}})
    made = registry.get(f"controller_{section}", kind)()
    assert made.init_arguments == {} and type(made).init_arguments == {}


def test_in_config_in_python():
    metrics = {"b": registry.controller_metrics.get("EvalMetrics")(min_delta=0.1)}
    rules = {"x": {"rule": "b['evaluations_since_best'] > 3", "triggers": ["on_evaluate"], "operations": [STOP]}}
    settings = trainer_controller(metrics=metrics, rules=rules)
    assert settings.definition.metrics["b"].arguments == {"min_delta": 0.1} and not settings.names_groups
    with pytest.raises(ConfigError, match=r"'metrics' in .*: expected a section.*found 3"):
        trainer_controller(metrics=3, rules=rules)


@pytest.mark.parametrize(
    "schedule, begin", [({"warmup_steps": 10, "total_steps": 40}, 10), ({"warmup_ratio": 0.4}, 0.4), (None, 0)]
)
def test_in_config_stops_early_after_the_warm_up(schedule, begin, corpus, tmp_path):
    """At the second evaluation from there on, as the number never gets better; without a warm-up after two that are
    worse than the first. A warm-up may be a part of the training, whose length is that of its epochs.
    """
    config = config_for(tmp_path, corpus, None, steps=0)
    config["training"] |= {"max_epochs": 4, "patience": 0}
    if schedule:
        schedule = {"@schedules": "thinc-torchopt.warmup_linear.v1", "initial_rate": 0.01, **schedule}
        config["training"]["optimizer"]["learn_rate"] = schedule
    steps = max(run(config)[1]) + 1
    stop = {"@controller_rules": "thinc-torchopt.stop_early.v1", "of": "-1.0 * state['step']", "evaluations": 2}
    config["training"]["optimizer"]["controller"] = {
        "@misc": "thinc-torchopt.TrainerController.v1",
        "rules": {"stop": stop},
    }
    begin = math.ceil(begin * steps) if 0 < begin < 1 else begin
    evaluations = [step for step in range(0, steps, 4) if step >= begin]
    assert max(run(config)[1]) == max(8, evaluations[1])
