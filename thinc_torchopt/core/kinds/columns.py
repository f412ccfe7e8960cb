"""Attributes of a text's tokens, read and written as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from spacy.tokens import Doc


def column(doc: Doc, attr: int) -> numpy.ndarray:
    """An attribute of each token, as a copy. Shape: (len(doc),)."""
    return numpy.asarray(doc.to_array([attr])).reshape(len(doc)).astype("uint64")


def names(doc: Doc, attr: int) -> list[str]:
    """The same as texts. Empty: it is not set."""
    keys = column(doc, attr).tolist()
    known = {key: doc.vocab.strings[int(key)] if key else "" for key in set(keys)}
    return [known[key] for key in keys]


def put(doc: Any, attrs: Sequence[int], *columns: numpy.ndarray) -> None:
    """Write columns."""
    doc.from_array(list(attrs), numpy.stack([values.astype("uint64") for values in columns], axis=1))
