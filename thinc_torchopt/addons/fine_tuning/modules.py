"""How the modules of transformers compute in a run: their attention, and gradient checkpointing. After it they are as
before.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack

from spacy.language import Language

from ...core.errors import ConfigError
from ...loop.run import Run
from .attention import attending, check_attention
from .checkpointing import check_checkpointing, checkpointing
from .settings import BLOCK, FineTuning
from .transformers import check_transformers, transformers_of


class ModulesOfRun:
    """Changes the modules for a run. A listener."""

    name = "modules of transformers"

    def __init__(self, settings: FineTuning, run: Run):
        self._settings = settings
        self._run = run
        self._inside = ExitStack()

    def before_run(self) -> None:
        settings = self._settings
        for found in transformers_of(self._run.nlp, self._run.exclude):
            if settings.attention is not None:
                self._inside.enter_context(attending(found.shim, settings.attention))
            if settings.gradient_checkpointing:
                self._inside.enter_context(checkpointing(settings, found.module))

    def close(self) -> None:
        self._inside.close()


def check_modules(settings: FineTuning, nlp: Language, exclude: Collection[str]) -> None:
    """RAISES (ConfigError): No transformer is trained, or one can't compute in this way."""
    check_transformers(nlp)
    trained = transformers_of(nlp, exclude)
    if not trained:
        names = " and ".join(f"'{found.component}'" for found in transformers_of(nlp))
        raise ConfigError(
            f"Can't use {BLOCK}: expected a transformer that is trained, found {names} in frozen_components of "
            "[training]. Train it, or remove the block."
        )
    for found in trained:
        if settings.gradient_checkpointing:
            check_checkpointing(settings, found.component, found.module)
        if settings.attention is not None:
            check_attention(found.component, found.shim, settings.attention)
