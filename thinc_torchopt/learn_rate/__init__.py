"""The learning rates of torch's param groups. Start reading in writer.py, the only code that writes their `lr`.

optimizer_record.py, group_record.py: optimizers and groups as the writer left them, and changes by other code.
new_params.py: the rates of params that are added in mid-training.

controller.py, policies.py, by_name.py and watchdog.py are the writer for a loop of your own, `LearnRateController`.
They use the other files, which don't know them.
"""

from .group_record import GroupRecord, rate_of
from .new_params import NEW_PARAMS_FACTOR, Warmup, add_new_params, warm_up_new_params
from .optimizer_record import OptimizerRecord
from .writer import RateWriter, WriterState, warn_at_step, writer_of

__all__ = [
    "NEW_PARAMS_FACTOR",
    "GroupRecord",
    "OptimizerRecord",
    "RateWriter",
    "Warmup",
    "WriterState",
    "add_new_params",
    "rate_of",
    "warm_up_new_params",
    "warn_at_step",
    "writer_of",
]
