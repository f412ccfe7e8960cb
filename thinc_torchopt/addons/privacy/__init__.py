"""Private training: the gradient of each example is clipped, noise is added, and the epsilon is counted.

Open book.py first: a batch from top to bottom. forms.py has the layers, records.py what they record. noise.py adds the
noise, accounting.py plans it and counts. The part of a training run is private_run.py.
"""

from typing import Final

from .accounting import epsilon_of, least_noise, most_steps
from .book import clip_each_example
from .private_run import Privacy, poisson

STABILITY: Final = "experimental"
