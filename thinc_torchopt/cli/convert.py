"""`spacy torchopt convert`: texts of any known form in spaCy's binary format."""

from __future__ import annotations

import sys
from pathlib import Path

from typer import Argument as Arg
from typer import Option as Opt
from wasabi.printer import Printer

from ..addons.recipes import blank_pipeline
from ..core.errors import ConfigError
from ..core.readers import MISALIGNED, Misaligned
from ._screen import errors_shown
from ._texts import convert_texts

MISALIGNED_OPTION = Opt(
    "expand", "--misaligned", help="For spans that begin or end within a token: expand, contract or drop"
)


def convert(
    input_path: Path = Arg(..., help="A file of texts with annotations, or a folder or archive of them"),
    output_path: Path = Arg(..., help="File to write, whose name ends in .spacy"),
    lang: str = Opt(
        "xx", "--lang", "-l", help="Code of the texts' language, which says how they are cut: en; xx for any"
    ),
    misaligned: str = MISALIGNED_OPTION,
    force: bool = Opt(False, "--force", "-F", help="Write over a file that was not made from the input"),
) -> None:
    """
    Convert texts to spaCy's binary format. Known forms: JSONL of Prodigy, doccano or Hugging Face, Label Studio's JSON,
    CSV, CoNLL and other columns, CoNLL-U, brat, spaCy's older forms. The form is seen in the file. What
    does not fit is counted and shown.
    """
    with errors_shown(as_json=False):
        if output_path.suffix != ".spacy":
            raise ConfigError(
                f"Can't convert to '{output_path}': expected a name that ends in .spacy. Give it: "
                f"{output_path.with_suffix('.spacy')}."
            )
        nlp = blank_pipeline(lang, {})
        told = convert_texts(nlp, input_path, output_path, checked(misaligned), force=force)
    msg = Printer(pretty=sys.stdout.isatty())
    msg.good("Saved texts", output_path)
    for line in (*told.lines(), *told.found.lines()):
        msg.text(line)


def checked(misaligned: str) -> Misaligned:
    """The option, checked. RAISES (ConfigError): It is none of the three."""
    if (found := next((one for one in MISALIGNED if one == misaligned), None)) is None:
        raise ConfigError(f"Can't use --misaligned {misaligned}: expected one of {', '.join(MISALIGNED)}.")
    return found
