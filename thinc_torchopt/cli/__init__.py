"""The commands of `spacy torchopt`: a file for each.

spaCy imports this for each of its commands, so it must be cheap: the file of a command is imported when it is called.
"""

import sys

import typer

from ..core.host import cli_util
from ._command import Commands, add_commands
from ._screen import is_main_program, is_ours, show_errors, show_plain_headings

torchopt_cli = typer.Typer(
    name="torchopt",
    cls=Commands,
    help="Make a config from texts, check it before training, and look at runs. Commands are in the order of use.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
# In the order of use: name, the first sentence of its help, and an example.
COMMANDS = (
    (
        "init",
        "Make a config from texts, or put our optimizer into a config.",
        "spacy torchopt init config.cfg --lang en --paths.train train.spacy --paths.dev dev.spacy",
    ),
    (
        "convert",
        "Convert texts to spaCy's binary format.",
        "spacy torchopt convert texts.jsonl corpus/texts.spacy --lang en",
    ),
    (
        "explain",
        "Check a training before it begins, and say what it will do.",
        "spacy torchopt explain config.cfg",
    ),
    (
        "train",
        "Train in several processes, or within a budget.",
        "spacy torchopt train config.cfg --output training/config --budget 20m",
    ),
    (
        "report",
        "Show how a training went, or compare several.",
        "spacy torchopt report training/config --output report.html",
    ),
    (
        "suspects",
        "List the annotations that may be wrong.",
        "spacy torchopt suspects training/config --output suspects.jsonl",
    ),
    (
        "params",
        "List every param, with its group and learning rate.",
        "spacy torchopt params config.cfg --steps 100",
    ),
    (
        "schedule",
        "Show the learning rate of each param group over the steps.",
        "spacy torchopt schedule config.cfg",
    ),
    (
        "checkpoint",
        "Show what is inside the checkpoints of a run.",
        "spacy torchopt checkpoint training/config/state",
    ),
    (
        "try",
        "Try recipes on your data, in short trainings.",
        "spacy torchopt try config.cfg --recipes best,robust --output better.cfg",
    ),
    (
        "tune",
        "Search for better settings on your data, by Optuna.",
        "spacy torchopt tune config.cfg --set training.dropout=0.0..0.5 --trials 20 --output tuned.cfg",
    ),
    (
        "find-lr",
        "Find a learning rate, in a test of a few steps.",
        "spacy torchopt find-lr config.cfg",
    ),
    (
        "learn",
        "Go on learning from texts with labels, as they come in.",
        "spacy torchopt learn training/config/model-best stream.jsonl --output learned",
    ),
    (
        "controller",
        "Check the rules of a controller.",
        "spacy torchopt controller rules.yaml",
    ),
)
add_commands(torchopt_cli, COMMANDS, without_overrides=("checkpoint", "convert", "report", "suspects"))
cli_util().app.add_typer(torchopt_cli)

# spaCy's own commands stay as they are, unless their config names something of ours.
if is_main_program() and is_ours(sys.argv[1:]):
    show_errors()
    show_plain_headings()
    if sys.argv[1] == "train":
        from ._train_command import guide_command

        guide_command()
