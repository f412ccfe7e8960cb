"""Several short trainings of one config with changes, to see which change is worth it. Open trial.py first.

trial.py runs one of them: the config shortened to a few steps, in a pipeline of its own. comparison.py says whether a
difference between scores is more than chance.
"""

from .comparison import Comparison, compare
from .trial import Trial, run_trial, shorten

__all__ = ["Comparison", "Trial", "compare", "run_trial", "shorten"]
