"""Tables and small charts as text; and as HTML, for a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import StringIO
from typing import Final, Literal

from rich.console import Console
from wasabi.tables import table

# Without a terminal, lines may be as wide as needed.
ANY_WIDTH: Final = 100_000
_BLOCKS = "▁▂▃▄▅▆▇█"
# A notebook's own styles for tables weigh less. Its text may be dark or light, so there are no colours but those of
# labels, which have a background of their own.
_STYLE = """
.torchopt { font-size: 14px; line-height: 1.45; max-width: 1000px; }
.torchopt .torchopt-scroll { overflow-x: auto; margin: 8px 0; }
.torchopt table.torchopt-table { border-collapse: collapse; margin: 0; font-size: 13px; }
.torchopt table.torchopt-table th, .torchopt table.torchopt-table td { text-align: left; vertical-align: top;
  padding: 4px 14px 4px 0; border: 0; border-bottom: 1px solid rgba(128, 128, 128, 0.3); background: none;
  max-width: none; white-space: nowrap; font-variant-numeric: tabular-nums; }
.torchopt table.torchopt-table .torchopt-number { text-align: right; }
.torchopt table.torchopt-table .torchopt-text { white-space: normal; overflow-wrap: anywhere; min-width: 180px; }
.torchopt b.torchopt-stops, .torchopt b.torchopt-note, .torchopt b.torchopt-fine { color: #ffffff; border-radius: 4px;
  padding: 1px 7px; }
.torchopt .torchopt-stops { background: #cf222e; } .torchopt .torchopt-note { background: #9a6700; }
.torchopt .torchopt-fine { background: #1a7f37; }
.torchopt p { margin: 0; }
.torchopt details { margin: 8px 0; } .torchopt summary { cursor: pointer; }
"""


def print_table(
    console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    """Print a table.

    headers (Sequence[str]): The columns.
    rows (Sequence[Sequence[str]]): Their cells.
    numbers (Sequence[str]): Columns that are aligned to the right.
    """
    aligns: list[Literal["r", "c", "l"]] = ["r" if header in numbers else "l" for header in headers]
    text = table(rows, header=headers, divider=True, aligns=aligns, max_col=ANY_WIDTH, spacing=2)
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    console.print("\n".join(lines) + "\n", soft_wrap=True)


def sparkline(console: Console | None, heights: Sequence[float], width: int) -> str:
    """A small chart on one line.

    console (Console | None): Where it is shown. None: on a page, which has all characters.
    heights (Sequence[float]): 0 to 1. If there are more than `width`, neighbours are joined by their maximum.
    width (int): The most characters.
    RETURNS (str): Empty if the output's encoding has no block characters.
    """
    try:
        _BLOCKS.encode("utf8" if console is None else console.encoding)
    except UnicodeError:
        return ""
    n, width = len(heights), max(1, min(width, len(heights)))
    cells = [max(heights[i * n // width : (i + 1) * n // width]) for i in range(width)]
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(cell * len(_BLOCKS)))] for cell in cells)


def as_text(show: Callable[[Console], None], *, width: int = ANY_WIDTH) -> str:
    """The text that a function prints on a console, without colours."""
    stream = StringIO()
    # In a notebook, rich would show it there, too.
    plain = {"markup": False, "emoji": False, "highlight": False, "color_system": None, "force_jupyter": False}
    show(Console(file=stream, width=width, **plain))  # type: ignore[arg-type]
    return stream.getvalue().rstrip("\n")


# ---------------------------------------------------------------------- HTML


def html_of(*parts: str) -> str:
    """A cell of a notebook. parts (str): Its HTML."""
    return f'<div class="torchopt"><style>{_STYLE}</style>{"".join(parts)}</div>'


def html_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = (), texts: Sequence[str] = ()
) -> str:
    """A table as HTML. If it is too wide, it can be scrolled.

    headers (Sequence[str]): The columns.
    rows (Sequence[Sequence[str]]): Their cells, as text.
    numbers (Sequence[str]): Columns that are aligned to the right. texts (Sequence[str]): Columns with long lines.
    """
    kinds = dict.fromkeys(numbers, "torchopt-number") | dict.fromkeys(texts, "torchopt-text")

    def line(tag: str, cells: Sequence[str]) -> str:
        found = (
            f'<{tag} class="{kinds.get(header, "")}">{escape(cell)}</{tag}>' for header, cell in zip(headers, cells)
        )
        return f"<tr>{''.join(found)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return (
        f'<div class="torchopt-scroll"><table class="torchopt-table"><thead>{line("th", headers)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def html_lines(lines: Sequence[tuple[str, str]], *, kinds: Mapping[str, str] = {}) -> str:
    """Lines of label and text as HTML. kinds (Mapping[str, str]): "stops", "note" or "fine", by label."""

    def label_of(label: str) -> str:
        return (
            f'<b class="torchopt-{kinds[label]}">{escape(label)}</b>' if label in kinds else f"<b>{escape(label)}</b>"
        )

    body = "".join(
        f'<tr><td>{label_of(label) if label else ""}</td><td class="torchopt-text">{escape(text)}</td></tr>'
        for label, text in lines
    )
    return f'<div class="torchopt-scroll"><table class="torchopt-table"><tbody>{body}</tbody></table></div>'
