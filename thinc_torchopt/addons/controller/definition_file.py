"""Read the YAML or JSON file of a controller definition, in bounded time and memory."""

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

from ...core.errors import ControllerError
from ...core.text_files import decode
from .evaluator import MAX_BITS

MAX_SIZE: Final = 100_000  # bytes of a file; characters of all texts in a definition
MAX_VALUES: Final = 4_000  # YAML's aliases repeat values
MAX_DEPTH: Final = 20
MAX_BRACKETS: Final = 100  # open at once, also in texts: YAML's scanner goes through all of them at each character


def read_file(path: str | Path, label: str) -> Any:
    """Read the content of a file.

    label (str): Its name in errors.
    RAISES (ControllerError): It can't be read, is neither YAML nor JSON, or is too large.
    """
    if not isinstance(path, (str, Path)):
        raise ControllerError(
            f"Can't use {label}: expected the path of a file, or a dict, found {type(path).__name__}."
        )
    try:
        text = decode(_content_of(path))
        _check_brackets(text)
        return _from_json(text) if Path(path).suffix.lower() == ".json" else _from_yaml(text)
    except OSError as error:
        raise ControllerError(
            f"Can't read {label}: expected a YAML or JSON file, found: {error.strerror or error}."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ControllerError(f"Can't read {label}: expected YAML or JSON, found: {str(error)[:1_000]}") from None


def check_size(content: Any, label: str) -> None:
    """RAISES (ControllerError): The content is too large, or contains itself."""
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
        if isinstance(item, int) and item.bit_length() > MAX_BITS:
            raise ControllerError(
                f"Can't use {label}: expected numbers of at most {MAX_BITS:,} bits, found a larger one."
            )
        if isinstance(item, Mapping):
            characters += sum(len(key) for key in item if isinstance(key, str))
            waiting += [(part, depth + 1) for part in item.values()]
        elif isinstance(item, (list, tuple)):
            waiting += [(part, depth + 1) for part in item]


def _content_of(path: str | Path) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("a folder, a pipe or a device instead of a file.")
    # O_NONBLOCK: don't wait, in case it has become a pipe.
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
        raise ValueError(f"duplicate keys: {short(twice)}")
    return found


def _from_yaml(text: str) -> Any:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        return yaml.load(text)
    except Exception as error:  # ruamel.yaml raises many kinds
        raise ValueError(str(error)) from None


class _Composer(Composer):
    """Limits the number of values. Merge keys are refused, as nested merges grow exponentially."""

    def __init__(self, loader: Any = None):
        super().__init__(loader)
        self._count = 0

    def compose_node(self, parent: Any, index: Any) -> Node:
        self._count += 1
        if self._count > 2 * MAX_VALUES:  # with keys
            raise ValueError(f"more than {MAX_VALUES:,} values.")
        node = super().compose_node(parent, index)
        if node.tag == "tag:yaml.org,2002:merge":
            raise ValueError("a merge key (<<), which is not allowed. Write out its content.")
        return node
