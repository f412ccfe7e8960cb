"""The measurements of the recipes, by kind of pipeline: measured.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import srsly
from spacy.language import Language

from ...core.params import all_names, escape, trainable_components

FILE = Path(__file__).with_name("measured.yaml")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A row of measured.yaml, which explains the fields."""

    train: str
    on: str
    take: str
    expect: str
    instead: str = ""
    factories: Sequence[str] = ()
    network: str = ""

    @property
    def is_measured(self) -> bool:
        return self.expect != "not measured yet"


@lru_cache(maxsize=1)
def measurements() -> tuple[list[Measured], str]:
    """All rows, and the words above their table."""
    read: dict[str, Any] = srsly.read_yaml(FILE)  # type: ignore[attr-defined]
    return [Measured(**row) for row in read["rows"]], read["about"]


def measured_of(nlp: Language, frozen: Sequence[str], *, has_encoder: bool) -> list[Measured]:
    """The rows of the components that are trained. There are none for those of which measured.yaml has no row.

    nlp (Language): The pipeline; it need not be initialized.
    has_encoder (bool): Whether the pipeline has a transformer.
    """
    rows, _ = measurements()
    trained = {name for name, _ in trainable_components(nlp, frozen)}
    network = "transformer" if has_encoder else "cnn"  # in the words of measured.yaml
    kinds = {
        (nlp.get_pipe_meta(name).factory, "bow" if is_on_bags(nlp, name) else network)
        for name in nlp.pipe_names
        if escape(name) in trained
    }
    return [row for row in rows if any(row.network == kind and factory in row.factories for factory, kind in kinds)]


def is_on_bags(nlp: Language, name: str) -> bool:
    """Whether a component is trained on bags of words alone."""
    names = [found for found in all_names(nlp) if found.split("/")[0] == escape(name)]
    # A component that listens to a tok2vec or transformer has its output layer alone, too.
    model = getattr(nlp.get_pipe(name), "model", None)
    listens = model is not None and any(node.name.endswith("-listener") for node in model.walk())
    return bool(names) and not listens and are_bags(names)


def are_bags(names: Sequence[str]) -> bool:
    """Whether params are those of output layers alone, over bags of words, as in spacy.TextCatBOW.v3."""
    return all(name.split("/")[1:-1] == ["output_layer"] for name in names)
