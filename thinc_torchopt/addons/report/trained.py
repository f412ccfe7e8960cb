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


@dataclass(frozen=True)
class Trained:
    """A trained pipeline, or one in training.

    components (list[str]): Their names, and which are frozen.
    config (dict): The blocks of the config that say how, interpolated: at least "training", if it is known.
    scores (dict): Those of the saved pipeline, as meta.json has them. Empty: there is no such file.
    """

    components: list[str]
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


def read_line(found: Mapping[str, Any]) -> Trained:
    """Read what the first line of a log says. found (Mapping): The value of "trained"."""
    config = found.get("config")
    config = config if isinstance(config, dict) else {}
    components = found.get("components")
    components = components if isinstance(components, list) else []
    return Trained(_told([one.get("name") for one in components if isinstance(one, dict)], config), config)


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
    kept = {name: config.get(name, {}) for name in ("paths", "corpora", "training")}
    return Trained(_told(_block(config, "nlp").get("pipeline"), config), kept, _block(meta, "performance"))


def _told(names: Any, config: Mapping[str, Any]) -> list[str]:
    frozen = _texts(_block(config, "training").get("frozen_components"))
    return [f"{name} (frozen)" if name in frozen else name for name in _texts(names)]


def _block(config: Any, name: str) -> Any:
    found = config.get(name) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
