"""The algorithms of `@torch_optimizers`, and all that differs between classes of torch optimizers.

Open algorithm.py first, then facts.py: a row for each class that is special. torch_classes.py has torch's own classes
and those of the library pytorch-optimizer, torchao.py those of that library, thinc.py thinc's arithmetic for the
drop-ins. state_fit.py resizes the state of a param that grows; state_beside.py handles state that belongs to no param.
"""

from .algorithm import (
    AN_ALGORITHM,
    IN_ALGORITHM,
    Algorithm,
    StateSizes,
    as_plain,
    example_state,
    may_move,
    small_matrix,
)
from .facts import FAR, Roles, check_states, library_of, usual_rates
from .state_beside import StateBeside, collect_beside, map_tensors, restore_beside
from .state_fit import Fill, Kind, check_kind, check_on_growth, fit_param_state, fresh_state
from .thinc import ThincAdam, ThincSGD, check_numbers
from .torch_classes import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
    create,
)
from .torchao import Adam4bit, Adam8bit, AdamFp8, AdamW4bit, AdamW8bit, AdamWFp8, Quantized
