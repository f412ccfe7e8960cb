"""What a figure of matplotlib shows, read back from its axes."""

from typing import Any


def series(axes: Any) -> list[tuple[str, str, str, list[tuple[float, float]]]]:
    """The lines as they were drawn: name ("": it is not in the legend), colour, dashes or else the marker, and points.
    Those of a line through the whole height are (x, 0) and (x, 1).
    """
    from matplotlib.colors import to_hex

    found = []
    for line in axes.lines:
        name = line.get_label()
        look = line.get_marker() if line.get_linestyle() == "None" else line.get_linestyle()
        points = [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        found.append(("" if name.startswith("_") else name, to_hex(line.get_color()), look, points))
    return found


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
