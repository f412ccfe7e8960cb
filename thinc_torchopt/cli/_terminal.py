"""Output of commands: JSON, tables, notes, small charts, and numbers in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

# Starts the lines of a row after its first line.
_INDENT = "    "
_BLOCKS = "▁▂▃▄▅▆▇█"


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


# ---------------------------------------------------------------------- numbers in words


def short(value: float | None) -> str:
    """A number with three digits. None: empty."""
    return "" if value is None else f"{value:.3g}"


def size_in_words(size: float) -> str:
    """Bytes in words: "12 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.{0 if size >= 9.95 * scale else 1}f} {unit}"
    return f"{size:,.0f} bytes"


def time_in_words(seconds: float) -> str:
    """A duration in words: "2.5 hours", "14 minutes", "0.03 seconds"."""
    if seconds >= 5_400:
        return f"{seconds / 3_600:,.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds:.2g} seconds" if seconds < 10 else f"{seconds:.0f} seconds"
