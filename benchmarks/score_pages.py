"""What the pages say of benchmarks/score.jsonl: tables, the picture, and the sentences of README.

    python benchmarks/score_pages.py    # write them anew

tests/test_score.py compares them with the pages.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
REPO = HERE.parent
MEASURED_FILE = REPO / "thinc_torchopt" / "addons" / "recipes" / "measured.yaml"

sys.path.insert(0, str(HERE))
from score import (  # noqa: E402
    LEVERS,
    TASKS,
    Line,
    Row,
    gains_of_lever,
    levers,
    read,
    rows_of,
    scores,
    standard_error,
    times,
)


def picture(rows: list[Row], path: Path) -> None:
    """Differences of the saved model, with one and two standard errors."""
    import matplotlib

    from thinc_torchopt.addons.report.style import COLOURS, MUTED, save, style

    matplotlib.use("agg")
    from matplotlib import pyplot

    with style(**{"svg.hashsalt": "score"}):
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 1.2 + 0.35 * len(rows)), sharey=True)
        for axis, other, title in zip(axes, ("stock", "tuned"), ("spacy init config", "spaCy's optimizer, tuned")):
            for place, row in enumerate(rows):
                if (gain := row.gain(other)) is not None:
                    fill = "white" if TASKS[row.task].has_chosen else COLOURS[0]
                    if gain.error == gain.error:
                        for errors, width in ((2, 1.0), (1, 3.0)):
                            reach = gain.mean - errors * gain.error, gain.mean + errors * gain.error
                            axis.plot(reach, (place, place), color=COLOURS[0], lw=width)
                    axis.plot(gain.mean, place, "o", color=COLOURS[0], markerfacecolor=fill)
            axis.axvline(0, color=MUTED, lw=0.8)
            axis.set_xlabel(f"points of best above {title}")
        axes[0].set_yticks(range(len(rows)), [row.task for row in rows])
        axes[0].set_ylim(len(rows) - 0.5, -0.5)
        figure.tight_layout()
        save(figure, path)


# ----------------------------------------------------------------------------------------------------------- sentences

# Of measured.yaml, by what is trained.
MEASURED = {
    "tagger, parser, CNN or BiLSTM": ["ewt", "ewt-morph"],
    "NER": ["food", "brands", "wnut17", "gum"],
    "span categorizer": ["spancat", "brands-spans", "gum-spans"],
    "text classifier, bag of words": ["cooking", "genres", "docs-bow"],
    "text classifier with a CNN": ["cooking-cnn", "docs-issues", "genres-cnn"],
    "a transformer, or a pipeline with pretrained parts": ["minilm", "wnut17-minilm"],
}


def expectation(rows: list[Row], tasks: Iterable[str]) -> str:
    """What measured.yaml says of some tasks: in words of the first one. Empty: none was measured."""
    words = " points against spaCy's template", " of its time", " against its optimizer, tuned"
    said = []
    for row in (row for row in rows if row.task in tasks):
        points, of_time, tuned = ("", "", "") if said else words
        stock_share, tuned_share = (f"({row.share_of_time(other):.2f}" for other in ("stock", "tuned"))
        said.append(
            f"{row.task} {row.gain('stock')}{points} {stock_share}{of_time}), {row.gain('tuned')}{tuned} {tuned_share})"
        )
    return "; ".join(said)


def fresh_tasks(rows: list[Row]) -> str:
    """The tasks that nothing of the recipe was chosen on."""
    *names, last = [row.task for row in rows if not TASKS[row.task].has_chosen] or ["none"]
    return f"{', '.join(names)} and {last}" if names else last


def claims(rows: list[Row]) -> str:
    """What README says."""
    singles = [f"{row.gain('tuned').mean:+.1f} points on {row.task}" for row in rows if row.is_single]
    rows = [row for row in rows if not row.is_single]
    if not rows:
        return "Not measured yet."
    fresh = [row for row in rows if not TASKS[row.task].has_chosen]
    text = (
        f"`best` was measured on {len(rows)} of {len(TASKS)} tasks so far, {len(fresh)} of which did not choose it "
        "([tables](docs/recipes.md)). Its points, beside those of two others:"
    )
    table = ["| beside | in the mean, at worst | in this part of its CPU time | on those that did not choose it |"]
    table.append("| --- | --- | --- | --- |")
    names = {"stock": "the config of `spacy init config`", "tuned": "spaCy's Adam, tuned for each task"}
    for arm, name in names.items():
        on_fresh = mean_and_worst(fresh, arm) if fresh else ""
        table.append(f"| {name} | {mean_and_worst(rows, arm)} | {span_of(rows, arm)} | {on_fresh} |")
    text = "\n".join([filled(text), "", *table])
    if singles:
        text += "\n\n" + filled(f"With one seed so far: {', '.join(singles)} against that Adam.")
    return text


LEVER_TASKS = ("food", "ewt", "docs-issues", "genres-cnn")


def lever_claims(lines: list[Line]) -> str:
    """Which levers were tried on all of four tasks, and which of them may enter the recipe, by the saved model."""
    tried = {}
    for lever in LEVERS:
        gains = gains_of_lever(lines, lever)
        if set(LEVER_TASKS) <= set(gains):
            tried[lever] = [gains[task] for task in LEVER_TASKS]
    passed = [
        lever
        for lever, gains in tried.items()
        if any(gain.mean > 2 * gain.error for gain in gains) and not any(gain.is_loss for gain in gains)
    ]
    singles = [task for i, task in enumerate(LEVER_TASKS) if any(gains[i].count == 1 for gains in tried.values())]
    where = ", ".join(LEVER_TASKS) + f" (with one seed on {', '.join(singles)})" * bool(singles)
    text = f"Tried on all of {where}: {'; '.join(tried) or 'no lever yet'}."
    if tried:
        text += (
            " More than two standard errors above the recipe on one of the four, and more than one below it on none: "
            f"{'; '.join(passed) or 'none'}."
        )
    return filled(text)


def taught_claims(lines: list[Line], lessons: list[dict[str, Any]]) -> str:
    """What a teacher adds on food, where the same halves are judged. lessons: The lines of teacher.jsonl."""
    taught = [one for one in lessons if (one["task"], one["row"]) == ("taught-food", "share4")]
    students = {one["seed"]: one["scores"]["F"] for one in taught}
    tuned = {
        line["seed"]: line["saved"]["score"] / 100 for line in lines if (line["task"], line["arm"]) == ("food", "tuned")
    }
    gains = [score - tuned[seed] for seed, score in sorted(students.items()) if seed in tuned]
    if len(gains) < 2:
        return ""
    return filled(
        f"With a [teacher](teacher.md), MiniLM, and 4 unlabelled texts for each annotated one, the same CNN has "
        f"{mean(students.values()):.1f} on food: {mean(gains):+.1f} ± {standard_error(gains):.1f} beside `tuned` "
        f"({len(gains)} paired seeds, whose error alone this is)."
    )


def filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def mean_and_worst(rows: list[Row], other: str) -> str:
    gains = {row.task: row.gain(other) for row in rows}
    worst = min(gains, key=lambda task: gains[task].mean)
    named = worst + ", one seed" * (gains[worst].count == 1)
    return f"{mean(gain.mean for gain in gains.values()):+.1f}, {gains[worst].mean:+.1f} ({named})"


def span_of(rows: list[Row], other: str) -> str:
    """The shares of the time, from the lowest to the highest."""
    shares = sorted({f"{row.share_of_time(other):.2f}" for row in rows})
    return " to ".join(dict.fromkeys((shares[0], shares[-1])))


BEGIN, END = "<!-- Written by `python benchmarks/score_pages.py`. -->\n", "<!-- End of the generated part. -->"


def pages(lines: list[Line]) -> dict[Path, str]:
    """What stands between the two comments of each page."""
    rows = rows_of(lines)
    worth = ["\n".join(scores(rows, "saved")), taught_claims(lines, read(HERE / "teacher.jsonl"))]
    figures = ["\n".join(found) for found in (scores(rows, "last"), times(rows), levers(lines))]
    return {
        REPO / "docs" / "recipes.md": "\n\n".join(filter(None, worth)),
        REPO / "benchmarks" / "README.md": "\n\n".join([*figures, lever_claims(lines)]),
        REPO / "README.md": claims(rows),
    }


def between(text: str) -> str | None:
    """What stands between the comments of a page. None: it has none."""
    _, begin, rest = text.partition(BEGIN)
    found, end, _ = rest.partition(END)
    return found.strip("\n") if begin and end else None


def report(lines: list[Line]) -> None:
    """Write tables and sentences into the pages, and the picture."""
    for path, text in pages(lines).items():
        page = path.read_text("utf8")
        if between(page) is None:
            print(f"{path.name} has no place for this:\n\n{text}\n")
            continue
        before, _, rest = page.partition(BEGIN)
        path.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{rest.partition(END)[2]}", "utf8")
    text = MEASURED_FILE.read_text("utf8")
    for train, tasks in MEASURED.items():
        if not (said := expectation(rows_of(lines), tasks)):
            continue
        said = textwrap.indent(textwrap.fill(said, 110), " " * 6)
        entry = rf"(  - train: {re.escape(train)}\n(?:    .*\n)*?    expect: )(?:.*\n)(?:      .*\n)*"
        text = re.sub(entry, rf"\1>-\n{said}\n", text)
    text = re.sub(r"(of these tasks but\s+)[^.]*", rf"\1{fresh_tasks(rows_of(lines))}", text)
    MEASURED_FILE.write_text(text, "utf8")
    picture(rows_of(lines), REPO / "docs" / "recipes.svg")


if __name__ == "__main__":
    report(read())
