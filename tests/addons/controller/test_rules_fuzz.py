"""Random rules. Oracle: Python's own eval, where a rule is one that it can be trusted with."""

import copy
import math
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thinc_torchopt.addons.controller.evaluator import FUNCTIONS, MAX_WORK, MetricUnavailable
from thinc_torchopt.addons.controller.rules import Rule
from thinc_torchopt.core.errors import ControllerError

VALUES = {"a": 0.5, "b": 3, "c": [1.0, 2.0, 0.5], "d": {"x": 1, "y": [4, 5]}, "e": "text", "f": True}
QUIET = settings(suppress_health_check=list(HealthCheck), derandomize=True)

small = st.integers(-20, 20).map(lambda i: f"({i})")
scalars = st.one_of(
    small,
    st.floats(-9, 9).map(repr),
    st.sampled_from(["a", "b", "f", "d['x']", "c[0]", "d['y'][-1]", "len(c)", "True"]),
)


def numbers(inner):
    pairs = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"
    )
    calls = st.tuples(st.sampled_from(["abs", "int", "float", "math_trunc", "math_floor"]), inner).map(
        lambda t: f"{t[0]}({t[1]})"
    )
    lists = st.lists(inner, min_size=1, max_size=4).map(lambda items: f"[{', '.join(items)}]")
    reduced = st.tuples(st.sampled_from(["sum", "max", "min", "len"]), lists).map(lambda t: f"{t[0]}({t[1]})")
    passes = st.tuples(st.sampled_from(["sum", "max", "min"]), inner, inner, lists).map(
        lambda t: f"{t[0]}([v * {t[1]} for v in {t[3]} if v < {t[2]}])"
    )
    power = inner.map(lambda x: f"({x} ** 2)")
    choice = st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} < {t[2]} else {t[1]})")
    return st.one_of(pairs, calls, reduced, passes, power, choice)


number = st.recursive(scalars, numbers, max_leaves=8)
compared = st.tuples(number, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), number).map(" ".join)
chained = st.tuples(number, number, number).map(lambda t: f"{t[0]} < {t[1]} <= {t[2]}")
members = st.tuples(number, st.sampled_from(["in", "not in"]), st.sampled_from(["c", "d['y']", "[1, 2]"])).map(" ".join)
safe = st.recursive(
    st.one_of(compared, chained, members),
    lambda inner: st.one_of(
        inner.map(lambda x: f"not ({x})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda x: f"any([{x} for v in c])"),
        inner.map(lambda x: f"all([{x} for v in c])"),
    ),
    max_leaves=4,
)

PYTHON = {name: getattr(math, name.removeprefix("math_")) for name in FUNCTIONS if name.startswith("math_")}


@given(safe)
@settings(QUIET)
def test_fuzz_agrees_with_python(text):
    try:
        expected = eval(text, PYTHON | VALUES)
    except (ArithmeticError, ValueError, TypeError) as error:
        expected = error
    try:
        found = Rule(text, VALUES).evaluate(VALUES)
    except ControllerError as error:
        assert isinstance(expected, Exception) or "NumberTooHigh" in str(error) or "IterableTooLong" in str(error), text
    else:
        assert found is expected, text


names = st.sampled_from([*VALUES, "nope", "__class__", "v", "open", "_add", "x"])
constants = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.text(max_size=5).map(repr),
    st.sampled_from(["9**9", "1e999", "''"]),
)


def anything(inner):
    operators = [
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "<<",
        ">>",
        "&",
        "|",
        "^",
        "<",
        "==",
        "in",
        "is",
        "and",
        "or",
        "@",
        ":=",
    ]
    return st.one_of(
        st.tuples(inner, st.sampled_from(operators), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["-", "~", "not ", "*", "await ", "lambda: "]), inner).map(
            lambda t: f"({t[0]}{t[1]})"
        ),
        st.tuples(inner, inner).map(lambda t: f"{t[0]}[{t[1]}]"),
        st.tuples(inner, inner, inner).map(lambda t: f"{t[0]}[{t[1]}:{t[2]}]"),
        st.tuples(inner, st.sampled_from(["real", "append", "__class__", "format"])).map(lambda t: f"{t[0]}.{t[1]}"),
        st.tuples(st.sampled_from(sorted(FUNCTIONS)), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(st.sampled_from([*sorted(FUNCTIONS), "eval", "e"]), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"[{t[0]} for v in {t[1]} if {t[2]}]"),
        st.tuples(inner, inner, inner).map(lambda t: f"[[{t[0]} for v in {t[1]}] for v in {t[2]}]"),
        st.tuples(inner, inner).map(lambda t: f"{{{t[0]} for v in {t[1]} for x in c * 1000}}"),
        st.tuples(inner, inner, inner).map(lambda t: f"{{{t[0]}: {t[1]} for v in {t[2]}}}"),
        st.lists(inner, max_size=4).map(lambda items: f"({', '.join(items)},)"),
        inner.map(lambda x: f"f'{{{x}}}'"),
        inner.map(lambda x: f"({x}) * 10 ** 9"),
        inner.map(lambda x: f"({x}) * 1000"),
    )


wild = st.recursive(st.one_of(names, constants), anything, max_leaves=12)


@given(st.one_of(wild, wild.map(lambda x: f"str({x}) == ''"), st.text(max_size=30)))
@settings(QUIET)
def test_fuzz_fails_with_our_errors_alone_and_after_bounded_work(text):
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before, values = sys.gettrace(), copy.deepcopy(VALUES)
    try:
        rule = Rule(text, VALUES)
        sys.settrace(trace)
        assert isinstance(rule.evaluate(values), bool)
    except (ControllerError, MetricUnavailable) as error:
        assert len(str(error)) < 3_000
    finally:
        sys.settrace(before)
    assert count < 60 * MAX_WORK
    assert values == VALUES
