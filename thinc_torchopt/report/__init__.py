"""Pictures of trainings from their logs: one HTML file, or one picture."""

from .plots import check_picture, plot_range_test, plot_schedule
from .runs import read_runs
from .summary import facts_of, summarize
from .write import check_output, write_report

__all__ = [
    "check_output",
    "check_picture",
    "facts_of",
    "plot_range_test",
    "plot_schedule",
    "read_runs",
    "summarize",
    "write_report",
]
