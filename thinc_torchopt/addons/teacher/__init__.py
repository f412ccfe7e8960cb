"""A teacher for a training: new labels without forgetting old ones, and small pipelines taught by large ones.

corpus.py is the reader of the training data: it fills in what is open (loop/filling.py) with the predictions of a
teacher (loop/teacher.py). texts.py reads texts that nobody has annotated.
"""

from typing import Final

from .corpus import TaughtCorpus
from .texts import count_pieces

STABILITY: Final = "provisional"
