"""A training run: spaCy's loop for our optimizer, and how a run is saved, resumed, taken back and stopped. Open loop.py
first.

loop.py says in which order the parts of a run (run.py) come, and events.py what listeners are told of them. The
listeners are checkpoint.py, which saves and resumes (folders: checkpoint_folder.py, output_folder.py, best_model.py,
run_lock.py; what is saved: progress.py, data_stream.py, random_state.py, model_state.py, config_check.py);
rollback.py, which goes back to a checkpoint; rules.py, by which the trainer controller steers (dev_loss.py computes the
loss on the development data for it); saved_models.py, which saves models; best_weights.py, which puts
components together; and log_numbers.py. ranks.py keeps several processes together.
decay.py lets learning rates fall when that is asked for, and budget.py in time for a budget. own_loop.py saves and
resumes loops of your own; signals.py stops a run after its step; short_training.py trains for a few steps to find
something out, lr_finder.py is the learning rate range test.
"""

from .budget_settings import Budget, read_limit
from .checkpoint_folder import read_checkpoint, steps_of
from .checkpoint_settings import Checkpoint
from .components import sums_of_gradients
from .config_check import collect_identity, collect_values
from .data_stream import count_steps
from .log_numbers import latest_info
from .loop import train_while_improving
from .lr_finder import RangeTest, learn_rate_settings, make_ramp, rates_of_settings, run_range_test
from .own_loop import Checkpoints
from .run_lock import RunLock, hold, is_held, is_in_use
from .short_training import WRITES, begin_training

__all__ = [
    "WRITES",
    "Budget",
    "Checkpoint",
    "Checkpoints",
    "RangeTest",
    "RunLock",
    "begin_training",
    "collect_identity",
    "collect_values",
    "count_steps",
    "hold",
    "is_held",
    "is_in_use",
    "latest_info",
    "learn_rate_settings",
    "make_ramp",
    "rates_of_settings",
    "read_checkpoint",
    "read_limit",
    "run_range_test",
    "steps_of",
    "sums_of_gradients",
    "train_while_improving",
]
