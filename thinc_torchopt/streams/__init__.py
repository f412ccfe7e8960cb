"""Learning from a stream of texts with labels: `spacy torchopt learn`.

learner.py learns and saves; source.py reads lines, records.py makes examples of them and keeps some.
"""

from .learner import LearnSettings, LogRow, StreamLearner, read_log
from .records import Memory, read_examples
from .source import Line, LineReader, Place

__all__ = [
    "LearnSettings",
    "Line",
    "LineReader",
    "LogRow",
    "Memory",
    "Place",
    "StreamLearner",
    "read_examples",
    "read_log",
]
