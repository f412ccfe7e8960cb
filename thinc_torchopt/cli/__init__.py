"""The commands of `spacy torchopt`: a file for each.

spaCy imports this for each of its commands, so it must be cheap: the file of a command is imported when it is called.
"""

import sys

import typer

from ..core.host import cli_util
from ._command import add_commands
from ._screen import is_main_program, is_ours, show_errors

torchopt_cli = typer.Typer(
    name="torchopt",
    help="Put a thinc-torchopt optimizer into a config, check it before training, and look at runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
add_commands(
    torchopt_cli,
    {
        "train": "Train in several processes, or within a budget.",
        "params": "List every param, with its group and learning rate.",
        "schedule": "Show the learning rate of each param group over the steps.",
        "find-lr": "Find a learning rate, in a test of a few steps.",
        "learn": "Go on learning from texts with labels, as they come in.",
        "try": "Try recipes on your data, in short trainings.",
        "tune": "Search for better settings on your data, by Optuna.",
        "init": "Put one of our optimizers into a config.",
        "explain": "Check a training before it begins, and say what it will do.",
        "checkpoint": "Show what is inside the checkpoints of a run.",
        "report": "Draw a training from its log, or compare several.",
        "controller": "Check the rules of a controller, or try them on a log.",
    },
    without_overrides=("checkpoint", "report"),
)
cli_util().app.add_typer(torchopt_cli)

# spaCy's own commands stay as they are, unless their config names something of ours.
if is_main_program() and is_ours(sys.argv[1:]):
    show_errors()
    if sys.argv[1] == "train":
        from ._train_command import guide_command

        guide_command()
