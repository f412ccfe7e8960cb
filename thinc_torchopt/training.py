"""Blocks of [training.optimizer] and numbers of a run, for Python. They live in loop/ and addons/."""

from .addons.budget import Budget
from .addons.fine_tuning.batcher import batch_by_padded_pieces
from .addons.fine_tuning.settings import FineTuning
from .addons.recorder import Recorder
from .loop.checkpoint_settings import Checkpoint
from .loop.log_numbers import latest_info

__all__ = ["Budget", "Checkpoint", "FineTuning", "Recorder", "batch_by_padded_pieces", "latest_info"]
