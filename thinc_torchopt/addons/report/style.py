"""The style of pictures, and how they are saved. Uses matplotlib without pyplot, so no display is needed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy

from ...core.compat import import_figure
from ...core.errors import ConfigError
from ...core.state import advice_on, replacing

# Colours that colour-blind people can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#a8428a", "#a87800", "#3a93c9", "#6b4fbb", "#5f6b76")
TEXT, MUTED, BAD = "#24292f", "#57606a", "#cf222e"
# Fonts of known systems, for letters that matplotlib's own font lacks.
_FONTS = "Noto Sans CJK JP|Noto Sans CJK SC|Droid Sans Fallback|Noto Sans Arabic|Noto Sans Hebrew|Noto Sans Devanagari"
_FONTS += "|Noto Sans Thai|Hiragino Sans|PingFang SC|Geeza Pro|Arial Unicode MS|Yu Gothic|Microsoft YaHei|Segoe UI"
# A rate below this part of its group's highest hardly matters.
_LEAST_RATE = 1 / 100
_LOG_FROM = 20.0


@contextmanager
def style(**settings: Any) -> Iterator[None]:
    """Set matplotlib's style, so that the same numbers give the same file. settings: More settings of matplotlib.

    RAISES (ImportError): matplotlib is not installed.
    """
    import_figure()
    from matplotlib.font_manager import fontManager
    from matplotlib.style import context

    installed = {font.name for font in fontManager.ttflist}
    look: Any = {
        "font.family": ["DejaVu Sans", *(name for name in _FONTS.split("|") if name in installed), "sans-serif"],
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "legend.fontsize": "small",
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
        "text.parse_math": False,
    }
    with context(["seaborn-v0_8-whitegrid", look | settings]), warnings.catch_warnings():
        # A letter without a font is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(width: float, height: float) -> Any:
    """A new figure. width, height (float): In inches."""
    return import_figure()(figsize=(width, height), layout="constrained")


def colour_of(i: int, n: int) -> str:
    """The colour of one of `n` curves: from a fixed list, or for many curves from a range."""
    if n <= len(COLOURS):
        return COLOURS[i]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["turbo"].resampled(n)(i))


def set_ticks(axes: Any, *, x: int | None = None) -> None:
    """Set a few readable ticks at both axes. x (int | None): The most parts of a horizontal axis of steps."""
    from matplotlib.ticker import NullLocator

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            if high < 1000 * low:
                axis.get_major_locator().set_params(subs=(1, 2, 5))
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: number(value))
    if axes.get_xscale() == "linear":
        axes.locator_params("x", nbins=x or "auto", integer=True)


def add_legend(axes: Any, *keys: Sequence[Any], is_beside: bool) -> None:
    """Add a legend. keys: Looks and names, if not of all curves. is_beside (bool): Outside, at the right."""
    axes.legend(*keys, **({"loc": "upper left", "bbox_to_anchor": (1, 1)} if is_beside else {}))


def number(value: float) -> str:
    """A number at an axis: 2,000; 0.0005; 1e-5."""
    if value == 0.0 or 1e-4 <= abs(value) < 1e6:
        return f"{round(value, 10):,.10g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def scale_rates(axes: Any, rates: Iterable[Sequence[float]]) -> bool:
    """Set the scale of an axis of learning rates: logarithmic if the groups differ much. It ends where rates hardly
    matter.

    rates (Iterable[Sequence[float]]): Of each group. NaN: unknown.
    RETURNS (bool): Whether it is logarithmic.
    """
    positive = [values[values > 0.0] for values in map(numpy.asarray, rates)]
    active = [float(values.max()) for values in positive if len(values)]
    log = bool(active) and max(active) > _LOG_FROM * min(active)
    if log:
        axes.set_yscale("log", nonpositive="mask")
        lowest = min(float(values.min()) for values in positive if len(values))
        axes.set_ylim(max(_LEAST_RATE * min(active), 0.7 * lowest), 1.5 * max(active))
    else:
        axes.set_ylim(0.0, 1.08 * max(active, default=1.0))
    return log


def needs_log(values: numpy.ndarray, *, of_all: bool = False) -> bool:
    """Whether values need a logarithmic scale: almost all are positive, and they differ much in size.

    of_all (bool): Count also a few outliers.
    """
    if not len(values) or values.min() < 0.0 or (values == 0.0).mean() > 0.05:
        return False
    low, high = numpy.percentile(values[values > 0.0], [1, 100 if of_all else 99])
    return bool(high > _LOG_FROM * low)


def check_place(path: Path, read: Sequence[Path]) -> None:
    """Check the path of an output file. RAISES (ConfigError): It is a folder, or one of the input files."""
    if path.is_dir():
        raise ConfigError(f"Can't write {path}: expected a file, found a folder. Add the name of a file.")
    for other in read:
        if path.exists() and other.exists() and path.samefile(other):
            raise ConfigError(f"Can't write {path}: it is one of the files to read, {other}. Choose another.")


@contextmanager
def save_whole(path: Path) -> Iterator[Path]:
    """Write a file completely or not at all, to the path that this yields. An existing file is replaced.

    RAISES (ConfigError): It can't be written.
    """
    try:
        with replacing(path) as unfinished:
            yield unfinished
    except OSError as error:
        raise ConfigError(f"Can't write {path}: {error}.{advice_on(error) or ' Choose another place.'}") from error


def save(figure: Any, path: Path) -> None:
    """Write a picture completely or not at all. The ending of its name gives the format."""
    kind = path.suffix.lower().lstrip(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with save_whole(path) as unfinished:
        figure.savefig(unfinished, format=kind, metadata=undated, bbox_inches="tight")
