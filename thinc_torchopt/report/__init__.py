"""Pictures of trainings from their logs: one HTML file, or one picture."""

from .log_file import COUNTS, read_history
from .plots import Panel, Point, check_picture, plot_firings, plot_range_test, plot_schedule, plot_study, plot_trials
from .runs import read_runs
from .summary import facts_of, summarize
from .write import check_output, write_report

__all__ = [
    "COUNTS",
    "Panel",
    "Point",
    "check_output",
    "check_picture",
    "facts_of",
    "plot_firings",
    "plot_range_test",
    "plot_schedule",
    "plot_study",
    "plot_trials",
    "read_history",
    "read_runs",
    "summarize",
    "write_report",
]
