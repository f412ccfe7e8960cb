"""A training run: spaCy's loop for our optimizer, and how a run is saved, resumed, taken back and stopped. Open loop.py first.

checkpoint.py saves and resumes (checkpoint_folder.py, best_model.py, run_lock.py: the folder; progress.py, data_stream.py, random_state.py,
model_state.py, config_check.py: what is in it); own_loop.py does so for loops of your own; rollback.py goes back to a checkpoint;
signals.py stops a run after its step; lr_finder.py is the learning rate range test.
"""

from .checkpoint import Checkpoint
from .checkpoint_folder import read_checkpoint, steps_of
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
    "read_checkpoint",
    "run_range_test",
    "steps_of",
    "train_while_improving",
]
