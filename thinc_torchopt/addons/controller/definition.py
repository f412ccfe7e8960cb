"""The definition of a controller: read a YAML or JSON file or a dict, check it, and build its objects.

One error lists all faults, each with its place:


    controller_metrics:  [{name, class, arguments}]
    operations:          [{name, class, arguments}]
    controllers:         [{name, triggers, rule, operations, patience, config, cooldown, max_firings}]
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any, Final, Union

from ...core.errors import ControllerError
from ...core.near_misses import did_you_mean
from ...core.registry import names_in, registry
from ...loop.events import ALIASES, COMMON, EVENTS
from . import run_metrics, series  # noqa: F401  # registers them
from .definition_file import check_size, read_file
from .evaluator import FUNCTIONS
from .metrics import Metric
from .operations import HFControls, Operation
from .rules import Rule
from .values import FIELDS, Keys, level_of, plain

MAX_FAULTS: Final = 20  # that a message shows

_KEYS: Final = ("controller_metrics", "operations", "controllers")
_PART: Final = ("name", "class", "arguments")
RULE_KEYS: Final = ("name", "triggers", "rule", "operations", "patience", "config", "cooldown", "max_firings")
_MODES: Final = ("reset_on_failure", "no_reset_on_failure")
_REGISTRIES: Final = {"controller_metrics": "controller_metrics", "operations": "controller_operations"}
FIRED: Final = "fired"  # the name under which rules see what has fired
_RESERVED: Final = FUNCTIONS | FIELDS | {FIRED}

Source = Union[str, Path, Mapping[str, Any]]


@dataclass(frozen=True)
class DefinitionPart:
    """A metric or an operation. arguments (dict): As in the definition."""

    instance: Any
    kind: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Patience:
    """A rule fires after it has held more than `threshold` times. resets (bool): In a row."""

    threshold: int
    resets: bool


@dataclass(frozen=True)
class ControllerSpec:
    """One controller.

    actions (list[tuple[str, str]]): Names of operations with their actions.
    cooldown (int): Steps to wait after firing.
    max_firings (int | None): Fires at most this often. None: no limit.
    log_level (int | None): Level of Python's logging for each firing. None: not set.
    """

    name: str
    triggers: list[str]
    rule: Rule
    actions: list[tuple[str, str]]
    patience: Patience | None
    cooldown: int
    max_firings: int | None
    log_level: int | None


@dataclass(frozen=True)
class Definition:
    """A definition as objects. label (str): Its name in errors."""

    label: str
    metrics: dict[str, DefinitionPart]
    operations: dict[str, DefinitionPart]
    controllers: list[ControllerSpec]


def load(source: Source, label: str | None = None, places: Mapping[str, str] = {}) -> Definition:
    """Read and check a definition.

    source (str | Path | Mapping): Path of a YAML or JSON file, or its content.
    label (str | None), places (Mapping): For errors: its name; and other words for the places of its parts, such as
        "rules.stop" for "controllers[0]".
    RAISES (ControllerError): It can't be read, or has errors. One message lists all of them.
    """
    return _Reader(label or label_of(source), places).definition(read(source))


def read(source: Source) -> Mapping[str, Any]:
    """Read a definition, without checks of its keys. RAISES (ControllerError): It can't be read, or has no keys."""
    if isinstance(source, Mapping):
        return source
    content = read_file(source, label := label_of(source))
    if not isinstance(content, Mapping):
        check_size(content, label)
        raise ControllerError(f"Can't use {label}: expected the keys {', '.join(_KEYS)}, found {short(content)}.")
    return content


def label_of(source: Source) -> str:
    return "the controller definition" + ("" if isinstance(source, Mapping) else f" {str(source)!r}")


class _Reader:
    """Reads a definition, and collects faults with their places."""

    def __init__(self, label: str, places: Mapping[str, str]):
        self._label = label
        self._places = places
        self._faults: list[str] = []

    def definition(self, content: Mapping[str, Any]) -> Definition:
        check_size(content, self._label)
        if "controller-metrics" in content:
            if "controller_metrics" in content:
                self._fault("controller-metrics", "'controller_metrics' has the same meaning; remove one of them")
            content = {
                "controller_metrics" if key == "controller-metrics" else key: value for key, value in content.items()
            }
        self._check_keys("", content, _KEYS)
        metrics, metric_names = self._parts(content, "controller_metrics", Metric)
        known = {
            name: getattr(metrics[name].instance, "keys", None) if name in metrics else None for name in metric_names
        }
        operations, operation_names = self._parts(content, "operations", Operation)
        for name in ("hfcontrols", "control"):
            if name not in operation_names:
                operations[name] = DefinitionPart(HFControls(), "HFControls", {})
        for i, item in enumerate(_list_of(content.get("operations"))):
            if isinstance(item, Mapping) and item.get("name") in list(operations):
                operation = operations[item["name"]].instance
                with self._noting(f"operations[{i}].arguments"):
                    if hasattr(operation, "prepare"):
                        operation.prepare(known)
        known[FIRED] = {name: keys_of_fired() for name in _names_in(content, "controllers")}
        controllers = []
        names: set[str] = set()
        if "controllers" not in content:
            self._fault("the top", "the key 'controllers' is missing")
        elif content["controllers"] is None or content["controllers"] == []:
            self._fault("controllers", f"expected a list of at least one controller, found {content['controllers']}")
        for i, item in self._items(content, "controllers", RULE_KEYS, ("name", "triggers", "rule", "operations")):
            place = f"controllers[{i}]"
            self._name(place, item, names)
            if (spec := self._controller(place, item, known, operations, operation_names)) is not None:
                controllers.append(spec)
        named = {text.partition(".")[0] for text in _named_actions(content)}
        for i, item in enumerate(_list_of(content.get("operations"))):
            if isinstance(item, Mapping) and item.get("name") in list(operations) and item["name"] not in named:
                self._fault(f"operations[{i}]", f"no controller uses the operation '{item['name']}'")
        if self._faults:
            raise ControllerError(f"Can't use {self._label}: {list_faults(self._faults)}")
        return Definition(self._label, metrics, operations, controllers)

    def _fault(self, place: str, text: str) -> None:
        part, dot, key = place.partition(".")
        if part in self._places:  # a block of the config has arguments beside the name of the class
            place = self._places[part] + ("" if key in ("arguments", "class") else dot + key)
        self._faults.append(f"{place}: {text[:1_000]}{'' if text.endswith('?') else '.'}")

    @contextmanager
    def _noting(self, place: str) -> Iterator[None]:
        """Collect an error as a fault."""
        try:
            yield
        except Exception as error:
            self._fault(place, str(error).rstrip(".") or type(error).__name__)

    def _near(self, found: Any, known: Collection[str]) -> str:
        """A suggestion for a wrong name, as the end of a fault. Only for the first faults, which are shown: it is
        slow.
        """
        near = did_you_mean(found, known) if len(self._faults) < MAX_FAULTS else ""
        return near and f".{near}"

    # ------------------------------------------------------------------ metrics and operations

    def _parts(
        self, content: Mapping[str, Any], section: str, base: type
    ) -> tuple[dict[str, DefinitionPart], set[str]]:
        """Metrics or operations by name; and all names, also of those that could not be built."""
        known = _names_of(section)
        found: dict[str, DefinitionPart] = {}
        names: set[str] = set()
        before: dict[str, Any] = {}
        for i, item in self._items(content, section, _PART, ("name", "class")):
            place = f"{section}[{i}]"
            name = self._name(place, item, names, is_metric=base is Metric)
            kind = item.get("class")
            if "class" not in item:
                continue
            if isinstance(kind, type):  # of a block of the config
                cls, kind = kind, kind.__name__
            elif kind not in known:
                advice = self._near(kind, known) or f"; there are {', '.join(known)}"
                self._fault(f"{place}.class", f"expected the name of a registered class, found {short(kind)}{advice}")
                continue
            else:
                cls = None
                with self._noting(f"{place}.class"):
                    cls = getattr(registry, _REGISTRIES[section]).get(kind)
            if cls is None:
                continue
            with self._noting(f"{place}.arguments"):
                arguments = _arguments_of(item.get("arguments"))
                instance = _build(cls, kind, arguments, base)
                if base is Metric and hasattr(instance, "prepare"):
                    instance.prepare({other: before.get(other) for other in names if other != name})
                if name is not None:
                    found[name] = DefinitionPart(instance, kind, arguments)
                    before[name] = instance
        return found, names

    # ------------------------------------------------------------------ controllers

    def _controller(
        self,
        place: str,
        item: Mapping[str, Any],
        metrics: Mapping[str, Keys | None],
        operations: Mapping[str, DefinitionPart],
        operation_names: Collection[str],
    ) -> ControllerSpec | None:
        """RETURNS (ControllerSpec | None): None: it has faults."""
        count = len(self._faults)
        triggers = self._texts(place, item, "triggers")
        for i, trigger in enumerate(triggers):
            if trigger not in EVENTS:
                advice = self._near(trigger, EVENTS) or f"; there are {', '.join(EVENTS)}"
                self._fault(f"{place}.triggers[{i}]", f"expected an event, found {short(trigger)}{advice}")
            elif trigger in triggers[:i]:
                self._fault(f"{place}.triggers[{i}]", f"the event {trigger!r} is listed twice; remove one of them")
        rule = None
        if "rule" in item:
            with self._noting(f"{place}.rule"):
                rule = Rule(item["rule"], metrics, metrics)
        actions = []
        for i, text in enumerate(self._texts(place, item, "operations")):
            operation, _, action = text.partition(".")
            known = sorted(operation_names | operations.keys()) if isinstance(operation_names, set) else []
            if operation in operations:
                with self._noting(f"{place}.operations[{i}]"):
                    _check_action(operations[operation].instance, operation, action)
                    actions.append((operation, action))
            elif operation not in operation_names:
                self._fault(
                    f"{place}.operations[{i}]",
                    f"expected operation.action, found {short(text)}{self._near(operation, known) or '.'} Operations "
                    f"are {', '.join(known)}",
                )
        settings = self._section(place, item, "config", ("trigger_log_level",))
        name = settings.get("trigger_log_level")
        if (level := level_of(name)) is None and "trigger_log_level" in settings:
            self._fault(
                f"{place}.config.trigger_log_level",
                f"expected debug, info, warning, error or critical, found {short(name)}",
            )
        patience = self._patience(place, item)
        cooldown = self._whole(f"{place}.cooldown", item.get("cooldown", 0), 0)
        max_firings = self._whole(f"{place}.max_firings", item["max_firings"], 1) if "max_firings" in item else None
        if len(self._faults) > count or rule is None or cooldown is None or not isinstance(item.get("name"), str):
            return None
        return ControllerSpec(item["name"], triggers, rule, actions, patience, cooldown, max_firings, level)

    def _patience(self, place: str, item: Mapping[str, Any]) -> Patience | None:
        if item.get("patience") is None:
            return None
        settings = self._section(place, item, "patience", ("patience_threshold", "mode"))
        threshold = self._whole(f"{place}.patience.patience_threshold", settings.get("patience_threshold", 1), 0)
        mode = settings.get("mode", "reset_on_failure")
        if mode not in _MODES:
            self._fault(
                f"{place}.patience.mode",
                f"expected {' or '.join(_MODES)}, found {short(mode)}{self._near(mode, _MODES)}",
            )
        return None if threshold is None else Patience(threshold, mode == "reset_on_failure")

    # ------------------------------------------------------------------ forms

    def _items(
        self, content: Mapping[str, Any], section: str, keys: Collection[str], needed: Collection[str]
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The dicts in a list, with their positions."""
        items = content.get(section)
        if items is not None and not isinstance(items, (list, tuple)):
            self._fault(section, f"expected a list, found {short(items)}")
        for i, item in enumerate(_list_of(items)):
            if not isinstance(item, Mapping):
                self._fault(f"{section}[{i}]", f"expected the keys {', '.join(keys)}, found {short(item)}")
                continue
            self._check_keys(f"{section}[{i}]", item, keys)
            for key in needed:
                if key not in item:
                    self._fault(f"{section}[{i}]", f"the key '{key}' is missing")
            yield i, item

    def _check_keys(self, place: str, item: Mapping[str, Any], keys: Collection[str]) -> None:
        for key in item:
            if key not in keys:
                self._fault(
                    place or "the top",
                    f"expected the keys {', '.join(keys)}, found {short(key)}{self._near(key, keys)}",
                )

    def _name(self, place: str, item: Mapping[str, Any], names: set[str], *, is_metric: bool = False) -> str | None:
        """Check the name of an item, and collect it. RETURNS (str | None): The name; that of a metric as rules write
        it, where a-b is a subtraction. None: it is invalid.
        """
        if "name" not in item:
            return None
        name = item["name"]
        if not isinstance(name, str) or not _is_name(name):
            self._fault(
                f"{place}.name",
                "expected a name of at most 100 characters, without dots and without spaces around it, in quotes, "
                f"found {short(name)}",
            )
            return None
        if is_metric and not _is_usable(name := name.replace("-", "_")):
            self._fault(
                f"{place}.name",
                f"expected a name that rules can use (a to z, A to Z, digits, _, and - which rules write as _; without "
                f"_ at the start or __, and none of {', '.join(sorted(_RESERVED))}), found {short(item['name'])}",
            )
            return None
        if name in names:
            self._fault(f"{place}.name", f"the name {short(name)} is used twice; rename one of them")
            return None
        names.add(name)
        return name

    def _texts(self, place: str, item: Mapping[str, Any], key: str) -> list[str]:
        if key not in item:
            return []
        values = item[key]
        if not isinstance(values, (list, tuple)) or not values or not all(isinstance(one, str) for one in values):
            self._fault(f"{place}.{key}", f"expected a list of at least one text, found {short(values)}")
            return []
        return list(values)

    def _section(self, place: str, item: Mapping[str, Any], key: str, keys: Collection[str]) -> Mapping[str, Any]:
        section = item.get(key)
        if section is not None and not isinstance(section, Mapping):
            self._fault(f"{place}.{key}", f"expected the keys {', '.join(keys)}, found {short(section)}")
        if not isinstance(section, Mapping):
            return {}
        self._check_keys(f"{place}.{key}", section, keys)
        return section

    def _whole(self, place: str, value: Any, at_least: int) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            self._fault(place, f"expected a whole number of at least {at_least}, found {short(value)}")
            return None
        return int(value)


def list_faults(faults: Sequence[str]) -> str:
    """Faults as the end of a message: their number, and the first of them."""
    count, more = len(faults), len(faults) - MAX_FAULTS
    lines = [f"- {fault}" for fault in faults[:MAX_FAULTS]] + [f"and {more:,} more"] * (more > 0)
    return "\n".join([f"found {count:,} fault{'s' * (count > 1)}.", *lines])


def _list_of(items: Any) -> list[Any]:
    return list(items) if isinstance(items, (list, tuple)) else []


def keys_of_fired() -> Keys:
    """Keys of a controller in `fired`."""
    return dict.fromkeys(("times", "step", "steps_since"))


def _names_in(content: Mapping[str, Any], section: str) -> list[str]:
    items = [item.get("name") for item in _list_of(content.get(section)) if isinstance(item, Mapping)]
    return [name for name in items if isinstance(name, str)]


def _named_actions(content: Mapping[str, Any]) -> list[str]:
    """All `operation.action` that controllers name, also controllers with faults."""
    lists = [item.get("operations") for item in _list_of(content.get("controllers")) if isinstance(item, Mapping)]
    return [text for texts in lists for text in _list_of(texts) if isinstance(text, str)]


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 100 and name.isprintable() and name == name.strip() and "." not in name


def _is_usable(name: str) -> bool:
    return (
        name.isascii()
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("_")
        and "__" not in name
        and name not in _RESERVED
    )


# ---------------------------------------------------------------------- classes


def _names_of(section: str) -> list[str]:
    return names_in(getattr(registry, _REGISTRIES[section]))


def _arguments_of(arguments: Any) -> dict[str, Any]:
    if arguments is not None and not (
        isinstance(arguments, Mapping) and all(isinstance(key, str) for key in arguments)
    ):
        raise ValueError(f"expected arguments by name, found {short(arguments)}")
    return plain(arguments or {}, is_strict=True)


def _build(cls: Any, kind: str, arguments: dict[str, Any], base: type) -> Any:
    """Build a metric or an operation, and check it. RAISES (Exception): It can't be used."""
    if not isinstance(cls, type):
        raise TypeError(f"expected '{kind}' to be a class, found {type(cls).__name__}")
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        known = [*inspect.signature(cls).parameters]
        near = next(filter(None, (did_you_mean(name, known) for name in arguments if name not in known)), "")
        raise TypeError(
            f"expected the arguments of '{kind}' ({', '.join(known) or 'none'}), found others: {error}.{near}"
        ) from None
    instance = cls(**plain(arguments))
    if base is Metric:
        events = getattr(instance, "events", ())
        if not events or isinstance(events, str) or not all(event in EVENTS for event in events):
            raise ValueError(f"expected '{kind}' to have `events` among {', '.join(EVENTS)}, found {short(events)}")
        compute = _check_method(kind, "compute", getattr(instance, "compute", None))
        _check_carried(kind, "compute()", compute[1:], ("values",), events)  # the first is the name of the event
        _check_carried(kind, "reads", getattr(instance, "reads", None) or (), (), EVENTS)
        if not instance.validate():
            raise ValueError(f"the validate() of '{kind}' refuses these arguments")
    return instance


def _check_method(kind: str, name: str, method: Any) -> list[str]:
    """RETURNS (list[str]): The names of its arguments."""
    arguments = list(inspect.signature(method).parameters.values()) if callable(method) else []
    if all(argument.kind is not argument.VAR_KEYWORD for argument in arguments):
        raise TypeError(f"'{kind}' must have a method {name}(..., **kwargs)")
    return [one.name for one in arguments if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def _check_carried(
    kind: str, place: str, asked: Collection[str], more: Collection[str], events: Collection[str]
) -> None:
    """Refuse names that no event carries: they would never have a value.

    place (str): Where they stand. more (Collection[str]): Names that have a value on all events.
    """
    carried = list(dict.fromkeys(name for event in EVENTS if event in events for name in EVENTS[event]))
    known = {*carried, *COMMON, *more}
    known.update(alias for alias, name in ALIASES.items() if name in known)
    for name in asked:
        if name not in known:
            raise TypeError(
                f"expected names in its {place} that an event of '{kind}' carries ({', '.join([*carried, *COMMON])}), "
                f"found '{name}'.{did_you_mean(name, known)}"
            )


def _check_action(operation: Any, name: str, action: str) -> None:
    """RAISES (Exception): The operation has no such action, or can't run it."""
    actions = sorted(method for method in dir(operation) if method.startswith("should_") and method != "should_")
    if action not in actions:
        raise ValueError(
            f"expected an action of '{name}', found {short(action)}.{did_you_mean(action, actions)} It has: "
            f"{', '.join(actions) or 'none'}."
        )
    asked = _check_method(name, action, getattr(operation, action))
    _check_carried(name, f"{action}()", asked, ("event_name", "control_name", "firing", "values"), EVENTS)
    if hasattr(operation, "validate") and not operation.validate(action):
        raise ValueError(f"'{name}' can't run the action {short(action)} with its arguments")
