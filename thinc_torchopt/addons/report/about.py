"""The parts of a page beside its pictures, as values for the template: what was trained on what, the scores of labels,
where the time went, and the worst errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .draw_errors import draw
from .errors import N_WORST, Compared, KindOfErrors
from .labels import Labels, shown, title_of
from .log_file import printable
from .runs import duration
from .trained import Component

if TYPE_CHECKING:
    from .report import Report

# Rows that are shown at once, and when the rest is opened.
_MAX_LABELS, _FIRST_ROWS, _MAX_ROWS = 12, 25, 300
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
    trained, compared = report.trained, report.compared
    return {
        "components": [_component(one) for one in trained.components] if trained is not None else [],
        "corpora": list(_corpora(report)),
        "main_lines": "" if trained is None else trained.main_lines,
        "label_tables": [_label_table(one) for one in report.labels],
        "scores_are_of": _scores_are_of(report),
        "times": list(_times(report)),
        "errors": [] if compared is None else [_errors(one, compared, i) for i, one in enumerate(compared.kinds)],
    }


def lines_of(report: Report) -> Iterator[str]:
    """The same in a few lines, for a terminal."""
    trained = report.trained
    if trained is not None:
        names = [printable(one.name) + (" (frozen)" if one.is_frozen else "") for one in trained.components]
        told = []
        for name in ("train", "dev"):
            texts = report.corpus(name)
            if texts is not None and texts.n_texts is not None and texts.n_words is not None:
                told.append(f"{name} {_count(texts.n_texts, 'text')}, {_count(texts.n_words, 'word')}")
        yield f"Trained: {', '.join(names)}." + (f" Corpora: {'; '.join(told)}." if told else "")
    for label, rows in _times(report):
        spent = ", ".join(f"{what} {time} ({share:.0f}%)" for what, time, share in rows)
        yield f"Time{f' of {label}' if len(report.runs) > 1 else ''}: {spent}."
    if report.compared is not None:
        name = printable(report.compared.name)
        for kind in report.compared.kinds:
            yield f"{title_of(kind.name)}: {_count(kind.wrong, 'error')} in {name}."
        if not report.compared.kinds:
            yield f"No errors can be shown: {name} has no annotations that the pipeline predicts."


# ---------------------------------------------------------------------- what was trained on what


def _component(one: Component) -> tuple[str, str, str]:
    labels = [shown(label) for label in one.labels[:_MAX_LABELS]]
    more = one.n_labels - len(labels)
    told = ", ".join(labels) + (f" and {more:,} more" if more > 0 and labels else "")
    kind = ", ".join(printable(text) for text in (one.factory, one.architecture) if text)
    return printable(one.name), kind + (" (frozen)" if one.is_frozen else ""), told or "no labels"


def _corpora(report: Report) -> Iterator[tuple[str, str, str, str]]:
    if report.trained is None:
        return
    for name in ("train", "dev"):
        texts = report.corpus(name)
        assert texts is not None
        where = printable(texts.path or report.trained.reader(name)) or "unknown"
        if texts.n_texts is None:
            yield name, where, "not found from here" if texts.path else "", ""
        else:
            yield name, where, f"{texts.n_texts:,}", f"{texts.n_words:,}"


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
