"""Rules in blocks of the config, as the definition that a file has:

    [training.optimizer.controller.metrics.dev]        controller_metrics: [{name: dev, class: EvalLoss}]
    [training.optimizer.controller.operations.cut]     operations: [{name: cut, class: ..., arguments: ...}]
    [training.optimizer.controller.rules.stop]         controllers: [{name: stop, rule: ..., ...}]

A block of rules can also be a definition, from `@controller_rules`. Its metrics and operations get the name of the
block before theirs, as several may have the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any, Final

from ...core.errors import ConfigError, ControllerError
from .metrics import Metric, RecordsArguments
from .named_rules import STANDARD
from .operations import Operation
from .rules import renamed

SECTION: Final = "[training.optimizer.controller]"
_KEYS = ("controller_metrics", "operations", "controllers")


@dataclass
class Blocks:
    """A definition made of blocks. places (dict): By the place of a part in it, the name of its block."""

    content: dict[str, list[Any]] = field(default_factory=lambda: {key: [] for key in _KEYS})
    places: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, item: Any, place: str) -> None:
        self.places[f"{key}[{len(self.content[key])}]"] = place
        self.content[key].append(item)


def blocks_of(metrics: Mapping[str, Any], operations: Mapping[str, Any], rules: Mapping[str, Any]) -> Blocks:
    """Make a definition of blocks of the config, resolved.

    RAISES (ControllerError): A block is of another kind.
    """
    found = Blocks()
    by_name = {name: rule for name, rule in rules.items() if isinstance(rule, Mapping) and "controllers" in rule}
    # Standard metrics first: those of the config may be windows over them.
    for name, rule in by_name.items():
        for metric in rule.get("controller_metrics", ()):
            known = [*metrics, *(one["name"] for one in found.content["controller_metrics"])]
            if _is_standard(metric) and metric["name"] not in known:
                found.add("controller_metrics", metric, f"rules.{name}")
    for name, metric in metrics.items():
        found.add("controller_metrics", _part(name, metric, Metric, "metrics"), f"metrics.{name}")
    for name, operation in operations.items():
        found.add("operations", _part(name, operation, Operation, "operations"), f"operations.{name}")
    for name, rule in rules.items():
        if name in by_name:
            _add_definition(found, name, rule, metrics)
        elif not isinstance(rule, Mapping):
            raise ControllerError(
                f"Can't use {SECTION[:-1]}.rules.{name}]: expected the keys rule, triggers and operations, or "
                f"@controller_rules, found {short(rule)}."
            )
        elif "name" in rule:
            raise ControllerError(f"Can't set 'name' in {SECTION[:-1]}.rules.{name}]: the block has it. Remove it.")
        else:
            found.add("controllers", {"name": name, **rule}, f"rules.{name}")
    return found


def _part(name: str, instance: Any, base: type[RecordsArguments], kind: str) -> dict[str, Any]:
    if not isinstance(instance, base):
        raise ControllerError(
            f"Can't use {SECTION[:-1]}.{kind}.{name}]: expected a block with @controller_{kind}, whose class is a "
            f"subclass of {base.__name__}, found {short(instance)}."
        )
    return {"name": name, "class": type(instance), "arguments": dict(instance.init_arguments)}


def _is_standard(metric: Any) -> bool:
    return STANDARD.get(metric["name"]) == {key: value for key, value in metric.items() if key != "name"}


def _add_definition(found: Blocks, block: str, rule: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Add the definition that a rule by name is."""
    place = f"rules.{block}"
    own = [metric for metric in rule.get("controller_metrics", ()) if not _is_standard(metric)]
    for metric in own:
        if metric["name"] in metrics:
            raise ConfigError(
                f"Can't use {SECTION[:-1]}.{place}]: it has a metric '{metric['name']}' of its own, as the config "
                "has. Rename that of the config."
            )
    prefix = re.sub(r"[\W_]+", "_", block, flags=re.ASCII).strip("_") or "rule"
    prefix = f"rule_{prefix}" if prefix[0].isdigit() else prefix
    known = {one["name"] for one in found.content["controller_metrics"]}
    names = {metric["name"]: f"{prefix}_{metric['name']}" for metric in own}
    if not known.isdisjoint(names.values()):  # the names of blocks differ in other characters alone
        names = {metric["name"]: f"{prefix}_{len(known)}_{metric['name']}" for metric in own}
    for metric in own:
        arguments = dict(metric.get("arguments", {}))
        if isinstance(arguments.get("of"), str):
            arguments["of"] = renamed(arguments["of"], names)
        found.add("controller_metrics", {**metric, "name": names[metric["name"]], "arguments": arguments}, place)
    operations = {one["name"]: f"{block}-{one['name']}" for one in rule.get("operations", ())}
    for operation in rule.get("operations", ()):
        found.add("operations", {**operation, "name": operations[operation["name"]]}, place)
    controllers = rule["controllers"]
    for controller in controllers:
        name = block if len(controllers) == 1 else f"{block}-{controller['name']}"
        actions = []
        for action in controller["operations"]:
            operation, dot, method = action.partition(".")
            actions.append(operations.get(operation, operation) + dot + method)
        text = renamed(controller["rule"], names)
        found.add("controllers", {**controller, "name": name, "rule": text, "operations": actions}, place)
