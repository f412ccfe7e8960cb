"""`spacy torchopt try`: compare the optimizer of a config with recipes, in short trainings on the user's data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

import typer
from typer import Option as Opt

from ..addons.preview import compare_recipes
from ..addons.recipes import Recipe
from ._command import BEST_CONFIG, CODE, GPU, JSON, TRAINING_CONFIG
from ._screen import errors_shown, make_console, show
from ._setup import read_overrides
from ._texts import convert_overrides


def try_(
    ctx: typer.Context,
    config_path: Path = TRAINING_CONFIG,
    recipes: str = Opt("best", "--recipes", "-r", help=f"Recipes to try, comma-separated: {Recipe.names()}"),
    steps: int = Opt(300, "--steps", "-n", help="Steps of each trial, counted in batches of the recipe best"),
    seeds: int = Opt(3, "--seeds", "-s", help="Number of seeds to try each optimizer with"),
    output_path: Optional[Path] = BEST_CONFIG,
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Try recipes on your data, in short trainings. The config as it is, spaCy's own Adam, tuned, and each recipe are
    trained on the same number of words, with several seeds. A table says which is better, and whether the difference is
    more than chance. Each trial builds its own pipeline, without loggers, checkpoints or output folders. Pass overrides
    such as --paths.train train.spacy as in `spacy train`.
    """
    with errors_shown(as_json=as_json):
        overrides = read_overrides(ctx.args, code_path)
        for line in convert_overrides(config_path, overrides):
            print(line, file=sys.stderr)
        found = compare_recipes(
            config_path,
            overrides,
            recipes=recipes,
            steps=steps,
            seeds=seeds,
            output=output_path,
            gpu_id=use_gpu,
        )
    show(found, as_json=as_json)
    if output_path is not None and not as_json:
        saved = f"Saved {found.winner_told}" if found.is_decided else "Nothing is saved"
        make_console().print(f"{saved} to {output_path}")
    if found.was_stopped:
        sys.exit(130)
