"""Private training: the gradient of each example is clipped, noise is added, and the epsilon is counted.

Open book.py first: a batch from top to bottom. forms.py has the layers, records.py what they record. noise.py adds the
noise, accounting.py counts; plan.py finds the noise before a training. The part of a training run is
training/private.py.
"""

from .accounting import Account, History, epsilon_of, least_noise, most_steps
from .batcher import PoissonBatcher, poisson
from .book import Book, check_layers, clip_each_example
from .noise import Noise
from .plan import PrivacyPlan, plan_privacy
from .settings import BLOCK, Privacy, PrivacySettings, check_privacy
from .slots import slots_of

__all__ = [
    "BLOCK",
    "Account",
    "Book",
    "History",
    "Noise",
    "PoissonBatcher",
    "Privacy",
    "PrivacyPlan",
    "PrivacySettings",
    "check_layers",
    "check_privacy",
    "clip_each_example",
    "epsilon_of",
    "least_noise",
    "most_steps",
    "plan_privacy",
    "poisson",
    "slots_of",
]
