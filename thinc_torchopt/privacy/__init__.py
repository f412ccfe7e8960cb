"""Private training: the gradient of each example is clipped, noise is added, and the epsilon is counted.

Open book.py first: a batch from top to bottom. forms.py has the layers, records.py what they record. noise.py adds the
noise, accounting.py plans it and counts. The part of a training run is training/private.py.
"""

from .accounting import (
    Account,
    PrivacyHistory,
    PrivacyPlan,
    epsilon_of,
    least_noise,
    most_steps,
    plan_privacy,
)
from .book import Book, check_layers, clip_each_example
from .noise import Noise
from .settings import BLOCK, PoissonBatcher, Privacy, poisson
from .slots import slots_of

__all__ = [
    "BLOCK",
    "Account",
    "Book",
    "Noise",
    "PoissonBatcher",
    "Privacy",
    "PrivacyHistory",
    "PrivacyPlan",
    "check_layers",
    "clip_each_example",
    "epsilon_of",
    "least_noise",
    "most_steps",
    "plan_privacy",
    "poisson",
    "slots_of",
]
