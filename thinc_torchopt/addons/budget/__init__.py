"""A training that ends in time: `[training.optimizer.budget]`. settings.py is the block, budget.py the listener."""

from typing import Final

from .settings import Budget, read_limit

STABILITY: Final = "provisional"

__all__ = [
    "Budget",
    "read_limit",
]
