"""Loggers for `[training.logger]`, for Python. They live in addons/loggers/."""

from .addons.loggers import ConsoleLogger, JSONLinesLogger, TensorBoardLogger

__all__ = ["ConsoleLogger", "JSONLinesLogger", "TensorBoardLogger"]
