"""Check the syntax tree of a rule, and rewrite it so that it is safe to run."""

from __future__ import annotations

import ast
import inspect
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from ...core.near_misses import did_you_mean, there_are
from .sandbox import FUNCTIONS, KEYS, MAX_BITS, Sandbox, refuse

# The keys in a metric's value, nested. None: anything, or unknown before the training.
Keys = Mapping[str, Union["Keys", None]]

MAX_TEXT = 2_000  # characters of a rule
MAX_NODES = 500
MAX_DEPTH = 40

# Functions of other trainer controllers that are not allowed here, with the reason.
_REFUSED = {
    **dict.fromkeys(("rand", "randint"), "a rule must give the same result when a run is resumed, and in each process"),
    **dict.fromkeys(("list", "tuple"), "write a comprehension: [x for x in ...]"),
    "set": "write a comprehension: {x for x in ...}",
    "dict": "write a comprehension: {key: value for ...}",
}


def parse(text: Any) -> ast.Expression:
    if not isinstance(text, str):
        refuse(f"expected a text, found {type(text).__name__}; put it in quotes")
    if len(text) > MAX_TEXT:
        refuse(f"expected at most {MAX_TEXT} characters, found {len(text)}")
    if "__" in text:
        refuse("'__' is not allowed")
    tree = ast.parse(text, mode="eval")
    nodes, level = 0, [tree.body]
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        level = [child for node in level for child in ast.iter_child_nodes(node) if not isinstance(child, _NO_NODES)]  # type: ignore[misc]
    if level or nodes > MAX_NODES:
        refuse(f"it is too large: at most {MAX_NODES} parts are allowed, nested at most {MAX_DEPTH} deep")
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
_COLLECTIONS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp)
_LAZY = frozenset({"all", "any", "max", "min", "sum"})  # functions of a generator
_BOOLEAN = frozenset({"all", "any", "isfinite", "isnan"})
_SERIES = frozenset({"mean", "median", "quantile", "slope", "std"})  # functions of a list of numbers
_NUMERIC = FUNCTIONS - _LAZY - _SERIES - {"get", "len", "str"}
# The kind of value that an expression must give.
Gives = Literal["true or false", "a number", "anything"]


class Compiler:
    """Checks and rewrites a syntax tree. Each method handles the kind of node in its name, with the names bound around
    it.

    tree (ast.Expression): From the parser.
    metrics (frozenset[str]): The names that a rule may use.
    keys (Mapping[str, Keys | None]): The keys of metrics.
    gives (str): Its result.
    RAISES (Refused): The rule has a part that is not allowed.
    """

    def __init__(
        self,
        tree: ast.Expression,
        metrics: frozenset[str],
        keys: Mapping[str, Keys | None],
        *,
        gives: Gives = "true or false",
    ):
        self.names: set[str] = set()
        self._metrics = metrics
        self._keys = keys
        if gives == "true or false":
            self._must_be_boolean(tree.body)
        elif gives == "a number":
            is_text = isinstance(tree.body, ast.Constant) and isinstance(tree.body.value, str)
            if is_text or isinstance(tree.body, _COLLECTIONS):
                refuse(f"it must give a number, not a {'text' if is_text else _words(tree.body)}")
            self._must_be_one(tree.body, "it must give a number")
        self.tree = ast.fix_missing_locations(ast.Expression(self.visit(tree.body, frozenset())))

    def _must_be_boolean(self, node: ast.expr) -> None:
        """Refuse an expression that can't give a bool."""
        if isinstance(node, ast.BoolOp):
            for value in node.values:  # each of them may be the result
                self._must_be_boolean(value)
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
                and node.func.id in FUNCTIONS - _BOOLEAN - {"get", "max", "min"}
            )
            or isinstance(node, _COLLECTIONS)
        ):
            refuse(f"it must give true or false, not a {_words(node)}")
        else:
            self._must_be_one(node, "it must give true or false")

    def visit(self, node: ast.expr, bound: frozenset[str]) -> ast.expr:
        method: Callable[[Any, frozenset[str]], ast.expr] | None = getattr(self, type(node).__name__, None)
        if method is None:
            refuse(f"not allowed: {_words(node)}")
        return method(node, bound)

    def Constant(self, node: ast.Constant, bound: frozenset[str]) -> ast.expr:
        if type(node.value) not in KEYS:
            refuse(f"expected a number, a text, True, False or None, found {reprlib.repr(node.value)}")
        if type(node.value) is int and node.value.bit_length() > MAX_BITS:
            refuse(f"numbers of more than {MAX_BITS} bits are not allowed")
        return node

    def Name(self, node: ast.Name, bound: frozenset[str]) -> ast.expr:
        if node.id in bound:
            return node
        if node.id not in self._metrics:
            if node.id in FUNCTIONS or node.id in _REFUSED:
                refuse(f"'{node.id}' is a function; call it with (...)")
            known = ", ".join(sorted(self._metrics)) or "there is none"
            refuse(f"expected the name of a metric ({known}), found '{node.id}'.{did_you_mean(node.id, self._metrics)}")
        self.names.add(node.id)
        return node

    def BoolOp(self, node: ast.BoolOp, bound: frozenset[str]) -> ast.expr:
        return ast.BoolOp(node.op, [self.visit(value, bound) for value in node.values])

    def UnaryOp(self, node: ast.UnaryOp, bound: frozenset[str]) -> ast.expr:
        self._must_be_one(node.operand, f"expected {'true or false' if isinstance(node.op, ast.Not) else 'a number'}")
        operand = self.visit(node.operand, bound)
        return _call("invert", operand) if isinstance(node.op, ast.Invert) else ast.UnaryOp(node.op, operand)

    def BinOp(self, node: ast.BinOp, bound: frozenset[str]) -> ast.expr:
        if type(node.op) not in _BINARY:
            refuse(f"the operator {type(node.op).__name__} is not allowed")
        if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            refuse("formatting of texts with % is not allowed")
        self._must_be_one(node.left)
        self._must_be_one(node.right)
        return _call(_BINARY[type(node.op)], self.visit(node.left, bound), self.visit(node.right, bound))

    def Compare(self, node: ast.Compare, bound: frozenset[str]) -> ast.expr:
        operands = [node.left, *node.comparators]
        for i, op in enumerate(node.ops):
            if isinstance(op, (ast.Is, ast.IsNot)) and not any(
                isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, bool))
                for side in operands[i : i + 2]
            ):
                refuse("'is' is only allowed with None, True or False; write ==")
        may_be_none = all(isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)) for op in node.ops)
        for op, left, right in zip(node.ops, operands, operands[1:]):
            if isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                self._must_be_one(left)
                self._must_be_one(right)
            elif isinstance(op, (ast.In, ast.NotIn)):
                self._must_hold(left, right)
            elif _is_number_or_text(left) or _is_number_or_text(right):
                self._must_be_one(right if _is_number_or_text(left) else left)
        first, *others = (self._compared(operand, bound, may_be_none) for operand in operands)
        return ast.Compare(first, node.ops, others)

    def _compared(self, node: ast.expr, bound: frozenset[str], may_be_none: bool) -> ast.expr:
        """An operand of a comparison or of 'in'. Its cost is its size."""
        if isinstance(node, ast.Constant):
            return self.Constant(node, bound)
        is_lookup = isinstance(node, ast.Subscript)
        return _call("weighed", self.Subscript(node, bound, may_be_none) if is_lookup else self.visit(node, bound))  # type: ignore[arg-type]

    def _must_be_one(self, node: ast.expr, expected: str = "expected a number") -> None:
        """Refuse None, and a metric with several keys as a whole."""
        if isinstance(node, ast.Constant) and node.value is None:
            refuse(f"{expected}, found None")
        if keys := self._keys_of(node):
            text = ast.unparse(node)
            refuse(
                f"{expected}, found all of {text}; use one of its keys ({', '.join(keys)}), as in "
                f"{text}[{next(iter(keys))!r}]"
            )

    def _must_hold(self, item: ast.expr, container: ast.expr) -> None:
        """Refuse 'in' for a key that a metric never has."""
        if isinstance(container, ast.Constant) and not isinstance(container.value, str):
            refuse(f"expected a list, tuple, set, dict or text after 'in', found {container.value!r}")
        keys = self._keys_of(container)
        if keys is not None and isinstance(item, ast.Constant):
            _check_key(ast.unparse(container), keys, item.value)

    def _keys_of(self, node: ast.expr) -> Keys | None:
        """The keys of a metric or of a value in it. None: it is no metric, or they are unknown."""
        if isinstance(node, ast.Name):
            return self._keys.get(node.id)
        if isinstance(node, ast.Subscript) and (keys := self._keys_of(node.value)) is not None:
            return keys.get(node.slice.value) if isinstance(node.slice, ast.Constant) else None  # type: ignore[arg-type]
        return None

    def IfExp(self, node: ast.IfExp, bound: frozenset[str]) -> ast.expr:
        return ast.IfExp(self.visit(node.test, bound), self.visit(node.body, bound), self.visit(node.orelse, bound))

    def Call(self, node: ast.Call, bound: frozenset[str]) -> ast.expr:
        if not isinstance(node.func, ast.Name):
            refuse(f"expected a function by its name, found {_words(node.func)}")
        name = node.func.id
        if name in _REFUSED:
            refuse(f"{name}() is not allowed: {_REFUSED[name]}")
        if name not in FUNCTIONS or name in bound:
            refuse(
                f"expected one of the functions {', '.join(sorted(FUNCTIONS))}, found '{name}'."
                f"{did_you_mean(name, FUNCTIONS)}"
            )
        if name in _SERIES and node.args and isinstance(node.args[0], ast.Name):
            self._must_be_one(node.args[0], "expected a list of numbers")
        if name in _NUMERIC and node.args:
            self._must_be_one(node.args[0])
        args = [self._argument(name, arg, bound, len(node.args) == 1) for arg in node.args]
        keywords = {
            keyword.arg: self.visit(keyword.value, bound) for keyword in node.keywords if keyword.arg is not None
        }
        if len(keywords) < len(node.keywords):
            refuse(f"** is not allowed in the call of {name}()")
        try:
            inspect.signature(getattr(Sandbox, f"f_{name}")).bind(None, *args, **keywords)
        except TypeError as error:
            refuse(f"wrong arguments for {name}(): {error}")
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
            self._must_be_one(node.value, "expected a list, tuple or text for a slice")
            parts = [
                ast.Constant(None) if part is None else self.visit(part, bound)
                for part in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            return _call("slice", value, *parts)
        is_metric = isinstance(root, ast.Name) and root.id not in bound
        metric = ast.unparse(node.value) if is_metric else None
        known = self._keys_of(node.value)
        if known is not None and isinstance(node.slice, ast.Constant):
            _check_key(str(metric), known, node.slice.value)
        facts: tuple[Any, ...] = (metric, None if known is None else tuple(known), may_be_none)
        return _call("item", value, self.visit(node.slice, bound), *map(ast.Constant, facts))

    def List(self, node: ast.List, bound: frozenset[str]) -> ast.expr:
        return ast.List([self.visit(item, bound) for item in node.elts], ast.Load())

    def Tuple(self, node: ast.Tuple, bound: frozenset[str]) -> ast.expr:
        return ast.Tuple([self.visit(item, bound) for item in node.elts], ast.Load())

    def Set(self, node: ast.Set, bound: frozenset[str]) -> ast.expr:
        return _call("set", ast.List([self.visit(item, bound) for item in node.elts], ast.Load()))

    def Dict(self, node: ast.Dict, bound: frozenset[str]) -> ast.expr:
        if None in node.keys:
            refuse("** is not allowed in a dict")
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
        """Rewrite each `for x in items` to `for x in passes(items, cost)`. The cost is that of one pass."""
        rewritten = []
        for i, generator in enumerate(generators):
            if generator.is_async:
                refuse("async is not allowed")
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
        """The names after a `for`."""
        if isinstance(target, ast.Tuple):
            return frozenset[str]().union(*map(self._targets, target.elts))
        if not isinstance(target, ast.Name):
            refuse(f"expected a name after 'for', found {_words(target)}")
        if target.id in self._metrics or target.id in FUNCTIONS or target.id.startswith("_"):
            refuse(f"expected a new name after 'for', found '{target.id}'")
        return frozenset({target.id})


def _check_key(metric: str, keys: Keys, key: object) -> None:
    if key not in keys:
        refuse(f"expected a key of {metric}, found {reprlib.repr(key)}.{did_you_mean(key, keys)}{there_are(keys)}")


def _is_number_or_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is not None


def _call(method: str, *args: ast.expr) -> ast.Call:
    """A call of a method of the sandbox."""
    return ast.Call(ast.Name(f"_{method}", ast.Load()), list(args), [])


def _cost(node: ast.AST) -> int:
    return (
        0
        if isinstance(node, _NO_NODES)
        else 4
        if isinstance(node, (ast.Set, ast.Dict, ast.SetComp, ast.DictComp))
        else 1
    )


def _words(node: ast.AST) -> str:
    """A kind of node, in words."""
    kind = type(node).__name__
    return _WORDS.get(kind, kind)


_WORDS = {
    "Attribute": "attribute or method (a dot after a name)",
    "Await": "await",
    "BinOp": "number",
    "Call": "call of a function with another result",
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
