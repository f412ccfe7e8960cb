"""Short trainings of one config with different settings, to compare them. Open trial.py first.

trial.py runs one of them: a config shortened to a few steps, in its own pipeline. comparison.py tests whether a
difference between scores is more than chance. space.py defines the values of a search, and study.py runs it, by Optuna.
"""

from .comparison import Comparison, compare
from .space import Choice, Dimension, Range, Space, parse_space
from .study import AS_IT_IS, Found, Study
from .trial import Trial, run_trial, shorten

__all__ = [
    "AS_IT_IS",
    "Choice",
    "Comparison",
    "Dimension",
    "Found",
    "Range",
    "Space",
    "Study",
    "Trial",
    "compare",
    "parse_space",
    "run_trial",
    "shorten",
]
