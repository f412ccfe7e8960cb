"""Reports: from logs that the logger wrote in real trainings, and from logs as they are found. What is drawn, as
matplotlib has it, is compared with the numbers in the log, read by hand.
"""

import json
import math
import re
import signal
import time
import xml.etree.ElementTree as ElementTree
from bisect import bisect_right
from contextlib import ExitStack
from html import unescape
from html.parser import HTMLParser
from io import BytesIO, StringIO

import numpy
import pytest
import spacy
from confection import Config
from spacy.tokens import DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train

from thinc_torchopt.addons.report.figures import make_panels
from thinc_torchopt.addons.report.labels import Trained, title_of
from thinc_torchopt.addons.report.report import Report, _beside, read_report
from thinc_torchopt.addons.report.runs import facts_of, read_runs, summarize
from thinc_torchopt.addons.report.style import COLOURS
from thinc_torchopt.core import compat
from thinc_torchopt.core.errors import ConfigError, NonFiniteGradWarning, RollbackWarning
from thinc_torchopt.loop.checkpoint_folder import steps_of
from thinc_torchopt.loop.run_lock import hold

from ...forks import Started
from ...runs import config_for
from ...spacy_cli import spacy_cli

needs_matplotlib = pytest.mark.skipif(not compat.has_matplotlib, reason="matplotlib is not installed")


def row(step, **changes):
    """A line of a log, as the logger writes them without an evaluation."""
    return {
        "step": step,
        "epoch": step // 10,
        "seconds": 0.5 + 0.25 * step,
        "words": 100 * (step + 1),
        "losses": {"tok2vec": 3.0, "ner": 100.0 / (step + 1)},
        "learn_rates": {"default": 0.001, "encoder": 0.0005},
        "grad_norm": 2.0 + step % 3,
        "skipped_updates": 0,
        "grad_spikes": 0,
        "rollbacks": 0,
        "outside_writes": 0,
        **changes,
    }


def evaluated(step, score, **changes):
    scores = {
        "token_acc": 1.0,
        "ents_p": 0.1,
        "ents_r": 0.2,
        "ents_f": score,
        "tag_acc": 0.25,
        "speed": 9e3,
        "ents_per_type": {"X": {"f": 1.0}},
    }
    return row(step, score=score, scores=scores, **changes)


def rows(n, every=5, **changes):
    return [evaluated(i, 1 - 1 / (i + 2), **changes) if i % every == 0 else row(i, **changes) for i in range(n)]


def losses(*values):
    """Lines from which one panel is drawn."""
    return [{"step": i, "losses": {"ner": value}} for i, value in enumerate(values)]


def write(path, lines, end=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + end, encoding="utf8")
    return path


def only(runs):
    [run] = runs
    return run


def events(run):
    return [(event.kind, event.step, event.text) for event in run.events]


class Page(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    def all(self, name, **attrs):
        return [
            found
            for tag, found in self.tags
            if tag == name and all(found.get(key) == value for key, value in attrs.items())
        ]


# ---------------------------------------------------------------------- reading


def test_report_reads_what_is_in_a_log(tmp_path):
    lines = rows(23)
    run = only(read_runs([write(tmp_path / "a" / "log.jsonl", lines)]))
    assert run.steps.tolist() == list(range(23)) and run.label == "a/log" and not run.notes and not run.events
    assert run.columns["losses"]["ner"].tolist() == [line["losses"]["ner"] for line in lines]
    assert run.columns["learn_rates"]["encoder"].tolist() == [0.0005] * 23
    assert run.numbers("grad_norm").tolist() == [line["grad_norm"] for line in lines]
    assert (
        run.numbers("score")[::5].tolist() == [line["score"] for line in lines[::5]]
        and numpy.isnan(run.numbers("score")).sum() == 18
    )
    assert set(run.columns["scores"]) == {"token_acc", "ents_p", "ents_r", "ents_f", "tag_acc", "speed"}
    found = summarize(run)
    assert (found["best_score"], found["best_step"], found["last_step"], found["epoch"]) == (1 - 1 / 22, 20, 22, 2)
    assert (found["lowest_final_rate"], found["highest_final_rate"]) == (0.0005, 0.001)
    assert found["words_per_second"] == pytest.approx(400.0) and found["seconds"] == 6.0
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_report_best_score_is_the_first_of_equal_ones(tmp_path):
    lines = [evaluated(0, 0.5), evaluated(1, 0.75), evaluated(2, 0.75), evaluated(3, None)]
    assert only(read_runs([write(tmp_path / "log.jsonl", lines)])).best == (0.75, 1)


def test_report_speed_leaves_evaluations_out_if_the_log_tells_them_apart(tmp_path):
    """4 words a second, and evaluations of 100 seconds."""
    seconds, exact = 0.0, []
    for step in range(40):
        seconds += 0.25 + (100.0 if step and (step - 1) % 10 == 0 else 0.0)
        exact.append(
            (evaluated if step % 10 == 0 else lambda i, _, **kw: row(i, **kw))(step, 0.5, seconds=seconds, words=step)
        )
    run = only(read_runs([write(tmp_path / "exact.jsonl", exact)]))
    assert run.speed == pytest.approx(4.0)
    x, y = run.speeds()
    assert len(x) and y == pytest.approx(4.0)
    rounded = [{**line, "seconds": int(line["seconds"])} for line in exact]
    run = only(read_runs([write(tmp_path / "rounded.jsonl", rounded)]))
    assert run.speed == pytest.approx(39 / int(seconds), rel=0.01)
    assert numpy.isfinite(run.speeds()[1]).all()


@pytest.mark.parametrize(
    "end",
    ['{"step": 20, "epo', '{"step": 20, "losses": {"ner": 1.0}', "\x00\x00\x00", '{"step": 20}\n', "[" * 100_000],
    ids=range(5),
)
def test_report_of_a_run_that_was_killed_while_it_wrote(tmp_path, end):
    run = only(read_runs([write(tmp_path / "log.jsonl", rows(20), end)]))
    assert run.steps[-1] == 19 and len(run.notes) == 1 and "log.jsonl ends in half a line" in run.notes[0]


def test_report_names_damaged_lines(tmp_path):
    path = write(tmp_path / "log.jsonl", rows(30))
    lines = path.read_text().splitlines()
    for i in (3, 7, 8, 11, 12, 19, 20):
        lines[i] = lines[i][:40]
    path.write_text("\ufeff" + "\n".join(lines) + "\n\n", encoding="utf8")
    run = only(read_runs([path]))
    assert (
        run.notes == ["log.jsonl has 7 damaged lines, which are left out: 4, 8, 9, 12, 13 ...."]
        and len(run.steps) == 23
    )
    assert run.columns["losses"]["ner"][3] == 100.0 / 5


def test_report_has_gaps_for_what_is_no_number(tmp_path):
    odd = ["NaN", "Infinity", "-Infinity", "null", '"text"', "true", "[1.0]", "{}", "1e999", "1" + "0" * 400]
    lines = [json.dumps(row(i)) for i in range(4)]
    lines += [
        f'{{"step": {i}, "losses": {{"ner": {value}}}, "learn_rates": {{"default": {value}}}, "grad_norm": {value}, '
        f'"seconds": {value}, '
        f'"words": {value}, "score": {value}, "scores": {value}, "skipped_updates": {value}, "last_checkpoint": '
        f"{value}, "
        f'"last_rollback": {value}}}'
        for i, value in enumerate(odd, 4)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    run = only(read_runs([tmp_path / "log.jsonl"]))
    assert (
        len(run.steps) == 14
        and numpy.isnan(run.columns["losses"]["ner"][4:]).all()
        and run.best is None
        and not run.notes
    )
    assert run.last("grad_norm") == 2.0 and not run.events
    assert make_panels([run])


@pytest.mark.parametrize(
    "kept",
    [("step", "losses"), ("step", "losses", "learn_rates"), ("step", "losses", "score"), ("step", "losses", "words")],
)
def test_report_of_logs_that_lack_keys(tmp_path, kept):
    lines = [{key: value for key, value in line.items() if key in ("step", "losses", kept)} for line in rows(20)]
    run = only(read_runs([write(tmp_path / "log.jsonl", lines)]))
    titles = {"learn_rates": "Learning rate", "score": "Score"}
    assert {panel.title for panel in make_panels([run])} == {"Loss"} | {
        title for key, title in titles.items() if key == kept
    }
    assert [fact.name for fact in facts_of(run) if fact.value][-1] == (
        "final rate" if kept == "learn_rates" else "last step"
    )


@pytest.mark.parametrize(
    "content,found",
    [
        ("", "an empty file"),
        ("\n\n", "an empty file"),
        ('{"text": "a corpus"}\n' * 5, "line 1"),
        ("step,loss\n1,2\n", "step,loss"),
        ('[{"step": 1}]\n', "line 1"),
        ('{"step": -1, "losses": {}}\n', "line 1"),
        ('{"step": true, "losses": {}}\n', "line 1"),
        ('{"step": 1e3, "losses": {}}\n', "line 1"),
        ('{"step": 1, "losses": [2.0]}\n', "line 1"),
        (b"\x89PNG\r\n\x1a\n\xff\xff\n", "line 1"),
    ],
    ids=range(10),
)
def test_report_refuses_what_is_no_log(tmp_path, content, found):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=re.escape(str(path)) + f".*expected.*{found}"):
        read_runs([path])


def test_report_leaves_empty_logs_out_beside_others(tmp_path):
    full, empty = write(tmp_path / "full.jsonl", rows(5)), write(tmp_path / "empty.jsonl", [])
    run = only(read_runs([empty, full, full]))
    assert run.paths == [full] and run.notes == ["empty.jsonl is empty, and left out."]


# ---------------------------------------------------------------------- runs that were resumed


def test_report_takes_the_logs_of_a_resumed_run_together(tmp_path):
    first = write(tmp_path / "log.jsonl", rows(14, skipped_updates=1))
    second = write(tmp_path / "log-2.jsonl", [row(i, skipped_updates=2, grad_norm=50.0) for i in range(11, 20)])
    third = write(tmp_path / "log-3.jsonl", [row(i, skipped_updates=2, grad_norm=70.0) for i in range(18, 25)])
    other = write(tmp_path / "log-4.jsonl", rows(6))
    runs = read_runs([second, third, first, other])
    assert [run.paths for run in runs] == [[first, second, third], [other]] and [run.label for run in runs] == [
        "log",
        "log-4",
    ]
    run = runs[0]
    assert run.steps.tolist() == list(range(25))
    norms = run.numbers("grad_norm").tolist()
    assert norms[10] == 3.0 and set(norms[11:18]) == {50.0} and set(norms[18:]) == {70.0}
    assert sorted(events(run)) == [
        *(("resumed", step, "") for step in (11, 18)),
        *(("update skipped", step, "") for step in (0, 11)),
    ]
    assert run.notes == [
        "The run was stopped, and resumed at step 11; 3 steps were done again (in log-2.jsonl).",
        "The run was stopped, and resumed at step 18; 2 steps were done again (in log-3.jsonl).",
    ]
    # One of them is enough. Another training is not taken for it.
    later = "A later training has written log-4.jsonl, which is not in this report."
    for path in (first, second, third):
        assert only(read_runs([path])).paths == run.paths and only(read_runs([path])).notes == [*run.notes, later]
    assert only(read_runs([other])).paths == [other]
    first.unlink()
    alone = only(read_runs([third]))
    assert alone.notes[-2:] == [
        "log-2.jsonl begins at step 11: the log of the earlier steps is not in its folder.",
        later,
    ]
    assert alone.paths == [second, third]


def test_report_mixes_no_two_runs(tmp_path):
    """Two runs write beside each other, and one of them is resumed: the first lines tell which."""
    told = {"a": {"run_id": "a"}, "b": {"run_id": "b"}}
    first = write(tmp_path / "log.jsonl", [{**row(0), **told["a"]}, *rows(9)[1:]])
    other = write(tmp_path / "log-2.jsonl", [{**row(0), **told["b"]}, *rows(6)[1:]])
    write(tmp_path / "log-3.jsonl", [])
    resumed = write(tmp_path / "log-4.jsonl", [{**row(8), **told["a"]}, row(9)])
    again = write(tmp_path / "log-5.jsonl", [{**row(6), **told["b"]}, row(7)])
    for path in (first, resumed):
        assert only(read_runs([path])).paths == [first, resumed]
    assert only(read_runs([again])).paths == [other, again]
    assert [run.steps.tolist() for run in read_runs([again, resumed])] == [[*range(8)], [*range(10)]]


def test_report_of_a_log_whose_steps_go_back(tmp_path):
    lines = [*rows(20), *(row(i, losses={"ner": 7.0}, last_checkpoint=12) for i in range(13, 30))]
    run = only(read_runs([write(tmp_path / "log.jsonl", lines)]))
    assert run.steps.tolist() == list(range(30)) and set(run.columns["losses"]["ner"][13:]) == {7.0}
    assert math.isnan(run.columns["losses"]["tok2vec"][13])
    assert run.notes == ["log.jsonl goes back from step 19 to step 13 in line 21: the later lines are shown."]
    twice = [row(0), row(1, grad_norm=1.0), row(1, grad_norm=2.0)]
    run = only(read_runs([write(tmp_path / "twice.jsonl", twice)]))
    assert run.numbers("grad_norm").tolist() == [2.0, 2.0] and not run.notes


# ---------------------------------------------------------------------- events and labels


def test_report_finds_what_happened(tmp_path):
    lines = rows(30)
    for line in lines:
        step = line["step"]
        line |= {
            "grad_spikes": (step >= 4) + 2 * (step >= 9),
            "skipped_updates": int(step >= 9),
            "outside_writes": int(step >= 3),
        }
        line |= {"rollbacks": int(step >= 12)}
        if step > 5:
            line["last_checkpoint"] = 5 if step < 11 or 12 <= step < 16 else 10 if step < 12 else 15
        if step >= 12:
            line["last_rollback"] = [12, 5]
        if step >= 8:
            line["last_resume"] = 8
        if step == 7:
            line["one_label"] = "OTHER"
    run = only(read_runs([write(tmp_path / "log.jsonl", lines)]))
    assert sorted(events(run)) == sorted(
        [
            ("gradient spike", 4, ""),
            ("gradient spike", 9, "2 times"),
            ("update skipped", 9, ""),
            ("rates written by others", 3, ""),
            ("went back", 12, "to the checkpoint of step 5"),
            ("resumed", 8, ""),
            ("one label for all texts", 7, "OTHER"),
        ]
        + [("checkpoint saved", step, "") for step in (5, 10, 15)]
    )
    older = [{key: value for key, value in line.items() if not key.startswith("last_")} for line in lines]
    run = only(read_runs([write(tmp_path / "older.jsonl", older)]))
    kinds = ("went back", "checkpoint saved", "resumed")
    assert [event for event in events(run) if event[0] in kinds] == [("went back", 12, "")]


@pytest.mark.parametrize(
    "paths,labels",
    [
        (["a/log.jsonl", "b/log.jsonl"], ["a", "b"]),
        (["logs/adam.jsonl", "logs/sgd.jsonl"], ["adam", "sgd"]),
        (["a/x/log.jsonl", "b/x/log.jsonl"], ["a", "b"]),
        (["a/log.jsonl", "a/log-2.jsonl", "b/log.jsonl"], ["a/log", "a/log-2", "b/log"]),
        (["a/log.jsonl", "a/log.txt"], ["log.jsonl", "log.txt"]),
        (["ä\n<b>/log.jsonl", "می\u200cشود/log.jsonl"], ["ä\ufffd<b>", "می\u200cشود"]),
    ],
    ids=range(6),
)
def test_report_labels_differ(tmp_path, paths, labels):
    found = [run.label for run in read_runs([write(tmp_path / path, rows(3)) for path in paths])]
    assert [label.removeprefix(f"{tmp_path.name}/") for label in found] == labels


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
def test_report_panels_of_one_run(tmp_path):
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
def test_report_shows_losses_per_word_and_nothing_that_is_none(tmp_path):
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
def test_report_panels_compare_runs(tmp_path):
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
def test_report_groups_with_the_same_rates_share_a_curve(tmp_path):
    rates = [{**{f"layer-{i}": 0.001 * 0.8**i for i in range(20)}, "same": 0.001, "frozen": 0.0} for _ in range(9)]
    axes = panels_of(write(tmp_path / "log.jsonl", [row(i, learn_rates=rates[i]) for i in range(9)]))["Learning rate"]
    assert "left out: frozen." in axes.caption and axes.get_yscale() == "log"
    assert len(curves(axes)) == 20 and next(iter(curves(axes))) == "layer-0, same"
    assert len({line.get_color() for line in axes.lines}) == 20
    # Where rates end; but not below a hundredth of the lowest peak.
    assert axes.get_ylim()[0] == pytest.approx(0.7 * 0.001 * 0.8**19)


@needs_matplotlib
def test_report_of_a_long_run_keeps_every_peak_and_mark(tmp_path):
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
def test_report_marks_what_rules_did(tmp_path):
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


# ---------------------------------------------------------------------- files


def three_logs(folder):
    """Of runs with all that a report marks, names that are no Latin letters, and such as would be tags."""
    names = ["<script>alert(1)</script>", 'ner & "x" $5$', "タガー", "عربي", "a\tb\x1b"]
    paths = []
    for i, name in enumerate(("one", "t<w>o", "drei")):
        lines = rows(80)
        for line in lines:
            step = line["step"]
            line |= {
                "losses": {name: 10.0 * (j + 1) / (step + 1) for j, name in enumerate(names)},
                "grad_spikes": step // 30,
            }
            line |= {
                "skipped_updates": step // 30,
                "outside_writes": step // 50,
                "rollbacks": step // 40,
            }
            line |= {
                "learn_rates": {f"{name}/layer-{k}": 0.1 * (i + 1) * 0.7**k for k in range(12) for name in names[:1]}
            }
            line |= {"last_checkpoint": step // 20 * 20} if step > 20 else {}
            line |= {"last_rollback": [40, 20]} if step >= 40 else {}
        paths.append(write(folder / name / "log.jsonl", lines, "{" if i == 1 else ""))
    return paths


@needs_matplotlib
@pytest.mark.parametrize("n", [1, 3])
def test_report_page_is_one_file_with_all_in_it(tmp_path, n):
    paths = three_logs(tmp_path)
    output = tmp_path / "new" / "report.html"
    read_report(*paths[:n]).to_disk(output)
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]
    text, page = output.read_text(encoding="utf8"), Page(output)
    # Nothing is loaded from elsewhere, and no name became a tag.
    links = [found.get(key) for _, found in page.tags for key in ("src", "href", "xlink:href") if key in found]
    assert all(link.startswith("#") for link in links) and not re.search(r"url\((?!#)|@import|fetch\(", text)
    assert not page.all("script") and not page.all("w")
    words = "".join(page.texts)
    assert (
        "<script>alert(1)</script>" in words
        and 'ner & "x" $5$' in words
        and "タガー" in words
        and "a\ufffdb\ufffd" in words
    )
    # Every id is there once, every reference leads somewhere.
    ids = [found["id"] for _, found in page.tags if "id" in found]
    assert len(ids) == len(set(ids)) and set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(ids)
    assert len(page.all("svg")) == 2 * len(page.all("section")) == 2 * (6 if n == 1 else 10)
    for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.parse(BytesIO(svg.encode("utf8")))
    assert "went back to the checkpoint of step 20" in words and "gradient spike" in words
    # The same logs give the same page.
    if n == 1:
        read_report(*paths[:n]).to_disk(output)
        assert output.read_text(encoding="utf8") == text
    assert ("ends in half a line" in words) == (n == 3)


@needs_matplotlib
@pytest.mark.parametrize("suffix,start", [("png", b"\x89PNG"), ("SVG", b"<?xml"), ("pdf", b"%PDF")])
def test_report_pictures(tmp_path, suffix, start):
    output = tmp_path / f"report.{suffix}"
    output.write_text("old")
    log = three_logs(tmp_path)[0] if suffix == "png" else write(tmp_path / "a" / "log.jsonl", losses(2.0, 1.0))
    read_report(log).to_disk(output)
    assert output.read_bytes().startswith(start)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [output.name]


@needs_matplotlib
def test_report_panels_share_their_steps(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kwargs: (figures.append(figure), save(figure, *args, **kwargs))
    )
    lines = [
        {key: line.get(key) for key in ("step", "score", "learn_rates")} | {"losses": {"ner": 1.0}} for line in rows(80)
    ]
    runs = read_runs([write(tmp_path / "a.jsonl", lines), write(tmp_path / "b.jsonl", lines[:40])])
    Report(runs).to_disk(tmp_path / "report.html")
    Report(runs).to_disk(tmp_path / "report.png")
    picture = figures[-1]
    axes = [axes for figure in figures[:-1] for axes in figure.axes] + picture.axes[1:]
    assert len({axes.get_xlim() for axes in axes}) == 1 and axes[0].get_xlim()[1] >= 79
    assert all(axes.get_ylabel() for axes in axes) and all(figure.axes[-1].get_xlabel() == "step" for figure in figures)
    # In the picture the plots are exactly below each other, and nothing is cut off.
    places = [axes.get_position() for axes in picture.axes[1:]]
    assert len({(round(place.x0, 3), round(place.x1, 3)) for place in places}) == 1
    box, (width, height) = picture.get_tightbbox(), picture.get_size_inches()
    assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height


@needs_matplotlib
@pytest.mark.parametrize("lines", [[row(0)], [{**losses(1.0)[0], "score": 0.5}], losses(0.0, 0.0)], ids=range(3))
def test_report_of_hardly_anything(tmp_path, lines):
    runs = read_runs([write(tmp_path / "log.jsonl", lines)])
    for suffix in ("html", "png"):
        Report(runs).to_disk(tmp_path / f"report.{suffix}")
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf8")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@needs_matplotlib
def test_report_errors_of_the_output(tmp_path):
    runs = read_runs([write(tmp_path / "log.jsonl", rows(3))])
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    for name, found in [
        ("report.txt", r"\.html, \.pdf, \.png or \.svg, found '\.txt'"),
        ("report", "found ''"),
        ("folder.html", "a folder"),
    ]:
        with pytest.raises(ConfigError, match=f"Can't write .*{found}"):
            Report(runs).to_disk(tmp_path / name)
    with pytest.raises(ConfigError, match=r"Can't write .*report\.html"):
        Report(runs).to_disk(tmp_path / "file" / "report.html")
    nothing = read_runs([write(tmp_path / "nothing.jsonl", [{"step": 0, "losses": {}}])])
    with pytest.raises(ConfigError, match="no line has a number"):
        Report(nothing).to_disk(tmp_path / "report.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.html", "log.jsonl", "nothing.jsonl"]


# ---------------------------------------------------------------------- a real training


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_report_of_a_real_training_that_went_wrong_and_was_resumed(corpus, tmp_path):
    """The rate of step 8 ruins all params: 9 and 10 are skipped, and the training goes back to step 6. Another process
    goes on at 15.
    """
    log, folder = tmp_path / "log.jsonl", tmp_path / "state"
    config = config_for(tmp_path, corpus, training__optimizer__rollback_after=2)
    config["training"]["optimizer"]["learn_rate"] = [1e39 if step == 8 else 0.01 for step in range(40)]
    config["training"]["logger"] = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1", "path": str(log)}
    saved = []
    for last in (14, 20):
        config["training"]["max_steps"] = last
        with ExitStack() as stack:
            if last == 14:
                for category in (NonFiniteGradWarning, RollbackWarning):
                    stack.enter_context(pytest.warns(category))
            spacy_train(init_nlp(config.interpolate()), None, stdout=StringIO(), stderr=StringIO())
        saved.append([int(path.name[-8:]) for path in steps_of(folder)])
    run = only(read_runs([log]))
    assert run.steps.tolist() == list(range(21)) and not run.notes
    skips, backs, checkpoints, resumed = (
        [(event.step, event.text) for event in run.events if event.kind == kind]
        for kind in ("update skipped", "went back", "checkpoint saved", "resumed")
    )
    assert skips == [(9, ""), (10, "")] and backs == [(10, "to the checkpoint of step 6")] and resumed == [(15, "")]
    # Every third step, and the evaluations: but for 9 and 10, while updates went wrong. That of the last step is
    # written after its line.
    assert [step for step, _ in checkpoints] == [0, 3, 5, 6, 12, 14, 15, 18]
    assert saved == [[12, 14], [18, 20]]
    assert numpy.isnan(run.numbers("grad_norm")[9:11]).all() and (numpy.diff(run.numbers("seconds")) > 0).all()
    assert run.final_rates == {"default": 0.005} and len(run.speeds()[0]) > 0


# ---------------------------------------------------------------------- the command


def report(*args, check=True):
    return spacy_cli("torchopt", "report", *args, check=check)


def test_report_command(tmp_path):
    log, output = write(tmp_path / "log.jsonl", rows(12)), tmp_path / "report.html"
    run = report(log, *(["--output", output] if compat.has_matplotlib else []))
    *told, head = run.stdout.splitlines()[:3]
    assert told == [
        "Finds 20 of 100 entities; 10 of 100 that it names are right.", "25 of 100 words get the right tag."
    ]  # fmt: skip
    assert head.split()[0] == "run" and output.is_file() == compat.has_matplotlib
    assert not output.is_file() or all(f"<p>{line}</p>" in output.read_text() for line in told)


@needs_matplotlib
def test_report_does_not_overwrite_what_it_reads(tmp_path):
    """Under its own name, another one, or behind a link."""
    log = write(tmp_path / "log.html", rows(12))
    before = log.read_bytes()
    (tmp_path / "link.png").symlink_to(log)
    (tmp_path / "folder").mkdir()
    for output in (log, tmp_path / "folder" / ".." / "log.html", tmp_path / "link.png"):
        run = report(write(tmp_path / "other.jsonl", rows(3)), log, "--output", output, check=False)
        said = " ".join(run.stderr.split())
        assert run.returncode == 1 and "it is one of the files to read" in said and "Change --output." in said
    assert log.read_bytes() == before


# Evaluated in each of three lines, so that evaluations can't be told from steps.
LONG = [
    evaluated(0, 0.25, seconds=2.5, words=1_000),
    evaluated(1_000, 0.75, seconds=90.0, words=200_000, skipped_updates=2, grad_spikes=1_000),
    evaluated(
        2_000,
        0.5,
        epoch=12,
        seconds=7_384.0,
        words=4_000_000,
        skipped_updates=3,
        grad_spikes=1_234,
        rollbacks=2,
        learn_rates={"frozen": 0.0, "default": 0.00125},
        time_spent={"data": 72.0, "updates": 5_400.0, "evaluations": 1_440.0, "saving": 288.0},
    ),
]


@pytest.mark.parametrize(
    ("lines", "facts", "time"),
    [
        # 100 words and 0.25 seconds a step.
        (
            rows(12),
            ["0.9167 at step 10", "0.9167", "11 epoch 1", "400", "3.2 s", "0", "0", "0", "0.001 down to 0.0005"],
            [],
        ),
        (
            LONG,
            ["0.75 at step 1,000", "0.5", "2,000 epoch 12", "542", "2 h 3 min", "3", "1,234", "2", "0.00125"],
            [
                "Time: updates 1 h 30 min (75%), evaluations on the dev set 24 min 0 s (20%), logging and saving "
                "4 min 48 s (4%), reading texts 1 min 12 s (1%)."
            ],
        ),
    ],
)
def test_report_prints_the_numbers_of_a_log(tmp_path, lines, facts, time):
    names = ["best score", "last score", "last step", "words per second", "duration", "skipped updates"]
    names += ["gradient spikes", "rollbacks", "final rate"]
    found = read_report(write(tmp_path / "log.jsonl", lines))
    shown = [line for line in repr(found).splitlines() if line.startswith(tuple(names))]
    assert [re.split("  +", line, maxsplit=1) for line in shown] == [list(row) for row in zip(names, facts)]
    assert found.told == time


def test_report_prints_a_summary(tmp_path):
    logs = [write(tmp_path / "a" / "log.jsonl", rows(12), "{"), write(tmp_path / "b" / "log.jsonl", rows(7))]
    lines = report(*logs).stdout.splitlines()
    assert lines[0].split() == ["run", "a", "b"]
    assert any(line.startswith("Note: log.jsonl ends in half a line") for line in lines)
    assert json.loads(report(*logs, "--json").stdout) == [summarize(run) for run in read_runs(logs)]
    found = report(write(tmp_path / "no.jsonl", [{"text": "a corpus"}]), "--json", check=False)
    assert found.returncode == 1 and not found.stdout
    assert found.stderr.startswith("Error: Can't read the training log")


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_report_table_fits_80_columns(tmp_path, n):
    """Each run is a column, with all that is known of it; as many side by side as fit."""
    found = read_report(*(write(tmp_path / f"a run with number {i}" / "log.jsonl", rows(12 + i)) for i in range(n)))
    lines = repr(found).partition("\nScores are")[0].splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).split())
    for run in found.runs:
        assert words.count(run.label) == 1 and all(fact.value in words for fact in facts_of(run))
    tops = [line for line in lines if line.startswith("run ")]
    assert len(tops) == -(-n // max(line.count("a run with") or 1 for line in tops)) and bool(found.sentences) is (
        n == 1
    )


def test_report_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(compat, "has_matplotlib", False)
    runs = read_runs([write(tmp_path / "log.jsonl", rows(3))])
    for suffix in ("html", "png"):
        with pytest.raises(ImportError, match=r"pip install 'matplotlib>="):
            Report(runs).to_disk(tmp_path / f"report.{suffix}")


# ---------------------------------------------------------------------- a training that goes on


@pytest.fixture
def begun(tmp_path):
    """A log that is held, as a training holds it."""
    path = write(tmp_path / "log.jsonl", losses(*[1.0] * 5))
    with path.open("ab") as file:
        hold(file.fileno())
        yield path, file


@needs_matplotlib
def test_report_watch_until_the_training_ends(begun, tmp_path, monkeypatch):
    log, file = begun
    output, seen = tmp_path / "report.html", []

    def pause(seconds):
        seen.append((seconds >= 10, 'http-equiv="refresh" content="10"' in output.read_text()))
        file.write(json.dumps({"step": 4 + len(seen), "losses": {"ner": 1.0}}).encode() + b"\n")
        file.flush()
        if len(seen) == 2:
            file.close()

    monkeypatch.setattr(time, "sleep", pause)
    report(log, "--output", output, "--watch")
    assert seen == [(True, True)] * 2
    # The last page has the last line, and reads itself no more.
    assert "refresh" not in output.read_text() and ">6<small>" in output.read_text()


@needs_matplotlib
def test_report_watch_until_ctrl_c(begun, tmp_path):
    log, _ = begun
    output = tmp_path / "report.html"
    process = Started(["torchopt", "report", log, "--watch", "--output", output])
    while not output.is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    assert "refresh" in output.read_text()
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in printed
    assert f"Saved the report to {output}" in " ".join(printed.split())
    assert "refresh" not in output.read_text()


def test_report_watch_needs_a_report(tmp_path):
    run = report(write(tmp_path / "log.jsonl", rows(3)), "--watch", check=False)
    assert run.returncode == 1 and "Add --output report.html." in " ".join(run.stderr.split())


# ---------------------------------------------------------------------- in a notebook


@needs_matplotlib
def test_report_shows_itself_in_a_notebook(tmp_path):
    found = read_report(write(tmp_path / "log.jsonl", losses(2.0, 1.0)))
    [page] = re.findall('srcdoc="([^"]*)"', found._repr_html_())
    assert unescape(page) == found.html()


def test_report_prints_as_the_command_does(tmp_path):
    log = write(tmp_path / "log.jsonl", rows(3), end='{"step"')
    printed = repr(read_report(log))
    assert printed.startswith("Finds 20 of 100 entities") and "\nrun " in printed and "last step" in printed
    assert "Note: log.jsonl ends in half a line" in printed
    scores = {f"L{i:02}": {"p": 1.0, "r": 1.0, "f": 1.0} for i in range(40)}
    trained = Trained([], {}, {"ents_per_type": scores})
    printed = repr(Report(read_runs([log]), trained))
    assert "L29" in printed and "L30" not in printed and "Left out: 10 rarer labels." in printed
    assert title_of("pos") == "Parts of speech"


# ---------------------------------------------------------------------- where the time went


def spent(updates, saving):
    return {"time_spent": {"data": 0.5, "updates": updates, "evaluations": 0.0, "saving": saving}}


def test_report_adds_up_the_time_of_each_process(tmp_path):
    """The first line of a process counts from 0, also if it has more than the last one before."""
    first = [row(i, **spent(2.0 + i, 0.0)) for i in range(4)]
    second = [row(i, last_resume=3, **spent(100.0 * (i - 2), 1.0)) for i in (3, 4)]
    third = [row(i, last_resume=5, **spent(1.0, 0.25)) for i in (5, 6)]
    write(tmp_path / "log.jsonl", first)
    write(tmp_path / "log-2.jsonl", [*second, *third])
    run = only(read_runs([tmp_path / "log.jsonl"]))
    assert run.time_spent == {"data": 1.5, "updates": 4.0 + 200.0 + 1.0, "evaluations": 0.0, "saving": 1.25}
    assert only(read_runs([write(tmp_path / "none.jsonl", rows(3))])).time_spent == {}


# ---------------------------------------------------------------------- the trained pipeline


@needs_matplotlib
def test_report_of_a_trained_pipeline(trained, tmp_path):
    """Its log says what was trained; its folder, the score of each label; its texts, the worst errors."""
    folder, _ = trained("report.cfg")
    log, model = folder / "training" / "report" / "log.jsonl", folder / "training" / "report" / "model-best"
    texts = tmp_path / "<dev>.spacy"
    nlp = spacy.load(model)
    docs = [nlp.make_doc(text) for text in ("Call <b>print()</b> & wait.", "Nothing here.", "x" * 5000)]
    for doc in docs:
        doc.set_ents([Span(doc, 0, 1, "CODE")])
    DocBin(docs=docs).to_disk(texts)
    output = tmp_path / "report.html"
    [found] = json.loads(report(log, "--model", model, "--texts", texts, "--output", output, "--json").stdout)
    assert found["labels"]["ents"]["CODE"]["annotated"] == 3 and found["errors"]["ents"]["worst"]
    page = Page(output)
    words = " ".join(" ".join(page.texts).split())
    assert not page.all("dev") and "<b>print()</b> & wait." in words
    assert {"Trained: tok2vec, ner.", "Where the time went", "updates"} <= set(page.texts)
    meta = json.loads((model / "meta.json").read_text())["performance"]["ents_per_type"]
    saved, logged = read_report(log, model=model), read_report(log)
    assert {label: one.f for label, one in saved.labels[0].rows.items()} == {
        label: one["f"] for label, one in meta.items()
    }
    assert saved.trained.components == logged.trained.components and not logged.labels
    assert saved.told[0] == "Trained: tok2vec, ner." and saved.told[1].startswith("Time: ")


def test_report_refuses_what_does_not_go_together(tmp_path):
    log, other = write(tmp_path / "a" / "log.jsonl", rows(3)), write(tmp_path / "b" / "log.jsonl", rows(3))
    for name, meta in [("training/model-best", "{}"), ("damaged", "{")]:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "meta.json").write_text(meta)
        (tmp_path / name / "config.cfg").write_text("[nlp]\n")
    texts = write(tmp_path / "dev.spacy", [])
    for logs, options, said in [
        ([], {}, "expected the log of a training, found none"),
        ([log], {"texts": texts}, "no trained pipeline to make them. Add --model training/model-best"),
        ([log, other], {"model": spacy.blank("en")}, "expected the log of one"),
        ([log], {"model": tmp_path}, "meta.json and config.cfg, found one without"),
        ([log], {"model": tmp_path / "training"}, "Give the one in it: .*model-best"),
        ([log], {"model": tmp_path / "damaged"}, "Can't read the trained pipeline"),
    ]:
        with pytest.raises(ConfigError, match=said):
            read_report(*logs, **options)


CORPORA = {"train": {"path": "train.spacy"}, "dev": {"path": "dev.spacy"}}
OPTIMIZER = {
    "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
    "learn_rate": {"@schedules": "warmup_linear.v1", "initial_rate": 0.1},
    "checkpoint": {"@misc": "thinc-torchopt.Checkpoint.v1", "keep": 2},
}
TRAINING = {
    "train_corpus": "corpora.train",
    "dev_corpus": "corpora.dev",
    "seed": 0,
    "dropout": 0.1,
    "max_steps": 100,
    "frozen_components": [],
    "optimizer": OPTIMIZER,
}


def saved(folder, *, labels=("A", "B"), corpora=None, pipeline=("tok2vec", "ner"), **training):
    """The files of a trained pipeline that a report reads, and its log in the folder above. RETURNS: the folder."""
    config = {"nlp": {"pipeline": list(pipeline)}, "corpora": corpora or CORPORA, "training": {**TRAINING, **training}}
    folder.mkdir(parents=True)
    Config(config).to_disk(folder / "config.cfg")
    (folder / "meta.json").write_text(json.dumps({"labels": {"ner": list(labels)}}))
    components = [{"name": name, "labels": list(labels) if name == "ner" else []} for name in pipeline]
    lines = [{**row(0), "trained": {"components": components, "config": config}}, *rows(3)[1:]]
    write(folder.parent / "log.jsonl", lines)
    return folder


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({}, None),
        ({"max_steps": 999, "patience": 7}, None),  # as when a run is resumed
        ({"labels": ["A", "B", "C"]}, None),  # some come late
        ({"labels": ["A", "C"]}, r"labels of ner: \['A', 'B'\] in the log, \['A', 'C'\] in the pipeline"),
        ({"pipeline": ["tok2vec", "tagger"]}, "components: .*'ner'.* in the log, .*'tagger'.* in the pipeline"),
        ({"corpora": {**CORPORA, "train": {"path": "b"}}}, "corpora.train.path: 'train.spacy' in the log, 'b' in the"),
        ({"corpora": {**CORPORA, "dev": {"path": "b"}}}, "corpora.dev.path: 'dev.spacy' in the log, 'b' in the"),
        ({"dropout": 0.2}, "training.dropout: 0.1 in the log, 0.2 in the pipeline"),
        (
            {"optimizer": {**OPTIMIZER, "learn_rate": {"@schedules": "warmup_linear.v1", "initial_rate": 0.2}}},
            "training.optimizer.learn_rate.initial_rate: 0.1 in the log, 0.2 in the pipeline",
        ),
        ({"optimizer": {**OPTIMIZER, "checkpoint": {"@misc": "thinc-torchopt.Checkpoint.v1", "keep": 9}}}, None),
    ],
)
def test_report_refuses_the_model_of_another_training(other, said, tmp_path):
    saved(tmp_path / "one" / "model-best")
    model = saved(tmp_path / "two" / "model-best", **other)
    assert read_report(tmp_path / "two").trained.components  # its own
    if said is None:
        assert read_report(tmp_path / "one" / "log.jsonl", model=model).trained.components
        return
    with pytest.raises(ConfigError, match=rf"Can't use .*model-best with .*log.jsonl: another training.*\n  {said}"):
        read_report(tmp_path / "one" / "log.jsonl", model=model)


def test_report_takes_folders(tmp_path):
    """Of a training, with its model, and of the newest that was there; and a folder of several."""
    saved(tmp_path / "a b" / "model-best")
    assert read_report(tmp_path / "a b").trained.labels == {"ner": ["A", "B"]}
    log = (tmp_path / "a b" / "log.jsonl").read_text()
    (tmp_path / "a b" / "log-2.jsonl").write_text(log.replace('"losses"', '"run_id": "2", "losses"'))
    assert [run.paths[-1].name for run in read_report(tmp_path / "a b").runs] == ["log-2.jsonl"]
    (tmp_path / "empty").mkdir()
    assert [run.label for run in read_report(tmp_path).runs] == ["a b/log-2"]
    saved(tmp_path / "c" / "model-best", labels=["X"])
    run = report(tmp_path, tmp_path / "c", "--json")
    assert [found["run"] for found in json.loads(run.stdout)] == ["a b", "c"]
    run = report(tmp_path / "empty", check=False)
    assert run.returncode == 1 and "expected log.jsonl in it, or in folders in it, found none" in run.stderr
    with pytest.raises(ConfigError, match="expected the log of one"):
        read_report(tmp_path, model=tmp_path / "c" / "model-best")


@needs_matplotlib
def test_report_of_logs_that_say_odd_things_about_their_training(tmp_path):
    odd = [
        {"components": 3, "config": []},
        {"components": [None, {"name": 3}, {"name": "<w>", "labels": ["<x>", 4], "n_labels": "many"}]},
        {"lang": [], "config": {"training": {"a": {"b.c": 1}, "train_corpus": 7}, "corpora": {"train": 3}}},
        {"config": {"training": {"frozen_components": 4}, "corpora": {"train": {"path": "/dev/null"}}}},
        {"components": [{"name": "<w>"}], "config": {"training": {"frozen_components": ["<y>"]}}},
    ]
    for found in odd:
        path = write(tmp_path / "log.jsonl", [{**row(0), "trained": found}, row(1)])
        assert _beside(read_report(path))["label_tables"] == []
    read_report(path).to_disk(tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert not page.all("w") and "Trained: <w>." in page.texts
