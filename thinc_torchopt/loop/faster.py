"""The same training in less of Python's time: texts are not copied, their annotation is read once, and the garbage
collector does not search the corpus. No number changes, and there is no state to save.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Sequence
from typing import Any, Final

from spacy.language import Language
from spacy.pipeline import EntityLinker
from spacy.training import Example

from ..core.truths import KeptExamples
from .events import Control, EpochBegin

# Set to "0", all is done as spaCy does it: to compare, in tests.
SWITCH: Final = "THINC_TORCHOPT_FASTER"
# Their components leave the texts of an update as they are, but for entity linkers, which write entities and remove
# them again.
_THEIRS = ("spacy.", "spacy_transformers.", "spacy_curated_transformers.")


class Faster:
    """Makes the updates of a run. A listener.

    keeps (bool): The corpus is in memory: each epoch has the same examples.
    """

    name = "faster"

    def __init__(self, nlp: Language, *, keeps: bool):
        self._nlp = nlp
        self._is_on = os.environ.get(SWITCH) != "0"
        self._kept = KeptExamples() if keeps else KeptExamples(at_most=0)
        self._froze = False

    def update(
        self, examples: Sequence[Example], *, exclude: Collection[str], annotates: Collection[str], **arguments: Any
    ) -> None:
        """Call the update of each component, as `Language.update` does with sgd=False.

        exclude, annotates (Collection[str]): The components that [training] names.
        arguments (Any): `drop` and `losses`.
        SOURCE: spacy/language.py (3.8), `Language.update`, without what annotates, copies and finishes updates.
        """
        nlp = self._nlp
        called = [proc for name, proc in nlp.pipeline if name not in exclude and hasattr(proc, "update")]
        if annotates or not examples or not self._is_on or not _is_plain(nlp) or not all(map(_leaves_texts, called)):
            nlp.update(list(examples), sgd=False, exclude=exclude, annotates=annotates, **arguments)  # type: ignore[arg-type]
            return
        kept = self._kept.of(examples)
        for proc in called:
            proc.update(kept, sgd=None, **arguments)

    def on_epoch_begin(self, event: EpochBegin, control: Control) -> None:
        """Let the garbage collector leave alone what is there now: the corpus, the pipeline, and the answers
        that were kept in the last epoch. Unless other code has frozen objects: those would be thawed with ours.
        """
        if self._is_on and (self._froze or not gc.get_freeze_count()):
            gc.collect()
            gc.freeze()
            self._froze = True

    def close(self) -> None:
        if self._froze:
            gc.unfreeze()
        self._froze = False


def _is_plain(nlp: Language) -> bool:
    return type(nlp).update is Language.update and "update" not in vars(nlp)


def _leaves_texts(proc: Any) -> bool:
    is_theirs = type(proc).__module__.startswith(_THEIRS) and "update" not in getattr(proc, "__dict__", ())
    return is_theirs and not isinstance(proc, EntityLinker)
