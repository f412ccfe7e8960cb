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


def filled(form, *parts):
    """A form, filled by what is drawn."""
    return st.tuples(*parts).map(lambda found: form.format(*found))


def numbers(inner):
    lists = st.lists(inner, min_size=1, max_size=4).map(lambda items: f"[{', '.join(items)}]")
    return st.one_of(
        filled("({} {} {})", inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner),
        filled("{}({})", st.sampled_from(["abs", "int", "float", "math_trunc", "math_floor"]), inner),
        filled("{}({})", st.sampled_from(["sum", "max", "min", "len"]), lists),
        filled("{}([v * {} for v in {} if v < {}])", st.sampled_from(["sum", "max", "min"]), inner, lists, inner),
        filled("({} ** 2)", inner),
        filled("({0} if {1} < {2} else {1})", inner, inner, inner),
    )


number = st.recursive(scalars, numbers, max_leaves=8)
compared = filled("{} {} {}", number, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), number)
chained = filled("{} < {} <= {}", number, number, number)
members = filled("{} {} {}", number, st.sampled_from(["in", "not in"]), st.sampled_from(["c", "d['y']", "[1, 2]"]))
safe = st.recursive(
    st.one_of(compared, chained, members),
    lambda inner: st.one_of(
        filled("not ({})", inner),
        filled("({}) {} ({})", inner, st.sampled_from(["and", "or"]), inner),
        filled("{}([{} for v in c])", st.sampled_from(["any", "all"]), inner),
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
    *(st.integers().map(str), st.floats().map(repr), st.text(max_size=5).map(repr)),
    st.sampled_from(["9**9", "1e999", "''"]),
)


def anything(inner):
    operators = ["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "<", "==", "@", ":="]
    operators += ["in", "is", "and", "or"]
    functions = st.sampled_from(sorted(FUNCTIONS))
    return st.one_of(
        filled("({} {} {})", inner, st.sampled_from(operators), inner),
        filled("({}{})", st.sampled_from(["-", "~", "not ", "*", "await ", "lambda: "]), inner),
        filled("{}[{}]", inner, inner),
        filled("{}[{}:{}]", inner, inner, inner),
        filled("{}.{}", inner, st.sampled_from(["real", "append", "__class__", "format"])),
        filled("{}({}, {})", functions, inner, inner),
        filled("{}({})", st.one_of(functions, st.sampled_from(["eval", "e"])), inner),
        filled("[{} for v in {} if {}]", inner, inner, inner),
        filled("[[{} for v in {}] for v in {}]", inner, inner, inner),
        filled("{{{} for v in {} for x in c * 1000}}", inner, inner),
        filled("{{{}: {} for v in {}}}", inner, inner, inner),
        st.lists(inner, max_size=4).map(lambda items: f"({', '.join(items)},)"),
        filled("f'{{{}}}'", inner),
        filled("({}) * 10 ** 9", inner),
        filled("({}) * 1000", inner),
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
