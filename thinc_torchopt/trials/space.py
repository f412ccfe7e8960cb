"""The values of settings that a search tries.

As text: `1e-4..1e-2:log` is a range on a logarithmic scale, `0.0..0.5` on a linear scale, `0..1:0.25` in steps. `1..8`
has whole numbers, as both ends are whole. `16|32|64` are choices: numbers, true, false, null, or texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from ..errors import ConfigError


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, inclusive. is_log (bool): Use a logarithmic scale. step (float | None): Distance of
    allowed values.
    """

    low: float
    high: float
    is_log: bool = False
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int) and isinstance(self.step or 1, int)

    @property
    def ends(self) -> list[Any]:
        return [self.low, self.high]

    def __contains__(self, value: Any) -> bool:
        is_number = isinstance(value, int if self.is_whole else (int, float)) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high and (self.step is None or value in self.ends)

    def value_of(self, drawn: Any) -> Any:
        """The value of a setting, from the value that Optuna drew."""
        return drawn

    def suggest(self, trial: Any, path: str) -> Any:
        if self.is_whole:
            return trial.suggest_int(path, self.low, self.high, step=self.step or 1, log=self.is_log)
        return trial.suggest_float(path, self.low, self.high, step=self.step, log=self.is_log)

    def __str__(self) -> str:
        scale = ":log" if self.is_log else "" if self.step is None else f":{self.step}"
        return f"{self.low}..{self.high}{scale}"


@dataclass(frozen=True)
class Choice:
    """A choice of values, each as text."""

    texts: tuple[str, ...]
    is_log = False

    @property
    def ends(self) -> list[Any]:
        return [_value(text) for text in self.texts]

    def __contains__(self, value: Any) -> bool:
        return any(type(value) is type(end) and value == end for end in self.ends)

    def text_of(self, value: Any) -> str:
        return next(text for text in self.texts if _value(text) == value)

    def value_of(self, drawn: Any) -> Any:
        return _value(drawn)

    def suggest(self, trial: Any, path: str) -> Any:
        return _value(trial.suggest_categorical(path, self.texts))

    def __str__(self) -> str:
        return "|".join(self.texts)


Dimension = Union[Range, Choice]
Space = dict[str, Dimension]


def parse_space(given: Sequence[tuple[str, str, str]]) -> Space:
    """Parse a space.

    given (Sequence[tuple[str, str, str]]): Source, for errors; dotted path of a setting; its values as text. The last
        one of a path counts.
    RAISES (ConfigError): A text is invalid.
    """
    return {path: _parse(where, path, text) for where, path, text in given}


def _parse(where: str, path: str, text: str) -> Dimension:
    # A config has texts in quotes.
    text = text.strip().strip('"')
    if "." not in path or not all(path.split(".")):
        raise ConfigError(
            f"Can't search in '{path}' of {where}: expected the path of a setting with its sections, found '{path}'. "
            "For example training.optimizer.learn_rate."
        )
    if "|" in text:
        texts = tuple(part.strip() for part in text.split("|"))
        if not all(texts) or len(set(texts)) < len(texts):
            raise _refused(where, path, text, "choices that differ")
        return Choice(texts)
    ends, _, scale = text.partition(":")
    parts = [_number(part) for part in ends.split("..")]
    step = None if scale in ("", "log") else _number(scale)
    if len(parts) != 2 or None in parts or (step is None and scale not in ("", "log")):
        raise _refused(where, path, text, "a range or choices")
    low, high = parts
    assert low is not None and high is not None
    if not low < high:
        raise _refused(where, path, text, "a range from a lower number to a higher one")
    if scale == "log" and low <= 0:
        raise _refused(where, path, text, "numbers above 0, as the scale is logarithmic")
    if step is not None and not (0 < step <= high - low and _divides(step, high - low)):
        raise _refused(where, path, text, "a step above 0 that leads from one end to the other")
    return Range(low, high, scale == "log", step)


def _divides(step: float, width: float) -> bool:
    """Whether a width is a whole number of steps, up to rounding."""
    return math.isclose(width / step, round(width / step))


def _refused(where: str, path: str, text: str, expected: str) -> ConfigError:
    return ConfigError(
        f"Can't search in '{path}' of {where}: expected {expected}, found '{text}'. Ranges are 1e-4..1e-2:log, "
        "0.0..0.5 or 1..8; choices are 16|32|64."
    )


def _number(text: str) -> float | None:
    """Parse a number: an int if it is written as one. None: no number."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else None
    return None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
