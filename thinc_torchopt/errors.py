"""Errors and warnings, for Python. They live in core/errors.py, which draws their tree."""

from .core.errors import *  # noqa: F403
