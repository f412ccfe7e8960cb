"""The values in metrics that a rule looks up, for logs and pictures."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .plain import plain

Path = tuple[str, ...]

MAX_ITEMS = 20  # of a list that are shown


def paths_in(text: str, names: Collection[str]) -> list[Path]:
    """The paths of the values that an expression uses: `loss["components"]["ner"]` is ("loss", "components", "ner").

    text (str): An expression that a `Rule` has accepted.
    names (Collection[str]): The metrics in it.
    """
    found: dict[Path, None] = {}

    def visit(node: ast.AST) -> None:
        keys: list[str] = []
        inner = node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "get":
            inner, keys = node.args[0], _constants(node.args[1])
            for part in node.args[1:]:
                visit(part)
        while isinstance(inner, ast.Subscript):
            constant = inner.slice.value if isinstance(inner.slice, ast.Constant) else None
            # An index or a computed key: the path ends above it.
            keys = [constant, *keys] if isinstance(constant, str) else []
            if not isinstance(inner.slice, ast.Constant):
                visit(inner.slice)
            inner = inner.value
        if isinstance(inner, ast.Name):
            if inner.id in names:
                found[(inner.id, *keys)] = None
            return
        for child in ast.iter_child_nodes(inner) if inner is node else [inner]:
            visit(child)

    visit(ast.parse(text, mode="eval").body)
    return list(found)


def _constants(node: ast.expr) -> list[str]:
    """The keys of a call of `get`, up to the first that is not a constant text."""
    keys: list[str] = []
    for part in node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]:
        if not isinstance(part, ast.Constant) or not isinstance(part.value, str):
            break
        keys.append(part.value)
    return keys


def value_at(values: Mapping[str, Any], path: Path) -> Any:
    """The value at a path. None: there is none."""
    value: Any = values
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def looked_up(values: Mapping[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """Plain copies of the values at some paths, nested as in `values`. Of a list the newest `MAX_ITEMS`."""
    found: dict[str, Any] = {}
    for path in sorted(paths, key=len):
        *outer, last = path
        if value_at(values, (path[0],)) is None or any(path[: i + 1] in paths for i in range(len(outer))):
            continue  # no value; or it is in another one
        place = found
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = _newest(plain(value_at(values, path)))
    return found


def _newest(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _newest(item) for key, item in value.items()}
    return value[-MAX_ITEMS:] if isinstance(value, list) else value
