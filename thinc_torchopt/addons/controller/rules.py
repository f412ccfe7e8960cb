"""Rules: a Python expression over metrics that gives true or false, without side effects.

A rule is parsed once. Its syntax tree may only have the kinds of nodes that `compiler.Compiler` handles: no attributes,
so no methods; no statements, lambdas or f-strings. Parts that could use much time or memory are rewritten to calls of
`Sandbox`, which limits work and sizes. Then the tree is compiled to byte code, which runs without builtins.

    >>> rule = Rule("loss['loss'] < 1.0", ["loss"])
    >>> rule.evaluate({"loss": {"loss": 0.5}})
    True
"""

from __future__ import annotations

import ast
import reprlib
import warnings
from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

from ...core.errors import ControllerError
from .compiler import Compiler, Gives, Keys, parse
from .sandbox import MAX_WORK, SCALARS, MetricUnavailable, Refused, Sandbox
from .values import Path, paths_in


class Rule:
    """A rule, parsed and compiled.

    text (str): A Python expression.
    metrics (Collection[str]): The names that it may use.
    keys (Mapping[str, Keys | None] | None): The keys of metrics, as far as they are known.
    gives (str): What it must give: "true or false" for a rule, "a number" (or None) for a series, "anything" for a part
        of a rule.
    RAISES (ControllerError): It does not parse, has a part that is not allowed or an unknown name or key, or can't give
        that.
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
        self._sandbox = Sandbox()
        self._gives = gives
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Python's compiler, about `is` with a literal and about escapes
                compiler = Compiler(parse(self.text), frozenset(metrics), keys or {}, gives=gives)
                self._code = compile(compiler.tree, "<rule>", "eval")
        except Refused as reason:
            stop = "" if str(reason).endswith((".", "?")) else "."
            raise ControllerError(f"Can't use the rule {reprlib.repr(text)}: {reason}{stop}") from None
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else shown(error)
            raise ControllerError(
                f"Can't use the rule {reprlib.repr(text)}: expected one Python expression, found: {why}."
            ) from None
        self.names = frozenset(compiler.names)
        self._space: dict[str, Any] = {"__builtins__": {}, **self._sandbox.functions}
        if not self.names:
            try:
                self.evaluate({})
            except ControllerError as error:
                raise ControllerError(f"Can't use the rule {reprlib.repr(text)}: {error}.") from None

    @cached_property
    def paths(self) -> list[Path]:
        """The values in metrics that it looks up."""
        return paths_in(self.text, self.names)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Whether the rule holds; for another expression, its value.

        values (Mapping): Plain values of metrics. None or missing: no value yet.
        RAISES (MetricUnavailable): It needs a metric without a value. (ControllerError): It failed, gave no bool, or
            exceeded its limits.
        """
        space = self._space
        for name in self.names:
            if (value := values.get(name)) is None:
                space.pop(name, None)
            else:
                space[name] = value
        self._sandbox.work = MAX_WORK
        try:
            result = eval(self._code, space)
        except NameError as error:  # all names were checked: this is a metric without a value
            raise MetricUnavailable(f"{error.name!r}") from None
        except MetricUnavailable:
            raise
        except Refused as reason:
            raise ControllerError(f"{reason}") from None
        except Exception as error:
            raise ControllerError(f"it failed with {shown(error)}") from None
        if result is True or result is False or self._gives == "anything":
            return result
        if self._gives == "a number" and type(result) in SCALARS:
            return result
        raise ControllerError(f"it must give {self._gives}, but gave {reprlib.repr(result)}")


def names_in(text: Any) -> set[str]:
    """All names in an expression, without checks. Empty if it does not parse."""
    try:
        return {node.id for node in ast.walk(parse(text)) if isinstance(node, ast.Name)}
    except (Refused, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


def compared_with(text: str, places: Collection[str]) -> list[tuple[str, float]]:
    """The numbers that an expression compares values with. places (Collection[str]): The values: "scores['ents_f']"."""
    found = []
    for node in ast.walk(parse(text.strip())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = [*pairwise(sides)]
            for one, other in [*pairs, *(pair[::-1] for pair in pairs)]:
                number = other.value if isinstance(other, ast.Constant) else None
                if isinstance(number, (int, float)) and (place := ast.unparse(one)) in places:
                    found.append((place, float(number)))
    return found


def renamed(text: str, names: Mapping[str, str]) -> str:
    """An expression with other names. It stays as it is if it has none of them, or does not parse."""
    if names_in(text).isdisjoint(names):
        return text
    tree = ast.parse(text.strip(), mode="eval")
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
