"""spaCy's own Adam at its strongest, to compare recipes with.

A recipe that sets batches and a schedule is no better optimizer than one without: spaCy's Adam gets the same batches,
the same end, and spaCy's own schedule with the same warm-up. Its highest rate and its averages are tuned, one after the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spacy.language import DEFAULT_CONFIG

from .config_text import ConfigText, Raw

# Highest rates, from low to high: for networks that are trained from scratch, and for transformers.
PEAKS = 0.0005, 0.001, 0.002, 0.004
ENCODER_PEAKS = 2e-5, 5e-5, 1e-4, 2e-4
# Of `tune`.
TUNING_TRIALS = 4


@dataclass(frozen=True)
class Stock:
    """The tuned settings. peak (float): The highest rate."""

    peak: float
    use_averages: bool = True

    def __str__(self) -> str:
        return f"a rate of up to {self.peak:g}, {'averages' if self.use_averages else 'no averages'}"

    def write(self, text: str, training: Mapping[str, Any]) -> str:
        """Put it into the text of a config with the recipe best. training (Mapping): [training] of that config."""
        config = ConfigText(text, "training.optimizer")
        section, warmup = config.section, training["optimizer"]["learn_rate"]["warmup_ratio"] * training["max_steps"]
        section.settings, section.sections, section.below = {}, {}, []
        settings = DEFAULT_CONFIG["training"]["optimizer"] | {"use_averages": self.use_averages}
        for key, value in settings.items():
            if key != "learn_rate":
                section.put(key, value)
        rate = section.section("learn_rate")
        rate.put("@schedules", "warmup_linear.v1")
        rate.put("initial_rate", self.peak)
        rate.put("warmup_steps", round(warmup))
        rate.put("total_steps", Raw("${training.max_steps}"))
        return str(config)


def tune(peaks: Sequence[float], score: Callable[[Stock], float]) -> Stock:
    """Find the best settings in `TUNING_TRIALS` trials.

    peaks (Sequence[float]): Four, from low to high. The highest one is tried if the third is better than the second,
        and otherwise the lowest.
    score (Callable): Trains once.
    """
    lowest, low, high, highest = peaks
    found: dict[Stock, float] = {}

    def best_of(*candidates: Stock) -> Stock:
        for candidate in candidates:
            if candidate not in found:
                found[candidate] = score(candidate)
        return max(candidates, key=lambda candidate: found[candidate])

    best = best_of(Stock(low), Stock(high))
    best = best_of(best, Stock(highest if best.peak == high else lowest))
    return best_of(best, replace(best, use_averages=False))
