"""The values that rules look up. Oracle: a rule that can be evaluated on nothing but these gives the same."""

import json

import pytest

from thinc_torchopt.addons.controller.rules import Rule
from thinc_torchopt.addons.controller.values import Message, looked_up, plain, repr_of
from thinc_torchopt.core.errors import ConfigError

from .kit import LOG, LOSS, make, rule

VALUES = {
    "loss": {"loss": 3.0, "per_word": 0.5, "components": {"ner": 1.0, "tagger": 2.0}},
    "scores": {"ents_f": 0.5, "ents_per_type": {"ORG": {"f": 0.25, "p": 1.0}}},
    "w": {"values": [float(i) for i in range(30)], "mean": 14.5},
    "norm": 2.0,
    "empty": None,
}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("loss['per_word'] < 1", {"loss": {"per_word": 0.5}}),
        ("loss['components']['ner'] < norm", {"loss": {"components": {"ner": 1.0}}, "norm": 2.0}),
        ("max(loss['components'][k] for k in ['ner']) > 0", {"loss": {"components": VALUES["loss"]["components"]}}),
        ("len(loss) > 1 and loss['loss'] > 1", {"loss": VALUES["loss"]}),
        ("get(scores, ['ents_per_type', 'ORG', 'f'], 0) > 0", {"scores": {"ents_per_type": {"ORG": {"f": 0.25}}}}),
        ("get(scores['ents_per_type'], 'PER') is None", {"scores": {"ents_per_type": {"PER": None}}}),
        ("get(scores, 'x', loss['loss']) > 1", {"scores": {"x": None}, "loss": {"loss": 3.0}}),
        ("get({'a': norm}, 'a') > 1", {"norm": 2.0}),
        ("mean(w['values'][-4:]) > w['mean']", {"w": {"values": VALUES["w"]["values"][-20:], "mean": 14.5}}),
        (
            "w['values'][len(loss['components'])] > 0",
            {"w": {"values": VALUES["w"]["values"][-20:]}, "loss": {"components": VALUES["loss"]["components"]}},
        ),
        ("norm > 1 or empty['x'] > 1", {"norm": 2.0}),
    ],
)
def test_values_are_all_that_a_rule_needs(text, expected):
    rule = Rule(text, VALUES)
    found = looked_up(VALUES, rule.paths)
    assert found == expected
    assert rule.evaluate({"loss": None, "empty": None} | found) == rule.evaluate(VALUES)


def test_values_are_the_values_of_a_firing():
    rules = (
        rule("a", "on_step_end", "loss['per_word'] < 1", LOG),
        rule("b", "on_step_end", "fired['a']['times'] == 1", LOG),
    )
    a, b = make(*rules, metrics=[LOSS]).on_event("on_step_end", step=1, losses={"ner": 5.0}, batch_words=10)
    assert a.values == {"loss": {"per_word": 0.5}} and b.values == {"fired": {"a": {"times": 1}}}
    assert str(a).endswith("with {'loss': {'per_word': 0.5}}")


@pytest.mark.parametrize(
    ("most", "more", "reason"),
    [
        ("x" * 2_000, "x" * 2_001, "a text of 1 to 2000 characters"),
        ("x", " ", "a text of 1 to 2000 characters"),
        ("{step:100}", "{step:101}", "a width of at most 100"),
        ("{step:.100f}", "{step:.101f}", "a width of at most 100"),
        ("{step:>3}", "{step:{n}}", "formats of Python's"),
        ("{loss}", "{loss.a}", "without attributes and indices"),
        ("{n}", "{0}", "fields with a name"),
    ],
)
def test_values_in_messages(most, more, reason):
    assert Message("log_format", most).fill({}, {"step": 3})
    with pytest.raises(ConfigError, match=f"'log_format'.*{reason}"):
        Message("log_format", more)


def test_values_are_shown_in_part():
    assert Message("text", "{a}").fill({"a": "x" * 1_001}, {}) == "x" * 1_000
    assert Message("text", "{a}" * 11).fill({"a": "x" * 1_001}, {}) == "x" * 10_000
    shown = ", ".join(map(str, range(20)))
    assert repr_of(list(range(20))) == f"[{shown}]" and repr_of(list(range(21))) == f"[{shown}, ...]"
    assert "19: 0}" in repr_of(dict.fromkeys(range(20), 0)) and ", ...}" in repr_of(dict.fromkeys(range(21), 0))
    deep = json.loads("[" * 21 + "]" * 21)
    assert plain(deep) == deep
    for deeper in ([deep], type("Endless", (), {"tolist": lambda self: [self]})()):
        with pytest.raises(ValueError, match="at most 20 deep"):
            plain(deeper)
