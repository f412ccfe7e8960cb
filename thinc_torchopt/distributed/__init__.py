"""Several processes that train one pipeline: data parallel over torch.distributed. Open group.py first, then reduce.py.

torch's launcher (torchrun, or `spacy torchopt train`) starts the processes, the *ranks*. group.py brings them together
and says which one is missing when one dies; failures.py tells the launcher why. reduce.py sums the gradients, data.py
deals each batch, agree.py keeps the ranks at the same params and random numbers, evaluation.py shares the evaluation,
shard.py splits the optimizer's state. addresses.py finds the network between them. settings.py is the block in the
config.

What a run does with all that is in training/ranks.py. Whether there are several processes: ../launched.py. Nothing here
imports torch.distributed before there are.
"""

from .agree import SharedSets, check_same_params, seed_of
from .data import deal
from .evaluation import sharing_pipe
from .failures import report_failure
from .group import Group, wait_for_store
from .reduce import FlatReduce
from .settings import Distributed
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
