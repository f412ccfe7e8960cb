"""Functions whose results a notebook shows. They live in addons/preview/ and addons/report/."""

from .addons.preview import compare_recipes, explain, params
from .addons.report import read_report as report

__all__ = ["compare_recipes", "explain", "params", "report"]
