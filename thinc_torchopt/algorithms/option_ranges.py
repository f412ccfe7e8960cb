"""Valid values of the options that schedules move.

A torch class checks its options only when it is built: a NaN that a schedule puts in `weight_decay` later goes into the
weights. So each value is checked before it is written. The class itself checks a value, when a small optimizer is built
with it. That is too slow for every step, so each option has a range, which spans all values accepted so far, beginning
with a few that are tried at first.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ScheduleError
from ..schedules import Schedule, current
from .algorithm import Algorithm, option_entry, small_matrix

# The first values to try. Valid ranges usually begin or end at 0 or 1.
_TRIED = (-1000.0, -1.0, 0.0, 1e-12, 0.5, 1.0 - 1e-7, 1.0, 1.0 + 1e-7, 1000.0)


class OptionRanges:
    """The ranges of an algorithm's options, as far as they are known.

    algorithm (Algorithm): The algorithm.
    """

    def __init__(self, algorithm: Algorithm):
        self.algorithm = algorithm
        self._ranges: dict[tuple[str, int | None], tuple[float, float]] = {}

    def check(self, name: str, sources: Mapping[str, Any]) -> None:
        """Check the value of an option at this step.

        name (str): The option.
        sources (Mapping[str, Any]): All options of the algorithm, including schedules, and tuples with schedules.
        RAISES (ScheduleError): It is not finite, or the algorithm does not accept it.
        """
        source = sources[name]
        for place, schedule in enumerate(source) if isinstance(source, tuple) else ((None, source),):
            if isinstance(schedule, Schedule):
                low, high = self._ranges.get((name, place)) or self._begin(name, place, sources)
                if not low <= schedule.value <= high:
                    self._try(name, place, schedule, sources)

    def _begin(self, name: str, place: int | None, sources: Mapping[str, Any]) -> tuple[float, float]:
        taken = [value for value in _TRIED if self._refusal(_with(sources, name, place, value)) is None]
        self._ranges[name, place] = found = (min(taken), max(taken)) if taken else (math.inf, -math.inf)
        return found

    def _try(self, name: str, place: int | None, schedule: Schedule, sources: Mapping[str, Any]) -> None:
        """Try a value outside the range; if it is accepted, the range grows."""
        value = schedule.value
        refusal = self._refusal(_with(sources, name, place, value)) if math.isfinite(value) else "It is not finite"
        if refusal is not None:
            raise ScheduleError(
                f"Can't use the schedule of '{schedule.name}' at step {schedule.position}: expected a value that "
                f"'{self.algorithm.label}' accepts for {option_entry(name, place)}, found {value}. "
                f"{refusal.rstrip('.')}. No param was updated at this step. Give the schedule values in the range of "
                "the option."
            )
        low, high = self._ranges[name, place]
        self._ranges[name, place] = min(low, value), max(high, value)

    def _refusal(self, options: Mapping[str, Any]) -> str | None:
        """The algorithm's reason for refusing options. None: it accepts them."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.algorithm.build([small_matrix(options)], lr=0.001, **options)
            except Exception as error:
                return str(error)
        return None


def _with(sources: Mapping[str, Any], name: str, place: int | None, value: float) -> dict[str, Any]:
    """The options of this step, with one of them replaced."""
    options = {other: current(source) for other, source in sources.items()}
    if place is None:
        return options | {name: value}
    return options | {name: (*options[name][:place], value, *options[name][place + 1 :])}
