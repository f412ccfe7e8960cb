"""Data-parallel training of one pipeline in several processes, over torch.distributed. Open group.py first.

torch's launcher (torchrun, or `spacy torchopt train`) starts the processes, the *ranks*. group.py connects them, and
tells the launcher why one fails. reduce.py sums the gradients, and keeps params and random numbers equal. shard.py
splits the optimizer's state. settings.py is the block in the config.

ranks.py uses all of that in a run, and splits each batch and each evaluation. core/launched.py detects several
processes. torch.distributed is only imported if there are.
"""

from typing import Final

from .group import report_failure, wait_for_store
from .settings import Distributed

STABILITY: Final = "provisional"
