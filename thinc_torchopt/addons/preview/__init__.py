"""Looks at a training before it begins. Commands print it, and notebooks show it.

description.py describes a training (`explain`): lines.py says what it does, costs.py what it costs, and the loop's
checks what may be a mistake. params.py lists all params, comparison.py compares recipes in short trainings. It knows
all add-ons.
"""

from .comparison import compare_recipes
from .description import explain
from .params import describe, params, tell_pipeline
