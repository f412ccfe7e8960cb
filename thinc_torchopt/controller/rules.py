"""Rules: one Python expression over metrics, which gives true or false, and which can do nothing else.

A rule is parsed once. Its syntax tree may hold the kinds of nodes that stand in `_Compiler` and no others: there are no attributes, so no methods;
no statements, lambdas or f-strings. What could take long or take memory is rewritten to calls of `_Guard`, which counts work and sizes. Then the
tree is compiled to byte code, which runs without builtins.

*work*: what one evaluation may do, `MAX_WORK` in all. A pass of a comprehension costs as much as its body has nodes; what looks at a list, a
dict or a string costs as much as there are items or characters. So neither time nor memory can run away, whatever a rule says.

    >>> rule = Rule("loss['loss'] < 1.0", ["loss"])
    >>> rule.evaluate({"loss": {"loss": 0.5}})
    True
"""

from __future__ import annotations

import ast
import inspect
import math
import reprlib
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from types import GeneratorType
from typing import Any, Final, NoReturn

from ..errors import ControllerError

MAX_TEXT = 2_000  # characters of a rule
MAX_NODES = 500
MAX_DEPTH = 40
MAX_BITS = 1_024  # of an integer: as far as floats go
MAX_WORK = 100_000
MAX_PASSES = 10_000  # of one comprehension
MAX_KEYS = 1_000  # of a set or dict that a rule makes
MAX_DIGITS = 400  # that round() is asked for, or that int() and float() read

_SCALARS: Final = frozenset({bool, int, float, type(None)})
_NUMBERS: Final = frozenset({bool, int, float})
_KEYS: Final = _SCALARS | {str}
_NO_DEFAULT: Final = object()

# What the framework knows and we refuse, with the reason.
_REFUSED = {
    **dict.fromkeys(("rand", "randint"), "a rule must give the same result when a run is resumed, and in each process"),
    **dict.fromkeys(("list", "tuple"), "write a comprehension: [x for x in ...]"),
    "set": "write a comprehension: {x for x in ...}",
    "dict": "write a comprehension: {key: value for ...}",
}


class MetricUnavailable(LookupError):
    """A metric that the rule needs has no value yet. name (str): Which, or what of it."""

    def __init__(self, name: str):
        super().__init__(f"The metric {name} is not available")


class _Refused(Exception):
    """What a rule may not do."""


def refuse(reason: str) -> NoReturn:
    raise _Refused(reason)


class Rule:
    """A rule, parsed and compiled.

    text (str): A Python expression.
    metrics (Collection[str]): The names that it may use.
    RAISES (ControllerError): It does not parse, uses what rules may not, or a name that does not exist; or it can't give true or false.
    """

    def __init__(self, text: str, metrics: Collection[str]):
        self.text = text.strip() if isinstance(text, str) else text
        self._guard = _Guard()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Python's compiler: about `is` with a literal, escapes in strings
                compiler = _Compiler(_parse(self.text), frozenset(metrics))
                self._code = compile(compiler.tree, "<rule>", "eval")
        except _Refused as reason:
            raise ControllerError(f"Can't use the rule {reprlib.repr(text)}: {reason}.") from None
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else shown(error)
            raise ControllerError(
                f"Can't use the rule {reprlib.repr(text)}: expected one Python expression, found: {why}."
            ) from None
        self.names = frozenset(compiler.names)
        self._space: dict[str, Any] = {"__builtins__": {}, **self._guard.functions}
        if not self.names:
            try:
                self.evaluate({})
            except ControllerError as error:
                raise ControllerError(f"Can't use the rule {reprlib.repr(text)}: {error}.") from None

    def evaluate(self, values: Mapping[str, Any]) -> bool:
        """Whether the rule holds. values (Mapping): Those of the metrics, plain; None, or not there: a metric has none yet.

        RAISES (MetricUnavailable): It needs one that has none. (ControllerError): It failed, gave no bool, or went beyond its limits.
        """
        space = self._space
        for name in self.names:
            if (value := values.get(name)) is None:
                space.pop(name, None)
            else:
                space[name] = value
        self._guard.work = MAX_WORK
        try:
            result = eval(self._code, space)
        except NameError as error:  # all names were checked: this is a metric, reached before it has a value
            raise MetricUnavailable(f"{error.name!r}") from None
        except MetricUnavailable:
            raise
        except _Refused as reason:
            raise ControllerError(f"{reason}") from None
        except Exception as error:
            raise ControllerError(f"it failed with {shown(error)}") from None
        if result is True or result is False:
            return result
        raise ControllerError(f"expected it to give true or false, found {reprlib.repr(result)}")


def shown(error: BaseException) -> str:
    """An error of Python's in a few words: its text can hold the repr of anything."""
    text = ", ".join(arg if isinstance(arg, str) else reprlib.repr(arg) for arg in error.args)
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


# ---------------------------------------------------------------------- when a rule is read


def _parse(text: Any) -> ast.Expression:
    if not isinstance(text, str):
        refuse(f"expected a text, found {type(text).__name__}; put it in quotes")
    if len(text) > MAX_TEXT:
        refuse(f"expected at most {MAX_TEXT} characters, found {len(text)}")
    if "__" in text:
        refuse("expected no '__', found one")
    tree = ast.parse(text, mode="eval")
    nodes, level = 0, [tree.body]
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node) if not isinstance(child, _NO_NODES)]  # type: ignore[misc]
    if level or nodes > MAX_NODES:
        refuse(f"expected at most {MAX_NODES} parts, nested at most {MAX_DEPTH} deep, found more")
    return tree


_NO_NODES = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mult",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "bitand",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
}
_LAZY = frozenset({"all", "any", "max", "min", "sum"})  # functions that take a generator
_BOOLEAN = frozenset({"all", "any"})


class _Compiler:
    """Checks a tree, and rewrites it. Each method takes a node of the kind that it is named after, and the names that are bound around it.

    tree (ast.Expression): As it came from the parser.
    metrics (frozenset[str]): The names that a rule may use.
    RAISES (_Refused): There is something in it that rules may not have.
    """

    def __init__(self, tree: ast.Expression, metrics: frozenset[str]):
        self.names: set[str] = set()
        self._metrics = metrics
        self._must_be_boolean(tree.body)
        self.tree = ast.fix_missing_locations(ast.Expression(self.visit(tree.body, frozenset())))

    def _must_be_boolean(self, node: ast.expr) -> None:
        """Refuse what can be seen to give no bool."""
        if isinstance(node, ast.BoolOp):
            self._must_be_boolean(node.values[-1])  # the others give the result only where they decide it
        elif isinstance(node, ast.IfExp):
            self._must_be_boolean(node.body)
            self._must_be_boolean(node.orelse)
        elif (
            (isinstance(node, ast.Constant) and not isinstance(node.value, bool))
            or (isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor)))
            or (isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not))
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in FUNCTIONS - _BOOLEAN - {"max", "min"}
            )
            or isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp))
        ):
            refuse(f"expected it to give true or false, found {_words(node)}")

    def visit(self, node: ast.expr, bound: frozenset[str]) -> ast.expr:
        method: Callable[[Any, frozenset[str]], ast.expr] | None = getattr(self, type(node).__name__, None)
        if method is None:
            refuse(f"expected no {_words(node)}, found one")
        return method(node, bound)

    def Constant(self, node: ast.Constant, bound: frozenset[str]) -> ast.expr:
        if type(node.value) not in _KEYS:
            refuse(f"expected a number, a text, True, False or None, found {reprlib.repr(node.value)}")
        if type(node.value) is int and node.value.bit_length() > MAX_BITS:
            refuse(f"expected numbers of at most {MAX_BITS} bits, found a larger one")
        return node

    def Name(self, node: ast.Name, bound: frozenset[str]) -> ast.expr:
        if node.id in bound:
            return node
        if node.id not in self._metrics:
            if node.id in FUNCTIONS or node.id in _REFUSED:
                refuse(f"expected '{node.id}' to be called, found it without (...)")
            refuse(
                f"expected the name of a metric ({', '.join(sorted(self._metrics)) or 'there is none'}), found '{node.id}'"
            )
        self.names.add(node.id)
        return node

    def BoolOp(self, node: ast.BoolOp, bound: frozenset[str]) -> ast.expr:
        return ast.BoolOp(node.op, [self.visit(value, bound) for value in node.values])

    def UnaryOp(self, node: ast.UnaryOp, bound: frozenset[str]) -> ast.expr:
        operand = self.visit(node.operand, bound)
        return _call("invert", operand) if isinstance(node.op, ast.Invert) else ast.UnaryOp(node.op, operand)

    def BinOp(self, node: ast.BinOp, bound: frozenset[str]) -> ast.expr:
        if type(node.op) not in _BINARY:
            refuse(f"expected no operator {type(node.op).__name__}, found one")
        if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            refuse("expected no formatting of texts with %, found it")
        return _call(_BINARY[type(node.op)], self.visit(node.left, bound), self.visit(node.right, bound))

    def Compare(self, node: ast.Compare, bound: frozenset[str]) -> ast.expr:
        operands = [node.left, *node.comparators]
        for i, op in enumerate(node.ops):
            if isinstance(op, (ast.Is, ast.IsNot)) and not any(
                isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, bool))
                for side in operands[i : i + 2]
            ):
                refuse("expected 'is' with None, True or False, found it with something else; write ==")
        may_be_none = all(isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)) for op in node.ops)
        left, *others = (self._compared(operand, bound, may_be_none) for operand in operands)
        return ast.Compare(left, node.ops, others)

    def _compared(self, node: ast.expr, bound: frozenset[str], may_be_none: bool) -> ast.expr:
        """What is compared, or looked into: that costs as much as it is large."""
        if isinstance(node, ast.Constant):
            return self.Constant(node, bound)
        is_lookup = isinstance(node, ast.Subscript)
        return _call("weighed", self.Subscript(node, bound, may_be_none) if is_lookup else self.visit(node, bound))  # type: ignore[arg-type]

    def IfExp(self, node: ast.IfExp, bound: frozenset[str]) -> ast.expr:
        return ast.IfExp(self.visit(node.test, bound), self.visit(node.body, bound), self.visit(node.orelse, bound))

    def Call(self, node: ast.Call, bound: frozenset[str]) -> ast.expr:
        if not isinstance(node.func, ast.Name):
            refuse(f"expected a function by its name, found {_words(node.func)}")
        name = node.func.id
        if name in _REFUSED:
            refuse(f"expected no call of {name}(), found one: {_REFUSED[name]}")
        if name not in FUNCTIONS or name in bound:
            refuse(f"expected one of the functions {', '.join(sorted(FUNCTIONS))}, found '{name}'")
        args = [self._argument(name, arg, bound, len(node.args) == 1) for arg in node.args]
        keywords = {
            keyword.arg: self.visit(keyword.value, bound) for keyword in node.keywords if keyword.arg is not None
        }
        if len(keywords) < len(node.keywords):
            refuse(f"expected no ** in the call of {name}(), found it")
        try:
            inspect.signature(getattr(_Guard, f"f_{name}")).bind(None, *args, **keywords)
        except TypeError as error:
            refuse(f"expected other arguments for {name}(): {error}")
        return ast.Call(
            ast.Name(name, ast.Load()),
            args,
            [ast.keyword(arg, value) for arg, value in keywords.items() if arg is not None],
        )

    def _argument(self, function: str, node: ast.expr, bound: frozenset[str], is_only_one: bool) -> ast.expr:
        if isinstance(node, ast.GeneratorExp) and function in _LAZY and is_only_one:
            elements, generators = self._comprehension(node.generators, bound, node.elt)
            return ast.GeneratorExp(elements[0], generators)
        return self.visit(node, bound)

    def Subscript(self, node: ast.Subscript, bound: frozenset[str], may_be_none: bool = False) -> ast.expr:
        root: ast.expr = node
        while isinstance(root, ast.Subscript):
            root = root.value
        value = self.visit(node.value, bound)
        if isinstance(node.slice, ast.Slice):
            parts = [
                ast.Constant(None) if part is None else self.visit(part, bound)
                for part in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            return _call("slice", value, *parts)
        is_metric = isinstance(root, ast.Name) and root.id not in bound
        metric = ast.unparse(node) if is_metric else None
        return _call("item", value, self.visit(node.slice, bound), ast.Constant(metric), ast.Constant(may_be_none))

    def List(self, node: ast.List, bound: frozenset[str]) -> ast.expr:
        return ast.List([self.visit(item, bound) for item in node.elts], ast.Load())

    def Tuple(self, node: ast.Tuple, bound: frozenset[str]) -> ast.expr:
        return ast.Tuple([self.visit(item, bound) for item in node.elts], ast.Load())

    def Set(self, node: ast.Set, bound: frozenset[str]) -> ast.expr:
        return _call("set", ast.List([self.visit(item, bound) for item in node.elts], ast.Load()))

    def Dict(self, node: ast.Dict, bound: frozenset[str]) -> ast.expr:
        if None in node.keys:
            refuse("expected no ** in a dict, found it")
        pairs = [
            ast.Tuple([self.visit(key, bound), self.visit(value, bound)], ast.Load())
            for key, value in zip(node.keys, node.values)
            if key
        ]
        return _call("dict", ast.List(pairs, ast.Load()))  # type: ignore[arg-type]

    def ListComp(self, node: ast.ListComp, bound: frozenset[str]) -> ast.expr:
        elements, generators = self._comprehension(node.generators, bound, node.elt)
        return ast.ListComp(elements[0], generators)

    def SetComp(self, node: ast.SetComp, bound: frozenset[str]) -> ast.expr:
        elements, generators = self._comprehension(node.generators, bound, node.elt)
        return _call("set", ast.ListComp(elements[0], generators))

    def DictComp(self, node: ast.DictComp, bound: frozenset[str]) -> ast.expr:
        elements, generators = self._comprehension(node.generators, bound, node.key, node.value)
        return _call("dict", ast.ListComp(ast.Tuple(elements, ast.Load()), generators))

    def _comprehension(
        self, generators: list[ast.comprehension], bound: frozenset[str], *elements: ast.expr
    ) -> tuple[list[ast.expr], list[ast.comprehension]]:
        """Each `for x in items` becomes `for x in passes(items, cost)`; the cost is that of all that is done in a pass."""
        rewritten = []
        for i, generator in enumerate(generators):
            if generator.is_async:
                refuse("expected no async, found it")
            inside = [
                *generator.ifs,
                *elements,
                *(part for later in generators[i + 1 :] for part in (later.iter, *later.ifs)),
            ]
            cost = 1 + sum(_cost(node) for part in inside for node in ast.walk(part))
            items = _call("passes", self.visit(generator.iter, bound), ast.Constant(cost))
            bound |= self._targets(generator.target)
            ifs = [self.visit(test, bound) for test in generator.ifs]
            rewritten.append(ast.comprehension(generator.target, items, ifs, 0))
        return [self.visit(element, bound) for element in elements], rewritten

    def _targets(self, target: ast.expr) -> frozenset[str]:
        """The names behind a `for`."""
        if isinstance(target, ast.Tuple):
            return frozenset[str]().union(*map(self._targets, target.elts))
        if not isinstance(target, ast.Name):
            refuse(f"expected a name after 'for', found {_words(target)}")
        if target.id in self._metrics or target.id in FUNCTIONS or target.id.startswith("_"):
            refuse(f"expected a new name after 'for', found '{target.id}'")
        return frozenset({target.id})


def _call(guard: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(f"_{guard}", ast.Load()), list(args), [])


def _cost(node: ast.AST) -> int:
    return (
        0
        if isinstance(node, _NO_NODES)
        else 4
        if isinstance(node, (ast.Set, ast.Dict, ast.SetComp, ast.DictComp))
        else 1
    )


def _words(node: ast.AST) -> str:
    """A kind of node, as a rule's author knows it."""
    kind = type(node).__name__
    return _WORDS.get(kind, kind)


_WORDS = {
    "Attribute": "attribute or method (a dot after a name)",
    "Await": "await",
    "BinOp": "number",
    "Call": "call of a function that gives something else",
    "Constant": "constant",
    "Dict": "dict",
    "FormattedValue": "f-string",
    "GeneratorExp": "generator outside of all, any, max, min and sum",
    "JoinedStr": "f-string",
    "Lambda": "lambda",
    "List": "list",
    "ListComp": "list",
    "NamedExpr": "assignment (:=)",
    "Set": "set",
    "Slice": "slice",
    "Starred": "* before a value",
    "Tuple": "tuple",
    "UnaryOp": "number",
    "Yield": "yield",
    "YieldFrom": "yield",
}


# ---------------------------------------------------------------------- when a rule is evaluated


class _Guard:
    """What a compiled rule calls: operators as `_name`, functions as `f_name`. Counts the work that is left.

    Values are plain: bool, int, float, str, None; lists, tuples, sets and dicts of these.
    """

    def __init__(self) -> None:
        self.work = MAX_WORK
        self.functions: dict[str, Callable[..., Any]] = {}
        for name in dir(self):
            if name.startswith("f_"):
                self.functions[name.removeprefix("f_")] = getattr(self, name)
            elif name.startswith("_") and not name.startswith("__"):
                self.functions[name] = getattr(self, name)

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            refuse(f"it went beyond its limit of {MAX_WORK} pieces of work (passes, items, characters)")

    # ------------------------------------------------------------------ values

    def _weighed(self, value: Any) -> Any:
        if type(value) not in _SCALARS:
            self.weigh(value)
        return value

    def weigh(self, value: Any) -> None:
        """Spend as much work as there are items and characters in a value, at all depths."""
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self.spend(len(item) + 1)
            elif isinstance(item, dict):
                self.spend(2 * len(item) + 1)
                stack += (part for pair in item.items() for part in pair if type(part) not in _SCALARS)
            elif isinstance(item, (list, tuple, set)):
                self.spend(len(item) + 1)
                stack += (part for part in item if type(part) not in _SCALARS)

    def _passes(self, items: Any, cost: int) -> Iterable[Any]:
        if type(items) not in (list, tuple, set, dict, str):
            refuse(f"expected a list, tuple, set, dict or text after 'in', found {type(items).__name__}")
        if len(items) > MAX_PASSES:
            refuse(f"expected at most {MAX_PASSES} passes of a comprehension, found {len(items)}")
        self.spend(cost * len(items))
        return items  # type: ignore[no-any-return]

    def _item(self, value: Any, index: Any, metric: str | None, may_be_none: bool) -> Any:
        """metric (str | None): What is looked up, if it is something in a metric, where it may have no value yet."""
        try:
            if type(index) in _KEYS and type(value) is not str:
                if (item := value[index]) is None and metric is not None and not may_be_none:
                    raise MetricUnavailable(metric)
                return item
        except (KeyError, IndexError):
            if metric is not None and not value:
                raise MetricUnavailable(metric) from None
            raise
        if type(value) is str and type(index) in (int, bool):
            return value[index]
        refuse(
            f"expected an index that is a number or a text, and something to look it up in, found {type(value).__name__} and {type(index).__name__}"
        )

    def _slice(self, value: Any, *parts: Any) -> Any:
        if type(value) not in (list, tuple, str) or not all(type(part) in (int, bool, type(None)) for part in parts):
            refuse("expected whole numbers in a slice, of a list, tuple or text")
        self.spend(len(value) + 1)
        return value[slice(*parts)]

    def _set(self, items: list[Any]) -> set[Any]:
        self.keys(items)
        return set(items)

    def _dict(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self.keys([key for key, _ in pairs])
        return dict(pairs)

    def keys(self, items: list[Any]) -> None:
        """Large numbers and tuples can be chosen such that all have the same hash: then each is compared with each."""
        if len(items) > MAX_KEYS:
            refuse(f"expected at most {MAX_KEYS} items in a set or dict, found {len(items)}")
        for item in items:
            if type(item) not in _KEYS or (type(item) is int and item.bit_length() > 60):
                refuse("expected texts and numbers below 2**60 as items of a set and as keys of a dict")
            if type(item) is str:
                self.spend(len(item))

    # ------------------------------------------------------------------ operators

    def _add(self, a: Any, b: Any) -> Any:
        if type(a) in _NUMBERS and type(b) in _NUMBERS:
            return a + b
        if type(a) is type(b) and type(a) in (str, list, tuple):
            self.spend(len(a) + len(b) + 1)
            return a + b
        self.wrong("+", a, b)

    def _mult(self, a: Any, b: Any) -> Any:
        if type(a) in _NUMBERS and type(b) in _NUMBERS:
            if type(a) is not float and type(b) is not float and a.bit_length() + b.bit_length() > MAX_BITS:
                refuse(f"expected numbers of at most {MAX_BITS} bits, found a product beyond that")
            return a * b
        if type(a) in (int, bool):
            a, b = b, a
        if type(a) in (str, list, tuple) and type(b) in (int, bool):
            self.spend(len(a) * max(b, 0) + 1)
            return a * b
        self.wrong("*", a, b)

    def _pow(self, a: Any, b: Any) -> Any:
        self.numbers("**", a, b)
        if type(a) is not float and type(b) is not float and (a.bit_length() * abs(b) > MAX_BITS or abs(b) > MAX_BITS):
            refuse(f"expected numbers of at most {MAX_BITS} bits, found a power beyond that")
        result = a**b
        if type(result) is complex:
            refuse("expected a real number, found the root of a negative one")
        return result

    def _sub(self, a: Any, b: Any) -> Any:
        self.numbers("-", a, b)
        return a - b

    def _div(self, a: Any, b: Any) -> Any:
        self.numbers("/", a, b)
        return a / b

    def _floordiv(self, a: Any, b: Any) -> Any:
        self.numbers("//", a, b)
        return a // b

    def _mod(self, a: Any, b: Any) -> Any:
        self.numbers("%", a, b)
        return a % b

    def _lshift(self, a: Any, b: Any) -> Any:
        self.whole("<<", a, b)
        if b > MAX_BITS or a.bit_length() + b > MAX_BITS:
            refuse(f"expected numbers of at most {MAX_BITS} bits, found a shift beyond that")
        return a << b

    def _rshift(self, a: Any, b: Any) -> Any:
        self.whole(">>", a, b)
        return a >> b

    def _bitand(self, a: Any, b: Any) -> Any:
        self.whole("&", a, b)
        return a & b

    def _bitor(self, a: Any, b: Any) -> Any:
        self.whole("|", a, b)
        return a | b

    def _bitxor(self, a: Any, b: Any) -> Any:
        self.whole("^", a, b)
        return a ^ b

    def _invert(self, a: Any) -> Any:
        self.whole("~", a, a)
        return ~int(a)

    def numbers(self, operator: str, a: Any, b: Any) -> None:
        if type(a) not in _NUMBERS or type(b) not in _NUMBERS:
            self.wrong(operator, a, b)

    def whole(self, operator: str, a: Any, b: Any) -> None:
        if type(a) not in (int, bool) or type(b) not in (int, bool):
            self.wrong(operator, a, b)

    def wrong(self, operator: str, *values: Any) -> NoReturn:
        refuse(f"expected other types for {operator}, found {' and '.join(type(value).__name__ for value in values)}")

    # ------------------------------------------------------------------ functions

    def f_abs(self, x: Any, /) -> Any:
        self.numbers("abs()", x, x)
        return abs(x)

    def f_all(self, items: Any, /) -> bool:
        return all(self.items("all()", items))

    def f_any(self, items: Any, /) -> bool:
        return any(self.items("any()", items))

    def f_float(self, x: Any = 0.0, /) -> float:
        return float(self.digits("float()", x))

    def f_int(self, x: Any = 0, /) -> int:
        return int(self.digits("int()", x))

    def f_len(self, items: Any, /) -> int:
        if type(items) not in (list, tuple, set, dict, str):
            self.wrong("len()", items)
        return len(items)

    def f_max(self, *items: Any, default: Any = _NO_DEFAULT) -> Any:
        compared = self.compared("max()", items, default)
        return max(compared) if compared or default is _NO_DEFAULT else default

    def f_min(self, *items: Any, default: Any = _NO_DEFAULT) -> Any:
        compared = self.compared("min()", items, default)
        return min(compared) if compared or default is _NO_DEFAULT else default

    def f_round(self, x: Any, /, ndigits: Any = None) -> Any:
        self.numbers("round()", x, 0 if ndigits is None else ndigits)
        if ndigits is not None and not (type(ndigits) is int and abs(ndigits) <= MAX_DIGITS):
            refuse(f"expected a whole number of at most {MAX_DIGITS} digits in round(), found {reprlib.repr(ndigits)}")
        return round(x, ndigits)

    def f_str(self, x: Any, /) -> str:
        self.weigh(x)
        if type(x) not in _KEYS and type(x) not in (list, tuple, set, dict):
            self.wrong("str()", x)
        text = str(x)
        self.spend(len(text))
        return text

    def f_sum(self, items: Any, /, start: Any = 0) -> Any:
        items = list(self.items("sum()", items))
        self.numbers("sum()", start, start)
        if not all(type(item) in _NUMBERS for item in items):
            refuse("expected numbers in sum(), found something else")
        return sum(items, start)

    def f_math_ceil(self, x: Any, /) -> int:
        self.numbers("math_ceil()", x, x)
        return math.ceil(x)

    def f_math_floor(self, x: Any, /) -> int:
        self.numbers("math_floor()", x, x)
        return math.floor(x)

    def f_math_sqrt(self, x: Any, /) -> float:
        self.numbers("math_sqrt()", x, x)
        return math.sqrt(x)

    def f_math_trunc(self, x: Any, /) -> int:
        self.numbers("math_trunc()", x, x)
        return math.trunc(x)

    f_ceil, f_floor, f_sqrt, f_trunc = f_math_ceil, f_math_floor, f_math_sqrt, f_math_trunc

    def digits(self, function: str, x: Any) -> Any:
        if type(x) is str and len(x) > MAX_DIGITS:
            refuse(f"expected at most {MAX_DIGITS} characters in {function}, found {len(x)}")
        if type(x) not in _NUMBERS and type(x) is not str:
            self.wrong(function, x)
        return x

    def items(self, function: str, items: Any) -> Iterable[Any]:
        if type(items) is GeneratorType:
            return items  # its passes are paid for
        self.spend(self.f_len(items) if type(items) in (list, tuple, set, dict, str) else self.wrong(function, items))
        return items  # type: ignore[no-any-return]

    def compared(self, function: str, items: tuple[Any, ...], default: Any) -> list[Any]:
        if not items or (default is not _NO_DEFAULT and len(items) != 1):
            refuse(f"expected values, or a list and perhaps a default, in {function}")
        compared = list(self.items(function, items[0])) if len(items) == 1 else list(items)
        self.weigh(compared)
        return compared


FUNCTIONS: Final = frozenset(name.removeprefix("f_") for name in dir(_Guard) if name.startswith("f_"))
