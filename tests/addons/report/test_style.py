"""Numbers and scales of axes."""

from types import SimpleNamespace

import numpy
import pytest

from thinc_torchopt.addons.report.style import COLOURS, colour_of, needs_log, number, scale_rates, set_ticks, style
from thinc_torchopt.core import compat

from .kit import needs_matplotlib


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-3.0, "-3"),
        (0.1 + 0.2, "0.3"),
        (2_000.0, "2,000"),
        (999_999.0, "999,999"),
        (1e6, "1e6"),
        (1e-4, "0.0001"),
        (2.5e-5, "2.5e-5"),
    ],
)
def test_style_of_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "is_log", "of_all"),
    [
        ([], False, False),
        ([0.0, 0.0], False, False),
        ([1.0, 2.0], False, False),
        ([1.0, 1e3], True, True),
        ([-1.0, 1.0, 1e3], False, False),
        ([*[1.0] * 10, *[1e3] * 9, 0.0], True, True),  # 5% are 0
        ([*[1.0] * 9, *[1e3] * 9, 0.0], False, False),
        ([*[1.0] * 199, 1e3], False, True),  # one outlier
        ([*[1e-3] * 3, *[1.0] * 197], True, True),  # more than 1% are low
        ([*[1.0] * 50, *[20.0] * 50], False, False),
        ([*[1.0] * 50, *[20.5] * 50], True, True),
    ],
)
def test_style_of_scales(values, is_log, of_all):
    found = numpy.array(values)
    assert (needs_log(found), needs_log(found, of_all=True)) == (is_log, of_all)


@needs_matplotlib
@pytest.mark.parametrize(
    ("rates", "is_log", "limits"),
    [
        ([[0.0, 0.0]], False, (0.0, 1.08)),
        ([[0.0, 1.0], [20.0, 10.0]], False, (0.0, 21.6)),
        ([[0.5, 1.0], [20.5, 10.0]], True, (0.35, 30.75)),
    ],
)
def test_style_of_axes_of_rates(rates, is_log, limits):
    axes = compat.import_figure()().add_subplot()
    assert scale_rates(axes, rates) is is_log and axes.get_yscale() == ("log" if is_log else "linear")
    assert axes.get_ylim() == pytest.approx(limits)


@needs_matplotlib
@pytest.mark.parametrize(
    ("scale", "high", "ticks"),
    [
        ("log", 999, ["1", "2", "5", "10", "20", "50", "100", "200", "500"]),
        ("log", 1000, ["1", "10", "100", "1,000"]),
        ("linear", 4, ["1", "2", "3", "4"]),
    ],
)
def test_style_of_ticks(scale, high, ticks):
    axes = compat.import_figure()().add_subplot(xscale=scale, xlim=(1, high))
    set_ticks(axes)
    shown = [label.get_text() for at, label in zip(axes.get_xticks(), axes.get_xticklabels()) if 1 <= at <= high]
    assert shown == ticks and not len(axes.get_xticks(minor=True))


@needs_matplotlib
def test_style_of_letters_and_colours(monkeypatch):
    """Fonts that are installed, for letters that matplotlib's own lacks."""
    from matplotlib import font_manager, rcParams

    fonts = [SimpleNamespace(name=name) for name in ("Yu Gothic", "Comic Sans", "Noto Sans Arabic")]
    with monkeypatch.context() as patched:
        patched.setattr(font_manager.fontManager, "ttflist", fonts)
        with style():
            assert rcParams["font.family"] == ["DejaVu Sans", "Noto Sans Arabic", "Yu Gothic", "sans-serif"]
    assert tuple(colour_of(i, 8) for i in range(8)) == COLOURS
