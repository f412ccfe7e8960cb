"""Files of texts for commands: any known form, converted to spaCy's binary format where spaCy reads them later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spacy import util
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from ..addons.recipes import blank_pipeline
from ..core.errors import ConfigError
from ..core.host_errors import plain_errors
from ..core.readers import Misaligned, Told, read_docs
from ..core.state import replacing
from ..loop.progress_bars import show_activity

_FOLDER = Path("corpus")
# In the first text of a file: it was converted from there.
_SOURCE = "thinc_torchopt_source"


def is_binary(path: str | Path) -> bool:
    """Whether spaCy's own reader takes a path; also if there is nothing, which others tell."""
    path = Path(path)
    return not path.exists() or path.suffix == ".spacy" or (path.is_dir() and any(path.rglob("*.spacy")))


def as_binary(nlp: Language, path: str, misaligned: Misaligned) -> tuple[str, list[str]]:
    """A path that spaCy's own reader takes. Files of other forms are converted to corpus/NAME.spacy.

    nlp (Language): With the tokenizer of the pipeline.
    RETURNS (tuple): The path, and what was found, in words.
    RAISES (ConfigError): It can't be read, or another file is in the way.
    """
    if is_binary(path):
        return path, []
    output = _FOLDER / f"{Path(path).name.partition('.')[0]}.spacy"
    told = convert_texts(nlp, Path(path), output, misaligned)
    return str(output), [f"Converted {path} to {output}.", *told.lines()]


def convert_overrides(config_path: Path, overrides: dict[str, Any]) -> list[str]:
    """Convert the corpora that a command line names, as `as_binary` does, and replace their paths.

    RETURNS (list[str]): What was found, in words.
    """
    told = []
    for name in ("paths.train", "paths.dev"):
        given = overrides.get(name)
        if isinstance(given, str) and not is_binary(given):
            with plain_errors(path=config_path):
                lang = util.load_config(config_path, interpolate=False)["nlp"]["lang"]
            overrides[name], lines = as_binary(blank_pipeline(lang, {}), given, "expand")
            told += lines
    return told


def convert_texts(nlp: Language, path: Path, output: Path, misaligned: Misaligned, *, force: bool = False) -> Told:
    """Write the texts of a file of any known form in spaCy's binary format.

    force (bool): Also over a file that was not converted from there.
    RETURNS (Told): What was found.
    RAISES (ConfigError): It can't be read or written, or another file is in the way.
    """
    with show_activity("Reading the texts"):
        docs, told = read_docs(nlp, path, misaligned)
    source = str(path.resolve())
    if output.exists() and not force and _source_of(output, nlp) != source:
        raise ConfigError(
            f"Can't write '{output}': it already exists, and was not made from '{path}'. Move it away, or convert "
            f"under another name: spacy torchopt convert {path} NAME.spacy."
        )
    docs[0].user_data[_SOURCE] = source
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with replacing(output) as unfinished:
            unfinished.write_bytes(_packed(docs))
    except OSError as error:
        raise ConfigError(f"Can't write '{output}': {error.strerror or error}. Choose another folder.") from error
    return told


def _packed(docs: Sequence[Doc]) -> bytes:
    return DocBin(store_user_data=True, docs=docs).to_bytes()


def _source_of(path: Path, nlp: Language) -> str:
    """The file that a file was converted from. Empty: none."""
    try:
        first = next(DocBin(store_user_data=True).from_disk(path).get_docs(nlp.vocab))
        return str(first.user_data.get(_SOURCE, ""))
    except Exception:  # it is no such file
        return ""
