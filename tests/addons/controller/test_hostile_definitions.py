"""Definitions that want to take long, take memory or break out: files, dicts, windows, and rules by name in blocks.
Each is refused with one of our errors, or gives rules that can be told what happens, without much memory.
"""

import copy
import inspect
import json
import math

import pytest
from confection import ConfigValidationError
from spacy.util import registry

from thinc_torchopt.addons.controller.controller import TrainerController
from thinc_torchopt.core.errors import ConfigError, ControllerError

from .limits import measured
from .test_definition import BOMB, GOOD, changed, del_
from .test_hostile_rules import HOSTILE

MAX_BYTES = 20_000_000
# What only a definition that has broken out does.
HARMFUL = ("os.system", "os.exec", "os.fork", "os.remove", "os.putenv", "subprocess.", "socket.connect", "ctypes.")

CYCLE = []
CYCLE.append(CYCLE)
TEXTS = [
    *("", " ", "\x00", "\ud800", "x" * 90_000, "x" * 200_000, "__class__", "{0.__class__}", "../../etc/passwd"),
    *("\N{RIGHT-TO-LEFT OVERRIDE}x", "\N{CYRILLIC SMALL LETTER EL}oss", "lo\N{LATIN SMALL LETTER LONG S}s"),
    *("9**9**9", "[" * 5_000),
]
OTHERS = [
    *(None, True, -1, 1 << 5_000, math.nan, math.inf, b"bytes", object, len, ["x"] * 4_100, [list(range(100))] * 50),
    *(CYCLE, {"a": CYCLE}, {3: 4}, {None: {}}, {"": ""}, {"x" * 90_000: 1}, {"__init__": 1}),
]
VALUES = TEXTS + OTHERS


def paths_in(tree, path=()):
    if path:
        yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from paths_in(value, (*path, key))


def check(definition, make=TrainerController):
    """RETURNS (bool): Whether it was refused."""
    with measured(counts_lines=False) as done:
        try:
            controller = make(definition)
            for step in range(3):
                told = {"step": step, "losses": {"ner": 0.5}, "batch_words": 5, "grad_norm": 1.0}
                controller.decide("on_step_end", **told)
                controller.decide("on_evaluate", step=step, scores={"ents_f": 0.5}, score=0.5)
            refused = False
        except (ConfigError, ControllerError, ConfigValidationError) as error:
            refused, error.__traceback__ = True, None
            assert isinstance(error, ConfigValidationError) or len(str(error)) < 25_000
    assert done.peak < MAX_BYTES, done
    assert not [event for event in done.events if event.startswith(HARMFUL)]
    return refused


@pytest.mark.parametrize("path", paths_in(GOOD), ids=str)
def test_hostile_definition_values(path):
    """Each of some values at each place. A name or a text may be anything short."""
    refused = sum(check(changed(path, copy.deepcopy(value))) for value in VALUES)
    assert refused > len(VALUES) // 2


def test_hostile_definition_keys():
    for path in paths_in(GOOD):
        if not isinstance(path[-1], str):
            continue  # of a list
        for key in ("__class__", "x" * 50_000, "\N{RIGHT-TO-LEFT OVERRIDE}x", 3, None):
            assert check(changed((*path[:-1], key), 1))


ALIASES = b"x: &x ['1', '2']\n"
# A tenth of what a file may have, which takes a tenth of the time; some have as much.
FILES = {
    "an alias to nothing": b"controllers: *nothing",
    "a mapping as its own key": b"? &a {? *a : 1}\n: 1",
    "an anchor of 10,000 letters": b"a: &" + b"x" * 10_000 + b" 1",
    "many anchors": b"\n".join(b"a%d: &a%d 1" % (i, i) for i in range(1_000)),
    "many aliases": ALIASES + b"controllers: [" + b"*x, " * 4_100 + b"]",
    "a tag of Python": b"controllers: !!python/object/apply:os.system ['true']",
    "a tag of its own": b"controllers: !x []",
    "a tag from elsewhere": b"%TAG ! tag:example.org,2000:\n---\n!x {}",
    "binary": b"controllers: !!binary " + b"QUJD" * 2_000,
    "a set": b"controllers: !!set {a, b}",
    "an ordered map": b"controllers: !!omap [a: 1]",
    "a time": b"controllers: 2026-11-23 04:00:00",
    "the end, often": b"...\n" * 1_000,
    "another version": b"%YAML 9.9\n---\n{}",
    "directives": b"%X y\n" * 1_000,
    "a number of 10,000 digits": b"controllers: " + b"9" * 10_000,
    "a number to the base 60": b"controllers: 1" + b":59" * 3_000,
    "a number of bits": b"controllers: 0b" + b"1" * 10_000,
    "an exponent": b"controllers: 1e999999999",
    "a text of 10,000 letters": b"controllers: '" + b"x" * 10_000 + b"'",
    "an open text": b"controllers: '" + b"x" * 10_000,
    "escapes": b'controllers: "' + b"\\x41" * 3_000 + b'"',
    "a folded text": b"controllers: >\n" + b"  x\n" * 3_000,
    "deep dicts": b"".join(b" " * i + b"a:\n" for i in range(150)),
    "questions": b"? " * 5_000,
    "brackets in turn": b"[]" * 5_000,
    "hyphens": b"-" * 10_000,
    "nothing but spaces": b" " * 10_000,
    "zeros": b"\0" * 10_000,
    "surrogates": b'{"controllers": "\\ud800"}',
    "a byte order mark": b"\xef\xbb\xbf" * 3_000,
    "the same key": b"a: 1\n" * 1_000,
    "keys of one hash": json.dumps({str(i * (2**61 - 1)): i for i in range(500)}).encode(),
    "NaN": b'{"controllers": NaN}',
    "a definition, and more": json.dumps(GOOD).encode() + b"}",
}


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize("name", FILES)
def test_hostile_definition_files(name, suffix, tmp_path):
    path = tmp_path / f"d.{suffix}"
    path.write_bytes(FILES[name])
    assert check(path)


@pytest.mark.parametrize("name", ["good", "good.txt"])
def test_hostile_files_of_other_names_are_read_as_yaml(name, tmp_path):
    """So what YAML is refused for is refused under any name."""
    path = tmp_path / name
    path.write_bytes(b"# A comment, which JSON has not.\n" + json.dumps(GOOD).encode())
    assert not check(path)
    path.write_bytes(BOMB)
    assert check(path)


def with_metrics(*metrics, rule="True"):
    loss = {"name": "loss", "class": "Loss"}
    controllers = [{"name": "c", "triggers": ["on_step_end"], "rule": rule, "operations": ["control.should_log"]}]
    return {"controller_metrics": [loss, *metrics], "controllers": controllers}


def series(name, kind="Window", **arguments):
    return {"name": name, "class": kind, "arguments": arguments}


SERIES = {
    "itself": [series("w", of="w['mean']", size=3)],
    "a later one": [series("w", of="v['mean']", size=3), series("v", of="loss['loss']", size=3)],
    "what fired": [series("w", of="fired['c']['times']", size=3)],
    "one over another, 300 times": [
        series("w0", of="loss['loss']", size=10_000),
        *(series(f"w{i}", of=f"w{i - 1}['mean']", size=10_000, at_least=1) for i in range(1, 300)),
    ],
    "the best of the best, 300 times": [
        series("b0", "Best", of="loss['loss']", mode="min"),
        *(series(f"b{i}", "Best", of=f"b{i - 1}['value'] * 1e300", mode="max") for i in range(1, 300)),
    ],
    "no number": [series("w", of="str(loss['loss'])", size=1)],
    "beyond floats": [series("w", of="int(loss['loss']) + 10 ** 300 * 10 ** 8 * 9", size=1)],
    **{f"a size of {size!r}": [series("w", of="loss['loss']", size=size)] for size in (0, 1 << 99, 1e9, "x", None, [])},
    **{f"min_delta {x!r}": [series("b", "Best", of="loss['loss']", mode="min", min_delta=x)] for x in (math.nan, -1)},
}


@pytest.mark.parametrize("name", SERIES)
def test_hostile_windows_and_bests(name):
    assert check(with_metrics(*SERIES[name])) == ("300 times" not in name)


def test_hostile_rules_as_series():
    """An expression in a metric is read as a rule is."""
    assert all(check(with_metrics(series("w", of=text, size=1))) for text in HOSTILE[::5])


NAMED = ["stop_early", "cut_on_plateau", "roll_back_on_spike", "unfreeze_when", "keep_best"]
NEEDED = {"params": ["*"], "when": "scores['score'] > 0.5"}


def from_rules(rules):
    block = {"@misc": "thinc-torchopt.TrainerController.v1", "metrics": {}, "rules": rules}
    return registry.resolve({"block": block})["block"].build()


@pytest.mark.parametrize("name", NAMED)
def test_hostile_arguments_of_rules_by_name(name):
    parameters = inspect.signature(registry.get("controller_rules", f"thinc-torchopt.{name}.v1")).parameters
    needed = {key: value for key, value in NEEDED.items() if key in parameters}
    assert not check({"r": {"@controller_rules": f"thinc-torchopt.{name}.v1", **needed}}, from_rules)
    texts = [*TEXTS, *[text for text in HOSTILE if len(text) < 200][::54]]
    for argument, parameter in parameters.items():
        for value in [*OTHERS, *(texts if "str" in str(parameter.annotation) else texts[:1])]:
            if not callable(value) and not isinstance(value, bytes):
                rule = {"@controller_rules": f"thinc-torchopt.{name}.v1", **needed, argument: copy.deepcopy(value)}
                check({"r": rule}, from_rules)


def test_hostile_names_of_blocks():
    """Names become names of metrics in expressions."""
    odd = ("__class__", "9" * 99, "\N{CYRILLIC SMALL LETTER EL}", "a b", "a]\n[x", "x" * 101, "", "loss", "fired")
    for name in odd:
        rule = {"@controller_rules": "thinc-torchopt.stop_early.v1"}
        check({name: rule, f"{name}_": dict(rule)}, from_rules)


def test_hostile_taken_away():
    for path in paths_in(GOOD):
        check(changed(path, del_))
