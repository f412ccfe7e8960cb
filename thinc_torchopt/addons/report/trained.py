"""A trained pipeline, its corpora and its config: from the first line of a log, or from the folder of the pipeline.

The pipeline is not loaded for it. Both may come from anyone: what has another form than expected is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confection import Config

from ...core.errors import ConfigError
from .log_file import printable

# Settings of [training] that say little about a training, or are its score.
_MINOR = ("logger", "score_weights", "train_corpus", "dev_corpus", "gpu_allocator", "before_to_disk", "before_update")
_MAX_LINES = 80


@dataclass(frozen=True)
class Component:
    """A component. n_labels (int): Of all its labels; `labels` may have the first ones only."""

    name: str
    factory: str
    architecture: str
    labels: list[str]
    n_labels: int
    is_frozen: bool


@dataclass(frozen=True)
class Trained:
    """A trained pipeline, or one in training.

    lang (str): Its language.
    config (dict): The blocks of the config that say how, interpolated: at least "training", if it is known.
    scores (dict): Those of the saved pipeline, as meta.json has them. Empty: there is no such file.
    """

    lang: str
    components: list[Component]
    config: dict[str, Any]
    scores: dict[str, Any] = field(default_factory=dict)

    def corpus(self, name: str) -> str:
        """The path of a corpus. name (str): "train" or "dev". RETURNS (str): Empty: its reader has none."""
        place = _block(self.config, "training").get(f"{name}_corpus")
        section: Any = self.config
        for part in place.split(".") if isinstance(place, str) else ("corpora", name):
            section = _block(section, part)
        path = section.get("path")
        return path if isinstance(path, str) else ""

    def reader(self, name: str) -> str:
        """The registered name of the reader of a corpus."""
        found = _block(_block(self.config, "corpora"), name).get("@readers")
        return found if isinstance(found, str) else ""

    @property
    def main_lines(self) -> str:
        """The main lines of the config."""
        training = _block(self.config, "training")
        kept = _without_nothing({name: value for name, value in training.items() if name not in _MINOR})
        try:
            lines = Config({"training": kept}).to_str(interpolate=False).splitlines()
        except Exception:  # confection's own kinds, for what is not a config
            return ""
        shown = [printable(line) for line in lines[:_MAX_LINES]]
        return "\n".join([*shown, f"# and {len(lines) - _MAX_LINES} more lines"] if len(lines) > _MAX_LINES else shown)


def read_line(found: Mapping[str, Any]) -> Trained:
    """Read what the first line of a log says. found (Mapping): The value of "trained"."""
    config = found.get("config")
    config = config if isinstance(config, dict) else {}
    frozen = _frozen(config)
    components = []
    for one in found["components"] if isinstance(found.get("components"), list) else ():
        if isinstance(one, dict) and isinstance(one.get("name"), str):
            labels, n = _texts(one.get("labels")), one.get("n_labels")
            n = n if isinstance(n, int) and n >= len(labels) else len(labels)
            name, factory, architecture = (_text(one.get(key)) for key in ("name", "factory", "architecture"))
            components.append(Component(name, factory, architecture, labels, n, name in frozen))
    return Trained(_text(found.get("lang")), components, config)


def read_folder(folder: Path) -> Trained:
    """Read what meta.json and config.cfg of a trained pipeline say.

    RAISES (ConfigError): The folder has no such files, or they are damaged.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf8"))
        config = Config().from_str((folder / "config.cfg").read_text(encoding="utf8"), interpolate=False)
    except OSError as error:
        inside = [name for name in ("model-best", "model-last") if (folder / name / "meta.json").is_file()]
        hint = (
            f"Give the one in it: {folder / inside[0]}."
            if inside
            else "Give the folder that spacy train has saved, such as training/model-best."
        )
        raise ConfigError(
            f"Can't read the trained pipeline {folder}: expected a folder with meta.json and config.cfg, found "
            f"{'a file' if folder.is_file() else 'one without'}. {hint}"
        ) from error
    except Exception as error:  # of json, and confection's own kinds
        raise ConfigError(f"Can't read the trained pipeline {folder}: {error} Train or copy it again.") from error
    with suppress(Exception):  # variables are shown as they are
        config = config.interpolate()
    meta = meta if isinstance(meta, dict) else {}
    all_labels, frozen = _block(meta, "labels"), _frozen(config)
    components = []
    for name in _texts(_block(config, "nlp").get("pipeline")):
        section = _block(_block(config, "components"), name)
        labels = _texts(all_labels.get(name))
        architecture = _text(_block(section, "model").get("@architectures"))
        factory = _text(section.get("factory"))
        components.append(Component(name, factory, architecture, labels, len(labels), name in frozen))
    kept = {name: config.get(name, {}) for name in ("paths", "corpora", "training")}
    return Trained(_text(meta.get("lang")), components, kept, _block(meta, "performance"))


def _frozen(config: Mapping[str, Any]) -> list[str]:
    return _texts(_block(config, "training").get("frozen_components"))


def _block(config: Any, name: str) -> Any:
    found = config.get(name) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _without_nothing(section: dict[str, Any]) -> dict[str, Any]:
    """A section without what is null or empty."""
    kept = {name: _without_nothing(value) if isinstance(value, dict) else value for name, value in section.items()}
    return {name: value for name, value in kept.items() if value is not None and value not in ([], {})}
