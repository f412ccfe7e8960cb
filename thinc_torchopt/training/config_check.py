"""What a run was started with, as far as it decides what is learned: the config, the static vectors, and the labels.

A run that goes on must be the same in all of it: learned rows are those of a label by its place, and vectors are not
saved. So must several processes that train one pipeline.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
from spacy.language import Language
from spacy.util import registry

# What may be another when a run goes on. Paths do not change what is learned; what is at them is checked by the
# batches.
_MAY_CHANGE = (
    "paths.",
    "training.logger",
    "training.max_steps",
    "training.max_epochs",
    "training.patience",
    "training.eval_frequency",
    "training.optimizer.checkpoint",
    "training.optimizer.distributed",
    "training.optimizer.budget",
)
# What may be another in one of several processes: where its files are, and what only the first one has.
_MAY_DIFFER = ("paths.", "training.logger", "training.optimizer.checkpoint.path")

# Of which run a difference is told.
BEFORE_AND_NOW = ("before", "now")


def collect_values(nlp: Language) -> dict[str, str]:
    """All settings of a run, by their dotted path, as texts: with the values of variables, but for those that are
    paths: `total_steps = ${training.max_steps}` is another with another `max_steps`.
    """
    return _values(nlp, _MAY_CHANGE)


def collect_values_of_all(nlp: Language) -> dict[str, str]:
    """The same, of all that several processes must have alike."""
    return _values(nlp, _MAY_DIFFER)


def _values(nlp: Language, left_out: tuple[str, ...]) -> dict[str, str]:
    written = _settings(nlp.config, left_out)
    values = _settings(nlp.config.interpolate(), left_out)
    return {path: text if "${paths." in (text := written.get(path, "")) else value for path, value in values.items()}


def _settings(config: Mapping[str, Any], left_out: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}

    def collect(section: Mapping[str, Any], prefix: str) -> None:
        for key, value in section.items():
            path = f"{prefix}{key}"
            if isinstance(value, Mapping) and value:
                collect(value, f"{path}.")
            elif not path.startswith(left_out) and not (path.startswith("corpora.") and key == "path"):
                found[path] = repr(value)

    collect(config, "")
    return found


@dataclass
class Identity:
    """What is not in the config: the static vectors, in short, and the labels of each component in their order."""

    vectors: str
    labels: dict[str, list[str]]


def collect_identity(nlp: Language) -> Identity:
    vectors = nlp.vocab.vectors
    data = numpy.ascontiguousarray(vectors.data.get() if hasattr(vectors.data, "get") else vectors.data)
    keys = numpy.array(list(vectors.key2row.items()), dtype="uint64")
    checksum = zlib.crc32(keys.data, zlib.crc32(data.data)) if data.size else 0
    table = f"'{vectors.name}' of {' x '.join(map(str, data.shape))}, checksum {checksum:08x}" if data.size else "none"
    labels = {name: found for name, proc in nlp.components if (found := _labels(proc))}
    return Identity(table, labels)


def _labels(proc: Any) -> list[str]:
    """In the order of the rows that are learned for them."""
    for attr in ("move_names", "labels"):
        try:
            found = getattr(proc, attr, None)
        except Exception:  # a component may have none before it is used, and say so by any error
            found = None
        if found is not None and not callable(found):
            return [str(label) for label in found]
    return []


def collect_defaults(nlp: Language) -> set[str]:
    """The paths of settings that stand at the default of their function, their component's factory, or spaCy's own
    config.
    """
    found: set[str] = set()

    def look(section: Mapping[str, Any], defaults: Any, prefix: str) -> None:
        defaults = _defaults_of(section, defaults if isinstance(defaults, Mapping) else {})
        for key, value in section.items():
            if isinstance(value, Mapping) and value:
                look(value, defaults.get(key), f"{prefix}{key}.")
            elif key in defaults and _plain(value) == _plain(defaults[key]):
                found.add(f"{prefix}{key}")

    components = {name: nlp.get_pipe_meta(name).default_config for name in nlp.component_names}
    look(nlp.config.interpolate(), {**nlp.default_config, "components": components}, "")
    return found


def _defaults_of(section: Mapping[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a section: those of the function that it names, and what is the default for the whole of it."""
    names = {key: name for key, name in section.items() if key.startswith("@")}
    if names and any(around.get(key) != name for key, name in names.items()):
        around = {}  # of another function
    found = dict(around)
    for key, name in names.items():
        if registry.has(key[1:], name):
            params = inspect.signature(registry.get(key[1:], name)).parameters.values()
            found |= {param.name: param.default for param in params if param.default is not param.empty}
    return found


def _plain(value: Any) -> Any:
    """A config has lists only."""
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def compare_configs(
    before: Mapping[str, str],
    now: Mapping[str, str],
    at_default: Collection[str] = (),
    *,
    words: tuple[str, str] = BEFORE_AND_NOW,
    left_out: tuple[str, ...] = _MAY_CHANGE,
) -> list[str]:
    """What is different, a line each.

    at_default (Collection[str]): From `collect_defaults`. A setting that was not there before, or an empty section, and
        stands at its default is one that this version has and the one before had not: nothing has changed.
    words (tuple[str, str]): Of which run each is. left_out (tuple[str, ...]): With what paths begin that are not
        compared.
    """
    paths = (path for path in before.keys() | now.keys() if not path.startswith(left_out))
    changed = sorted(
        path
        for path in paths
        if before.get(path) != now.get(path) and (before.get(path, "{}") != "{}" or path not in at_default)
    )
    was, is_now = words
    return [f"{path}: {before.get(path, 'not there')} {was}, {now.get(path, 'not there')} {is_now}" for path in changed]


def compare_identities(before: Identity, now: Identity, *, words: tuple[str, str] = BEFORE_AND_NOW) -> list[str]:
    """What is different, a line each. words (tuple[str, str]): Of which run each is."""
    found = []
    was, is_now = words
    if before.vectors != now.vectors:
        found.append(f"static vectors: {before.vectors} {was}, {now.vectors} {is_now}")
    for name in sorted(before.labels.keys() | now.labels.keys()):
        old, new = before.labels.get(name, []), now.labels.get(name, [])
        if old != new:
            place = next((i for i, pair in enumerate(zip(old, new)) if pair[0] != pair[1]), min(len(old), len(new)))
            one, other = (repr(labels[place]) if place < len(labels) else "none" for labels in (old, new))
            found.append(
                f"labels of {name}: {len(old)} {was}, {len(new)} {is_now}; number {place}: {one} {was}, {other} "
                f"{is_now}"
            )
    return found
