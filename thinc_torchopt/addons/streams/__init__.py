"""Learning from a stream of texts with labels: `spacy torchopt learn`.

learner.py learns, with the settings of settings.py; state.py is what it saves, rows.py what it logs. source.py reads
lines, records.py makes examples of them and keeps some. backward.py computes gradients, undo.py undoes a batch that
failed. annotated.py tells which components texts teach, teaching.py fills in what they leave open. scores.py scores
texts, watched.py old and new labels apart.
"""

from typing import Final

from .learner import StreamLearner
from .rows import LogRow
from .settings import LearnSettings
from .source import LineReader

STABILITY: Final = "provisional"

__all__ = [
    "LearnSettings",
    "LineReader",
    "LogRow",
    "StreamLearner",
]
