"""`spacy torchopt try`: compare the optimizer of a config with recipes, or amounts of texts, on the user's data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Optional

import typer
from typer import Option as Opt

from ..addons.preview import compare_recipes, draw_learning_curve
from ..addons.recipes import Recipe
from ..addons.report import check_picture, plot_learning_curve
from ..core.errors import ConfigError
from ._command import BEST_CONFIG, CODE, GPU, JSON, PICTURE_BESIDE, TRAINING_CONFIG
from ._screen import errors_shown, make_console, show
from ._setup import read_overrides
from ._texts import convert_overrides


def try_(
    ctx: typer.Context,
    config_path: Path = TRAINING_CONFIG,
    recipes: Optional[str] = Opt(
        None, "--recipes", "-r", help=f"Recipes to try, comma-separated: {Recipe.names()}. By default best"
    ),
    amounts: bool = Opt(False, "--amounts", "-a", help="Try 25, 50, 75 and 100% of the training texts, not recipes"),
    steps: Optional[int] = Opt(
        None, "--steps", "-n", help="Steps of each trial, in batches of best: 300. With --amounts, on all texts"
    ),
    seeds: int = Opt(3, "--seeds", "-s", help="Number of seeds to try each optimizer, or amount, with"),
    picture_path: Optional[Path] = PICTURE_BESIDE,
    output_path: Optional[Path] = BEST_CONFIG,
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Try recipes on your data, in short trainings. The config as it is, spaCy's own Adam, tuned, and each recipe are
    trained on the same number of words, with several seeds. A table says which is better, and whether the difference is
    more than chance. With --amounts, the config is trained on parts of the texts, to see whether more texts would help.
    Each trial builds its own pipeline, without loggers, checkpoints or output folders. Pass overrides such as
    --paths.train train.spacy as in `spacy train`.
    """
    with errors_shown(as_json=as_json):
        unfit = {"--recipes": recipes, "--output": output_path} if amounts else {"--picture": picture_path}
        for name, value in unfit.items():
            if value is not None:
                told = f"Can't use '{name}' with{'' if amounts else 'out'} --amounts."
                raise ConfigError(f"{told} Recipes are for an --output, amounts of texts for a --picture.")
        if picture_path is not None:
            check_picture(picture_path, [config_path])
        overrides = read_overrides(ctx.args, code_path)
        for line in convert_overrides(config_path, overrides):
            print(line, file=sys.stderr)
        found: Any
        given: Any = {name: value for name, value in (("recipes", recipes), ("steps", steps)) if value is not None}
        given |= {"seeds": seeds, "gpu_id": use_gpu}
        if amounts:
            found = draw_learning_curve(config_path, overrides, **given)
        else:
            found = compare_recipes(config_path, overrides, output=output_path, **given)
        if picture_path is not None:
            plot_learning_curve(found.points, picture_path, title=f"{config_path.name}: score by number of texts")
    show(found, as_json=as_json)
    if output_path is not None and not as_json:
        saved = f"Saved {found.winner_told}" if found.is_decided else "Nothing is saved"
        make_console().print(f"{saved} to {output_path}")
    if picture_path is not None and not as_json:
        make_console().print(f"Saved the picture to {picture_path}")
    if found.was_stopped:
        sys.exit(130)
