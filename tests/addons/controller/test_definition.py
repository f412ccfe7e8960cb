"""Definitions: read from files and dicts, and all that can be wrong with them, in one message with its place."""

import copy
import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from thinc_torchopt.addons.controller import TrainerController, trainer_controller
from thinc_torchopt.addons.controller.definition import list_faults
from thinc_torchopt.addons.controller.definition_file import check_size, read_file
from thinc_torchopt.addons.controller.metrics import Metric
from thinc_torchopt.addons.controller.operations import Operation, register_operation_handlers
from thinc_torchopt.core.errors import ConfigError, ControllerError
from thinc_torchopt.loop.events import COMMON, EVENTS

from .kit import LOG, definition, make, part, rule
from .limits import measured

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
    content = place = copy.deepcopy(GOOD)
    *parents, last = path
    for key in parents:
        place = place[key]
    if value == del_:
        del place[last]
    else:
        place[last] = value
    return content


# Five times five times five ... letters.
BOMB = b"a: &a [x, x, x, x, x]\n" + b"\n".join(
    b"%c: &%c [*%c, *%c, *%c, *%c, *%c]" % (98 + i, 98 + i, *[97 + i] * 5) for i in range(20)
)

# Each has ten times as many keys as the one before.
MERGED = [b"a%d: &a%d {<<: [%s]}" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 20)]

del_ = "(taken away)"
M_ARGUMENTS, ACTION = "controller_metrics[0].arguments", "controllers[0].operations[0]"
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


@pytest.mark.parametrize(
    "nothing, place",
    [
        ({}, "the top: the key 'controllers' is missing"),
        ({"controllers": []}, "controllers: expected a list of at least one"),
        ({"controllers": None, "operations": None}, "controllers: expected a list of at least one"),
    ],
)
def test_definition_without_a_controller_would_do_nothing(nothing, place):
    with pytest.raises(ControllerError, match=f"- {place}"):
        TrainerController(nothing)


@pytest.mark.parametrize("section", ["controller_metrics", "operations", "controllers"])
@pytest.mark.parametrize("name", [None, "", " ", "\n", " c", "a\nb", "a\u202eb", 3, True, [], "x" * 101])
def test_definition_names_that_are_none(section, name):
    """An empty `name:` is None."""
    with pytest.raises(ControllerError, match=rf"- {section}\[0\]\.name: expected a name"):
        TrainerController(changed((section, 0, "name"), name))


def test_definition_may_leave_optional_parts_empty():
    """As in the framework: no patience, no settings, no metrics and operations of its own."""
    one = rule("c" * 100, "on_log", "True", LOG, patience=None, config=None)
    found = TrainerController({"controller_metrics": None, "operations": [], "controllers": [one]})
    assert [firing.step for firing in found.on_event("on_log", step=3)] == [3]


def test_definition_action_without_a_name():
    class TestNameless(Operation):
        def should_(self, **kwargs):
            pass

        def should_do(self, **kwargs):
            pass

    assert TestNameless().actions() == ["should_do"]
    register_operation_handlers([TestNameless])
    content = changed((*O,), {"name": "lr", "class": "TestNameless"})
    content["controllers"][0]["operations"] = ["lr.should_"]
    with pytest.raises(ControllerError, match=r"operations\[0\]: expected an action of 'lr', found .*should_do"):
        TrainerController(content)


@pytest.mark.parametrize(
    "path, value, place, reason",
    [
        ((*M, "class"), "Los", "controller_metrics[0].class", "found 'Los'. Did you mean 'Loss'?"),
        ((*M, "class"), 3, "controller_metrics[0].class", "found 3"),
        ((*M, "class"), del_, "controller_metrics[0]", "the key 'class'"),
        ((*M, "name"), del_, "controller_metrics[0]", "the key 'name'"),
        ((*M, "name"), "my loss", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), "max", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), "step", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), "_x", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), "lambda", "controller_metrics[0].name", "a name that rules can use"),
        ((*M, "name"), 3, "controller_metrics[0].name", "found 3"),
        ((*M, "arguments"), [1], "controller_metrics[0].arguments", "by name"),
        ((*M, "arguments"), {"exlude": []}, "controller_metrics[0].arguments", "unexpected keyword argument 'exlude'"),
        ((*M, "arguments"), {"exclude": "ner"}, "controller_metrics[0].arguments", "a list of names"),
        ((*M, "argument"), {}, "controller_metrics[0]", "Did you mean 'arguments'?"),
        ((*M,), "Loss", "controller_metrics[0]", "expected the keys"),
        (("controller_metrics",), "Loss", "controller_metrics", "a list"),
        (("controller-metrics",), [], "controller-metrics", "has the same meaning"),
        (("controler",), [], "the top", "Did you mean 'controllers'?"),
        ((*O, "name"), "a.b", "operations[0].name", "without dots"),
        ((*O, "name"), "", "operations[0].name", "a name"),
        ((*O, "class"), "Zzz", "operations[0].class", "there are"),
        ((*O, "arguments", "factor"), 1, "operations[0].arguments", "between 0 and 1"),
        ((*C, "name"), None, None, None),
        ((*C, "name"), ["x"], "controllers[0].name", "a name"),
        ((*C, "triggers"), ["on_step"], "controllers[0].triggers[0]", "Did you mean 'on_step_end'?"),
        ((*C, "triggers"), ["on_log", "on_log"], "controllers[0].triggers[1]", "is listed twice"),
        ((*C, "triggers"), "on_log", "controllers[0].triggers", "a list of at least one text"),
        ((*C, "triggers"), [3], "controllers[0].triggers", "a list of at least one text"),
        ((*C, "triggers"), [], "controllers[0].triggers", "at least one text, found []"),
        ((*C, "triggers"), del_, "controllers[0]", "the key 'triggers'"),
        ((*C, "rule"), "los > 1", "controllers[0].rule", "metric (fired, loss), found 'los'"),
        ((*C, "rule"), "loss['los'] > 1", "controllers[0].rule", "Did you mean 'loss'?"),
        ((*C, "rule"), True, "controllers[0].rule", "quotes"),
        ((*C, "rule"), "9**9**9 > 1", "controllers[0].rule", "bits"),
        (
            (*C, "operations"),
            ["lr"],
            ACTION,
            "an action of 'lr', found ''. It has: should_cut, should_raise, should_set",
        ),
        ((*C, "operations"), ["lr.should_go"], ACTION, "an action of 'lr'"),
        ((*C, "operations"), ["lr.should_set"], ACTION, "the argument 'rate'"),
        ((*C, "operations"), ["rl.should_cut"], ACTION, "Operations are control, hfcontrols, lr"),
        ((*C, "operations"), ["control.should_log"], "operations[0]", "no controller uses the operation 'lr'"),
        ((*C, "operations"), "lr.should_cut", "controllers[0].operations", "a list of at least one text"),
        ((*C, "operations"), del_, "controllers[0]", "the key 'operations'"),
        ((*C, "rule"), None, "controllers[0].rule", "found NoneType"),
        ((*C, "rule"), " ", "controllers[0].rule", "one Python expression"),
        ((*O, "arguments"), {"factor": date(2026, 1, 1)}, "operations[0].arguments", "found date"),
        ((*O, "arguments"), {"factor": 0.5, "groups": [b"a"]}, "operations[0].arguments", "found bytes"),
        ((*M,), {"name": "f", "class": "Loss", "arguments": {"exclude": Path("x")}}, M_ARGUMENTS, "found PosixPath"),
        ((*C, "patience"), 3, "controllers[0].patience", "patience_threshold, mode"),
        ((*C, "patience"), {"threshold": 3}, "controllers[0].patience", "Did you mean 'patience_threshold'?"),
        ((*C, "patience", "patience_threshold"), 1.5, "controllers[0].patience.patience_threshold", "a whole number"),
        ((*C, "patience", "patience_threshold"), "2", "controllers[0].patience.patience_threshold", "a whole number"),
        ((*C, "patience", "patience_threshold"), -1, "controllers[0].patience.patience_threshold", "at least 0"),
        ((*C, "patience", "mode"), "reset", "controllers[0].patience.mode", "reset_on_failure or"),
        ((*C, "config", "trigger_log_level"), "loud", "controllers[0].config.trigger_log_level", "debug, info"),
        ((*C, "config", "trigger_log_level"), None, "controllers[0].config.trigger_log_level", "found None"),
        ((*C, "config"), {"level": "info"}, "controllers[0].config", "trigger_log_level"),
        ((*C, "cooldown"), -1, "controllers[0].cooldown", "at least 0"),
        ((*C, "cooldown"), True, "controllers[0].cooldown", "a whole number"),
        ((*C, "max_firings"), 0, "controllers[0].max_firings", "at least 1"),
        ((*C, "colddown"), 3, "controllers[0]", "Did you mean 'cooldown'?"),
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
    twice = changed((section,), [*GOOD[section], *GOOD[section]])
    with pytest.raises(ControllerError, match=rf"{section}\[1\].name: the name .* is used twice"):
        TrainerController(twice)


def test_definition_faults_are_told_all_at_once_and_once_each(tmp_path):
    content = definition(
        rule("c", "on_nothing", "a > 1 and b > 1", "o.should_freeze"),
        rule("c", "on_log", "a and 1", "nope.x", cooldown="x"),
        metrics=[part("a", "Nope"), part("b", "Loss", x=1)],
        operations=[part("o", "FreezeControl")],
    )
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content | {"more": 1}))
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


def test_definition_names_of_metrics_may_have_hyphens():
    """A rule writes them as _, as do windows, and `values`: there, a-b is a subtraction."""
    metrics = [part("training-loss", "Loss"), part("a-b", "Window", of="training_loss['loss']", size=1)]
    controller = make(rule("r", "on_step_end", "training_loss.loss - a_b.first == 0", LOG), metrics=metrics)
    assert controller.on_event("on_step_end", step=0, losses={"ner": 0.5})
    assert list(controller.values) == ["training_loss", "a_b"]
    for names, text, reason in (
        (["a-b"], "a-b > 1", "the name of a metric .*a_b.*, found 'a'"),
        (["a-b", "a_b"], "True", "'a_b' is used twice"),
    ):
        with pytest.raises(ControllerError, match=reason):
            make(rule("r", "on_step_end", text, LOG), metrics=[part(name, "Loss") for name in names])


@pytest.mark.parametrize(
    "name, content, reason",
    [
        ("d.yaml", b"controllers: [", "line 1"),
        ("d.yaml", b"controllers: []\ncontrollers: []", "duplicate key"),
        ("d.yaml", b"a: !!python/object/apply:os.system ['true']", "constructor"),
        ("d.yaml", b"- 1", "expected the keys controller_metrics"),
        ("d.yaml", b"", "expected the keys controller_metrics"),
        ("d.yaml", b"\xff\xfea", "utf"),
        ("d.yaml", b"\xffa", "utf"),
        ("d.yaml", BOMB, "4,000 values"),
        ("d.yaml", b"a: &a [*a]", "4,000 values"),
        ("d.yaml", b"{a: " * 101, "more than 100 open brackets"),
        ("d.yaml", b"- " * 20_000, "recursion"),
        ("d.yaml", b"\n".join([b"a0: &a0 {k: 1}", *MERGED]), "a merge key"),
        ("d.yaml", b"a: &a {k: 1}\nb:\n  ? !!merge x\n  : *a", "a merge key"),
        ("d.json", b"{", "line 1"),
        ("d.json", b'{"controllers": [], "controllers": []}', "duplicate keys"),
        ("d.json", b'{"\\u001b[2J": 1, "\\u001b[2J": 2}', r"duplicate keys: \['.x1b\[2J'\]"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_definition_files_that_cant_be_read(name, content, reason, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ControllerError, match=reason):
        TrainerController(tmp_path / name)


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ([1] * 3_999, [1] * 4_000),
        ("x" * 100_000, ["x", "x" * 100_000]),
        ({"x" * 99_999: "x"}, {"x" * 100_000: "x"}),
        (json.loads("[" * 20 + "]" * 20), json.loads("[" * 21 + "]" * 21)),
        ([1 << 1_023], [1 << 1_024]),
    ],
    ids=["values", "characters", "keys", "depth", "bits"],
)
def test_definition_size_is_limited(most, more):
    """Just what is allowed, and one more."""
    check_size(most, "it")
    with pytest.raises(ControllerError, match="Can't use it: expected"):
        check_size(more, "it")


@pytest.mark.parametrize(
    ("most", "more", "reason"),
    [
        (b" " * 99_999 + b"1", b" " * 100_000 + b"1", "more than 100,000 bytes"),
        (b"#]" + b"[" * 100 + b"\n1", b"#]" + b"[" * 101 + b"\n1", "more than 100 open"),
        (b"[" + b"1," * 7_999 + b"]", b"[" + b"1," * 8_000 + b"]", "more than 4,000 values"),
    ],
    ids=["bytes", "brackets", "nodes"],
)
def test_definition_files_are_limited(most, more, reason, tmp_path):
    (tmp_path / "most.yaml").write_bytes(most)
    (tmp_path / "more.yaml").write_bytes(more)
    assert read_file(tmp_path / "most.yaml", "it")
    with pytest.raises(ControllerError, match=reason):
        read_file(tmp_path / "more.yaml", "it")


def test_definition_that_is_no_file(tmp_path):
    with pytest.raises(ControllerError, match="No such file"):
        TrainerController(tmp_path / "no.yaml")
    with pytest.raises(ControllerError, match="Can't read"):
        TrainerController(tmp_path)
    with pytest.raises(ControllerError, match="expected the path of a file, or a dict, found list"):
        TrainerController([GOOD])


@pytest.mark.parametrize("content", ["", "rules.yaml"])
def test_definition_file_without_keys_is_named(content, tmp_path):
    (tmp_path / "d.yaml").write_text(content)
    with pytest.raises(ControllerError, match=r"'.*d\.yaml': expected the keys"):
        trainer_controller(tmp_path / "d.yaml")


def test_definition_that_would_be_waited_for(tmp_path, monkeypatch):
    """Nobody writes to the pipe, and the device never ends. What was a file may have become one."""
    opened, open_ = [], os.open
    monkeypatch.setattr(os, "open", lambda name, flags: opened.append(flags) or open_(name, flags))
    (tmp_path / "d.yaml").write_text(YAML)
    assert read_file(tmp_path / "d.yaml", "it") and opened[-1] & os.O_NONBLOCK
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", tmp_path, "/dev/zero", "/dev/null"):
        with pytest.raises(ControllerError, match=r"Can't read .*a folder, a pipe or a device instead of a file"):
            TrainerController(path)


def test_definition_shows_twenty_faults_and_counts_the_others():
    """Lines are counted, not seconds: it took 15 times as many."""
    metrics = [{"name": f"m{i}", "class": f"L{i}"} for i in range(1_200)]
    with measured() as done, pytest.raises(ControllerError) as caught:
        TrainerController({"controller_metrics": metrics, "controllers": GOOD["controllers"]})
    first, *faults, last = str(caught.value).splitlines()
    assert first == "Can't use the controller definition: found 1,202 faults." and last == "and 1,182 more"
    assert [fault.split(": ")[0] for fault in faults] == [f"- controller_metrics[{i}].class" for i in range(20)]
    assert done.lines < 600_000, done
    assert "more" not in list_faults(["fault"] * 20) and list_faults(["fault"] * 21).endswith("\nand 1 more")


def test_definition_faults_are_short():
    """Also where there is much that could be listed."""
    names = [f"{'metric' * 10}{i}" for i in range(900)]
    controllers = [GOOD["controllers"][0] | {"name": f"c{i}", "rule": "nope > 1"} for i in range(25)]
    with pytest.raises(ControllerError) as caught:
        make(*controllers, metrics=[part(name, "Loss") for name in names])
    assert len(str(caught.value)) < 25_000


def own_metric(events, arguments, **attributes):
    """A class of metrics whose `compute` has these arguments."""
    scope = {"Metric": Metric}
    exec(f"class Own(Metric):\n def compute(self, event, {arguments}, **kwargs):\n  return 1.0", scope)
    for name, value in {"events": events, **attributes}.items():
        setattr(scope["Own"], name, value)
    return scope["Own"]


def with_own(own):
    """A definition with such a metric."""
    return definition(rule("r", "on_step_end", "own > 0", LOG), metrics=[part("own", own)])


@pytest.mark.parametrize(
    "events, arguments, reason",
    [
        (["on_evaluate"], "metric=None", r"its compute\(\) .*scores, score, dev_losses, .*learn_rates.*found 'metric'"),
        (["on_step_end", "on_epoch_end"], "*, scores", r"losses, batch_words, .*step.*found 'scores'"),
        (["on_save"], "*, stepp=0", "Did you mean 'step'?"),
    ],
)
def test_definition_refuses_names_that_no_event_carries(events, arguments, reason):
    """They never had a value, and nobody said so."""
    with pytest.raises(ControllerError, match=reason):
        TrainerController(with_own(own_metric(events, arguments)))


def test_definition_refuses_to_read_what_no_event_carries():
    with pytest.raises(ControllerError, match=r"its reads .*found 'gold'"):
        TrainerController(with_own(own_metric(["on_step_end"], "*, step", reads=("losses", "gold"))))


def test_definition_takes_each_name_that_an_event_carries():
    for event, carried in EVENTS.items():
        names = ", ".join(f"{name}=None" for name in ("values", "global_step", *COMMON, *carried))
        TrainerController(with_own(own_metric([event], f"*, {names}")))


def test_definition_refuses_actions_with_names_that_no_event_carries():
    class Own(Operation):
        def should_tell(self, *, metric=None, **kwargs):
            pass

    with pytest.raises(ControllerError, match=r"scores.*found 'metric'"):
        make(rule("r", "on_evaluate", "True", "own.should_tell"), operations=[part("own", Own)])


def test_definition_needs_no_spacy():
    """A controller works in other loops too: neither it nor its events import spaCy."""
    code = "import sys, thinc_torchopt.addons.controller, thinc_torchopt.loop.events; sys.exit('spacy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
