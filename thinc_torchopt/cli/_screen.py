"""Show our errors and warnings in a terminal by their message alone, without a traceback.

`show_errors` replaces `sys.excepthook` where spaCy's command line is the main program, and the command is ours or its
config names something of ours. In other commands, Python, IPython and notebooks nothing changes. It handles errors of
this package and of confection, which reads configs; others are shown as before.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from configparser import Error as ParserError
from contextlib import contextmanager, redirect_stdout, suppress
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from ..core.config_checks import PREFIXES, mentions_ours
from ..core.errors import ConfigError, TorchOptError, TorchOptWarning
from ..core.host import cli_util
from ..core.launched import is_launched
from ..core.near_misses import option_meant
from ..core.text_files import decode

if TYPE_CHECKING:
    from rich.console import Console

# Set it to anything but 0 to see tracebacks.
TRACEBACK: Final = "THINC_TORCHOPT_TRACEBACK"
# Without a terminal, lines may be as wide as needed.
_ANY_WIDTH = 100_000
# Codes of terminals for colours and bold letters.
_CODES = re.compile("\x1b\\[[0-9;]*m")
# In bytes. Larger files are no configs: corpora, which it would take long to read.
_LARGEST_CONFIG = 1_000_000


def is_main_program() -> bool:
    """Whether this process is `python -m spacy` or `spacy`: the main module of both imports `setup_cli`."""
    return getattr(sys.modules.get("__main__"), "setup_cli", None) is cli_util().setup_cli


def is_ours(command: Sequence[str]) -> bool:
    """Whether a command is `torchopt`, or its config, overrides or pipeline name something of ours. command
    (Sequence[str]): All arguments of `spacy`.
    """
    overrides = os.environ.get("SPACY_CONFIG_OVERRIDES", "").split()
    return command[:1] == ["torchopt"] or any(_names_ours(argument) for argument in (*command[1:], *overrides))


def _names_ours(argument: str) -> bool:
    """Whether an argument is the path of such a config or pipeline, or the name itself, as the value of an override."""
    if argument.rpartition("=")[2].startswith(PREFIXES[:2]):
        return True
    with suppress(OSError, ValueError):  # no path, or no text
        path = Path(argument, "config.cfg") if Path(argument).is_dir() else Path(argument)
        return path.is_file() and path.stat().st_size <= _LARGEST_CONFIG and mentions_ours(decode(path.read_bytes()))
    return False


def show_errors() -> None:
    """Show our errors and warnings by their message from now on, and tell a launcher of errors."""
    before, format_before = sys.excepthook, warnings.formatwarning

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = text_of(error) if isinstance(error, Exception) and not wants_traceback() else None
        if text is None:
            before(kind, error, trace)
        else:
            print_error(make_console(stderr=True), text)
        with suppress(ConfigError):  # a training in several processes reports a wrong environment itself
            if isinstance(error, Exception) and is_launched():
                from ..addons.distributed import report_failure

                report_failure(error)

    def format_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if issubclass(category, TorchOptWarning) and not wants_traceback():
            width = shutil.get_terminal_size().columns if sys.stderr.isatty() else _ANY_WIDTH
            return "".join(f"{textwrap.fill(line, width)}\n" for line in f"Warning: {message}".splitlines())
        return format_before(message, category, filename, lineno, line)

    sys.excepthook = show
    warnings.formatwarning = format_warning


def show_plain_headings() -> None:
    """Print spaCy's headings without codes where its colours are off: wasabi makes them bold all the same."""
    from wasabi import msg
    from wasabi.printer import Printer
    from wasabi.util import supports_ansi

    if not supports_ansi():
        msg.show_color = False
        heading = Printer(no_print=True).divider
        msg.divider = lambda *args, **options: print(_CODES.sub("", heading(*args, **options) or ""))  # type: ignore


@contextmanager
def errors_shown(*, as_json: bool) -> Iterator[None]:
    """End the program with the message of an error that the user can fix, instead of a traceback. After Ctrl-C its
    exit status is 130.

    as_json (bool): Redirect all output to stderr.
    """
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        try:
            yield
        except KeyboardInterrupt:
            sys.exit(130)  # older typers end with 1
        except Exception as error:
            from ..core.host_errors import is_spacys_own

            found = str(error) if is_spacys_own(error) else text_of(error)
            if found is None or wants_traceback():
                raise
            text = found
        else:
            return
    print_error(make_console(stderr=True), text)
    sys.exit(1)


def wants_traceback() -> bool:
    return os.environ.get(TRACEBACK, "0") not in ("", "0")


def text_of(error: Exception) -> str | None:
    """The text that a terminal shows for an error. None: show its traceback."""
    from ..core.host_errors import line_of_others, plain_error

    if isinstance(error, TorchOptError):
        # The message is enough, unless other code raised an error of its own.
        cause = error.__cause__
        is_all = cause is None or (
            isinstance(cause, (TorchOptError, ValueError, OSError, ParserError)) and line_of_others(cause) is None
        )
        return str(error) if is_all else f"{error}\n(For the traceback, set {TRACEBACK}=1.)"
    from catalogue import RegistryError
    from click import ClickException, NoSuchOption
    from confection import ConfigValidationError

    if isinstance(error, (ConfigValidationError, ParserError, RegistryError)):
        found = plain_error(error, within="pretraining" if sys.argv[1:2] == ["pretrain"] else "training")
        if found is not None:
            return str(found)
    if isinstance(error, ConfigValidationError):
        # Leave out the dump of the whole section.
        return str(error.from_error(error, show_config=False)).strip()
    if isinstance(error, NoSuchOption):
        return no_such_option(error.option_name)
    if isinstance(error, ClickException):
        return error.format_message()
    return None


def no_such_option(name: str) -> str:
    """The message for an override without a dot, for which spaCy raises an error of click. Its words change with
    click's version, and a typer without a click of its own prints them itself.
    """
    return f"No such option '{name}'.{option_meant(name, _options())}"


def _options() -> list[str]:
    """The options of the command that was typed."""
    from typer.main import get_command

    context = get_command(cli_util().app).make_context("spacy", [], resilient_parsing=True)
    for word in sys.argv[1:]:
        found = getattr(context.command, "commands", {}).get(word)
        if found is None:
            break
        context = found.make_context(word, [], parent=context, resilient_parsing=True)
    return [option for param in context.command.params for option in param.opts if option.startswith("--")]


def show(found: Any, *, as_json: bool) -> None:
    """Print a result: all as JSON, or its tables and then its notes."""
    if as_json:
        print_json(found.as_dict())
    else:
        found.print(console := make_console())
        print_notes(console, found.notes)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"Note: {note}", style="blue")


def print_error(console: Console, text: str) -> None:
    console.print(f"Error: {text}", style="red")


def make_console(*, stderr: bool = False) -> Console:
    """A console for tables. Brackets and colons are no markup. Colours are off where spaCy's are."""
    from rich.console import Console
    from wasabi.printer import Printer

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, TextIOWrapper):  # texts of the user may have characters that a terminal can't show
        stream.reconfigure(errors="backslashreplace")
    color_system: Literal["auto"] | None = "auto" if Printer(no_print=True).show_color else None
    console = Console(markup=False, emoji=False, highlight=False, color_system=color_system, stderr=stderr)
    if not console.is_terminal:
        console.width = _ANY_WIDTH
    return console
