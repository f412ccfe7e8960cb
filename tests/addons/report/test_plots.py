"""Pictures: that they are drawn from the numbers, whole or not at all, without a display."""

import errno
import math
import os

import pytest

from thinc_torchopt.addons.report import plots
from thinc_torchopt.addons.trials.lr_finder import RangeTest
from thinc_torchopt.core import compat
from thinc_torchopt.core.errors import ConfigError

from ...forks import python

RATES = {"default": [0.0, 0.1, 0.2], "encoder/layer-1": [0.0, 0.01, 0.02], "cost $5": [0.1, 0.1, 0.1]}


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """The figures that were saved."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figures, save = [], plots.save
    monkeypatch.setattr(plots, "save", lambda figure, path: (figures.append(figure), save(figure, path)))
    return figures


@pytest.mark.parametrize("suffix, start", [("png", b"\x89PNG"), ("SVG", b"<?xml"), ("pdf", b"%PDF")])
def test_plots_schedule(tmp_path, drawn, suffix, start):
    path = tmp_path / "new" / f"rates.{suffix}"
    plots.check_picture(path)
    plots.plot_schedule(RATES, path)
    assert path.read_bytes().startswith(start)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    [axes] = drawn[0].axes
    assert axes.get_yscale() == "linear"
    shown = dict(zip((text.get_text() for text in axes.get_legend().get_texts()), axes.lines, strict=True))
    assert {name: list(line.get_ydata()) for name, line in shown.items()} == RATES
    assert all(list(line.get_xdata()) == [0, 1, 2] for line in shown.values())


def test_plots_equal_schedules_once_with_all_their_names(tmp_path, drawn):
    rates = {f"layer-{i}": [0.1, 0.05] for i in range(12)} | {"head": [0.2, 0.1], "frozen": [0.0, 0.0]}
    plots.plot_schedule(rates, tmp_path / "rates.png", title="Learning rates of my.cfg")
    [axes] = drawn[0].axes
    names = [text.get_text().replace("\n", " ") for text in axes.get_legend().get_texts()]
    assert names == ["head", ", ".join(f"layer-{i}" for i in range(12)), "frozen (always 0)"]
    assert len(axes.lines) == 3 and axes.get_title(loc="left") == "Learning rates of my.cfg"


def test_plots_schedule_log_axis_ends_where_rates_matter(tmp_path, drawn):
    """A cosine ends at 1e-12: that would be most of the picture."""
    plots.plot_schedule({"a": [1e-3, 1e-12], "b": [4e-5, 0.0]}, tmp_path / "rates.png")
    [axes] = drawn[0].axes
    assert axes.get_yscale() == "log" and axes.get_ylim() == pytest.approx((4e-7, 1.5e-3))


def test_plots_are_the_same_each_time(tmp_path):
    for suffix in ("svg", "pdf", "png"):
        first, second = (tmp_path / f"{name}.{suffix}" for name in ("first", "second"))
        for path in (first, second):
            plots.plot_schedule(RATES, path)
        assert first.read_bytes() == second.read_bytes()


def test_plots_many_groups_have_each_a_name_and_a_look(tmp_path, drawn):
    from matplotlib.colors import to_rgba

    rates = {f"layer-{i}": [i, i + 1] for i in range(25)}
    plots.plot_schedule(rates, tmp_path / "rates.svg")
    [axes] = drawn[0].axes
    assert len({to_rgba(line.get_color()) for line in axes.lines}) == 25
    assert {text.get_text() for text in axes.get_legend().get_texts()} == set(rates)


def test_plots_range_test(tmp_path, drawn):
    rates, losses = [1e-4, 1e-3, 1e-2, 1e-1, 1.0], [9.0, 2.0, 1.0, 500.0, math.nan]
    found = RangeTest(rates, losses, first=1, smoothed=[2.0, 1.5, 1.6], stretch=(2, 3))
    plots.plot_range_test(found, tmp_path / "lr.png")
    [axes] = drawn[0].axes
    each, smoothed, stretch, mark, out = axes.lines
    assert (list(each.get_xdata()), list(each.get_ydata())) == (rates[1:4], losses[1:4])
    assert list(out.get_xdata()) == [1e-4, 1.0] and out.get_label() == "left out"
    assert list(out.get_ydata()) == [axes.get_ylim()[1]] * 2  # too high for the picture
    assert list(smoothed.get_ydata()) == [2.0, 1.5, 1.6]
    assert (list(stretch.get_xdata()), list(stretch.get_ydata())) == ([1e-2, 1e-1], [1.5, 1.6])
    assert list(mark.get_xdata()) == [found.suggestion] * 2 and axes.get_xscale() == "log"
    [around] = axes.patches
    assert around.get_extents().transformed(axes.transData.inverted()).intervalx == pytest.approx(
        [found.suggestion / 3, 3 * found.suggestion]
    )
    assert axes.get_ylim()[0] < 1.0 and 2.0 < axes.get_ylim()[1] < 3.0  # not up to 500


def test_plots_learning_curve(tmp_path, drawn):
    scores = {3: [0.5, 0.7], 6: [0.8, 0.9], 12: [0.95]}
    plots.plot_learning_curve(scores, tmp_path / "curve.png", title="пример.cfg")
    [axes] = drawn[0].axes
    each, mean, *caps = axes.lines
    assert [*zip(each.get_xdata(), each.get_ydata())] == [(3, 0.5), (3, 0.7), (6, 0.8), (6, 0.9), (12, 0.95)]
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([3, 6, 12], pytest.approx([0.6, 0.85, 0.95]))
    low, high = (list(cap.get_ydata()) for cap in caps)
    # The standard deviation of two is their distance by the root of 2.
    assert high == pytest.approx([0.6 + 0.2 / 2**0.5, 0.85 + 0.1 / 2**0.5, 0.95])
    assert low == pytest.approx([0.6 - 0.2 / 2**0.5, 0.85 - 0.1 / 2**0.5, 0.95])
    assert list(axes.get_xticks()) == [3, 6, 12] and axes.get_xlim()[0] == 0
    assert axes.get_title(loc="left") == "пример.cfg"


def test_plots_nothing_to_smooth_is_drawn_all_the_same(tmp_path):
    plots.plot_range_test(RangeTest([1e-3], [math.nan]), tmp_path / "lr.png")
    plots.plot_schedule({"frozen": [0.0, 0.0]}, tmp_path / "rates.png")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("error", "advice"), [(errno.ENOSPC, "Make room on the disk"), (errno.EACCES, "Change --output")]
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
    with pytest.raises(ImportError, match="not installed"):
        plots.plot_schedule(RATES, tmp_path / "rates.png")


def test_plots_open_no_display(tmp_path, monkeypatch):
    """Not even where matplotlib is told to: pyplot, which would, is never imported."""
    code = (
        "import sys; from pathlib import Path; from thinc_torchopt.addons.report import plots; "
        "assert 'matplotlib' not in sys.modules; "
        f"plots.plot_schedule({{'default': [1.0, 2.0]}}, Path({str(tmp_path / 'a.png')!r})); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    for name, value in {"MPLBACKEND": "TkAgg", "MPLCONFIGDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    assert python(code).stdout.strip() == "False"


@pytest.mark.parametrize("importances", [{}, {"b.kind": 0.3, "a.rate": 0.7}], ids=["unknown", "known"])
def test_plots_study(tmp_path, drawn, importances):
    points = [
        plots.Point(0, 0.5, 0.5, {"a.rate": 1e-3, "b.kind": "x"}),
        plots.Point(1, None, 0.2, {"a.rate": 1e-1, "b.kind": True}),
        plots.Point(3, 0.7, 0.7, {"a.rate": 1e-2, "b.kind": "x"}),
    ]
    plots.plot_study(points, importances, ["a.rate"], 0.6, tmp_path / "tune.svg")
    history, bars, *slices = drawn[0].axes
    assert [list(line.get_ydata()) for line in history.lines] == [[0.5, 0.7], [0.6, 0.6]]
    early, done = (sorted(scatter.get_offsets().tolist()) for scatter in history.collections)
    assert early == [[1.0, 0.2]] and done == [[0.0, 0.5], [3.0, 0.7]]
    assert [bar.get_width() for bar in bars.patches] == list(importances.values())
    by_name = {axes.get_xlabel(): axes for axes in slices}
    assert by_name["a.rate"].get_xscale() == "log" and by_name["b.kind"].get_xscale() == "linear"
    assert sorted(by_name["a.rate"].collections[1].get_offsets().tolist()) == [[1e-3, 0.5], [1e-2, 0.7]]


def test_plots_a_study_in_which_nothing_came_to_its_end(tmp_path, drawn):
    plots.plot_study([], {}, [], None, tmp_path / "tune.png")
    assert (tmp_path / "tune.png").is_file()
