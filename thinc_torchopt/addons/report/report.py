"""A report: what is known about trainings, to be shown as a page, a picture, a cell of a notebook, or JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console
from spacy.language import Language

from ...core.errors import ConfigError, StateError
from ...core.tables import as_text, print_table
from ...core.words import count
from .errors import N_WORST, Compared, KindOfErrors, Passage, compare, load
from .figures import draw as draw_error
from .kinds import sentences
from .labels import Labels, Texts, Trained, count_texts, read_folder, shown, table_of, tables_of, title_of
from .log_file import printable
from .page import check_output, draw, make_page
from .runs import LoggedRun, duration, facts_of, logs_in, read_runs, summarize
from .style import save_whole
from .suspects import WHEN, Suspects, recorded_run

# Labels of a kind that are printed.
_MAX_LABELS = 30
# Columns of a terminal.
_WIDTH = 80
# Rows that are shown at once, and when the rest is opened.
_FIRST_ROWS, _MAX_ROWS = 25, 300
_PHASES = {
    "updates": "updates",
    "evaluations": "evaluations on the dev set",
    "saving": "logging and saving",
    "data": "reading texts",
    "gpu_idle": "of all this, the GPU had nothing to do",
}
_HOW = {
    "cats": "A text is worse, the further the score of a wrong category is from what is annotated: from 1 if the "
    "category holds, from 0 if it does not.",
    "dep": "A sentence is worse, the more of its words have a wrong head or label; punctuation is not counted, as in "
    "spaCy's scores. Only the arcs that differ are drawn.",
}
# Annotations that are shown for each component, and characters of a hard text.
_N_SUSPECTS, _MOST_CHARACTERS = 50, 600
_HOW_HARD = (
    "Annotations from which the component got the largest gradients, as a mean over the training. Some are wrong, "
    "others are only hard."
)


@dataclass(repr=False)
class Report:
    """A report. A notebook shows it.

    runs (list[LoggedRun]): The trainings. Several are compared.
    trained (Trained | None): What was trained on what. None: unknown, or several trainings.
    compared (Compared | None): The trained pipeline on annotated texts.
    suspects (Suspects | None): What was recorded of the training.
    """

    runs: list[LoggedRun]
    trained: Trained | None = None
    compared: Compared | None = None
    suspects: Suspects | None = None
    _texts: dict[str, Texts] = field(default_factory=dict)

    def html(self, *, reload_seconds: int | None = None) -> str:
        """A page that needs no other file. reload_seconds (int | None): It reads itself again after this time.

        RAISES (ImportError): matplotlib is not installed. (ConfigError): The logs have nothing to draw.
        """
        return make_page(self.runs, _beside(self), reload_seconds=reload_seconds)

    def to_disk(self, path: Path, *, reload_seconds: int | None = None) -> None:
        """Write a page (.html) or a picture (.png, .svg, .pdf), which has what the logs say. An existing file is
        replaced.

        RAISES (ImportError): matplotlib is not installed. (ConfigError): The file can't be written, or there is nothing
            to draw.
        """
        check_output(path, [log for run in self.runs for log in run.paths])
        if path.suffix.lower() != ".html":
            draw(self.runs, path)
            return
        page = self.html(reload_seconds=reload_seconds)
        with save_whole(path) as unfinished:
            unfinished.write_text(page, encoding="utf8")

    def print(self, console: Console) -> None:
        """Print how good the pipeline is, the summary of each run, the scores of labels, and what is told."""
        for line in self.sentences:
            console.print(line, markup=False)
        facts = [facts_of(run) for run in self.runs]
        names = [fact.name for i, fact in enumerate(facts[0]) if any(row[i].value for row in facts)]
        columns = [
            [run.label, *(f"{fact.value} {fact.more}".strip() for fact in row if fact.name in names)]
            for run, row in zip(self.runs, facts)
        ]
        first = ["run", *names]
        for block in _side_by_side(columns, _WIDTH - max(map(len, first))):
            headers, *rows = zip(first, *block)
            print_table(console, headers, rows, numbers=headers[1:])
        if any(run.best for run in self.runs):
            console.print("Scores are from 0 to 1, as SCORE in spaCy's table.\n")
        for table in self.labels:
            console.print(f"{table.title}:", markup=False)
            print_table(console, table.headers, table.cells(_MAX_LABELS), numbers=table.headers[1:])
            if (rest := len(table.rows) - _MAX_LABELS) > 0:
                console.print(f"Left out: {count(rest, 'rarer label')}.\n")
        for line in self.told:
            console.print(line, markup=False)

    def __repr__(self) -> str:
        return "\n".join([as_text(self.print), *(f"Note: {note}" for run in self.runs for note in run.notes)])

    def _repr_html_(self) -> str:
        # In an iframe, so that its styles and the notebook's don't affect each other.
        return f'<div><iframe srcdoc="{escape(self.html())}" style="width:100%;height:800px;border:0"></iframe></div>'

    def corpus(self, name: str) -> Texts:
        """The texts of the training. name (str): "train" or "dev"."""
        if name not in self._texts:
            self._texts[name] = count_texts("" if self.trained is None else self.trained.corpus(name))
        return self._texts[name]

    @cached_property
    def labels(self) -> list[Labels]:
        """The scores of each label: on the texts that were given; otherwise those that the training saved."""
        if self.trained is None:
            return []
        train, dev = (self.corpus(name) for name in ("train", "dev"))
        if self.compared is not None:
            return [table for one in self.compared.kinds if (table := table_of(one, train.counts)).rows]
        return tables_of(self.trained.scores, train.counts, dev.counts if dev.is_whole else {})

    @property
    def sentences(self) -> list[str]:
        """How good the pipeline is, a sentence for each kind of annotation. Several trainings are compared instead."""
        if self.compared is not None:
            return [kind.told for kind in self.compared.kinds if kind.told]
        if len(self.runs) > 1:
            return []
        trained = self.trained or Trained([], {})
        return list(sentences(trained.scores or self.runs[0].best_scores, trained.factories))

    @property
    def told(self) -> list[str]:
        """In a few lines: what was trained, where the time went, and how many errors there are."""
        return list(_lines_of(self))

    def summary(self) -> list[dict[str, Any]]:
        """The numbers of each run, for JSON."""
        found = [summarize(run) for run in self.runs]
        if self.labels:
            found[0]["labels"] = {
                one.name: {label: _without_nan(asdict(row)) for label, row in one.rows.items()} for one in self.labels
            }
        if self.compared is not None:
            found[0]["errors"] = {
                one.name: {
                    "wrong": one.wrong,
                    "worst": [{"text": worst.number, "wrong": worst.wrong, "in": worst.text} for worst in one.worst],
                }
                for one in self.compared.kinds
            }
        return found


def read_report(
    *logs: str | Path, model: str | Path | Language | None = None, texts: str | Path | None = None
) -> Report:
    """Read a report from logs of `JSONLinesLogger`. The logs of a run that was resumed are found and joined.

    logs (str | Path): One log, or those of several trainings, which are compared. A folder stands for the newest log
        in it; if it has none, for those of the folders in it.
    model (str | Path | Language | None): The trained pipeline, or its folder. None: model-best in the folder of the one
        log, if a folder was given; otherwise the report has what the log says.
    texts (str | Path | None): Annotated texts, as a .spacy file, to show the worst errors on. Needs `model`.
    RETURNS (Report): The report.
    RAISES (ConfigError): A file is no log; the folder is no pipeline, or one of another training; the texts can't be
        read; or `model` goes with several trainings.
    """
    paths = logs_in([Path(log) for log in logs])
    if model is None and len(paths) == 1 and paths != [Path(log) for log in logs]:
        beside = paths[0].parent / "model-best"
        model = beside if beside.is_dir() else None
    if texts is not None and model is None:
        raise ConfigError(
            f"Can't show errors on {texts}: there is no trained pipeline to make them. Add --model training/model-best."
        )
    trained = read_folder(Path(model)) if isinstance(model, (str, Path)) else None
    if not logs:
        raise ConfigError("Can't make a report: expected the log of a training, found none. Name training/log.jsonl.")
    runs = read_runs(paths)
    if model is not None and len(runs) > 1:
        raise ConfigError(
            f"Can't use --model for {len(runs)} trainings, {', '.join(run.label for run in runs)}: expected the log of "
            "one. Give the log of the training that saved it."
        )
    if len(runs) == 1 and runs[0].trained is not None:
        if trained is not None:
            _check_same(runs[0], runs[0].trained, trained, model)
        trained = trained or runs[0].trained
    report, nlp = Report(runs, trained), model if isinstance(model, Language) else None
    if model is not None and texts is not None:
        nlp = nlp or load(Path(str(model)))
        report.compared = compare(nlp, Path(texts))
    if isinstance(model, (str, Path)) and (run := recorded_run(Path(model))) is not None:
        try:
            report.suspects = Suspects(run, nlp or load(Path(model)))
        except (ConfigError, StateError) as error:
            runs[0].notes.append(f"Annotations that may be wrong are not shown. {error}")
    return report


def _check_same(run: LoggedRun, logged: Trained, saved: Trained, model: Any) -> None:
    """RAISES (ConfigError): A pipeline was not saved by the run of a log."""
    if found := logged.differences(saved):
        lines = "\n  ".join(map(printable, found))
        raise ConfigError(
            f"Can't use {model} with {run.paths[-1]}: another training has saved it:\n  {lines}\nGive the log and the "
            "pipeline of one training."
        )


def _side_by_side(columns: Sequence[list[str]], room: int) -> Iterator[list[list[str]]]:
    """Divide the columns of a table, so that each part fits into a width."""
    part, width = list[list[str]](), 0
    for column in columns:
        more = 2 + max(map(len, column))
        if part and width + more > room:
            yield part
            part, width = [], 0
        part.append(column)
        width += more
    yield part


def _without_nan(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and not _is_nan(value)}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


# ---------------------------------------------------------------------- beside the pictures


def _beside(report: Report) -> dict[str, Any]:
    """The values for the template of a page, beside its pictures, by the names there."""
    compared, suspects = report.compared, report.suspects
    errors = [] if compared is None else [_errors(one, compared, i) for i, one in enumerate(compared.kinds)]
    return {
        "sentences": report.sentences,
        "trained": _trained(report),
        "label_tables": [_label_table(one) for one in report.labels],
        "scores_are_of": _scores_are_of(report),
        "times": list(_times(report)),
        "errors": [*errors, *(() if suspects is None else _suspects(suspects))],
        "learned": [] if suspects is None else list(_learned(suspects)),
    }


def _lines_of(report: Report) -> Iterator[str]:
    """In a few lines: what was trained on what, where the time went, and how many errors there are."""
    if told := _trained(report):
        yield told
    for label, rows in _times(report):
        spent = ", ".join(f"{what} {time} ({share:.0f}%)" for what, time, share in rows)
        yield f"Time{f' of {label}' if len(report.runs) > 1 else ''}: {spent}."
    if report.compared is not None:
        name = printable(report.compared.name)
        for kind in report.compared.kinds:
            yield f"{title_of(kind.name)}: {count(kind.wrong, 'error')} in {name}."
        if not report.compared.kinds:
            yield f"No errors can be shown: {name} has no annotations that the pipeline predicts."


def _trained(report: Report) -> str:
    """The components and the sizes of the corpora. Empty: unknown."""
    if report.trained is None or not report.trained.components:
        return ""
    sizes = []
    for name in ("train", "dev"):
        texts = report.corpus(name)
        if texts.n_texts is not None and texts.n_words is not None:
            sizes.append(f"{name} {count(texts.n_texts, 'text')}, {count(texts.n_words, 'word')}")
    told = f"Trained: {', '.join(map(printable, report.trained.components))}."
    return f"{told} Corpora: {'; '.join(sizes)}." if sizes else told


# ---------------------------------------------------------------------- labels


def _label_table(table: Labels) -> tuple[str, list[str], list[tuple[str, list[list[str]]]]]:
    """Title, headers, and the rows: those that are shown, and those that can be opened, each with a title."""
    cells, n = table.cells(_MAX_ROWS), len(table.rows)
    parts = [("", cells[:_FIRST_ROWS])]
    if n > _FIRST_ROWS:
        left_out = f" ({n - _MAX_ROWS:,} of them left out)" if n > _MAX_ROWS else ""
        parts.append((f"{count(n - _FIRST_ROWS, 'rarer label')}{left_out}", cells[_FIRST_ROWS:]))
    return table.title, table.headers, parts


def _scores_are_of(report: Report) -> str:
    told = " Labels of the training texts are counted in the first of them."
    told = "" if report.corpus("train").is_whole else told
    if report.compared is not None:
        found = report.compared
        return f"On the {count(found.n_texts, 'text')} of {printable(found.name)}, from 0 to 1.{told}"
    return f"On the dev set, as saved with the pipeline, from 0 to 1.{told}"


# ---------------------------------------------------------------------- time


def _times(report: Report) -> Iterator[tuple[str, list[tuple[str, str, float]]]]:
    """For each run its label, and what took time: in words, how long, and the share in percent."""
    for run in report.runs:
        spent = run.time_spent
        total = sum(spent.values()) - spent.get("gpu_idle", 0.0)
        if total > 0.0:
            rows = [
                (_PHASES.get(phase, printable(phase)), duration(spent[phase]), 100 * spent[phase] / total)
                for phase in sorted(spent, key=lambda phase: (phase == "gpu_idle", -spent[phase]))
            ]
            yield run.label, rows


# ---------------------------------------------------------------------- errors


def _errors(kind: KindOfErrors, compared: Compared, i: int) -> dict[str, Any]:
    passages = []
    for j, passage in enumerate(kind.worst):
        told = f"Text {passage.number:,}: {passage.wrong:,} wrong, {passage.right:,} right"
        told = told if kind.kind != "cats" else f"Text {passage.number:,}"
        passages.append(_passage(told, passage, kind.kind, f"error-{i}-{j}", compared.is_right_to_left))
    how = _HOW.get(kind.kind, _how_of_spans(kind.kind))
    worst = "all" if kind.n_passages <= N_WORST else f"the {N_WORST} worst"
    where = "texts" if kind.kind == "cats" else "sentences" if kind.kind == "dep" else "places"
    told = "no errors" if not kind.wrong else f"{worst} of {count(kind.n_passages, where[:-1])} with errors"
    return {
        "title": f"{title_of(kind.name)}: {told}",
        "how": how,
        "by": printable(", ".join(kind.components)),
        "passages": passages,
    }


def _passage(told: str, passage: Passage, kind: str, name: str, is_right_to_left: bool) -> dict[str, Any]:
    drawn = draw_error(passage, kind, name, is_right_to_left=is_right_to_left)
    return {
        "told": told,
        "rows": drawn,
        "text": "" if drawn else printable(passage.text.replace("\n", " ")),
        "categories": [
            (shown(name), "annotated" if holds else "not annotated", f"{score:.2f}")
            for name, holds, score in passage.categories
        ],
        "is_cut": passage.is_cut,
    }


def _suspects(found: Suspects) -> Iterator[dict[str, Any]]:
    """The suspects of each component, and the hardest texts."""
    is_right_to_left = found.nlp.vocab.writing_system.get("direction") == "rtl"
    for name, component in found.components.items():
        passages, kind = [], component.kind.key
        for i, one in enumerate(found.of(name, _N_SUSPECTS)):
            told = f"Text {one.number:,}: {shown(one.words)}. {one.why}"
            if (passage := one.passage) is not None:
                passages.append(_passage(told, passage, kind, f"suspect-{name}-{i}", is_right_to_left))
        title = f"{title_of(kind)} that may be wrong: the {len(passages)} hardest in training"
        yield {"title": title, "how": _HOW_HARD, "by": printable(name), "passages": passages}
    texts = [
        {"told": f"Text {i + 1:,}: {score:.1f}", "text": shorten(printable(found.examples[i].text), _MOST_CHARACTERS)}
        for i, score in found.hardest_texts(N_WORST)
    ]
    by = printable(", ".join(found.components))
    yield {
        "title": f"The {len(texts)} hardest texts",
        "how": "Scores over all components.",
        "by": by,
        "passages": texts,
    }


def _learned(found: Suspects) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, headers and rows: for each label, when its annotations were learned."""
    for name, component in found.components.items():
        when = component.learned()
        rows = [
            [shown(label), *(f"{counts[one]:,}" for one in WHEN)]
            for label, counts in sorted(when.items(), key=lambda one: (-one[1].total(), one[0]))
        ]
        if rows:
            yield f"When {printable(name)} learned its annotations", ["label", *WHEN], rows[:_MAX_ROWS]


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
