"""Pictures of trainings from their logs: one HTML file, or one picture."""

from .runs import Run, read_runs
from .summary import facts_of, summarize
from .write import check_output, write_report

__all__ = ["Run", "check_output", "facts_of", "read_runs", "summarize", "write_report"]
