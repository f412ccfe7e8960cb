"""Short trainings of one config with different settings, to compare them. Open trial.py first.

trial.py runs one of them: a config shortened to a few steps, in its own pipeline. comparison.py halves the development
data, to choose a model on one half and score it on the other, and tests whether a difference between scores is more
than chance. study.py has a search through values, by Optuna. lr_finder.py is the learning rate range test.
"""

from .comparison import Comparison, Sentences, compare, part_of, size_of_part
from .lr_finder import RangeTest, learn_rate_settings, make_ramp, run_range_test
from .study import AS_IT_IS, Choice, Space, Study, TrialRecord, parse_space
from .trial import WRITES, TrialResult, begin_training, run_trial, shorten
