"""A teacher: a frozen pipeline that annotates texts for another one.

It is loaded when it is first needed, and freed when it is not: it and the pipeline that learns need not be in memory
together. Its predictions are kept in files, by a digest of text and teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .filling import Predicted, Rule


class Teacher:
    """A frozen pipeline.

    pipeline (str | Path): Its folder, or the name of its package.
    cache (Path | None): The folder of its predictions. None: they are kept in memory.
    RAISES (ConfigError): There is no such pipeline.
    """

    def __init__(self, pipeline: str | Path, *, cache: Path | None = None):
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """A digest of the weights and of the config. The pipeline is not loaded for it."""
        raise NotImplementedError

    @property
    def nlp(self) -> Language:
        """The pipeline, loaded. RAISES (ConfigError): It can't be loaded."""
        raise NotImplementedError

    def predict(self, docs: Sequence[Doc], rules: Sequence[Rule]) -> list[Predicted]:
        """Annotate texts, in batches. docs (Sequence[Doc]): Only their tokens are read."""
        raise NotImplementedError

    def free(self) -> None:
        """Free the pipeline's memory. It is loaded again when it is needed."""
        raise NotImplementedError
