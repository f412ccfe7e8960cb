"""Metrics and operations as a definition names them: found in the registries, built, checked."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from importlib.metadata import entry_points
from reprlib import repr as short
from typing import Any, Final

from ..registry import registry
from . import run_metrics  # noqa: F401  # registers them
from .events import EVENTS
from .metrics import Metric
from .plain import plain


@dataclass(frozen=True)
class Part:
    """A metric or an operation. arguments (dict): As they stand in the definition."""

    instance: Any
    kind: str
    arguments: dict[str, Any]


_REGISTRIES: Final = {"controller_metrics": "controller_metrics", "operations": "controller_operations"}


def names_of(section: str) -> list[str]:
    """What there is in a registry. Entry points are not loaded: one of them may fail."""
    found = copy(getattr(registry, _REGISTRIES[section]))
    found.entry_points = False
    return sorted({*found.get_all(), *(point.name for point in entry_points(group="_".join(found.namespace)))})


def registered(section: str, kind: str) -> Any:
    return getattr(registry, _REGISTRIES[section]).get(kind)


def arguments_of(arguments: Any) -> dict[str, Any]:
    if arguments is not None and not (
        isinstance(arguments, Mapping) and all(isinstance(key, str) for key in arguments)
    ):
        raise ValueError(f"expected arguments by name, found {short(arguments)}")
    return plain(arguments or {}, is_strict=True)


def build(cls: Any, kind: str, arguments: dict[str, Any], base: type) -> Any:
    """Build a metric or an operation, and check that it can be used. RAISES (Exception): It can't."""
    if not isinstance(cls, type):
        raise TypeError(f"expected '{kind}' to be a class, found {type(cls).__name__}")
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        known = ", ".join(inspect.signature(cls).parameters) or "none"
        raise TypeError(f"expected the arguments of '{kind}' ({known}), found others: {error}") from None
    instance = cls(**plain(arguments))
    if base is Metric:
        events = getattr(instance, "events", ())
        if not events or isinstance(events, str) or not all(event in EVENTS for event in events):
            raise ValueError(f"expected '{kind}' to have `events` among {', '.join(EVENTS)}, found {short(events)}")
        _check_method(kind, "compute", getattr(instance, "compute", None))
        if not instance.validate():
            raise ValueError(f"expected arguments with which '{kind}' works, found some that its validate() refuses")
    return instance


def _check_method(kind: str, name: str, method: Any) -> None:
    if not callable(method) or all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(method).parameters.values()):
        raise TypeError(f"expected '{kind}' to have a method {name}(..., **kwargs), found none")


def prepare(operation: Any, metrics: Collection[str]) -> None:
    if hasattr(operation, "prepare"):
        operation.prepare(metrics)


def check_action(operation: Any, name: str, action: str) -> None:
    """RAISES (Exception): The operation has no such action, or can't take it."""
    actions = sorted(method for method in dir(operation) if method.startswith("should_") and method != "should_")
    if action not in actions:
        raise ValueError(
            f"expected an action of '{name}' ({', '.join(actions) or 'it has none'}), found {short(action)}"
        )
    _check_method(name, action, getattr(operation, action))
    if hasattr(operation, "validate") and not operation.validate(action):
        raise ValueError(f"expected an action that '{name}' can take as it is set up, found {short(action)}")
