"""The panels of a report: what is drawn, as matplotlib has it, is what the log says."""

import re
from bisect import bisect_right
from statistics import fmean

import numpy
import pytest
from spacy import displacy
from spacy.tokens import Doc, Span
from spacy.vocab import Vocab

from thinc_torchopt.addons.report.errors import Mark, Passage
from thinc_torchopt.addons.report.figures import draw, keys_of, make_panels, name_groups
from thinc_torchopt.addons.report.runs import read_runs
from thinc_torchopt.addons.report.style import BAD, COLOURS, TEXT
from thinc_torchopt.core import compat

from ...pictures import curves, marks, series
from .kit import LATER, ONE, TWO, events, log, needs_matplotlib, only, row, rows, write

C = COLOURS
NER = [(0, 0.5), (1, 0.125), (4, 0.03125), (6, 1.0), (7, 0.375)]
TAGGER = [(0, 2.0), (1, 0.5), (2, 0.125), (6, 0.25), (7, 0.125)]
NORM = [(0, 1.5), (1, 2.0), (4, 3.0), (6, 1.0), (7, 2.0)]
SPEED, SCORE = [(2, 16.0), (4, 128.0), (7, 16.0)], [(0, 0.25), (4, 0.75)]
BACK = [("", BAD, "--", [(5, 0), (5, 1)]), ("went back", BAD, "--", [])]
BOTH = [
    ("", C[0], "--", [(5, 0), (5, 1)]),
    ("went back", TEXT, "--", []),
    ("", C[1], ":", [(1, 0), (1, 1)]),
    ("resumed", TEXT, ":", []),
]
# By title, what is drawn. A loss of 2 in each of 2 steps with 16 words is one of 0.25 per word. The speed is that
# between two lines, if the first one is no evaluation, or half of them are.
RESUMED = [("", C[0], ":", [(6, 0), (6, 1)]), ("resumed", C[0], ":", [])]
PANELS = {
    "one run": {
        "Score": [
            ("main score", C[0], "-", SCORE),
            ("tag_acc", C[1], "-", [(0, 0.125), (4, 0.5)]),
            ("best: 0.75", C[0], "*", [(4, 0.75)]),
            *BACK,
        ],
        "Loss": [
            ("ner", C[0], "-", NER),
            ("ner, dev set", C[0], "--", [(4, 0.75)]),
            ("tagger", C[1], "-", TAGGER),
            ("tagger, dev set", C[1], "--", [(4, 0.25)]),
            *BACK,
        ],
        "Learning rate": [
            ("head", C[0], "-", [(0, 1.0), (1, 1.0), (4, 0.5), (6, 0.25), (7, 0.25)]),
            ("default", C[1], "-", [(0, 0.0), (1, 0.5), (2, 0.5), (4, 0.25), (6, 0.125), (7, 0.125)]),
            ("encoder", C[2], "-", [(0, 0.0), (1, 0.25), (2, 0.25), (4, 0.125), (6, 0.0625), (7, 0.0)]),
            *BACK,
        ],
        "Gradient norm": [("norm", C[0], "-", NORM), *BACK],
        "Speed": [("words per second", C[0], "-", SPEED), *BACK],
        "What happened": [
            ("checkpoint saved", C[7], "^", [0, 2]),
            ("gradient spike", C[1], "v", [1]),
            ("update skipped", BAD, "x", [2, 6]),
            ("went back", BAD, "<", [5]),
        ],
    },
    "two runs": {
        "Score": [
            ("a", C[0], "-", SCORE),
            ("b", C[1], "-", [(2, 0.5), (5, 0.875)]),
            ("best: 0.75", C[0], "*", [(4, 0.75)]),
            ("best: 0.875", C[1], "*", [(5, 0.875)]),
            *BOTH,
        ],
        "Loss of ner": [
            ("a", C[0], "-", NER),
            ("a, dev set", C[0], "--", [(4, 0.75)]),
            ("b", C[1], "-", [(0, 0.125), (2, 0.25), (5, 0.375)]),
            *BOTH,
        ],
        "Loss of tagger": [("a", C[0], "-", TAGGER), ("a, dev set", C[0], "--", [(4, 0.25)]), *BOTH],
        "Loss of parser": [("b", C[1], "-", [(0, 0.0625), (5, 0.140625)]), *BOTH],
        "Learning rate": [
            ("a", C[0], "-", [(0, 1.0), (1, 1.0), (2, 0.5), (4, 0.5), (6, 0.25), (7, 0.25)]),
            ("", C[0], "-", [(0, 1.0), (1, 0.25), (2, 0.25), (4, 0.125), (6, 0.0625), (7, 0.125)]),
            ("b", C[1], "-", [(0, 0.5), (2, 0.25), (5, 0.125)]),
            *BOTH,
        ],
        "Gradient norm": [("a", C[0], "-", NORM), ("b", C[1], "-", [(2, 4.0), (5, 2.0)]), *BOTH],
        "Speed": [("a", C[0], "-", SPEED), ("b", C[1], "-", [(2, 32.0), (5, 16.0)]), *BOTH],
        "What happened": [
            ("checkpoint saved", C[0], "^", [0, 2]),
            ("gradient spike", C[0], "v", [1]),
            ("update skipped", C[0], "x", [2, 6]),
            ("went back", C[0], "<", [5]),
            ("resumed", C[1], ">", [1]),
        ],
    },
    "a resumed run": {
        "Score": [
            ("main score", C[0], "-", [*SCORE, (9, 0.5)]),
            ("tag_acc", C[1], "-", [(0, 0.125), (4, 0.5)]),
            ("best: 0.75", C[0], "*", [(4, 0.75)]),
            *RESUMED,
        ],
        "Loss": [
            ("ner", C[0], "-", [*NER[:3], (6, 0.25), (9, 0.28125)]),
            ("ner, dev set", C[0], "--", [(4, 0.75)]),
            ("tagger", C[1], "-", TAGGER[:3]),
            ("tagger, dev set", C[1], "--", [(4, 0.25)]),
            *RESUMED,
        ],
        "Learning rate": [
            ("head", C[0], "-", [(0, 1.0), (1, 1.0), (4, 0.5), (6, 0.25), (9, 0.125)]),
            ("default", C[1], "-", [(0, 0.0), (1, 0.5), (2, 0.5), (4, 0.25), (6, 0.125), (9, 0.0625)]),
            ("encoder", C[2], "-", [(0, 0.0), (1, 0.25), (2, 0.25), (4, 0.125)]),
            *RESUMED,
        ],
        "Gradient norm": [("norm", C[0], "-", [*NORM[:3], (6, 2.0)]), *RESUMED],
        "Speed": [("words per second", C[0], "-", [(1, 32.0), (2, 16.0), (4, 128.0), (6, 16.0), (9, 32.0)]), *RESUMED],
        "What happened": [
            ("checkpoint saved", C[7], "^", [0, 2]),
            ("gradient spike", C[1], "v", [1]),
            ("update skipped", BAD, "x", [2]),
            ("resumed", C[0], ">", [6]),
        ],
    },
}
LABELS = {
    "Score": "score (0 to 1)",
    "Loss": "loss per word",
    "Learning rate": "learning rate",
    "Gradient norm": "gradient norm",
    "Speed": "words per second",
    "What happened": "",
}
LOGS = {
    "one run": {"log.jsonl": ONE},
    "two runs": {"a/log.jsonl": ONE, "b/log.jsonl": TWO},
    "a resumed run": {"log.jsonl": ONE, "log-2.jsonl": LATER},
}


def panels_of(*paths):
    """The axes of each panel, by its title, as a page and a picture have them; and what is said about it."""
    figure = compat.import_figure()()
    found = {}
    for panel in make_panels(read_runs(paths)):
        axes = figure.add_subplot()
        axes.caption, axes.height = panel.draw(axes), panel.height
        found[panel.title] = axes
    return found


@needs_matplotlib
@pytest.mark.parametrize("name", PANELS)
def test_figures_show_what_is_in_the_logs(name, tmp_path):
    panels = panels_of(*(write(tmp_path / path, lines) for path, lines in LOGS[name].items()))
    assert {title: (marks if axes.texts else series)(axes) for title, axes in panels.items()} == PANELS[name]
    assert list(panels) == list(PANELS[name])
    for title, axes in panels.items():
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", LABELS[title.partition(" of ")[0]])
        heights = {"Speed": 160, "What happened": 60 + 32 * len(PANELS[name]["What happened"])}
        assert axes.height == heights.get(title, 220)
        last = 9 if name == "a resumed run" else 7
        assert axes.get_xlim() == pytest.approx((-0.01 * last, 1.01 * last))
        assert axes.get_ylim()[0] == 0 or title not in ("Speed", "Learning rate")
        scale = "log" if title in ("Loss", "Loss of ner") else "linear"  # from 1/32 to 1
        assert (axes.get_xscale(), axes.get_yscale()) == ("linear", scale)
    # Each row begins with its name, and has the marks of each run below.
    happened, is_one = panels["What happened"], name != "two runs"
    assert happened.get_ylim() == (-len(happened.texts), 0) and not len(happened.get_yticks())
    assert {text.get_position()[0] for text in happened.texts} == {0.01}
    heights = {round(-y % 1, 3) for line in happened.lines for y in line.get_ydata()}
    assert heights == ({0.667} if is_one else {0.5, 0.75})
    extremes = "The highest and the lowest rate of a run's param groups, without those that are frozen."
    assert panels["Learning rate"].caption == ("" if is_one else extremes)


@needs_matplotlib
def test_figures_shows_losses_per_word_and_nothing_that_is_none(tmp_path):
    """Every fourth step has a line, with the mean loss of its steps; an encoder's "loss" is the size of a gradient."""
    lines = [
        row(i, words=10 * (i + 1) ** 2, losses={"encoder": 1e-4, "tok2vec": 1e4, "ner": i + 2.0, "off": 0})
        for i in (0, 4, 8)
    ]
    lines[0]["sums_of_gradients"] = ["encoder"]
    lines[2]["dev_losses"] = {"losses": {"ner": 30.0, "encoder": 9.0}, "words": 60, "examples": 2}
    axes = panels_of(write(tmp_path / "log.jsonl", lines))["Loss"]
    assert curves(axes) == {
        "ner": [(0, 2.0 * 1 / 10), (4, 6.0 * 4 / 240), (8, pytest.approx(10.0 * 4 / 560))],
        "ner, dev set": [(8, 0.5)],
    }
    assert axes.caption.endswith("sizes of gradients: encoder, tok2vec. Always 0, and left out: off.")
    without_words = [{key: value for key, value in line.items() if key != "words"} for line in lines]
    axes = panels_of(write(tmp_path / "without.jsonl", without_words))["Loss"]
    assert axes.get_ylabel() == "loss per step" and curves(axes) == {"ner": [(0, 2.0), (4, 6.0), (8, 10.0)]}


@needs_matplotlib
def test_figures_groups_with_the_same_rates_share_a_curve(tmp_path):
    rates = [{**{f"layer-{i}": 0.001 * 0.8**i for i in range(20)}, "same": 0.001, "frozen": 0.0} for _ in range(9)]
    axes = panels_of(write(tmp_path / "log.jsonl", [row(i, learn_rates=rates[i]) for i in range(9)]))["Learning rate"]
    assert axes.caption == (
        "Param groups with the same rates at every step share a curve. Always at 0, and left out: frozen. The axis "
        "ends at a hundredth of the lowest peak, if not before."
    )
    assert len(curves(axes)) == 20 and next(iter(curves(axes))) == "layer-0, same"
    assert len({line.get_color() for line in axes.lines}) == 20
    # Where rates end; but not below a hundredth of the lowest peak.
    assert axes.get_ylim()[0] == pytest.approx(0.7 * 0.001 * 0.8**19)


@needs_matplotlib
@pytest.mark.parametrize(("n", "is_dotted"), [(60, True), (61, False)])
def test_figures_of_few_points_have_dots_and_are_not_smoothed(n, is_dotted, tmp_path):
    panels = panels_of(write(tmp_path / "log.jsonl", rows(n, every=1)))
    assert (panels["Score"].lines[0].get_marker() == ".") is is_dotted
    assert len(panels["Gradient norm"].lines) == (1 if is_dotted else 2)


@needs_matplotlib
def test_figures_smooth_curves_cut_off_extremes_and_join_marks(tmp_path):
    """A point of the smoothed curve is the mean of a fortieth of all, without an eighth of them at each end."""
    values, spikes = [1.0 + i * 37 % 101 / 100 for i in range(801)], [400, 401, 402]
    for i in (100, 300, 500):
        values[i] = 15.0
    lines = log(range(801), losses={"ner": values}, grad_norm=values)
    for i, line in enumerate(lines):
        line["grad_spikes"] = bisect_right(spikes, i)
    panels = panels_of(write(tmp_path / "log.jsonl", lines))
    low, high = numpy.percentile(values, [1, 99])
    for title, top in (("Loss", high), ("Gradient norm", 15.0)):
        behind, before = (line.get_zorder() for line in panels[title].lines)
        (*_, faint), (*_, bold) = series(panels[title])
        assert faint == [*enumerate(values)] and behind < before
        for step, mean in bold:
            near = sorted(values[max(0, int(step) - 10) : int(step) + 11])
            assert mean == pytest.approx(fmean(near[len(near) // 8 : -(len(near) // 8)]))
        margin = 0.05 * (top - low)
        assert len(bold) == 801 and panels[title].get_ylim() == pytest.approx((low - margin, top + margin))
    assert marks(panels["What happened"]) == [("gradient spike", COLOURS[1], "v", [400, 402])]  # two steps are a mark


@needs_matplotlib
@pytest.mark.parametrize("n", [1200, 1201])
def test_figures_draw_at_most_1200_points(n, tmp_path):
    """Of each three, the lowest and the highest."""
    lines = log(range(n), learn_rates={"default": [1.0 + i for i in range(n)]})
    panels = panels_of(write(tmp_path / "log.jsonl", lines))
    [points] = curves(panels.pop("Learning rate")).values()
    assert not panels  # without numbers there is none
    assert points == [(i, 1.0 + i) for i in range(n) if i != 1 or n == 1200]


@needs_matplotlib
@pytest.mark.parametrize("n", [7, 8])
def test_figures_of_many_scores(n, tmp_path):
    """Those from 0 to 1, and no precision and recall beside F-scores: seven beside the main score."""
    scores = {"a_p": 1.0, "b_f": 0.0, **{f"c{i}": 0.1 * i for i in range(n - 2)}}
    left_out = {"b_p": 0.5, "b_r": 0.5, "token_acc": 0.5, "speed": 0.5, "d": 1.5, "e": -0.5}
    lines = log([0], score=[0.9], scores={name: [score] for name, score in (scores | left_out).items()})
    [axes] = panels_of(write(tmp_path / "log.jsonl", lines)).values()
    assert [*curves(axes)] == ["main score", *[*scores][:7], "best: 0.9"] and axes.get_xlim() == (-0.5, 0.5)
    assert axes.caption.partition("dev set.")[2] == (" 1 more are in the table below." if n == 8 else "")


@needs_matplotlib
@pytest.mark.parametrize("n", [10, 11])
def test_figures_of_many_rules(n, tmp_path):
    """Ten have a row each; of more, those that fired most."""
    lines = log(range(n))
    for step, line in enumerate(lines):
        line["controller"] = [{"controller": f"r{i}", "step": step} for i in range(n - step)]
    *_, happened = panels_of(write(tmp_path / "log.jsonl", lines)).values()
    shown = {text.get_text(): steps for text, (_, _, _, steps) in zip(happened.texts, marks(happened))}
    most = {f"rule r{i}": [*range(n - i)] for i in range(9)}
    assert shown == {**most, **({"rule r9": [0]} if n == 10 else {"other rules": [0, 1]})}


@needs_matplotlib
def test_figures_shorten_names():
    assert name_groups([*"abc"]) == "a, b, c" and name_groups([*"abcd"]) == "a, b, c and 1 more"
    axes = compat.import_figure()().add_subplot()
    for name in ("x" * 40, "y" * 41, "z"):
        axes.plot([], [], label=name)
    assert [name for _, name in keys_of(axes, 2)] == ["x" * 40, f"{'y' * 20}\u2026{'y' * 19}"]
    assert [name for _, name in keys_of(axes)] == ["x" * 40, "y" * 41, "z"]


@needs_matplotlib
def test_figures_mark_what_rules_did(tmp_path):
    """Rare ones through all panels, frequent ones in a row of their own."""

    def fired(name, step):
        return {"controller": name, "operation": "lr", "action": "should_cut", "event": "on_log", "step": step}

    lines, often, rare = rows(60), [*range(1, 60, 10)], [20, 25, 30, 35, 40]  # up to five are rare
    for line in lines:
        step = line["step"]
        line["controller"] = [fired("often", step)] * (step % 10 == 1) + [fired("rare $", step)] * (step in rare)
    lines[3]["controller"] = [None, {"controller": 3, "step": 1}, {"controller": "no step"}, "text"]
    lines[4]["controller"] = "text"
    path = write(tmp_path / "log.jsonl", lines)
    run = only(read_runs([path]))
    assert ("rule rare $", 20, "lr.should_cut") in events(run) and len(events(run)) == 6 + 5
    *others, happened = panels_of(path).values()
    one, other = COLOURS[2:4]
    assert marks(happened) == [("rule often", one, "o", often), ("rule rare $", other, "o", rare)]
    through = [("", other, "-.", [(step, 0), (step, 1)]) for step in rare]
    assert all(series(axes)[-6:] == [*through, ("rule rare $", other, "-.", [])] for axes in others)
    assert not any(label == "rule often" for axes in others for label, *_ in series(axes))


# ---------------------------------------------------------------------- a passage with errors

WORDS = [*"abcdefghijkl"]  # each with a space: word 3 is at 6


def drawn(kind, *, annotated=(), predicted=(), words=WORDS, is_right_to_left=False):
    """What is drawn of words, the first ones of a letter, with marks that are given by words."""
    marks = [
        [Mark(2 * start, 2 * end - 1, label, is_right, *(None if at is None else 2 * at for at in head))
         for start, end, label, is_right, *head in side]
        for side in (annotated, predicted)
    ]  # fmt: skip
    passage = Passage(1, 0, 0, [f"{word} " for word in words], False, *marks)
    return [html for _, html in draw(passage, kind, "x", is_right_to_left=is_right_to_left)]


def test_passage_is_drawn_with_entities_and_spans_as_displacy_draws_them():
    spans, ents = drawn(
        "ents", annotated=[(1, 3, "A", True), (2, 4, "B", False)], predicted=[(1, 3, "A", True), (3, 5, "B", False)]
    )
    assert re.findall('<mark class="(.+?)">(.+?)<bdi>(.+?)</bdi>', ents) == [
        ("right", "b c", "A"),
        ("wrong", "d e", "B"),
    ]
    doc, colours = Doc(Vocab(), WORDS), {"A": "var(--right-mark)", "B \u2717": "var(--wrong-mark)"}
    doc.spans["sc"] = [Span(doc, 1, 3, "A"), Span(doc, 2, 4, "B \u2717")]
    expected = displacy.render(doc, style="span", options={"colors": colours}, jupyter=False)
    assert spans.strip() == expected.replace("direction: ltr", "direction: auto")


def test_passage_is_drawn_with_the_arcs_that_differ_as_displacy_draws_them():
    """With two words on each side."""
    ours, _ = drawn("dep", annotated=[(5, 6, "s", False, 7), (6, 7, "t", False, 5), (7, 8, "r", False, 7),
                                      (8, 9, "q", False, None)])  # fmt: skip
    doc = Doc(Vocab(), WORDS[3:11], heads=[0, 1, 4, 2, 4, 5, 6, 7], deps=["", "", "s", "t", "", "", "", ""])
    look = {"compact": True, "distance": 92, "offset_x": 60, "word_spacing": 24}
    theirs = displacy.render(doc, style="dep", options=look, jupyter=False)
    arcs = re.compile(r'd="(M.+?)"|class="displacy-label".*?>(.+?)<')
    words = re.compile(r'displacy-word".*?>(.+?)<.*?displacy-tag".*?>(.*?)<', re.DOTALL)
    assert arcs.findall(ours) == arcs.findall(theirs)
    assert words.findall(ours) == [*zip(WORDS[3:11], ["", "", "", "", "root", "q (of another part)", "", ""])]
    # From a little above the highest arc to where displaCy's ends.
    top, height = map(float, re.findall(r'viewBox="0 (\S+) \S+ (\S+)"', ours)[0])
    highest = min(float(y) for y in re.findall(r",([\d.]+)", " ".join(path for path, _ in arcs.findall(ours))))
    assert (top, top + height) == (highest - 10, float(re.findall(r'height="(\S+)"', theirs)[0]))
    assert f'height="{height}"' in ours and f"height: {height}px" in ours and "direction: ltr" in ours


def test_passage_is_drawn_with_its_first_40_words_and_their_first_40_letters():
    words, heads = [*"y" * 39, "x" * 41, *"y" * 9], (39, 60)  # at 120: the word after the long one
    arcs = [(i, i + 1, "t", False, head) for i, head in enumerate(heads)]
    ours, _ = drawn("dep", annotated=arcs, words=words, is_right_to_left=True)
    assert re.findall(r'displacy-word".*?>(.+?)<', ours) == [*"y" * 39, "x" * 40]
    assert re.findall(r'displacy-tag".*?>(.+?)<', ours) == ["t (of another part)"] and "direction: rtl" in ours
