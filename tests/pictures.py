"""What a figure of matplotlib shows, read back from its axes."""

from typing import Any


def drawn(monkeypatch: Any) -> list[Any]:
    """The figures that are saved from now on."""
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kwargs: (figures.append(figure), save(figure, *args, **kwargs))
    )
    return figures


def series(axes: Any) -> list[tuple[str, str, str, list[tuple[Any, float]]]]:
    """The lines as they were drawn: name ("": it is not in the legend), colour, dashes or else the marker, and points.
    Those of a line through the whole height are (x, 0) and (x, 1), and those of one through the whole width (0, y) and
    (1, y).
    """
    from matplotlib.colors import to_hex

    found, named = [], zip(*axes.get_legend_handles_labels())
    # A mean with its spread is several lines under one name.
    names = {handle[0] if isinstance(handle, tuple) else handle: name for handle, name in named}
    for line in axes.lines:
        look = line.get_marker() if line.get_linestyle() == "None" else line.get_linestyle()
        points = [(x if isinstance(x, str) else float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]
        found.append((names.get(line, ""), to_hex(line.get_color()), look, points))
    return found


def widths(axes: Any) -> list[tuple[float, float]]:
    """From where to where each bar and each coloured area goes, from left to right."""
    to_data = axes.transData.inverted()
    return [tuple(patch.get_extents().transformed(to_data).intervalx) for patch in axes.patches]


def curves(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """By name, the points of each line in the legend."""
    return {name: points for name, _, _, points in series(axes) if name and points}


def marks(axes: Any) -> list[tuple[str, str, str, list[float]]]:
    """Of a panel with a text above each row of marks: the text, colour, marker, and where they are."""
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    found = []
    for _, colour, look, points in series(axes):
        if points and look in "^vx<>Do":
            above = min((name for name in heights if heights[name] > points[0][1]), key=heights.__getitem__)
            found.append((above, colour, look, sorted(x for x, _ in points)))
    return found
