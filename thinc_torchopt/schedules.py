"""The functions behind `@schedules`, for Python. They live in core/schedules/."""

from .core.schedules import (
    inverse_sqrt,
    one_cycle,
    plateau,
    polynomial,
    sequence,
    warmup_cosine,
    warmup_linear,
    warmup_stable_decay,
)

__all__ = [
    "inverse_sqrt",
    "one_cycle",
    "plateau",
    "polynomial",
    "sequence",
    "warmup_cosine",
    "warmup_linear",
    "warmup_stable_decay",
]
