"""Federated training of a spaCy pipeline, over Flower: clients train on their own texts, a server averages.

Open house.py first: a pipeline and one round of local training. weights.py has the weights that are exchanged,
agreement.py compares pipelines, labels.py and settings.py are for users. messages.py builds and checks Flower's
messages; client.py and server.py are Flower's apps; strategy.py runs the server's rounds, server_step.py its step;
results.py writes and reads results. messages.py and the apps import Flower, which is an extra, by flower.py.
"""

from .labels import merge_labels
from .settings import Federated

__all__ = ["Federated", "merge_labels"]
