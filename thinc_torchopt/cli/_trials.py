"""Shared by `try` and `tune`: a config as text, loaded with different settings, and its trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from confection import Config
from spacy import util

from ..config_checks import check_gpu
from ..errors import ConfigError
from ..host import cli_util
from ..trials import TrialResult
from ._config_text import cut_section, with_settings
from ._util import config_errors_shown
from .init import read_config

_spacy = cli_util()


@dataclass
class Source:
    """The user's config.

    path (Path): Its file.
    text (str): Its text, without [search].
    overrides (dict[str, Any]): From the command line.
    search (dict[str, str]): The section [search]. confection never sees it: it would read sections from the dots in
    its keys.
    """

    path: Path
    text: str
    overrides: dict[str, Any]
    search: dict[str, str] = field(default_factory=dict)

    def load(self, text: str | None = None, overrides: Mapping[str, Any] = {}) -> Config:
        """Load the config with its variables. text (str | None): Another text. overrides (Mapping): More overrides."""
        with self.errors_shown():
            return util.load_config_from_str(
                self.text if text is None else text, overrides={**self.overrides, **overrides}, interpolate=False
            )

    def write_overrides(self, prefix: str) -> Source:
        """A copy with some overrides written into its text. prefix (str): The start of their paths."""
        self.load()  # raises for what can't be overridden
        written = {path: value for path, value in self.overrides.items() if path.startswith(prefix)}
        rest = {path: value for path, value in self.overrides.items() if path not in written}
        return replace(self, text=with_settings(self.text, written), overrides=rest)

    @contextmanager
    def errors_shown(self, config: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Turn errors in the config into ours, or show them as spaCy does. config (Mapping): The loaded config."""
        with config_errors_shown(self.path, config):
            yield

    @property
    def seed(self) -> int:
        """The seed of the first trial."""
        return int(self.load().interpolate().get("training", {}).get("seed") or 0)


def open_source(path: Path, args: Sequence[str], *, code_path: Path | None, use_gpu: int) -> Source:
    """Read a config, with overrides, as spaCy's commands do.

    RAISES (ConfigError): It can't be read.
    """
    overrides = _spacy.parse_config_overrides(list(args))
    _spacy.import_code(code_path)
    check_gpu(use_gpu)
    search, text = cut_section(read_config(path), "search")
    return Source(path, text, overrides, search)


def check_output_file(path: Path | None) -> None:
    """Check early that a config can be written. RAISES (ConfigError): It can't."""
    if path is not None and path.is_dir():
        raise ConfigError(f"Can't write {path}: expected a file, found a folder. Add the name of a file to --output.")


@dataclass
class Tried:
    """A candidate with its trials.

    name (str): Its name for the user.
    config (Config): From `shorten`.
    trials (dict[int, TrialResult]): By seed.
    problem (str | None): Why it can't be compared.
    """

    name: str
    config: Config
    trials: dict[int, TrialResult] = field(default_factory=dict)
    problem: str | None = None

    @property
    def scores(self) -> list[float]:
        return [trial.score for trial in self.trials.values()]

    @property
    def curves(self) -> dict[int, list[float]]:
        """The scores of all seeds, by step."""
        found: dict[int, list[float]] = {}
        for trial in self.trials.values():
            for step, score in trial.evaluations:
                found.setdefault(step, []).append(score)
        return found

    @property
    def seconds(self) -> float:
        """Mean training time of its trials."""
        return fmean(trial.seconds for trial in self.trials.values()) if self.trials else 0.0

    def reaches(self, score: float) -> int | None:
        """The step at which the mean score reaches `score`. None: never."""
        return next((step for step, scores in self.curves.items() if fmean(scores) >= score), None)
