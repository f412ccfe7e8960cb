"""How commands are listed and loaded, and the arguments that several of them have."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from keyword import iskeyword
from typing import Any, Final

import typer
from typer import Argument as Arg
from typer import Option as Opt
from typer.core import TyperCommand, TyperGroup

from ..core.near_misses import did_you_mean

# Extra arguments override settings of the config, as in spaCy's own commands.
OVERRIDES: Final = {"allow_extra_args": True, "ignore_unknown_options": True}

CONFIG = Arg(..., help="Path to config file, or to the folder of a trained pipeline", exists=True, allow_dash=True)
TRAINING_CONFIG = Arg(..., help="Path to config file", exists=True, dir_okay=False)
JSON = Opt(False, "--json", help="Print only JSON to stdout")
PICTURE = Opt(None, "--output", "-o", help="File for the picture: .png, .svg or .pdf. Needs matplotlib")
PICTURE_BESIDE = Opt(None, "--picture", "-p", help="File for a picture: .png, .svg or .pdf. Needs matplotlib")
BEST_CONFIG = Opt(None, "--output", "-o", help="File for the best config: yours, with the settings that were best")
CODE = Opt(None, "--code", "-c", help="Path to Python file with additional code (registered functions) to be imported")
GPU = Opt(-1, "--gpu-id", "-g", help="GPU ID or -1 for CPU")


class Commands(TyperGroup):
    """Commands in the order in which they were added; for an unknown one, the one that was meant. Older typers list
    them by name, and suggest none.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command '{args[0]}'.{did_you_mean(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


class LazyCommand(TyperCommand):
    """A command whose file is imported when it is called: not to list it, nor to complete or suggest its name.

    The command `find-lr` is the function `find_lr` in find_lr.py. Its context belongs to the loaded command.
    """

    @cached_property
    def loaded(self) -> Any:
        """The command with its arguments."""
        name = str(self.name).replace("-", "_") + "_" * iskeyword(str(self.name))
        function = getattr(import_module(f"{__package__}.{name}"), name)
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(self.name, context_settings=dict(self.context_settings), epilog=self.epilog)(function)
        return typer.main.get_command(app)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded.make_context(*args, **kwargs)


def add_commands(
    app: typer.Typer, commands: Iterable[tuple[str, str, str]], *, without_overrides: tuple[str, ...] = ()
) -> None:
    """Add commands that are loaded when they are called.

    commands (Iterable[tuple]): Name, the first sentence of the help, and an example.
    without_overrides (tuple[str, ...]): The commands that take no extra arguments.
    """

    def unloaded() -> None:
        """typer wants a function to make a command of."""

    for name, sentence, example in commands:
        settings = {} if name in without_overrides else OVERRIDES
        # One line, to be copied, however wide the terminal is.
        epilog = f"\b\nExample:\n{example}"
        app.command(name, cls=LazyCommand, help=sentence, epilog=epilog, context_settings=dict(settings))(unloaded)
