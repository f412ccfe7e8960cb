"""Types of attributes that users set. They live in core/types.py."""

from .core.types import BatchSize

__all__ = ["BatchSize"]
