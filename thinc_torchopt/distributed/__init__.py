"""Data-parallel training of one pipeline in several processes, over torch.distributed. Open group.py first.

torch's launcher (torchrun, or `spacy torchopt train`) starts the processes, the *ranks*. group.py connects them, and
names the rank that is missing when one dies; failures.py tells the launcher why. reduce.py sums the gradients, data.py
splits each batch, agree.py keeps params and random numbers equal, evaluation.py shares the evaluation, shard.py splits
the optimizer's state. addresses.py finds the network interface. run_settings/distributed.py is the block in the config.

training/ranks.py uses all of that in a run. ../launched.py detects several processes. torch.distributed is only
imported if there are.
"""

from ..run_settings import Distributed
from .agree import SharedSets, check_same_params, seed_of
from .data import deal
from .evaluation import sharing_pipe
from .failures import report_failure
from .group import Group, wait_for_store
from .reduce import FlatReduce
from .shard import Shards, check_can_be_split

__all__ = [
    "Distributed",
    "FlatReduce",
    "Group",
    "Shards",
    "SharedSets",
    "check_can_be_split",
    "check_same_params",
    "deal",
    "report_failure",
    "seed_of",
    "sharing_pipe",
    "wait_for_store",
]
