"""Reading the corpora of a config."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Literal

from spacy.language import Language
from spacy.training import Example
from spacy.util import dot_to_object, registry, resolve_dot_names

from ..config_checks import check_corpora
from ..errors import ConfigError, TorchOptError
from ..host_errors import line_of_others

Reader = Callable[[Language], Iterable[Example]]
Setting = Literal["train_corpus", "dev_corpus"]

_READER = "@readers"


def read_corpus(
    nlp: Language,
    config: Mapping[str, Any],
    setting: Setting,
    *,
    purpose: str = "train",
    limit: int | None = None,
) -> list[Example]:
    """Read a corpus of a config.

    config (Mapping): Interpolated.
    purpose (str): The verb for the error message: "train".
    limit (int | None): The most texts to read.
    RAISES (ConfigError): It has no path, can't be read, or is empty.
    """
    name = config["training"][setting]
    where = f"[{name}]"
    check_corpora(nlp.config, [setting])
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            examples = list(islice(_reader(config, name)(nlp), limit))
    except TorchOptError:
        raise
    except Exception as error:  # a user's reader may raise anything
        found = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.strerror:
            found = f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
        line = line_of_others(error)
        at = f" at {line}. Correct the reader or its data." if line else ". Check the path of the corpus."
        raise ConfigError(f"Can't {purpose}: expected texts in {where}, found: {found.rstrip('.')}{at}") from error
    for warning in caught:
        if "[W090]" not in str(warning.message):  # no files: reported below
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if not examples:
        at = _path_of(config, name)
        raise ConfigError(
            f"Can't {purpose}: expected texts in {where}, found none{f' at {at!r}' if at else ''}. Check the path of "
            "the corpus, and whether its reader leaves texts out."
        )
    return examples


def _reader(config: Mapping[str, Any], name: str) -> Reader:
    """Resolve this corpus alone: spaCy's function resolves a whole section, where another corpus may have no path."""
    try:
        block = dot_to_object(config, name)  # type: ignore[arg-type]
    except KeyError:
        block = None
    if isinstance(block, Mapping) and _READER in block:
        reader: Reader = registry.resolve({"corpus": dict(block)})["corpus"]
    else:  # a function gives several corpora
        [reader] = resolve_dot_names(config, [name])  # type: ignore[arg-type]
    return reader


def _path_of(config: Mapping[str, Any], name: str) -> str:
    try:
        return str(dot_to_object(config, f"{name}.path"))  # type: ignore[arg-type]
    except KeyError:
        return ""
