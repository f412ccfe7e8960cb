"""The learning rates over a training, as far as they are known before it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from numbers import Real
from typing import Any

from spacy.util import registry

from ..core.schedules import with_end

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
