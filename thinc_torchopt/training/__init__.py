"""A training run: spaCy's loop for our optimizer, how a run is saved and goes on, goes back, and is stopped. Open loop.py first.

checkpoint.py saves and resumes: progress.py, data_stream.py, random_state.py, model_state.py and config_check.py say what; rollback.py goes back to a checkpoint;
lr_finder.py is the learning rate range test.
"""

from .checkpoint import Checkpoint
from .checkpoint_folder import steps_of
from .loop import latest_info, train_while_improving
from .lr_finder import RangeTest, learn_rate_settings, make_ramp, run_range_test
from .own_loop import Checkpoints

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "RangeTest",
    "latest_info",
    "learn_rate_settings",
    "make_ramp",
    "run_range_test",
    "steps_of",
    "train_while_improving",
]
