"""Federated training of a spaCy pipeline, over Flower: clients train on their own texts, a server averages.

Open house.py first: a pipeline and one round of local training. weights.py is what travels, agreement.py what must be
the same everywhere, labels.py and settings.py are what users see of it. messages.py puts it into Flower's messages and
checks what comes out of them; client.py and server.py are Flower's apps, strategy.py is what the server does in a
round, server_step.py the step that it makes, results.py what it writes and how that is read. messages.py and the apps
import Flower, which is an extra, by flower.py.
"""

from .labels import merge_labels
from .settings import Federated

__all__ = ["Federated", "merge_labels"]
