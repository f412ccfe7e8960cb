"""Several short trainings of one config with changes, to see which change is worth it. Open trial.py first.

trial.py runs one of them: the config shortened to a few steps, in a pipeline of its own. comparison.py says whether a
difference between scores is more than chance. space.py says which values of which settings a search tries, and study.py
searches, by Optuna.
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
