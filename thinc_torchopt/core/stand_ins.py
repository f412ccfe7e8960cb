"""Forward functions of layers, in place of those of thinc and spaCy for a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from thinc.api import Model

from .host import forward_of, swap_forward


class StandIn:
    """A forward function that computes the same as another one, in less time.

    original (Callable): The one that it stands for.

    Public: `is_on`. Where it is off, it is the original: for copies of a model that outlive the use of it. Its own copies
    and pickles are the original: the pipeline goes where this package may be missing.
    """

    def __init__(self, original: Callable[..., Any]):
        update_wrapper(self, original)
        self.original = original
        self.is_on = True

    def take_place(self, node: Model) -> bool:
        """Give a node this function if it has the original. RETURNS: Whether it had."""
        if forward_of(node) is not self.original:
            return False
        swap_forward(node, self)
        return True

    def put_back(self, node: Model) -> None:
        """Give a node the original again, unless it has got another one meanwhile."""
        if forward_of(node) is self:
            swap_forward(node, self.original)

    def __call__(self, model: Model, X: Any, is_train: bool) -> tuple[Any, Callable[..., Any]]:
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return copy.copy, (self.original,)
