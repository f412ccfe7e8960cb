"""Reports in a notebook. They live in addons/report/."""

from .addons.report import show

__all__ = ["show"]
