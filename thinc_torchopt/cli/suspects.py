"""`spacy torchopt suspects`: annotations that may be wrong, by the record of a training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Optional

from typer import Argument as Arg
from typer import Option as Opt

from ..addons.report import Suspect, check_place, read_suspects, save_whole
from ..core.errors import ConfigError
from ..core.host import cli_util
from ..core.tables import print_table
from ..core.words import count
from ._command import CODE
from ._screen import errors_shown, make_console, print_notes

_HEADERS = ("text", "where", "annotated", "proposed", "score", "why")
_WIDTH = 40


def suspects(
    folder: Path = Arg(..., help="Folder of a training with [training.optimizer.recorder]", exists=True),
    component: Optional[str] = Opt(None, "--component", "-n", help="Only this one"),
    label: Optional[str] = Opt(None, "--label", help="Only annotations or predictions with this label"),
    most: int = Opt(30, "--most", min=1, help="Of each component"),
    output_path: Optional[Path] = Opt(
        None,
        "--output",
        "-o",
        help="File for them: .jsonl, to accept or reject; with --accepted, the new corpus: .spacy",
    ),
    accepted_path: Optional[Path] = Opt(
        None, "--accepted", help="The .jsonl, after you have accepted some: write the corpus with these", exists=True
    ),
    code_path: Optional[Path] = CODE,
) -> None:
    """
    List the annotations that may be wrong. They were hard to learn in a training that was recorded. With --output they
    become rows of JSONL, each with what may be right, as Prodigy shows them. Where "answer" is "accept", --accepted
    puts the annotations of the row into the corpus.
    """
    console = make_console()
    with errors_shown(as_json=False):
        ending = ".jsonl" if accepted_path is None else ".spacy"
        is_missing = output_path is None and accepted_path is not None
        if is_missing or (output_path is not None and output_path.suffix != ending):
            raise ConfigError(f"Can't write '{output_path}': expected --output with a name that ends in {ending}.")
        if accepted_path is not None and (component is not None or label is not None):
            raise ConfigError("Can't use --accepted with --component or --label: all accepted rows are taken.")
        if output_path is not None:
            check_place(output_path, [])
        if output_path is not None and accepted_path is None:
            _check_unanswered(output_path)
        cli_util().import_code(code_path)
        found = read_suspects(folder)
        if accepted_path is not None and output_path is not None:
            n_rows, n, notes = found.replace(accepted_path, output_path)
            told = f"{count(n_rows, 'accepted row')}, {count(n, 'text')} annotated otherwise"
            console.print(f"Saved the corpus to {output_path}: {told}.", markup=False)
            print_notes(console, notes)
            return
        if component is not None and component not in found.components:
            raise ConfigError(
                f"Can't show '{component}': expected one of {', '.join(found.components)}, which were recorded."
            )
        rows: list[Suspect] = []
        for name in found.components if component is None else [component]:
            rows += (shown := found.of(name, most, label))
            console.print(f"{name}:", markup=False)
            print_table(console, _HEADERS, [_cells(one) for one in shown], numbers=["text", "score"])
        if label is not None and not rows:
            raise ConfigError(f"Can't show '{label}': no annotation or prediction with this label was recorded.")
        if output_path is not None:
            text = "".join(f"{json.dumps(one.row(), ensure_ascii=False)}\n" for one in rows)
            with save_whole(output_path) as unfinished:
                unfinished.write_text(text, encoding="utf8", newline="")
    print_notes(console, list(found.notes))
    if output_path is not None:
        console.print(f"Saved {count(len(rows), 'row')} to {output_path}", markup=False)
        if same := sum(one.is_as_proposed for one in rows):
            console.print(f"Proposed as annotated: {count(same, 'row')}. Correct them by hand, if they are wrong.")


def _check_unanswered(path: Path) -> None:
    """RAISES (ConfigError): Rows of the file have been accepted or rejected."""
    if path.exists() and (answered := len(re.findall('"answer": *"(?!ignore)', path.read_text("utf8", "replace")))):
        raise ConfigError(f"Can't write '{path}': it has {count(answered, 'answer')}. Give another name.")


def _cells(one: Suspect) -> list[str]:
    texts = [one.context, one.said(one.annotated), one.said(one.proposed)]
    cut = [" ".join(text.split()) for text in texts]
    cut = [text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}\u2026" for text in cut]
    return [f"{one.number:,}", *cut, f"{one.score:.1f}", one.why]
