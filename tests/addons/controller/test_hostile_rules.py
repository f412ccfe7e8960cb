"""Rules that want to break out, take long or take memory. Each is refused, or done after a bounded amount of work.

Not by the clock: lines are counted, each of which does a bounded amount of work, since no value that a rule can
make is large.
"""

import copy

import pytest

from thinc_torchopt.addons.controller.controller import TrainerController
from thinc_torchopt.addons.controller.evaluator import MetricUnavailable
from thinc_torchopt.addons.controller.rules import Rule
from thinc_torchopt.core.errors import ControllerError

from .limits import measured

MAX_LINES = 2_000_000  # some 14 a piece of work
MAX_BYTES = 10_000_000
# What Python's compiler and eval report of themselves.
HARMLESS = {"builtins.id", "compile", "exec", "object.__getattr__", "sys._getframe", "sys.settrace"}

VALUES = {
    "m": {"loss": 0.5, "list": [0.5] * 1_000, "steps": list(range(10_000)), "text": "x" * 1_000},
    "n": 3,
    "s": "abc",
    "deep": [[[[[[1]]]]]],
    "fired": {"r": {"times": 3, "step": None, "steps_since": None}},
}
BEFORE = copy.deepcopy(VALUES)
M = str(2**61 - 1)
LINES = "\N{FULLWIDTH LOW LINE}" * 2


def doubled(start, times):
    """A list that holds a list twice, which holds a list twice ..."""
    text = start
    for i in range(times):
        text = f"[[v{i}, v{i}] for v{i} in {text}]"
    return text


HOSTILE = [
    # statistics, of the longest lists and the widest ranges of numbers
    "mean(m['steps']) > std(m['steps']) > slope(m['steps'])",
    "median(m['steps']) < quantile(m['steps'], 1e-300)",
    "std([1e308, 5e-324] * 9000) > 0",
    "slope([5e-324, 1e308] * 9000) > 0",
    "mean([1e308] * 100000) > 0",
    "mean([[1.0]] * 10) > 0",
    "any(mean(m['list']) > x for x in m['steps'])",
    "std([std([std(m['list'])] * 1000) for x in m['list']]) > 0",
    "quantile([1.0], -1) > 0",
    "quantile([1.0], 10 ** 300) > 0",
    "quantile([1.0], 0.0 * 1e999) > 0",
    "mean('1' * 1000) > 0",
    "get(m, 'x' * 100000) is None",
    "get(m, {'a': 1}) is None",
    "get(m, ['__class__', '__mro__']) is not None",
    "get(deep, [0, 0, 0, 0, 0, 0, 0]) == 1",
    "get(get, get) == 1",
    "isnan(10 ** 308) or isfinite(m)",
    # out of the expression
    "().__class__.__bases__[0].__subclasses__()",
    "n.real == 3",
    "m.update(loss=0) is None",
    "m['list'].append(1) is None",
    "'{0.__class__}'.format(n) == ''",
    "'a'.replace('', 'a'*1000) == ''",
    "'%1000000000d' % 1 == ''",
    "s % n == ''",
    "f'{n:1000000000}' == ''",
    "__import__('os').system('true') == 0",
    "open('/etc/passwd') == 1",
    "eval('1') == 1",
    "getattr(n, 'real') == 3",
    "len(range(10**9)) == 1",
    "(lambda: 1)() == 1",
    "(len if n else abs)(s) == 3",
    "(x := 10**9) > 1",
    "import os",
    "True; False",
    "(yield) == 1",
    "await n",
    "[x async for x in m] == 1",
    "_add(1, 2) == 3",
    "[_add for _add in [1]] == [1]",
    "_ == 1",
    "\N{MATHEMATICAL BOLD SMALL N} == 3 and " + LINES + "import" + LINES + "('os') == 1",
    "n\N{ZERO WIDTH SPACE} == 3",
    "\N{RIGHT-TO-LEFT OVERRIDE}n == 3",
    "n\x00 == 3",
    "ev\N{LATIN SMALL LETTER A WITH GRAVE}l('1') == 1",
    "\N{FULLWIDTH LATIN SMALL LETTER E}val('1') == 1",
    "'\\x5f\\x5fclass\\x5f\\x5f' == n['\\x5f\\x5fclass\\x5f\\x5f']",
    # numbers
    "9**9**9**9 > 1",
    "n**n**n**n**n > 1",
    "2**1000 * 2**1000 > 1",
    "1 << 10**10 > 1",
    "n << n << n << n << n << 999 > 1",
    "n ** -10**9 > 1",
    "(-n) ** 0.5 == 1",
    "10.0**400 > 1",
    "round(n, -10**9) == 0",
    "round(n, 10**9) == 0",
    "round(2**1000, -10**300) == 0",
    "int('9' * 100000) > 1",
    "str(2**1000) * 1000 == ''",
    "int('1' * 401) > 1",
    "9" * 1990 + " > 1",
    "1e999 - 1e999 == 0 and math_floor(1e999) > 1",
    "abs(-(10**300)) * 10**300 > 1",
    "sum([2**1000 for x in m['steps']]) > 1",
    # texts and collections
    "len('a' * 10**9) > 1",
    "len(s * 10**9) > 1",
    "len('a' * 1000 * 1000 * 1000) > 1",
    "len([0] * 10**9) > 1",
    "[[0] * 1000] * 1000 * 1000 == 1",
    "len(str([[0] * 1000] * 1000)) > 1",
    "str(m['steps'] * 100) == ''",
    "['x' * 1000 for a in m['steps']] == 1",
    "[[0] * 1000 for a in m['steps']] == 1",
    "[{1: 1} for a in m['steps']] == 1",
    "[{1} for a in m['steps'] for b in s] == 1",
    "[m['steps'][1:] for a in m['steps']] == 1",
    "[2**1000 + a for a in m['steps']] == 1",
    "[a for a in m['steps'] for b in m['steps']] == 1",
    "all([a > b for a in m['steps'] for b in m['steps']])",
    "any(a > 1 for b in m['steps'] for a in [max(m['steps'])] if a < 0)",
    "sum(sum(m['steps']) for a in m['steps']) > 1",
    "any(a == m['steps'] for a in [m['steps'], m['steps'] + [1]] * 1000 if a != m['steps'])",
    "any(m['text'] + 'a' in m['text'] * 10 for a in m['steps'])",
    "('a' * 10000 + 'b') * 2 in 'a' * 50000",
    "[1 for a in m['steps'] if 'x' in m['steps']] == 1",
    # hashes that are all the same
    f"len({{a * {M} for a in m['steps']}}) > 1",
    f"len({{a * {M}: 1 for a in m['steps'][:900]}}) > 1",
    "len({(a, b, c, d, e, f, g) " + " ".join(f"for {x} in [-1, -2]" for x in "abcdefg") + "}) > 1",
    "{n: 1}[(n, n)] == 1",
    # lists that are twice as large at each level
    doubled("[1]", 12) + " == " + doubled("[1]", 12).replace("v", "w"),
    f"str({doubled('[1]', 20)}) == ''",
    f"max({doubled('[1]', 20)}, {doubled('[1]', 20).replace('v', 'w')}) == 1",
    f"{{1: 2}} == {doubled('[1]', 20)}",
    # deep
    "(" * 300 + "n" + ")" * 300 + " == 3",
    "[" * 300 + "]" * 300 + " == 3",
    "-" * 1900 + "1 == 1",
    "not " * 450 + "True",
    "n" + "+n" * 900 + " > 1",
    "n" + "<n" * 900,
    "deep" + "[0]" * 400 + " == 1",
    "n if " * 200 + "n" + " else n" * 200,
    "[x for x in " * 60 + "s" + "]" * 60 + " == 1",
]


# Functions of lists and lookups, each with each of these.
GIVEN = [
    "m",
    "s",
    "[]",
    "[None, n]",
    "[[n]]",
    "deep",
    "fired",
    "(x for x in m['steps'])",
    "[x for x in m['steps'] for y in m['list']]",
    "m['steps'] * 10 ** 6",
    "[1 << 1000] * 999",
    "[1e308, -1e308, 5e-324] * 333",
    "[1e999, -1e999, 1e999 - 1e999]",
    "'9' * 400",
    "μ",
]
HOSTILE += [f"{name}({x}) > 0" for name in ("mean", "median", "std", "slope", "isfinite", "isnan") for x in GIVEN]
HOSTILE += [f"quantile({x}, {x}) > 0" for x in GIVEN] + [f"get(fired, {x}, {x}) == 0" for x in GIVEN]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:60])
def test_hostile_is_refused_or_bounded(text):
    with measured() as done:
        try:
            Rule(text, VALUES).evaluate(VALUES)
        except (ControllerError, MetricUnavailable) as error:
            assert len(str(error)) < 3_000
            error.__traceback__ = None
    assert done.lines < MAX_LINES and done.peak < MAX_BYTES, done
    assert set(done.events) <= HARMLESS
    assert BEFORE == VALUES


def test_hostile_measure_sees_work_and_memory():
    """A measure that sees nothing proves nothing."""
    with measured() as done:
        open("/dev/null").close()
        assert len([x + 1 for x in range(50_000)]) == 50_000
    assert done.lines > 50_000 and done.peak > 300_000 and "open" in done.events


LOGS = [
    "{m.__class__}",
    "{m[loss]}",
    "{m:1000000000}",
    "{m:{m}}",
    "{m!r}",
    "{}",
    "{nothing}",
    "{m",
    "m}",
    "{m:\x00}",
    "x" * 2_001,
    "{" * 501,
    7,
    None,
]


@pytest.mark.parametrize("log_format", LOGS, ids=lambda text: ascii(text)[:40])
def test_hostile_messages_are_refused(log_format):
    definition = {
        "controller_metrics": [{"name": "m", "class": "Loss"}, {"name": "n", "class": "Loss"}],
        "operations": [{"name": "log", "class": "LogControl", "arguments": {"log_format": log_format}}],
        "controllers": [],
    }
    with measured(counts_lines=False) as done, pytest.raises(ControllerError, match=r"operations\[0\]\.arguments"):
        TrainerController(definition)
    assert done.peak < MAX_BYTES
