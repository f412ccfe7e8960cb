"""Shared by the commands: build the pipeline and its optimizer, show errors, print tables."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import spacy
from confection import Config
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from spacy import util
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.util import registry

from ..config_checks import check_corpora, check_gpu, check_training_section
from ..errors import ConfigError, ConfigWarning, PrecisionWarning, ScheduleWarning
from ..host import cli_util
from ..host_errors import is_spacys_own, plain_errors
from ..optimizers import TorchOptimizer
from ..params import trainable_components
from ..progress_bars import show_activity
from ..training import count_steps
from ._screen import make_console as make_console
from ._screen import print_error as print_error
from ._screen import text_of, wants_traceback

_spacy = cli_util()

# Starts the lines of a row after its first line.
_INDENT = "    "
_BLOCKS = "▁▂▃▄▅▆▇█"


class Setup(NamedTuple):
    """The pipeline and optimizer that `spacy train` would train.

    nlp (Language): The pipeline, initialized.
    config (Config): Its config, interpolated.
    optimizer (TorchOptimizer): A new one, as spaCy makes before training. It does not know its pipeline yet.
    sourced (Sequence[str]): The pretrained components.
    """

    nlp: Language
    config: Config
    optimizer: TorchOptimizer
    sourced: Sequence[str] = ()

    @property
    def frozen(self) -> list[str]:
        """The components in [training] frozen_components."""
        return list(self.config["training"].get("frozen_components", []))

    def count_steps(self) -> int:
        """The number of training steps. RAISES (ConfigError): The training has no end."""
        return count_steps(self.nlp, self.config)

    def introduce(self) -> None:
        """Tell the optimizer its pipeline, without errors for patterns that match nothing."""
        with self.nlp.select_pipes(disable=[name for name in self.frozen if name in self.nlp.pipe_names]):
            self.optimizer.introduce(self.nlp)

    def initialize(self) -> None:
        """Tell the optimizer its pipeline, as training does. RAISES (TorchOptError): As in training."""
        # spaCy also trains a pipeline with nothing to train.
        if trainable_components(self.nlp, self.frozen):
            self.optimizer.initialize(self.nlp, self.frozen)


def build(
    path: Path,
    args: list[str],
    *,
    code_path: Path | None = None,
    use_gpu: int = -1,
    resolve: Callable[[dict[str, Any]], TorchOptimizer] | None = None,
    reads_dev: bool = False,
) -> Setup:
    """Build pipeline and optimizer.

    path (Path): A config, or the folder of a trained pipeline.
    args (list[str]): Overrides from the command line.
    resolve (Callable): Builds the optimizer. Default: `resolve_optimizer`.
    reads_dev (bool): The command reads the development data: check now that it is there.
    RAISES (ConfigError): The optimizer is not ours; or a schedule has no total_steps and the training no end.
    """
    overrides = _spacy.parse_config_overrides(list(args))
    _spacy.import_code(code_path)
    check_gpu(use_gpu)
    if path.is_dir():
        with config_errors_shown(path), show_activity("Loading the pipeline"):
            nlp = spacy.load(path, config=overrides)
        if reads_dev:
            check_corpora(nlp.config)
        sourced = list(nlp.component_names)
    else:
        with config_errors_shown(path, hint_fill=True):
            config = util.load_config(path, overrides=overrides, interpolate=False)
        with config_errors_shown(path, config):
            check_training_section(config)
            check_corpora(config, files=False)  # spaCy builds both readers, whichever is read
            check_corpora(config, ["train_corpus", *["dev_corpus"] * reads_dev])
            # This reads all of the data, to find the labels.
            with show_activity("Building the pipeline"):
                nlp = init_nlp(config, use_gpu=use_gpu)
        sourced = list(util.get_sourced_components(config))
    config = nlp.config.interpolate()
    with config_errors_shown(path, config):
        setup = Setup(nlp, config, (resolve or resolve_optimizer)(config["training"]["optimizer"]), sourced)
    if setup.optimizer.spans_training:
        setup.optimizer.set_total_steps(setup.count_steps())
    return setup


def resolve_optimizer(block: dict[str, Any]) -> TorchOptimizer:
    """Build the optimizer of a config.

    block (dict): [training.optimizer].
    RAISES (ConfigError): It is not ours.
    """
    optimizer = registry.resolve({"optimizer": block})["optimizer"]
    if not isinstance(optimizer, TorchOptimizer):
        raise ConfigError(
            "Can't use [training.optimizer]: expected an optimizer of thinc-torchopt, found "
            f'"{block.get("@optimizers")}". Set @optimizers = "thinc-torchopt.TorchOptimizer.v1" and add a block '
            '[training.optimizer.algorithm] with @torch_optimizers = "torch.AdamW.v1". Or run spacy torchopt init, '
            "which does it for you."
        )
    return optimizer


# ---------------------------------------------------------------------- errors


@contextmanager
def errors_shown(*, as_json: bool) -> Iterator[None]:
    """End the program with the message of an error that the user can fix, instead of a traceback.

    as_json (bool): Redirect all output to stderr.
    """
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        try:
            yield
        except Exception as error:
            found = str(error) if is_spacys_own(error) else text_of(error)
            if found is None or wants_traceback():
                raise
            text = found
        else:
            return
    print_error(make_console(stderr=True), text)
    sys.exit(1)


@contextmanager
def config_errors_shown(
    path: Path, config: Mapping[str, Any] | None = None, *, hint_fill: bool = False
) -> Iterator[None]:
    """Turn errors in a config into ours; for the rest, spaCy shows its message and ends the program.

    path (Path): The config's path. config (Mapping | None): The config, not interpolated, if it could be read.
    hint_fill (bool): Also tell how to fill in missing settings with spaCy.
    RAISES (ConfigError): The config has an error.
    """
    with _spacy.show_validation_error(path, hint_fill=hint_fill), plain_errors(config, path=path):
        yield


@contextmanager
def schedule_notes() -> Iterator[list[str]]:
    """Collect warnings about schedules, and of settings without effect, in the list that it yields. Other warnings are
    shown as usual.
    """
    notes: list[str] = []
    noted = (ScheduleWarning, ConfigWarning, PrecisionWarning)
    with warnings.catch_warnings(record=True) as caught:
        for category in noted:
            warnings.simplefilter("always", category)
        yield notes
    for warning in caught:
        if issubclass(warning.category, noted):
            notes.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def note_on_scores(optimizer: TorchOptimizer) -> list[str]:
    """A note on schedules that depend on scores, as their values are unknown before training."""
    found = [name for name, source in optimizer.schedules.items() if _watches_scores(source)]
    if not found:
        return []
    return [
        f"These depend on the scores in training: {', '.join(found)}. They are shown as if the score always got better."
    ]


def _watches_scores(source: Any) -> bool:
    # A sequence passes scores to its parts, and has a state only if one of them has.
    return hasattr(source, "observe") and (not hasattr(source, "state_dict") or bool(source.state_dict()))


# ---------------------------------------------------------------------- output


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(
    console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    """Print a table. If it is wider than the terminal, columns with one value in all rows become a line above it.
    If it is still too wide, each row gets several lines.


    headers (Sequence[str]): The columns.
    rows (Sequence[Sequence[str]]): Their cells.
    numbers (Sequence[str]): Columns that are aligned to the right.
    """
    columns = {header: [row[i] for row in rows] for i, header in enumerate(headers)}
    if sum(map(_width, columns.items())) > console.width:
        same = {header: cells[0] for header, cells in columns.items() if len(cells) > 1 and len(set(cells)) == 1}
        if same:
            console.print("All: " + ", ".join(f"{header} {cell or '-'}" for header, cell in same.items()))
            columns = {header: cells for header, cells in columns.items() if header not in same}
    if sum(map(_width, columns.items())) > console.width:
        _print_in_several_lines(console, columns, numbers)
    else:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for header in columns:
            table.add_column(header, justify="right" if header in numbers else "left", no_wrap=True)
        for cells_of_row in zip(*columns.values()):
            table.add_row(*cells_of_row)
        console.print(table)
    console.print()


def _print_in_several_lines(console: Console, columns: dict[str, list[str]], numbers: Sequence[str]) -> None:
    """Print as many columns per line as fit. Further lines of a row are indented."""
    lines: list[list[str]] = [[]]
    for column in columns.items():
        taken = sum(_width((header, columns[header])) for header in lines[-1]) + (len(_INDENT) if len(lines) > 1 else 0)
        if lines[-1] and taken + _width(column) - 2 > console.width:
            lines.append([])
        lines[-1].append(column[0])

    def show(cells: Mapping[str, str], style: str = "") -> None:
        for i, line in enumerate(lines):
            padded = []
            for header in line:
                space = " " * (_width((header, columns[header])) - 2 - cell_len(cells[header]))
                padded.append(space + cells[header] if header in numbers else cells[header] + space)
            text = (_INDENT if i else "") + "  ".join(padded)
            console.print(Text(text.rstrip(), style=style, overflow="fold"))

    show({header: header for header in columns}, "bold")
    console.print(Rule(style=""))
    for cells in zip(*columns.values()):
        show(dict(zip(columns, cells)))


def _width(column: tuple[str, Sequence[str]]) -> int:
    """The width of a column on the screen, with the space after it."""
    header, cells = column
    return max(map(cell_len, [header, *cells])) + 2


def print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"Note: {note}", style="blue")


def put(block: dict[str, Any], place: Sequence[str], value: Any) -> None:
    """Set a value in a config. place (Sequence[str]): Its sections, and its key. Missing sections are added."""
    *sections, key = place
    for section in sections:
        block = block.setdefault(section, {})
    block[key] = value


def short(value: float | None) -> str:
    """A number with three digits. None: empty."""
    return "" if value is None else f"{value:.3g}"


def sparkline(console: Console, heights: Sequence[float], width: int) -> str:
    """A small chart on one line.

    heights (Sequence[float]): 0 to 1. If there are more than `width`, neighbours are joined by their maximum.
    width (int): The most characters.
    RETURNS (str): Empty if the output's encoding has no block characters.
    """
    try:
        _BLOCKS.encode(console.encoding)
    except UnicodeError:
        return ""
    n, width = len(heights), max(1, min(width, len(heights)))
    cells = [max(heights[i * n // width : (i + 1) * n // width]) for i in range(width)]
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(cell * len(_BLOCKS)))] for cell in cells)
