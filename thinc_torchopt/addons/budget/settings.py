"""The settings of a budget: `thinc-torchopt.Budget.v1`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from typing import Any, ClassVar, Final, Literal

from ...core.attachments import Attachment
from ...core.checks import Section
from ...core.errors import ConfigError

_SECTION = Section("[training.optimizer.budget]")
Unit = Literal["seconds", "steps", "words"]

_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_TIMES: Final = {"": 1, "k": 1_000, "M": 1_000_000}
_TIME: Final = re.compile(r"(?:\d+(?:\.\d+)?[dhms]\s*)+")
_COUNT: Final = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?)\s*([kM]?)\s*(step|word)s?")
EXPECTED: Final = 'a time such as "20m", "1h30m" or "90s", or "5000 steps", or "1.5M words"'


@dataclass
class Budget(Attachment):
    """End the training after a time or a number of steps or words, and lower the learning rate in time. Registered as
    `thinc-torchopt.Budget.v1`.

    Needs a learning rate that is a `warmup_stable_decay` with `decay_begins = "when told"`.

    limit (str): A time such as "20m", "1h30m" or "90s", with evaluations and saving; or a number of updates or words,
        such as "5000 steps" or "2M words".
    decay_ratio (float): Part of the limit in which the rate falls, above 0 and up to 1.
    RAISES (ConfigError): An argument is out of its range.

    Public: `amount` and `unit` (of the limit).
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.Budget.v1", or in Python the result of thinc_torchopt.training.Budget()'
    )
    plans_decay: ClassVar[bool] = True
    may_change: ClassVar[bool] = True
    own_block: ClassVar[str] = "budget"
    decides_alike: ClassVar[bool] = True

    limit: str
    _: KW_ONLY
    decay_ratio: float = 0.2

    def __post_init__(self) -> None:
        self.amount, self.unit = read_limit(self.limit, _SECTION)
        self.decay_ratio = _SECTION.number("decay_ratio", self.decay_ratio, above=0.0, at_most=1.0)

    def check(self, optimizer: Any) -> None:
        if not optimizer.can_begin_decay:
            raise ConfigError(
                f"Can't use {_SECTION.path}: expected a schedule that can decay, found none. Set learn_rate to "
                "thinc-torchopt.warmup_stable_decay.v1, or let a command do it: spacy torchopt train --budget."
            )

    def join(self, run: Any) -> Sequence[Any]:
        from .budget import BudgetKeeper

        return [BudgetKeeper(self, run)]


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
        # As floats, 4.1 times a million is no whole number.
        amount, unit = float(Decimal(found[1].replace(",", "")) * _TIMES[found[2]]), f"{found[3]}s"
    if amount < 1 or (unit != "seconds" and amount % 1):
        section.refuse(name, EXPECTED, limit)
    if unit == "steps" and amount < 2:
        section.refuse(name, "at least 2 steps: the rate falls after the first", limit)
    return amount, unit  # type: ignore[return-value]
