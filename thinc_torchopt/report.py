"""Reports on trainings, for notebooks and scripts. They live in addons/report/."""

from .addons.report import Report, read_report

__all__ = ["Report", "read_report"]
