"""Federated training of a spaCy pipeline, over Flower: clients train on their own texts, a server averages.

Open pipeline.py first: a pipeline and one round of local training. weights.py has the weights that are exchanged,
agreement.py compares pipelines, and merges labels. server_step.py makes the new model of a round. results.py writes
results and the state of a run. messages.py makes and checks Flower's messages; client.py and server.py are Flower's
apps. They import Flower, which is an extra, by flower.py.
"""

from typing import Final

from .agreement import merge_labels
from .settings import Federated

STABILITY: Final = "experimental"
