"""The same training in less of Python's time: texts are not copied, their annotation and wordpieces are read once, and
the garbage collector does not search the corpus. No number changes, but for rounding in the backward passes of parsers
and NER on a GPU, and there is no state to save.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import spacy.language
from spacy.language import Language
from spacy.pipeline import EntityLinker
from spacy.training import Example

from ..core.parser_backprop import batch_backprop_on_gpu
from ..core.parser_updates import update_of_parser
from ..core.read_once import THEIRS
from ..core.truths import KeptExamples
from ..core.whole_batches import whole_batches
from ..core.word_losses import update_of_words
from ..core.wordpieces import keep_wordpieces
from .events import Control, EpochBegin, StepBegin

# Set to "0", all is done as spaCy does it: to compare, in tests.
SWITCH: Final = "THINC_TORCHOPT_FASTER"


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
        self._put_back: list[Callable[[], None]] = []

    def before_run(self) -> None:
        self._cover()

    def on_step_begin(self, event: StepBegin, control: Control) -> None:
        self._cover()  # the user's hook may have added a transformer

    def _cover(self) -> None:
        if self._is_on:
            self._put_back += [*keep_wordpieces(self._nlp), *batch_backprop_on_gpu(self._nlp)]

    def update(
        self, examples: Sequence[Example], *, exclude: Collection[str], annotates: Collection[str], **arguments: Any
    ) -> None:
        """Call the update of each component, as `Language.update` does with sgd=False.

        exclude, annotates (Collection[str]): The components that [training] names.
        arguments (Any): `drop` and `losses`.
        SOURCE: spacy/language.py (3.8), `Language.update`, without what annotates, copies and finishes updates.
        """
        nlp, texts = self._nlp, {id(example.x) for example in examples}
        called = [proc for name, proc in nlp.pipeline if name not in exclude and hasattr(proc, "update")]
        # A text that a batch has twice would be one to the transformer.
        is_plain = self._is_on and not annotates and 0 < len(examples) == len(texts) and _is_plain(nlp)
        if not is_plain or not all(map(_leaves_texts, called)):
            nlp.update(list(examples), sgd=False, exclude=exclude, annotates=annotates, **arguments)  # type: ignore[arg-type]
            return
        kept = self._kept.of(examples)
        with whole_batches(nlp):
            for proc in called:
                update = update_of_words(proc) or update_of_parser(proc) or proc.update
                update(kept, sgd=None, **arguments)

    def on_epoch_begin(self, event: EpochBegin, control: Control) -> None:
        """Let the garbage collector leave alone what is there now: the corpus, the pipeline, and the answers
        that were kept in the last epoch. Unless other code has frozen objects: those would be thawed with ours.
        """
        if self._is_on and (self._froze or not gc.get_freeze_count()):
            gc.collect()
            gc.freeze()
            self._froze = True

    def close(self) -> None:
        for put_back in self._put_back:
            put_back()
        if self._froze:
            gc.unfreeze()
        self._put_back, self._froze = [], False


def _is_plain(nlp: Language) -> bool:
    """Whether `nlp.update` is the function that this one follows: nobody has put another there."""
    code: Any = getattr(type(nlp).update, "__code__", None)
    is_spacys = code is not None and (code.co_filename, code.co_name) == (spacy.language.__file__, "update")
    return is_spacys and "update" not in vars(nlp)


def _leaves_texts(proc: Any) -> bool:
    """Whether an update leaves texts as they are. An entity linker writes entities, and removes them again."""
    is_theirs = type(proc).__module__.startswith(THEIRS) and "update" not in getattr(proc, "__dict__", ())
    return is_theirs and not isinstance(proc, EntityLinker)
