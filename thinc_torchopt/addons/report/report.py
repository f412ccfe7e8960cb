"""A report: what is known about trainings, to be shown as a page, a picture, a cell of a notebook, or JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import spacy
from rich.console import Console
from spacy.language import Language

from ...core.errors import ConfigError
from ...core.tables import as_text, print_table
from ...core.words import count
from .about import lines_of
from .errors import Compared, compare
from .labels import Labels, Texts, count_texts, table_of, tables_of
from .page import make_page, write_page
from .runs import LoggedRun, facts_of, read_runs, summarize
from .trained import Trained, read_folder

# Labels of a kind that are printed.
_MAX_LABELS = 30


@dataclass(repr=False)
class Report:
    """A report. A notebook shows it.

    runs (list[LoggedRun]): The trainings. Several are compared.
    trained (Trained | None): What was trained on what. None: unknown, or several trainings.
    compared (Compared | None): The trained pipeline on annotated texts.
    """

    runs: list[LoggedRun]
    trained: Trained | None = None
    compared: Compared | None = None
    _texts: dict[str, Texts] = field(default_factory=dict)

    def html(self, *, reload_seconds: int | None = None) -> str:
        """A page that needs no other file. reload_seconds (int | None): It reads itself again after this time.

        RAISES (ImportError): matplotlib is not installed. (ConfigError): The logs have nothing to draw.
        """
        return make_page(self, reload_seconds=reload_seconds)

    def to_disk(self, path: Path, *, reload_seconds: int | None = None) -> None:
        """Write a page (.html) or a picture (.png, .svg, .pdf), which has what the logs say. An existing file is
        replaced.

        RAISES (ImportError): matplotlib is not installed. (ConfigError): The file can't be written, or there is nothing
            to draw.
        """
        write_page(self, path, reload_seconds=reload_seconds)

    def print(self, console: Console) -> None:
        """Print the summary of each run, the scores of labels, and what is told."""
        facts = [facts_of(run) for run in self.runs]
        headers = [fact.name for i, fact in enumerate(facts[0]) if any(row[i].value for row in facts)]
        cells = [
            [run.label, *(f"{fact.value} {fact.more}".strip() for fact in row if fact.name in headers)]
            for run, row in zip(self.runs, facts)
        ]
        print_table(console, ["run", *headers], cells, numbers=headers)
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

    def corpus(self, name: str) -> Texts | None:
        """The texts of the training. name (str): "train" or "dev". RETURNS (Texts | None): None: not known."""
        if self.trained is None:
            return None
        if name not in self._texts:
            self._texts[name] = count_texts(self.trained.corpus(name))
        return self._texts[name]

    @cached_property
    def labels(self) -> list[Labels]:
        """The scores of each label: on the texts that were given; otherwise those that the training saved."""
        if self.trained is None:
            return []
        train, dev = (self.corpus(name) for name in ("train", "dev"))
        known = train.counts if train is not None and train.n_texts is not None else {}
        if self.compared is not None:
            return [table for one in self.compared.kinds if (table := table_of(one, known)).rows]
        annotated = dev.counts if dev is not None and dev.is_whole else {}
        return tables_of(self.trained.scores, known, annotated)

    @property
    def told(self) -> list[str]:
        """In a few lines: what was trained, where the time went, and how many errors there are."""
        return list(lines_of(self))

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

    logs (str | Path): One log, or those of several trainings, which are compared.
    model (str | Path | Language | None): The trained pipeline, or its folder. None: the report has what the log says.
    texts (str | Path | None): Annotated texts, as a .spacy file, to show the worst errors on. Needs `model`.
    RETURNS (Report): The report.
    RAISES (ConfigError): A file is no log; the folder is no pipeline; the texts can't be read; or `model` goes with
        several trainings.
    """
    if texts is not None and model is None:
        raise ConfigError(
            f"Can't show errors on {texts}: there is no trained pipeline to make them. Add --model training/model-best."
        )
    trained = read_folder(Path(model)) if isinstance(model, (str, Path)) else None
    if not logs:
        raise ConfigError("Can't make a report: expected the log of a training, found none. Name training/log.jsonl.")
    runs = read_runs([Path(log) for log in logs])
    if model is not None and len(runs) > 1:
        raise ConfigError(
            f"Can't use --model for {len(runs)} trainings, {', '.join(run.label for run in runs)}: expected the log of "
            "one. Give the log of the training that saved it."
        )
    if len(runs) == 1 and trained is None:
        trained = runs[0].trained
    if model is None or texts is None:
        return Report(runs, trained)
    return Report(runs, trained, compare(model if isinstance(model, Language) else _load(Path(model)), Path(texts)))


def _load(folder: Path) -> Language:
    """RAISES (ConfigError): The pipeline can't be loaded."""
    try:
        return spacy.load(folder)
    except Exception as error:  # of any component
        said = " ".join(str(error).split())
        raise ConfigError(
            f"Can't load the trained pipeline {folder}: {said[:300].rstrip('.')}. If it has components of your own, "
            "add --code functions.py."
        ) from error


def _without_nan(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and not _is_nan(value)}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
