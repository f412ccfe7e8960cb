"""Build the config of a command, with its overrides; its pipeline; and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confection import Config
from spacy import util

from ..addons.recipes import ConfigSource
from ..addons.recipes import open_source as open_config
from ..core.config_checks import check_config_file, check_gpu
from ..core.host import cli_util
from ..core.host_errors import plain_errors
from ..core.optimizer import TorchOptimizer
from ..loop.setup import Setup
from ..loop.setup import build as build_setup

_spacy = cli_util()


def build(
    path: Path,
    args: Sequence[str],
    *,
    code_path: Path | None = None,
    use_gpu: int = -1,
    resolve: Callable[[dict[str, Any]], TorchOptimizer] | None = None,
    reads_dev: bool = False,
) -> Setup:
    """Build pipeline and optimizer, with overrides from the command line: see loop/setup.py."""
    overrides = read_overrides(args, code_path)
    return build_setup(path, overrides, use_gpu=use_gpu, resolve=resolve, reads_dev=reads_dev)


def read_overrides(args: Sequence[str], code_path: Path | None = None) -> dict[str, Any]:
    """Read overrides from the command line, and import the user's code."""
    overrides: dict[str, Any] = _spacy.parse_config_overrides(list(args))
    _spacy.import_code(code_path)
    return overrides


def load_config(path: Path, overrides: Mapping[str, Any]) -> Config:
    """Load a config, not interpolated. RAISES (ConfigError): It has an error."""
    check_config_file(path)
    with config_errors_shown(path, hint_fill=True):
        return util.load_config(path, overrides=dict(overrides), interpolate=False)


def open_source(path: Path, args: Sequence[str], *, code_path: Path | None, use_gpu: int) -> ConfigSource:
    """Read a config, with overrides, as spaCy's commands do.

    RAISES (ConfigError): It can't be read.
    """
    overrides = read_overrides(args, code_path)
    check_gpu(use_gpu)
    return open_config(path, overrides)


@contextmanager
def config_errors_shown(
    path: Path, config: Mapping[str, Any] | None = None, *, hint_fill: bool = False
) -> Iterator[None]:
    """Turn errors in a config into ours; for the rest, spaCy shows its message and ends the program.

    path (Path): The config's path. config (Mapping | None): The config, not interpolated, if it could be read.
    hint_fill (bool): Also tell how to fill in missing settings with spaCy.
    RAISES (ConfigError): The config has an error.
    """
    with _spacy.show_validation_error(path, hint_fill=hint_fill), plain_errors(config, path=path):
        yield
