"""From a class to the function that is registered for it: confection reads and checks the signatures of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def registered(cls: type[T]) -> Callable[..., T]:
    """A function that builds a class, with the arguments, annotations, defaults and docstring of the class."""

    def create(*args: Any, **kwargs: Any) -> T:
        return cls(*args, **kwargs)

    hints = get_type_hints(cls.__init__)
    _, *params = inspect.signature(cls.__init__).parameters.values()
    params = [param.replace(annotation=hints[param.name]) for param in params]
    create.__signature__ = inspect.Signature(params, return_annotation=cls)  # type: ignore[attr-defined]
    create.__annotations__ = {param.name: param.annotation for param in params} | {"return": cls}
    create.__name__ = create.__qualname__ = f"create_{cls.__name__}"
    create.__doc__ = cls.__doc__
    return create
