"""The learning rates of torch's param groups. Start reading in writer.py, the only code that writes their `lr`.

records.py: optimizers and groups as the writer left them, and changes by other code.
new_params.py: the rates of params that are added in mid-training.
"""

from .new_params import NEW_PARAMS_FACTOR, Warmup, add_new_params, warm_up_new_params
from .records import GroupRecord, OptimizerRecord, RateScale, RateSource, TorchGroup, check_rate, rate_of
from .writer import RateWriter, WriterState, warn_at_step, writer_of
