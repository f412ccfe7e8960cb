"""Private training: the gradient of each example is clipped, noise is added, and the epsilon is counted.

Open book.py first: a batch from top to bottom. forms.py has the layers, records.py what they record. noise.py adds the
noise, accounting.py counts. The part of a training run is training/private.py.
"""

from .accounting import epsilon_of, least_noise, most_steps
from .batcher import PoissonBatcher, poisson
from .book import Book, clip_each_example
from .noise import Noise
from .settings import BLOCK, Privacy
from .slots import slots_of

__all__ = [
    "BLOCK",
    "Book",
    "Noise",
    "PoissonBatcher",
    "Privacy",
    "clip_each_example",
    "epsilon_of",
    "least_noise",
    "most_steps",
    "poisson",
    "slots_of",
]
