"""The learning rates over a training, as far as they are known before it; and what is said of them at its start."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from numbers import Real
from typing import Any

from spacy.language import Language
from spacy.util import registry

from ..core.config_checks import names_our_optimizer
from ..core.optimizer import TorchOptimizer
from ..core.schedules import with_end
from .random_state import preserved_random

# A path below [training.optimizer], e.g. ("param_groups", "encoder", "learn_rate").
Place = tuple[str, ...]

# Without an end of the training, schedules are read for this many steps.
_STEPS_WITHOUT_END = 10_000


def rates_of_settings(config: Mapping[str, Any], last: int | None = None) -> dict[Place, list[float]]:
    """The rates of every setting over the training; of one that does not move, only that.

    config (Mapping[str, Any]): A config, interpolated.
    last (int | None): The last step. None: as the config says.
    """
    block = config["training"]["optimizer"]
    given: dict[Place, Any] = {("learn_rate",): block.get("learn_rate")}
    groups = block.get("param_groups", {})
    given |= {("param_groups", name, "learn_rate"): group.get("learn_rate") for name, group in groups.items()}
    given |= {("per_param_lr", pattern): rate for pattern, rate in (block.get("per_param_lr") or {}).items()}
    given = {path: value for path, value in given.items() if value is not None}
    # Under numbers: what is in a path may be no name of a section.
    resolved = registry.resolve({"rates": {str(i): value for i, value in enumerate(given.values())}})["rates"]
    steps = (last or config["training"].get("max_steps") or _STEPS_WITHOUT_END) + 1
    return {path: _rates(resolved[str(i)], steps) for i, path in enumerate(given)}


def _rates(value: Any, steps: int) -> list[float]:
    if isinstance(value, Real):
        return [float(value)]
    return [float(rate) for rate in islice(with_end(value, steps), steps)]


def first_rates(nlp: Language, optimizer: TorchOptimizer, step: int) -> str:
    """The learning rates at the beginning of a run, in words.

    step (int): The first step, which is not 0 if the run goes on.
    """
    # The settings of an optimizer that code of the user builds are not known.
    if step or not names_our_optimizer(nlp.config):
        return f"{optimizer.learn_rate:.3g} at step {step:,}"
    ends = (getattr(source, "total_steps", None) for source in optimizer.schedules.values())
    with preserved_random():
        found = rates_of_settings(nlp.config.interpolate(), next((end - 1 for end in ends if end), None))
    if not found:
        return f"{optimizer.learn_rate:.3g}"
    told = {place: _in_words(rates) for place, rates in found.items()}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    # The name of a param group, or a pattern of params. The others have the first setting's.
    return "; ".join(words if place == ("learn_rate",) else f"{place[1]}: {words}" for place, words in told.items())


def _in_words(rates: list[float]) -> str:
    peak = max(rates)
    if rates.index(peak):
        return f"rises to {peak:.3g} by step {rates.index(peak):,}"
    return f"{peak:.3g}" if len(set(rates)) == 1 else f"{peak:.3g} at first"
