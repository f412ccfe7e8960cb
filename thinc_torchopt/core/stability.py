"""How much a part of the package may change between versions. docs/stability.md says what each tier promises.

A package says it in its `__init__.py`, if it is not stable: `STABILITY: Final = "experimental"`. All else is stable.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal

from spacy.util import registry

from .config_checks import PREFIXES, sections_of

Tier = Literal["stable", "provisional", "experimental"]


def tier_of(module: str) -> Tier:
    """The tier of a module that is imported, by its dotted name. The innermost package that names one decides."""
    while module:
        tier: Tier | None = getattr(sys.modules.get(module), "STABILITY", None)
        if tier is not None:
            return tier
        module = module.rpartition(".")[0]
    return "stable"


def tiers_in(config: Mapping[str, Any]) -> dict[str, Tier]:
    """The tiers of the registered functions of this package that a config names, by their names."""
    return {
        name: tier_of(registry.get(key[1:], name).__module__)
        for section in sections_of(config)
        for key, name in section.block.items()
        if key.startswith("@") and str(name).startswith(PREFIXES)
    }
