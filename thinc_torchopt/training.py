"""Blocks of [training.optimizer] and numbers of a run, for Python. They live in loop/ and addons/."""

from .addons.budget.settings import Budget
from .loop.checkpoint_settings import Checkpoint
from .loop.log_numbers import latest_info

__all__ = ["Budget", "Checkpoint", "latest_info"]
