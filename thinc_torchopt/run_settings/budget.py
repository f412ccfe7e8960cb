"""The settings of a budget: `thinc-torchopt.Budget.v1`."""

from __future__ import annotations

import re
from typing import Final, Literal

from ..checks import Section
from ..types import BudgetSettings

_SECTION = Section("[training.optimizer.budget]")
Unit = Literal["seconds", "steps", "words"]

_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_TIMES: Final = {"": 1.0, "k": 1e3, "M": 1e6}
_TIME: Final = re.compile(r"(?:\d+(?:\.\d+)?[dhms]\s*)+")
_COUNT: Final = re.compile(r"(\d[\d,_]*(?:\.\d+)?)\s*([kM]?)\s*(steps|words)")
EXPECTED: Final = 'a time such as "20m", "1h30m" or "90s", or "5000 steps", or "2M words"'


def Budget(limit: str, *, decay_ratio: float = 0.2) -> BudgetSettings:
    """End the training after a time or a number of steps or words, and lower the learning rate in time. Registered as
    `thinc-torchopt.Budget.v1`.

    Needs a learning rate that is a `warmup_stable_decay` with `decay_begins = "when told"`.

    limit (str): A time such as "20m", "1h30m" or "90s", with evaluations and saving; or a number of updates or words,
        such as "5000 steps" or "2M words".
    decay_ratio (float): Part of the limit in which the rate falls, above 0 and up to 1.
    RAISES (ConfigError): An argument is out of its range.
    """
    amount, unit = read_limit(limit, _SECTION)
    ratio = _SECTION.number("decay_ratio", decay_ratio, above=0.0, at_most=1.0)
    return BudgetSettings(amount, unit, ratio)


def read_limit(limit: str, section: Section, name: str = "limit") -> tuple[float, Unit]:
    """Parse a limit into amount and unit.

    section (Section), name (str): The setting, for errors.
    RAISES (ConfigError): It is neither a time nor a number of steps or words, or it is too small.
    """
    text = limit.strip() if isinstance(limit, str) else ""
    amount, unit = 0.0, "seconds"
    if _TIME.fullmatch(text):
        amount = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", text))
    elif found := _COUNT.fullmatch(text):
        amount, unit = float(found[1].replace(",", "").replace("_", "")) * _TIMES[found[2]], found[3]
    if amount < 1 or (unit != "seconds" and amount != int(amount)):
        section.refuse(name, EXPECTED, limit)
    if unit == "steps" and amount < 2:
        section.refuse(name, "at least 2 steps: the rate falls after the first", limit)
    return amount, unit  # type: ignore[return-value]
