"""Rules: a Python expression over metrics that gives true or false, without side effects.

A rule is parsed and checked once, when it is read: kinds of syntax, names, keys of metrics. simpleeval evaluates it
(see evaluator.py). A dot is a short form for a key: `loss.per_word` is `loss["per_word"]`.

    >>> rule = Rule("loss['loss'] < 1.0", ["loss"])
    >>> rule.evaluate({"loss": {"loss": 0.5}})
    True
"""

from __future__ import annotations

import ast
import inspect
import reprlib
import warnings
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal

from ...core.errors import ControllerError
from ...core.near_misses import did_you_mean, there_are
from .evaluator import FUNCTIONS, NODES, Evaluator, MetricUnavailable, Refused, keys_of, refuse, root_of
from .values import Keys, Path

MAX_TEXT = 2_000  # characters of a rule
MAX_NODES = 500
MAX_DEPTH = 40

# The kind of value that an expression must give.
Gives = Literal["true or false", "a number"]

_SIGNS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
_COLLECTIONS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp)
_COMPARE_NONE = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
_TRUTHS = frozenset({"all", "any", "isfinite", "isnan", "get", "max", "min"})  # functions that may give true or false
_OF_WHOLES = frozenset({"get", "len", "str"})  # functions of a metric with several keys
_SCALARS = (bool, int, float, type(None))


class Rule:
    """A rule, parsed and checked.

    text (str): A Python expression.
    metrics (Collection[str]): The names that it may use.
    keys (Mapping[str, Keys | None] | None): The keys of metrics, as far as they are known.
    gives (str): What it must give: "true or false" for a rule, "a number" (or None) for a series.
    RAISES (ControllerError): It does not parse, has a part that is not allowed or an unknown name or key, or can't give
        that.

    Public: `text`, `names` (of the metrics that it uses), `paths` (of the values in them that it looks up).
    """

    def __init__(
        self,
        text: str,
        metrics: Collection[str],
        keys: Mapping[str, Keys | None] | None = None,
        *,
        gives: Gives = "true or false",
    ):
        self.text = text.strip() if isinstance(text, str) else text
        self._gives = gives
        known = dict.fromkeys(metrics) | {name: found for name, found in (keys or {}).items() if name in metrics}
        self._evaluator = Evaluator(known)
        checks = _Checks(known, self._evaluator)
        try:
            self._tree = parse(self.text)
            checks.result(self._tree, gives)
            checks.visit(self._tree)
        except Refused as reason:
            stop = "" if str(reason).endswith((".", "?")) else "."
            raise ControllerError(f"Can't use the rule {reprlib.repr(text)}: {reason}{stop}") from None
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else shown(error)
            raise ControllerError(
                f"Can't use the rule {reprlib.repr(text)}: expected one Python expression, found: {why}."
            ) from None
        self.paths: list[Path] = list(dict.fromkeys(checks.paths))
        self.names = frozenset(path[0] for path in self.paths)
        if not self.names:
            try:
                self.evaluate({})
            except ControllerError as error:
                raise ControllerError(f"Can't use the rule {reprlib.repr(text)}: {error}.") from None

    def evaluate(self, values: Mapping[str, Any], step: int = 0) -> Any:
        """Whether the rule holds; for another expression, its value.

        values (Mapping): Plain values of metrics. None or missing: no value yet.
        step (int): The seed of random numbers, with the text.
        RAISES (MetricUnavailable): It needs a metric without a value. (ControllerError): It failed, gave no bool, or
            exceeded its limits.
        """
        self._evaluator.names, self._evaluator.seed = values, f"{self.text} {step}"
        try:
            result = self._evaluator.eval(self.text, self._tree)
        except MetricUnavailable:
            raise
        except Refused as reason:
            raise ControllerError(f"{reason}") from None
        except Exception as error:
            raise ControllerError(f"it failed with {shown(error)}") from None
        if result is True or result is False:
            return result
        if self._gives == "a number" and type(result) in _SCALARS:
            return result
        raise ControllerError(f"it must give {self._gives}, but gave {reprlib.repr(result)}")


def parse(text: Any) -> ast.expr:
    """The tree of an expression, with attributes as keys. RAISES (Exception): It is none, or too large."""
    if not isinstance(text, str):
        refuse(f"expected a text, found {type(text).__name__}; put it in quotes")
    if len(text) > MAX_TEXT:
        refuse(f"expected at most {MAX_TEXT} characters, found {len(text)}")
    if "__" in text:
        refuse("'__' is not allowed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python's parser, about escapes
        tree = ast.parse(text.strip(), mode="eval").body
    nodes, level = 0, [tree]
    for _ in range(MAX_DEPTH):
        nodes += len(level)
        level = [child for node in level for child in _children(node)]
    if level or nodes > MAX_NODES:
        refuse(f"it is too large: at most {MAX_NODES} parts are allowed, nested at most {MAX_DEPTH} deep")
    return _AttributesAsKeys().visit(tree)


def _children(node: ast.AST) -> list[Any]:
    return [child for child in ast.iter_child_nodes(node) if not isinstance(child, _SIGNS)]


class _AttributesAsKeys(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.Subscript:
        if node.attr.startswith(("_", "func_")):
            refuse(f"names with _ or func_ in front are not allowed after a dot, found '{node.attr}'")
        if root_of(value := self.visit(node.value)) is None:
            refuse(f"a dot is only allowed after a name, for a key of it, found '.{node.attr}'")
        return ast.Subscript(value, ast.Constant(node.attr), ast.Load())


class _Checks:
    """Checks a tree before it is evaluated, and notes for the evaluator which names stand for all of a metric.

    Public: `paths` (of the values that it looks up).
    """

    def __init__(self, metrics: Mapping[str, Keys | None], evaluator: Evaluator):
        self.paths: list[Path] = []
        self._metrics = metrics
        self._evaluator = evaluator

    def result(self, node: ast.expr, gives: Gives) -> None:
        """Refuse an expression that can't give the right kind of value."""
        if isinstance(node, (ast.BoolOp, ast.IfExp)):  # each part of it may be the result
            for part in node.values if isinstance(node, ast.BoolOp) else (node.body, node.orelse):
                self.result(part, gives)
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if _is_never_true(node) if gives == "true or false" else is_text or isinstance(node, _COLLECTIONS):
            refuse(f"it must give {gives}, not a {'text' if is_text else _words(node)}")

    def visit(
        self, node: ast.AST, bound: frozenset[str] = frozenset(), *, whole: bool = False, or_none: bool = False
    ) -> None:
        """bound: Names of comprehensions. whole: All of a metric may stand here. or_none: Its value may be None."""
        if type(node) not in NODES:
            refuse(f"not allowed: {_words(node)}")
        if isinstance(node, ast.Constant):
            if type(node.value) not in (*_SCALARS, str):
                refuse(f"expected a number, a text, True, False or None, found {reprlib.repr(node.value)}")
        elif root_of(node) in self._metrics:
            self._lookup(node, bound, whole, or_none)
        elif isinstance(node, ast.Name):
            if node.id not in bound:
                self._unknown(node.id)
        elif isinstance(node, ast.Compare):
            self._compare(node, bound)
        elif isinstance(node, ast.Call):
            self._call(node, bound)
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            for generator in node.generators:
                self.visit(generator.iter, bound)
                bound |= self._targets(generator.target)
                for test in generator.ifs:
                    self.visit(test, bound)
            self.visit(node.elt, bound)
        elif isinstance(node, ast.Dict) and None in node.keys:
            refuse("** is not allowed in a dict")
        elif isinstance(node, (ast.BinOp, ast.UnaryOp)) and type(node.op) not in self._evaluator.operators:
            refuse(f"the operator {type(node.op).__name__} is not allowed")
        else:
            for child in _children(node):
                self.visit(child, bound)

    def _unknown(self, name: str) -> None:
        if name in FUNCTIONS:
            refuse(f"'{name}' is a function; call it with (...)")
        known = ", ".join(sorted(self._metrics)) or "there is none"
        refuse(f"expected the name of a metric ({known}), found '{name}'.{did_you_mean(name, self._metrics)}")

    def _lookup(self, node: ast.AST, bound: frozenset[str], whole: bool, or_none: bool) -> None:
        """A metric, or a value in it."""
        chain: list[ast.Subscript] = []
        inner = node
        while isinstance(inner, ast.Subscript):
            chain.insert(0, inner)
            inner = inner.value
        path, is_open = [str(root_of(node))], True
        for part in chain:
            self.visit(part.slice, bound)
            key = part.slice.value if isinstance(part.slice, ast.Constant) else None
            if isinstance(part.slice, ast.Constant):
                self._check_key(part.value, key)
            elif isinstance(part.slice, ast.Slice) and (keys := keys_of(part.value, self._metrics)):
                self._refuse_whole(part.value, keys)
            if is_open and isinstance(key, str):
                path.append(key)
            else:  # an index or a computed key: the path ends above it
                is_open = False
        keys = keys_of(node, self._metrics)
        if chain or whole:
            self._evaluator.wholes.add(inner)
        elif path[0] in (keys or {}):
            path *= 2
        if keys and not whole and len(path) == len(chain) + 1:
            self._refuse_whole(node, keys)
        if or_none:
            self._evaluator.or_none.add(node)
        self.paths.append(tuple(path))

    def _refuse_whole(self, node: ast.AST, keys: Keys) -> None:
        text = ast.unparse(node)
        refuse(
            f"expected one value, found all of {text}; use one of its keys ({', '.join(keys)}), as in "
            f"{text}[{next(iter(keys))!r}]"
        )

    def _check_key(self, node: ast.AST, key: Any) -> None:
        keys = keys_of(node, self._metrics)
        if keys is not None and key not in keys:
            refuse(
                f"expected a key of {ast.unparse(node)}, found {reprlib.repr(key)}.{did_you_mean(key, keys)}"
                f"{there_are(keys)}"
            )

    def _compare(self, node: ast.Compare, bound: frozenset[str]) -> None:
        operands = [node.left, *node.comparators]
        or_none = all(isinstance(op, _COMPARE_NONE) for op in node.ops)
        # All of a metric is compared with a dict, or with None.
        of_wholes = or_none and any(
            isinstance(one, ast.Dict) or (isinstance(one, ast.Constant) and one.value is None) for one in operands
        )
        self.visit(node.left, bound, whole=of_wholes, or_none=or_none)
        for op, (left, right) in zip(node.ops, pairwise(operands)):
            is_in = isinstance(op, (ast.In, ast.NotIn))
            if isinstance(op, (ast.Is, ast.IsNot)) and not any(
                isinstance(side, ast.Constant) and isinstance(side.value, (bool, type(None))) for side in (left, right)
            ):
                refuse("'is' is only allowed with None, True or False; write ==")
            self.visit(right, bound, whole=of_wholes or is_in, or_none=or_none)
            if is_in and isinstance(left, ast.Constant):  # a key that there never is would be false for ever
                self._check_key(right, left.value)

    def _call(self, node: ast.Call, bound: frozenset[str]) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name is None:
            refuse(f"expected a function by its name, found {_words(node.func)}")
        if name not in FUNCTIONS or name in bound:
            refuse(
                f"expected one of the functions {', '.join(sorted(FUNCTIONS))}, found '{name}'."
                f"{did_you_mean(name, FUNCTIONS)}"
            )
        for i, arg in enumerate(node.args):
            self.visit(arg, bound, whole=i == 0 and name in _OF_WHOLES)
            if i == 1 and name == "get" and root_of(node.args[0]) in self._metrics:
                self.paths[-1] += _constants(arg)
        for keyword in node.keywords:
            if keyword.arg is None:
                refuse(f"** is not allowed in the call of {name}()")
            self.visit(keyword.value, bound)
        named = {keyword.arg: 0 for keyword in node.keywords if keyword.arg is not None}
        try:
            inspect.signature(self._evaluator.functions[name]).bind(*node.args, **named)
        except TypeError as error:
            refuse(f"wrong arguments for {name}(): {error}")
        except ValueError:
            pass  # one of Python's without a signature

    def _targets(self, target: ast.expr) -> frozenset[str]:
        """The names after a `for`."""
        if isinstance(target, ast.Tuple):
            return frozenset[str]().union(*map(self._targets, target.elts))
        if not isinstance(target, ast.Name):
            refuse(f"expected a name after 'for', found {_words(target)}")
        if target.id in self._metrics or target.id in FUNCTIONS or target.id.startswith("_"):
            refuse(f"expected a new name after 'for', found '{target.id}'")
        return frozenset({target.id})


def _is_never_true(node: ast.expr) -> bool:
    """Whether an expression has another result than true and false."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, bool)
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
    if isinstance(node, ast.UnaryOp):
        return not isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS - _TRUTHS
    return isinstance(node, _COLLECTIONS)


def _constants(node: ast.expr) -> Path:
    """The keys of a call of `get`, up to the first that is not a constant text."""
    found: list[str] = []
    for part in node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]:
        if not isinstance(part, ast.Constant) or not isinstance(part.value, str):
            break
        found.append(part.value)
    return tuple(found)


def _words(node: ast.AST) -> str:
    """A kind of node, in words."""
    kind = type(node).__name__
    return _WORDS.get(kind, kind)


_WORDS = {
    **dict.fromkeys(("BinOp", "UnaryOp"), "number"),
    **dict.fromkeys(("List", "ListComp", "GeneratorExp"), "list"),
    **dict.fromkeys(("FormattedValue", "JoinedStr"), "f-string"),
    "Call": "call of a function with another result",
    "Constant": "constant",
    "Dict": "dict",
    "Set": "set",
    "DictComp": "comprehension of a dict",
    "SetComp": "comprehension of a set",
    "Lambda": "lambda",
    "NamedExpr": "assignment (:=)",
    "Starred": "* before a value",
    "Subscript": "method or value in [...]",
    "Tuple": "tuple",
}


def names_in(text: Any) -> set[str]:
    """All names in an expression, without checks. Empty if it does not parse."""
    try:
        return {node.id for node in ast.walk(parse(text)) if isinstance(node, ast.Name)}
    except (Refused, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


def compared_with(text: str, places: Collection[str]) -> Iterator[tuple[str, float]]:
    """The numbers that an expression compares values with. places (Collection[str]): The values: "scores['ents_f']"."""
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Compare):
            pairs = [*pairwise([node.left, *node.comparators])]
            for one, other in [*pairs, *(pair[::-1] for pair in pairs)]:
                number = other.value if isinstance(other, ast.Constant) else None
                if isinstance(number, (int, float)) and (place := ast.unparse(one)) in places:
                    yield place, float(number)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """An expression with other names. It stays as it is if it has none of them, or does not parse."""
    if names_in(text).isdisjoint(names):
        return text
    tree = parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.unparse(tree)


def expression(text: Any, keys: Mapping[str, Keys | None]) -> Rule:
    """The argument `of` of a metric or operation: an expression over metrics that gives a number.

    keys (Mapping[str, Keys | None]): The metrics that it may use, with their keys.
    RAISES (ControllerError): As `Rule`; or it uses no metric.
    """
    try:
        found = Rule(text, keys, keys, gives="a number")
    except ControllerError as error:
        raise ControllerError(str(error).replace("the rule", "'of'", 1)) from None
    if not found.names:
        raise ControllerError(f"Can't use 'of' {reprlib.repr(text)}: expected an expression with a metric.")
    return found


def shown(error: BaseException) -> str:
    """A Python error in a short text, as its own may have the repr of anything."""
    text = ", ".join(arg if isinstance(arg, str) else reprlib.repr(arg) for arg in error.args)
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
