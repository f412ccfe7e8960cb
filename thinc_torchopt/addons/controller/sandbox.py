"""The operators and functions that a compiled rule calls. They limit its time and memory.

*work*: a budget of `MAX_WORK` for one evaluation. A pass of a comprehension costs the number of nodes in its body; an
operation on a list, dict or string costs its number of items or characters.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Collection, Iterable
from types import GeneratorType
from typing import Any, Final, NoReturn

from .rolling import Rolling

MAX_BITS = 1_024  # of an integer: the range of floats
MAX_WORK = 100_000
MAX_PASSES = 10_000  # of one comprehension
MAX_KEYS = 1_000  # of a set or dict that a rule makes
MAX_DIGITS = 400  # of round(), and in texts for int() and float()

SCALARS: Final = frozenset({bool, int, float, type(None)})
NUMBERS: Final = frozenset({bool, int, float})
WHOLE: Final = frozenset({bool, int})
KEYS: Final = SCALARS | {str}
_NO_DEFAULT: Final = object()


class MetricUnavailable(LookupError):
    """A metric that the rule needs has no value yet. name (str): The metric, perhaps with a key."""

    def __init__(self, name: str):
        super().__init__(f"The metric {name} is not available")


class Refused(Exception):
    """A rule did something that is not allowed."""


def refuse(reason: str) -> NoReturn:
    raise Refused(reason)


def _of_one(sign: str, types: Collection[type], do: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A method of `Sandbox` that works on one value of these types."""

    def apply(self: Any, x: Any, /) -> Any:
        if type(x) not in types:
            self.wrong(sign, x)
        return do(x)

    return apply


def _of_two(sign: str, types: Collection[type], do: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """A method of `Sandbox` that works on two values of these types."""

    def apply(self: Any, a: Any, b: Any, /) -> Any:
        if type(a) not in types or type(b) not in types:
            self.wrong(sign, a, b)
        return do(a, b)

    return apply


class Sandbox:
    """The operators (`_name`) and functions (`f_name`) of compiled rules. Counts the work that is left.

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
            refuse(f"it exceeds the limit of {MAX_WORK} pieces of work (passes, items, characters)")

    # ------------------------------------------------------------------ values

    def _weighed(self, value: Any) -> Any:
        if type(value) not in SCALARS:
            self.weigh(value)
        return value

    def weigh(self, value: Any) -> None:
        """Spend work for all items and characters in a value, at all depths."""
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self.spend(len(item) + 1)
            elif isinstance(item, dict):
                self.spend(2 * len(item) + 1)
                stack += (part for pair in item.items() for part in pair if type(part) not in SCALARS)
            elif isinstance(item, (list, tuple, set)):
                self.spend(len(item) + 1)
                stack += (part for part in item if type(part) not in SCALARS)

    def _passes(self, items: Any, cost: int) -> Iterable[Any]:
        if type(items) not in (list, tuple, set, dict, str):
            refuse(f"expected a list, tuple, set, dict or text after 'in', found {type(items).__name__}")
        if len(items) > MAX_PASSES:
            refuse(f"expected at most {MAX_PASSES} passes of a comprehension, found {len(items)}")
        self.spend(cost * len(items))
        return items

    def _item(self, value: Any, index: Any, metric: str | None, keys: tuple[str, ...] | None, may_be_none: bool) -> Any:
        """metric (str | None): The place in a metric, which may have no value yet. keys (tuple | None): The keys that
        the metric always has.
        """
        try:
            if type(index) in KEYS and type(value) is not str:
                if (item := value[index]) is None and metric is not None and not may_be_none:
                    raise MetricUnavailable(f"{metric}[{index!r}]")
                return item
        except (KeyError, IndexError):
            is_known = keys is not None and index in keys
            if metric is not None and (is_known or (keys is None and not value)):
                if is_known and may_be_none:
                    return None
                raise MetricUnavailable(f"{metric}[{reprlib.repr(index)}]") from None
            where = "" if metric is None else f" of {metric}"
            if type(value) is dict:
                refuse(f"expected a key{where} ({_names(keys or value)}), found {reprlib.repr(index)}")
            refuse(f"expected a position in the {len(value)} values{where}, found {reprlib.repr(index)}")
        if type(value) is str and type(index) in (int, bool):
            return value[index]
        what = f"{type(value).__name__} and {type(index).__name__}"
        refuse(f"expected [...] on a list, tuple, dict or text, with a number or text inside, found {what}")

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
        """Check the items of a set or the keys of a dict. Large numbers and tuples are refused: they could all have the
        same hash, so that each is compared with each.
        """
        if len(items) > MAX_KEYS:
            refuse(f"expected at most {MAX_KEYS} items in a set or dict, found {len(items)}")
        for item in items:
            if type(item) not in KEYS or (type(item) is int and item.bit_length() > 60):
                refuse("only texts and numbers below 2**60 are allowed as items of a set and keys of a dict")
            if type(item) is str:
                self.spend(len(item))

    # ------------------------------------------------------------------ operators

    def _add(self, a: Any, b: Any) -> Any:
        if type(a) in NUMBERS and type(b) in NUMBERS:
            return a + b
        if type(a) is type(b) and type(a) in (str, list, tuple):
            self.spend(len(a) + len(b) + 1)
            return a + b
        self.wrong("+", a, b)

    def _mult(self, a: Any, b: Any) -> Any:
        if type(a) in NUMBERS and type(b) in NUMBERS:
            if type(a) is not float and type(b) is not float and a.bit_length() + b.bit_length() > MAX_BITS:
                refuse(f"numbers of more than {MAX_BITS} bits are not allowed, as this product")
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
            refuse(f"numbers of more than {MAX_BITS} bits are not allowed, as this power")
        result = a**b
        if type(result) is complex:
            refuse("the root of a negative number is not allowed")
        return result

    def _lshift(self, a: Any, b: Any) -> Any:
        if type(a) not in WHOLE or type(b) not in WHOLE:
            self.wrong("<<", a, b)
        if b > MAX_BITS or a.bit_length() + b > MAX_BITS:
            refuse(f"numbers of more than {MAX_BITS} bits are not allowed, as this shift")
        return a << b

    _sub = _of_two("-", NUMBERS, operator.sub)
    _div = _of_two("/", NUMBERS, operator.truediv)
    _floordiv = _of_two("//", NUMBERS, operator.floordiv)
    _mod = _of_two("%", NUMBERS, operator.mod)
    _rshift = _of_two(">>", WHOLE, operator.rshift)
    _bitand = _of_two("&", WHOLE, operator.and_)
    _bitor = _of_two("|", WHOLE, operator.or_)
    _bitxor = _of_two("^", WHOLE, operator.xor)
    _invert = _of_one("~", WHOLE, lambda x: ~int(x))

    def numbers(self, sign: str, a: Any, b: Any) -> None:
        if type(a) not in NUMBERS or type(b) not in NUMBERS:
            self.wrong(sign, a, b)

    def wrong(self, sign: str, *values: Any) -> NoReturn:
        refuse(f"{sign} does not work on {' and '.join(type(value).__name__ for value in values)}")

    # ------------------------------------------------------------------ functions

    f_abs = _of_one("abs()", NUMBERS, abs)
    f_isfinite = _of_one("isfinite()", NUMBERS, lambda x: type(x) is not float or math.isfinite(x))
    f_isnan = _of_one("isnan()", NUMBERS, lambda x: x != x)
    f_math_ceil = f_ceil = _of_one("math_ceil()", NUMBERS, math.ceil)
    f_math_exp = f_exp = _of_one("math_exp()", NUMBERS, math.exp)
    f_math_floor = f_floor = _of_one("math_floor()", NUMBERS, math.floor)
    f_math_log = f_log = _of_one("math_log()", NUMBERS, math.log)
    f_math_sqrt = f_sqrt = _of_one("math_sqrt()", NUMBERS, math.sqrt)
    f_math_trunc = f_trunc = _of_one("math_trunc()", NUMBERS, math.trunc)

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
        return self.first(max, "max()", items, default)

    def f_min(self, *items: Any, default: Any = _NO_DEFAULT) -> Any:
        return self.first(min, "min()", items, default)

    def f_round(self, x: Any, /, ndigits: Any = None) -> Any:
        self.numbers("round()", x, 0 if ndigits is None else ndigits)
        if ndigits is not None and not (type(ndigits) is int and abs(ndigits) <= MAX_DIGITS):
            refuse(f"expected a whole number of at most {MAX_DIGITS} digits in round(), found {reprlib.repr(ndigits)}")
        return round(x, ndigits)

    def f_str(self, x: Any, /) -> str:
        self.weigh(x)
        if type(x) not in KEYS and type(x) not in (list, tuple, set, dict):
            self.wrong("str()", x)
        text = str(x)
        self.spend(len(text))
        return text

    def f_sum(self, items: Any, /, start: Any = 0) -> Any:
        items = list(self.items("sum()", items))
        self.numbers("sum()", start, start)
        if not all(type(item) in NUMBERS for item in items):
            refuse("sum() works on numbers only")
        return sum(items, start)

    def f_mean(self, numbers: Any, /) -> float:
        return self.series("mean()", numbers).mean()

    def f_median(self, numbers: Any, /) -> float:
        return self.series("median()", numbers).median()

    def f_std(self, numbers: Any, /) -> float:
        return self.series("std()", numbers).std()

    def f_slope(self, numbers: Any, /) -> float:
        return self.series("slope()", numbers).slope()

    def f_quantile(self, numbers: Any, q: Any, /) -> float:
        if type(q) not in NUMBERS or not 0 <= q <= 1:
            refuse(f"expected a number from 0 to 1 as the second argument of quantile(), found {reprlib.repr(q)}")
        return self.series("quantile()", numbers).quantile(q)

    def f_get(self, x: Any, key: Any, default: Any = None, /) -> Any:
        """x[key], or the default if there is no such key or it is None. A list of keys: x[key][key]..."""
        for part in key if type(key) in (list, tuple) else (key,):
            if type(part) not in KEYS:
                refuse(f"expected a key, or a list of keys, in get(), found {type(part).__name__}")
            if type(x) is dict:
                x = x.get(part)
            elif type(x) in (list, tuple) and type(part) is int:
                x = x[part] if -len(x) <= part < len(x) else None
            elif x is not None:
                self.wrong("get()", x, part)
        return default if x is None else x

    def series(self, function: str, numbers: Any) -> Rolling:
        """At least one number, with its statistics."""
        if type(numbers) not in (list, tuple, GeneratorType):
            self.wrong(function, numbers)
        numbers = list(self.items(function, numbers))
        self.spend(4 * len(numbers))
        if not numbers:
            refuse(f"expected at least one number in {function}, found an empty list")
        if not all(type(number) in NUMBERS for number in numbers):
            refuse(f"{function} works on numbers only")
        try:
            return Rolling(len(numbers), map(float, numbers))
        except OverflowError:
            refuse(f"numbers in {function} must be in the range of floats")

    def digits(self, function: str, x: Any) -> Any:
        if type(x) is str and len(x) > MAX_DIGITS:
            refuse(f"expected at most {MAX_DIGITS} characters in {function}, found {len(x)}")
        if type(x) not in NUMBERS and type(x) is not str:
            self.wrong(function, x)
        return x

    def items(self, function: str, items: Any) -> Iterable[Any]:
        if type(items) is GeneratorType:
            return items  # its passes have been counted
        self.spend(self.f_len(items) if type(items) in (list, tuple, set, dict, str) else self.wrong(function, items))
        return items

    def first(self, choose: Callable[[list[Any]], Any], function: str, items: tuple[Any, ...], default: Any) -> Any:
        """The largest or smallest. NaN if there is one: Python's result would depend on its place."""
        if not items or (default is not _NO_DEFAULT and len(items) != 1):
            refuse(f"expected values, or a list and perhaps a default, in {function}")
        compared = list(self.items(function, items[0])) if len(items) == 1 else list(items)
        self.weigh(compared)
        if not compared and default is not _NO_DEFAULT:
            return default
        return next((item for item in compared if item != item), None) or choose(compared)


def _names(keys: Iterable[Any]) -> str:
    names = [str(key)[:50] for key in keys]
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") or "it has none"


FUNCTIONS: Final = frozenset(name.removeprefix("f_") for name in dir(Sandbox) if name.startswith("f_"))
