"""Loggers for spaCy's `[training.logger]`: the console (console.py), JSON lines and TensorBoard (files.py).

Whoever imports spaCy loads all loggers: its default config names one that it has under another name, and its registry
lists all of them then. So a logger imports the loop only when it is set up.
"""

from .console import ConsoleLogger
from .files import JSONLinesLogger, TensorBoardLogger
