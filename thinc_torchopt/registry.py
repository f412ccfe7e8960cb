"""The registries of optimizers, modules, metrics and operations. They live in core/registry.py."""

from .core.registry import registry

__all__ = ["registry"]
