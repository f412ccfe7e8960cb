"""Loggers for spaCy's `[training.logger]`: the console (console.py), JSON lines (jsonl.py), TensorBoard
(tensorboard.py).
"""

from .console import ConsoleLogger
from .jsonl import JSONLinesLogger
from .tensorboard import TensorBoardLogger

__all__ = [
    "ConsoleLogger",
    "JSONLinesLogger",
    "TensorBoardLogger",
]
