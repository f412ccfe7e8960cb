"""Reports on trainings: one HTML file, one picture, or a cell of a notebook. report.py has the object behind them.

log_file.py reads a log, runs.py joins logs to runs. labels.py reads what was trained, and the scores of its labels.
kinds.py compares predictions with annotations, a class for each kind of them; errors.py finds the worst errors, and
suspects.py annotations that may be wrong.
figures.py draws runs and errors; page.py makes the page, or one picture. plots.py has the pictures of other
commands, style.py their common style.
"""

from .page import check_output
from .plots import Point, check_picture, plot_learning_curve, plot_range_test, plot_schedule, plot_study
from .report import Report, read_report
from .runs import logs_in, with_others
from .style import check_place, save_whole
from .suspects import Suspect, Suspects, read_suspects
