"""Tables and charts as text, and as HTML."""

import io

import pytest
from rich.console import Console

from thinc_torchopt.core.tables import as_text, html_lines, html_of, html_table, print_table, sparkline


@pytest.mark.parametrize(
    ("heights", "width", "line"),
    [
        ([0.0, 0.5, 1.0], 3, "▁▅█"),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 3, "▂▄▆"),
        ([0.0] * 50 + [1.0] + [0.0] * 49, 10, "▁▁▁▁▁█▁▁▁▁"),
        ([0.9, 0.1], 0, "█"),
        ([0.3], 80, "▃"),
    ],
)
def test_tables_draw_heights(heights, width, line):
    """Neighbours are joined by their maximum."""
    assert sparkline(None, heights, width) == line
    for encoding, shown in (("utf8", line), ("ascii", "")):
        assert sparkline(Console(file=io.TextIOWrapper(io.BytesIO(), encoding)), heights, width) == shown


def test_tables_are_printed_as_they_are():
    rows = [["[b]x[/b]", "1"], [":smile:", "22"], ["y" * 200, ""]]
    lines = as_text(lambda console: print_table(console, ["A", "Bee"], rows, numbers=["Bee"]), width=30).splitlines()
    assert lines[0].split() == ["A", "Bee"] and set(lines[1]) == {"-", " "}
    assert lines[2:] == ["[b]x[/b]" + " " * 196 + "1", ":smile:" + " " * 196 + "22", "y" * 200]
    assert as_text(lambda console: console.print("a b c\n"), width=3) == "a b\nc"


def test_tables_in_notebooks():
    found = html_table(["A", "<B>", "C"], [["1", "x & y", "z"]], numbers=["A"], texts=["C"])
    head = '<tr><th class="torchopt-number">A</th><th class="">&lt;B&gt;</th><th class="torchopt-text">C</th></tr>'
    body = '<tr><td class="torchopt-number">1</td><td class="">x &amp; y</td><td class="torchopt-text">z</td></tr>'
    assert f"<thead>{head}</thead><tbody>{body}</tbody>" in found
    found = html_lines([("Stops", "a <b"), ("Other", "c"), ("", "d")], kinds={"Stops": "stops"})
    for label, text in (('<b class="torchopt-stops">Stops</b>', "a &lt;b"), ("<b>Other</b>", "c"), ("", "d")):
        assert f'<tr><td>{label}</td><td class="torchopt-text">{text}</td></tr>' in found
    assert html_of("x", "y").startswith('<div class="torchopt"><style>') and html_of("x", "y").endswith(
        "</style>xy</div>"
    )
