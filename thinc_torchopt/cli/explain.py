"""`spacy torchopt explain`: check whether a training can begin, and say what it will do and cost."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Optional

import typer
from typer import Option as Opt

from ..addons.preview import explain as describe
from ._command import CODE, CONFIG, GPU, JSON
from ._screen import errors_shown, make_console, print_error, print_json, wants_traceback
from ._setup import read_overrides

_WIDTH = 110


def explain(
    ctx: typer.Context,
    config_path: Path = CONFIG,
    is_timed: bool = Opt(False, "--time", help="Train for a few steps, to estimate how long the training takes"),
    output_path: Optional[Path] = Opt(
        None, "--output", "-o", help="Folder for the models, to see whether a run there would be resumed"
    ),
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Check a training before it begins, and say what it will do. Shows problems that would stop it (corpora, annotations,
    labels, device, disk), possible mistakes, a table of which params learn at which rate, and what the training costs.
    The pipeline is built and initialized as in `spacy train`, so pass the same overrides, such as --paths.train
    train.spacy. Nothing is written. The exit code is 1 if something would stop the training.
    """
    with errors_shown(as_json=as_json):
        overrides = read_overrides(ctx.args, code_path)
        told = describe(config_path, overrides, is_timed=is_timed, gpu_id=use_gpu, output=output_path)
        if told.error is not None and wants_traceback():
            raise told.error
    if as_json:
        print_json(told.as_dict())
    elif told.is_one_error:
        print_error(make_console(stderr=True), told.stops[0])
    else:
        told.print(make_console(), min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns))
    if told.stops:
        sys.exit(1)
