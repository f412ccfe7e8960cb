"""A training log in the console: spaCy's table, with learning rates and the gradient norm.

The table has spaCy's columns, then ours, in the width of the terminal. *wide*: exactly as spaCy prints its own table;
also used for any output that is no terminal. *narrow*: for a terminal that is too small for the wide table. Titles have
two lines, numbers fewer digits, and if that is not enough, columns are left out: see `ConsoleTable._narrower`. A
terminal of less than 80 columns gets the table for 80.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Optional, Union

import tqdm
from rich.cells import cell_len, set_cell_size
from spacy.language import Language
from spacy.training.loggers import console_logger_v3, setup_table
from wasabi.printer import Printer

from .files import Info, Logger, LogStep, block_of

_TOLD = {
    "skipped_updates": "skipped",
    "rollbacks": "rolled back",
    "outside_writes": "rates changed from outside",
}
# The least width that the table is laid out for.
_LEAST_WIDTH = 80
# With more groups than this, the table shows the lowest and the highest rate.
_MAX_RATE_COLUMNS = 4
# Widths in the narrow table: of losses, rates and the norm; and of scores. A title may be one character longer.
_NUMBER, _SCORE = 7, 5
_NORM = "norm"
# Keys of summary columns. Keys of groups begin with "LR ", so they never clash.
_ONLY, _LOWEST, _HIGHEST = "only", "lowest", "highest"
_TITLES = {_NORM: "Norm", _ONLY: "LR", _LOWEST: "LR min", _HIGHEST: "LR max"}


def ConsoleLogger(
    progress_bar: Optional[Literal["train", "eval"]] = None,
    console_output: bool = True,
    output_file: Optional[Union[str, Path]] = None,
) -> Logger:
    """spaCy's table, with the learning rates and the norm of the gradients. Registered as
    `thinc-torchopt.ConsoleLogger.v1`.

    spaCy's columns come first, unchanged. The header is printed with the first row, and again when param groups change.
    A row ends with a remark if updates were skipped or rules of the trainer controller fired since the row before.

    progress_bar ("train" | "eval" | None): Show the steps to the end of the training (where `max_steps` sets one) or to
        the next evaluation, the time left, the mean loss per step since the last evaluation, and the learning rate.
        Only if stderr is a terminal.
    console_output (bool): Print the table. Without it there is no progress bar either.
    output_file (str | Path | None): As in spacy.ConsoleLogger.v3, which writes it.
    RETURNS (Callable): The logger for [training.logger].
    RAISES (ConfigError): An argument is invalid.
    """
    block = block_of("thinc-torchopt.ConsoleLogger.v1")
    block.choice("progress_bar", progress_bar, ("train", "eval", None))
    block.flag("console_output", console_output)
    if output_file is not None:
        output_file = block.file("output_file", output_file, "the path of a file, or null")
    spacys = console_logger_v3(progress_bar=None, console_output=console_output, output_file=output_file)

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        printed = StringIO()
        log_theirs, finalize_theirs = spacys(nlp, printed, stderr)
        lines = printed.getvalue().splitlines()
        header = [lines.pop(-2), lines.pop()] if console_output else []
        for line in lines:
            print(line, file=stdout, flush=True)
        table = ConsoleTable(nlp, *header) if header else None
        bar = TrainingBar(nlp, progress_bar, stderr) if progress_bar is not None and table is not None else None

        def log_step(info: Info | None) -> None:
            if info is None:
                if bar is not None:
                    bar.update()
                return
            printed.seek(0)
            printed.truncate()
            log_theirs(info)
            if table is None:
                return
            since = info.get("since_evaluation", {})
            told = [f"{since[counter]} {word}" for counter, word in _TOLD.items() if since.get(counter)]
            told += [f"{name} fired" + f" {n} times" * (n > 1) for name, n in info.get("fired", {}).items()]
            remark = "  ".join(told)
            if bar is not None:
                bar.hide()
            for line in table.lines(printed.getvalue(), info, remark, terminal_width(stdout)):
                print(line, file=stdout, flush=True)
            if bar is not None:
                bar.go_on(info)

        def finalize() -> None:
            if bar is not None:
                bar.close()
            finalize_theirs()

        return log_step, finalize

    return setup


class TrainingBar:
    """A bar with the steps that are done and to do, the time left, the loss and the learning rate.

    kind ("train" | "eval"): To the end of the training, if it has one; or to the next evaluation.
    """

    def __init__(self, nlp: Language, kind: Literal["train", "eval"], stream: IO[str]):
        from ...loop.components import sums_of_gradients

        training = nlp.config.interpolate()["training"]
        self._nlp = nlp
        self._stream = stream
        self._to_end = kind == "train" and training["max_steps"] > 0
        self._total = training["max_steps" if self._to_end else "eval_frequency"]
        self._not_losses = sums_of_gradients(nlp)
        self._steps = 0  # since the last evaluation
        self._bar: tqdm.tqdm | None = None

    def go_on(self, info: Info) -> None:
        """Show it after an evaluation. info (dict): The log entry of the step."""
        self._steps = 0
        if self._bar is not None and self._to_end:
            self._bar.refresh()
            return
        what = "Step" if self._to_end else "To the evaluation:"
        self._bar = tqdm.tqdm(
            total=self._total,
            initial=info["step"] if self._to_end else 0,
            bar_format=f"{what} {{n_fmt}}/{{total_fmt}} |{{bar}}| {{remaining}} left{{postfix}}",
            smoothing=0.0 if self._to_end else 0.3,  # evaluations take a part of the time that is left
            disable=None,  # off if it is no terminal
            leave=False,
            file=self._stream,
        )

    def update(self) -> None:
        """A step is done."""
        from ...loop.log_numbers import latest_info

        if self._bar is None:
            return
        self._steps += 1
        if not self._bar.disable and (info := latest_info(self._nlp)):
            loss = sum(float(loss) for name, loss in info["losses"].items() if name not in self._not_losses)
            told = f"loss {loss / self._steps:.4g}, {_rates_in_brief(info)}"
            self._bar.set_postfix_str(told, refresh=False)
        self._bar.update(1)

    def hide(self) -> None:
        """Make room for a row of the table."""
        if self._bar is not None and self._to_end:
            self._bar.update(1)  # the step that was evaluated
            self._bar.clear()
        else:
            self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _rates_in_brief(info: Info) -> str:
    low, high = lowest_and_highest(info["learn_rates"])
    return f"LR {high:.2e}" if low == high else f"LR {low:.2e} to {high:.2e}"


# ---------------------------------------------------------------------- the table


class Column(NamedTuple):
    """A column.

    key (str): The key of its cells.
    title (str): As the wide table shows it, e.g. "LOSS NER".
    width, narrow_width (int): Width of its cells. The title may be wider.
    """

    key: str
    title: str
    width: int
    narrow_width: int = _NUMBER

    @property
    def narrow_title(self) -> tuple[str, str]:
        """The title in two lines. "LOSS NER", "LR ENCODER" and "ENTS_F" are split between the words."""
        for separator in " _":
            first, found, second = self.title.partition(separator)
            if found:
                return _cut(first), _cut(second)
        return "", _cut(self.title)


class TableLayout(NamedTuple):
    """The columns of a table.

    columns (list[Column]): From left to right.
    is_narrow (bool): Whether this is the narrow table.
    """

    columns: list[Column]
    is_narrow: bool

    @property
    def widths(self) -> list[int]:
        if self.is_narrow:
            return [max(column.narrow_width, *map(cell_len, column.narrow_title)) for column in self.columns]
        return [max(column.width, cell_len(column.title)) for column in self.columns]

    @property
    def width(self) -> int:
        return len(self._join(["" for _ in self.columns]))

    def is_like(self, other: TableLayout) -> bool:
        """Whether both have the same header, except for the order of columns."""
        return self.is_narrow == other.is_narrow and set(self.columns) == set(other.columns)

    def header(self) -> list[str]:
        rule = self._join(["-" * width for width in self.widths])
        if self.is_narrow:
            return [*(self._join(titles) for titles in zip(*(column.narrow_title for column in self.columns))), rule]
        # spaCy aligns titles to the left, and numbers to the right.
        return [self._join([column.title for column in self.columns], align_right=False), rule]

    def row(self, cells: dict[str, str]) -> str:
        shown = [cells[column.key] for column in self.columns]
        if self.is_narrow:
            shown = [shorten(cell, column.narrow_width) for cell, column in zip(shown, self.columns)]
        return self._join(shown)

    def _join(self, cells: Sequence[str], *, align_right: bool = True) -> str:
        padded = []
        for cell, width in zip(cells, self.widths):
            space = " " * (width - cell_len(cell))
            padded.append(space + cell if align_right else cell + space)
        return (" " if self.is_narrow else "  ").join(padded)


class ConsoleTable:
    """The table of one training run.

    nlp (Language): The pipeline.
    header, rule (str): The first two lines of spaCy's own table, from which its columns are read.
    """

    def __init__(self, nlp: Language, header: str, rule: str):
        widths = [len(dashes) for dashes in rule.split()]
        starts = accumulate([width + 2 for width in widths], initial=0)
        titles = [header[start : start + width].strip() for start, width in zip(starts, widths)]
        weights = [weight for weight in nlp.config["training"]["score_weights"].values() if weight is not None]
        n_scores = len(weights) + 1  # and the main score
        narrow = [3, 6, *[_NUMBER] * (len(titles) - 2 - n_scores), *[_SCORE] * n_scores]
        # spaCy shortens titles, so two may be the same.
        self.theirs = [Column(f"column {i}", *column) for i, column in enumerate(zip(titles, widths, narrow))]
        losses = [column.key for column in self.theirs[2:-n_scores]]
        scores = [column.key for column in self.theirs[-n_scores:-1]]
        trained = [proc for _, proc in nlp.pipeline if getattr(proc, "is_trainable", False)]
        not_a_loss = [key for key, proc in zip(losses, trained) if getattr(proc, "listening_components", None)]
        by_weight = sorted(zip(weights, range(len(scores), 0, -1), scores))
        # Columns that the narrow table leaves out, before and after the lower rates.
        self._first_out = [*(score for weight, _, score in by_weight if not weight), *not_a_loss]
        scores = [score for weight, _, score in by_weight if weight]
        losses = [loss for loss in reversed(losses) if loss not in not_a_loss]
        self._last_out = []
        while scores or losses:
            self._last_out.append((scores if len(scores) >= len(losses) else losses).pop(0))
        self._layout: TableLayout | None = None

    def lines(self, row: str, info: dict[str, Any], remark: str, room: int | None) -> list[str]:
        """The lines to print for an evaluation, with a header at first and if groups or the width have changed.

        row (str): spaCy's own row.
        info (dict): The log entry of the step.
        remark (str): Text to add to the row.
        room (int | None): Width of the terminal. None: there is no terminal.
        """
        room = None if room is None else max(room, _LEAST_WIDTH)
        cells = dict(zip([column.key for column in self.theirs], row.split())) | _cells(info)
        layout, left_out = self._fit(list(info.get("learn_rates", {})), room)
        lines = []
        if self._layout is None or not layout.is_like(self._layout):
            self._layout = layout
            lines = [*_tell_left_out(left_out, room), *layout.header()]
        line = self._layout.row(cells)
        if remark and room is not None and cell_len(line) + 2 + cell_len(remark) > room:
            return [*lines, line, f"    {remark}"]
        return [*lines, f"{line}  {remark}" if remark else line]

    def _fit(self, groups: list[str], room: int | None) -> tuple[TableLayout, list[str]]:
        """Choose the layout. RETURNS (tuple): The layout, and the titles of columns that are left out."""
        rates = _rate_keys(groups)
        wide = self._columns(rates)
        layout = TableLayout(wide, is_narrow=False)
        if room is None or layout.width <= room:
            return layout, []
        for columns in self._narrower(rates):
            layout = TableLayout(columns, is_narrow=True)
            if layout.width <= room:
                break
        shown = {column.key for column in layout.columns}
        left_out = [column.title for column in wide if column.key not in shown]
        return layout, left_out

    def _narrower(self, rates: list[str]) -> Iterator[list[Column]]:
        """Fewer and fewer columns for the narrow table. Removes, in this order: rates between the lowest and the
        highest; scores without a weight in the main score; the "losses" of tok2vec and transformer, which are no
        losses; all rates but the highest; other scores by rising weight, and losses, the more numerous of both first.
        """
        yield self._columns(rates)
        if len(rates) > 2:
            yield self._columns(rates := [_LOWEST, _HIGHEST])
        gone: set[str] = set()
        for key in self._first_out:
            gone.add(key)
            yield self._columns(rates, gone)
        if len(rates) > 1:
            yield self._columns(rates := [_HIGHEST], gone)
        for key in self._last_out:
            gone.add(key)
            yield self._columns(rates, gone)

    def _columns(self, rates: list[str], gone: set[str] = frozenset()) -> list[Column]:  # type: ignore[assignment]
        keys = [*rates, _NORM] if rates else []
        titles, widths, _ = setup_table(cols=[_TITLES.get(key, key) for key in keys], widths=[8 for _ in keys])
        return [column for column in [*self.theirs, *map(Column, keys, titles, widths)] if column.key not in gone]


def terminal_width(stream: IO[str]) -> int | None:
    """The width of a terminal. None: the stream is no terminal."""
    isatty = getattr(stream, "isatty", None)  # spaCy accepts streams without it
    return shutil.get_terminal_size().columns if isatty is not None and isatty() else None


def lowest_and_highest(rates: dict[str, float]) -> tuple[float, float]:
    """The lowest and highest rate, without zeros of frozen groups, unless all are zero."""
    active = [rate for rate in rates.values() if rate] or [0.0]
    return min(active), max(active)


def shorten(cell: str, width: int) -> str:
    """A number with at most `width` characters, with fewer digits if necessary."""
    if len(cell) <= width:
        return cell
    value = float(cell)
    forms = [] if "e" in cell else [f"{value:.1f}", f"{value:.0f}"]
    return next((form for form in forms if len(form) <= width), f"{value:.1e}")


def _rate_keys(groups: list[str]) -> list[str]:
    """The keys of the rate columns in the wide table. Empty: the optimizer is not ours."""
    if len(groups) <= 1:
        return [_ONLY for _ in groups]
    return [f"LR {group}" for group in groups] if len(groups) <= _MAX_RATE_COLUMNS else [_LOWEST, _HIGHEST]


def _cells(info: dict[str, Any]) -> dict[str, str]:
    """The cells of all our columns, shown or not. Empty: the optimizer is not ours."""
    if "learn_rates" not in info:
        return {}
    lowest, highest = lowest_and_highest(info["learn_rates"])
    rates = {f"LR {group}": rate for group, rate in info["learn_rates"].items()}
    rates |= {_ONLY: max(info["learn_rates"].values()), _LOWEST: lowest, _HIGHEST: highest}
    return {key: f"{rate:.2e}" for key, rate in rates.items()} | {_NORM: _norm(info["grad_norm"])}


def _norm(norm: float | None) -> str:
    if norm is None:
        return ""
    return f"{norm:.2f}" if 0.01 <= norm < 100_000 else f"{norm:.2e}"


def _cut(title: str) -> str:
    """A part of a title, shortened as in spaCy."""
    most = _NUMBER + 1
    return title if cell_len(title) <= most else set_cell_size(title.rstrip("."), most - 3).rstrip() + "..."


def _tell_left_out(titles: list[str], room: int | None) -> list[str]:
    if not titles or room is None:
        return []
    title = f"Left out, as the terminal has {room} columns: {', '.join(titles)}."
    text = "A wider terminal shows them; thinc-torchopt.JSONLinesLogger.v1 writes them to a file."
    return [Printer(no_print=True).info(title, text)]
