"""Loggers for spaCy's `[training.logger]`: the console (console.py), JSON lines (jsonl.py), TensorBoard (tensorboard.py)."""

from .loggers import ConsoleLogger, JSONLinesLogger, TensorBoardLogger

__all__ = [
    "ConsoleLogger",
    "JSONLinesLogger",
    "TensorBoardLogger",
]
