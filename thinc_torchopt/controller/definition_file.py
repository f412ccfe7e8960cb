"""The file of a controller definition, YAML or JSON. To read it takes bounded time and memory, whatever is in it."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as short
from typing import Any, Final

from srsly.ruamel_yaml import YAML
from srsly.ruamel_yaml.composer import Composer
from srsly.ruamel_yaml.nodes import Node

from ..errors import ControllerError

MAX_SIZE: Final = 100_000  # bytes of a file; characters of all texts in a definition
MAX_VALUES: Final = 10_000  # YAML can repeat what stands there once
MAX_DEPTH: Final = 20
MAX_BRACKETS: Final = (
    100  # that are open at once, also in texts: YAML's scanner looks at each of them at each character
)


def read_file(path: str | Path, label: str) -> Any:
    """What stands in a file.

    label (str): What it is called in errors.
    RAISES (ControllerError): It is none, can't be read, or is too large.
    """
    if not isinstance(path, (str, Path)):
        raise ControllerError(
            f"Can't use {label}: expected the path of a file, or a dict, found {type(path).__name__}."
        )
    try:
        text = _content_of(path).decode("utf-8-sig")
        _check_brackets(text)
        return _from_json(text) if Path(path).suffix.lower() == ".json" else _from_yaml(text)
    except OSError as error:
        raise ControllerError(
            f"Can't read {label}: expected a YAML or JSON file, found: {error.strerror or error}."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ControllerError(f"Can't read {label}: expected YAML or JSON, found: {str(error)[:1_000]}") from None


def check_size(content: Any, label: str) -> None:
    """RAISES (ControllerError): There is too much, or it contains itself."""
    values, characters, waiting = 0, 0, [(content, 1)]
    while waiting:
        item, depth = waiting.pop()
        values += 1
        characters += len(item) if isinstance(item, str) else 0
        if values > MAX_VALUES or characters > MAX_SIZE or depth > MAX_DEPTH:
            raise ControllerError(
                f"Can't use {label}: expected at most {MAX_VALUES:,} values with {MAX_SIZE:,} characters, nested at "
                f"most {MAX_DEPTH} deep, found more."
            )
        if isinstance(item, Mapping):
            characters += sum(len(key) for key in item if isinstance(key, str))
            waiting += [(part, depth + 1) for part in item.values()]
        elif isinstance(item, (list, tuple)):
            waiting += [(part, depth + 1) for part in item]


def _content_of(path: str | Path) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("something else than a file, perhaps a folder, a pipe or a device.")
    # Should it be a pipe by now, nobody waits for it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        content = file.read(MAX_SIZE + 1)
    if len(content) > MAX_SIZE:
        raise ValueError(f"more than {MAX_SIZE:,} bytes.")
    return content


def _check_brackets(text: str) -> None:
    is_open = 0
    for letter in text:
        if letter in "[{":
            is_open += 1
            if is_open > MAX_BRACKETS:
                raise ValueError(f"more than {MAX_BRACKETS} open brackets.")
        elif letter in "]}":
            is_open = max(0, is_open - 1)


def _from_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_repetitions)


def _without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        twice = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"keys more than once in the same place: {short(twice)}")
    return found


def _from_yaml(text: str) -> Any:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        return yaml.load(text)
    except Exception as error:  # of many kinds
        raise ValueError(str(error)) from None


class _Composer(Composer):
    """Stops where there is too much. Merged keys could be merged again and again, each time into ten times as many."""

    def __init__(self, loader: Any = None):
        super().__init__(loader)
        self._count = 0

    def compose_node(self, parent: Any, index: Any) -> Node:
        self._count += 1
        if self._count > 2 * MAX_VALUES:  # with keys
            raise ValueError(f"more than {MAX_VALUES:,} values.")
        node = super().compose_node(parent, index)
        if node.tag == "tag:yaml.org,2002:merge":
            raise ValueError("a merge key (<<), which is not allowed. Write out what it stands for.")
        return node
