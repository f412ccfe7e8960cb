"""Learning from a stream of texts with labels: `spacy torchopt learn`.

learner.py learns, with the settings of settings.py; state.py is what it saves and logs. source.py reads lines,
records.py makes examples of them and keeps some. backward.py computes gradients, and undoes a batch that failed.
teaching.py tells which components texts teach, and fills in what they leave open. scores.py scores texts, old and new
labels apart.
"""

from typing import Final

from .learner import StreamLearner
from .settings import LearnSettings
from .source import LineReader
from .state import LogRow

STABILITY: Final = "provisional"

__all__ = [
    "LearnSettings",
    "LineReader",
    "LogRow",
    "StreamLearner",
]
