"""Federated training of a spaCy pipeline, over Flower: clients train on their own texts, a server averages.

Open house.py first: a pipeline and one round of local training. weights.py has the weights that are exchanged,
agreement.py compares pipelines, labels.py is for users. rounds.py runs the rounds of the server: average.py averages
models, by one of the strategies.py, or private_average.py by client_privacy.py; guard.py compares updates,
server_step.py applies the result. results.py writes and reads results and the state of a
run. messages.py builds and checks Flower's messages; client.py and server.py are Flower's apps. They import Flower,
which is an extra, by flower.py.
"""

from .client_privacy import ClientPrivacy
from .guard import UpdateGuard
from .labels import merge_labels
from .settings import Federated
from .strategies import FlowerStrategy

__all__ = ["ClientPrivacy", "Federated", "FlowerStrategy", "UpdateGuard", "merge_labels"]
