"""Private training: the gradient of each example is clipped, noise is added, and the epsilon is counted.

Open book.py first: a batch from top to bottom. forms.py has the layers, records.py what they record. noise.py adds the
noise, accounting.py plans it and counts. The part of a training run is private_run.py.
"""

from typing import Final

from .accounting import Account, PrivacyHistory, PrivacyPlan, epsilon_of, least_noise, most_steps, plan_privacy
from .book import clip_each_example
from .noise import Noise
from .settings import PoissonBatcher, Privacy, poisson

STABILITY: Final = "experimental"

__all__ = [
    "Account",
    "Noise",
    "PoissonBatcher",
    "Privacy",
    "PrivacyHistory",
    "PrivacyPlan",
    "clip_each_example",
    "epsilon_of",
    "least_noise",
    "most_steps",
    "plan_privacy",
    "poisson",
]
