"""The definition of a controller: a YAML or JSON file, or the same as a dict. Read, checked, and made into objects.

Everything that is wrong is found at once, and stands in one error, each fault with its place:

    controller_metrics:  [{name, class, arguments}]
    operations:          [{name, class, arguments}]
    controllers:         [{name, triggers, rule, operations, patience, config, cooldown, max_firings}]
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as short
from typing import Any, Final, Union

import srsly

from ..errors import ControllerError
from .compiler import Keys
from .events import EVENTS
from .guard import FUNCTIONS
from .messages import FIELDS, level_of
from .metrics import Metric
from .operations import HFControls, Operation
from .parts import Part, arguments_of, build, check_action, is_registered, names_of, prepare, registered
from .rules import Rule

MAX_SIZE = 1_000_000  # bytes of a file
MAX_VALUES = 10_000  # in a definition; YAML can repeat what stands there once

_KEYS: Final = ("controller_metrics", "operations", "controllers")
_PART: Final = ("name", "class", "arguments")
_CONTROLLER: Final = ("name", "triggers", "rule", "operations", "patience", "config", "cooldown", "max_firings")
_MODES: Final = ("reset_on_failure", "no_reset_on_failure")
_RESERVED: Final = FUNCTIONS | FIELDS

Source = Union[str, Path, Mapping[str, Any]]


@dataclass(frozen=True)
class Patience:
    """A rule fires when it has held more than `threshold` times. resets (bool): In a row."""

    threshold: int
    resets: bool


@dataclass(frozen=True)
class ControllerSpec:
    """One controller.

    actions (list[tuple[str, str]]): Operations and their actions, by name.
    cooldown (int): For so many steps after it fired, it rests.
    max_firings (int | None): So often at most it fires.
    log_level (int | None): Of Python's logging, for each firing. None: the definition does not say.
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
    """What a definition says, as objects. label (str): Where it came from, for errors."""

    label: str
    metrics: dict[str, Part]
    operations: dict[str, Part]
    controllers: list[ControllerSpec]


def load(source: Source) -> Definition:
    """Read and check a definition.

    source (str | Path | Mapping): A YAML or JSON file, or what would stand in it.
    RAISES (ControllerError): It can't be read; or all that is wrong with it.
    """
    return _Reader(_label_of(source)).definition(read(source))


def read(source: Source) -> Any:
    """What stands in a file; nothing is checked yet. RAISES (ControllerError): It can't be read."""
    return source if isinstance(source, Mapping) else _read(source, _label_of(source))


def _label_of(source: Source) -> str:
    return "the controller definition" + ("" if isinstance(source, Mapping) else f" {str(source)!r}")


def _read(path: str | Path, label: str) -> Any:
    if not isinstance(path, (str, Path)):
        raise ControllerError(
            f"Can't use {label}: expected the path of a file, or a dict, found {type(path).__name__}."
        )
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_SIZE + 1)
        if len(content) > MAX_SIZE:
            raise ControllerError(f"Can't use {label}: expected at most {MAX_SIZE:,} bytes, found more.")
        text = content.decode("utf-8-sig")
        is_json = Path(path).suffix.lower() == ".json"
        return json.loads(text, object_pairs_hook=_without_repetitions) if is_json else srsly.yaml_loads(text)
    except OSError as error:
        raise ControllerError(
            f"Can't read {label}: expected a YAML or JSON file, found: {error.strerror or error}."
        ) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ControllerError):
            raise
        raise ControllerError(f"Can't read {label}: expected YAML or JSON, found: {str(error)[:1_000]}") from None


def _without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        twice = sorted({key for key, _ in pairs if [other for other, _ in pairs].count(key) > 1})
        raise ValueError(f"the keys {', '.join(twice)} more than once in the same place")
    return found


class _Reader:
    """Goes through a definition. What is wrong is noted with its place, and left out."""

    def __init__(self, label: str):
        self._label = label
        self._faults: list[str] = []

    def definition(self, content: Any) -> Definition:
        _check_size(content, self._label)
        if not isinstance(content, Mapping):
            raise ControllerError(
                f"Can't use {self._label}: expected the keys {', '.join(_KEYS)}, found {short(content)}."
            )
        if "controller-metrics" in content:
            if "controller_metrics" in content:
                self._fault("controller-metrics", "expected it once, found 'controller_metrics' as well")
            content = {
                "controller_metrics" if key == "controller-metrics" else key: value for key, value in content.items()
            }
        self._check_keys("", content, _KEYS)
        metrics, metric_names = self._parts(content, "controller_metrics", Metric, names_of("controller_metrics"))
        known = {
            name: getattr(metrics[name].instance, "keys", None) if name in metrics else None for name in metric_names
        }
        operations, operation_names = self._parts(content, "operations", Operation, names_of("controller_operations"))
        for name in ("hfcontrols", "control"):
            if name not in operation_names:
                operations[name] = Part(HFControls(), "HFControls", {})
        for i, item in enumerate(_list_of(content.get("operations"))):
            if isinstance(item, Mapping) and item.get("name") in list(operations):
                with self._noting(f"operations[{i}].arguments"):
                    prepare(operations[item["name"]].instance, known)
        controllers = []
        names: set[str] = set()
        for i, item in self._items(content, "controllers", _CONTROLLER, ("name", "triggers", "rule", "operations")):
            place = f"controllers[{i}]"
            self._check_name(place, item.get("name"), names)
            if (spec := self._controller(place, item, known, operations, operation_names)) is not None:
                controllers.append(spec)
        if self._faults:
            count = len(self._faults)
            raise ControllerError(
                f"Can't use {self._label}: found {count} fault{'s' * (count > 1)}.\n"
                + "\n".join(f"- {fault}" for fault in self._faults)
            )
        return Definition(self._label, metrics, operations, controllers)

    def _fault(self, place: str, text: str) -> None:
        self._faults.append(f"{place}: {text}.")

    @contextmanager
    def _noting(self, place: str) -> Iterator[None]:
        """Inside, an error is noted as a fault."""
        try:
            yield
        except Exception as error:
            text = str(error)[:1_000].rstrip(".") or type(error).__name__
            self._fault(place, text)

    # ------------------------------------------------------------------ metrics and operations

    def _parts(
        self, content: Mapping[str, Any], section: str, base: type, known: Callable[[], list[str]]
    ) -> tuple[dict[str, Part], set[str]]:
        """Metrics or operations by name; and all names, also of those that could not be made."""
        found: dict[str, Part] = {}
        names: set[str] = set()
        for i, item in self._items(content, section, _PART, ("name", "class")):
            place = f"{section}[{i}]"
            name = item.get("name")
            is_named = self._check_name(place, name, names, is_metric=base is Metric)
            kind = item.get("class")
            if "class" not in item:
                continue
            if not isinstance(kind, str) or not is_registered(section, kind):
                near = get_close_matches(str(kind), known(), n=3)
                advice = f"; near to it: {', '.join(near)}" if near else f"; there are {', '.join(known())}"
                self._fault(
                    f"{place}.class", f"expected the name of a class that is registered, found {short(kind)}{advice}"
                )
                continue
            cls = None
            with self._noting(f"{place}.class"):
                cls = registered(section, kind)
            if cls is None:
                continue
            with self._noting(f"{place}.arguments"):
                arguments = arguments_of(item.get("arguments"))
                instance = build(cls, kind, arguments, base)
                if is_named:
                    found[str(name)] = Part(instance, kind, arguments)
        return found, names

    # ------------------------------------------------------------------ controllers

    def _controller(
        self,
        place: str,
        item: Mapping[str, Any],
        metrics: Mapping[str, Keys | None],
        operations: Mapping[str, Part],
        operation_names: Collection[str],
    ) -> ControllerSpec | None:
        """None: something is wrong with it."""
        count = len(self._faults)
        triggers = self._texts(place, item, "triggers")
        for i, trigger in enumerate(triggers):
            if trigger not in EVENTS:
                self._fault(
                    f"{place}.triggers[{i}]",
                    f"expected an event, found {short(trigger)}; there are {', '.join(EVENTS)}",
                )
            elif trigger in triggers[:i]:
                self._fault(f"{place}.triggers[{i}]", f"expected each event once, found {trigger!r} again")
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
                    check_action(operations[operation].instance, operation, action)
                    actions.append((operation, action))
            elif operation not in operation_names:
                self._fault(
                    f"{place}.operations[{i}]",
                    f"expected operation.action, found {short(text)}; operations are {', '.join(known)}",
                )
        settings = self._section(place, item, "config", ("trigger_log_level",))
        name = settings.get("trigger_log_level")
        if (level := level_of(name)) is None and name is not None:
            self._fault(
                f"{place}.config.trigger_log_level",
                f"expected debug, info, warning, error or critical, found {short(name)}",
            )
        patience = self._patience(place, item)
        cooldown = self._whole(f"{place}.cooldown", item.get("cooldown", 0), 0)
        limit = item.get("max_firings")
        max_firings = None if limit is None else self._whole(f"{place}.max_firings", limit, 1)
        if len(self._faults) > count or rule is None or cooldown is None or not isinstance(item.get("name"), str):
            return None
        return ControllerSpec(item["name"], triggers, rule, actions, patience, cooldown, max_firings, level)

    def _patience(self, place: str, item: Mapping[str, Any]) -> Patience | None:
        if item.get("patience") is None:
            return None
        settings = self._section(place, item, "patience", ("patience_threshold", "mode"))
        threshold = self._whole(f"{place}.patience.patience_threshold", settings.get("patience_threshold", 1), -1)
        mode = settings.get("mode", "reset_on_failure")
        if mode not in _MODES:
            self._fault(f"{place}.patience.mode", f"expected {' or '.join(_MODES)}, found {short(mode)}")
        return None if threshold is None else Patience(threshold, mode == "reset_on_failure")

    # ------------------------------------------------------------------ forms

    def _items(
        self, content: Mapping[str, Any], section: str, keys: Collection[str], needed: Collection[str]
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The dicts in a list, each with its position."""
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
                    self._fault(f"{section}[{i}]", f"expected the key '{key}', found none")
            yield i, item

    def _check_keys(self, place: str, item: Mapping[str, Any], keys: Collection[str]) -> None:
        for key in item:
            if key not in keys:
                near = get_close_matches(str(key), keys, n=1)
                advice = f"; is '{near[0]}' meant?" if near else ""
                self._fault(place or "the top", f"expected the keys {', '.join(keys)}, found {short(key)}{advice}")

    def _check_name(self, place: str, name: Any, names: set[str], *, is_metric: bool = False) -> bool:
        """Note a name. RETURNS (bool): It is a good one."""
        if name is None:
            return False
        if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable() or "." in name:
            self._fault(
                f"{place}.name",
                f"expected a name of at most 100 characters and without dots, in quotes, found {short(name)}",
            )
            return False
        if is_metric and not _is_usable(name):
            self._fault(
                f"{place}.name",
                f"expected a name that rules can use (a to z, A to Z, digits and _, not _ at the start, nor __, and "
                f"none of {', '.join(sorted(_RESERVED))}), found {short(name)}",
            )
            return False
        if name in names:
            self._fault(f"{place}.name", f"expected a name of its own, found {short(name)} again")
            return False
        names.add(name)
        return True

    def _texts(self, place: str, item: Mapping[str, Any], key: str) -> list[str]:
        values = item.get(key, [])
        if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
            self._fault(f"{place}.{key}", f"expected a list of texts, found {short(values)}")
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


def _check_size(content: Any, label: str) -> None:
    """RAISES (ControllerError): There is too much, or it contains itself."""
    count, waiting = 0, [content]
    while waiting:
        item = waiting.pop()
        count += 1
        if count > MAX_VALUES:
            raise ControllerError(f"Can't use {label}: expected at most {MAX_VALUES:,} values, found more.")
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, (list, tuple)):
            waiting += item


def _list_of(items: Any) -> list[Any]:
    return list(items) if isinstance(items, (list, tuple)) else []


def _is_usable(name: str) -> bool:
    return (
        name.isascii()
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("_")
        and "__" not in name
        and name not in _RESERVED
    )
