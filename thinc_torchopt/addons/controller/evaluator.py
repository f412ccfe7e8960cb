"""Evaluate expressions by simpleeval, in bounded time and memory.

simpleeval walks the syntax tree. Its limits hold: of powers and shifts, of the length of texts and lists, of the passes
of comprehensions. Beside them, an integer has at most `MAX_BITS`, and an evaluation does at most `MAX_WORK` pieces of
work: each node is one, and an operator or function costs the items and characters of its operands and its result.
Values are plain: numbers, texts, lists, dicts. So there are no attributes, methods or objects to reach.
"""

from __future__ import annotations

import ast
import math
import random
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from operator import mul
from typing import Any, Final, NoReturn

from simpleeval import DEFAULT_OPERATORS, EvalWithCompoundTypes, NumberTooHigh, safe_power

from .values import Keys

MAX_BITS = 1_024  # of an integer: the range of floats
MAX_WORK = 100_000
MAX_DIGITS = 400  # of round()

# Kinds of nodes that expressions may have. Attributes are read as keys.
NODES: Final = (
    *(ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Subscript, ast.Slice),
    *(ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp),
)
_SIZED = (str, list, tuple, set, dict)


class MetricUnavailable(LookupError):
    """A metric that the rule needs has no value yet. name (str): The metric, perhaps with a key."""

    def __init__(self, name: str):
        super().__init__(f"The metric {name} is not available")


class Refused(Exception):
    """A rule has or did something that is not allowed."""


def refuse(reason: str) -> NoReturn:
    raise Refused(reason)


class Evaluator(EvalWithCompoundTypes):
    """Evaluates the trees of `rules.parse`.

    keys (Mapping[str, Keys | None]): The metrics, with their keys as far as they are known.

    Public: `names` (values of metrics), `seed` (of random numbers), `wholes` (names that stand for all of a metric; any
    other name of a metric whose value has a key of that name stands for this value), `or_none` (lookups whose value may
    be None).
    """

    seed: str

    def __init__(self, keys: Mapping[str, Keys | None]):
        super().__init__()
        self.wholes: set[ast.AST] = set()
        self.or_none: set[ast.AST] = set()
        self.names: Mapping[str, Any] = {}
        self._random: random.Random | None = None
        self._keys = keys
        self._work = 0
        self.nodes: dict[type[ast.AST], Callable[..., Any]] = {kind: self.nodes[kind] for kind in NODES}
        own = {ast.Pow: _power, ast.Mod: _modulo}
        self.operators = {kind: self._counted(do) for kind, do in (DEFAULT_OPERATORS | own).items()}
        self.operators[ast.In] = self._contains
        self.operators[ast.NotIn] = lambda item, items: not self._contains(item, items)
        self.functions = {name: self._counted(do, *_COSTS.get(name, (1, 0)), name) for name, do in _FUNCTIONS.items()}
        self.functions |= {"rand": self._rand, "randint": lambda top: int(self._rand() * top)}

    def eval(self, expr: str, previously_parsed: Any = None) -> Any:
        self._work, self._random = MAX_WORK, None
        return super().eval(expr, previously_parsed)

    def _eval(self, node: ast.AST) -> Any:
        self._spend(1)
        result = super()._eval(node)
        if type(result) is int and result.bit_length() > MAX_BITS:
            raise NumberTooHigh(f"numbers of more than {MAX_BITS} bits are not allowed")
        if type(result) is complex:
            refuse("the root of a negative number is not allowed")
        return result

    def _check_disallowed_items(self, item: Any) -> None:
        """Nothing to look for: values are plain. Looking at each node would cost the size of each value."""

    # ------------------------------------------------------------------ work

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            refuse(f"it exceeds the limit of {MAX_WORK} pieces of work (passes, items, characters)")

    def _weigh(self, value: Any, cost: int = 1) -> None:
        """Spend work for all items and characters in a value, at all depths."""
        waiting = [value]
        while waiting:
            item = waiting.pop()
            if isinstance(item, _SIZED):
                self._spend(cost * len(item) + 1)
                if isinstance(item, dict):
                    waiting += [part for pair in item.items() for part in pair if isinstance(part, _SIZED)]
                elif not isinstance(item, str):
                    waiting += [part for part in item if isinstance(part, _SIZED)]

    def _counted(self, do: Callable[..., Any], cost: int = 1, skipped: int = 0, name: str = "") -> Callable[..., Any]:
        """An operator or function that spends work. cost (int): For each item. skipped (int): Operands that cost
        nothing. name (str): Of a function.
        """

        @wraps(do)
        def apply(*operands: Any, **options: Any) -> Any:
            for operand in (*operands[skipped:], *options.values()):
                if isinstance(operand, _SIZED):
                    self._weigh(operand, cost)
            try:
                result = do(*operands, **options)
            except TypeError:
                if not name:
                    raise
                refuse(f"{name}() can't take {', '.join(map(reprlib.repr, operands))}")
            self._spend(len(result) if isinstance(result, _SIZED) and not skipped else 0)
            return result

        return apply

    def _contains(self, item: Any, items: Any) -> bool:
        self._weigh(item)
        if not isinstance(items, dict):
            self._weigh(items)
        return item in items

    def _rand(self) -> float:
        """The same in a run that is resumed, and in each process."""
        if self._random is None:
            self._random = random.Random(self.seed)
        return self._random.random()

    # ------------------------------------------------------------------ nodes

    def _eval_set(self, node: ast.Set) -> set[Any]:
        items = self._eval_list(node)
        self._weigh(items)
        return set(items)

    def _eval_dict(self, node: ast.Dict) -> dict[Any, Any]:
        keys = [self._eval(key) for key in node.keys if key is not None]
        self._weigh(keys)
        return dict(zip(keys, map(self._eval, node.values)))

    def _eval_name(self, node: ast.Name) -> Any:
        """The value of a metric. simpleeval has the names in comprehensions before it calls this."""
        if (value := self.names.get(node.id)) is None:
            raise MetricUnavailable(f"{node.id!r}")
        if node in self.wholes or not isinstance(value, dict) or node.id not in value:
            return value
        if value[node.id] is None:
            raise MetricUnavailable(f"{node.id}[{node.id!r}]")
        return value[node.id]

    def _eval_subscript(self, node: ast.Subscript) -> Any:
        value, key = self._eval(node.value), self._eval(node.slice)
        if not isinstance(node.slice, ast.Constant):
            self._weigh(key)
        try:
            item = value[key]
        except (KeyError, IndexError):
            item = None
            self._check_missing(node, value, key)
        if isinstance(key, slice):
            self._spend(len(item))
        if item is None and node not in self.or_none and root_of(node) in self._keys:
            raise MetricUnavailable(f"{ast.unparse(node.value)}[{key!r}]")
        return item

    def _check_missing(self, node: ast.Subscript, value: Any, key: Any) -> None:
        """RAISES (Refused): A value has no such entry, and it is no metric that may have it later."""
        keys = keys_of(node.value, self._keys)
        is_metric = root_of(node) in self._keys
        if is_metric and (not value if keys is None else key in keys):
            return
        of = f" of {ast.unparse(node.value)}" if is_metric else ""
        if isinstance(value, dict):
            refuse(f"expected a key{of} ({_listed(keys or value)}), found {reprlib.repr(key)}")
        refuse(f"expected a position in the {len(value)} values{of}, found {reprlib.repr(key)}")


def root_of(node: ast.AST) -> str | None:
    """The name that a lookup begins with. None: another expression."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def keys_of(node: ast.AST, metrics: Mapping[str, Keys | None]) -> Keys | None:
    """The keys of a metric or of a value in it. None: it is no metric, or they are unknown."""
    if isinstance(node, ast.Name):
        return metrics.get(node.id)
    if isinstance(node, ast.Subscript) and (keys := keys_of(node.value, metrics)) is not None:
        return keys.get(node.slice.value) if isinstance(node.slice, ast.Constant) else None  # type: ignore[arg-type]
    return None


def _listed(keys: Iterable[Any]) -> str:
    names = [str(key)[:50] for key in keys]
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") or "it has none"


# ---------------------------------------------------------------------- operators and functions


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() * abs(b) > MAX_BITS:
        raise NumberTooHigh(f"numbers of more than {MAX_BITS} bits are not allowed")
    return safe_power(a, b)


def _modulo(a: Any, b: Any) -> Any:
    if isinstance(a, str):
        refuse("formatting of texts with % is not allowed")
    return a % b


def _first(choose: Callable[..., Any]) -> Callable[..., Any]:
    """The largest or smallest. NaN if there is one: Python's result would depend on its place."""

    def apply(*items: Any, **default: Any) -> Any:
        values = list(items[0]) if len(items) == 1 else items
        return next((value for value in values if value != value), None) or choose(values, **default)

    return apply


def _round(x: Any, ndigits: int | None = None) -> Any:
    if ndigits is not None and abs(ndigits) > MAX_DIGITS:
        refuse(f"expected at most {MAX_DIGITS} digits in round(), found {reprlib.repr(ndigits)}")
    return round(x, ndigits)


def _sum(items: Any) -> Any:
    return sum(items)  # without another start: a sum of lists takes long


def summary(numbers: Iterable[float]) -> dict[str, float]:
    """The `min`, `max`, `mean`, `median`, `std` and `slope` of numbers, at least one. All are NaN if one is; the last
    two also if one is infinite.

    std: The root of the mean of squared differences from the mean. slope: That of the line with the least squared
        distances: the change from one number to the next. 0 for one number.
    """
    values = _floats(numbers)
    if any(map(math.isnan, values)):
        return dict.fromkeys(("min", "max", "mean", "median", "std", "slope"), math.nan)
    ordered, count = sorted(values), len(values)
    found = {"min": ordered[0], "max": ordered[-1], "median": _between(ordered, 0.5)}
    infinite = [number for number in (ordered[0], ordered[-1]) if math.isinf(number)]
    if infinite:
        return {**found, "mean": sum(infinite), "std": math.nan, "slope": math.nan}
    changes = [number - values[0] for number in values]  # equal numbers: exactly 0
    middle = math.fsum(changes) / count
    found["mean"] = math.fsum(values) / count
    apart = [change - middle for change in changes]
    found["std"] = math.sqrt(math.fsum(map(mul, apart, apart)) / count)
    covariance = math.fsum(map(mul, _places(count), changes))
    return {**found, "slope": 12 * covariance / (count * (count * count - 1) or 1)}


@lru_cache(maxsize=64)
def _places(count: int) -> list[float]:
    """So many places at equal distances of 1, around 0."""
    return [i - (count - 1) / 2 for i in range(count)]


def _floats(numbers: Iterable[float]) -> list[float]:
    found = [number + 0.0 for number in numbers]
    return found or refuse("expected at least one number, found an empty list")


def _between(ordered: Sequence[float], q: float) -> float:
    """The number below which a part `q` of the numbers is; between two of them in proportion, as NumPy's."""
    below = math.floor(place := q * (len(ordered) - 1))
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    part = place - below
    if low == high or not part:
        return low
    return (low + high) / 2 if part == 0.5 else low + (high - low) * part


def _quantile(numbers: Any, q: float) -> float:
    if not 0 <= q <= 1:
        refuse(f"expected a number from 0 to 1 as the second argument of quantile(), found {reprlib.repr(q)}")
    values = _floats(numbers)
    return math.nan if any(map(math.isnan, values)) else _between(sorted(values), q)


def _part_of_summary(name: str) -> Callable[[Any], float]:
    return lambda numbers: summary(numbers)[name]


def _get(value: Any, key: Any, default: Any = None) -> Any:
    """value[key], or the default if there is no such key or it is None. A list of keys: value[key][key]..."""
    for part in key if isinstance(key, (list, tuple)) else [key]:
        try:
            value = None if value is None else value[part]
        except (KeyError, IndexError):
            value = None
    return default if value is None else value


_MATH = {name: getattr(math, name) for name in ("ceil", "exp", "floor", "log", "sqrt", "trunc")}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "float": float,
    "int": int,
    "len": len,
    "round": _round,
    "str": str,
    "max": _first(max),
    "min": _first(min),
    "sum": _sum,
    "isfinite": math.isfinite,
    "isnan": math.isnan,
    **_MATH,
    **{f"math_{name}": do for name, do in _MATH.items()},
    **{name: _part_of_summary(name) for name in ("mean", "median", "std", "slope")},
    "quantile": _quantile,
    "get": _get,
}
# The cost of each item in the operands of a function, and the number of operands that cost nothing, as they are not
# read to their end.
_COSTS: Final = {**dict.fromkeys(("mean", "median", "std", "slope", "quantile"), (5, 0)), "len": (1, 1), "get": (1, 1)}
FUNCTIONS: Final = frozenset({*_FUNCTIONS, "rand", "randint"})
