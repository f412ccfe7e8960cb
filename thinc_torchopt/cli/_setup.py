"""Overrides, code of the user, the pipeline and its optimizer, as the arguments of a command name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.host import cli_util
from ..loop.setup import Setup
from ..loop.setup import build as build_setup

_spacy = cli_util()


def build(path: Path, args: Sequence[str], *, code_path: Path | None = None, **options: Any) -> Setup:
    """Build pipeline and optimizer, with overrides from the command line. options (Any): See loop/setup.py."""
    return build_setup(path, read_overrides(args, code_path), **options)


def read_overrides(args: Sequence[str], code_path: Path | None = None) -> dict[str, Any]:
    """Read overrides from the command line, and import the user's code."""
    overrides: dict[str, Any] = _spacy.parse_config_overrides(list(args))
    _spacy.import_code(code_path)
    return overrides
