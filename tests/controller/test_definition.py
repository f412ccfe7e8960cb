"""Definitions: read from files and dicts, and all that can be wrong with them, in one message with its place."""

import copy
import json

import pytest

from thinc_torchopt.controller import TrainerController
from thinc_torchopt.errors import ConfigError, ControllerError

GOOD = {
    "controller_metrics": [{"name": "loss", "class": "Loss"}],
    "operations": [{"name": "lr", "class": "LearnRateControl", "arguments": {"groups": ["encoder"], "factor": 0.5}}],
    "controllers": [
        {
            "name": "cut",
            "triggers": ["on_step_end"],
            "rule": "loss['loss'] > 1.0",
            "patience": {"patience_threshold": 2, "mode": "reset_on_failure"},
            "config": {"trigger_log_level": "warning"},
            "cooldown": 10,
            "max_firings": 3,
            "operations": ["lr.should_cut", "hfcontrols.should_log"],
        }
    ],
}
YAML = """
controller-metrics:
  - name: loss
    class: Loss
operations:
  - {name: lr, class: LearnRateControl, arguments: {groups: ["encoder"], factor: 0.5}}
controllers:
  - name: cut
    triggers: [on_step_end]
    rule: |
      loss['loss'] > 1.0
    patience: {patience_threshold: 2, mode: reset_on_failure}
    config: {trigger_log_level: warning}
    cooldown: 10
    max_firings: 3
    operations: [lr.should_cut, hfcontrols.should_log]
"""


def changed(path, value):
    """GOOD with another value at a path; `del` takes it away."""
    definition = copy.deepcopy(GOOD)
    *parents, last = path
    place = definition
    for key in parents:
        place = place[key]
    if value == del_:
        del place[last]
    else:
        place[last] = value
    return definition


# Five times five times five ... letters.
BOMB = b"a: &a [x, x, x, x, x]\n" + b"\n".join(
    b"%c: &%c [*%c, *%c, *%c, *%c, *%c]" % (98 + i, 98 + i, *[97 + i] * 5) for i in range(20)
)

del_ = "(taken away)"
C = ("controllers", 0)
M = ("controller_metrics", 0)
O = ("operations", 0)  # noqa: E741


def test_definition_from_yaml_json_and_dict(tmp_path):
    (tmp_path / "d.yaml").write_text(YAML)
    (tmp_path / "d.json").write_text(json.dumps(GOOD, indent="\t"))
    (tmp_path / "bom.JSON").write_text(json.dumps(GOOD), encoding="utf-8-sig")
    before = copy.deepcopy(GOOD)
    found = [
        TrainerController(source)
        for source in (tmp_path / "d.yaml", str(tmp_path / "d.yaml"), tmp_path / "d.json", tmp_path / "bom.JSON", GOOD)
    ]
    assert before == GOOD
    for controller in found:
        [spec] = controller.definition.controllers
        assert (spec.name, spec.triggers, spec.rule.text) == ("cut", ["on_step_end"], "loss['loss'] > 1.0")
        assert (spec.patience.threshold, spec.patience.resets, spec.cooldown, spec.max_firings) == (2, True, 10, 3)
        assert spec.actions == [("lr", "should_cut"), ("hfcontrols", "should_log")] and spec.log_level == 30
        assert list(controller.definition.operations) == ["lr", "hfcontrols", "control"]


@pytest.mark.parametrize("empty", [{}, {"controllers": []}, {"controllers": None, "operations": None}])
def test_definition_may_be_empty(empty):
    assert TrainerController(empty).on_event("on_step_end", step=1) == []


@pytest.mark.parametrize(
    "path, value, place, reason",
    [
        ((*M, "class"), "Los", "controller_metrics[0].class", "near to it: Loss"),
        ((*M, "class"), 3, "controller_metrics[0].class", "found 3"),
        ((*M, "class"), del_, "controller_metrics[0]", "the key 'class'"),
        ((*M, "name"), del_, "controller_metrics[0]", "the key 'name'"),
        ((*M, "name"), "my-loss", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), "max", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), "step", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), "_x", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), "lambda", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), 3, "controller_metrics[0].name", "found 3"),
        ((*M, "arguments"), [1], "controller_metrics[0].arguments", "by name"),
        ((*M, "arguments"), {"exlude": []}, "controller_metrics[0].arguments", "unexpected keyword argument 'exlude'"),
        ((*M, "arguments"), {"exclude": "ner"}, "controller_metrics[0].arguments", "a list of names"),
        ((*M, "argument"), {}, "controller_metrics[0]", "is 'arguments' meant?"),
        ((*M,), "Loss", "controller_metrics[0]", "expected the keys"),
        (("controller_metrics",), "Loss", "controller_metrics", "a list"),
        (("controller-metrics",), [], "controller-metrics", "once"),
        (("controler",), [], "the top", "is 'controllers' meant?"),
        ((*O, "name"), "a.b", "operations[0].name", "without dots"),
        ((*O, "name"), "", "operations[0].name", "a name"),
        ((*O, "class"), "Nope", "operations[0].class", "there are"),
        ((*O, "arguments", "factor"), 7, "operations[0].arguments", "below 1"),
        ((*C, "name"), None, None, None),
        ((*C, "name"), ["x"], "controllers[0].name", "a name"),
        ((*C, "triggers"), ["on_step"], "controllers[0].triggers[0]", "there are on_init_end"),
        ((*C, "triggers"), ["on_log", "on_log"], "controllers[0].triggers[1]", "again"),
        ((*C, "triggers"), "on_log", "controllers[0].triggers", "a list of texts"),
        ((*C, "triggers"), [3], "controllers[0].triggers", "a list of texts"),
        ((*C, "triggers"), del_, "controllers[0]", "the key 'triggers'"),
        ((*C, "rule"), "los > 1", "controllers[0].rule", "metric (loss), found 'los'"),
        ((*C, "rule"), "loss['los'] > 1", "controllers[0].rule", "is 'loss' meant?"),
        ((*C, "rule"), True, "controllers[0].rule", "quotes"),
        ((*C, "rule"), "9**9**9 > 1", "controllers[0].rule", "bits"),
        ((*C, "operations"), ["lr"], "controllers[0].operations[0]", "an action of 'lr' (should_cut, should_set)"),
        ((*C, "operations"), ["lr.should_go"], "controllers[0].operations[0]", "an action of 'lr'"),
        ((*C, "operations"), ["lr.should_set"], "controllers[0].operations[0]", "the argument 'rate'"),
        (
            (*C, "operations"),
            ["rl.should_cut"],
            "controllers[0].operations[0]",
            "operations are control, hfcontrols, lr",
        ),
        ((*C, "operations"), "lr.should_cut", "controllers[0].operations", "a list of texts"),
        ((*C, "operations"), del_, "controllers[0]", "the key 'operations'"),
        ((*C, "patience"), 3, "controllers[0].patience", "patience_threshold, mode"),
        ((*C, "patience"), {"threshold": 3}, "controllers[0].patience", "is 'patience_threshold' meant?"),
        ((*C, "patience", "patience_threshold"), 1.5, "controllers[0].patience.patience_threshold", "a whole number"),
        ((*C, "patience", "patience_threshold"), "2", "controllers[0].patience.patience_threshold", "a whole number"),
        ((*C, "patience", "mode"), "reset", "controllers[0].patience.mode", "reset_on_failure or"),
        ((*C, "config", "trigger_log_level"), "loud", "controllers[0].config.trigger_log_level", "debug, info"),
        ((*C, "config"), {"level": "info"}, "controllers[0].config", "trigger_log_level"),
        ((*C, "cooldown"), -1, "controllers[0].cooldown", "at least 0"),
        ((*C, "cooldown"), True, "controllers[0].cooldown", "a whole number"),
        ((*C, "max_firings"), 0, "controllers[0].max_firings", "at least 1"),
        ((*C, "colddown"), 3, "controllers[0]", "is 'cooldown' meant?"),
    ],
    ids=str,
)
def test_definition_faults_have_a_place_and_a_reason(path, value, place, reason):
    if reason is None:
        path, value, place, reason = (*C, "name"), del_, "controllers[0]", "the key 'name'"
    with pytest.raises(ControllerError) as caught:
        TrainerController(changed(path, value))
    first, *faults = str(caught.value).splitlines()
    assert "Can't use the controller definition: found" in first
    assert any(fault.startswith(f"- {place}: ") and reason in fault for fault in faults), caught.value


@pytest.mark.parametrize("section", ["controller_metrics", "operations", "controllers"])
def test_definition_names_are_unique(section):
    definition = changed((section,), [*GOOD[section], *GOOD[section]])
    with pytest.raises(ControllerError, match=rf"{section}\[1\].name: expected a name of its own"):
        TrainerController(definition)


def test_definition_faults_are_told_all_at_once_and_once_each(tmp_path):
    definition = {
        "controller_metrics": [{"name": "a", "class": "Nope"}, {"name": "b", "class": "Loss", "arguments": {"x": 1}}],
        "operations": [{"name": "o", "class": "FreezeControl"}],
        "controllers": [
            {"name": "c", "triggers": ["on_nothing"], "rule": "a > 1 and b > 1", "operations": ["o.should_freeze"]},
            {"name": "c", "triggers": ["on_log"], "rule": "a.b", "operations": ["nope.x"], "cooldown": "x"},
        ],
        "more": 1,
    }
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(definition))
    with pytest.raises(ControllerError) as caught:
        TrainerController(path)
    first, *faults = str(caught.value).splitlines()
    assert first == f"Can't use the controller definition '{path}': found 9 faults."
    assert [fault.split(": ")[0] for fault in faults] == [
        "- the top",
        "- controller_metrics[0].class",
        "- controller_metrics[1].arguments",
        "- operations[0].arguments",
        "- controllers[0].triggers[0]",  # what a faulty metric or operation would have been is no second fault
        "- controllers[1].name",
        "- controllers[1].rule",
        "- controllers[1].operations[0]",
        "- controllers[1].cooldown",
    ]
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize(
    "name, content, reason",
    [
        ("d.yaml", b"controllers: [", "line 1"),
        ("d.yaml", b"controllers: []\ncontrollers: []", "duplicate key"),
        ("d.yaml", b"a: !!python/object/apply:os.system ['true']", "constructor"),
        ("d.yaml", b"- 1", "expected the keys controller_metrics"),
        ("d.yaml", b"", "expected the keys controller_metrics"),
        ("d.yaml", b"\xff\xfe", "utf"),
        ("d.yaml", BOMB, "10,000 values"),
        ("d.yaml", b"a: &a [*a]", "10,000 values"),
        ("d.yaml", b"[" * 20_000, "expected"),
        ("d.yaml", b" " * 1_000_001, "1,000,000 bytes"),
        ("d.json", b"{", "line 1"),
        ("d.json", b'{"controllers": [], "controllers": []}', "more than once"),
        ("d.json", b"[" * 20_000, "expected YAML or JSON"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_definition_files_that_cant_be_read(name, content, reason, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ControllerError, match=reason):
        TrainerController(tmp_path / name)


def test_definition_that_is_no_file(tmp_path):
    with pytest.raises(ControllerError, match="No such file"):
        TrainerController(tmp_path / "no.yaml")
    with pytest.raises(ControllerError, match="Can't read"):
        TrainerController(tmp_path)
    with pytest.raises(ControllerError, match="expected the path of a file, or a dict, found list"):
        TrainerController([GOOD])
