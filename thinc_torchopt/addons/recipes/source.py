"""The config of a user as text, which is loaded and written with other settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confection import Config
from spacy import util

from ...core.config_checks import decode
from ...core.errors import ConfigError
from ...core.state import write_text
from ...loop.setup import AnyConfig, checked_overrides, config_errors, path_of
from .config_text import cut_section, with_settings


@dataclass
class ConfigSource:
    """A config of the user, to load it with other settings.

    path (Path): Its file.
    text (str): Its text, without [search].
    overrides (dict[str, Any]): Other values, by path.
    search (dict[str, str]): The section [search]. confection never sees it: it would read sections from the dots in
    its keys.
    """

    path: Path
    text: str
    overrides: dict[str, Any]
    search: dict[str, str] = field(default_factory=dict)

    def load(self, text: str | None = None, overrides: Mapping[str, Any] = {}) -> Config:
        """Load the config with its variables. text (str | None): Another text. overrides (Mapping): More overrides."""
        with config_errors(path=self.path):
            return util.load_config_from_str(
                self.text if text is None else text, overrides={**self.overrides, **overrides}, interpolate=False
            )

    def write_overrides(self, prefix: str) -> ConfigSource:
        """A copy with some overrides written into its text. prefix (str): The start of their paths."""
        self.load()  # raises for what can't be overridden
        written = {path: value for path, value in self.overrides.items() if path.startswith(prefix)}
        rest = {path: value for path, value in self.overrides.items() if path not in written}
        return replace(self, text=with_settings(self.text, written), overrides=rest)

    @property
    def seed(self) -> int:
        """The seed of the first trial."""
        return int(self.load().interpolate().get("training", {}).get("seed") or 0)


def open_source(source: AnyConfig, overrides: Mapping[str, Any] = {}) -> ConfigSource:
    """Read a config, with overrides. RAISES (ConfigError): It can't be read."""
    path = path_of(source)
    text = source.to_str(interpolate=False) if isinstance(source, Config) else read_text(Path(source))
    search, text = cut_section(text, "search")
    return ConfigSource(Path("config.cfg") if path is None else path, text, checked_overrides(overrides), search)


def read_text(path: Path) -> str:
    """Read the text of a config. "-": from stdin. RAISES (ConfigError): It can't be read."""
    try:
        return decode(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"Can't read '{path}': expected the file of a config, found {error.strerror}. Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"Can't read '{path}': it is not a text in UTF-8 ({error}). Is it a config?") from error


def check_output(path: Path) -> None:
    """Check early that a config can be written. RAISES (ConfigError): A folder is there, or it is the name of texts."""
    if path.is_dir():
        raise ConfigError(f"Can't write '{path}': expected a file, found a folder. Add the name of a file.")
    if path.suffix == ".spacy":
        raise ConfigError(
            f"Can't write the config '{path}': expected a name such as config.cfg, found that of texts. Name the "
            f"config, and the texts by an option: --paths.train {path}."
        )


def write_config(path: Path, text: str) -> None:
    """Write the text of a config, whole or not at all. RAISES (ConfigError): It can't be written."""
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"Can't write '{path}': {error}. An existing file was not changed.") from error
