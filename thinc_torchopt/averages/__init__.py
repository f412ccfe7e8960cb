"""Averages of params, thinc's and torch's, for evaluation and for what is saved. Open averages.py first.

settings.py is what a config says (`EMA`, `SWA`), kept.py what is kept of each param, use_params.py puts averages into
a pipeline for a while.
"""

from .averages import AveragedParams, Averages
from .settings import EMA, SWA, AverageSettings, chosen_averages
from .use_params import check_not_in_use, use_in_model, use_in_pipeline

__all__ = [
    "EMA",
    "SWA",
    "AverageSettings",
    "AveragedParams",
    "Averages",
    "check_not_in_use",
    "chosen_averages",
    "use_in_model",
    "use_in_pipeline",
]
