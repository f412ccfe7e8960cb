"""Averages of params, for Python. They live in core/averages/."""

from .core.averages import EMA, SWA

__all__ = ["EMA", "SWA"]
