"""TaughtCorpus: a reader of training data in which a teacher fills in what is open."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Optional, Union

from spacy.language import Language
from spacy.training import Example

from ...loop.filling import Filled, fill, rules_for
from ...loop.teacher import Teacher

_WHERE = "of 'thinc-torchopt.TaughtCorpus.v1'"
# Texts that are read and annotated at once.
_LEAST, _MOST = 128, 4096

Reader = Callable[[Language], Iterable[Example]]


class TaughtCorpus:
    """Read texts, and fill in what they leave open. Registered as `thinc-torchopt.TaughtCorpus.v1`.

    corpus (Callable): The reader of the annotated texts.
    teacher (str | Path | None): The folder of a pipeline, or the name of its package. None: the pipeline that the
        components have as their source.
    components (list[str] | None): Those to fill in for. None: all that learn, and that the teacher has too.
    complete (list[str]): Labels that these texts annotate completely: they are not filled in.
    replaces (dict[str, str | list[str]]): By new label, the teacher's labels in whose place it stands.
    cache (Path | None): The folder of the teacher's predictions. None: they are not kept.
    texts (Path | None): Texts that nobody has annotated: .txt, .jsonl or .spacy, or a folder of them.
    share (float): How many of these for each annotated text.
    max_words (int): Longer ones are cut, at the ends of sentences where there are. 0: never.
    old (Callable | None): The reader of texts on which only the old labels are annotated.
    seed (int): For drawing from `texts`.
    RAISES (ConfigError): The texts, the teacher or one of its components is not there.
    """

    def __init__(
        self,
        corpus: Reader,
        teacher: Optional[Union[str, Path]] = None,
        components: Optional[List[str]] = None,
        complete: List[str] = [],
        replaces: Dict[str, Union[str, List[str]]] = {},
        cache: Optional[Path] = None,
        texts: Optional[Path] = None,
        share: float = 2.0,
        max_words: int = 60,
        old: Optional[Reader] = None,
        seed: int = 0,
    ):
        self._corpus, self._old = corpus, old
        self._name = teacher
        self._components = components
        self._complete, self._replaces = complete, replaces
        self._cache = cache
        self._texts, self._share, self._max_words, self._seed = texts, share, max_words, seed
        self._teacher = None if teacher is None else Teacher(teacher, cache=cache, where=f"'teacher' {_WHERE}")

    def __call__(self, nlp: Language) -> Iterator[Example]:
        """Read the texts. YIELDS (Example): Their references are filled in."""
        teacher = self._teacher
        assert teacher is not None
        rules = rules_for(
            nlp,
            teacher.components,
            self._components,
            complete=self._complete,
            replaces=self._replaces,
            where=f"fill in 'components' {_WHERE},",
        )
        counted = Filled()
        try:
            for examples in _pieces(self._corpus(nlp)):
                references = [example.reference for example in examples]
                for example, predicted in zip(examples, teacher.predict(references, rules)):
                    yield Example(example.predicted, fill(example.reference, predicted, rules, counted))
        finally:
            teacher.free()


def _pieces(examples: Iterable[Example]) -> Iterator[List[Example]]:
    """Examples, some at once: few at first, as spaCy may want no more, and then more."""
    rest, size = iter(examples), _LEAST
    while piece := list(islice(rest, size)):
        yield piece
        size = min(_MOST, 2 * size)
