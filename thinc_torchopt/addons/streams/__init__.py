"""Learning from a stream of texts with labels: `spacy torchopt learn`.

learner.py learns; state.py has its settings, and what it saves and logs. source.py reads lines, records.py makes
examples of them and keeps some. backward.py computes gradients, and undoes a batch that failed. teaching.py tells
which components texts teach, and fills in what they leave open. scores.py scores texts, old and new labels apart.
"""

from typing import Final

from .learner import StreamLearner
from .source import LineReader
from .state import LearnSettings, LogRow

STABILITY: Final = "provisional"
