"""Looks at a training before it begins. Commands print it, and notebooks show it.

description.py describes a training (`explain`): lines.py says what it does, costs.py what it costs, and the loop's
checks what may be a mistake. params.py lists all params, comparison.py compares recipes in short trainings,
learning_curve.py amounts of texts. It knows all add-ons.
"""

from .comparison import compare_recipes
from .description import explain
from .learning_curve import draw_learning_curve
from .params import describe, params, tell_pipeline
