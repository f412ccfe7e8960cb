"""Compare the config, static vectors and labels of runs.

They must be the same when a run is resumed, and in all processes that train one pipeline: a label's weights are found
by its position, and vectors are not saved.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
from confection import Config
from spacy.language import Language
from spacy.pipeline import EditTreeLemmatizer

from ..core.attachments import Attachment, paths_that_may_change
from ..core.config_checks import sections_of

# Settings that may change when a run is resumed. The data behind paths is checked by the checksum of its batches.
MAY_CHANGE = (
    "paths.",
    "training.logger",
    "training.max_steps",
    "training.max_epochs",
    "training.patience",
    "training.eval_frequency",
)
# Settings that may differ between processes: the paths of files, and settings that only rank 0 uses.
_MAY_DIFFER = ("paths.", "training.logger", "training.optimizer.checkpoint.path")

_PATHS = "${paths."

# How the two runs are called in messages.
BEFORE_AND_NOW = ("before", "now")


def collect_values(nlp: Language, attachments: Mapping[str, Attachment] = MappingProxyType({})) -> dict[str, str]:
    """The settings of a run that must not change when it is resumed, as text, by their dotted paths.

    Variables are filled in, except paths: `total_steps = ${training.max_steps}` changes with `max_steps`.

    attachments (Mapping): Those of the optimizer.
    """
    blocks = paths_that_may_change(attachments, nlp.config["training"]["optimizer"])
    values = _values(nlp, MAY_CHANGE)
    return {
        path: value
        for path, value in values.items()
        if not any(path == block or path.startswith((f"{block}.", f"{block},")) for block in blocks)
    }


def collect_values_of_all(nlp: Language) -> dict[str, str]:
    """The same for the settings that must be equal in all processes."""
    return _values(nlp, _MAY_DIFFER)


def _values(nlp: Language, left_out: tuple[str, ...]) -> dict[str, str]:
    # Labels are compared as the components have them.
    left_out += tuple(f"initialize.components.{name}.labels" for name, proc in nlp.components if _labels(proc))
    written = _settings(nlp.config, left_out)
    values = _settings(nlp.config.interpolate(), left_out)
    return {path: text if _PATHS in (text := written.get(path, "")) else value for path, value in values.items()}


def _settings(config: Mapping[str, Any], left_out: tuple[str, ...]) -> dict[str, str]:
    """All settings as text; and the order of blocks that a registered function of the optimizer gets as a dict: of
    param groups the later one wins, and the parts of a schedule follow one another. Elsewhere, and of a function's
    arguments, the order means nothing.
    """
    found: dict[str, str] = {}

    def collect(section: Mapping[str, Any], prefix: str, *, is_argument: bool = False) -> None:
        is_function = any(key.startswith("@") for key in section)
        if is_argument and not is_function and prefix.startswith("training.optimizer."):
            found[f"{prefix[:-1]}, order"] = ", ".join(section)
        for key, value in section.items():
            path = f"{prefix}{key}"
            if isinstance(value, Mapping) and value:
                collect(value, f"{path}.", is_argument=is_function)
            elif not path.startswith(left_out) and not (path.startswith("corpora.") and key == "path"):
                found[path] = repr(value)

    collect(config, "")
    return found


def task_of(config: Config) -> dict[str, str]:
    """The pipeline of a config and its training texts, by dotted paths. A run with others is no repetition.

    config (Config): Interpolated.
    """
    corpus = config["training"]["train_corpus"]
    found = {f"nlp.{key}": repr(config["nlp"][key]) for key in ("lang", "pipeline")}
    for section in sections_of({"corpora": config["corpora"]}):
        if f"{section.path}.".startswith(f"{corpus}.") and isinstance(path := section.block.get("path"), str):
            # A relative one may be of another folder.
            found[f"{section.path}.path"] = str(Path(path).resolve()) if Path(path).exists() else path
    return found


@dataclass
class Identity:
    """A summary of the static vectors, and the labels of each component in order."""

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
    """The labels of a component, in the order of their weights."""
    if isinstance(proc, EditTreeLemmatizer):  # its labels are numbers, in the order in which it first saw the trees
        return [proc.trees.tree_to_str(tree) for tree in proc.labels]
    for attr in ("move_names", "labels"):
        try:
            found = getattr(proc, attr, None)
        except Exception:  # a component may raise anything before it has labels
            found = None
        if found is not None and not callable(found):
            return [str(label) for label in found]
    return []


def collect_label_data(nlp: Language) -> dict[str, str]:
    """By component, its labels as [initialize.components] takes them, and as `spacy init labels` writes them: JSON."""
    found = {}
    for name, proc in nlp.components:
        with suppress(Exception):  # as above; or they are no JSON
            if data := getattr(proc, "label_data", None):
                found[name] = json.dumps(data, ensure_ascii=False)
    return found


def compare_configs(
    before: Mapping[str, str], now: Mapping[str, str], *, words: tuple[str, str] = BEFORE_AND_NOW
) -> list[str]:
    """List the settings that differ, one line each.

    words (tuple[str, str]): How the two runs are called.

    A variable of [paths] in only one of them stands for any value, such as that in the config of a saved pipeline.
    """
    was, is_now = words
    return [
        f"{path}: {before.get(path, 'not there')} {was}, {now.get(path, 'not there')} {is_now}"
        for path in sorted(before.keys() | now.keys())
        if before.get(path) != now.get(path)
        and not (path in before and path in now and (_PATHS in before[path]) != (_PATHS in now[path]))
    ]


def compare_identities(before: Identity, now: Identity, *, words: tuple[str, str] = BEFORE_AND_NOW) -> list[str]:
    """List the differences, one line each. words (tuple[str, str]): How the two runs are called."""
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


def moved_labels(before: Identity, now: Identity) -> list[str]:
    """The components in which a label of both has another position: it would get the weights of another label."""
    found = []
    for name in before.labels.keys() & now.labels.keys():
        places = {label: place for place, label in enumerate(now.labels[name])}
        if any(places.get(label, place) != place for place, label in enumerate(before.labels[name])):
            found.append(name)
    return sorted(found)
