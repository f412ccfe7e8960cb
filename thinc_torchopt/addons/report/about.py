"""The parts of a page beside its pictures, as values for the template: the scores of labels, where the time went, and
the worst errors. And in a few lines, for a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .draw_errors import draw
from .errors import N_WORST, Compared, KindOfErrors
from .labels import Labels, shown, title_of
from .log_file import printable
from .runs import duration

if TYPE_CHECKING:
    from .report import Report

# Rows that are shown at once, and when the rest is opened.
_FIRST_ROWS, _MAX_ROWS = 25, 300
_PHASES = {
    "updates": "updates",
    "evaluations": "evaluations on the dev set",
    "saving": "logging and saving",
    "data": "reading texts",
}
_HOW = {
    "cats": "A text is worse, the further the score of a wrong category is from what is annotated: from 1 if the "
    "category holds, from 0 if it does not.",
    "dep": "A sentence is worse, the more of its words have a wrong head or label; punctuation is not counted, as in "
    "spaCy's scores. Only the arcs that differ are drawn.",
}


def about(report: Report) -> dict[str, Any]:
    """The values for the template, by the names there."""
    compared = report.compared
    return {
        "trained": _trained(report),
        "label_tables": [_label_table(one) for one in report.labels],
        "scores_are_of": _scores_are_of(report),
        "times": list(_times(report)),
        "errors": [] if compared is None else [_errors(one, compared, i) for i, one in enumerate(compared.kinds)],
    }


def lines_of(report: Report) -> Iterator[str]:
    """In a few lines: what was trained on what, where the time went, and how many errors there are."""
    if told := _trained(report):
        yield told
    for label, rows in _times(report):
        spent = ", ".join(f"{what} {time} ({share:.0f}%)" for what, time, share in rows)
        yield f"Time{f' of {label}' if len(report.runs) > 1 else ''}: {spent}."
    if report.compared is not None:
        name = printable(report.compared.name)
        for kind in report.compared.kinds:
            yield f"{title_of(kind.name)}: {_count(kind.wrong, 'error')} in {name}."
        if not report.compared.kinds:
            yield f"No errors can be shown: {name} has no annotations that the pipeline predicts."


def _trained(report: Report) -> str:
    """The components and the sizes of the corpora. Empty: unknown."""
    if report.trained is None or not report.trained.components:
        return ""
    sizes = []
    for name in ("train", "dev"):
        texts = report.corpus(name)
        if texts is not None and texts.n_texts is not None and texts.n_words is not None:
            sizes.append(f"{name} {_count(texts.n_texts, 'text')}, {_count(texts.n_words, 'word')}")
    told = f"Trained: {', '.join(map(printable, report.trained.components))}."
    return f"{told} Corpora: {'; '.join(sizes)}." if sizes else told


# ---------------------------------------------------------------------- labels


def _label_table(table: Labels) -> tuple[str, list[str], list[tuple[str, list[list[str]]]]]:
    """Title, headers, and the rows: those that are shown, and those that can be opened, each with a title."""
    cells, n = table.cells(_MAX_ROWS), len(table.rows)
    parts = [("", cells[:_FIRST_ROWS])]
    if n > _FIRST_ROWS:
        left_out = f" ({n - _MAX_ROWS:,} of them left out)" if n > _MAX_ROWS else ""
        parts.append((f"{_count(n - _FIRST_ROWS, 'rarer label')}{left_out}", cells[_FIRST_ROWS:]))
    return table.title, table.headers, parts


def _scores_are_of(report: Report) -> str:
    train = report.corpus("train")
    told = ""
    if train is not None and not train.is_whole:
        told = " Labels of the training texts are counted in the first of them."
    if report.compared is not None:
        found = report.compared
        return f"On the {_count(found.n_texts, 'text')} of {printable(found.name)}, from 0 to 1.{told}"
    return f"On the dev set, as saved with the pipeline, from 0 to 1.{told}"


# ---------------------------------------------------------------------- time


def _times(report: Report) -> Iterator[tuple[str, list[tuple[str, str, float]]]]:
    """For each run its label, and what took time: in words, how long, and the share in percent."""
    for run in report.runs:
        spent = run.time_spent
        total = sum(spent.values())
        if total > 0.0:
            rows = [
                (_PHASES.get(phase, printable(phase)), duration(spent[phase]), 100 * spent[phase] / total)
                for phase in sorted(spent, key=lambda phase: -spent[phase])
            ]
            yield run.label, rows


# ---------------------------------------------------------------------- errors


def _errors(kind: KindOfErrors, compared: Compared, i: int) -> dict[str, Any]:
    passages = []
    for j, passage in enumerate(kind.worst):
        drawn = draw(passage, kind.kind, f"error-{i}-{j}", is_right_to_left=compared.is_right_to_left)
        told = f"Text {passage.number:,}: {passage.wrong:,} wrong, {passage.right:,} right"
        passages.append(
            {
                "told": told if kind.kind != "cats" else f"Text {passage.number:,}",
                "rows": drawn,
                "text": "" if drawn else printable(passage.text.replace("\n", " ")),
                "categories": [
                    (shown(name), "annotated" if holds else "not annotated", f"{score:.2f}")
                    for name, holds, score in passage.categories
                ],
                "is_cut": passage.is_cut,
            }
        )
    how = _HOW.get(kind.kind, _how_of_spans(kind.kind))
    worst = "all" if kind.n_passages <= N_WORST else f"the {N_WORST} worst"
    where = "texts" if kind.kind == "cats" else "sentences" if kind.kind == "dep" else "places"
    told = "no errors" if not kind.wrong else f"{worst} of {_count(kind.n_passages, where[:-1])} with errors"
    return {
        "title": f"{title_of(kind.name)}: {told}",
        "how": how,
        "by": printable(", ".join(kind.components)),
        "passages": passages,
    }


def _how_of_spans(kind: str) -> str:
    what = "words have a wrong prediction" if kind in ("tag", "pos", "morph", "lemma") else ""
    worse = (
        f"the more of its {what}"
        if what
        else "the more annotations in it were not predicted, and the more predictions in it are not annotated: wrong "
        "ends or a wrong label count as both"
    )
    return (
        f"A place (a sentence, or up to some 60 words) is worse, {worse}. Of two that are equally bad, the one with "
        "fewer right predictions comes first."
    )


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
