"""A training run: spaCy's loop for our optimizer, with saving, resuming, rollback and stopping. Open loop.py first.

loop.py defines the order of a step's parts (run.py), and events.py the events that listeners get. The listeners:

- checkpoint.py saves and resumes. Folders: checkpoint_folder.py, output_folder.py, run_lock.py. Saved
        state: progress.py, data_stream.py, random_state.py, model_state.py, config_check.py.
- rollback.py goes back to a checkpoint.
- rules.py connects the trainer controller. dev_loss.py computes the loss on the development data for it.
- saved_models.py saves models, log_numbers.py feeds loggers.
- decay.py starts the fall of learning rates on demand, budget.py in time for a budget.

ranks.py keeps several processes in step. own_loop.py saves and resumes a user's own loop; signals.py stops a run after
a step; undo.py undoes one that failed; short_training.py trains for a few steps; lr_finder.py is the learning rate
range test.
"""

from ..run_settings import Budget, Checkpoint, read_limit
from .checkpoint_folder import read_checkpoint, steps_of
from .components import is_trained, sums_of_gradients
from .config_check import (
    Identity,
    collect_defaults,
    collect_identity,
    collect_values,
    compare_configs,
    compare_identities,
)
from .data_stream import count_steps
from .log_numbers import latest_info
from .loop import train_while_improving
from .lr_finder import RangeTest, learn_rate_settings, make_ramp, rates_of_settings, run_range_test
from .model_state import ModelState, check_model, check_parts, collect_model, restore_model
from .own_loop import Checkpoints
from .private import plan_private_training, what_is_not_covered
from .random_state import RandomState, check_generators, collect_random, restore_random
from .rules import Rules, names_in_run
from .run_lock import RunLock, hold, is_held, is_in_use
from .saved_models import SavedModels
from .short_training import WRITES, begin_training
from .signals import Signals
from .undo import Undo

__all__ = [
    "WRITES",
    "Budget",
    "Checkpoint",
    "Checkpoints",
    "Identity",
    "ModelState",
    "RandomState",
    "RangeTest",
    "Rules",
    "RunLock",
    "SavedModels",
    "Signals",
    "Undo",
    "begin_training",
    "check_generators",
    "check_model",
    "check_parts",
    "collect_defaults",
    "collect_identity",
    "collect_model",
    "collect_random",
    "collect_values",
    "compare_configs",
    "compare_identities",
    "count_steps",
    "hold",
    "is_held",
    "is_in_use",
    "is_trained",
    "latest_info",
    "learn_rate_settings",
    "make_ramp",
    "names_in_run",
    "plan_private_training",
    "rates_of_settings",
    "read_checkpoint",
    "read_limit",
    "restore_model",
    "restore_random",
    "run_range_test",
    "steps_of",
    "sums_of_gradients",
    "train_while_improving",
    "what_is_not_covered",
]
