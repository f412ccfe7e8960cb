"""A training that ends in time: `[training.optimizer.budget]`."""

from typing import Final

from .budget import Budget, read_limit

STABILITY: Final = "provisional"
