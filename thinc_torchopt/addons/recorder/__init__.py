"""A record of how hard each annotation is for the components in training: `[training.optimizer.recorder]`.

settings.py has the block, signals.py the numbers that are taken from a forward and backward pass; recorder.py collects
them in a run. The record itself is core/record.py; `spacy torchopt suspects` reads it.
"""

from typing import Final

from .settings import Recorder

STABILITY: Final = "provisional"
