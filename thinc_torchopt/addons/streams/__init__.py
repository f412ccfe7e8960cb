"""Learning from a stream of texts with labels: `spacy torchopt learn`.

learner.py learns and saves; rows.py writes its rows. source.py reads lines, records.py makes examples of them and keeps
some. backward.py computes gradients, undo.py undoes a batch that failed. teaching.py fills in what texts leave open.
scores.py scores texts, watched.py old and new labels apart.
"""

from typing import Final

from .learner import LearnSettings, LogRow, StreamLearner
from .source import LineReader

STABILITY: Final = "provisional"

__all__ = [
    "LearnSettings",
    "LineReader",
    "LogRow",
    "StreamLearner",
]
