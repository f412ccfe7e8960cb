"""The registries `@torch_optimizers`, `@gradient_modules`, `@regularizers`, `@controller_metrics`,
`@controller_operations` and `@controller_rules`.

They belong to thinc's registry class, so the config systems of thinc, spaCy and others see them. The entry point group
of each is its name after `thinc_`: other packages can add their own.

Registered objects are functions, or dataclasses that check themselves: confection reads and checks the signatures of
these, and not those of other classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from importlib.metadata import EntryPoint
from inspect import Parameter
from typing import Any, get_type_hints

import catalogue
from thinc.api import registry

for _name in (
    *("torch_optimizers", "gradient_modules", "regularizers"),
    *("controller_metrics", "controller_operations", "controller_rules"),
):
    if not hasattr(registry, _name):
        registry.create(_name, entry_points=True)


def names_in(one: Any) -> list[str]:
    """The names in a registry. Entry points are not loaded: it may take long, and one of them may fail."""
    found = copy(one)
    found.entry_points = False
    return sorted({*found.get_all(), *(point.name for point in entry_points("_".join(found.namespace)))})


def entry_points(group: str) -> list[EntryPoint]:
    """Of the packages that are installed, as spaCy sees them: reading them again would take long."""
    found: Any = catalogue.AVAILABLE_ENTRY_POINTS
    return [*(found.select(group=group) if hasattr(found, "select") else found.get(group, ()))]


def arguments_of(cls: type) -> list[Parameter]:
    """The arguments of a class, with their annotations as objects."""
    init = cls.__init__  # type: ignore[misc]
    hints = get_type_hints(init)
    _, *arguments = inspect.signature(init).parameters.values()
    return [argument.replace(annotation=hints.get(argument.name, argument.annotation)) for argument in arguments]


def signed(
    function: Callable[..., Any], name: str, arguments: Sequence[Parameter], returns: type, doc: str | None
) -> Callable[..., Any]:
    """A function of keyword arguments, with the name, arguments and docstring that confection should see."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.__annotations__ = {argument.name: argument.annotation for argument in arguments} | {"return": returns}
    function.__signature__ = inspect.Signature(arguments, return_annotation=returns)  # type: ignore[attr-defined]
    return function


__all__ = ["arguments_of", "entry_points", "names_in", "registry", "signed"]
