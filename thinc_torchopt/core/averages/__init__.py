"""Averages of params, thinc's and torch's, for evaluation and for saved models. Open averages.py first.

settings.py has the settings of a config (`EMA`, `SWA`), use_params.py puts averages into a pipeline for a while.
"""

from .averages import AveragedParams, Averages
from .settings import EMA, SWA, AverageSettings, chosen_averages
from .use_params import check_not_in_use, check_param_not_in_use, is_in_place, is_in_use, use_in_model, use_in_pipeline
