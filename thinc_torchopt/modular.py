"""The modular optimizer, for Python. It lives in addons/modular/."""

from .addons.modular import Block, Modular, Module, Regularizer

__all__ = ["Block", "Modular", "Module", "Regularizer"]
