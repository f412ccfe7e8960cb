"""Pictures: that they are drawn from the numbers, whole or not at all, without a display."""

import errno
import math
import os
from functools import partial

import pytest
from pytest import approx

from thinc_torchopt.addons.report import plots
from thinc_torchopt.addons.report.style import COLOURS, MUTED, style
from thinc_torchopt.addons.trials.lr_finder import RangeTest
from thinc_torchopt.core import compat
from thinc_torchopt.core.errors import ConfigError

from ...forks import python
from ...pictures import drawn, series, widths

C = COLOURS
RATES = {"encoder/layer-1": [0.0, 0.01, 0.02], "default": [0.0, 0.1, 0.2], "cost $5": [0.1, 0.1, 0.1]}
ALIKE = RATES | {"frozen": [0.0, 0.0, 0.0], "same": RATES["default"]}
GROUPS = [
    ("default, same", C[0], "-", [(0, 0.0), (1, 0.1), (2, 0.2)]),
    ("cost $5", C[1], "--", [(0, 0.1), (1, 0.1), (2, 0.1)]),
    ("encoder/layer-1", C[2], ":", [(0, 0.0), (1, 0.01), (2, 0.02)]),
    ("frozen (always 0)", C[3], "-.", [(0, 0.0), (1, 0.0), (2, 0.0)]),
]
# A cosine ends at 1e-12: that would be most of the picture.
COSINES = {"b": [4e-5, 0.0], **{f"layer-{i}": [1e-3, 1e-12] for i in range(12)}}
LAYERS = (
    "layer-0, layer-1, layer-2, layer-3, layer-4,\nlayer-5, layer-6, layer-7, layer-8, layer-9,\nlayer-10, layer-11"
)
LOGARITHMIC = [(LAYERS, C[0], "-", [(0, 1e-3), (1, 1e-12)]), ("b", C[1], "--", [(0, 4e-5), (1, 0.0)])]

SWEEP = partial(RangeTest, [1e-4, 1e-3, 1e-2, 1e-1, 1.0], [9.0, 2.0, 1.0, 500.0, math.nan], first=1)
BEST = 0.5 * (1e-2 * 1e-1) ** 0.5  # half of the middle of the stretch
SWEPT = [
    ("loss", C[0], ".", [(1e-3, 2.0), (1e-2, 1.0), (1e-1, 500.0)]),
    ("smoothed", C[0], "-", [(1e-3, 2.0), (1e-2, 1.5), (1e-1, 1.6)]),
    ("stretch: nearly as low", C[2], "-", [(1e-2, 1.5), (1e-1, 1.6)]),
    ("suggestion: 0.016", C[1], "--", [(BEST, 0), (BEST, 1)]),
    ("left out", MUTED, "x", [(1e-4, 2.1), (1.0, 2.1)]),  # too high for the picture, and not finite
]
SMOOTHED, NOT_FINITE = [2.0, 1.5, 1.6], [("left out", MUTED, "x", [(1e-3, math.inf)])]

SCORES = {3: [0.5, 0.7], 6: [0.8, 0.9], 12: [0.95]}
CURVE = [
    ("of each seed", C[0], ".", [(3, 0.5), (3, 0.7), (6, 0.8), (6, 0.9), (12, 0.95)]),
    ("mean and spread", C[0], "-", [(3, approx(0.6)), (6, approx(0.85)), (12, 0.95)]),
]
# The standard deviation of two is their distance by the root of 2.
SPREAD = [[(3, 0.6 - 0.02**0.5), (3, 0.6 + 0.02**0.5)], [(6, 0.85 - 0.005**0.5), (6, 0.85 + 0.005**0.5)]]

TRIALS = [
    plots.Point(0, 0.5, "complete", {"a.rate": 1e-3, "b.kind": "x"}),
    plots.Point(1, 0.2, "pruned", {"a.rate": 1e-1, "b.kind": True}),
    plots.Point(3, 0.7, "complete", {"a.rate": 1e-2, "b.kind": "x"}),
    plots.Point(4, 0.6, "complete", {"a.rate": 1e-4}),
    plots.Point(5, 0.9, "running", {}),
]
BARS = {"How much each setting matters | importance | ": ("linear", "linear", [], (0, 0.3), (0, 0.7))}


def trials(stopped, *done):
    return [("stopped early", MUTED, "x", [stopped]), ("to the end", C[0], "o", [*done])]


HISTORY = [
    ("not finished", MUTED, "+", [(5, 0.9)]),
    *trials((1, 0.2), (0, 0.5), (3, 0.7), (4, 0.6)),
    ("best so far", C[0], "-", [(0, 0.5), (3, 0.7), (4, 0.7)]),
    ("the config as it is, other seeds", C[1], "--", [(0, 0.55), (1, 0.55)]),
]
RATES_TRIED = trials((1e-1, 0.2), (1e-3, 0.5), (1e-2, 0.7), (1e-4, 0.6))
BY_RATE = {" | a.rate | score (0 to 1)": ("log", "linear", RATES_TRIED)}
BY_KIND = {" | b.kind | score (0 to 1)": ("linear", "linear", trials(("True", 0.2), ("x", 0.5), ("x", 0.7)))}
RANGE_TEST = "Learning rate range test | learning rate | loss per word"
STUDY = "Trials | trial | score (0 to 1)"
PICTURES = {
    "schedule": lambda path: plots.plot_schedule(ALIKE, path, title="Rates of $my.cfg"),
    "schedule, logarithmic": lambda path: plots.plot_schedule(COSINES, path),
    "range test": lambda path: plots.plot_range_test(SWEEP(smoothed=SMOOTHED, stretch=(2, 3)), path),
    "range test without a suggestion": lambda path: plots.plot_range_test(SWEEP(smoothed=SMOOTHED), path),
    "range test with nothing to smooth": lambda path: plots.plot_range_test(RangeTest([1e-3], [math.nan]), path),
    "learning curve": lambda path: plots.plot_learning_curve(SCORES, path, title="пример.cfg"),
    "study": lambda path: plots.plot_study(TRIALS, {"b.kind": 0.3, "a.rate": 0.7}, ["a.rate"], 0.55, path),
    "study without importances": lambda path: plots.plot_study(TRIALS, {}, ["a.rate"], None, path),
    "study without trials": lambda path: plots.plot_study([], {}, [], None, path),
}
# By the title and labels of each panel: its scales, lines, and how far bars and coloured areas go.
SHOWN = {
    "schedule": {"Rates of $my.cfg | step | learning rate": ("linear", "linear", GROUPS)},
    "schedule, logarithmic": {" | step | learning rate": ("linear", "log", LOGARITHMIC)},
    "range test": {RANGE_TEST: ("log", "linear", SWEPT, (BEST / 3, 3 * BEST))},
    "range test without a suggestion": {RANGE_TEST: ("log", "linear", [*SWEPT[:2], SWEPT[4]])},
    "range test with nothing to smooth": {RANGE_TEST: ("log", "linear", NOT_FINITE)},
    "learning curve": {"пример.cfg | texts | score (0 to 1)": ("linear", "linear", CURVE)},
    "study": {STUDY: ("linear", "linear", HISTORY), **BARS, **BY_KIND, **BY_RATE},
    "study without importances": {STUDY: ("linear", "linear", HISTORY[:4]), **BY_RATE, **BY_KIND},
    "study without trials": {STUDY: ("linear", "linear", [("best so far", C[0], "-", [])])},
}
# Of the vertical axis: 8% above the highest rate; from a hundredth of the lowest peak to half above the highest; 10%
# around the lowest loss and the highest smoothed one, which is not 500.
LIMITS = {"schedule": (0.0, 0.216), "schedule, logarithmic": (4e-7, 1.5e-3), "range test": (0.9, 2.1)}


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """Those that were saved."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    return drawn(monkeypatch)


@pytest.mark.parametrize("name", PICTURES)
def test_plots_show_the_numbers(name, tmp_path, figures):
    PICTURES[name](tmp_path / "a.svg")
    all_axes = {}
    for axes in figures[0].axes:
        if axes.axison:
            all_axes[f"{axes.get_title(loc='left')} | {axes.get_xlabel()} | {axes.get_ylabel()}"] = axes
    assert [*all_axes] == [*SHOWN[name]]
    for title, (x, y, lines, *areas) in SHOWN[name].items():
        axes = all_axes[title]
        assert (axes.get_xscale(), axes.get_yscale(), series(axes)) == (x, y, lines)
        assert widths(axes) == [approx(area) for area in areas]
    first, *others = all_axes.values()
    assert name not in LIMITS or first.get_ylim() == approx(LIMITS[name])
    if name != "study without trials":
        legend, saved = (
            [text.get_text() for text in first.get_legend().get_texts()],
            (tmp_path / "a.svg").read_text("utf8"),
        )
        assert all(f">{line}<" in saved for text in legend for line in text.splitlines())
        assert [line for line, *_ in series(first) if line] == [
            text for text in legend if text != "a third to three times of it"
        ]
    if name == "learning curve":
        assert list(first.get_xticks()) == [*SCORES] and first.get_xlim()[0] == 0
        bars = [bar.tolist() for bar in first.collections[0].get_segments()]
        assert bars[:2] == [[approx(end) for end in bar] for bar in SPREAD] and bars[2] == [[12, 0.95]] * 2
    if name == "range test":
        from matplotlib.colors import to_hex

        assert to_hex(first.patches[0].get_facecolor()) == C[1]
    assert [*figures[0].get_size_inches()] == ([12, 6] if "study" in name else [9, 5])
    assert all(line.get_clip_on() is (line.get_label() != "left out") for line in first.lines)
    if name == "study":
        bars, _, by_rate = others
        assert [text.get_text() for text in bars.get_yticklabels()] == ["b.kind", "a.rate"] and bars.yaxis_inverted()
        ticks = zip(by_rate.get_xticks(), by_rate.get_xticklabels())
        assert [label.get_text() for at, label in ticks if 1e-4 <= at <= 0.1] == ["0.0001", "0.001", "0.01", "0.1"]
        above, below = figures[0].subfigs
        assert above.bbox.height == approx(below.bbox.height)


@pytest.mark.parametrize("suffix, start", [("png", b"\x89PNG"), ("SVG", b"<?xml"), ("pdf", b"%PDF")])
def test_plots_are_the_same_each_time(tmp_path, suffix, start):
    first, second = (tmp_path / folder / f"rates.{suffix}" for folder in ("first", "second"))
    for path in (first, second):
        plots.check_picture(path)
        plots.plot_schedule(RATES, path)
        assert [*path.parent.iterdir()] == [path]
    assert first.read_bytes() == second.read_bytes() and first.read_bytes().startswith(start)


@pytest.mark.parametrize("n", [6, 7, 25])
def test_plots_many_groups_have_each_a_name_and_a_look(n, tmp_path, figures):
    """A legend with more than six lines is beside the picture."""
    rates = {f"layer-{i}": [i, i + 1] for i in range(n)}
    plots.plot_schedule(rates, tmp_path / "rates.svg")
    [axes] = figures[0].axes
    names, colours, *_ = zip(*series(axes))
    assert len(set(colours)) == n and set(names) == set(rates)
    assert (axes.get_legend().get_window_extent().x0 > axes.get_window_extent().x1) == (n > 6)


@pytest.mark.parametrize(
    ("error", "advice"), [(errno.ENOSPC, "Make room on the disk"), (errno.EACCES, "Choose another place")]
)
def test_plots_are_never_half_written(error, advice, tmp_path, monkeypatch):
    path = tmp_path / "rates.png"
    plots.plot_schedule(RATES, path)
    before = path.read_bytes()
    figure = compat.import_figure()

    def fails(self, target, **kwargs):
        target.write_bytes(b"half a pic")
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(figure, "savefig", fails)
    with pytest.raises(ConfigError, match=rf"Can.t write .*rates\.png: .*{os.strerror(error)}. {advice}\.$"):
        plots.plot_schedule({"default": [1.0]}, path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["rates", "rates.txt", "rates.png.zip"])
def test_plots_refuse_what_matplotlib_can_not_write(tmp_path, name):
    with pytest.raises(ConfigError, match=r"expected a name that ends in one of .*\.png"):
        plots.check_picture(tmp_path / name)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match="expected a file, found a folder"):
        plots.check_picture(tmp_path / "folder.png")


def test_plots_without_matplotlib_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(compat, "has_matplotlib", False)
    with pytest.raises(ImportError, match=r"pip install 'matplotlib>="):
        plots.check_picture(tmp_path / "rates.png")
    with pytest.raises(ImportError, match="not installed"), style():
        pass


def test_plots_open_no_display(tmp_path, monkeypatch):
    """Not even where matplotlib is told to: pyplot, which would, is never imported."""
    code = (
        "import sys; from pathlib import Path; from thinc_torchopt.addons.report import plots; "
        "from thinc_torchopt.cli import find_lr, report, schedule, try_, tune; "
        "assert 'matplotlib' not in sys.modules; "
        f"plots.plot_schedule({{'default': [1.0, 2.0]}}, Path({str(tmp_path / 'a.png')!r})); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    for name, value in {"MPLBACKEND": "TkAgg", "MPLCONFIGDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    assert python(code).stdout.strip() == "False"
