"""Short trainings of one config with different settings, to compare them. Open trial.py first.

trial.py runs one of them: a config shortened to a few steps, in its own pipeline. comparison.py tests whether a
difference between scores is more than chance. study.py has a search through values, by Optuna.
"""

from .comparison import Comparison, compare
from .study import AS_IT_IS, Choice, NumberRange, Space, Study, TrialRecord, parse_space
from .trial import TrialResult, run_trial, shorten

__all__ = [
    "AS_IT_IS",
    "Choice",
    "Comparison",
    "NumberRange",
    "Space",
    "Study",
    "TrialRecord",
    "TrialResult",
    "compare",
    "parse_space",
    "run_trial",
    "shorten",
]
