"""Pages and pictures of reports: whole, alone, and with the numbers of the logs."""

import re
import xml.etree.ElementTree as ElementTree
from io import BytesIO

import pytest

from thinc_torchopt.addons.report.page import _number, _tables
from thinc_torchopt.addons.report.report import Report, read_report
from thinc_torchopt.addons.report.runs import facts_of, read_runs
from thinc_torchopt.addons.report.style import COLOURS, MUTED, TEXT
from thinc_torchopt.core.errors import ConfigError

from ...pictures import drawn, series
from .kit import ONE, TWO, Page, losses, needs_matplotlib, row, rows, write

# ---------------------------------------------------------------------- files


def three_logs(folder):
    """Of runs with all that a report marks, names that are no Latin letters, and such as would be tags."""
    names = ["<script>alert(1)</script>", 'ner & "x" $5$', "タガー", "عربي", "a\tb\x1b"]
    paths = []
    for i, name in enumerate(("one", "t<w>o", "drei")):
        lines = rows(80)
        for line in lines:
            step = line["step"]
            line["losses"] = {name: 10.0 * (j + 1) / (step + 1) for j, name in enumerate(names)}
            line["learn_rates"] = {f"{names[0]}/layer-{k}": 0.1 * (i + 1) * 0.7**k for k in range(12)}
            line |= {"grad_spikes": step // 30, "skipped_updates": step // 30, "outside_writes": step // 50}
            line |= {"rollbacks": step // 40}
            line |= {"last_checkpoint": step // 20 * 20} if step > 20 else {}
            line |= {"last_rollback": [40, 20]} if step >= 40 else {}
        paths.append(write(folder / name / "log.jsonl", lines, "{" if i == 1 else ""))
    return paths


@needs_matplotlib
@pytest.mark.parametrize("n", [1, 3])
def test_page_page_is_one_file_with_all_in_it(tmp_path, n):
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
    assert "<script>alert(1)</script>" in words and 'ner & "x" $5$' in words and "タガー" in words
    assert "a\ufffdb\ufffd" in words and words.count("\u2605") == n
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
def test_page_panels_share_their_steps(tmp_path, monkeypatch):
    figures = drawn(monkeypatch)
    lines = [
        {key: line.get(key) for key in ("step", "score", "learn_rates")} | {"losses": {"ner": 1.0}} for line in rows(50)
    ]
    runs = read_runs([write(tmp_path / "a.jsonl", lines), write(tmp_path / "b.jsonl", lines[:40])])
    Report(runs).to_disk(tmp_path / "report.html")
    Report(runs).to_disk(tmp_path / "report.png")
    *on_page, picture = figures  # each panel twice on the page, narrow and wide
    head, *below = picture.axes
    assert [*map(series, below)] == [series(figure.axes[0]) for figure in on_page[::2]]
    texts = {place: cell.get_text().get_text() for place, cell in head.tables[0].get_celld().items()}
    columns = {name: column for (row, column), name in texts.items() if row == 0}
    for i, run in enumerate(runs, 1):
        assert texts[i, 0] == run.label
        assert all(texts[i, columns[fact.name]].startswith(fact.value) for fact in facts_of(run) if fact.value)
    axes = [axes for figure in on_page for axes in figure.axes] + below
    assert all(axes.get_xlim() == pytest.approx((-0.49, 49.49)) for axes in axes)
    assert all(axes.get_ylabel() for axes in axes) and all(figure.axes[-1].get_xlabel() == "step" for figure in figures)
    # On the page, they are below each other, with room for numbers; on a phone with fewer of them.
    sizes = re.findall(r'<svg.*? width="([\d.]+)pt"', (tmp_path / "report.html").read_text("utf8"), re.DOTALL)
    assert [*map(float, sizes)] == [864, 304] * (len(on_page) // 2)
    heights = []
    for figure in on_page[::2]:
        [axes], (width, height) = figure.axes, 90 * figure.get_size_inches()
        margins = (axes.get_position().get_points() * (width, height)).ravel()
        assert [*margins] == pytest.approx([86, 42, width - 14, height - 8])
        assert [at for at in axes.get_xticks() if 0 <= at < 50] == [0, 20, 40]
        heights.append(height)
    assert [*90 * picture.get_size_inches()] == pytest.approx([1080, 4 * 24 + sum(heights)])
    # In the picture, names and numbers have their colours, and nothing lies on something else.
    assert head.get_title(loc="left") == "2 trainings compared" and not head.axison
    for (i, column), cell in head.tables[0].get_celld().items():
        text = cell.get_text()
        assert text.get_color() == (TEXT if i and column else COLOURS[i - 1] if i else MUTED)
        assert text.get_fontsize() == pytest.approx(below[0].get_legend().get_texts()[0].get_fontsize())
        assert text.get_window_extent().width < cell.get_window_extent().width
    assert [axes.get_title(loc="left") for axes in below] == ["Score", "Loss of ner", "Learning rate"]
    assert below[0].get_title(loc="right") == "At each evaluation, on the dev set."
    for one in below:
        legend, plot = one.get_legend().get_window_extent(), one.get_window_extent()
        assert 0 <= legend.x0 - plot.x1 < 20 and 0 <= plot.y1 - legend.y1 < 20
    # In the picture the plots are exactly below each other, and nothing is cut off.
    places = [axes.get_position() for axes in below]
    assert len({(round(place.x0, 3), round(place.x1, 3)) for place in places}) == 1
    box, (width, height) = picture.get_tightbbox(), picture.get_size_inches()
    assert box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height


@needs_matplotlib
@pytest.mark.parametrize(
    "lines",
    [
        [row(0, learn_rates={f"タガー-{i}": 1.0 + i for i in range(13)})],
        [{**losses(1.0)[0], "score": 0.5}],
        losses(0.0, 0.0),
    ],
    ids=range(3),
)
def test_page_of_hardly_anything(tmp_path, monkeypatch, lines):
    figures = drawn(monkeypatch)
    runs = read_runs([write(tmp_path / "log.jsonl", lines)])
    for suffix in ("html", "png"):
        Report(runs).to_disk(tmp_path / f"report.{suffix}")
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf8")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    head, *below = figures[-1].axes
    assert head.tables[0].get_celld()[1, 0].get_text().get_color() == TEXT
    legends = [len(axes.get_legend().get_texts()) for axes in below if axes.get_ylabel() == "learning rate"]
    assert legends in ([], [12])


@pytest.mark.parametrize(("n", "last"), [(200, ["200", "gradient spike"]), (201, ["and 1 more"])])
def test_page_tells_the_first_200_events(tmp_path, n, last):
    lines = [row(i, grad_spikes=i) for i in range(n + 1)]
    *_, (title, headers, table) = _tables(read_runs([write(tmp_path / "log.jsonl", lines)]))
    assert (title, headers) == ("What happened when", ["step", "what happened"])
    assert table[:200] == [[str(step), "gradient spike"] for step in range(1, 201)] and table[-1] == last


def test_page_tells_scores_and_rates(tmp_path):
    """The scores of step 4, and the last rates: of one run, and beside those of another."""
    paths = [write(tmp_path / "a" / "log.jsonl", ONE), write(tmp_path / "b" / "log.jsonl", TWO)]
    scores, rates, events = _tables(read_runs(paths))
    none = "\u2013"
    assert scores == (
        "All scores at the best step, from 0 to 1",
        ["score", "a", "b"],
        [["ents_f", "0.75", "0.875"], ["ents_p", "1", none], ["tag_acc", "0.5", none], ["dep_las", none, "0.375"]],
    )
    rows = [["encoder", "0", none], ["default", "0.125", "0.125"], ["head", "0.25", none]]
    assert rates == ("Learning rates at the last step", ["param group", "a", "b"], rows)
    assert events[1] == ["step", "run", "what happened"] and events[2][:2] == [
        ["1", "a", "gradient spike"],
        ["1", "b", "resumed"],
    ]
    alone, *_ = _tables(read_runs(paths[:1]))
    assert alone[1:] == (["score", "value"], [row[:2] for row in scores[2][:3]])
    numbers = {None: "\u2013", 999.96: "1000", -1000.0: "-1,000", 999_999_999.0: "999,999,999", 1e9: "1e+09"}
    assert [*map(_number, numbers)] == [*numbers.values()]


@needs_matplotlib
def test_page_errors_of_the_output(tmp_path):
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
