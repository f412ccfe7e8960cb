"""Objects that remember what they were made of."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import wraps
from typing import Any


class Given:
    """Remembers the arguments of its constructor, so that each run can build its own from that of the config.

    Public: `given` (Mapping[str, Any]: the arguments by name).
    """

    given: Mapping[str, Any] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _remembering(cls.__init__)  # type: ignore[method-assign]
        for name in inspect.signature(cls).parameters:
            # confection would take it for that of the argument.
            cls.__annotations__.pop(name, None)


def _remembering(init: Any) -> Any:
    @wraps(init)
    def remember(self: Given, *args: Any, **kwargs: Any) -> None:
        if "given" not in vars(self):  # the constructor of a base class has other arguments
            _, *names = inspect.signature(init).parameters
            self.given = dict(zip(names, args)) | kwargs
        init(self, *args, **kwargs)

    return remember
