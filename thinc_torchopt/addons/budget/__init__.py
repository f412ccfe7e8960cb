"""A training that ends in time: `[training.optimizer.budget]`. settings.py is the block, budget.py the listener."""

from .settings import Budget, read_limit

__all__ = [
    "Budget",
    "read_limit",
]
