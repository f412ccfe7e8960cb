"""Pictures: that they are drawn from the numbers, whole or not at all, without a display."""

import math
import subprocess
import sys

import pytest

from thinc_torchopt import compat
from thinc_torchopt.errors import ConfigError
from thinc_torchopt.report import plots

RATES = {"default": [0.0, 0.1, 0.2], "encoder/layer-1": [0.0, 0.01, 0.02], "cost $5": [0.1, 0.1, 0.1]}


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """The figures that were saved."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figures, save = [], plots._save
    monkeypatch.setattr(plots, "_save", lambda figure, path: (figures.append(figure), save(figure, path)))
    return figures


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("suffix, start", [("png", b"\x89PNG"), ("SVG", b"<?xml"), ("pdf", b"%PDF")])
def test_plots_schedule(tmp_path, drawn, suffix, start, log):
    path = tmp_path / "new" / f"rates.{suffix}"
    plots.check_picture(path)
    plots.plot_schedule(RATES, path, log=log)
    assert path.read_bytes().startswith(start)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    [axes] = drawn[0].axes
    assert axes.get_yscale() == ("log" if log else "linear")
    for line, rates in zip(axes.lines, RATES.values(), strict=True):
        shown = [math.nan if log and not rate else rate for rate in rates]
        assert list(line.get_xdata()) == [0, 1, 2]
        assert list(line.get_ydata()) == pytest.approx(shown, nan_ok=True)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["default", "encoder/layer-1", r"cost \$5"]


def test_plots_many_groups_have_each_a_name_and_a_look(tmp_path, drawn):
    from matplotlib.colors import to_rgba

    rates = {f"layer-{i}": [i, i + 1] for i in range(25)}
    plots.plot_schedule(rates, tmp_path / "rates.svg")
    [axes] = drawn[0].axes
    assert len({to_rgba(line.get_color()) for line in axes.lines}) == 25
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(rates)


def test_plots_range_test(tmp_path, drawn):
    rates, losses = [1e-3, 1e-2, 1e-1, 1.0], [2.0, 1.0, 500.0, math.nan]
    plots.plot_range_test(rates, losses, [2.0, 1.5, 1.6], {"steepest": 5e-3}, tmp_path / "lr.png")
    [axes] = drawn[0].axes
    each, smoothed, mark = axes.lines
    assert list(each.get_ydata()) == pytest.approx(losses, nan_ok=True) and list(smoothed.get_ydata()) == [
        2.0,
        1.5,
        1.6,
    ]
    assert list(mark.get_xdata()) == [5e-3, 5e-3] and axes.get_xscale() == "log"
    assert axes.get_ylim()[0] < 1.0 and 2.0 < axes.get_ylim()[1] < 3.0  # not up to 500


def test_plots_nothing_to_smooth_is_drawn_all_the_same(tmp_path):
    plots.plot_range_test([1e-3], [math.nan], [], {}, tmp_path / "lr.png")
    plots.plot_schedule({"frozen": [0.0, 0.0]}, tmp_path / "rates.png", log=True)
    assert len(list(tmp_path.iterdir())) == 2


def test_plots_are_never_half_written(tmp_path, monkeypatch):
    path = tmp_path / "rates.png"
    plots.plot_schedule(RATES, path)
    before = path.read_bytes()
    figure = compat.import_figure()

    def fails(self, target, **kwargs):
        target.write_bytes(b"half a pic")
        raise OSError("No space left on device")

    monkeypatch.setattr(figure, "savefig", fails)
    with pytest.raises(ConfigError, match=r"Can.t write .*rates\.png: No space.*change --output"):
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
    with pytest.raises(ImportError, match=r"pip install 'thinc-torchopt\[plot\]'"):
        plots.check_picture(tmp_path / "rates.png")
    with pytest.raises(ImportError, match="not installed"):
        plots.plot_schedule(RATES, tmp_path / "rates.png")


def test_plots_open_no_display(tmp_path):
    """Not even where matplotlib is told to: pyplot, which would, is never imported."""
    code = (
        "import sys; from pathlib import Path; from thinc_torchopt.report import plots; assert 'matplotlib' not in "
        "sys.modules; "
        f"plots.plot_schedule({{'default': [1.0, 2.0]}}, Path({str(tmp_path / 'a.png')!r})); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"MPLBACKEND": "TkAgg", "MPLCONFIGDIR": str(tmp_path)},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "False"
