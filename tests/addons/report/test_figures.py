"""The panels of a report: what is drawn, as matplotlib has it, is what the log says."""

from bisect import bisect_right

import pytest

from thinc_torchopt.addons.report.figures import make_panels
from thinc_torchopt.addons.report.runs import read_runs
from thinc_torchopt.addons.report.style import COLOURS
from thinc_torchopt.core import compat

from .kit import events, needs_matplotlib, only, row, rows, write

# ---------------------------------------------------------------------- panels


def panels_of(*paths):
    """The axes of each panel, by its title, as a page and a picture have them; and what is said about it."""
    figure = compat.import_figure()()
    found = {}
    for panel in make_panels(read_runs(paths)):
        axes = figure.add_subplot()
        axes.caption = panel.draw(axes)
        found[panel.title] = axes
    return found


def curves(axes):
    """By name, steps and values."""
    named = zip(*reversed(axes.get_legend_handles_labels()))
    return {
        name: (line.get_xdata().tolist(), line.get_ydata().tolist()) for name, line in named if len(line.get_xdata())
    }


def marks(axes):
    """By name, the steps of the marks in its row."""
    lines = [line for line in axes.lines if line.get_linestyle() == "None"]
    rows = [text.get_text() for text in axes.texts]
    return {
        rows[round(-line.get_ydata()[0] - 0.18)]: sorted(line.get_xdata()) for line in lines if len(line.get_xdata())
    }


@needs_matplotlib
def test_figures_panels_of_one_run(tmp_path):
    lines = rows(30)
    lines[7]["grad_norm"] = 500.0
    for line in lines[8:]:
        line["grad_spikes"] = 1
    panels = panels_of(write(tmp_path / "log.jsonl", lines))
    assert list(panels) == ["Score", "Loss", "Learning rate", "Gradient norm", "Speed", "What happened"]
    # The main score is ents_f; precision, recall, the tokenizer's and the speed are left to the table.
    assert list(curves(panels["Score"])) == ["main score", "tag_acc", f"best: {1 - 1 / 27:.4g}"]
    assert curves(panels["Score"])["main score"][0] == [0, 5, 10, 15, 20, 25]
    assert panels["Loss"].get_ylabel() == "loss per word"
    assert curves(panels["Loss"])["ner"][1] == pytest.approx([line["losses"]["ner"] / 100 for line in lines])
    assert set(curves(panels["Learning rate"])) == {"default", "encoder"}
    assert panels["Learning rate"].get_yscale() == "linear" and panels["Gradient norm"].get_yscale() == "log"
    assert marks(panels["What happened"]) == {"gradient spike": [8]}


@needs_matplotlib
def test_figures_shows_losses_per_word_and_nothing_that_is_none(tmp_path):
    """Every fourth step has a line, with the mean loss of its steps; an encoder's "loss" is the size of a gradient."""
    lines = [
        row(i, words=10 * (i + 1) ** 2, losses={"encoder": 1e-4, "tok2vec": 1e4, "ner": i + 2.0}) for i in (0, 4, 8)
    ]
    lines[0]["sums_of_gradients"] = ["encoder"]
    lines[2]["dev_losses"] = {"losses": {"ner": 30.0, "encoder": 9.0}, "words": 60, "examples": 2}
    axes = panels_of(write(tmp_path / "log.jsonl", lines))["Loss"]
    assert curves(axes) == {
        "ner": ([0, 4, 8], pytest.approx([2.0 * 1 / 10, 6.0 * 4 / 240, 10.0 * 4 / 560])),
        "ner, dev set": ([8], [0.5]),
    }
    assert "sizes of gradients: encoder, tok2vec." in axes.caption
    without_words = [{key: value for key, value in line.items() if key != "words"} for line in lines]
    axes = panels_of(write(tmp_path / "without.jsonl", without_words))["Loss"]
    assert axes.get_ylabel() == "loss per step" and curves(axes) == {"ner": ([0, 4, 8], [2.0, 6.0, 10.0])}


@needs_matplotlib
def test_figures_panels_compare_runs(tmp_path):
    slow = [{**line, "losses": {"ner": 1.0}, "learn_rates": {"default": 0.01}} for line in rows(10)]
    panels = panels_of(write(tmp_path / "a" / "log.jsonl", rows(30)), write(tmp_path / "b" / "log.jsonl", slow))
    assert list(panels) == ["Score", "Loss of ner", "Learning rate", "Gradient norm", "Speed"]
    for title in ("Score", "Loss of ner", "Learning rate", "Gradient norm", "Speed"):
        handles, names = panels[title].get_legend_handles_labels()
        colours = {name: line.get_color() for line, name in zip(handles, names) if not name.startswith("best")}
        assert colours == {"a": COLOURS[0], "b": COLOURS[1]}
    top, bottom, other = panels["Learning rate"].lines
    assert set(top.get_ydata()) == {0.001} and set(bottom.get_ydata()) == {0.0005} and set(other.get_ydata()) == {0.01}


@needs_matplotlib
def test_figures_groups_with_the_same_rates_share_a_curve(tmp_path):
    rates = [{**{f"layer-{i}": 0.001 * 0.8**i for i in range(20)}, "same": 0.001, "frozen": 0.0} for _ in range(9)]
    axes = panels_of(write(tmp_path / "log.jsonl", [row(i, learn_rates=rates[i]) for i in range(9)]))["Learning rate"]
    assert "left out: frozen." in axes.caption and axes.get_yscale() == "log"
    assert len(curves(axes)) == 20 and next(iter(curves(axes))) == "layer-0, same"
    assert len({line.get_color() for line in axes.lines}) == 20
    # Where rates end; but not below a hundredth of the lowest peak.
    assert axes.get_ylim()[0] == pytest.approx(0.7 * 0.001 * 0.8**19)


@needs_matplotlib
def test_figures_of_a_long_run_keeps_every_peak_and_mark(tmp_path):
    n = 8_000
    lines = [row(i, grad_norm=1.0, grad_spikes=0) for i in range(n)]
    peaks = list(range(123, n, 266))
    for i, step in enumerate(peaks):
        lines[step]["grad_norm"] = 100.0 + i
    for i, line in enumerate(lines):
        line["grad_spikes"] = bisect_right(peaks, i)
    panels = panels_of(write(tmp_path / "log.jsonl", lines))
    faint, bold = panels["Gradient norm"].lines
    assert len(faint.get_xdata()) + len(bold.get_xdata()) < 2000
    drawn = dict(zip(faint.get_xdata().tolist(), faint.get_ydata().tolist()))
    assert all(drawn[step] == 100.0 + i for i, step in enumerate(peaks))
    assert marks(panels["What happened"]) == {"gradient spike": peaks}
    # Single spikes do not bend the bold curve.
    assert set(bold.get_ydata().tolist()) == {1.0}


@needs_matplotlib
def test_figures_marks_what_rules_did(tmp_path):
    """Rare ones through all panels, frequent ones in a row of their own."""

    def fired(name, step):
        return {"controller": name, "operation": "lr", "action": "should_cut", "event": "on_log", "step": step}

    lines = rows(60)
    for line in lines:
        step = line["step"]
        line["controller"] = [fired("often", step)] + [fired("rare $", step)] * (step in (20, 40))
    lines[3]["controller"] = [None, {"controller": 3, "step": 1}, {"controller": "no step"}, "text"]
    lines[4]["controller"] = "text"
    path = write(tmp_path / "log.jsonl", lines)
    run = only(read_runs([path]))
    assert ("rule rare $", 20, "lr.should_cut") in events(run) and len(events(run)) == 58 + 2
    panels = panels_of(path)
    found = marks(panels["What happened"])
    assert found == {"rule often": [step for step in range(60) if step not in (3, 4)], "rule rare $": [20, 40]}
    for title in ("Score", "Loss", "Learning rate", "Gradient norm", "Speed"):
        vertical = [line.get_xdata()[0] for line in panels[title].lines if len({*line.get_xdata()}) == 1]
        assert {20, 40} <= set(vertical) and 21 not in vertical
        assert "rule rare $" in panels[title].get_legend_handles_labels()[1]
