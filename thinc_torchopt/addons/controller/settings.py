"""The settings of a controller: a definition, or blocks of the config, which become one:

    [training.optimizer.controller.metrics.dev]        controller_metrics: [{name: dev, class: EvalLoss}]
    [training.optimizer.controller.operations.cut]     operations: [{name: cut, class: ..., arguments: ...}]
    [training.optimizer.controller.rules.stop]         controllers: [{name: stop, rule: ..., ...}]

A block of rules can also be a definition, from `@controller_rules`. Its metrics and operations get the name of the
block before theirs, as several may have the same.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short
from typing import Any, ClassVar, Dict, Final, Optional, Union

from ...core.attachments import Attachment
from ...core.checks import Section
from ...core.errors import ConfigError, ControllerError
from .controller import TrainerController
from .definition import label_of, read
from .metrics import Metric, RecordsArguments
from .named_rules import STANDARD
from .operations import LearnRateControl, Operation
from .rules import renamed

SECTION: Final = "[training.optimizer.controller]"
_KEYS = ("controller_metrics", "operations", "controllers")


class ControllerSettings(Attachment):
    """Rules that steer a run, read and checked. `build` makes a controller for one run.

    content (Mapping), label (str), places (Mapping): As for `definition.load`.

    Public: `definition` (as objects), `names_groups` (whether it changes the learning rates of only some param groups),
        `remembers_scores` (whether a metric reads scores or development losses).
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.TrainerController.v1", or in Python the result of '
        "thinc_torchopt.controller.trainer_controller()"
    )
    comes_first: ClassVar[bool] = True
    own_block: ClassVar[str] = "controller"
    decides_alike: ClassVar[bool] = True

    def __init__(self, content: Mapping[str, Any], label: str, places: Mapping[str, str] = {}):
        self._content, self._label, self._places = content, label, places
        controller = self.build()  # finds all faults
        self.definition, reads = controller.definition, controller.reads("on_evaluate")
        self.remembers_scores = reads is None or not reads.isdisjoint(("scores", "score", "dev_losses"))
        acting = [part.instance for part in self.definition.operations.values()]
        self.names_groups = any(isinstance(one, LearnRateControl) and one.groups != ["*"] for one in acting)

    def join(self, run: Any) -> Sequence[Any]:
        from .run_rules import Rules

        rules = Rules(self.build(), run.optimizer)
        rules.join(run)
        return [rules]

    def build(self) -> TrainerController:
        return TrainerController(self._content, label=self._label, places=self._places)


def trainer_controller(
    definition: Optional[Union[str, Path, Dict[str, Any]]] = None,
    metrics: Dict[str, Any] = {},
    operations: Dict[str, Any] = {},
    rules: Dict[str, Any] = {},
) -> ControllerSettings:
    """Steer `spacy train` by rules. Registered as `thinc-torchopt.TrainerController.v1`.

    definition (str | Path | dict | None): Path of a YAML or JSON file, relative to the current folder; or its content.
        See docs/controller.md. None: the rules are blocks of the config.
    metrics (dict[str, Metric]): Blocks with `@controller_metrics`, in order.
    operations (dict[str, Operation]): Blocks with `@controller_operations`.
    rules (dict[str, dict]): Blocks with the keys of a controller, or with `@controller_rules`.
    RAISES (ControllerError): The definition has errors. One message lists all of them. (ConfigError): An argument is no
        dict.
    """
    for name, given in (("metrics", metrics), ("operations", operations), ("rules", rules)):
        Section(SECTION).section(name, given)
    if definition is None:
        blocks = blocks_of(metrics, operations, rules)
        if not rules:
            raise ControllerError(f"Can't use {SECTION}: expected a 'definition', or a block 'rules', found neither.")
        return ControllerSettings(blocks.content, SECTION, blocks.places)
    if metrics or operations or rules:
        raise ControllerError(
            f"Can't use {SECTION}: expected a 'definition', or the blocks 'metrics', 'operations' and 'rules', found "
            "both. Remove one."
        )
    return ControllerSettings(read(definition), label_of(definition))


# ---------------------------------------------------------------------- blocks of the config


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
