"""What rules may say. Oracle for values: Python's own eval."""

import math
import operator

import numpy
import pytest

from thinc_torchopt.addons.controller.evaluator import FUNCTIONS, MAX_WORK, MetricUnavailable
from thinc_torchopt.addons.controller.rules import Rule
from thinc_torchopt.core.errors import ControllerError

VALUES = {
    "loss": {"loss": 0.5, "components": {"ner": 0.25}, "best": None},
    "window": {"training_loss": {"loss": [3.0, 2.0, 4.0], "steps": [1, 2, 3]}, "metrics": {}},
    "steps": 7,
    "name": "adam",
    "off": None,
}

HOLD = [
    "loss['loss'] < 1.0",
    "loss['loss'] == 0.5 and not steps > 7",
    "0 < loss['loss'] < steps < 100",
    "window['training_loss']['loss'][0] < window['training_loss']['loss'][-1]",
    "len(window['training_loss']['loss']) == 3 and window['training_loss']['loss'][-2] == 2",
    "all(x > 1 for x in window['training_loss']['loss'])",
    "any([x > 3 for x in window['training_loss']['loss']])",
    "sum(window['training_loss']['loss']) / len(window['training_loss']['loss']) == 3.0",
    "max(window['training_loss']['loss']) - min(window['training_loss']['loss']) == 2",
    "max(x * 2 for x in window['training_loss']['loss']) == 8.0",
    "max([], default=1) == 1",
    "round(loss['loss'] * 1.2345, 2) == 0.62",
    "window['training_loss']['loss'][1:] == [2.0, 4.0]",
    "window['training_loss']['loss'][::-1] == [4.0, 2.0, 3.0]",
    "[a + b for a, b in [(1, 2), (3, 4)] if a > 1] == [7]",
    "[x for row in [[1, 2], [3]] for x in row] == [1, 2, 3]",
    "{steps % 2, 1} == {1} and {str(steps): 1}['7'] == 1",
    "steps in (1, 7) and 'ner' in loss['components'] and 'da' in name",
    "name + '!' == 'adam!' and name[0] == 'a' and str(steps) == '7'",
    "(steps if loss['loss'] > 0 else 0) == 7",
    "math_sqrt(49) == steps and sqrt(49) == steps and math_floor(1.5) + math_ceil(1.5) + math_trunc(-1.5) == 2",
    "log(8) / log(2) == 3 and exp(0) == 1 and math_exp(math_log(2.5)) < 2.6 and log(2 ** 500) > 346",
    "abs(-3) == 3 and int('3') == 3 and float('2.5') == 2.5 and int(2.9) == 2",
    "2 ** 10 == 1024 and 7 // 2 == 3 and 7 % 4 == 3",
    "1 << 3 == 8 and 9 >> 1 == 4 and 6 & 3 == 2 and 6 | 1 == 7 and 6 ^ 3 == 5",
    "~0 == -1 and +3 == 3",
    "'ab' * 2 == 'abab' and [1] * 2 + [3] == [1, 1, 3] and (1,) + (2,) == (1, 2)",
    "loss['best'] is None and loss['best'] == None",
    "True",
    "not False",
    "steps > 3 or off['nothing'] > 1",
    "(\n  steps > 3\n  and True\n)",
    "  steps > 3  ",
    "True & True",
]


@pytest.mark.parametrize("text", HOLD)
def test_rules_that_hold_as_in_python(text):
    space = {name: getattr(math, name) for name in ("sqrt", "log", "exp")}
    space |= {f"math_{name}": getattr(math, name) for name in ("sqrt", "log", "exp", "floor", "ceil", "trunc")}
    assert Rule(text, VALUES).evaluate(VALUES) is True
    assert eval(text.strip(), space | VALUES) is True
    assert Rule(f"not ({text})", VALUES).evaluate(VALUES) is False


@pytest.mark.parametrize(
    "text, reason",
    [
        ("loss._loss > 1", "after a dot, found '_loss'"),
        ("loss.func_code > 1", "after a dot, found 'func_code'"),
        ("name.upper() == 'A'", "by its name"),
        ("(lambda: True)()", "lambda"),
        ("f'{loss}' == ''", "f-string"),
        ("'%d' % 3 == '3'", "formatting"),
        ("x = True", "one Python expression"),
        ("True; False", "one Python expression"),
        ("(y := True)", "assignment"),
        ("list(loss) == []", "one of the functions"),
        ("open('x') == 1", "one of the functions"),
        ("loss is 3", "write =="),
        ("2 + 2", "true or false"),
        ("steps > 1 and len(name)", "true or false"),
        ("loss and [1]", "true or false"),
        ("True if steps > 1 else 'no'", "true or false"),
        ("len(name) and steps > 1", "true or false"),
        ("steps - 1 or steps > 1", "true or false"),
        ("nope > 1", "name of a metric"),
        ("len > 1", "call it with"),
        ("len(name, name) > 1", "wrong arguments"),
        ("len(*[name]) > 1", "before a value"),
        ("len(**loss) > 1", r"\*\* is not allowed"),
        ("{**loss} == 1", r"\*\* is not allowed"),
        ("[*name] == 1", "before a value"),
        ("[loss for loss in [1]] == [1]", "new name"),
        ("[y for x in [1] for y in y] == [1]", "name of a metric"),
        ("[x for x in [1] if y] == [1]", "name of a metric"),
        ("{x for x in [1]} == 1", "comprehension of a set"),
        ("{x: 1 for x in [1]} == 1", "comprehension of a dict"),
        ("b'x' == 1", "a number, a text"),
        ("1j == 1", "a number, a text"),
        ("... == 1", "a number, a text"),
        ("'__' == 'a'", "__"),
        ("await_ > 1", "name of a metric"),
        ("", "one Python expression"),
        (True, "quotes"),
        (None, "quotes"),
        (f"{10**400} > 1", "bits"),
        ("loss['loss'] @ 1 > 1", "operator MatMult is not allowed"),
    ],
    ids=str,
)
def test_rules_refused_when_read(text, reason):
    with pytest.raises(ControllerError, match=f"Can't use the rule .*{reason}"):
        Rule(text, VALUES)


@pytest.mark.parametrize(
    ("most", "more", "reason"),
    [
        (f"len('{'x' * 1_989}') > 1", f"len('{'x' * 1_990}') > 1", "at most 2000 characters, found 2001"),
        (f"[{'1, ' * 497}] != 1", f"[{'1, ' * 498}] != 1", "at most 500 parts"),
        ("not " * 39 + "False", "not " * 40 + "True", "at most 40 deep"),
    ],
    ids=["text", "nodes", "depth"],
)
def test_rules_limits(most, more, reason):
    """Just what is allowed, and one more."""
    assert Rule(most, VALUES).evaluate(VALUES)
    with pytest.raises(ControllerError, match=reason):
        Rule(more, VALUES)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("loss['nothing'] > 1", r"a key of loss \(loss.*\), found 'nothing'"),
        ("[x['b'] for x in [{'a': 1}]] == [steps]", r"a key \(a\), found 'b'"),
        ("window['training_loss']['loss'][9] > 1", r"a position in the 3 values of window\['training_loss'\]"),
        ("window < 1", "TypeError"),
        ("loss['loss'] < None", "TypeError"),
        ("steps in None", "TypeError"),
        ("max(name, key=steps) > 1", r"max\(\) can't take"),
        ("loss['loss'] / (steps - 7) > 1", "ZeroDivisionError"),
        ("steps", "true or false, but gave 7"),
        ("name + 1 == 1", "TypeError"),
        ("(name * steps) % 3 == 1", "formatting of texts with %"),
        ("sum(window) > 1", r"sum\(\) can't take {"),
        ("sum([[steps]]) > 1", r"sum\(\) can't take \[\[7\]\]"),
        ("{[steps]} == 1", "TypeError"),
        ("{loss['loss']: 1}[(1, 2)] == 1", "expected a key"),
        ("(0 - steps) ** 0.5 == 1", "root of a negative"),
        ("[x for x in steps] == 1", "TypeError"),
        ("round(0.5, steps * 100) > 1", "digits"),
        ("sqrt(0 - steps) > 1", "ValueError"),
        ("log(steps - 7) > 0", "ValueError"),
        ("exp(steps + 1000) > 0", "OverflowError"),
        ("log(name) > 0", r"log\(\) can't take 'adam'"),
        ("math_floor(1e308 * 1e308 * steps) > 1", "OverflowError"),
        # the limits of simpleeval that the framework names
        ("steps ** 4000001 > 1", "NumberTooHigh"),
        ("4000001.0 ** steps > 1", "NumberTooHigh"),
        ("steps << 10001 > 1", "NumberTooHigh"),
        ("name * 100000 == ''", "IterableTooLong"),
        ("[name] * steps ** 6 == []", "IterableTooLong"),
        ("[1 for x in [1] * 1001 for y in [1] * 10] == []", "Can't use|IterableTooLong"),
    ],
)
def test_rules_that_fail(text, reason):
    with pytest.raises(ControllerError, match=reason):
        Rule(text, VALUES).evaluate(VALUES)


@pytest.mark.parametrize(
    "text, what", [("off > 1", "off"), ("loss['best'] > 1", "loss"), ("window['metrics']['score'][-1] > 1", "window")]
)
def test_rules_metrics_without_value(text, what):
    """None, something that is None, something in what is still empty. As soon as it has one, the rule is evaluated."""
    with pytest.raises(MetricUnavailable, match=what):
        Rule(text, VALUES).evaluate(VALUES)
    with pytest.raises(MetricUnavailable, match=what):
        Rule(text, VALUES).evaluate({**VALUES, what: None})
    now = {"off": 2, "loss": {"best": 2}, "window": {"metrics": {"score": [2]}}}
    assert Rule(text, VALUES).evaluate(VALUES | now) is True


KEYS = {
    "loss": {"loss": None, "per_word": None, "components": None},
    "window": {"training_loss": {"loss": None}},
    "run": {"loss": None, "epoch": None},
}


ALL_OF_RUN = r"one value, found all of run; use one of its keys \(loss, epoch\), as in run\['loss'\]"
FORMS = (
    *("{} < 1.0", "{}", "{0} and {0}", "{} and steps > 1", "{} or steps > 1", "{} if steps > 1 else True"),
    *("not {}", "{} == 1.0", "1 != {}", "{} is True", "-{} == 1", "abs({}) > 1", "{}[:2] == 1"),
    *("{} - loss > 1", "[x for x in {}] == 1", "mean({}) > 1"),
)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("loss['los'] < 1", r"a key of loss, found 'los'. Did you mean 'loss'\?"),
        ("loss.los < 1", r"a key of loss, found 'los'. Did you mean 'loss'\?"),
        ("loss[0] < 1", "found 0"),
        ("steps > 3 or window['training_loss']['acc'][-1] > 1", r"a key of window\['training_loss'\]"),
        ("any(loss['no'] > x for x in [1, 2])", "found 'no'"),
        ("'los' in loss", r"a key of loss, found 'los'. Did you mean 'loss'\?"),
        ("steps > 1 and 'los' not in loss", "found 'los'"),
        ("window['training_loss'] + 1 == 2", r"all of window\['training_loss'\]"),
        ("window.training_loss", r"all of window\['training_loss'\]; use one of its keys \(loss\), as in .*\['loss'\]"),
        *((form.format("run"), ALL_OF_RUN) for form in FORMS),
    ],
)
def test_rules_that_name_keys_that_there_are_not(text, reason):
    with pytest.raises(ControllerError, match=reason):
        Rule(text, [*VALUES, "run"], KEYS)


@pytest.mark.parametrize("keys", [None, KEYS])
@pytest.mark.parametrize(
    "text, holds",
    [
        ("loss < 1.0", True),
        ("0.25 < loss < steps and loss + 1 == 1.5 and -loss < 0 and abs(loss) == 0.5", True),
        ("[loss, steps] == [0.5, 7] and (loss if steps > 1 else 0) == loss['loss']", True),
        ("'loss' in loss and 'per_word' not in loss and get(loss, 'nope', 3) == 3", True),
        ("loss != None and not loss is None and len(loss) == 3", True),
        ("loss == {'loss': 0.5, 'components': {'ner': 0.25}, 'best': None} and {} != window", True),
        ("loss.loss == 0.5 and loss.components.ner == loss['components']['ner']", True),
        ("window.training_loss.loss[-1] == 4.0", True),
        ("loss > 1.0", False),
    ],
)
def test_rules_name_alone_is_the_value_of_its_name(text, holds, keys):
    """As in the first example of the framework's record: a metric `loss` of class `Loss`, and the rule `loss < 1.0`."""
    assert Rule(text, VALUES, keys).evaluate(VALUES) is holds


def test_rules_name_alone_waits_for_its_value():
    for values in ({"loss": None}, {"loss": {"loss": None}}):
        with pytest.raises(MetricUnavailable, match="loss"):
            Rule("loss < 1.0", ["loss"], KEYS).evaluate(values)
    assert Rule("loss < 1.0", ["loss"], KEYS).paths == [("loss", "loss")]
    assert Rule("score > 0.5 and other", ["score", "other"]).evaluate({"score": 0.7, "other": {"other": True}}) is True


def test_rules_random_numbers_are_those_of_the_step():
    """A run that is resumed has the same, and so has each process."""
    rule, other = (Rule(text, []) for text in ("0 <= rand() < 0.5", "randint(2) == 0 and randint(1) == 0"))
    for one in (rule, other):
        found = [one.evaluate({}, step) for step in range(200)]
        assert found == [one.evaluate({}, step) for step in range(200)] and 60 < sum(found) < 140
    assert Rule("rand() == rand()", []).evaluate({}, 3) is False


@pytest.mark.parametrize("key", ["'lo' + 'sss'", "str('losss')", "['losss', 'los'][steps - 7]", "name"])
@pytest.mark.parametrize("rule", ["loss[{}] == 1", "loss[{}] > 1", "loss[{}] is None", "loss[{}] != 1"])
def test_rules_that_compute_keys_that_there_are_not(rule, key):
    """They would be False for ever, or True, or skipped."""
    with pytest.raises(ControllerError, match=r"a key of loss \(loss, per_word, components\), found '(losss|adam)'"):
        Rule(rule.format(key), VALUES, KEYS).evaluate(VALUES)


def test_rules_with_keys_that_are_not_there_yet():
    """A metric that holds something says so, before it has it. What it holds deeper down is not known."""
    values = {"loss": {"loss": 1.0, "components": {"ner": 1.0}}}
    with pytest.raises(MetricUnavailable, match=r"loss\['per_word'\]"):
        Rule("loss['per_word'] < 1", VALUES, KEYS).evaluate(values)
    assert Rule("loss['per_word'] is None and loss != None", VALUES, KEYS).evaluate(values)
    assert Rule("loss['components']['ner'] == 1 and loss[str('loss')] == 1", VALUES, KEYS).evaluate(values)
    assert Rule("loss['per_' + 'word'] is None and 'per_word' not in str(loss)", VALUES, KEYS).evaluate(values)
    assert Rule("'per_word' not in loss and 'ner' in loss['components']", VALUES, KEYS).evaluate(values)
    with pytest.raises(ControllerError, match=r"a key of loss\['components'\] \(ner\), found 'tagger'"):
        Rule("loss['components']['tagger'] < 1", VALUES, KEYS).evaluate(values)


def test_rules_have_the_functions_of_the_issue_and_no_others():
    python = {"abs", "float", "int", "len", "max", "min", "round", "str", "all", "any", "sum"}
    own = {"sqrt", "floor", "ceil", "trunc", "log", "exp"}
    numbers = {"mean", "median", "std", "slope", "quantile", "isfinite", "isnan", "get", "rand", "randint"}
    assert python | own | {f"math_{name}" for name in own} | numbers == FUNCTIONS


def test_rules_know_what_metrics_they_name():
    assert Rule("loss['loss'] < steps and all(x > 1 for x in window['a'])", VALUES).names == {"loss", "steps", "window"}
    assert Rule("True", VALUES).names == set()


def test_rules_work_is_counted_anew_each_time():
    """And is enough for the largest window, gone through once."""
    values = {"w": [float(x) for x in range(10_000)]}
    rule = Rule("all(x >= 0 for x in w) and sum(w) > 1", values)
    assert all(rule.evaluate(values) for _ in range(3))
    with pytest.raises(ControllerError, match="IterableTooLong"):
        Rule("all([all([x + y >= 0 for x in w[:100]]) for y in w[:1000]])", values).evaluate(values)
    with pytest.raises(ControllerError, match=f"limit of {MAX_WORK}"):
        Rule("all([(x + 1) * (x + 2) + x >= x - 1 for x in w])", values).evaluate(values)


@pytest.mark.parametrize("compare", [operator.lt, operator.eq])
def test_rules_give_bools_alone(compare):
    """NumPy's are not: metrics come without them."""
    with pytest.raises(ControllerError, match="true or false"):
        Rule("x", ["x"]).evaluate({"x": numpy.bool_(compare(1, 2))})


def test_rules_errors_end_with_one_stop():
    for text, keys, end in (
        ("m['z'] > 1", {"m": {"a": None}}, r"found 'z'\. There are: a\.$"),
        ("m > ", {}, r"[^.]\.$"),
    ):
        with pytest.raises(ControllerError, match=end):
            Rule(text, ["m"], keys)
