"""Reports on trainings from their logs: one HTML file or one picture. In a notebook: `show`.

log_file.py reads a log, runs.py joins logs to runs, figures.py draws them, page.py writes the report. plots.py has the
pictures of other commands, style.py their common style.
"""

from .log_file import COUNTS, read_history
from .page import check_output, show, write_report
from .plots import Point, check_picture, plot_range_test, plot_schedule, plot_study
from .runs import LoggedRun, facts_of, read_runs, summarize

__all__ = [
    "COUNTS",
    "LoggedRun",
    "Point",
    "check_output",
    "check_picture",
    "facts_of",
    "plot_range_test",
    "plot_schedule",
    "plot_study",
    "read_history",
    "read_runs",
    "show",
    "summarize",
    "write_report",
]
