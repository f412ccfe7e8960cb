"""`spacy torchopt init`: put one of our optimizers into a config."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

import typer
from typer import Argument as Arg
from typer import Option as Opt
from wasabi.printer import Printer

from ..addons.recipes import Recipe, rewrite
from ..core.host import cli_util
from ._command import CODE
from ._screen import errors_shown
from ._setup import config_errors_shown, read_overrides, read_text, write_config


def init(
    ctx: typer.Context,
    config_path: Path = Arg(..., help="Path to config file, or - for stdin"),
    output_path: Path = Arg(..., help="Path to output .cfg file (may be the input file), or - for stdout"),
    recipe: str = Opt(..., "--recipe", "-r", help=f"How to set up the optimizer: {Recipe.names()}"),
    log_path: Optional[Path] = Opt(
        None, "--log", help="Also write a log of each step, for spacy torchopt report", dir_okay=False
    ),
    code_path: Optional[Path] = CODE,
) -> None:
    """
    Put one of our optimizers into a config. Rewrites [training.optimizer] by a recipe. best: the settings that scored
    best in our benchmark, with a learning rate and a number of steps computed from the corpus (--paths.train
    train.spacy); drop-in: thinc's arithmetic, computed by torch; adamw: torch's AdamW; fine-tune: a low rate for
    pretrained params, a higher one for new ones; low-memory: Adafactor; robust: guards, checkpoints and averages. All
    recipes but best keep the learning rate and its schedules. The rest of the config stays as it is, comments too.
    """
    # With "-", only the config is printed to stdout.
    to_stdout = str(output_path) == "-"
    with errors_shown(as_json=to_stdout):
        chosen = Recipe.of(recipe)
        stem = next((path.stem for path in (output_path, config_path) if str(path) != "-"), "config")
        overrides = read_overrides(ctx.args, code_path)
        given = read_text(config_path)
        with config_errors_shown(config_path):
            draft, text = rewrite(given, config_path, chosen, f"training/{stem}-state", overrides, log_path)
        if not to_stdout:
            write_config(output_path, text)
    if to_stdout:
        sys.stdout.write(text)
        for line in draft.warnings:
            print(f"Warning: {line}", file=sys.stderr)
        return
    msg = Printer(pretty=sys.stdout.isatty())
    msg.good(f"Saved config with the recipe '{chosen.value}'", output_path)
    for line in draft.changes:
        msg.text(f"- {line}")
    for line in draft.warnings:
        msg.warn(line)
    msg.text("To check it and see what it will do:")
    print(f"{cli_util().COMMAND} torchopt explain {output_path} --paths.train ./train.spacy --paths.dev ./dev.spacy")
