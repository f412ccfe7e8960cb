"""`spacy torchopt params`: a table of every param."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

import typer
from typer import Option as Opt

from ..addons.preview import params as list_params
from ._command import CODE, CONFIG, GPU, JSON
from ._screen import errors_shown, make_console, print_error, show
from ._setup import read_overrides


def params(
    ctx: typer.Context,
    config_path: Path = CONFIG,
    steps: Optional[int] = Opt(None, "--steps", "-n", min=0, help="Also show the learning rate at this step"),
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    List every param, with its group and learning rate. Shows name, shape, size, device, kind, group, learning rate,
    weight decay, and whether the param is frozen; patterns in the config that match nothing. The pipeline is built and
    initialized as in `spacy train`, so pass the same overrides, such as --paths.train train.spacy. A trained pipeline
    is loaded instead. Nothing is trained or written.
    """
    with errors_shown(as_json=as_json):
        found = list_params(config_path, read_overrides(ctx.args, code_path), steps=steps, gpu_id=use_gpu)
    show(found, as_json=as_json)
    for text in () if as_json else found.stops:
        print_error(make_console(), text)
    if found.stops:
        sys.exit(1)
